"""`watersmeet run`: run the queries of a topology, all sites in one Spark application."""

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from watersmeet.cli.dashboard import beside as dashboard_beside
from watersmeet.cli.inputs import check_queries, selected_queries
from watersmeet.cli.live import follow
from watersmeet.cli.options import (
    Subparsers,
    check_file,
    check_port,
    check_trigger,
    planner_options,
    run_options,
    topology_of,
    topology_options,
)
from watersmeet.cli.session import spark_session, stop_on_signals
from watersmeet.cli.tables import (
    MOST_NAMED,
    links_table,
    print_table,
    queries_table,
    run_title,
    sample_table,
    summary_table,
)
from watersmeet.errors import InputError, did_you_mean
from watersmeet.metrics.bus import EventBus
from watersmeet.topology.model import Query, Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.metrics.events import Event
    from watersmeet.spark.handle import StreamingRun


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "run",
        parents=[topology_options(), planner_options(), run_options()],
        help="run the queries of a topology, all sites in one Spark application",
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="begin anew: checkpoint, links and answers of earlier runs are moved aside, which is asked for first",
    )
    parser.add_argument("--yes", action="store_true", help="with --fresh: do not ask")
    parser.set_defaults(command=run, site=None)


def run(options: argparse.Namespace) -> int:
    """Run queries until they end or are stopped: those of all sites, or of `options.site`."""
    topology = topology_of(options)
    queries = selected_queries(topology, options)
    if options.site is not None and options.site not in topology.site_names:
        raise InputError(f"unknown site {options.site!r}; {did_you_mean(options.site, topology.site_names)}")
    check_queries(topology, queries)
    check_trigger(options.trigger)
    if options.drain and not options.once:
        raise InputError("--drain is for runs that end with their input; add --once")
    check_file("--events", options.events)
    check_port("--metrics-port", options.metrics_port)
    check_port("--health-port", options.health_port)
    check_port("--dashboard", options.dashboard)
    console = Console(stderr=False, highlight=False)
    with contextlib.ExitStack() as readers:
        stop = readers.enter_context(stop_on_signals())
        bus = EventBus()
        if options.health_port is not None:  # while Spark starts it is alive, and not ready
            from watersmeet.metrics.health import serve_health

            server = serve_health(bus, options.health_port)
            readers.callback(server.stop)
            print(f"watersmeet: health at {server.url}/livez and /readyz", file=sys.stderr)
        spark = readers.enter_context(spark_session(options, topology))
        readers.enter_context(stop_on_signals(stop))
        if stop.is_set():  # while Spark started; nothing has begun
            return 0
        readers.enter_context(_watch(bus, options))
        quiet = options.quiet or options.log == "json"
        if options.fresh:
            _begin_anew(replace(topology, queries=queries), options, spark)
        topology, sentence = _with_first_look(topology, queries, options, spark)
        if sentence and not quiet:
            console.print(sentence, soft_wrap=True)
        began = time.monotonic()
        handle = _started(topology, queries, options, spark, console, bus)
        if options.dashboard is not None:
            readers.enter_context(dashboard_beside(handle.directory, options.dashboard))
        try:
            follow(handle, stop, console, began, quiet=quiet)
        finally:
            if handle.isActive:
                handle.stop()
        if not quiet:
            _summarise(handle, queries, time.monotonic() - began, console, spark)
        _write_observed(handle, console, quiet=quiet)
    return 0


def _with_first_look(
    topology: Topology, queries: Sequence[Query], options: argparse.Namespace, spark: "SparkSession"
) -> tuple[Topology, str]:
    """The topology with what plans need to know of streams, by a first look if nobody said it; what to say of that."""
    from watersmeet.spark.first_look import first_look, keep, without_a_look
    from watersmeet.spark.run import checkpoint_root

    if options.site is not None:
        return topology, without_a_look(spark, topology, queries)
    root = checkpoint_root(replace(topology, queries=tuple(queries)), options.checkpoint)
    look = first_look(spark, topology, queries, root)
    keep(look, root)
    return look.topology, look.sentence


