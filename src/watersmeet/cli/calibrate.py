"""`watersmeet calibrate`: measure the unit costs of a plan's steps on this machine."""

import argparse
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.progress import TextColumn
from rich.table import Table

from watersmeet.cli.live import progress_bar
from watersmeet.cli.options import Subparsers, debug_option
from watersmeet.errors import InputError


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "calibrate",
        parents=[debug_option()],
        help="measure the unit costs of plans on this machine",
        description="Measure the time that probing, indexing and packing a row and a site micro-batch take on this "
        "machine; estimates of processor time use it.",
    )
    parser.add_argument("--seconds", metavar="S", type=float, default=5.0, help="how long to measure (%(default)s)")
    parser.add_argument("--output", metavar="FILE", help="where to write it (default: the user's cache directory)")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Measure, write and print the unit costs."""
    from watersmeet.cost.calibrate import measure_units
    from watersmeet.cost.units import default_units_path, save_units

    if options.seconds <= 0:
        raise InputError("--seconds must be more than 0")
    path = Path(options.output) if options.output else default_units_path()
    with progress_bar(TextColumn("{task.description}")) as progress:
        bar = progress.add_task("measuring", total=1.0)
        units = measure_units(
            options.seconds, lambda what, done: progress.update(bar, description=what, completed=done)
        )
    save_units(path, units)
    table = Table(title="unit costs on this machine", title_justify="left")
    table.add_column("step")
    table.add_column("microseconds", justify="right")
    for item in fields(units):
        table.add_row(item.name.removesuffix("_s"), f"{1e6 * getattr(units, item.name):,.3f}")
    console = Console(highlight=False)
    console.print(table)
    console.print(f"written to {path}", soft_wrap=True)
    return 0
