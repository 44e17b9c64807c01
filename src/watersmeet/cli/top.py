"""`watersmeet top`: a run in the terminal, as `dashboard` shows it in a browser."""

import argparse
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from watersmeet.cli.options import Subparsers, debug_option
from watersmeet.cli.tables import megabytes
from watersmeet.cli.watching import add_paths, watched

if TYPE_CHECKING:
    from watersmeet.dashboard.watcher import Watcher

_REFRESH_S = 1.0
_MOST_NOTES = 8
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
                live.update(_screen(shown, notes), refresh=True)
                time.sleep(_REFRESH_S)
    except KeyboardInterrupt:
        return 0
    finally:
        watcher.stop()


def _screen(now: dict[str, Any], notes: list[dict[str, Any]]) -> RenderableType:
    parts: list[RenderableType] = [_title(now), _sites(now)]
    if any(link["bytes"] for link in now["links"]):
        parts.append(_links(now))
    parts.append(_queries(now))
    if notes:
        parts.append(_notes(notes))
    return Group(*parts)


def _title(now: dict[str, Any]) -> Text:
    totals, text = now["totals"], Text()
    text.append(f" {now['state']} ", style=f"reverse {_STYLES.get(now['state'], '')}")
    text.append(f"  rows {totals['rows']:,.0f} ({totals['rows_s']:,.0f}/s)  answers {totals['answers']:,.0f}")
    text.append(f" ({totals['answers_s']:,.0f}/s)  shipped {megabytes(int(totals['bytes']))}")
    if totals["central"]:
        text.append(f", {totals['bytes'] / totals['central']:.0%} of central")
    return text


def _table(title: str, *columns: str) -> Table:
    """A table whose columns marked with # are numbers."""
    table = Table(title=title, title_justify="left", expand=False)
    for name in columns:
        table.add_column(name.removeprefix("#"), justify="right" if name.startswith("#") else "left")
    return table


def _sites(now: dict[str, Any]) -> Table:
    table = _table("sites", "site", "state", "#rows/s", "#rows", "#late", "#micro-batch", "#took", "#state")
    for site in now["sites"]:
        streams = site["streams"]
        state = Text(site["why"] if site["state"] in ("silent", "slow") else site["state"])
        state.stylize(_STYLES.get(site["state"], ""))
        table.add_row(
            Text(site["name"]),
            state,
            f"{site['rows_s']:,.0f}",
            f"{sum(one['rows'] for one in streams):,.0f}",
            f"{sum(one['late'] for one in streams):,.0f}",
            _or_none(site["batch"], ","),
            _or_none(site["batch_seconds"], ".2f", " s"),
            "-" if site["state_bytes"] is None else megabytes(site["state_bytes"]),
        )
    return table


def _links(now: dict[str, Any]) -> Table:
    table = _table("links", "link", "#bytes/s", "#sent", "#backlog", "mostly")
    for link in sorted(now["links"], key=lambda link: -link["bytes"]):
        if link["bytes"]:
            most = max(link["purposes"], key=lambda name: link["purposes"][name]["bytes"])
            backlog = Text(f"{link['backlog']:,}", style="yellow" if link["is_stuck"] else "")
            table.add_row(
                f"{link['from']} -> {link['to']}", f"{link['bytes_s']:,.0f}", f"{link['bytes']:,.0f}", backlog, most
            )
    return table


def _queries(now: dict[str, Any]) -> Table:
    table = _table("queries", "query", "planner", "#plan", "#rows in", "#answers", "#median", "#99 %", "#shipped")
    for query in now["queries"]:
        table.add_row(
            Text(query["name"]),
            query["planner"] or "-",
            _or_none(query["version"], ""),
            f"{query['rows']:,.0f}",
            f"{query['answers']:,.0f}",
            _or_none(query["delay_median_s"], ".2f", " s"),
            _or_none(query["delay_p99_s"], ".2f", " s"),
            f"{query['shipped']:,.0f} B",
        )
    return table


def _notes(notes: list[dict[str, Any]]) -> Table:
    table = _table("what happened", "when (UTC)", "what", "why")
    for note in notes[-_MOST_NOTES:]:
        at = datetime.fromtimestamp(note["at"], UTC).strftime("%H:%M:%S")
        table.add_row(at, Text(note["title"], style="red" if note["is_bad"] else ""), Text(note["detail"], style="dim"))
    return table


def _or_none(value: float | None, spec: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{spec}}{unit}"
