"""Starting the sites of a run: their checkpoints, versions of plans, links, sinks, and Spark's query over each."""

import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from watersmeet import __version__
from watersmeet.adapt.controller import GoOver
from watersmeet.adapt.decisions import Decisions
from watersmeet.adapt.exchange import SiteDecisions
from watersmeet.errors import CheckpointMismatch, InputError, name_queries
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.describe import query_event, topology_event
from watersmeet.metrics.events import Event, PlanInForce, QueryAdded, RunEnded, RunStarted, RunWarning
from watersmeet.metrics.jsonl import keep_events
from watersmeet.plan.explain import explain_text
from watersmeet.plan.nodes import has_groups, is_outer, join_plan_of, with_join
from watersmeet.planners.choose import Chosen
from watersmeet.program.site.adoption import first_ledger, program_of, with_finishes
from watersmeet.program.site.agreement import Versions, proposer_of
from watersmeet.program.site.changes import Change, QueryPlan, plan_changes
from watersmeet.program.site.deployment import Deployment, first_joins, programs_of
from watersmeet.program.site.engine import read_versions
from watersmeet.program.storage.wire import VERSION
from watersmeet.spark.adapting import Observations, PlanAdapter, SitePlanAdapter
from watersmeet.spark.apply import Applier
from watersmeet.spark.backend.protocol import backend_of
from watersmeet.spark.binding import Bound
from watersmeet.spark.catalogue import Catalogue, definitions_of
from watersmeet.spark.changes import identity_of, plans_in_force
from watersmeet.spark.checkpoint import Checkpoint
from watersmeet.spark.connect.batches import ClientBatches
from watersmeet.spark.connect.offered import OfferedBatches
from watersmeet.spark.deliver.sinks import FileWriter, open_sink
from watersmeet.spark.deliver.writer import Writer
from watersmeet.spark.durable import Disk
from watersmeet.spark.fresh import refuse_answered_sink
from watersmeet.spark.handle import StreamingRun
from watersmeet.spark.ingest.file_columns import unknown_column
from watersmeet.spark.ingest.nanoseconds import nanosecond_warning
from watersmeet.spark.ingest.new_files import FILE_FORMATS
from watersmeet.spark.ingest.source_log import listed_elsewhere, missing_inputs, root_of, strike_out_unplanned
from watersmeet.spark.links.board import Shown, open_board
from watersmeet.spark.links.transport import open_transport, seal_of
from watersmeet.spark.planning import Planned, check_queries, refusing
from watersmeet.spark.resume import current_definitions, latest, note_topology
from watersmeet.spark.site.job import SiteJob
from watersmeet.spark.site.query import SiteQuery, SparkQuery
from watersmeet.spark.site.settings import SiteSettings
from watersmeet.topology.model import Query, Topology
from watersmeet.topology.views import Asked

_MIN_SLACK_US = 500_000
_SLACK_HERE, _SLACK_ELSEWHERE = 1, 3  # triggers of event time that may go by while sites agree, in a process or several
_MIN_INTERVAL_MS = 50  # between micro-batches of a site that has links, where no trigger is given


