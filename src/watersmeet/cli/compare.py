"""`watersmeet compare`: run the queries of a topology by every planner on simulated sites, and show what each ships."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import TextColumn, TimeRemainingColumn
from rich.table import Table

from watersmeet.cli.live import progress_bar
from watersmeet.cli.options import Subparsers, add_parameters, check_file, check_trigger, debug_option, topology_of
from watersmeet.cli.tables import print_table
from watersmeet.errors import InputError, did_you_mean
from watersmeet.query.windows import format_duration, parse_duration

if TYPE_CHECKING:
    from watersmeet.sim.scenario.compare import PlannerRun
    from watersmeet.sim.scenario.model import SitesScenario

_BAR_WIDTH = 24
_CAPTION = (
    "bytes: parcels as sent, compressed; estimate: by the cost model for the same time; delay: from a row's arrival to "
    "its answer; CPU: of the simulation, all sites and the check of the answers together"
)


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "compare",
        parents=[debug_option()],
        help="run the queries by every planner on simulated sites, and compare bytes, delay and money",
        description="Run all queries of a topology over its input, once for each planner, on simulated sites and "
        "links: the programs are those that Spark would run, the bytes those of the parcels, and the answers are "
        "checked. Nothing is written beside the topology, and running deployments are not touched. Streams without "
        "statistics are sampled first.",
    )
    parser.add_argument("topology", help="the topology file (YAML) with several sites")
    parser.add_argument("--query", metavar="NAME", help="only this query (default: all of them together)")
    add_parameters(parser)
    parser.add_argument("--planners", metavar="A,B,...", help="only these planners (default: all)")
    parser.add_argument(
        "--sample", metavar="SHARE", help="only the first part of the input, by arrival, such as 10%% (default: all)"
    )
    parser.add_argument(
        "--trigger",
        metavar="INTERVAL",
        help="time between micro-batches, for planning and running (default: batch_interval of the file, else as the "
        "statistics say that rows arrive, else 1 second)",
    )
    parser.add_argument("--seed", metavar="S", type=int, default=1, help="random seed (default: %(default)s)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="(default: %(default)s)")
    parser.add_argument("--plot", metavar="FILE", help="plot bytes and estimates by planner (.svg or .png)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Run every planner and print what came of it; 1 if any of them gave a wrong answer."""
    from watersmeet.sim.scenario.compare import compare_planners

    scenario, planners = _scenario(options), _planners(options.planners)
    check_file("--plot", options.plot)
    if options.plot is not None and Path(options.plot).suffix not in (".svg", ".png"):
        raise InputError(f"--plot {options.plot}: a plot is a .svg or a .png")
    columns = (TextColumn("{task.description}"), TextColumn("{task.completed:,} of {task.total:,} rows"))
    with progress_bar(*columns, TimeRemainingColumn(), is_hidden=options.quiet) as progress:
        bar = progress.add_task("reading", total=1)

        def tell(planner: str, done: int, total: int) -> None:
            progress.update(bar, description=planner, completed=done, total=total)

        runs = list(compare_planners(scenario, planners, progress=tell))
    if options.plot is not None:
        _plot(runs, Path(options.plot))
    if options.format == "json":
        print(json.dumps({"trigger_us": scenario.trigger_us, "planners": [_data(ran) for ran in runs]}, indent=2))
    else:
        _print(Console(highlight=False), scenario, runs)
    wrong = any(ran.summary is not None and not ran.summary.is_right for ran in runs)
    return 1 if wrong or all(ran.summary is None for ran in runs) else 0


def _scenario(options: argparse.Namespace) -> "SitesScenario":
    """What is run: the topology with statistics of all its streams."""
    from watersmeet.planners.choose import batch_interval_s
    from watersmeet.sim.scenario.model import SitesScenario
    from watersmeet.sim.scenario.statistics import with_sampled_statistics

    topology = topology_of(options)
    if options.query is not None:
        topology = replace(topology, queries=(topology.query(options.query),))
    check_trigger(options.trigger)
    share = _share(options.sample)
    topology = with_sampled_statistics(topology, share=share)
    interval_s = batch_interval_s(topology, [stream.name for stream in topology.streams])
    trigger_us = round(interval_s * 1e6) if options.trigger is None else parse_duration(options.trigger)
    return SitesScenario(topology, trigger_us, options.seed, share=share)


