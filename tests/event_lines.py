"""Events as lines of a file, counted without the code that shows them."""

from typing import Any

Lines = list[dict[str, Any]]


def of_kind(lines: Lines, kind: str) -> Lines:
    return [line for line in lines if line["event"] == kind]


def totals(lines: Lines) -> tuple[int, int, int]:
    """Rows, answers and bytes, by the events alone."""
    batches = of_kind(lines, "micro_batch_completed")
    sent = {(line["site"], line["to"], line["purpose"]): line["bytes"] for line in of_kind(lines, "link_traffic")}
    rows = sum(sum(line["rows_in"].values()) for line in batches)
    return rows, sum(sum(line["answers"].values()) for line in batches), sum(sent.values())