@dataclass(frozen=True, eq=False)
class Launch:
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
    asked: tuple[Asked, ...] = ()

    @cached_property
    def catalogue(self) -> Catalogue:
        """The queries that are started, under the definitions that checkpoints have of them."""
        catalogue = Catalogue(self.spark, self.topology, self.given)
        names = current_definitions(self.known)
        defined = definitions_of(self.given or self.topology, self.asked)
        for name, bound in self.bounds.items():
            catalogue.know(names.get(name, name), defined[name], bound)
        for versions in self.known.values():
            catalogue.resume(versions)
        return catalogue

    @cached_property
    def applier(self) -> Applier:
        def check(topology: Topology, queries: Sequence[Query]) -> Planned:
            return check_queries(self.spark, topology, queries, once=False, site=self.only, kept={})

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
        if len(self.topology.site_names) == 1:
            return lambda: None
        board = open_board(self.topology, "asked")
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
                self._warn_of_fixed_plan(query.name)
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
        if self.decisions is None:
            self.events.subscribe(self._warn_if_added_with_adapt)
        elif not (self.alone and self.once):  # other sites may come after the end
            self._adapt(run, self.decisions, [site_query.job for site_query in started])
        return run

    def _adapt(self, run: StreamingRun, decisions: Decisions, jobs: Sequence[SiteJob]) -> None:
        """Let the controller have plans changed; planners go on from the plan that a checkpoint has."""
        job, heard = jobs[0], self.observations
        deployment = job.versions.deployment
        for query, join in first_joins(deployment).items() if deployment.revision > 1 else ():
            decisions.go_on_with(query, join)

        def go_over(change: GoOver) -> None:
            now = run.query(change.query).chosen
            chosen = Chosen(with_join(now.plan, change.join), now.planner, problem=change.problem)
            run.change_plan(change.query, chosen, reason=change.because, expected=change.expected)

        def begin(name: str) -> None:
            topology = self.applier.expanded(self.applier.deployed)
            query, parsed = topology.query(name), self.applier.bound(name).query
            plan = first_joins(job.versions.deployment)[name]
            if topology.adapt_of(query).is_on and not decisions.begin(topology, query, parsed, plan):
                self._warn_of_fixed_plan(name)

        if self.alone:
            part = SiteDecisions(job.site, decisions, uuid.uuid4().hex[:8])
            self.events.subscribe(SitePlanAdapter(part, heard, job, go_over, self.events.publish, begin))
        else:
            self.events.subscribe(PlanAdapter(decisions, heard, go_over, self.events.publish, jobs, begin))

    def _warn_if_added_with_adapt(self, at: float, event: Event) -> None:
        if isinstance(event, QueryAdded):
            now = self.applier.deployed
            if any(query.name == event.query and now.adapt_of(query).is_on for query in now.queries):
                text = f"query {event.query!r}: its plan stays as it is although it has adapt, since no query had when "
                self.events.publish(RunWarning(None, event.query, f"{text}the run started; start it again"))

    def _warn_of_fixed_plan(self, query: str) -> None:
        text = (
            f"query {query!r}: its plan stays as it is although it has adapt; that needs streams at several sites with "
            "known rates, and no ROWS window of rows that an outer join keeps"
        )
        self.events.publish(RunWarning(None, query, text))

    def _ask_for_new_plans(self, started: Sequence[SiteQuery]) -> None:
        """Where a checkpoint goes on with other plans than are chosen now, go over to these.

        Sites finish changes of queries while they start: a plan for what a query asked for before is not a plan of it.
        """
        versions = started[0].job.versions
        proposer = proposer_of(versions.deployment)
        job = next((handle.job for handle in started if handle.job.site == proposer), None)
        waiting = versions.proposal is not None or versions.queue
        in_force = first_joins(versions.deployment)
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
        change = Change(changed, reason="it was started with another plan")
        try:
            job.request(change)
        except InputError as error:
            self.events.publish(RunWarning(None, None, f"plans stay as they were: {error}"))

    def _query_plan(self, name: str) -> QueryPlan:
        query, chosen = self.topology.query(name), self.plans[name]
        return QueryPlan(name, chosen.plan, query.start_us, query.errors, planner=chosen.planner)

    def _start_site(self, site: str) -> SiteQuery:
        queries, topology = tuple(self.plans), self.topology
        is_shared = not backend_of(self.spark).is_local
        with ExitStack() as undo, refusing(queries):
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
                distances={
                    site_name: topology.link(site, site_name).distance
                    for site_name in topology.site_names
                    if site_name != site
                },
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
        names = current_definitions(self.known)
        queries = {name: catalogue.text_of(names.get(name, name)) for name in self.plans}
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
        finishes = [finish for joined in self.deployment.joins for finish in joined.finishes]
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
            self._refuse_moved(job, held)
            job.open(handle.fail)
            handle.attach(self._query_over(job, held, handle, gone))
        except BaseException:
            job.close()
            raise

    def _refuse_moved(self, job: SiteJob, held: Checkpoint) -> None:
        """Refuse streams whose files Spark lists and that are in another directory now: it would read them again."""
        read = [scan.stream for scan in job.program.sources if not scan.is_table]
        sources = {name: self.topology.stream(name).source for name in read}
        roots = {
            name: root_of(source.path)
            for name, source in sources.items()
            if source is not None and source.format in FILE_FORMATS and source.path
            if name in job.ledger.streams and job.ledger.streams[name].rows
        }
        for name, before in sorted(listed_elsewhere(held.spark, roots).items()) if not job.lists_files else ():
            raise CheckpointMismatch(
                f"stream {name!r}: its files are in {roots[name]} now, and those that were read were elsewhere (such "
                f"as {before}); Spark, which lists them, would read all of them again: let the old path lead to them "
                "(a symbolic link does), or begin anew with --fresh"
            )

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
            behind = [finish for joined in own.deployment.in_force for finish in joined.finishes]
            return identity_of(site, behind, self.catalogue)  # it is about to follow the others
        since = {} if running is None else _since(running)
        finishes = [finish for joined in self.deployment.joins for finish in joined.finishes]
        asked = [replace(finish, since=since.get(finish.query, 1)) for finish in finishes]
        return identity_of(site, asked, self.catalogue)


def _since(versions: Versions) -> dict[str, int]:
    """By query that is in force, the revision with which it began or was last replaced."""
    return {finish.query: finish.since for joined in versions.deployment.in_force for finish in joined.finishes}


def _partition(chosen: Chosen) -> object:
    return join_plan_of(chosen.plan).partition
