"""`watersmeet run`: run the queries of a topology, all sites in one Spark application."""

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from watersmeet.cli.inputs import check_queries, errors_naming, selected_queries
from watersmeet.cli.live import follow
from watersmeet.cli.options import (
    Subparsers,
    check_file,
    check_port,
    check_trigger,
    planner_options,
    run_options,
    topology_options,
)
from watersmeet.cli.session import spark_session, stop_on_signals
from watersmeet.cli.tables import links_table, sample_table, summary_table
from watersmeet.errors import InputError, NothingToDo, did_you_mean
from watersmeet.topology.model import Query, Topology, load_topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.cli.live import Handle
    from watersmeet.metrics.bus import EventBus
    from watersmeet.metrics.events import Event


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "run",
        parents=[topology_options(), planner_options(), run_options()],
        help="run the queries of a topology, all sites in one Spark application",
    )
    parser.set_defaults(command=run, site=None)


def run(options: argparse.Namespace) -> int:
    """Run queries until they end or are stopped: those of all sites, or of `options.site`."""
    topology = load_topology(options.topology)
    queries = selected_queries(topology, options)
    if options.site is not None and options.site not in topology.site_names:
        raise InputError(f"unknown site {options.site!r}; {did_you_mean(options.site, topology.site_names)}")
    check_queries(topology, queries)
    check_trigger(options.trigger)
    check_file("--events", options.events)
    check_port("--metrics-port", options.metrics_port)
    console = Console(stderr=False, highlight=False)
    with spark_session(options, topology) as spark, stop_on_signals() as stop, contextlib.ExitStack() as readers:
        started: list[tuple[Query, Handle]] = []
        began = time.monotonic()
        try:
            for query, handle in _started(topology, queries, options, spark, console):
                started.append((query, handle))
                readers.enter_context(_watch(handle, options))
            if not started:
                raise NothingToDo(f"none of the queries has anything to do at site {options.site!r}")
            follow([handle for _, handle in started], stop, console, began, quiet=options.quiet)
        finally:
            for _, handle in started:
                if handle.isActive:
                    handle.stop()
        if not options.quiet:
            seconds = time.monotonic() - began
            for query, handle in started:
                _summarise(handle, query, seconds, console, spark)
        _write_observed([handle for _, handle in started], console, quiet=options.quiet)
    return 0


def _started(
    topology: Topology, queries: Sequence[Query], options: argparse.Namespace, spark: "SparkSession", console: Console
) -> "Iterator[tuple[Query, Handle]]":
    """Start one query after the other; of several, those that have nothing to do at the site are left out."""
    from watersmeet.spark.run import start, start_site

    settings: dict[str, Any] = {
        "spark": spark,
        "checkpoint": options.checkpoint,
        "trigger": options.trigger,
        "once": options.once,
        "show": console.print,
        "warn": _warn,
    }
    for query in queries:
        with errors_naming(query):
            if options.site is None:
                handle: Handle = start(topology, query, **settings)
            else:
                try:
                    handle = start_site(topology, options.site, query, **settings)
                except NothingToDo as error:
                    if len(queries) == 1:
                        raise
                    console.print(str(error))
                    continue
        yield query, handle


def _warn(text: str) -> None:
    print(f"watersmeet: warning: {text}", file=sys.stderr)


@contextlib.contextmanager
def _watch(handle: object, options: argparse.Namespace) -> Iterator[None]:
    """Subscribe the readers of a run's events: warnings go to standard error, the rest where the options say."""
    bus: EventBus | None = getattr(handle, "events", None)
    if bus is None:
        if options.events is not None or options.metrics_port is not None:
            _warn("this run publishes no events; --events and --metrics-port have no effect")
        yield
        return
    with contextlib.ExitStack() as readers:
        readers.callback(bus.subscribe(_print_warning, replay=True))
        if options.events is not None:
            from watersmeet.metrics.jsonl import append_events

            readers.callback(append_events(bus, Path(options.events)))
        if options.metrics_port is not None:
            from watersmeet.metrics.prometheus import serve

            exporter = serve(bus, options.metrics_port)
            readers.callback(exporter.stop)
            print(f"watersmeet: metrics at {exporter.url}", file=sys.stderr)
        yield


def _print_warning(at: float, event: "Event") -> None:
    from watersmeet.metrics.events import RunWarning

    if isinstance(event, RunWarning):
        _warn(event.text)


def _summarise(handle: "Handle", query: Query, seconds: float, console: Console, spark: "SparkSession") -> None:
    """Print what the run did, what it shipped, and a sample of its answers."""
    from watersmeet.spark.run import RunningSites

    before = handle.totals_at_start
    done = {name: total - before[name] for name, total in handle.totals.items()}
    if not done["batches"]:
        console.print(f"{query.name}: nothing new since the last run with this checkpoint")
        return
    shows_path = bool(done["rows_out"]) or not isinstance(handle, RunningSites)
    console.print(summary_table(query, done, handle.last_report, seconds, shows_path=shows_path))
    if isinstance(handle, RunningSites):
        console.print(links_table(handle.name, handle.traffic))
    if query.sink.path and done["rows_out"]:
        with contextlib.suppress(Exception):
            console.print(sample_table(query.sink, spark))


def _write_observed(handles: Sequence["Handle"], console: Console, *, quiet: bool) -> None:
    """Write the observed statistics beside the checkpoints, for the planner of the next run."""
    from watersmeet.spark.run import RunningSites

    for handle in handles:
        if not isinstance(handle, RunningSites) or handle.totals["rows_in"] == handle.totals_at_start["rows_in"]:
            continue
        path = handle.write_observed()
        if path is not None and not quiet:
            console.print(f"{handle.name}: what was observed of the streams lies in {path}", soft_wrap=True)
