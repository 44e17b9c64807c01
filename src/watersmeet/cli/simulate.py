"""`watersmeet simulate`: run queries on simulated sites, or on a simulated network of peers."""

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from watersmeet.cli.live import progress_bar
from watersmeet.cli.options import Subparsers, check_file, check_trigger, debug_option
from watersmeet.cli.tables import links_table
from watersmeet.errors import InputError
from watersmeet.query.windows import format_duration, parse_duration

if TYPE_CHECKING:
    from watersmeet.metrics.events import Event
    from watersmeet.sim.scenario.model import Scenario, SitesScenario
    from watersmeet.sim.scenario.outcome import SimulationOutcome, Summary
    from watersmeet.sim.scenario.sites_outcome import QueryFigures, SitesOutcome, SitesSummary
    from watersmeet.sim.scenario.sites_series import BytesBySecond

_OF_RJOIN = ("strategy", "nodes", "overlay")  # options that only one system has
_OF_SITES = ("planner", "trigger")
_OF_PIER = ("join", "transport")


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "simulate",
        parents=[debug_option()],
        help="run queries on simulated sites and links, or by RJoin or PIER on thousands of simulated peers",
        description="Run the queries of a topology over its finite streams without Spark and in virtual time. The "
        "sites of a topology run the plans of its queries over its links, and the delay of answers and the traffic of "
        "links are shown. By RJoin, a topology of one site or a scenario is brought to a network of peers, and the "
        "load of the nodes is shown; a scenario with churn, loss, congestion, copies or renewal runs on a dynamic "
        "overlay, and its recall is shown. By PIER, op-graphs join the tuples of peers over a DHT; a query is SQL or a "
        "file in UFL. The same file and seed give the same result.",
    )
    parser.add_argument("scenario", help="the scenario or topology file (YAML)")
    parser.add_argument(
        "--system",
        metavar="NAME",
        help="what answers the queries: sites, rjoin or pier (default: sites for a topology with several, else rjoin)",
    )
    parser.add_argument("--seed", metavar="S", type=int, help="random seed, overrides the file; it is always printed")
    parser.add_argument(
        "--tuples", metavar="N", type=int, help="only the earliest N tuples: of each stream (sites), or in all (rjoin)"
    )
    parser.add_argument("--trace", metavar="FILE", help="write a trace of events as JSON lines")
    parser.add_argument("--out", metavar="DIR", help="write the answers of each query to DIR/NAME.parquet")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="(default: %(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, and one line instead of tables")
    sites = parser.add_argument_group("options of sites")
    sites.add_argument(
        "--planner", metavar="NAME", help="planner of queries over several sites, overrides the file; see explain"
    )
    sites.add_argument(
        "--trigger",
        metavar="INTERVAL",
        help='virtual time between micro-batches of a site, such as "500 ms" (default: batch_interval of the file, '
        "else as the statistics say that rows arrive, else 1 second)",
    )
    sites.add_argument(
        "--check",
        action="store_const",
        const=True,
        help="show what the oracle says of the answers of each query; exit with 1 if they are wrong",
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="rjoin: the load distribution over the peers; sites: bytes a second, where plans change beside the first "
        "and the last of them fixed (.svg or .png)",
    )
    pier = parser.add_argument_group("options of pier (with --check, --nodes and --overlay)")
    pier.add_argument(
        "--join",
        metavar="NAME",
        help="symmetric_hash, fetch_matches, semijoin, bloom or hierarchical, overrides the file",
    )
    pier.add_argument("--transport", metavar="NAME", help="dht or ip, overrides the file")
    peers = parser.add_argument_group("options of rjoin")
    peers.add_argument("--strategy", metavar="NAME", help="where a query waits: rjoin, random, first or worst")
    peers.add_argument("--nodes", metavar="N", type=int, help="number of peers, overrides the file")
    peers.add_argument("--overlay", metavar="NAME", help="overlay of the peers: chord or bamboo")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Simulate, and print what happened as tables, a line or JSON."""
    from watersmeet.sim.scenario.load import load_simulated
    from watersmeet.sim.scenario.model import SitesScenario, System, named

    system = None if options.system is None else named(System, options.system, "system")
    scenario = load_simulated(options.scenario, system)
    check_file("--trace", options.trace)
    if isinstance(scenario, SitesScenario):
        _refuse(options, _OF_RJOIN, "rjoin")
        _refuse(options, _OF_PIER, "pier")
        return _run_sites(scenario, options)
    _refuse(options, _OF_SITES, "sites")
    if scenario.system is System.PIER:
        _refuse(options, ("strategy", "plot"), "rjoin")
        from watersmeet.cli.simulate_pier import run_pier

        return run_pier(scenario, options, tuples_done)
    _refuse(options, _OF_PIER, "pier")
    _refuse(options, ("check",), "sites")
    return _run_peers(scenario, options)


def _refuse(options: argparse.Namespace, names: Sequence[str], system: str) -> None:
    """Refuse options that only another system has."""
    for name in names:
        if getattr(options, name) is not None:
            raise InputError(f"--{name} is an option of the system {system}; leave it out, or add --system {system}")


def _run_peers(scenario: "Scenario", options: argparse.Namespace) -> int:
    """Simulate peers."""
    from watersmeet.sim.scenario.simulate import simulate
    from watersmeet.sim.scenario.trace import Trace
    from watersmeet.sim.scenario.workload import UserLoad

    scenario = scenario.changed(
        nodes=options.nodes,
        overlay=options.overlay,
        strategy=options.strategy,
        seed=options.seed,
        tuples=options.tuples,
    )
    _check_plot(options)
    if options.out is not None and not isinstance(scenario.load, UserLoad):
        raise InputError("--out: answers of generated queries are counted and not made; give streams and queries")
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        trace = None
        if options.trace is not None:
            trace = Trace(stack.enter_context(open(options.trace, "w", encoding="utf-8")))
        title = f"{scenario.network.nodes:,} peers, seed {scenario.network.seed}"
        outcome = simulate(scenario, progress=stack.enter_context(tuples_done(title, options)), trace=trace)
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


def _check_plot(options: argparse.Namespace) -> None:
    check_file("--plot", options.plot)
    if options.plot is not None and Path(options.plot).suffix not in (".svg", ".png"):
        raise InputError(f"--plot {options.plot}: a plot is a .svg or a .png")


@contextlib.contextmanager
def tuples_done(title: str, options: argparse.Namespace) -> Iterator[Callable[[int, int], None]]:
    """A progress bar, and what moves it on: called with the tuples that are done, of how many."""
    columns = (TextColumn(title), TextColumn("{task.completed:,} of {task.total:,} tuples"), TimeRemainingColumn())
    with progress_bar(*columns, is_hidden=options.quiet) as progress:
        bar = progress.add_task("", total=1)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def _run_sites(scenario: "SitesScenario", options: argparse.Namespace) -> int:
    """Simulate sites."""
    from watersmeet.metrics.events import to_json
    from watersmeet.sim.scenario.simulate import simulate
    from watersmeet.sim.scenario.sites_series import BytesBySecond

    _check_plot(options)
    check_trigger(options.trigger)
    changes = {"seed": options.seed, "most_rows": options.tuples, "planner": options.planner}
    changes["trigger_us"] = None if options.trigger is None else parse_duration(options.trigger)
    scenario = replace(scenario, **{name: value for name, value in changes.items() if value is not None})
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        series = BytesBySecond()
        trace = None
        if options.trace is not None:
            trace = stack.enter_context(open(options.trace, "w", encoding="utf-8"))

        def events(at: float, event: "Event") -> None:
            series(at, event)
            if trace is not None:
                trace.write(to_json(event, at) + "\n")

        title = f"{len(scenario.topology.sites):,} sites, seed {scenario.seed}"
        outcome = simulate(scenario, progress=stack.enter_context(tuples_done(title, options)), events=events)
    wall_s = time.monotonic() - began
    written = _write_answers(outcome, options)
    if options.plot is not None:
        written.append(Path(options.plot))
        _plot_bytes(scenario, series, outcome, written[-1])
    summary = outcome.summary
    console = Console(highlight=False)
    if options.format == "json":
        print(json.dumps({**summary.data, "wall_s": round(wall_s, 3)}, indent=2))
    elif options.quiet:
        checked = f", {'right' if summary.is_right else 'wrong'}" if options.check else ""
        console.print(f"seed {summary.seed}: {summary.answers:,} answers{checked}, {summary.traffic.bytes:,} bytes")
    else:
        _print_sites(console, summary, wall_s, is_checked=bool(options.check))
        for at, taken in series.taken:
            text = f"query {taken.query}: version {taken.version} of its plan was decided on after {at:,.0f} s"
            console.print(Text(f"{text}: {taken.reason}"), soft_wrap=True)
        for path in written:
            console.print(f"written to {path}", soft_wrap=True)
    return 1 if options.check and not summary.is_right else 0


def _write_answers(outcome: "SitesOutcome", options: argparse.Namespace) -> list[Path]:
    if options.out is None:
        return []
    paths = {name: Path(options.out) / f"{name}.parquet" for name in outcome.answers}
    for name, path in paths.items():
        outcome.write(name, path)
    return list(paths.values())


def _print_sites(console: Console, summary: "SitesSummary", wall_s: float, *, is_checked: bool) -> None:
    """Queries, links and sites of a simulation; what the oracle says if it was asked, or has something to say."""
    console.print(
        f"simulation with seed {summary.seed}: {summary.tuples:,} tuples, a micro-batch every "
        f"{format_duration(summary.trigger_us)}, {summary.virtual_us / 1e6:,.1f} s of virtual time in {wall_s:,.1f} s",
        soft_wrap=True,
    )
    queries = Table(title="queries", title_justify="left")
    is_checked = is_checked or not summary.is_right
    for heading in ("query", "site", "planner"):
        queries.add_column(heading)
    for heading in ("answers", "delay, median", "99th percentile"):
        queries.add_column(heading, justify="right")
    if is_checked:
        queries.add_column("oracle")
    for name, query in summary.queries.items():
        delays = ("", "") if query.delays is None else (_ms(query.delays.median_us), _ms(query.delays.p99_us))
        cells: list[str | Text] = [Text(name), query.site, query.planner, f"{query.answers:,}", *delays]
        queries.add_row(*cells, *([_verdict(query)] if is_checked else []))
    console.print(queries)
    if summary.traffic.rows:
        console.print(links_table(summary.traffic))
    sites = Table(title="sites", title_justify="left")
    sites.add_column("site")
    for heading in ("rows in", "late", "micro-batches", "peak state rows"):
        sites.add_column(heading, justify="right")
    for name, site in summary.sites.items():
        counts = (site.rows_in, site.late, site.micro_batches, site.peak_state_rows)
        sites.add_row(name, *(f"{count:,}" for count in counts))
    console.print(sites)


def _ms(time_us: int) -> str:
    return f"{time_us / 1e3:,.0f} ms"


def _verdict(query: "QueryFigures") -> str:
    checked = query.checked
    if checked.is_right:
        return "right"
    return f"{checked.missing:,} missing of {checked.expected:,}, {checked.surplus:,} surplus"


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


def _plot_bytes(scenario: "SitesScenario", series: "BytesBySecond", outcome: "SitesOutcome", path: Path) -> None:
    """Plot bytes a second; where plans have changed, also those of the first and the last plans."""
    from watersmeet.reproduce.plots import lines
    from watersmeet.sim.scenario.sites_series import fixed_series, smoothed

    named = {"adaptive" if series.taken else "all links": series}
    if series.taken:
        named |= fixed_series(scenario, {"first plan": outcome.first_joins, "last plan": outcome.last_joins})
    seconds = outcome.summary.virtual_us // 1_000_000 + 1
    columns = {name: smoothed(bytes_by_second, seconds) for name, bytes_by_second in named.items()}
    rows = [{"second": n, **{name: values[n] for name, values in columns.items()}} for n in range(seconds)]
    labels = {name: name for name in columns}
    lines(rows, path, x="second", series=labels, xlabel="seconds of event time", ylabel="bytes/s over all links")


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
