"""Going over to another topology while queries run: what is different becomes one change of the deployment.

Requests come from Python (`StreamingRun.apply`) or through the checkpoint (`watersmeet apply`). One is worked on at a
time, by what is in force when those before it are settled. Binding and planning have a thread of their own; no
micro-batch waits for it.
"""

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from watersmeet.errors import InputError, WatersmeetError
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import Event, PlanChangeProposed, PlanInForce, QueryAdded, QueryRemoved, RunEnded
from watersmeet.planners.choose import Chosen, choose
from watersmeet.program.site.agreement import Versions
from watersmeet.program.site.changes import Change, QueryPlan, check_change, plan_changes
from watersmeet.spark.binding import Bound
from watersmeet.spark.catalogue import Catalogue, definitions_of
from watersmeet.spark.definitions import read_topology
from watersmeet.spark.failures import refusal
from watersmeet.spark.ingest.tables import with_table_schemas
from watersmeet.spark.planning import Planned, adapting, with_choices
from watersmeet.spark.requests import answer_request, requests_in
from watersmeet.spark.resume import with_defined, with_known_tables, with_settled
from watersmeet.topology.difference import Difference, Differences, differences, streams_read, without_names
from watersmeet.topology.model import Query, Stream, Table, Topology
from watersmeet.topology.views import outputs_of, with_outputs

if TYPE_CHECKING:
    from watersmeet.spark.site.job import SiteJob

CheckQueries = Callable[[Topology, Sequence[Query]], Planned]
_POLL_S = 0.05
NOTHING = "nothing is different"