def _started(
    topology: Topology,
    queries: Sequence[Query],
    options: argparse.Namespace,
    spark: "SparkSession",
    console: Console,
    bus: EventBus,
) -> "StreamingRun":
    """Start all queries, at all sites or at one."""
    from watersmeet.spark.run import start, start_site

    settings: dict[str, Any] = {
        "spark": spark,
        "checkpoint": options.checkpoint,
        "trigger": options.trigger,
        "once": options.once,
        "drain": options.drain,
        "show": console.print,
        "warn": None,
        "events": bus,
    }
    if options.site is None:
        return start(topology, queries, **settings)
    return start_site(topology, options.site, queries, **settings)


def _begin_anew(topology: Topology, options: argparse.Namespace, spark: "SparkSession") -> None:
    """Move what earlier runs have left aside, if the user agrees."""
    from watersmeet.spark.fresh import move_aside, moves
    from watersmeet.spark.links.transport import default_links
    from watersmeet.spark.run import checkpoint_root

    found = moves(spark, topology, checkpoint_root(topology, options.checkpoint), default_links(topology))
    for move in found:
        print(f"watersmeet: begin anew: {move}", file=sys.stderr)
    if not found:
        return
    if not options.yes:
        if not sys.stdin.isatty():
            raise InputError("--fresh would move this aside and asks first, but there is nobody to ask; add --yes")
        print("move all this aside? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().casefold() not in ("y", "yes"):
            raise InputError("nothing was moved and nothing was run")
    move_aside(spark, found)


def _warn(text: str) -> None:
    print(f"watersmeet: warning: {text}", file=sys.stderr)


@contextlib.contextmanager
def _watch(bus: EventBus, options: argparse.Namespace) -> Iterator[None]:
    """Subscribe the readers of a run's events: warnings go to standard error, the rest where the options say."""
    with contextlib.ExitStack() as readers:
        readers.callback(bus.subscribe(_print_warning, replay=True))
        if options.events is not None:
            from watersmeet.metrics.jsonl import append_events

            readers.callback(append_events(bus, Path(options.events)))
        if options.log == "json":
            readers.callback(bus.subscribe(_print_json, replay=True))
        if options.metrics_port is not None:
            from watersmeet.metrics.prometheus import serve

            exporter = serve(bus, options.metrics_port)
            readers.callback(exporter.stop)
            print(f"watersmeet: metrics at {exporter.url}", file=sys.stderr)
        yield


def _print_json(at: float, event: "Event") -> None:
    from watersmeet.metrics.events import to_json

    print(to_json(event, at), flush=True)


def _print_warning(at: float, event: "Event") -> None:
    from watersmeet.metrics.events import RunWarning

    if isinstance(event, RunWarning):
        _warn(event.text)


def _summarise(
    run: "StreamingRun", queries: Sequence[Query], seconds: float, console: Console, spark: "SparkSession"
) -> None:
    """Print what the run did for each query, what it shipped, and a sample of the answers."""
    if not run.micro_batches_here and not run.usage_here().rows_out:
        console.print(f"{run_title(run)}: nothing new since the last run with this checkpoint")
        return
    usages = {query.name: run.usage_here(query.name) for query in queries}
    some = queries if len(queries) <= MOST_NAMED else ()
    for query in some:
        usage, is_answered = usages[query.name], run.answers_here(query.name)
        print_table(summary_table(query, usage, run.micro_batches_here, seconds, is_answered=is_answered), console)
    if len(queries) > 1:
        print_table(queries_table(usages, run.usage_here()), console)
    traffic = run.traffic
    if traffic.rows:
        print_table(links_table(traffic), console)
    for query in some:
        if query.sink.path and usages[query.name].rows_out:
            with contextlib.suppress(Exception):
                print_table(sample_table(query.sink, spark, run.answer_columns(query.name)), console)


def _write_observed(run: "StreamingRun", console: Console, *, quiet: bool) -> None:
    """Write the observed statistics beside the checkpoint, for the planner of the next run."""
    if not run.usage_here().rows_in:
        return
    path = run.write_observed()
    if path is not None and not quiet and run.traffic.rows:
        console.print(f"statistics observed in this run: {path}", soft_wrap=True)
