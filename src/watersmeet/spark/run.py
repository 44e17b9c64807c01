"""Starting queries: every site of a topology becomes one Structured Streaming query for all of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from watersmeet.cost.price import BATCH_INTERVAL_S
from watersmeet.errors import InputError, NothingToDo, did_you_mean, name_queries
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import Event, RunWarning
from watersmeet.program.site.agreement import Versions
from watersmeet.program.site.deployment import programs_of
from watersmeet.program.site.program import SiteProgram
from watersmeet.query.windows import parse_duration
from watersmeet.spark.backend.protocol import backend_of
from watersmeet.spark.checkpoint import kept_columns, refuse_old_forms
from watersmeet.spark.executors import STORE_LIBRARIES, check_executors
from watersmeet.spark.fresh import move_aside, moves
from watersmeet.spark.handle import StreamingRun
from watersmeet.spark.ingest.sources import has_rows_in_java
from watersmeet.spark.ingest.tables import with_table_schemas
from watersmeet.spark.kafka_options import connector_settings
from watersmeet.spark.launch import Launch
from watersmeet.spark.links.transport import default_links, remove_links
from watersmeet.spark.planning import adapting, check_queries, deployment_of
from watersmeet.spark.resume import known_versions, latest, resumed
from watersmeet.spark.session import start_session
from watersmeet.spark.store.mirror import local_root, origin_of
from watersmeet.topology.model import Query, Topology


def default_checkpoint(topology: Topology) -> Path:
    """Where checkpoints go if nobody says: beside the topology file, so that starting again resumes."""
    return Path(topology.directory) / ".watersmeet" / "checkpoints"


def start(
    topology: Topology,
    query: str | Query | Sequence[str | Query] | None = None,
    *,
    spark: SparkSession | None = None,
    checkpoint: str | Path | None = None,
    trigger: str | None = None,
    once: bool = False,
    drain: bool = False,
    fresh: bool = False,
    show: Callable[[str], None] = print,
    warn: Callable[[str], None] | None = print,
    events: EventBus | None = None,
    plans_change: bool = False,
) -> StreamingRun:
    """Start the queries of a topology, or some of them, at all their sites, and return the handle.

    `once` takes all data available now and ends, and with `drain` takes that for the end of time; `trigger` is the
    interval between micro-batches, such as "1 second". `fresh` begins anew: what earlier runs have left, checkpoint and
    answers, is moved aside. What the run reports goes to `events`; warnings also to `warn`. With `plans_change`, or
    where `adapt:` says so, all sites run and the homes of streams keep the rows of windows, so that another plan can
    take over at once and anywhere.
    """
    return _start(
        topology, query, None, spark, checkpoint, trigger, once, drain, fresh, show, warn, events, plans_change
    )


def start_site(
    topology: Topology,
    site: str,
    query: str | Query | Sequence[str | Query] | None = None,
    *,
    spark: SparkSession | None = None,
    checkpoint: str | Path | None = None,
    trigger: str | None = None,
    once: bool = False,
    drain: bool = False,
    show: Callable[[str], None] = print,
    warn: Callable[[str], None] | None = print,
    events: EventBus | None = None,
    plans_change: bool = False,
) -> StreamingRun:
    """Start one site and return its handle; the other sites run elsewhere, whenever they do.

    `once` takes what is there now, in the site's own streams and on its links, and ends; with `drain` the end of its
    own streams is taken for the end of time.
    """
    if site not in topology.site_names:
        raise InputError(f"unknown site {site!r}; {did_you_mean(site, topology.site_names)}")
    return _start(
        topology, query, site, spark, checkpoint, trigger, once, drain, False, show, warn, events, plans_change
    )


def _start(
    topology: Topology,
    query: str | Query | Sequence[str | Query] | None,
    site: str | None,
    spark: SparkSession | None,
    checkpoint: str | Path | None,
    trigger: str | None,
    once: bool,
    drain: bool,
    fresh: bool,
    show: Callable[[str], None],
    warn: Callable[[str], None] | None,
    events: EventBus | None,
    plans_change: bool,
) -> StreamingRun:
    if drain and not once:
        raise InputError("drain is for runs that end with their input; add once (--once --drain)")
    asked = _asked(topology, query)
    topology = replace(topology, queries=asked)
    trigger_us = 0 if trigger is None else parse_duration(trigger)
    if trigger is not None and trigger_us <= 0:
        raise InputError(f"trigger {trigger!r} must be positive")
    if trigger_us > BATCH_INTERVAL_S * 1e6 and site is None and topology.batch_interval_us is None:
        topology = replace(topology, batch_interval_us=trigger_us)  # sites that start by themselves plan by the file
    root = checkpoint_root(topology, checkpoint)
    known: dict[str, Versions] = {}
    if not fresh:
        refuse_old_forms(root)
        known = known_versions(root, topology.site_names if site is None else [site], at_start=True)
    settings = connector_settings(topology) or None
    session = spark or start_session(settings=settings, has_rows=has_rows_in_java(topology.sources))
    backend_of(session).prepare()
    if origin_of(root / "any") is not None and not backend_of(session).is_local:
        check_executors(session, STORE_LIBRARIES)
    topology = with_table_schemas(session, topology)
    topology = resumed(topology, known, root)
    asked, given = topology.queries, topology
    bus = events or EventBus()
    if warn is not None:
        bus.subscribe(lambda at, event: _pass_on(event, warn))
    kept = {} if fresh else kept_columns(root)
    planned = check_queries(session, topology, asked, once=once, site=site, kept=kept)
    topology, bounds = planned.topology, planned.bounds
    plans_change = plans_change or any(topology.adapt_of(query).mode != "off" for query in asked)
    decisions, plans = adapting(topology, bounds, planned.plans, trigger_us)
    deployment = deployment_of(plans, topology, plans_change=plans_change)
    programs = programs_of(deployment)
    if not plans_change and not known:
        _check_sites(programs, asked, site)
    if fresh:
        move_aside(session, moves(session, topology, root, default_links(topology)))
        remove_links(topology)
    alone = site is not None
    launch = Launch(
        session, topology, root, bounds, plans, deployment, bus, trigger_us, once, drain, show, alone, decisions
    )
    launch = replace(launch, known=known, only=site, given=given, asked=planned.asked)
    running = latest(known)
    busy = [name for name in programs if plans_change or not programs[name].does_nothing]
    sites = busy if running is None else [name for name in topology.site_names if name in running.deployment.sites]
    return launch.start([site] if site is not None else sites)


def _asked(topology: Topology, query: str | Query | Sequence[str | Query] | None) -> tuple[Query, ...]:
    if query is None:
        if not topology.queries:
            raise InputError("the topology has no queries; add one under `queries:`")
        return topology.queries
    some = [query] if isinstance(query, str | Query) else list(query)
    return tuple(one if isinstance(one, Query) else topology.query(one) for one in some)


def checkpoint_root(topology: Topology, checkpoint: str | Path | None) -> Path:
    """The directory of the checkpoint, which all queries of a run share; of one in a store, where it is worked on."""
    places = {query.checkpoint for query in topology.queries if query.checkpoint is not None}
    if checkpoint is None and len(places) > 1:
        raise InputError(
            f"queries {', '.join(query.name for query in topology.queries)} run together and share a checkpoint, "
            f"but name {len(places)} different ones; name one, or give --checkpoint"
        )
    return local_root(checkpoint or next(iter(places), None) or default_checkpoint(topology))


def _check_sites(programs: Mapping[str, SiteProgram], queries: Sequence[Query], site: str | None) -> None:
    if site is None:
        return
    what, is_one = name_queries([query.name for query in queries]), len(queries) == 1
    busy = [name for name, program in programs.items() if not program.does_nothing]
    if len(busy) == 1:
        needs, its = ("needs", "its") if is_one else ("need", "their")
        raise NothingToDo(
            f"{what} {needs} no other site than {busy[0]}: {its} streams arrive where {its} answers are wanted; "
            "use `watersmeet run`"
        )
    if site not in busy:
        whose = f"{what} has nothing" if is_one else "none of the queries has anything"
        raise NothingToDo(f"{whose} to do at site {site!r}")


def _pass_on(event: Event, warn: Callable[[str], None]) -> None:
    if isinstance(event, RunWarning):
        warn(event.text)
