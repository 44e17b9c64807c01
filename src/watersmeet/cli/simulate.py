"""`watersmeet simulate`: run queries on a simulated network of peers."""

import argparse
import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from watersmeet.cli.live import progress_bar
from watersmeet.cli.options import Subparsers, check_file, debug_option
from watersmeet.errors import InputError

if TYPE_CHECKING:
    from watersmeet.sim.scenario.outcome import SimulationOutcome, Summary


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "simulate",
        parents=[debug_option()],
        help="run queries by RJoin on thousands of simulated peers",
        description="Run a scenario, or the finite streams and the queries of a topology, on a simulated network of "
        "peers without Spark, and show the load of the nodes. A scenario with churn, loss, congestion, copies or "
        "renewal runs on a dynamic overlay, and its recall is shown. The same file and seed give the same result.",
    )
    parser.add_argument("scenario", help="the scenario or topology file (YAML)")
    parser.add_argument("--strategy", metavar="NAME", help="strategy of RJoin: rjoin, random, first or worst")
    parser.add_argument("--nodes", metavar="N", type=int, help="number of peers, overrides the file")
    parser.add_argument("--overlay", metavar="NAME", help="overlay of the peers: chord or bamboo")
    parser.add_argument("--seed", metavar="S", type=int, help="random seed, overrides the file; it is always printed")
    parser.add_argument("--tuples", metavar="N", type=int, help="publish only the earliest N tuples")
    parser.add_argument("--trace", metavar="FILE", help="write a trace of events as JSON lines")
    parser.add_argument("--out", metavar="DIR", help="write the answers of each query to DIR/NAME.parquet")
    parser.add_argument("--plot", metavar="FILE", help="plot the load distribution over the peers (.svg or .png)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="(default: %(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, and one line instead of the table")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Simulate, and print what happened as a table, a line or JSON."""
    from watersmeet.sim.scenario.load import load_scenario
    from watersmeet.sim.scenario.simulate import simulate
    from watersmeet.sim.scenario.trace import Trace
    from watersmeet.sim.scenario.workload import UserLoad

    scenario = load_scenario(options.scenario).changed(
        nodes=options.nodes,
        overlay=options.overlay,
        strategy=options.strategy,
        seed=options.seed,
        tuples=options.tuples,
    )
    check_file("--trace", options.trace)
    check_file("--plot", options.plot)
    if options.plot is not None and Path(options.plot).suffix not in (".svg", ".png"):
        raise InputError(f"--plot {options.plot}: a plot is a .svg or a .png")
    if options.out is not None and not isinstance(scenario.load, UserLoad):
        raise InputError("--out: answers of generated queries are counted and not made; give streams and queries")
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        trace = None
        if options.trace is not None:
            trace = Trace(stack.enter_context(open(options.trace, "w", encoding="utf-8")))
        progress = stack.enter_context(
            progress_bar(
                TextColumn(f"{scenario.network.nodes:,} peers, seed {scenario.network.seed}"),
                TextColumn("{task.completed:,} of {task.total:,} tuples"),
                TimeRemainingColumn(),
                is_hidden=options.quiet,
            )
        )
        bar = progress.add_task("", total=1)
        outcome = simulate(
            scenario, progress=lambda done, total: progress.update(bar, completed=done, total=total), trace=trace
        )
    wall_s = time.monotonic() - began
    written = _write(outcome, options)
    summary = outcome.summary
    console = Console(highlight=False)
    if options.format == "json":
        print(json.dumps({**summary.data, "wall_s": round(wall_s, 3)}, indent=2))
    elif options.quiet:
        recall = "" if summary.dynamic is None else f", recall {summary.dynamic.recall:.4f}"
        console.print(f"seed {summary.seed}: {summary.answers:,} answers, {summary.messages_total:,} messages{recall}")
    else:
        console.print(_summary_table(summary, wall_s))
        for path in written:
            console.print(f"written to {path}", soft_wrap=True)
    return 0


def _write(outcome: "SimulationOutcome", options: argparse.Namespace) -> list[Path]:
    """Write the answers and the plot that were asked for."""
    written = []
    if options.out is not None:
        for name in outcome.numbers:
            written.append(Path(options.out) / f"{name}.parquet")
            outcome.write(name, written[-1])
    if options.plot is not None:
        written.append(Path(options.plot))
        _plot_loads(outcome, written[-1])
    return written


def _summary_table(summary: "Summary", wall_s: float) -> Table:
    """Network, answers, messages and load of a simulation."""
    table = Table(title=f"simulation with seed {summary.seed}", title_justify="left", show_header=False)
    live = summary.dynamic
    kind = "" if live is None else ", dynamic"
    table.add_row("nodes", f"{summary.nodes:,}, {summary.overlay}, latency {summary.latency}{kind}")
    if live is not None:
        table.add_row("  churn", f"{live.joins:,} joined, {live.failures:,} crashed, {live.leaves:,} left")
    table.add_row("strategy", summary.strategy)
    table.add_row("tuples", f"{summary.tuples:,}")
    table.add_row("queries", f"{summary.queries:,}")
    mean = summary.answers / max(1, summary.queries)
    table.add_row("answers", f"{summary.answers:,} ({mean:,.1f} a query)")
    for name, count in summary.answers_by_query.items():
        table.add_row(Text(f"  of {name}"), f"{count:,}")
    if live is not None:
        table.add_row(
            "  recall", f"{live.recall:.4f}: {live.right:,} of {live.expected:,} expected, {live.surplus:,} surplus"
        )
        if live.checked < summary.queries:
            table.add_row("  checked", f"{live.checked:,} queries, drawn by the seed")
    table.add_section()
    table.add_row("messages", f"{summary.messages_total:,}")
    for purpose, count in summary.messages.items():
        name = "rates (RIC)" if purpose == "rates" else purpose
        size = "" if live is None else f", {live.bytes[purpose] / 1e6:,.2f} MB"
        table.add_row(f"  for {name}", f"{count:,}{size}")
    if live is not None:
        table.add_row("  overlay maintenance", f"{live.upkeep_messages:,}, {live.upkeep_bytes / 1e6:,.2f} MB")
        table.add_row("  lost", f"{live.lost:,}")
    table.add_row("  per tuple and node", f"{summary.messages_per_tuple_and_node:,.4g}")
    table.add_section()
    for what, spread in (("query processing load", summary.load), ("storage load", summary.storage)):
        table.add_row(what, f"{spread.total:,} in all, {spread.highest:,} at most, {spread.mean:,.2f} a node")
        everyone = summary.nodes + (0 if live is None else live.joins)
        table.add_row("  nodes taking part", f"{spread.nodes:,} ({spread.nodes / everyone:.0%})")
    table.add_section()
    table.add_row("virtual time", f"{summary.virtual_us / 1e6:,.1f} s")
    table.add_row("wall time", f"{wall_s:,.1f} s")
    return table


def _plot_loads(outcome: "SimulationOutcome", path: Path) -> None:
    """Plot the load of peers by rank."""
    from watersmeet.reproduce.plots import lines
    from watersmeet.sim.scenario.outcome import ranked_loads

    lines(
        ranked_loads(outcome),
        path,
        x="rank",
        series={"load": "query processing load", "storage": "storage load"},
        xlabel="peers, the most loaded first",
        ylabel="queries and tuples",
        logx=True,
        logy=True,
    )
