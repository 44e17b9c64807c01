"""`watersmeet warm-up`: shorten later starts of Spark on this machine."""

import argparse
from importlib import import_module

from rich.console import Console

from watersmeet.cli.options import Subparsers, debug_option
from watersmeet.texts import size_text


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "warm-up",
        parents=[debug_option()],
        help="shorten later starts of Spark on this machine by some seconds",
        description="Write a class data sharing (CDS) archive of the Java classes that Spark loads; later starts map "
        "it into memory instead of loading and verifying class after class. Set-up does it; repeat it when Java or "
        "Spark has changed.",
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Compile what is compiled at first use, and write the archive."""
    from watersmeet.spark.class_archive import make_archive

    console = Console(highlight=False)
    with console.status("compiling the inner loops of joins"):
        import_module("watersmeet.program.join.kernels")
    with console.status("running a small query to see what Java loads"):
        path = make_archive()
    console.print(f"{size_text(path.stat().st_size)} of classes written to {path}", soft_wrap=True)
    return 0
