"""The command line: exit codes are 0 for success, 1 for a failure while running, 2 for bad input."""

import argparse
import errno
import json
import os
import sys
import traceback
from collections.abc import Sequence

from watersmeet import __version__
from watersmeet.cli import (
    apply,
    calibrate,
    check,
    compare,
    dashboard,
    explain,
    init,
    key,
    reproduce,
    run,
    simulate,
    site,
    sql,
    stats,
    tail,
    top,
    warm_up,
)
from watersmeet.errors import WatersmeetError, shortened, without_secrets

# They import planners, Spark and the simulator only when they run, so that help and wrong options take no time.
COMMANDS = (
    *(init, run, site, apply, tail, dashboard, top, sql, explain, compare),
    *(stats, check, key, warm_up, calibrate, reproduce, simulate),
)

_EXAMPLES = """\
examples:
  watersmeet init data                         write a topology file for the files in data
  watersmeet run topology.yaml --once          process the data available now, then exit
  watersmeet run topology.yaml                 run until Ctrl-C
  watersmeet site ams topology.yaml            run one site in a Spark application of its own
  watersmeet apply topology.yaml               let what runs go over to a changed file
  watersmeet tail NAME                         follow the answers of a query
  watersmeet dashboard CHECKPOINT              show a run on a web page, while it goes on or afterwards
  watersmeet top CHECKPOINT                    the same in the terminal
  watersmeet sql topology.yaml                 a prompt: type queries, see plans and first answers
  watersmeet explain topology.yaml             show the plan of each query
  watersmeet check topology.yaml               validate the file
  watersmeet check --checkpoint DIR            verify the checkpoints of all sites
  watersmeet stats topology.yaml               estimate rates, sizes and value distributions of the streams
  watersmeet explain topology.yaml --every --draw plan.svg    cost by planner, and a drawing of the plan
  watersmeet compare topology.yaml             what each planner ships, by running all of them in the simulator
  watersmeet calibrate                         measure unit costs of plans on this machine
  watersmeet key ID                            a new key for encrypted links
  watersmeet warm-up                           shorten later starts of Spark
  watersmeet reproduce --list                  list the papers' experiments; NAME runs one
  watersmeet simulate scenario.yaml            run queries by RJoin on thousands of simulated peers, without Spark
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
            _print_traceback()
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
            _print_traceback()
        print(f"watersmeet: {_known(error) or _unforeseen(error)}", file=sys.stderr)
        return 1


def _print_traceback() -> None:
    print(without_secrets(traceback.format_exc()), file=sys.stderr)


def _known(error: BaseException) -> str | None:
    """A sentence for what has a known cause outside of this program, wherever it came up."""
    if type(error).__module__.startswith("py4j.") or isinstance(error, ConnectionError):
        return "Spark's Java process ended unexpectedly or cannot be reached; start the command again to resume"
    match error:
        case json.JSONDecodeError():
            place = f"line {error.lineno}, column {error.colno}"
            return (
                f"a JSON file is damaged ({place}: {error.msg}); restore the checkpoint from a copy, or start a new one"
            )
        case OSError(errno=number) if number == errno.ENOSPC:
            return f"{error.filename or 'a disk'}: no space is left; make room and start the command again"
        case OSError(filename=name, strerror=cause) if name and cause:
            return f"{name}: {cause}; check the path and its permissions"
        case MemoryError():
            return "there is not enough memory; take smaller micro-batches (maxFilesPerTrigger) or shorter windows"
        case RecursionError():
            return "the input is nested too deeply; simplify it"
    return None


def _unforeseen(error: Exception) -> str:
    return shortened(without_secrets(f"unexpected {type(error).__name__}: {error} (--debug shows where)"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="watersmeet",
        description="Continuous multi-way window joins over streams, exact and fast, on Apache Spark.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"watersmeet {__version__}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser
