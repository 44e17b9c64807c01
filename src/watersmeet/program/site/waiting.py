"""Why answers wait for watermarks, in the words of a warning: what a run that ends with its input has not answered."""

from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.site.program import SiteProgram
from watersmeet.query.windows import Changes


def waiting_rows(ledger: SiteLedger) -> dict[str, int]:
    """Of each stream, the rows that wait for their order."""
    counts = {stream: sum(segment.rows for segment in segments) for stream, segments in sorted(ledger.pending.items())}
    return {stream: rows for stream, rows in counts.items() if rows}


def awaited_queries(program: SiteProgram) -> set[str]:
    """The queries whose answers may wait; with EMIT CHANGES groups end as time goes on, which nobody waits for."""
    changing = {
        finish.target.name
        for _, finish in program.finishes
        if finish.grouping is not None and isinstance(finish.grouping.window, Changes)
    }
    return set(program.answered) - changing


def why_answers_wait(program: SiteProgram, ledger: SiteLedger) -> list[str]:
    """The reasons, each a part of a sentence."""
    finishes = [finish for _, finish in program.finishes if finish.target.name in awaited_queries(program)]
    grouped = sorted({repr(finish.target.name) for finish in finishes if finish.grouping is not None})
    outer = sorted({repr(finish.target.name) for finish in finishes if finish.matching is not None})
    reasons = []
    if rows := waiting_rows(ledger):
        counted = "; ".join(f"{count:,} rows of stream {stream!r}" for stream, count in rows.items())
        reasons.append(
            f"{counted} wait: a ROWS window counts them once the watermark has passed, as an earlier row may come"
        )
    if grouped and any(ledger.groups.values()):
        reasons.append(f"output windows of {', '.join(grouped)} end after the watermark")
    if outer and any(ledger.matching.values()):
        reasons.append(f"rows of {', '.join(outer)} may still find a partner")
    return reasons
