"""`watersmeet site`: run one site of a topology in a Spark application of its own."""

import argparse

from watersmeet.cli.options import Subparsers, planner_options, run_options, topology_options
from watersmeet.cli.run import run

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    site = argparse.ArgumentParser(add_help=False)
    site.add_argument("site", metavar="NAME", help="the site, as the topology names it")
    parser = subparsers.add_parser(
        "site",
        parents=[site, topology_options(), planner_options(), run_options()],
        help="run one site of a topology in a Spark application of its own",
        description="Run one site's part of the queries. The other sites run elsewhere, and may start, stop, "
        "crash and restart in any order; they exchange data through the link_transport of the topology.",
    )
    parser.set_defaults(command=run, fresh=False, yes=False)
