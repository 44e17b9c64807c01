"""Options that several commands have, and checks of their values."""

import argparse
from pathlib import Path
from typing import TypeAlias

from watersmeet.errors import InputError
from watersmeet.query.windows import parse_duration
from watersmeet.topology.load import load_topology
from watersmeet.topology.model import OBJECTIVES, Topology
from watersmeet.topology.parameters import parse_settings

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def debug_option() -> argparse.ArgumentParser:
    """`--debug` of a command that starts no Spark."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--debug", action="store_true", help="show stack traces")
    return parser


def spark_options() -> argparse.ArgumentParser:
    """Options of a command that starts Spark."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--master", metavar="URL", default="local[*]", help="Spark master (default: %(default)s)")
    parser.add_argument("--debug", action="store_true", help="show stack traces and Spark's own log")
    return parser


def topology_options(*, is_needed: bool = True) -> argparse.ArgumentParser:
    """The topology file and which of its queries."""
    parser = argparse.ArgumentParser(add_help=False, parents=[spark_options()])
    count = None if is_needed else "?"
    parser.add_argument("topology", nargs=count, help="the topology file (YAML): sites, streams and queries")
    parser.add_argument("--query", metavar="NAME", help="only this query (default: all of them)")
    add_parameters(parser)
    return parser


def add_parameters(parser: argparse.ArgumentParser) -> None:
    """`--set NAME=VALUE` of a command that reads a topology."""
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        dest="parameters",
        help="a parameter of the topology file (`${NAME}` there); repeatable",
    )


def topology_of(options: argparse.Namespace) -> Topology:
    """The topology that the options name, with their parameters."""
    return load_topology(options.topology, parse_settings(options.parameters))


def planner_options() -> argparse.ArgumentParser:
    """Options that override how the topology plans its queries."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--planner",
        metavar="NAME",
        help="planner of queries over several sites, overrides the file: central, greedy, exhaustive, tree, pmjoin, "
        "simple, local-first, optimal or auto, the cheapest (default: auto where rates and values are known, else "
        "central)",
    )
    parser.add_argument("--objective", choices=OBJECTIVES, help="what planners minimise, overrides the file")
    parser.add_argument(
        "--assume-defaults", action="store_true", help="let planners assume defaults for missing statistics"
    )
    return parser


def run_options() -> argparse.ArgumentParser:
    """Options of the commands that run queries."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--once", action="store_true", help="process all data available now, then exit")
    parser.add_argument(
        "--drain",
        action="store_true",
        help="with --once: take the end of the input for the end of time, so that no answer of a ROWS window waits",
    )
    parser.add_argument(
        "--trigger",
        metavar="INTERVAL",
        help='interval between micro-batches, such as "1 second" (default: start the next one at once)',
    )
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="directory of offsets and state, with one subdirectory a site; a restart with the same one resumes "
        "(default: .watersmeet/checkpoints beside the topology file)",
    )
    parser.add_argument(
        "--conf",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a Spark setting, such as spark.driver.memory=4g; repeatable",
    )
    parser.add_argument(
        "--remote",
        metavar="URL",
        help="a Spark Connect server, such as sc://host:15002, in the place of --master; the checkpoint and the files "
        "of streams and sinks must be where the server sees them too",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress line and no summary")
    parser.add_argument(
        "--log",
        choices=("text", "json"),
        default="text",
        help="what goes to standard output: a live view, or a line a minute where nobody watches (text), or the events "
        "of the run as JSON lines and nothing else (json)",
    )
    parser.add_argument("--events", metavar="FILE", help="append the events of the run to FILE as JSON lines")
    parser.add_argument(
        "--dashboard",
        metavar="PORT",
        nargs="?",
        type=int,
        const=0,
        help="show the run on a web page at http://127.0.0.1:PORT/ as long as it goes on (default: any free port)",
    )
    parser.add_argument(
        "--health-port",
        metavar="PORT",
        type=int,
        help="say at http://127.0.0.1:PORT/livez and /readyz whether the run is alive and ready; 0 picks a free port",
    )
    parser.add_argument(
        "--metrics-port",
        metavar="PORT",
        type=int,
        help="serve metrics for Prometheus at http://127.0.0.1:PORT/metrics; 0 picks a free port",
    )
    return parser


def check_trigger(text: str | None) -> None:
    """Check the interval between micro-batches."""
    try:
        if text is not None and parse_duration(text) <= 0:
            raise InputError(f"{text!r} must be positive; leave it out to start each micro-batch at once")
    except InputError as error:
        raise InputError(f"--trigger: {error}") from None


def check_file(option: str, path: str | None) -> None:
    """Check that a file could be written where an option says."""
    if path is None:
        return
    if Path(path).is_dir():
        raise InputError(f"{option} {path}: this is a directory; name a file")
    if not Path(path).absolute().parent.is_dir():
        raise InputError(f"{option} {path}: there is no such directory; make it or name another file")


def check_port(option: str, port: int | None) -> None:
    """Check that a number could be a TCP port, or 0 for any free one."""
    if port is not None and not 0 <= port <= 65535:
        raise InputError(f"{option} {port}: a port is from 0 (any free one) to 65535")
