"""The command line: run, explain and check topologies. Exit codes: 0 done, 1 failed while running, 2 bad input."""

import argparse
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from watersmeet import __version__
from watersmeet.cost.calibrate import default_units_path, measure_units, save_units
from watersmeet.cost.price import Cost
from watersmeet.errors import InputError, NothingToDo, RunError, WatersmeetError, did_you_mean
from watersmeet.plan.draw import draw
from watersmeet.plan.explain import estimate_data, estimate_text, explain_data, explain_text
from watersmeet.plan.nodes import JoinPlan, bottom_of
from watersmeet.planners.auto import ways_used
from watersmeet.planners.choose import Chosen, check_plan, estimate
from watersmeet.query.windows import parse_duration
from watersmeet.stats.model import Histogram, Number, Stats
from watersmeet.stats.yaml import stats_data, write_stats
from watersmeet.topology.model import OBJECTIVES, Query, Sink, Topology, load_topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.sim.scenario.outcome import SimulationOutcome, Summary
    from watersmeet.spark.run import RunningQuery, RunningSites

    Handle = RunningQuery | RunningSites

_EXAMPLES = """\
examples:
  watersmeet run topology.yaml --once          take what is there now, answer, end
  watersmeet run topology.yaml                 go on until Ctrl-C
  watersmeet site ams topology.yaml            one of its sites, in a Spark of its own
  watersmeet explain topology.yaml             how each query will be answered
  watersmeet check topology.yaml               is everything in the file right?
  watersmeet stats topology.yaml               what the streams hold: rates, sizes, how values spread
  watersmeet explain topology.yaml --every --draw plan.svg    what all planners come to, and a picture
  watersmeet calibrate                         what the steps of a plan take on this machine
  watersmeet warm-up                           make later starts of Spark shorter
  watersmeet reproduce --list                  the papers' experiments; NAME runs one again
  watersmeet simulate scenario.yaml            thousands of peers that answer queries by RJoin, without Spark
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(run_command(arguments))


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors are one sentence on standard error."""
    options = _parser().parse_args(arguments)
    debug = bool(options.debug)
    try:
        return int(options.command(options))
    except WatersmeetError as error:
        if debug:
            traceback.print_exc()
        print(f"watersmeet: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("watersmeet: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"watersmeet: unexpected {type(error).__name__}: {error} (--debug shows where)", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="watersmeet",
        description="Continuous multi-way window joins over streams, exact and fast, on Apache Spark.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"watersmeet {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("topology", help="the topology file (YAML): sites, streams and queries")
    common.add_argument("--query", metavar="NAME", help="only this query (default: all of them)")
    common.add_argument("--master", metavar="URL", default="local[*]", help="Spark master (default: %(default)s)")
    common.add_argument("--debug", action="store_true", help="show stack traces and Spark's own log")

    planned = argparse.ArgumentParser(add_help=False)
    planned.add_argument(
        "--planner",
        metavar="NAME",
        help="how queries over several sites are planned, instead of what the file says: central, greedy, exhaustive, "
        "tree, pmjoin, simple, local-first, optimal or auto, the cheapest (default: auto where rates and values are "
        "known, else central)",
    )
    planned.add_argument(
        "--objective", choices=OBJECTIVES, help="what planners keep small, instead of what the file says"
    )
    planned.add_argument(
        "--assume-defaults", action="store_true", help="let planners assume figures that nobody gave; they are told"
    )

    running = argparse.ArgumentParser(add_help=False)
    running.add_argument("--once", action="store_true", help="take all data available now, answer, and end")
    running.add_argument(
        "--trigger", metavar="INTERVAL", help='time between batches, such as "1 second" (default: none)'
    )
    running.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="where progress and windows are kept, in a directory for each query; starting again with the same one "
        "resumes (default: .watersmeet/checkpoints beside the topology file)",
    )
    running.add_argument(
        "--conf",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a Spark setting, such as spark.driver.memory=4g; may be given several times",
    )
    running.add_argument("--quiet", action="store_true", help="no progress line and no summary")

    run = commands.add_parser(
        "run", parents=[common, planned, running], help="run the queries of a topology, all sites in one Spark"
    )
    run.set_defaults(command=_run, site=None)

    site = commands.add_parser(
        "site",
        parents=[_site_name(), common, planned, running],
        help="run one site of a topology in a Spark of its own",
        description="Run one site's part of the queries. The other sites run wherever they do, and may start, stop, "
        "crash and come back in any order; they meet at the link_transport of the topology.",
    )
    site.set_defaults(command=_run)

    explain = commands.add_parser("explain", parents=[common, planned], help="show how queries will be answered")
    explain.add_argument("--format", choices=("text", "json"), default="text", help="(default: %(default)s)")
    explain.add_argument("--every", action="store_true", help="ask every planner, and tell what each comes to")
    explain.add_argument("--draw", metavar="FILE", help="also draw the plan (.svg or .png); with several queries, each")
    explain.add_argument(
        "--trigger",
        metavar="INTERVAL",
        default="1 second",
        help="estimate for such batches (default: %(default)s)",
    )
    explain.set_defaults(command=_explain)

    stats = commands.add_parser(
        "stats",
        parents=[common],
        help="estimate the statistics of streams from a sample of them",
        description="Read a bounded sample of every stream's source and tell its rate, the sizes of its columns on a "
        "link, and how their values spread; and which share of rows passes each filter of the queries.",
    )
    stats.add_argument(
        "--rows", metavar="N", type=int, default=100_000, help="read about so many rows of each stream (%(default)s)"
    )
    stats.add_argument(
        "--seconds", metavar="S", type=float, default=60.0, help="stop reading a stream after that long (%(default)s)"
    )
    stats.add_argument("--output", metavar="FILE", help="also write them as YAML, which `stats_file:` can name")
    stats.add_argument("--format", choices=("text", "yaml", "json"), default="text", help="(default: %(default)s)")
    stats.set_defaults(command=_stats)

    check = commands.add_parser("check", parents=[common], help="validate a topology without running it")
    check.set_defaults(command=_check)

    warm_up = commands.add_parser(
        "warm-up",
        help="make later starts of Spark here some seconds shorter",
        description="Write an archive of Java's classes, which later starts map into memory instead of loading and "
        "checking them one by one. Set-up does it; do it again after Java or Spark has changed.",
    )
    warm_up.add_argument("--debug", action="store_true", help="show stack traces")
    warm_up.set_defaults(command=_warm_up)

    calibrate = commands.add_parser(
        "calibrate",
        help="measure what the steps of a plan take on this machine",
        description="Measure what probing, filing, packing and a turn take here; estimates of processor time use it.",
    )
    calibrate.add_argument("--seconds", metavar="S", type=float, default=5.0, help="for about so long (%(default)s)")
    calibrate.add_argument("--output", metavar="FILE", help="where to write it (default: the user's cache directory)")
    calibrate.add_argument("--debug", action="store_true", help="show stack traces")
    calibrate.set_defaults(command=_calibrate)

    reproduce = commands.add_parser(
        "reproduce",
        help="run an experiment of the papers again",
        description="Run an experiment of the papers in the simulator, as a Spark job, and put our figures beside "
        "the published ones; writes CSV and a plot.",
    )
    reproduce.add_argument("name", nargs="?", metavar="NAME", help="such as pmjoin-example1; --list shows all")
    reproduce.add_argument("--list", action="store_true", dest="show_list", help="list the experiments")
    reproduce.add_argument("--quick", action="store_true", help="a few points only")
    reproduce.add_argument("--here", action="store_true", help="one point after the other in this process, no Spark")
    reproduce.add_argument("--output", metavar="DIR", default="reproduced", help="(default: %(default)s)")
    reproduce.add_argument("--master", metavar="URL", default="local[*]", help="Spark master (default: %(default)s)")
    reproduce.add_argument("--debug", action="store_true", help="show stack traces and Spark's own log")
    reproduce.set_defaults(command=_reproduce)

    simulate = commands.add_parser(
        "simulate",
        help="let thousands of simulated peers answer queries by RJoin",
        description="Run a scenario, or the finite streams and the queries of a topology, on a simulated network of "
        "peers without Spark, and tell what every node had to do. A scenario with churn, loss, congestion, copies or "
        "renewal runs on dynamic nodes, and its recall is reported. The same file and seed give the same result.",
    )
    simulate.add_argument("scenario", help="the scenario or topology file (YAML)")
    simulate.add_argument("--strategy", metavar="NAME", help="how RJoin chooses: rjoin, random, first or worst")
    simulate.add_argument("--nodes", metavar="N", type=int, help="how many peers, instead of what the file says")
    simulate.add_argument("--overlay", metavar="NAME", help="how they find each other: chord or bamboo")
    simulate.add_argument("--seed", metavar="S", type=int, help="another seed, another network; it is always printed")
    simulate.add_argument("--tuples", metavar="N", type=int, help="publish so many tuples only, the earliest")
    simulate.add_argument("--trace", metavar="FILE", help="write what happens as JSON lines")
    simulate.add_argument("--out", metavar="DIR", help="write the answers of each query to DIR/NAME.parquet")
    simulate.add_argument("--plot", metavar="FILE", help="plot how load is spread over the peers (.svg or .png)")
    simulate.add_argument("--format", choices=("text", "json"), default="text", help="(default: %(default)s)")
    simulate.add_argument("--quiet", action="store_true", help="no progress bar, and one line instead of the table")
    simulate.add_argument("--debug", action="store_true", help="show stack traces")
    simulate.set_defaults(command=_simulate)
    return parser


def _site_name() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("site", metavar="NAME", help="the site, as the topology names it")
    return parser


def _asked(topology: Topology, options: argparse.Namespace) -> tuple[Query, ...]:
    """The queries asked for; a planner given on the command line takes the place of what the file says."""
    queries = topology.queries if options.query is None else (topology.query(options.query),)
    changes: dict[str, Any] = {}
    if getattr(options, "planner", None) is not None:
        changes |= {"planner": options.planner, "plan": None}
    if getattr(options, "objective", None) is not None:
        changes["objective"] = ((options.objective, 1.0),)
    if getattr(options, "assume_defaults", False):
        changes["assume_defaults"] = True
    return tuple(replace(query, **changes) for query in queries) if changes else queries


def _explain(options: argparse.Namespace) -> int:
    topology = load_topology(options.topology)
    asked = _asked(topology, options)
    _check_names(topology, asked)
    _check_trigger(options.trigger)
    turn_s = parse_duration(options.trigger) / 1e6
    with _session(options) as spark:
        from watersmeet.spark.run import plan_query

        plans = []
        for query in asked:
            with _named(query):
                plans.append((query, plan_query(spark, topology, query, every=options.every)[1]))
    told = []
    for query, chosen in plans:
        cost = estimate(chosen, turn_s=turn_s)
        if options.draw is not None:
            _draw(options.draw, query.name if len(plans) > 1 else "", chosen, cost)
        facts = (chosen.planner, cost, turn_s, chosen.note, chosen.tried)
        told.append((query.name, chosen.plan, facts))
    if options.format == "json":
        data = {name: explain_data(plan) | {"estimate": estimate_data(*facts)} for name, plan, facts in told}
        print(json.dumps(data, indent=2))
    else:
        texts = []
        for name, plan, (planner, cost, turn, note, tried) in told:
            lines = estimate_text(planner, cost, turn, note, tried).replace("\n", "\n  ")
            texts.append(f"query {name}\n{explain_text(plan)}\n  {lines}")
        print("\n\n".join(texts))
    return 0


def _draw(file: str, name: str, chosen: Chosen, cost: Cost | None) -> None:
    """Draw a plan; of several, each into a file of its own."""
    path = Path(file)
    if name:
        path = path.with_name(f"{path.stem}-{name}{path.suffix}")
    join = bottom_of(chosen.plan)
    if not isinstance(join, JoinPlan):
        raise InputError("there is nothing to draw: all streams arrive where answers are wanted")
    shares = None
    if join.partition is not None and chosen.problem is not None:
        shares = ways_used(join.partition, chosen.problem.workload)
    draw(join, cost, path, title=f"{name or 'the plan'}, by {chosen.planner}", shares=shares)
    print(f"drawn to {path}", file=sys.stderr)


def _warm_up(options: argparse.Namespace) -> int:
    from watersmeet.spark.class_archive import make_archive

    console = Console(highlight=False)
    with console.status("running a small query to see what Java loads"):
        path = make_archive()
    console.print(f"{_megabytes(path.stat().st_size)} of classes written to {path}", soft_wrap=True)
    return 0


def _calibrate(options: argparse.Namespace) -> int:
    if options.seconds <= 0:
        raise InputError("--seconds must be more than 0")
    path = Path(options.output) if options.output else default_units_path()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as progress:
        bar = progress.add_task("measuring", total=1.0)
        units = measure_units(
            options.seconds, lambda what, done: progress.update(bar, description=what, completed=done)
        )
    save_units(path, units)
    table = Table(title="what a plan's steps take here", title_justify="left")
    table.add_column("step")
    table.add_column("microseconds", justify="right")
    for item in fields(units):
        table.add_row(item.name.removesuffix("_s"), f"{1e6 * getattr(units, item.name):,.3f}")
    console = Console(highlight=False)
    console.print(table)
    console.print(f"written to {path}", soft_wrap=True)
    return 0


def _reproduce(options: argparse.Namespace) -> int:
    from watersmeet.reproduce import EXPERIMENTS, experiment_named
    from watersmeet.reproduce.report import table as table_of
    from watersmeet.reproduce.report import write
    from watersmeet.reproduce.runner import run_all

    console = Console(highlight=False)
    if options.show_list or options.name is None:
        for one in EXPERIMENTS:
            console.print(f"{one.name:18} {one.title}", soft_wrap=True)
        return 0
    experiment = experiment_named(options.name)
    points = experiment.points(options.quick)
    with (
        contextlib.nullcontext() if options.here else _session(options) as spark,
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed} of {task.total} points"),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        ) as progress,
    ):
        bar = progress.add_task(experiment.name, total=len(points))

        def tell(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        if spark is None:
            rows = run_all(experiment, points, progress=tell)
        else:
            from watersmeet.spark.sweep import sweep

            rows = run_all(experiment, points, partial(sweep, spark), tell)
    head, *lines = table_of(experiment, rows)
    shown = Table(*head, title=f"{experiment.title} ({experiment.unit})", title_justify="left")
    for line in lines:
        shown.add_row(*line)
    console.print(shown)
    for text in (*experiment.notes, *experiment.published, *experiment.verdict(rows)):
        console.print(f"- {text}", soft_wrap=True, markup=False)
    for path in write(experiment, rows, Path(options.output)):
        console.print(f"written to {path}", soft_wrap=True)
    return 0


def _simulate(options: argparse.Namespace) -> int:
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
    for name, path in (("--trace", options.trace), ("--plot", options.plot)):
        if path is not None and (Path(path).is_dir() or not Path(path).absolute().parent.is_dir()):
            raise InputError(f"{name} {path}: there is no such directory; make it or name another file")
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
            Progress(
                TextColumn(f"{scenario.network.nodes:,} peers, seed {scenario.network.seed}"),
                BarColumn(),
                TextColumn("{task.completed:,} of {task.total:,} tuples"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
                disable=options.quiet or not sys.stderr.isatty(),
            )
        )
        bar = progress.add_task("", total=1)
        outcome = simulate(
            scenario, progress=lambda done, total: progress.update(bar, completed=done, total=total), trace=trace
        )
    wall_s = time.monotonic() - began
    summary = outcome.summary
    written = []
    if options.out is not None:
        for name in outcome.numbers:
            written.append(Path(options.out) / f"{name}.parquet")
            outcome.write(name, written[-1])
    if options.plot is not None:
        _plot_loads(outcome, Path(options.plot))
        written.append(Path(options.plot))
    console = Console(highlight=False)
    if options.format == "json":
        print(json.dumps({**summary.data, "wall_s": round(wall_s, 3)}, indent=2))
    elif options.quiet:
        recall = "" if summary.dynamic is None else f", recall {summary.dynamic.recall:.4f}"
        console.print(f"seed {summary.seed}: {summary.answers:,} answers, {summary.messages_total:,} messages{recall}")
    else:
        console.print(_simulation_table(summary, wall_s))
        for path in written:
            console.print(f"written to {path}", soft_wrap=True)
    return 0


def _simulation_table(summary: "Summary", wall_s: float) -> Table:
    """What a simulation came to."""
    table = Table(title=f"simulation with seed {summary.seed}", title_justify="left", show_header=False)
    dynamic = summary.dynamic
    kind = "" if dynamic is None else ", dynamic"
    table.add_row("nodes", f"{summary.nodes:,}, {summary.overlay}, latency {summary.latency}{kind}")
    if dynamic is not None:
        table.add_row(
            "  came and went", f"{dynamic.joins:,} joined, {dynamic.failures:,} crashed, {dynamic.leaves:,} left"
        )
    table.add_row("strategy", summary.strategy)
    table.add_row("tuples", f"{summary.tuples:,}")
    table.add_row("queries", f"{summary.queries:,}")
    mean = summary.answers / max(1, summary.queries)
    table.add_row("answers", f"{summary.answers:,} ({mean:,.1f} a query)")
    for name, count in summary.answers_by_query.items():
        table.add_row(Text(f"  of {name}"), f"{count:,}")
    if dynamic is not None:
        table.add_row(
            "  recall",
            f"{dynamic.recall:.4f}: {dynamic.right:,} of {dynamic.expected:,} came, {dynamic.surplus:,} others",
        )
        if dynamic.checked < summary.queries:
            table.add_row("  checked", f"{dynamic.checked:,} queries, drawn by the seed")
    table.add_section()
    table.add_row("messages", f"{summary.messages_total:,}")
    for purpose, count in summary.messages.items():
        name = "rates (RIC)" if purpose == "rates" else purpose
        size = "" if dynamic is None else f", {dynamic.bytes[purpose] / 1e6:,.2f} MB"
        table.add_row(f"  for {name}", f"{count:,}{size}")
    if dynamic is not None:
        table.add_row("  the overlay's own", f"{dynamic.upkeep_messages:,}, {dynamic.upkeep_bytes / 1e6:,.2f} MB")
        table.add_row("  lost on the way", f"{dynamic.lost:,}")
    table.add_row("  per tuple and node", f"{summary.messages_per_tuple_and_node:,.4g}")
    table.add_section()
    for what, spread in (("query processing load", summary.load), ("storage load", summary.storage)):
        table.add_row(what, f"{spread.total:,} in all, {spread.highest:,} at most, {spread.mean:,.2f} a node")
        everyone = summary.nodes + (0 if dynamic is None else dynamic.joins)
        table.add_row("  nodes taking part", f"{spread.nodes:,} ({spread.nodes / everyone:.0%})")
    table.add_section()
    table.add_row("virtual time", f"{summary.virtual_us / 1e6:,.1f} s")
    table.add_row("wall time", f"{wall_s:,.1f} s")
    return table


def _plot_loads(outcome: "SimulationOutcome", path: Path) -> None:
    """The load of peers, the highest first."""
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


def _check(options: argparse.Namespace) -> int:
    topology = load_topology(options.topology)
    asked = _asked(topology, options)
    _check_names(topology, asked)
    with _session(options) as spark:
        from watersmeet.spark.binding import stream_schema
        from watersmeet.spark.ingest.sources import check_source, open_stream
        from watersmeet.spark.run import check_query

        for query in asked:
            with _named(query):
                check_query(spark, topology, query)
        for stream in topology.streams:
            schema = stream_schema(spark, stream)
            check_source(stream, schema, once=False)
            open_stream(spark, stream, schema)
    counts = _count(len(topology.streams), "stream", "streams"), _count(len(asked), "query", "queries")
    print(f"{options.topology}: {' and '.join(counts)}, nothing wrong")
    return 0


def _stats(options: argparse.Namespace) -> int:
    from watersmeet.query.sql import parse_query

    if options.rows <= 0 or options.seconds <= 0:
        raise InputError("--rows and --seconds must be more than 0")
    topology = load_topology(options.topology)
    asked = None if options.query is None else _asked(topology, options)
    for query in asked or topology.queries:  # only what they say: a planner may need the very figures asked for here
        with _named(query):
            parse_query(query.sql, topology.columns, allow_cross=query.allow_cross)
    if options.output is not None and not Path(options.output).absolute().parent.is_dir():
        raise InputError(f"--output {options.output}: there is no such directory; make it or name another one")
    progress = Progress(
        TextColumn("reading {task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,} rows"),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with _session(options) as spark, progress:
        from watersmeet.spark.statistics import estimate

        bars: dict[str, TaskID] = {}

        def tell(stream: str, rows: int) -> None:
            if stream not in bars:
                bars[stream] = progress.add_task(stream, total=options.rows)
            progress.update(bars[stream], completed=rows)

        stats = estimate(spark, topology, asked, rows=options.rows, seconds=options.seconds, tell=tell)
    if options.output is not None:
        Path(options.output).write_text(write_stats(stats), encoding="utf-8")
    match options.format:
        case "json":
            print(json.dumps(stats_data(stats), indent=2))
        case "yaml":
            print(write_stats(stats), end="")
        case _:
            console = Console(highlight=False)
            for table in _stats_tables(stats):
                console.print(table)
            if options.output is not None:
                console.print(f"written to {options.output}; name it as stats_file in the topology to plan with it")
    return 0


def _stats_tables(stats: Stats) -> Iterator[Table]:
    """What is known of every stream, and of the predicates."""
    for name, stream in stats.streams.items():
        facts = [f"stream {name}"]
        if stream.rate is not None:
            facts.append(f"{stream.rate.value:,.4g} rows a second ({stream.rate.confidence:.0%} sure)")
        if stream.row_bytes is not None:
            facts.append(f"{stream.row_bytes.value:,.4g} bytes a row")
        table = Table(title=", ".join(facts), title_justify="left")
        table.add_column("column")
        for heading in (
            "distinct",
            "sure",
            "bytes a value in 10",
            "100",
            "1,000 rows",
            "most frequent",
            "bins",
            "sure",
        ):
            table.add_column(heading, justify="right")
        for key, column in stream.columns.items():
            distinct = ("", "") if column.distinct is None else _with_confidence(column.distinct)
            sizes = ("", "", "") if column.sizes is None else tuple(f"{size:,.1f}" for size in column.sizes)
            table.add_row(key, *distinct, *sizes, *_spread(column.histogram))
        yield table
    if stats.selectivities:
        table = Table(title="predicates", title_justify="left")
        table.add_column("predicate")
        table.add_column("share of rows", justify="right")
        table.add_column("sure", justify="right")
        for sql, share in stats.selectivities.items():
            table.add_row(Text(sql.replace("`", "")), f"{share.value:.2%}", f"{share.confidence:.0%}")
        yield table


def _with_confidence(number: Number) -> tuple[str, str]:
    return f"{number.value:,.0f}", f"{number.confidence:.0%}"


def _spread(histogram: Histogram | None) -> tuple[str, str, str]:
    if histogram is None or not histogram.bins:
        return "", "", ""
    single = [one for one in histogram.bins if one.low == one.high]
    top = max(single, key=lambda one: one.share, default=None)
    most = "" if top is None else f"{top.low} ({top.share:.1%})"
    return most, f"{len(histogram.bins):,}", f"{histogram.confidence:.0%}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _check_names(topology: Topology, asked: Sequence[Query]) -> None:
    """What can be found wrong without starting Spark is found before it."""
    from watersmeet.query.sql import parse_query

    for query in asked:
        with _named(query):
            check_plan(topology, query, parse_query(query.sql, topology.columns, allow_cross=query.allow_cross))


@contextlib.contextmanager
def _named(query: Query) -> Iterator[None]:
    """What is wrong with a query is told with its name."""
    try:
        yield
    except InputError as error:
        if str(error).startswith(("query ", "stream ", "checkpoint ")):
            raise
        raise type(error)(f"query {query.name!r}: {error}") from error


def _run(options: argparse.Namespace) -> int:
    topology = load_topology(options.topology)
    asked = _asked(topology, options)
    if options.site is not None and options.site not in topology.site_names:
        raise InputError(f"unknown site {options.site!r}; {did_you_mean(options.site, topology.site_names)}")
    _check_names(topology, asked)
    _check_trigger(options.trigger)
    console = Console(stderr=False, highlight=False)
    with _session(options, topology) as spark, _stop_on_signals() as stop:
        from watersmeet.spark.run import start, start_site

        settings: dict[str, Any] = {
            "spark": spark,
            "checkpoint": options.checkpoint,
            "trigger": options.trigger,
            "once": options.once,
            "show": console.print,
            "warn": lambda text: print(f"watersmeet: warning: {text}", file=sys.stderr),
        }
        handles: list[Handle] = []
        started: list[Query] = []
        began = time.monotonic()
        try:
            for query in asked:
                with _named(query):
                    if options.site is None:
                        handles.append(start(topology, query, **settings))
                    else:
                        try:
                            handles.append(start_site(topology, options.site, query, **settings))
                        except NothingToDo as error:
                            if len(asked) == 1:
                                raise
                            console.print(str(error))
                            continue
                started.append(query)
            if not handles:
                raise NothingToDo(f"none of the queries has anything to do at site {options.site!r}")
            _watch(handles, stop, console, began, quiet=options.quiet)
        finally:
            for handle in handles:
                if handle.isActive:
                    handle.stop()
        if not options.quiet:
            seconds = time.monotonic() - began
            for handle, query in zip(handles, started, strict=True):
                _summarise(handle, query, seconds, console, spark)
        _write_observed(handles, console, quiet=options.quiet)
    return 0


def _write_observed(handles: Sequence["Handle"], console: Console, *, quiet: bool) -> None:
    """Leave what was observed beside the checkpoints, to plan with the next time."""
    from watersmeet.spark.run import RunningSites

    for handle in handles:
        if not isinstance(handle, RunningSites) or handle.totals["rows_in"] == handle.totals_at_start["rows_in"]:
            continue
        path = handle.write_observed()
        if path is not None and not quiet:
            console.print(f"{handle.name}: what was observed of the streams lies in {path}", soft_wrap=True)


def _watch(handles: Sequence["Handle"], stop: threading.Event, console: Console, began: float, *, quiet: bool) -> None:
    """Follow the queries to their end, or to the signal to stop."""
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
            console.print("stopping after the batch under way")
            for handle in waiting:
                handle.stop()


def _shipped(handle: "Handle") -> str:
    """What has gone over the links so far, in a few words."""
    from watersmeet.spark.run import RunningSites

    if not isinstance(handle, RunningSites):
        return ""
    traffic = handle.traffic
    share = f", {traffic.bytes / traffic.central_bytes:.0%} of central" if traffic.central_bytes else ""
    return f"  shipped {_megabytes(traffic.bytes)}{share}"


def _links_table(handle: "RunningSites") -> Table:
    """Bytes, batches and tuples of every link and purpose, beside what shipping everything would have taken."""
    traffic = handle.traffic
    table = Table(title=f"links of query {handle.name}", title_justify="left")
    table.add_column("link")
    table.add_column("purpose")
    is_estimated = traffic.estimated_bytes is not None
    for name in ("bytes", *(["estimated"] if is_estimated else []), "batches", "tuples", "price"):
        table.add_column(name, justify="right")

    def guess(size: float | None) -> list[str]:
        return [] if not is_estimated else ["" if size is None else f"{size:,.0f}"]

    for row in traffic.rows:
        counts = (f"{count:,}" for count in (row.traffic.batches, row.traffic.tuples))
        sizes = [f"{row.traffic.bytes:,}", *guess(row.estimated_bytes)]
        table.add_row(f"{row.origin} -> {row.to}", row.purpose, *sizes, *counts, f"{row.price:.6f}")
    table.add_section()
    table.add_row("all", "", f"{traffic.bytes:,}", *guess(traffic.estimated_bytes), "", "", f"{traffic.price:.6f}")
    central = [f"{traffic.central_bytes:,}", *guess(None), "", "", f"{traffic.central_price:.6f}"]
    table.add_row("central would ship about", "", *central)
    return table


def _progress(handle: "Handle", began: float) -> RenderableType:
    """How a query is doing now, with what goes over its links."""
    from watersmeet.spark.run import RunningSites

    line = _progress_line(handle, began)
    if not isinstance(handle, RunningSites) or not handle.traffic.rows:
        return line
    return Group(line, _links_table(handle))


def _progress_line(handle: "Handle", began: float) -> Text:
    report = handle.last_report
    if report is None:
        return Text(f"{handle.name}: waiting for data ({time.monotonic() - began:.0f} s)")
    totals = handle.totals
    aside = [f"{totals[name]:,} {name}" for name in ("late", "malformed") if totals[name]]
    return Text(
        f"{handle.name}: batch {report.batch}  in {totals['rows_in']:,}  out {totals['rows_out']:,}  "
        f"{report.rows_in / max(report.seconds, 1e-9):,.0f} rows/s  "
        f"state {report.state_rows:,} rows, {_megabytes(report.state_bytes)}{_shipped(handle)}"
        + "".join(f"  {text}" for text in aside)
    )


def _summarise(
    handle: "Handle",
    query: Query,
    seconds: float,
    console: Console,
    spark: "SparkSession",
) -> None:
    """What the run did and where its answers are."""
    from watersmeet.spark.run import RunningSites

    before = handle.totals_at_start
    done = {name: total - before[name] for name, total in handle.totals.items()}
    if not done["batches"]:
        console.print(f"{query.name}: nothing new since the last run with this checkpoint")
        return
    report = handle.last_report
    table = Table(title=f"query {query.name}", title_justify="left", show_header=False)
    table.add_row("rows in", f"{done['rows_in']:,} ({done['rows_in'] / seconds:,.0f} a second)")
    if query.foreach_batch is None:
        table.add_row("answers", f"{done['rows_out']:,} ({done['rows_out'] / seconds:,.0f} a second)")
    table.add_row("batches", f"{done['batches']:,} in {seconds:.1f} s")
    for name, what in (("late", "late rows"), ("malformed", "malformed rows"), ("null_keys", "rows with a NULL key")):
        if done[name]:
            table.add_row(what, f"{done[name]:,}")
    if report is not None:
        table.add_row("state kept", f"{report.state_rows:,} rows, {_megabytes(report.state_bytes)}")
    if query.sink.path and (done["rows_out"] or not isinstance(handle, RunningSites)):
        table.add_row("answers lie in", query.sink.path)
    console.print(table)
    if isinstance(handle, RunningSites):
        console.print(_links_table(handle))
    if query.sink.path and done["rows_out"]:
        with contextlib.suppress(Exception):
            columns, rows = _some_answers(query.sink, spark)
            sample = Table(*columns, title="a sample of the answers", title_justify="left", min_width=24)
            for row in rows:
                sample.add_row(*map(str, row))
            console.print(sample)


def _some_answers(sink: Sink, spark: "SparkSession", count: int = 5) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The columns and a few rows of what a sink holds; Spark would take a second to begin with local files."""
    assert sink.path is not None
    if sink.format == "parquet" and os.path.isdir(sink.path):
        import pyarrow.dataset as ds

        some = ds.dataset(sink.path, format="parquet").head(count)
        columns = [map(_without_zone, column.to_pylist()) for column in some.columns]
        return some.column_names, list(zip(*columns, strict=True))
    stored = spark.read.format(sink.format).options(**dict(sink.options)).load(sink.path)
    return stored.columns, [tuple(row) for row in stored.limit(count).collect()]


def _without_zone(value: Any) -> Any:
    """Times are in UTC, and shorter if they do not say so."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """The first Ctrl-C lets the batch under way finish; the second ends at once, and the next start resumes."""
    stop = threading.Event()

    def handle(number: int, frame: Any) -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    before = [(number, signal.signal(number, handle)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield stop
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _check_trigger(text: str | None) -> None:
    try:
        if text is not None and parse_duration(text) <= 0:
            raise InputError(f"{text!r} must be longer than nothing; leave it out to start each batch at once")
    except InputError as error:
        raise InputError(f"--trigger: {error}") from None


@contextlib.contextmanager
def _session(options: argparse.Namespace, topology: Topology | None = None) -> Iterator["SparkSession"]:
    """A Spark session, for the streams of a topology if it is to read them all.

    Its log goes to a file of its own, told of only if something fails, unless --debug.
    """
    from watersmeet.spark.ingest.sources import has_rows_in_java
    from watersmeet.spark.session import start_session

    settings = {}
    for setting in getattr(options, "conf", []):
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--conf {setting!r} must be NAME=VALUE, such as spark.driver.memory=4g")
        settings[name] = value
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    is_ours = SparkSession.getActiveSession() is None
    log = Path(tempfile.mkdtemp(prefix="watersmeet-")) / "spark.log"
    keep_log = False
    try:
        if not options.debug:
            logging.getLogger().setLevel(logging.CRITICAL)  # py4j tells of a lost connection on the root logger
            for name in ("py4j", "pyspark", "py4j.clientserver"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
            for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # they print Java stack traces
                PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
        with _standard_error_to(log) if not options.debug else contextlib.nullcontext():
            has_rows = topology is not None and has_rows_in_java(topology.streams)
            spark = start_session(options.master, settings=settings or None, has_rows=has_rows)
        try:
            yield spark
        finally:
            if is_ours:
                with contextlib.suppress(Exception):
                    spark.stop()
    except RunError as error:
        keep_log = log.exists() and log.stat().st_size > 0
        if keep_log:
            raise type(error)(f"{error} (Spark's log: {log})") from error
        raise
    finally:
        if not keep_log:
            shutil.rmtree(log.parent, ignore_errors=True)


@contextlib.contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    """Let processes started meanwhile, and only they, write their errors to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(path, "wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
