"""What a command shows while it works: the live view of running queries, and progress bars."""

import contextlib
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn
from rich.text import Text

from watersmeet.cli.tables import links_table, megabytes

if TYPE_CHECKING:
    from watersmeet.spark.run import RunningQuery, RunningSites

    Handle = RunningQuery | RunningSites


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


def follow(handles: Sequence["Handle"], stop: threading.Event, console: Console, began: float, *, quiet: bool) -> None:
    """Show the queries until all have ended or a signal stops them."""
    live = Live(console=console, refresh_per_second=4, transient=not console.is_terminal) if not quiet else None
    with live or contextlib.nullcontext():
        waiting = list(handles)
        while waiting and not stop.is_set():
            for handle in list(waiting):
                if handle.awaitTermination(0.2):
                    waiting.remove(handle)
            if live is not None:
                live.update(Group(*(_progress(handle, began) for handle in handles)))
        if stop.is_set():
            console.print("stopping after the current micro-batch")
            for handle in waiting:
                handle.stop()


def _progress(handle: "Handle", began: float) -> RenderableType:
    from watersmeet.spark.run import RunningSites

    line = _progress_line(handle, began)
    if not isinstance(handle, RunningSites) or not handle.traffic.rows:
        return line
    return Group(line, links_table(handle.name, handle.traffic))


def _progress_line(handle: "Handle", began: float) -> Text:
    report = handle.last_report
    if report is None:
        return Text(f"{handle.name}: waiting for data ({time.monotonic() - began:.0f} s)")
    totals = handle.totals
    parts = [
        f"{handle.name}: micro-batch {report.batch}",
        f"rows in {totals['rows_in']:,}",
        f"answers {totals['rows_out']:,}",
        f"{report.rows_in / max(report.seconds, 1e-9):,.0f} rows/s",
        f"state {report.state_rows:,} rows, {megabytes(report.state_bytes)}",
        *_shipped(handle),
        *(f"{totals[name]:,} {name}" for name in ("late", "malformed") if totals[name]),
    ]
    return Text("  ".join(parts))


def _shipped(handle: "Handle") -> list[str]:
    """Bytes sent over all links so far."""
    from watersmeet.spark.run import RunningSites

    if not isinstance(handle, RunningSites):
        return []
    traffic = handle.traffic
    share = f", {traffic.bytes / traffic.central_bytes:.0%} of central" if traffic.central_bytes else ""
    return [f"shipped {megabytes(traffic.bytes)}{share}"]
