"""What a command shows while it works: the live view of running queries, and progress bars."""

import contextlib
import sys
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn
from rich.text import Text

from watersmeet.cli.tables import MOST_NAMED, links_table, messages_line, plans_table, run_title
from watersmeet.metrics.events import PlanChangeProposed, PlanInForce
from watersmeet.texts import size_text

if TYPE_CHECKING:
    from watersmeet.spark.handle import StreamingRun


def progress_bar(before: ProgressColumn, *after: ProgressColumn, is_hidden: bool = False) -> Progress:
    """A progress bar on standard error, shown only at a terminal and gone at the end."""
    return Progress(
        before,
        BarColumn(),
        *after,
        console=Console(stderr=True),
        transient=True,
        disable=is_hidden or not sys.stderr.isatty(),
    )


_LINE_S = 60.0  # how often there is a line where nobody watches


def follow(run: "StreamingRun", stop: threading.Event, console: Console, began: float, *, quiet: bool) -> None:
    """Show a run until it has ended or a signal stops it: live at a terminal, elsewhere a line a minute."""
    live = Live(console=console, refresh_per_second=4) if console.is_terminal and not quiet else None
    next_line = began + _LINE_S
    with live or contextlib.nullcontext():
        while not stop.is_set() and not run.awaitTermination(0.2):
            if live is not None:
                live.update(_progress(run, began))
            elif not quiet and time.monotonic() >= next_line:
                next_line = time.monotonic() + _LINE_S
                _print_line(run, began, console)
        if stop.is_set():
            if not quiet:
                console.print("stopping after the current micro-batch")
            run.stop()


def _print_line(run: "StreamingRun", began: float, console: Console) -> None:
    """Print where a run has come to, at once and on one line however long."""
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    console.print(Text(f"{at}  {_progress_line(run, began)}"), soft_wrap=True)
    console.file.flush()


def _progress(run: "StreamingRun", began: float) -> RenderableType:
    parts: list[RenderableType] = [_progress_line(run, began)]
    if len(plans := _plans(run)) <= MOST_NAMED:
        parts.append(plans_table(plans, run.events.recent(PlanChangeProposed)))
    if (traffic := run.traffic).rows:
        parts += [links_table(traffic), Text(messages_line(traffic))]
    return Group(*parts)


def _plans(run: "StreamingRun") -> list[tuple[float, PlanInForce]]:
    """The plans in force, and since when they are."""
    known = run.plans
    return [(at, plan) for at, plan in run.events.recent(PlanInForce) if plan.query in known]


def _progress_line(run: "StreamingRun", began: float) -> Text:
    last = run.last_batch
    if last is None:
        return Text(f"{run_title(run)}: waiting for data ({time.monotonic() - began:.0f} s)")
    usage = run.usage()
    counts = ((usage.late, "late"), (usage.malformed, "malformed"), (usage.failed, "failed"))
    parts = [
        f"{run_title(run)}: micro-batch {last.batch}",
        f"rows in {usage.rows_in:,}",
        f"answers {usage.rows_out:,}",
        f"{sum(last.rows_in.values()) / max(last.seconds, 1e-9):,.0f} rows/s",
        f"state {last.state_rows:,} rows, {size_text(last.state_bytes)}",
        *_shipped(run),
        *(f"{count:,} {what}" for count, what in counts if count),
    ]
    return Text("  ".join(parts))


def _shipped(run: "StreamingRun") -> list[str]:
    """Bytes sent over all links so far."""
    traffic = run.traffic
    if not traffic.rows:
        return []
    share = f", {traffic.bytes / traffic.central_bytes:.0%} of central" if traffic.central_bytes else ""
    return [f"shipped {size_text(traffic.bytes)}{share}"]
