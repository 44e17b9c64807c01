"""`watersmeet reproduce`: run an experiment of the papers."""

import argparse
import contextlib
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import TextColumn
from rich.table import Table

from watersmeet.cli.live import progress_bar
from watersmeet.cli.options import Subparsers, spark_options
from watersmeet.cli.session import spark_session
from watersmeet.errors import InputError


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "reproduce",
        parents=[spark_options()],
        help="run an experiment of the papers",
        description="Run an experiment of the papers in the simulator, as a Spark job, and show the results beside "
        "the published ones; writes CSV and a plot.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="such as pmjoin-example1; --list shows all")
    parser.add_argument("--list", action="store_true", dest="show_list", help="list the experiments")
    parser.add_argument("--quick", action="store_true", help="a few points only")
    parser.add_argument("--draws", type=int, metavar="N", help="the first N draws (or seeds) of each point only")
    parser.add_argument("--here", action="store_true", help="one point after the other in this process, no Spark")
    parser.add_argument("--data", metavar="DIR", help="a recording, for experiments that read one")
    parser.add_argument("--output", metavar="DIR", default="reproduced", help="(default: %(default)s)")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """List the experiments, or run one and print and write its results."""
    from watersmeet.reproduce import EXPERIMENTS, experiment_named
    from watersmeet.reproduce.experiment import first_draws
    from watersmeet.reproduce.report import table, write
    from watersmeet.reproduce.runner import run_all

    console = Console(highlight=False)
    if options.show_list or options.name is None:
        for experiment in EXPERIMENTS:
            console.print(f"{experiment.name:18} {experiment.title}", soft_wrap=True)
        return 0
    experiment = experiment_named(options.name)
    if options.data is not None:
        if experiment.with_data is None:
            raise InputError(f"{experiment.name} reads no recording: leave --data out")
        experiment = experiment.with_data(Path(options.data))
    if options.draws is not None and options.draws < 1:
        raise InputError(f"--draws must be 1 or more, not {options.draws}")
    points = experiment.points(options.quick)
    if options.draws is not None:
        points = first_draws(points, options.draws)
    with (
        contextlib.nullcontext() if options.here else spark_session(options) as spark,
        progress_bar(
            TextColumn("{task.description}"), TextColumn("{task.completed} of {task.total} points")
        ) as progress,
    ):
        bar = progress.add_task(experiment.name, total=len(points))

        def report(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        if spark is None:
            rows = run_all(experiment, points, progress=report)
        else:
            from watersmeet.spark.sweep import sweep

            rows = run_all(experiment, points, partial(sweep, spark), report)
    head, *lines = table(experiment, rows)
    shown = Table(*head, title=f"{experiment.title} ({experiment.unit})", title_justify="left")
    for line in lines:
        shown.add_row(*line)
    console.print(shown)
    for text in (*experiment.notes, *experiment.published, *experiment.verdict(rows)):
        console.print(f"- {text}", soft_wrap=True, markup=False)
    for path in write(experiment, rows, Path(options.output)):
        console.print(f"written to {path}", soft_wrap=True)
    return 0