class Applier:
    """Takes requests for another topology, and has the sites of a run go over to it."""

    def __init__(
        self, spark: SparkSession, catalogue: Catalogue, events: EventBus, check_queries: CheckQueries
    ) -> None:
        self._spark = spark
        self._catalogue = catalogue
        self._events = events
        self._check_queries = check_queries
        self._jobs: tuple[SiteJob, ...] = ()
        self._is_started = threading.Event()
        self._is_over = threading.Event()
        self._one_at_a_time = threading.Lock()
        self._asked: dict[str, Chosen] = {}  # plans that are to come
        self.plans: dict[str, Chosen] = {}
        self._thread = ThreadPoolExecutor(1, "apply")
        events.subscribe(self._note)

    def begin(self, jobs: "tuple[SiteJob, ...]", plans: dict[str, Chosen]) -> None:
        """The sites of the run have started, with these plans."""
        self._jobs, self.plans = jobs, plans
        self._is_started.set()

    def take(self, site: str, request: str) -> None:
        """Work on a request that is in the checkpoint of a site."""
        with suppress(RuntimeError):  # the run is over
            self._thread.submit(self._take, site, request)

    def _take(self, site: str, name: str) -> None:
        while not self._is_started.wait(_POLL_S):
            if self._is_over.is_set():
                return
        job = next(job for job in self._jobs if job.site == site)
        place = job.directory
        for request in (request for request in requests_in(place) if request.id == name):
            text = None
            if not job.versions.has_request(name):
                try:
                    asked = read_topology(request.topology)
                    found = self.apply(lambda now: asked, request.reason, name, job)  # noqa: B023
                    text = None if found.rows else NOTHING
                except WatersmeetError as error:
                    if self._is_over.is_set():
                        return  # it is taken at the next start
                    text = str(error)
                except Exception as error:
                    text = str(refusal(error))
            answer_request(place, name, text)

    @property
    def deployed(self) -> Topology:
        """The topology as it is deployed: with the queries that are in force."""
        return deployed_topology(self._catalogue, self._jobs[0].versions)

    def apply(
        self, edit: Callable[[Topology], Topology], reason: str = "", request: str = "", job: "SiteJob | None" = None
    ) -> Differences:
        """Have the sites go over to what becomes of the topology that is deployed; what is different.

        It waits for changes that are under way.
        """
        with self._one_at_a_time:
            at = job or self._jobs[0]
            before = at.versions.under_way
            self._await_settled(at)
            now = self.deployed
            topology = with_settled(with_known_tables(edit(now), now), now)
            topology = with_choices(self._spark, with_table_schemas(self._spark, topology))
            if topology.batch_interval_us is None:
                topology = replace(topology, batch_interval_us=now.batch_interval_us)
            found = differences(now, topology)
            if found.refused:
                raise InputError(found.refused)
            self._check_streams(at.versions, (topology.stream(name) for name in streams_read(topology)))
            topology, change, found = self._change(at.versions, topology, found, reason, request)
            if not change.queries:
                return found
            self._catalogue.ask_for(topology)
            for site_job in self._jobs:
                site_job.note_topology(topology)
            check_change(at.versions.deployment, change)
            if cause := next(filter(None, (job.cause_against(change) for job in self._jobs)), ""):
                raise InputError(cause)
            at.request(change)
            self._events.publish(PlanChangeProposed(change.queries, reason, before))
            return found

    def _await_settled(self, job: "SiteJob") -> None:
        while not job.is_settled:
            if self._is_over.is_set():
                raise InputError("the run is over")
            time.sleep(_POLL_S)

    def _check_streams(self, versions: Versions, streams: Iterable[Stream]) -> None:
        """Refuse a stream that was read before and is another one now: what was read of it is still known."""
        for after in sorted(streams, key=lambda stream: stream.name):
            before = self._catalogue.past_stream(versions, after.name)
            if before is None or isinstance(after, Table):
                continue
            if after.is_derived and before.types != after.types:
                raise InputError(
                    f"view {after.name!r}: its rows have the columns {_columns(before)} and would have "
                    f"{_columns(after)}, while some that were made before are still read; give the new one another name"
                )
            if (before.types, before.site) != (after.types, after.site):
                raise InputError(
                    f"{'view' if after.is_derived else 'stream'} {after.name!r} was read before with another schema or "
                    "at another site; give it another name, or stop and begin anew with --fresh"
                )

    def _change(
        self, versions: Versions, topology: Topology, found: Differences, reason: str, request: str
    ) -> tuple[Topology, Change, Differences]:
        """The change that makes a topology be in force, that topology, and the differences with those of plans."""
        topology = self._with_tables_to_read(versions, topology, found)
        self._catalogue.give(topology)
        plans, rows = [], list(found.rows)
        streams: dict[str, str] = {}
        if found.begun:
            asked = [topology.query(name) for name in (*found.added, *found.replaced)]
            planned = self._check_queries(topology, asked)
            whole, defined = planned.topology, definitions_of(topology, planned.asked)
            derived = [stream for stream in whole.streams if stream.is_derived]
            self._check_streams(versions, derived)
            self._catalogue.give(whole)
            _, first = adapting(whole, planned.bounds, planned.plans)
            for name in found.begun:
                chosen, query = first[name], defined[name].query
                text = self._catalogue.remember(defined[name], planned.bounds)
                plans.append(
                    QueryPlan(name, chosen.plan, query.start_us, query.errors, True, chosen.planner, definition=text)
                )
                rows.append(Difference("plan", name, "new", f"by {chosen.planner}"))
                self._asked[name] = chosen
            read = {source.stream for name in found.begun for source in planned.bounds[name].query.sources}
            read |= {asked.output.target.name for asked in planned.asked if asked.output.target.is_stream}
            streams = self._catalogue.stream_texts(read)
        expanded, others = self.expanded(topology), []
        for name in self.selects_of(topology, found.replanned):
            if name in found.begun:
                continue
            query = expanded.query(name)
            chosen = choose(expanded, query, self.bound(name).query)
            others.append(QueryPlan(name, chosen.plan, query.start_us, query.errors, planner=chosen.planner))
            self._asked[name] = chosen
        changed = plan_changes(versions.deployment, others)
        rows += [Difference("plan", plan.query, "changed", f"by {plan.planner}") for plan in changed]
        change = Change((*plans, *changed), found.ended, reason, streams, request)
        return topology, change, replace(found, rows=tuple(rows))

    def _with_tables_to_read(self, versions: Versions, topology: Topology, found: Differences) -> Topology:
        """The topology with names for tables that are read for queries that begin: what was read before may be old.

        A table that nobody has read yet has its own name.
        """
        known = {scan.stream for scan in versions.deployment.scans}
        names = {table.name: _free_name(table.name, known) for table in topology.tables}
        read: dict[str, set[str]] = {}  # by query or view whose SELECTs begin
        plain = without_names(topology)
        for asked in outputs_of(plain, plain.queries):
            if set(found.begun) & {name for name, _ in asked.output.branches}:
                read.setdefault(asked.owner.name, set()).update(asked.output.streams & names.keys())

        def named(queries: Iterable[Query]) -> tuple[Query, ...]:
            return tuple(
                replace(query, read_as=tuple((name, names[name]) for name in sorted(read[query.name])))
                if query.name in read
                else query
                for query in queries
            )

        return replace(topology, queries=named(topology.queries), views=named(topology.views))

    def expanded(self, topology: Topology) -> Topology:
        """A topology with derived streams as they are here, and a query for each SELECT: what planners need."""
        streams = self._catalogue.topology.streams
        schemas = {stream.name: stream.schema for stream in streams if stream.is_derived and stream.schema is not None}
        return with_outputs(topology, outputs_of(topology, topology.queries), schemas)

    def selects_of(self, topology: Topology, queries: Iterable[str]) -> tuple[str, ...]:
        """The names under which the SELECTs of some queries, and of the views that they read, have their plans."""
        asked = outputs_of(topology, [topology.query(name) for name in queries])
        return tuple(name for entry in asked for name, _ in entry.output.branches)

    def bound(self, query: str) -> Bound:
        """How a query that is in force is bound to the schemas of its streams."""
        finishes = (finish for joined in self._jobs[0].versions.deployment.in_force for finish in joined.finishes)
        return self._catalogue.bounds[next(finish.definition for finish in finishes if finish.query == query)]

    def _note(self, at: float, event: Event) -> None:
        """Know the plans of queries as they come and go."""
        match event:
            case QueryAdded(query=query) | PlanInForce(query=query):
                if query in self._asked:
                    self.plans[query] = self._asked.pop(query)
                elif isinstance(event, QueryAdded) and self._is_started.is_set():
                    self.plans[query] = self._asked_elsewhere(query)
            case QueryRemoved(query=query):
                self.plans.pop(query, None)
            case RunEnded():
                self._is_over.set()
                self._thread.shutdown(wait=False, cancel_futures=True)

    def _asked_elsewhere(self, query: str) -> Chosen:
        """The plan of a query that another process has added, as the ledger has it."""
        plans = (plan for entry in self._jobs[0].versions.log if not entry.refused for plan in entry.change.plans)
        latest = [plan for plan in plans if plan.query == query and plan.is_fresh][-1]
        return Chosen(latest.plan, latest.planner)


def _free_name(table: str, known: Collection[str]) -> str:
    names = itertools.chain([table], (f"{table}~{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in known)


def _columns(stream: Stream) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in stream.types.items())


def deployed_topology(catalogue: Catalogue, versions: Versions) -> Topology:
    """A topology with the queries that are in force in a deployment, and the views that they read."""
    finishes = [finish for joined in versions.deployment.in_force for finish in joined.finishes]
    given, known = catalogue.given, catalogue.topology
    named = {stream.name for stream in given.sources}
    streams = (stream for stream in known.streams if stream.name not in named and not stream.is_derived)
    tables = (table for table in known.tables if table.name not in named and not table.read_of)
    whole = replace(given, queries=(), streams=(*given.streams, *streams), tables=(*given.tables, *tables))
    return with_defined(whole, (catalogue.defined(finish.definition) for finish in finishes))
