"""`watersmeet simulate` of a scenario whose system is PIER."""

import argparse
import contextlib
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from watersmeet.errors import InputError
from watersmeet.program.pier.sql.settings import JoinMethod, Transport
from watersmeet.sim.scenario.model import Scenario, named
from watersmeet.sim.scenario.pier.outcome import PierOutcome, PierQueryFigures, PierSummary
from watersmeet.sim.scenario.pier.simulate import simulate_pier

MOST_REPORTS, MOST_TAPPED = 20, 5  # lines that are shown
TuplesDone = Callable[[str, argparse.Namespace], AbstractContextManager[Callable[[int, int], None]]]


def run_pier(scenario: Scenario, options: argparse.Namespace, tuples_done: TuplesDone) -> int:
    """Simulate PIER, and print what happened as tables, a line or JSON."""
    if options.trace is not None:
        raise InputError("--trace: PIER writes no trace; leave it out")
    scenario = scenario.changed(nodes=options.nodes, overlay=options.overlay, seed=options.seed, tuples=options.tuples)
    plan = scenario.pier.plan
    if options.join is not None:
        plan = replace(plan, method=named(JoinMethod, options.join, "join"))
    if options.transport is not None:
        plan = replace(plan, transport=named(Transport, options.transport, "transport"))
    scenario = replace(scenario, pier=replace(scenario.pier, plan=plan))
    began = time.monotonic()
    title = f"{scenario.network.nodes:,} peers, seed {scenario.network.seed}"
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(tuples_done(title, options))
        outcome = simulate_pier(scenario, progress=progress, check=bool(options.check))
    wall_s = time.monotonic() - began
    written = []
    if options.out is not None:
        for name in outcome.answers:
            written.append(Path(options.out) / f"{name}.parquet")
            outcome.write(name, written[-1])
        written += outcome.write_taps(Path(options.out))
    summary = outcome.summary
    console = Console(highlight=False)
    if options.format == "json":
        print(json.dumps({**summary.data, "wall_s": round(wall_s, 3)}, indent=2))
    elif options.quiet:
        checked = f", {'right' if summary.is_right else 'wrong'}" if options.check else ""
        console.print(f"seed {summary.seed}: {summary.answers:,} answers{checked}, {summary.bytes:,} bytes")
    else:
        _print(console, summary, wall_s)
        _print_reports(console, outcome)
        for path in written:
            console.print(f"written to {path}", soft_wrap=True)
    return 1 if options.check and not summary.is_right else 0


def _print(console: Console, summary: PierSummary, wall_s: float) -> None:
    console.print(
        f"simulation with seed {summary.seed}: PIER, {summary.method} over {summary.transport}, {summary.mode}, "
        f"{summary.nodes:,} peers, {summary.overlay}, latency {summary.latency}; {summary.virtual_us / 1e6:,.1f} s of "
        f"virtual time in {wall_s:,.1f} s",
        soft_wrap=True,
    )
    queries = Table(title="queries", title_justify="left")
    queries.add_column("query")
    for heading in ("peer", "answers", "repeated", "first", "last", "delay, median", "99th percentile"):
        queries.add_column(heading, justify="right")
    is_checked = any(query.checked is not None for query in summary.queries.values())
    if is_checked:
        queries.add_column("oracle")
    for name, query in summary.queries.items():
        delays = (None, None) if query.delays is None else (query.delays.median_us, query.delays.p99_us)
        times = [_ms(each) for each in (query.first_us, query.last_us, *delays)]
        cells: list[str | Text] = [Text(name), str(query.home), f"{query.answers:,}", f"{query.repeated:,}", *times]
        queries.add_row(*cells, *([_verdict(query)] if is_checked else []))
    console.print(queries)
    for shared in summary.shared:
        console.print(f"answered together: {', '.join(shared.queries)}: {shared}", soft_wrap=True)
    network = Table(title="network", title_justify="left", show_header=False)
    network.add_row("tuples", f"{summary.tuples:,}")
    network.add_row("messages", f"{summary.messages:,}")
    network.add_row("bytes", f"{summary.bytes:,}")
    network.add_row("most inbound bytes of a peer", f"{summary.most_inbound_bytes:,}")
    network.add_row("lost messages", f"{summary.lost:,}")
    if summary.retransmitted:
        network.add_row("taken for lost and sent again", f"{summary.retransmitted:,}")
    network.add_row("malformed tuples", f"{summary.malformed:,}")
    if summary.withheld:
        network.add_row("withheld beyond limits", f"{summary.withheld:,}")
    if summary.late:
        network.add_row("late for their window", f"{summary.late:,}")
    if summary.joins or summary.failures or summary.leaves:
        network.add_row("churn", f"{summary.joins:,} joined, {summary.failures:,} crashed, {summary.leaves:,} left")
    console.print(network)


def _print_reports(console: Console, outcome: PierOutcome) -> None:
    """Error reports and copies of tuples that operators were asked for."""
    reports = [(name, error) for name, query in outcome.summary.queries.items() for error in query.errors]
    if reports:
        table = Table("query", "operator", "reason", title="error reports", title_justify="left")
        for heading in ("tuples", "peers"):
            table.add_column(heading, justify="right")
        for name, error in reports[:MOST_REPORTS]:
            cells = (name, error.operator, error.reason)
            table.add_row(*map(Text, cells), f"{error.tuples:,}", f"{error.nodes:,}")
        console.print(table)
        if len(reports) > MOST_REPORTS:
            console.print(f"and {len(reports) - MOST_REPORTS:,} more; --format json has them all")
    for (name, operator), tapped in outcome.taps.items():
        table = Table(
            *tapped.column_names, title=f"tap of {name}, {operator}: {tapped.num_rows:,}", title_justify="left"
        )
        for row in tapped.slice(0, MOST_TAPPED).to_pylist():
            table.add_row(*(Text(str(value)) for value in row.values()))
        console.print(table)


def _ms(time_us: int | None) -> str:
    return "" if time_us is None else f"{time_us / 1e3:,.0f} ms"


def _verdict(query: PierQueryFigures) -> str:
    checked = query.checked
    if checked is None:
        return "not asked"
    if checked.is_right:
        return "right"
    return f"{checked.missing:,} missing of {checked.expected:,}, {checked.surplus:,} surplus"