def _planners(text: str | None) -> tuple[str, ...]:
    from watersmeet.planners.choose import NAMES

    names = tuple(NAMES) if text is None else tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in NAMES:
            raise InputError(f"--planners: unknown planner {name!r}; {did_you_mean(name, NAMES)}")
    if not names:
        raise InputError(f"--planners names none; there are {', '.join(NAMES)}")
    return names


def _share(text: str | None) -> float | None:
    """A share such as 10% or 0.1."""
    if text is None:
        return None
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise InputError(f"--sample {text}: a share is more than 0 and at most 100%, such as 10%")
    return share


def _print(console: Console, scenario: "SitesScenario", runs: "list[PlannerRun]") -> None:
    ran = [ran for ran in runs if ran.summary is not None]
    if ran and ran[0].summary is not None:
        rows, interval = ran[0].summary.tuples, format_duration(scenario.trigger_us)
        console.print(f"{rows:,} rows, a micro-batch every {interval}, seed {scenario.seed}")
    table = Table(title="planners, the fewest bytes first", title_justify="left", caption=_CAPTION)
    table.caption_justify = "left"
    table.add_column("planner")
    for heading in ("bytes", "estimate", "messages", "delay, median", "99 %", "price", "CPU s"):
        table.add_column(heading, justify="right")
    table.add_column("answers")
    table.add_column("")
    most = max((planner_run.bytes or 0 for planner_run in ran), default=0)
    for planner_run in sorted(ran, key=lambda ran: (ran.bytes or 0, ran.planner)):
        assert planner_run.summary is not None, "it has run"
        traffic, delays = (
            planner_run.summary.traffic,
            [q.delays for q in planner_run.summary.queries.values() if q.delays is not None],
        )
        estimated = traffic.estimated_bytes
        messages = sum(row.traffic.batches for row in traffic.rows)
        table.add_row(
            planner_run.planner,
            f"{traffic.bytes:,}",
            "" if estimated is None else f"{estimated:,.0f}",
            f"{messages:,}",
            f"{max(d.median_us for d in delays) / 1e3:,.0f} ms" if delays else "",
            f"{max(d.p99_us for d in delays) / 1e3:,.0f} ms" if delays else "",
            f"{traffic.price:.6f}",
            f"{planner_run.cpu_s:.1f}",
            f"{planner_run.summary.answers:,}, {'right' if planner_run.summary.is_right else 'WRONG'}",
            "█" * max(1, round(_BAR_WIDTH * traffic.bytes / most)) if most else "",
        )
    print_table(table, console)
    for planner_run in runs:
        if planner_run.summary is None:
            console.print(f"{planner_run.planner}: no plan, since {planner_run.reason}", soft_wrap=True)


def _data(ran: "PlannerRun") -> dict[str, Any]:
    if ran.summary is None:
        return {"planner": ran.planner, "reason": ran.reason}
    data = ran.summary.data
    estimated = ran.summary.traffic.estimated_bytes
    figures = {name: data[name] for name in ("bytes", "price", "queries", "links")}
    return {"planner": ran.planner, "cpu_s": round(ran.cpu_s, 3), "estimated_bytes": estimated, **figures}


def _plot(runs: "list[PlannerRun]", path: Path) -> None:
    from watersmeet.reproduce.plots import bars

    rows = [
        {"planner": ran.planner, "bytes": ran.bytes or 0, "estimate": ran.summary.traffic.estimated_bytes or 0}
        for ran in runs
        if ran.summary is not None
    ]
    bars(rows, path, label="planner", series={"bytes": "bytes shipped", "estimate": "estimate"}, logy=True)
