"""Starting queries: every site of a topology becomes one Structured Streaming query for all of them."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from watersmeet import __version__
from watersmeet.adapt.controller import GoOver
from watersmeet.adapt.decisions import Decisions, decisions_of
from watersmeet.cost.price import BATCH_INTERVAL_S
from watersmeet.errors import InputError, NothingToDo, did_you_mean, name_queries
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.describe import query_event, topology_event
from watersmeet.metrics.events import Event, PlanInForce, RunEnded, RunStarted, RunWarning
from watersmeet.metrics.jsonl import keep_events
from watersmeet.plan.explain import explain_text
from watersmeet.plan.nodes import has_groups, is_outer, join_plan_of, with_join
from watersmeet.planners.choose import Chosen, choose
from watersmeet.program.site.adoption import first_ledger, program_of, with_finishes
from watersmeet.program.site.agreement import Versions, proposer_of
from watersmeet.program.site.deployment import Deployment, deployed, overlay, programs_of, shared_joins
from watersmeet.program.site.engine import read_versions
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.versions import Change, QueryPlan, plan_changes
from watersmeet.program.storage.wire import VERSION
from watersmeet.query.model import Column
from watersmeet.query.windows import parse_duration
from watersmeet.spark.adapting import Observations, PlanAdapter
from watersmeet.spark.apply import Applier
from watersmeet.spark.backend.protocol import backend_of
from watersmeet.spark.binding import Bound
from watersmeet.spark.catalogue import Catalogue
from watersmeet.spark.changes import identity_of, plans_in_force
from watersmeet.spark.checkpoint import Checkpoint, kept_columns, refuse_old_forms
from watersmeet.spark.connect.batches import ClientBatches
from watersmeet.spark.connect.offered import OfferedBatches
from watersmeet.spark.deliver.sinks import FileWriter, check_sink, open_sink
from watersmeet.spark.deliver.writer import Writer
from watersmeet.spark.durable import Disk
from watersmeet.spark.failures import refusal
from watersmeet.spark.fresh import move_aside, moves, refuse_answered_sink
from watersmeet.spark.handle import StreamingRun
from watersmeet.spark.ingest.file_columns import unknown_column
from watersmeet.spark.ingest.nanoseconds import nanosecond_warning
from watersmeet.spark.ingest.source_log import missing_inputs, strike_out_unplanned
from watersmeet.spark.ingest.sources import check_source, has_rows_in_java
from watersmeet.spark.ingest.tables import with_table_schemas
from watersmeet.spark.kafka_options import connector_settings
from watersmeet.spark.links.board import Shown, open_board
from watersmeet.spark.links.transport import default_links, open_transport, remove_links, seal_of
from watersmeet.spark.outputs import bind_outputs
from watersmeet.spark.resume import current_definitions, known_versions, latest, note_topology, resumed
from watersmeet.spark.session import start_session
from watersmeet.spark.site_job import SiteJob, SiteSettings
from watersmeet.spark.site_query import SiteQuery, SparkQuery
from watersmeet.spark.store.mirror import local_root
from watersmeet.topology.model import Query, Topology
from watersmeet.topology.views import Asked

_LEAST_DECIDING_US = 1_000_000  # of event time between two looks at whether another plan is better
_MIN_SLACK_US = 500_000
_SLACK_HERE, _SLACK_ELSEWHERE = 1, 3  # triggers of event time that may go by while sites agree, in a process or several
_MIN_INTERVAL_MS = 50  # between micro-batches of a site that has links, where no trigger is given


def plan_query(
    spark: SparkSession, topology: Topology, query: Query, *, every: bool = False, kept: Sequence[str] = ()
) -> tuple[Bound, Chosen]:
    """Check a query against its streams and plan it, by every planner if asked for; nothing is read or written.

    Of a UNION ALL it is the first SELECT. `kept` are columns that its windows keep in any case, by flat name.
    """
    found = plan_queries(spark, topology, [query], every=every, kept={query.name: kept})
    return found.bounds[query.name], found.plans[query.name]


@dataclass(frozen=True)
class Planned:
    """Queries, and the views that they read, with their plans."""

    topology: Topology  # with derived streams, and a query for each branch
    asked: tuple[Asked, ...]
    bounds: Mapping[str, Bound]  # by branch, in the order in which they depend on each other
    plans: Mapping[str, Chosen]


def plan_queries(
    spark: SparkSession,
    topology: Topology,
    queries: Sequence[Query],
    *,
    every: bool = False,
    kept: Mapping[str, Sequence[str]] | None = None,
) -> Planned:
    """Check queries and the views that they read against their streams, and plan them."""
    topology = replace(with_table_schemas(spark, topology), queries=tuple(queries))
    bound_outputs = bind_outputs(spark, topology, queries)
    topology, bounds, plans = bound_outputs.topology, {}, {}
    for name, bound in bound_outputs.bounds.items():
        columns = (Column(s.alias, column) for s in bound.query.sources for column in topology.columns[s.stream])
        also_kept = tuple(column for column in columns if column.flat in (kept or {}).get(name, ()))
        bounds[name] = replace(bound, query=replace(bound.query, also_kept=also_kept))
        plans[name] = choose(topology, topology.query(name), bounds[name].query, every=every)
    return Planned(topology, bound_outputs.asked, bounds, plans)


def check_query(
    spark: SparkSession,
    topology: Topology,
    query: Query,
    *,
    once: bool = False,
    site: str | None = None,
    kept: Mapping[str, Sequence[str]] | None = None,
) -> Planned:
    """Everything that can be found wrong with a query, or with its part at one site, before it runs."""
    return _check_queries(spark, topology, [query], once=once, site=site, kept=kept)


def _check_queries(
    spark: SparkSession,
    topology: Topology,
    queries: Sequence[Query],
    *,
    once: bool,
    site: str | None,
    kept: Mapping[str, Sequence[str]] | None,
) -> Planned:
    found = plan_queries(spark, topology, queries, kept=kept)
    schemas = {name: schema for bound in found.bounds.values() for name, schema in bound.schemas.items()}
    for name, schema in schemas.items():
        stream = found.topology.stream(name)
        if not stream.is_derived and site in (None, stream.site):
            check_source(stream, schema, once=once)
    for query in queries:
        if site is None or site == topology.query_site(query):
            check_sink(spark, query)
    return found


def _checked(
    spark: SparkSession,
    topology: Topology,
    queries: Sequence[Query],
    *,
    once: bool,
    site: str | None,
    kept: Mapping[str, Sequence[str]],
) -> Planned:
    """Plan all queries of a run at once; one by one only to find out which of them is wrong."""
    try:
        with _refusing([one.name for one in queries]):
            return _check_queries(spark, topology, queries, once=once, site=site, kept=kept)
    except Exception:
        for one in queries if len(queries) > 1 else ():
            with _refusing([one.name]):
                check_query(spark, topology, one, once=once, site=site, kept=kept)
        raise


def site_programs(plans: Mapping[str, Chosen], topology: Topology) -> dict[str, SiteProgram]:
    """What every site does for some planned queries."""
    names = sorted(plans)  # stored rows depend on the order, and a restart may name the same queries in another one
    starts = {name: topology.query(name).start_us for name in names}
    errors = {name: topology.query(name).errors for name in names}
    return overlay(shared_joins({name: plans[name].plan for name in names}, starts, errors))


def deployment_of(plans: Mapping[str, Chosen], topology: Topology, *, plans_change: bool = False) -> Deployment:
    """The first deployment of some planned queries; where plans are to change, every site takes part from the start."""
    names = sorted(plans)
    starts = {name: topology.query(name).start_us for name in names}
    errors = {name: topology.query(name).errors for name in names}
    joins = shared_joins({name: plans[name].plan for name in names}, starts, errors)
    return deployed(joins, topology.site_names if plans_change else (), history=plans_change)


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
    topology = with_table_schemas(session, topology)
    topology = resumed(topology, known, root)
    asked, given = topology.queries, topology
    bus = events or EventBus()
    if warn is not None:
        bus.subscribe(lambda at, event: _pass_on(event, warn))
    kept = {} if fresh else kept_columns(root)
    planned = _checked(session, topology, asked, once=once, site=site, kept=kept)
    topology, bounds, plans = planned.topology, planned.bounds, dict(planned.plans)
    plans_change = plans_change or any(topology.adapt_of(one).mode != "off" for one in asked)
    decisions = _decisions(topology, bounds, plans, trigger_us) if site is None else None
    for name, join in decisions.joins.items() if decisions is not None else ():
        plans[name] = replace(plans[name], plan=with_join(plans[name].plan, join))
    deployment = deployment_of(plans, topology, plans_change=plans_change)
    programs = programs_of(deployment)
    if not plans_change and not known:
        _check_sites(programs, asked, site)
    if fresh:
        move_aside(session, moves(session, topology, root, default_links(topology)))
        remove_links(topology)
    alone = site is not None
    launch = _Launch(
        session, topology, root, bounds, plans, deployment, bus, trigger_us, once, drain, show, alone, decisions
    )
    launch = replace(launch, known=known, only=site, given=given)
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


def _decisions(
    topology: Topology, bounds: Mapping[str, Bound], plans: Mapping[str, Chosen], trigger_us: int
) -> Decisions | None:
    """What decides on other plans, of queries that have `adapt`."""
    planned = {
        name: (topology.query(name), bounds[name].query, join_plan_of(chosen.plan))
        for name, chosen in plans.items()
        if not is_outer(chosen.plan)
    }
    return decisions_of(topology, planned, max(trigger_us, _LEAST_DECIDING_US))


def _pass_on(event: Event, warn: Callable[[str], None]) -> None:
    if isinstance(event, RunWarning):
        warn(event.text)


@dataclass(frozen=True, eq=False)
class _Launch:
    """Starts the sites of a run."""

    spark: SparkSession
    topology: Topology
    root: Path
    bounds: Mapping[str, Bound]
    plans: Mapping[str, Chosen]
    deployment: Deployment
    events: EventBus
    trigger_us: int
    once: bool
    drain: bool
    show: Callable[[str], None]
    alone: bool
    decisions: Decisions | None = None
    observations: Observations = field(default_factory=Observations)
    known: Mapping[str, Versions] = field(default_factory=dict)  # by site, of checkpoints that are there
    only: str | None = None  # the one site that is started
    given: Topology | None = None  # the topology as the user writes it, without derived streams

    @cached_property
    def catalogue(self) -> Catalogue:
        """The queries that are started, under the definitions that checkpoints have of them."""
        catalogue = Catalogue(self.spark, self.topology, self.given)
        names = current_definitions(self.known)
        for name, bound in self.bounds.items():
            catalogue.know(names.get(name, name), self.topology.query(name), bound)
        for versions in self.known.values():
            catalogue.resume(versions)
        return catalogue

    @cached_property
    def applier(self) -> Applier:
        def check(topology: Topology, query: Query) -> tuple[Bound, Chosen]:
            with _refusing([query.name]):
                found = check_query(self.spark, topology, query, site=self.only)
            return found.bounds[query.name], found.plans[query.name]

        return Applier(self.spark, self.catalogue, self.events, check)

    def start(self, sites: Sequence[str]) -> StreamingRun:
        """Start some sites; if one of them cannot start, none does."""
        programs = programs_of(self.deployment)
        for site in sites:
            for name in programs[site].answered if site in programs else ():
                refuse_answered_sink(self.spark, self.topology.query(name), self.root / site)
        place = self.root / sites[0] if self.alone else self.root
        with ExitStack() as undo:
            with suppress(OSError):  # the checkpoint says what is wrong with its place
                place.mkdir(parents=True, exist_ok=True)
                undo.callback(keep_events(self.events, place))
                if self.alone:
                    undo.callback(self._show_elsewhere(sites[0], place))
            run = self._start_sites(sites, place)
            undo.pop_all()
            return run

    def _show_elsewhere(self, site: str, place: Path) -> Callable[[], None]:
        """Let dashboards elsewhere see a site that runs by itself; returns what ends it, as does the run's end."""
        board = open_board(self.topology) if len(self.topology.site_names) > 1 else None
        if board is None:
            return lambda: None
        shown = Shown(board, seal_of(self.topology.link_transport), site, place)
        self.events.subscribe(lambda at, event: shown.close() if isinstance(event, RunEnded) else None)
        shown.start()
        return shown.close

    def _start_sites(self, sites: Sequence[str], place: Path) -> StreamingRun:
        asked = tuple(query.name for query in self.topology.queries)
        self.events.publish(RunStarted(tuple(sites), asked, __version__))
        self.events.publish(topology_event(self.topology))
        running = latest(self.known)
        in_force = {} if running is None else plans_in_force(running)
        for name, chosen in self.plans.items():
            self.events.publish(query_event(self.topology, name, chosen.plan))
            expected = None if chosen.cost is None else chosen.cost.bytes_s
            begun = PlanInForce(name, chosen.planner, explain_text(chosen.plan), expected, 1)
            self.events.publish(in_force.get(name, begun))
        for query in self.topology.queries:
            is_watched = self.decisions is not None and query.name in self.decisions.joins
            if query.name in self.plans and self.topology.adapt_of(query).is_on and not is_watched:
                stays = (
                    f"query {query.name!r}: its plan stays as it is although it has adapt; that needs streams at "
                    "several sites with known rates, all sites in one process (watersmeet run), and no outer join or "
                    "EXISTS"
                )
                self.events.publish(RunWarning(None, query.name, stays))
        schemas = {name: schema for bound in self.bounds.values() for name, schema in bound.schemas.items()}
        for name, schema in sorted(schemas.items()):
            stream = self.topology.stream(name)
            for text in (nanosecond_warning(stream, schema), unknown_column(stream)):
                if stream.site in sites and text is not None:
                    self.events.publish(RunWarning(stream.site, None, text))
        started: list[SiteQuery] = []
        try:
            for site in sites:
                started.append(self._start_site(site))
            self._ask_for_new_plans(started)
        except BaseException:
            for handle in started:
                handle.stop()
            raise
        settings = {"once": self.once, "drain": self.drain}
        run = StreamingRun(started, self.plans, place, self.events, applier=self.applier, **settings)
        run.report_expected()
        if self.decisions is not None:
            self._adapt(run, self.decisions, started[0].job.versions.deployment)
        return run

    def _adapt(self, run: StreamingRun, decisions: Decisions, deployment: Deployment) -> None:
        """Let the controller have plans changed; planners go on from the plan that a checkpoint has."""
        for one in deployment.in_force:
            for finish in one.finishes:
                if deployment.revision > 1:
                    decisions.go_on_with(finish.query, one.join)

        def go_over(change: GoOver) -> None:
            plan = with_join(run.query(change.query).chosen.plan, change.join)
            planner = self.plans[change.query].planner
            run.change_plan(change.query, plan, planner=planner, reason=change.because, expected=change.expected)

        self.events.subscribe(PlanAdapter(decisions, self.observations, go_over, self.events.publish))

    def _ask_for_new_plans(self, started: Sequence[SiteQuery]) -> None:
        """Where a checkpoint goes on with other plans than are chosen now, go over to these.

        Sites finish changes of queries while they start: a plan for what a query asked for before is not a plan of it.
        """
        versions = started[0].job.versions
        proposer = proposer_of(versions.deployment)
        job = next((handle.job for handle in started if handle.job.site == proposer), None)
        waiting = versions.proposal is not None or versions.queue
        in_force = {finish.query: one.join for one in versions.deployment.in_force for finish in one.finishes}
        adapted = {
            name
            for name, join in in_force.items()
            if self.decisions is not None and self.decisions.go_on_with(name, join)
        }
        planned, running = current_definitions(self.known), current_definitions({proposer: versions})
        same = {name for name in self.plans if running.get(name) == planned.get(name, name)}
        asked = [self._query_plan(name) for name in sorted(same - adapted)]
        changed = plan_changes(versions.deployment, asked)
        if job is None or not changed or waiting:
            return
        for stays in (one.query for one in changed if is_outer(one.plan)):
            text = f"query {stays!r}: its plan stays as it was, since it has outer joins or EXISTS"
            self.events.publish(RunWarning(None, stays, f"{text}; begin anew with --fresh for another"))
        changed = tuple(one for one in changed if not is_outer(one.plan))
        if not changed:
            return
        change = Change(changed, reason="it was started with another plan")
        try:
            job.request(change)
        except InputError as error:
            self.events.publish(RunWarning(None, None, f"plans stay as they were: {error}"))

    def _query_plan(self, name: str) -> QueryPlan:
        query, chosen = self.topology.query(name), self.plans[name]
        return QueryPlan(name, chosen.plan, query.start_us, query.errors, planner=chosen.planner)

    def _start_site(self, site: str) -> SiteQuery:
        queries = tuple(self.plans)
        is_shared = not backend_of(self.spark).is_local
        with ExitStack() as undo, _refusing(queries):
            held = Checkpoint(self.root / site, self._identity(site), self._disk, is_shared=is_shared)
            undo.callback(held.close)
            self._prepare_versions(held)
            note_topology(held, self.given or self.topology)
            program = program_of(held.shelf, held.ledger, site)
            settings = SiteSettings(
                self.spark,
                self.catalogue,
                held,
                open_transport(self.topology, program.site, self._disk),
                read_versions(held.shelf, held.ledger).origin,
                self.events,
                interval_s=self.trigger_us / 1e6,
                once=self.once,
                alone=self.alone,
                slack_us=self._slack_us(read_versions(held.shelf, held.ledger)),
                observations=None if self.decisions is None else self.observations,
                apply=self.applier.take,
            )
            job = SiteJob(settings, program, lambda query: self._writer(query, held))
            handle = SiteQuery(job, queries)
            self._stream(job, held, handle)
            undo.pop_all()
            return handle

    def _slack_us(self, versions: Versions) -> int:
        """Event time that may go by while sites agree on a change; one site agrees with itself at once."""
        if len(versions.deployment.sites) == 1:
            return 0
        return (_SLACK_ELSEWHERE if self.alone else _SLACK_HERE) * max(self.trigger_us, _MIN_SLACK_US)

    def _prepare_versions(self, held: Checkpoint) -> None:
        """Let the ledger name the versions of plans: the first ones, or those it has, with select lists as they are."""
        ledger, catalogue = held.ledger, self.catalogue
        queries = {name: catalogue.text_of(self.topology.query(name)) for name in self.plans}
        if not ledger.versions:
            streams = catalogue.stream_texts(scan.stream for scan in self.deployment.scans)
            first = first_ledger(
                *(held.shelf, self.deployment),
                ledger=ledger,
                origin=self._digest,
                queries=queries,
                streams=streams,
            )
            held.commit(first)
            return
        if self._is_behind(read_versions(held.shelf, ledger)):
            return
        finishes = [finish for one in self.deployment.joins for finish in one.finishes]
        corrected = with_finishes(held.shelf, ledger, finishes, queries)
        if corrected is not ledger:
            held.commit(corrected)

    def _writer(self, query: Query, held: Checkpoint) -> Writer:
        def warn(text: str) -> None:
            self.events.publish(RunWarning(None, query.name, f"query {query.name!r}: {text}"))

        writer = open_sink(self.spark, query, f"{query.name}-{held.run_id}", self.show, self._disk, warn)
        if held.is_new and isinstance(writer, FileWriter) and not writer.is_empty:
            text = f"query {query.name!r}: {query.sink.path} holds files of others; new answers are added to them"
            self.events.publish(RunWarning(None, query.name, text))
        return writer

    def _stream(self, job: SiteJob, held: Checkpoint, handle: SiteQuery) -> None:
        strike_out_unplanned(held.spark)
        gone, what = missing_inputs(held.spark), name_queries(tuple(self.plans))
        for path in gone:
            text = f"{what}: input file {path} was removed before it was read; going on without it"
            self.events.publish(RunWarning(job.site, None, text))
        try:
            job.open(handle.fail)
            handle.attach(self._query_over(job, held, handle, gone))
        except BaseException:
            job.close()
            raise

    def _query_over(self, job: SiteJob, held: Checkpoint, handle: SiteQuery, gone: Sequence[str] = ()) -> SparkQuery:
        """Start Spark's query over the streams of a site, as they are read now."""
        handle.start_again = lambda: self._query_over(job, held, handle)
        is_remote = backend_of(self.spark).is_remote
        held.number_batches(by_client=is_remote and job.lists_files)
        self.spark.conf.set("spark.sql.files.ignoreMissingFiles", "true" if gone else "false")
        # Spark counts in milliseconds, and does not know the short units.
        interval_ms = max(-(-self.trigger_us // 1_000), _MIN_INTERVAL_MS if job.has_links and not self.once else 0)
        if is_remote and job.lists_files:
            job.frame()  # what is wrong with options of streams is said now
            first = job.ledger.ingested_batch + 1
            return ClientBatches(handle.run_batch, first, interval_ms / 1_000, self._name(job.site))

        def begin(run_batch: Callable[[Any, int], None]) -> StreamingQuery:
            stream = job.frame().writeStream.option("checkpointLocation", held.spark).queryName(self._name(job.site))
            stream = stream.foreachBatch(run_batch)
            if self.once and not job.lists_files:  # otherwise the job ends it
                return stream.trigger(availableNow=True).start()
            return stream.trigger(processingTime=f"{interval_ms} milliseconds").start()

        if is_remote:
            if held.is_in_store:
                raise InputError(
                    "over Spark Connect with a checkpoint in a store only files can be streams, since the server keeps "
                    "the offsets of others in the checkpoint; give --checkpoint a directory that both have mounted"
                )
            return OfferedBatches(Path(held.spark).with_name("offers"), begin, handle.run_batch)
        return begin(handle.run_batch)

    def _name(self, site: str) -> str:
        """The name of a site's streaming query: the first of its queries, and the site where there are several."""
        names = sorted(self.plans)
        queries = ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more"
        return queries if len(self.topology.site_names) == 1 else f"{queries} at {site}"

    @property
    def _disk(self) -> Disk:
        return Disk(self.topology.survives_power_cuts)

    @property
    def _digest(self) -> str:
        """What tells sites that run different plans apart; what follows a join without groups is done at one site."""
        plans = {
            name: [
                explain_text(
                    chosen.plan if has_groups(chosen.plan) or is_outer(chosen.plan) else join_plan_of(chosen.plan)
                ),
                repr(_partition(chosen)),
            ]
            for name, chosen in self.plans.items()
        }
        return hashlib.sha256(json.dumps([plans, VERSION], sort_keys=True).encode()).hexdigest()[:12]

    def _is_behind(self, versions: Versions) -> bool:
        """Whether a site has still to go over to what others run already."""
        running = latest(self.known)
        return running is not None and versions.deployment.revision < running.deployment.revision

    def _identity(self, site: str) -> dict[str, Any]:
        """What must be the same for a checkpoint to be resumed."""
        own, running = self.known.get(site), latest(self.known)
        if own is not None and self._is_behind(own):
            behind = [finish for one in own.deployment.in_force for finish in one.finishes]
            return identity_of(site, behind, self.catalogue)  # it is about to follow the others
        since = {} if running is None else _since(running)
        finishes = [finish for one in self.deployment.joins for finish in one.finishes]
        asked = [replace(finish, since=since.get(finish.query, 1)) for finish in finishes]
        return identity_of(site, asked, self.catalogue)


def _since(versions: Versions) -> dict[str, int]:
    """By query that is in force, the revision with which it began or was last replaced."""
    return {finish.query: finish.since for one in versions.deployment.in_force for finish in one.finishes}


def _partition(chosen: Chosen) -> object:
    return join_plan_of(chosen.plan).partition


@contextmanager
def _refusing(queries: Sequence[str]) -> Iterator[None]:
    """Say in a sentence what keeps a query from starting."""
    try:
        yield
    except Exception as error:
        refused = refusal(error, *queries)
        if refused is error:
            raise
        raise refused from error
