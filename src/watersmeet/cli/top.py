"""`watersmeet top`: a run in the terminal, as `dashboard` shows it in a browser."""

import argparse
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from watersmeet.cli.options import Subparsers, debug_option
from watersmeet.cli.watching import add_paths, watched
from watersmeet.texts import size_text

if TYPE_CHECKING:
    from watersmeet.dashboard.watcher import Watcher

_REFRESH_S = 1.0
_MOST_NOTES = 8
_FEWEST_LINES = 3  # of links and of what happened, however low the terminal is
_STYLES = {"running": "green", "slow": "yellow", "silent": "bold red", "failed": "bold red", "ended": "dim"}


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "top",
        parents=[debug_option()],
        help="show a run in the terminal: sites, links, queries, what happened",
        description="Show a run and keep it up to date until Ctrl-C: how sites are, what crosses links, what queries "
        "have answered, what happened. It reads the events that every run keeps in its checkpoint.",
    )
    add_paths(parser)
    parser.add_argument("--once", action="store_true", help="print it once and end")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Show the run until Ctrl-C."""
    with watched(options) as watcher:
        return _show(watcher, is_once=options.once or not sys.stdout.isatty())


def _show(watcher: "Watcher", *, is_once: bool) -> int:
    from watersmeet.dashboard import view

    console = Console(highlight=False)
    watcher.start()
    try:
        if is_once:
            console.print(_screen(watcher.look(view.snapshot), watcher.look(lambda model, now: view.timeline(model))))
            return 0
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                shown, notes = watcher.look(view.snapshot), watcher.look(lambda model, now: view.timeline(model))
                live.update(_screen(shown, notes, console.height), refresh=True)
                time.sleep(_REFRESH_S)
    except KeyboardInterrupt:
        return 0
    finally:
        watcher.stop()


def _screen(now: dict[str, Any], notes: list[dict[str, Any]], height: int | None = None) -> RenderableType:
    """Everything, in as many lines as the terminal has: links that carry little and what happened long ago are cut."""
    links = sorted((link for link in now["links"] if link["bytes"]), key=lambda link: -link["bytes"])
    most_links, most_notes = len(links), _MOST_NOTES
    if height is not None:
        room = height - 1 - sum(3 + len(now[name]) for name in ("queries", "sites")) - (3 if links else 0) - 3
        most_notes = min(most_notes, max(_FEWEST_LINES, room - len(links), room // 2))
        most_links = max(_FEWEST_LINES, room - min(most_notes, len(notes)))
    parts: list[RenderableType] = [_title(now), "", _queries(now), "", _sites(now)]
    if links:
        parts += ["", _links(links, most_links)]
    if notes:
        parts += ["", _notes(notes[-most_notes:], is_cut=height is not None)]
    return Group(*parts)


def _title(now: dict[str, Any]) -> Text:
    totals, text = now["totals"], Text(no_wrap=True, overflow="ellipsis")
    text.append(f" {now['state']} ", style=f"reverse {_STYLES.get(now['state'], '')}")
    text.append(f" rows {totals['rows']:,.0f} ({totals['rows_s']:,.0f}/s), answers {totals['answers']:,.0f}")
    text.append(f" ({totals['answers_s']:,.0f}/s), sent {size_text(totals['bytes'])}")
    if totals["central"]:
        text.append(f", {totals['bytes'] / totals['central']:.0%} of central")
    return text


def _table(*columns: str) -> Table:
    """A table whose columns marked with # are numbers."""
    table = Table(box=box.SIMPLE_HEAD, expand=False, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name.removeprefix("#"), justify="right" if name.startswith("#") else "left")
    return table


def _sites(now: dict[str, Any]) -> Table:
    table = _table("site", "state", "#rows/s", "#rows", "#late", "#micro-batch", "#took", "#state")
    for site in now["sites"]:
        streams = site["streams"]
        state = Text(site["why"] if site["state"] in ("silent", "slow") else site["state"])
        state.stylize(_STYLES.get(site["state"], ""))
        table.add_row(
            Text(site["name"]),
            state,
            f"{site['rows_s']:,.0f}",
            f"{sum(stream['rows'] for stream in streams):,.0f}",
            f"{sum(stream['late'] for stream in streams):,.0f}",
            _or_none(site["batch"], ","),
            _or_none(site["batch_seconds"], ".2f", " s"),
            "-" if site["state_bytes"] is None else size_text(site["state_bytes"]),
        )
    return table


def _links(links: list[dict[str, Any]], most: int) -> Table:
    """Those that carry most; the last line counts the others."""
    table = _table("link", "#now", "#sent", "#backlog", "#latency", "mostly")
    shown = links if len(links) <= most else links[: most - 1]
    for link in shown:
        purpose = max(link["purposes"], key=lambda name: link["purposes"][name]["bytes"])
        backlog = Text(size_text(link["backlog"]), style="yellow" if link["is_stuck"] else "")
        name = f"{link['from']} -> {link['to']}"
        latency = _or_none(link["measured_latency_s"], ".2f", " s")
        table.add_row(
            Text(name), f"{size_text(link['bytes_s'])}/s", size_text(link["bytes"]), backlog, latency, purpose
        )
    if others := links[len(shown) :]:
        total = {name: size_text(sum(link[name] for link in others)) for name in ("bytes_s", "bytes", "backlog")}
        table.add_row(f"{len(others)} more", f"{total['bytes_s']}/s", total["bytes"], total["backlog"], "", "")
    return table


def _queries(now: dict[str, Any]) -> Table:
    table = _table("query", "planner", "#plan", "#rows in", "#answers", "#median", "#99 %", "#shipped")
    for query in now["queries"]:
        table.add_row(
            Text(query["name"]),
            query["planner"] or "-",
            _or_none(query["version"], ""),
            f"{query['rows']:,.0f}",
            f"{query['answers']:,.0f}",
            _or_none(query["delay_median_s"], ".2f", " s"),
            _or_none(query["delay_p99_s"], ".2f", " s"),
            size_text(query["shipped"]),
        )
    return table


def _notes(notes: list[dict[str, Any]], *, is_cut: bool) -> Table:
    """What happened; where lines are few, each thing has one, cut at the edge."""
    table = _table("when (UTC)", "what happened", "why")
    table.columns[0].no_wrap = True
    for note in notes:
        at = datetime.fromtimestamp(note["at"], UTC).strftime("%H:%M:%S")
        title = Text(note["title"], style="red" if note["is_bad"] else "", no_wrap=is_cut, overflow="ellipsis")
        table.add_row(at, title, Text(note["detail"], style="dim", no_wrap=is_cut, overflow="ellipsis"))
    return table


def _or_none(value: float | None, spec: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{spec}}{unit}"
