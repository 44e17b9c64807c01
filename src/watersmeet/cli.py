"""The command line: run, explain and check topologies. Exit codes: 0 done, 1 failed while running, 2 bad input."""

import argparse
import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from watersmeet import __version__
from watersmeet.errors import InputError, RunError, WatersmeetError
from watersmeet.explain import explain_json, explain_text
from watersmeet.topology import Query, Topology, load_topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.spark.run import RunningQuery

_EXAMPLES = """\
examples:
  watersmeet run topology.yaml --once          take what is there now, answer, end
  watersmeet run topology.yaml                 go on until Ctrl-C
  watersmeet explain topology.yaml             how each query will be answered
  watersmeet check topology.yaml               is everything in the file right?
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

    run = commands.add_parser("run", parents=[common], help="run the queries of a topology")
    run.add_argument("--once", action="store_true", help="take all data available now, answer, and end")
    run.add_argument("--trigger", metavar="INTERVAL", help='time between batches, such as "1 second" (default: none)')
    run.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="where progress and windows are kept, in a directory for each query; starting again with the same one "
        "resumes (default: .watersmeet/checkpoints beside the topology file)",
    )
    run.add_argument(
        "--conf",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a Spark setting, such as spark.driver.memory=4g; may be given several times",
    )
    run.add_argument("--quiet", action="store_true", help="no progress line and no summary")
    run.set_defaults(command=_run)

    explain = commands.add_parser("explain", parents=[common], help="show how queries will be answered")
    explain.add_argument("--format", choices=("text", "json"), default="text", help="(default: %(default)s)")
    explain.set_defaults(command=_explain)

    check = commands.add_parser("check", parents=[common], help="validate a topology without running it")
    check.set_defaults(command=_check)
    return parser


def _asked(topology: Topology, name: str | None) -> tuple[Query, ...]:
    return topology.queries if name is None else (topology.query(name),)


def _explain(options: argparse.Namespace) -> int:
    topology = load_topology(options.topology)
    asked = _asked(topology, options.query)
    _check_names(topology, asked)
    with _session(options) as spark:
        from watersmeet.spark.run import plan_query

        plans = [(query.name, plan_query(spark, topology, query)[1]) for query in asked]
    if options.format == "json":
        print("{" + ",\n".join(f'"{name}": {explain_json(plan)}' for name, plan in plans) + "}")
    else:
        print("\n\n".join(f"query {name}\n{explain_text(plan)}" for name, plan in plans))
    return 0


def _check(options: argparse.Namespace) -> int:
    topology = load_topology(options.topology)
    asked = _asked(topology, options.query)
    _check_names(topology, asked)
    with _session(options) as spark:
        from watersmeet.spark.run import check_query

        for query in asked:
            check_query(spark, topology, query)
    streams = len(topology.streams)
    print(f"{options.topology}: {streams} streams and {len(asked)} queries, nothing wrong")
    return 0


def _check_names(topology: Topology, asked: Sequence[Query]) -> None:
    """What can be found wrong without starting Spark is found before it."""
    from watersmeet.query.sql import parse_query

    for query in asked:
        try:
            parse_query(query.sql, topology.columns, allow_cross=query.allow_cross)
        except InputError as error:
            raise type(error)(f"query {query.name!r}: {error}") from None


def _run(options: argparse.Namespace) -> int:
    topology = load_topology(options.topology)
    asked = _asked(topology, options.query)
    _check_names(topology, asked)
    console = Console(stderr=False, highlight=False)
    stop = threading.Event()
    with _session(options) as spark:
        from watersmeet.spark.run import start

        _stop_on_signals(stop)
        handles: list[RunningQuery] = []
        began = time.monotonic()
        try:
            for query in asked:
                handle = start(
                    topology,
                    query,
                    spark=spark,
                    checkpoint=options.checkpoint,
                    trigger=options.trigger,
                    once=options.once,
                    show=console.print,
                    warn=lambda text: print(f"watersmeet: warning: {text}", file=sys.stderr),
                )
                handles.append(handle)
            before = {handle.name: handle.totals for handle in handles}
            _watch(handles, stop, console, began, quiet=options.quiet)
        finally:
            for handle in handles:
                if handle.isActive:
                    handle.stop()
        if not options.quiet:
            seconds = time.monotonic() - began
            for handle, query in zip(handles, asked, strict=True):
                _summarise(handle, query, before[handle.name], seconds, console, spark)
    return 0


def _watch(
    handles: Sequence["RunningQuery"], stop: threading.Event, console: Console, began: float, *, quiet: bool
) -> None:
    """Follow the queries to their end, or to the signal to stop."""
    live = Live(console=console, refresh_per_second=4, transient=not console.is_terminal) if not quiet else None
    with live or contextlib.nullcontext():
        waiting = list(handles)
        while waiting and not stop.is_set():
            for handle in list(waiting):
                if handle.awaitTermination(0.2):
                    waiting.remove(handle)
            if live is not None:
                live.update(Text("\n").join(_progress_line(handle, began) for handle in handles))
        if stop.is_set():
            console.print("stopping after the batch under way")
            for handle in waiting:
                handle.stop()


def _progress_line(handle: "RunningQuery", began: float) -> Text:
    report = handle.last_report
    if report is None:
        return Text(f"{handle.name}: waiting for data ({time.monotonic() - began:.0f} s)")
    totals = handle.totals
    aside = [f"{totals[name]:,} {name}" for name in ("late", "malformed") if totals[name]]
    return Text(
        f"{handle.name}: batch {report.batch}  in {totals['rows_in']:,}  out {totals['rows_out']:,}  "
        f"{report.rows_in / max(report.seconds, 1e-9):,.0f} rows/s  "
        f"state {report.state_rows:,} rows, {_megabytes(report.state_bytes)}  " + "".join(f"  {text}" for text in aside)
    )


def _summarise(
    handle: "RunningQuery",
    query: Query,
    before: dict[str, int],
    seconds: float,
    console: Console,
    spark: "SparkSession",
) -> None:
    """What the run did and where its answers are."""
    totals = handle.totals
    done = {name: totals[name] - before[name] for name in totals}
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
    if query.sink.path:
        table.add_row("answers lie in", query.sink.path)
    console.print(table)
    if query.sink.path and done["rows_out"]:
        with contextlib.suppress(Exception):
            stored = spark.read.format(query.sink.format).options(**dict(query.sink.options)).load(query.sink.path)
            sample = Table(*stored.columns, title="a sample of the answers", title_justify="left")
            for row in stored.limit(5).collect():
                sample.add_row(*map(str, row))
            console.print(sample)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _stop_on_signals(stop: threading.Event) -> None:
    """The first Ctrl-C lets the batch under way finish; the second ends at once, and the next start resumes."""

    def handle(number: int, frame: Any) -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


@contextlib.contextmanager
def _session(options: argparse.Namespace) -> Iterator["SparkSession"]:
    """A Spark session; its log goes to a file of its own, told of only if something fails, unless --debug."""
    from watersmeet.spark.session import start_session

    settings = {}
    for setting in getattr(options, "conf", []):
        name, equals, value = setting.partition("=")
        if not equals:
            raise InputError(f"--conf {setting!r} must be NAME=VALUE")
        settings[name] = value
    from pyspark.sql import SparkSession

    is_ours = SparkSession.getActiveSession() is None
    log = Path(tempfile.mkdtemp(prefix="watersmeet-")) / "spark.log"
    if not options.debug:
        for name in ("py4j", "pyspark", "py4j.clientserver"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    with _standard_error_to(log) if not options.debug else contextlib.nullcontext():
        spark = start_session(options.master, settings=settings or None)
    try:
        yield spark
    except RunError as error:
        if not options.debug and log.exists() and log.stat().st_size:
            raise type(error)(f"{error} (Spark's log: {log})") from error
        raise
    else:
        log.unlink(missing_ok=True)
        log.parent.rmdir()
    finally:
        if is_ours:
            with contextlib.suppress(Exception):
                spark.stop()


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
