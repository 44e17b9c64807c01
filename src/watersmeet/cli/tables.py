"""Tables and figures that commands print."""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from watersmeet.metrics.events import PlanChangeProposed, PlanInForce
from watersmeet.texts import size_text
from watersmeet.topology.model import Query, Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.metrics.traffic import LinkTraffic
    from watersmeet.metrics.usage import Usage
    from watersmeet.spark.handle import StreamingRun

_LINKS_CAPTION = "bytes as sent, compressed; tuples: rows, keys or combinations; price: bytes x price_per_gb"
_WIDEST = 100_000
MOST_NAMED = 5  # queries that are named one by one, and each get a table of their own


def counted(number: int, singular: str, plural: str) -> str:
    """A number with its noun.

    >>> counted(1, "query", "queries"), counted(2, "query", "queries")
    ('1 query', '2 queries')
    """
    return f"{number:,} {singular if number == 1 else plural}"


def run_title(run: "StreamingRun") -> str:
    """The names of a run's queries, as long as they are few."""
    return run.name if len(run.plans) <= MOST_NAMED else counted(len(run.plans), "query", "queries")


def summary_table(query: Query, usage: "Usage", batches: int, seconds: float, *, is_answered: bool) -> Table:
    """What a run has done for a query: rows, answers, micro-batches, state, and the output path."""
    table = Table(title=f"query {query.name}", title_justify="left", show_header=False)
    table.add_row("rows in", f"{usage.rows_in:,} ({usage.rows_in / seconds:,.0f} a second)")
    if query.foreach_batch is None and is_answered:
        table.add_row("answers", f"{usage.rows_out:,} ({usage.rows_out / seconds:,.0f} a second)")
    table.add_row("micro-batches", f"{batches:,} in {seconds:.1f} s")
    counts = (
        (usage.late, "late rows, not joined"),
        (usage.malformed, "malformed rows, not joined"),
        (usage.null_keys, "rows with a NULL key"),
        (usage.failed, "left out: an expression fails"),
    )
    for count, what in counts:
        if count:
            table.add_row(what, f"{count:,} ({count / max(usage.rows_in, 1):.1%} of rows in)")
    table.add_row("state", f"{usage.state_rows:,} rows, {size_text(usage.state_bytes)}")
    if query.sink.path and is_answered:
        table.add_row("output path", query.sink.path)
    if usage.failed and query.failed is not None:
        table.add_row("failed rows in", str(query.failed.path))
    return table


def queries_table(usages: "Mapping[str, Usage]", whole: "Usage") -> Table:
    """What each of several queries has taken and given, and all together: what they share counts once there."""
    caption = "late, failed: rows that take no part; shipped: bytes sent to other sites"
    table = Table(title="queries", title_justify="left", caption=caption, caption_justify="left")
    table.add_column("query")
    for heading in ("rows in", "answers", "late", "failed", "state rows", "state", "shipped"):
        table.add_column(heading, justify="right")
    for name, usage in (*usages.items(), ("all, shared counted once", whole)):
        sizes = size_text(usage.state_bytes), size_text(usage.bytes_shipped)
        counts = (usage.rows_in, usage.rows_out, usage.late, usage.failed, usage.state_rows)
        table.add_row(name, *(f"{count:,}" for count in counts), *sizes)
    return table


def links_table(traffic: "LinkTraffic") -> Table:
    """Bytes, batches and tuples by link and purpose, with the estimate and what the planner central would ship."""
    table = Table(title="links", title_justify="left", caption=_LINKS_CAPTION, caption_justify="left")
    table.add_column("link")
    table.add_column("purpose")
    is_estimated = traffic.estimated_bytes is not None
    for heading in ("bytes", *(["estimated"] if is_estimated else []), "batches", "tuples", "price"):
        table.add_column(heading, justify="right")

    def estimated(size: float | None) -> list[str]:
        return [] if not is_estimated else ["" if size is None else f"{size:,.0f}"]

    for row in traffic.rows:
        counts = (f"{count:,}" for count in (row.traffic.batches, row.traffic.tuples))
        sizes = [f"{row.traffic.bytes:,}", *estimated(row.estimated_bytes)]
        table.add_row(f"{row.origin} -> {row.to}", row.purpose, *sizes, *counts, f"{row.price:.6f}")
    table.add_section()
    total = [f"{traffic.bytes:,}", *estimated(traffic.estimated_bytes), "", "", f"{traffic.price:.6f}"]
    table.add_row("total", "", *total)
    central = [f"{traffic.central_bytes:,}", *estimated(None), "", "", f"{traffic.central_price:.6f}"]
    table.add_row("central would ship about", "", *central)
    return table


def plans_table(
    plans: Iterable[tuple[float, PlanInForce]], proposals: Iterable[tuple[float, PlanChangeProposed]]
) -> Table:
    """Which plan of each query is in force, since when, and why it was changed."""
    table = Table(title="plans in force", title_justify="left")
    table.add_column("query")
    table.add_column("version", justify="right")
    for heading in ("planner", "since (UTC)", "why"):
        table.add_column(heading)
    asked = sorted(proposals, key=lambda proposal: proposal[0])
    for at, plan in sorted(plans, key=lambda plan: plan[1].query):
        since = datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")
        reasons = [
            plan_change_proposed.reason
            for before, plan_change_proposed in asked
            if plan.query in plan_change_proposed.queries and before <= at
        ]
        table.add_row(plan.query, str(plan.version), plan.planner, since, reasons[-1] if reasons else "")
    return table


def messages_line(traffic: "LinkTraffic") -> str:
    """How many messages of each kind links have carried, the most first."""
    counts: dict[str, int] = {}
    for row in traffic.rows:
        counts[row.purpose] = counts.get(row.purpose, 0) + row.traffic.batches
    found = sorted((count for count in counts.items() if count[1]), key=lambda one: (-one[1], one[0]))
    return f"messages by kind: {', '.join(f'{kind} {count:,}' for kind, count in found) or 'none'}"


def print_table(table: Table, console: Console) -> None:
    """Print a table; one that the terminal is too narrow for as a block of lines a row, rather than cut to nothing."""
    wanted = table.__rich_measure__(console, console.options.update(max_width=_WIDEST)).maximum
    if wanted > console.width and console.is_terminal:
        console.print(_as_lines(table), soft_wrap=True)
    else:  # what is piped to a file or a program is as wide as it needs to be
        width = console.width
        console.width = max(wanted, width)
        console.print(table)
        console.width = width


def _as_lines(table: Table) -> Text:
    """The rows of a table one after the other, each cell on a line with its heading."""
    rows = list(zip(*(map(str, column.cells) for column in table.columns), strict=True))
    lines = [str(table.title)]
    if table.show_header:
        headings = [str(column.header) for column in table.columns]
        margin = max(map(len, headings)) + 2
        for row in rows:
            cells = [(heading, cell) for heading, cell in zip(headings, row, strict=True) if cell]
            lines += [f"{' ' if number else '-'} {head:<{margin}}{cell}" for number, (head, cell) in enumerate(cells)]
    else:
        margin = max(len(row[0]) for row in rows) + 2
        lines += [f"  {name:<{margin}}{value}" for name, value in rows]
    return Text("\n".join([*lines, *([str(table.caption)] if table.caption else [])]))


def sample_table(sink: Sink, spark: "SparkSession", names: Sequence[str] = (), count: int = 5) -> Table:
    """A few rows of what a sink holds; `names` are its columns, where files do not say."""
    columns, rows = _sample(sink, spark, count)
    if names and len(names) == len(columns) and sink.format in ("csv", "text"):
        columns = list(names)
    table = Table(*columns, title="sample of the answers", title_justify="left", min_width=24)
    for row in rows:
        table.add_row(*map(str, row))
    return table


def _sample(sink: Sink, spark: "SparkSession", count: int) -> tuple[list[str], list[tuple[Any, ...]]]:
    assert sink.path is not None
    if sink.format == "parquet" and os.path.isdir(sink.path):  # Spark would take a second to begin with local files
        import pyarrow.dataset as ds

        some = ds.dataset(sink.path, format="parquet").head(count)
        columns = [map(_without_zone, column.to_pylist()) for column in some.columns]
        return some.column_names, list(zip(*columns, strict=True))
    stored = spark.read.format(sink.format).options(**dict(sink.options)).load(sink.path)
    return stored.columns, [tuple(row) for row in stored.limit(count).collect()]


def _without_zone(value: Any) -> Any:
    """Times are in UTC, and shorter if they do not say so."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value
