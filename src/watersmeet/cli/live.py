"""What a command shows while it works: the live view of running queries, and progress bars."""

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn
from rich.text import Text

from watersmeet.cli.tables import links_table, megabytes, run_title

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


def follow(run: "StreamingRun", stop: threading.Event, console: Console, began: float, *, quiet: bool) -> None:
    """Show a run until it has ended or a signal stops it."""
    live = Live(console=console, refresh_per_second=4, transient=not console.is_terminal) if not quiet else None
    with live or contextlib.nullcontext():
        while not stop.is_set() and not run.awaitTermination(0.2):
            if live is not None:
                live.update(_progress(run, began))
        if stop.is_set():
            console.print("stopping after the current micro-batch")
            run.stop()


def _progress(run: "StreamingRun", began: float) -> RenderableType:
    line = _progress_line(run, began)
    traffic = run.traffic
    return Group(line, links_table(traffic)) if traffic.rows else line


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
        f"state {last.state_rows:,} rows, {megabytes(last.state_bytes)}",
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
    return [f"shipped {megabytes(traffic.bytes)}{share}"]
