"""The handle to running queries, with the names of PySpark's `StreamingQuery`: one class for one site and for many."""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from watersmeet.errors import InputError, WatersmeetError, did_you_mean
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import MicroBatchCompleted, PlanChangeProposed, RunEnded
from watersmeet.metrics.traffic import LinkTraffic
from watersmeet.metrics.usage import Usage, usage_of
from watersmeet.plan.nodes import Plan, join_plans_of
from watersmeet.planners.choose import Chosen, choose
from watersmeet.program.site.agreement import Takeover
from watersmeet.program.site.changes import Change, Expected, QueryPlan, plan_changes
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.site.program import SiteProgram
from watersmeet.spark.apply import Applier
from watersmeet.spark.notebook import LiveView, RunEvents, RunningPlan
from watersmeet.spark.shipping import ShippingReport
from watersmeet.spark.site.query import SiteQuery
from watersmeet.stats.model import Stats
from watersmeet.stats.yaml import filled, write_stats
from watersmeet.topology.difference import Differences
from watersmeet.topology.model import Query, Stream, Table, Topology

if TYPE_CHECKING:
    from pandas import DataFrame

Named = TypeVar("Named", Stream, Table, Query)

_POLL_S = 0.2  # how long to wait for a site before the next is looked at


@dataclass(frozen=True)
class QueryHandle:
    """One query of a run."""

    name: str
    _run: "StreamingRun"

    @property
    def usage(self) -> Usage:
        """What it has taken and given since the checkpoint began."""
        return self._run.usage(self.name)

    @property
    def chosen(self) -> Chosen:
        """Its plan, who made it, and what it was expected to cost."""
        return self._run.plans[self.name]

    @property
    def plan(self) -> RunningPlan:
        """Its plan, to be printed, or drawn by `draw()`."""
        is_alone = len(self._run.plans) == 1
        return RunningPlan(self.name, self.chosen, self._run.measured_bytes_s if is_alone else {})

    def events(self, kind: str | None = None) -> "DataFrame":
        """The events about it that the checkpoint has kept, as a pandas DataFrame."""
        return self._run.events(kind, query=self.name)

    def _repr_html_(self) -> str:
        return self._run.live_view.html(self.name)

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        """Counts and state of the query, the watermarks of its streams, and the last micro-batch of its site here.

        None before the first micro-batch.
        """
        last = self._run.last_batches
        if not last:
            return None
        at = next((site for site in last if self._run.answers_here(self.name, site)), next(iter(last)))
        streams = {scan.stream for join in join_plans_of(self.chosen.plan) for scan in join.scans}
        marks = {
            name: mark for completed in last.values() for name, mark in completed.watermarks.items() if name in streams
        }
        return {"name": self.name, "batchId": last[at].batch, "watermarks": marks, **asdict(self.usage)}


class StreamingRun:
    """Queries that run, at all their sites or at one of them; the members are those of PySpark's `StreamingQuery`."""

    def __init__(
        self,
        sites: Sequence[SiteQuery],
        plans: Mapping[str, Chosen],
        directory: Path,
        events: EventBus,
        *,
        once: bool,
        applier: Applier,
        drain: bool = False,
    ) -> None:
        self.events = RunEvents(events, directory)  # everything the run reports, as it happens and afterwards
        self.live_view = LiveView(directory, lambda: self.isActive)
        self._applier = applier
        applier.begin(tuple(site.job for site in sites), dict(plans))
        self._sites = tuple(sites)
        self._directory = directory
        self._once = once
        self._drain = drain
        self._has_read_all = False
        self._is_stopped = False
        self._has_reported_end = False
        self._shipping = ShippingReport(lambda: self._programs, lambda: self.topology, lambda: self.plans)

    @property
    def plans(self) -> Mapping[str, Chosen]:
        """Of each query: the plan, who made it, what it was expected to cost."""
        return self._applier.plans

    @property
    def topology(self) -> Topology:
        """The topology as it runs now, with the queries that are in force."""
        return self._applier.deployed

    @property
    def name(self) -> str:
        """The names of its queries."""
        return ", ".join(self.plans)

    @property
    def queries(self) -> tuple[QueryHandle, ...]:
        """A handle for each query."""
        return tuple(QueryHandle(name, self) for name in self.plans)

    def query(self, name: str) -> QueryHandle:
        """The handle of one query."""
        if name not in self.plans:
            raise InputError(f"unknown query {name!r}; {did_you_mean(name, tuple(self.plans))}")
        return QueryHandle(name, self)

    @property
    def plan(self) -> RunningPlan:
        """The plan of its query, to be printed, or drawn by `draw()`; of several queries see `query(name).plan`."""
        if len(self.plans) != 1:
            raise InputError(f"the run has {len(self.plans)} plans; take that of one: run.query({self.name!r}).plan")
        return self.queries[0].plan

    def _repr_html_(self) -> str:
        """Its figures, which a notebook keeps up to date until it ends."""
        return self.live_view.html()

    @property
    def directory(self) -> Path:
        """Where the checkpoint is: of all sites, or of the one that runs here."""
        return self._directory

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that run here."""
        return tuple(site.job.site for site in self._sites)

    @property
    def id(self) -> dict[str, str]:
        """Spark's identity of the streaming query of each site, the same across restarts."""
        return {site.job.site: str(site.query.id) for site in self._sites}

    @property
    def isActive(self) -> bool:
        """Whether any site is still running."""
        return any(site.is_active for site in self._sites)

    @property
    def status(self) -> dict[str, Any]:
        """What Spark is doing for each site now."""
        return {site.job.site: dict(site.query.status) for site in self._sites}

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        """The progress of each query and, by site, of Spark's micro-batches; None before the first."""
        if not self.last_batches:
            return None
        sites = {}
        for site in self._sites:
            progress, last = site.query.lastProgress, site.job.last_batch
            sites[site.job.site] = (json.loads(progress.json) if progress else {}) | {
                "watersmeet": asdict(last) if last else None
            }
        return {"queries": {handle.name: handle.lastProgress for handle in self.queries}, "sites": sites}

    @property
    def last_batch(self) -> MicroBatchCompleted | None:
        """The last micro-batch that any site has completed."""
        recent = self.events.recent(MicroBatchCompleted)
        return recent[-1][1] if recent else None

    @property
    def last_batches(self) -> dict[str, MicroBatchCompleted]:
        """The last micro-batch that each site has completed."""
        found = ((site.job.site, site.job.last_batch) for site in self._sites)
        return {site: last for site, last in found if last is not None}

    def usage(self, query: str | None = None) -> Usage:
        """What a query, or all of them, has taken and given since the checkpoint began, at the sites that run here."""
        return usage_of(self._programs.values(), query)

    def usage_here(self, query: str | None = None) -> Usage:
        """The same since this run began."""
        before = usage_of(((site.job.program, site.ledger_at_start) for site in self._sites), query)
        return self.usage(query).since(before)

    @property
    def _programs(self) -> dict[str, tuple[SiteProgram, SiteLedger]]:
        return {site.job.site: (site.job.program, site.job.ledger) for site in self._sites}

    @property
    def micro_batches(self) -> int:
        """How many micro-batches of their own streams the sites have completed, since the checkpoint began."""
        return sum(site.job.ledger.batch + 1 for site in self._sites)

    @property
    def micro_batches_here(self) -> int:
        """The same since this run began."""
        return self.micro_batches - sum(site.ledger_at_start.batch + 1 for site in self._sites)

    def answers_here(self, query: str, site: str | None = None) -> bool:
        """Whether the answers of a query are delivered by a site that runs here, or by a certain one of them."""
        programs = [program for name, (program, _) in self._programs.items() if site in (None, name)]
        return any(query in program.answered for program in programs)

    def answer_columns(self, query: str) -> tuple[str, ...]:
        """The names of the columns of a query's answers; nothing where another site delivers them."""
        finishes = (finish for program, _ in self._programs.values() for _, finish in program.finishes)
        return next((tuple(finish.names) for finish in finishes if finish.target.name == query), ())

    @property
    def traffic(self) -> LinkTraffic:
        """What was shipped from the sites that run here, and what shipping everything would have taken."""
        return self._shipping.traffic

    @property
    def measured_bytes_s(self) -> dict[tuple[str, str], float]:
        """Bytes that links have carried for each second that streams have run."""
        return self._shipping.measured_bytes_s

    def report_expected(self) -> None:
        """Publish what the plans in force are expected to ship, now and whenever others are in force."""
        self._shipping.report(self.events)

    @property
    def observed(self) -> Stats:
        """What the sites that run here have observed of their streams, across restarts."""
        return reduce(filled, (site.job.observed for site in self._sites), Stats())

    def write_observed(self) -> Path | None:
        """Write what was observed beside the checkpoint, as YAML that `stats_file:` can name; None if nothing was."""
        stats = self.observed
        if not stats.streams:
            return None
        path = self._directory / "observed-stats.yaml"
        path.write_text(write_stats(stats), encoding="utf-8")
        return path

    def change_plan(
        self,
        query: str,
        plan: Plan | Chosen | None = None,
        *,
        planner: str | None = None,
        reason: str = "",
        expected: Expected | None = None,
    ) -> None:
        """Let a query be answered by another plan: one that is given, or that of a planner.

        It takes over at an instant of event time that all sites agree on; no answer is lost, doubled or delayed by a
        pause. A change that is asked for before another one is settled comes after it. The sites need not all run here.
        Views, subqueries and each SELECT of a UNION ALL have plans of their own, by the names that `plans` has.
        """
        before = self.query(query).chosen
        topology = self._applier.expanded(self.topology)
        asked = topology.query(query)
        if isinstance(plan, Chosen):
            chosen = plan
        elif plan is not None:
            chosen = Chosen(plan, planner or "given")
        else:
            chosen = choose(topology, replace(asked, planner=planner, plan=None), self._applier.bound(query).query)
        wanted = QueryPlan(query, chosen.plan, asked.start_us, asked.errors, planner=chosen.planner, expected=expected)
        job = self._sites[0].job
        versions = job.versions
        if not plan_changes(versions.deployment, [wanted]) and not versions.under_way:
            return
        job.request(Change((wanted,), reason=reason))
        self.events.publish(PlanChangeProposed((query,), reason, versions.under_way))
        self._applier.plans[query] = replace(chosen, problem=chosen.problem or before.problem)

    def apply(self, topology: Topology, *, reason: str = "") -> Differences:
        """Go over to another topology: queries that it has and the run has not begin, those that it lacks end.

        A query that asks for something else is replaced, and its sink goes on. All of it takes effect at one instant of
        event time, from which on rows take part in new queries; other queries do not notice. What cannot change while
        queries run is refused. The call returns when the change is asked for (see `await_changes`), and what it is.
        """
        return self._applier.apply(lambda now: topology, reason)

    def add(
        self,
        query: Query,
        *,
        streams: Sequence[Stream] = (),
        tables: Sequence[Table] = (),
        views: Sequence[Query] = (),
        reason: str = "",
    ) -> Differences:
        """Let a query begin, and streams, tables and views that it reads where they are not in the topology."""

        def with_query(now: Topology) -> Topology:
            if any(one.name == query.name for one in now.queries):
                raise InputError(f"query {query.name!r} runs already; give the new one another name, or use apply")
            return replace(
                now,
                queries=(*now.queries, query),
                streams=_with_named(now.streams, streams),
                tables=_with_named(now.tables, tables),
                views=_with_named(now.views, views),
            )

        return self._applier.apply(with_query, reason)

    def remove(self, name: str, *, reason: str = "") -> Differences:
        """Let a query end, with its last answers in its sink."""

        def without_query(now: Topology) -> Topology:
            ended = now.query(name)
            return replace(now, queries=tuple(query for query in now.queries if query is not ended))

        return self._applier.apply(without_query, reason)

    @property
    def changes(self) -> tuple[Takeover, ...]:
        """What became of the last changes of plans and queries: from which instant on, or why one was called off."""
        return self._sites[0].job.versions.log

    def await_changes(self, timeout: float | None = None) -> bool:
        """Wait until the sites that run here have gone over to all changes; whether they have, within the timeout.

        InputError if the last one was called off, with the reason.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        jobs = [site.job for site in self._sites]
        while not all(job.is_settled for job in jobs) or len({job.versions.changes for job in jobs}) > 1:
            if (failure := self.exception()) is not None:
                raise failure
            if time.monotonic() >= deadline or not self.isActive:
                return False
            time.sleep(_POLL_S / 10)
        log = jobs[0].versions.log
        if log and log[-1].refused:
            raise InputError(log[-1].refused)
        return True

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end; with a timeout in seconds, say whether it came. Raises what ended any site."""
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        try:
            while not self._has_ended(deadline):
                if time.monotonic() >= deadline:
                    return False
        except BaseException as error:
            self._end("failed", str(error))
            with suppress(WatersmeetError):  # the cause is reported, not what followed from it
                self.stop()
            raise
        self._close("stopped" if self._is_stopped else "completed")
        return True if timeout is not None else None

    def _has_ended(self, deadline: float) -> bool:
        """Look at all sites once, until a deadline or a little longer: whether there is nothing left to do at any."""

        def left() -> float:
            longest = _POLL_S if len(self._sites) == 1 else _POLL_S / 4
            return min(longest, max(0.01, deadline - time.monotonic()))

        takes_parcels = self._once and not self._is_stopped  # otherwise the sites do by themselves
        ended = [site for site in self._sites if site.await_end(left())]
        if len(ended) < len(self._sites):
            if takes_parcels:  # others may wait until they are taken
                self._take_parcels(ended)
            return False
        if not all(site.has_joined(left()) for site in self._sites):
            return False
        if takes_parcels:
            if self._take_parcels(self._sites):
                return False
            if any(site.job.awaits_parcels for site in self._sites):
                time.sleep(left())
                return False
        if self._once and not self._is_stopped and not self._has_read_all:
            self._has_read_all = True
            for site in self._sites:
                site.drain() if self._drain else site.tell_what_waits()
            return False
        return all(site.has_delivered(left()) for site in self._sites)

    def _take_parcels(self, sites: Sequence[SiteQuery]) -> bool:
        """Let sites whose own streams have ended take what has come to them; whether any site has done anything."""
        before = [site.job.ledger.number for site in self._sites]
        for site in sites:
            site.take_parcels()
        return before != [site.job.ledger.number for site in self._sites]

    def exception(self) -> WatersmeetError | None:
        """What ended the first site that failed, or None."""
        for site in self._sites:
            explained = site.exception()
            if explained is not None:
                self._end("failed", str(explained))
                if not site.is_active:  # else a micro-batch may be under way
                    with suppress(WatersmeetError):
                        site.close()
                return explained
        return None

    def stop(self) -> None:
        """Let the micro-batches under way finish, then end all sites."""
        self._is_stopped = True
        for site in self._sites:
            site.begin_to_stop()
        with ExitStack() as all_sites:  # also if one of them fails
            for site in reversed(self._sites):
                all_sites.callback(site.stop)
        self._end("stopped")

    def _close(self, reason: str) -> None:
        with ExitStack() as all_sites:
            for site in reversed(self._sites):
                all_sites.callback(site.close)
        self._end(reason)

    def _end(self, reason: Any, message: str = "") -> None:
        if not self._has_reported_end:
            self._has_reported_end = True
            self.events.publish(RunEnded(reason, message))


def _with_named(known: Sequence[Named], more: Sequence[Named]) -> tuple[Named, ...]:
    """Things with others of the same name in their place."""
    names = {query.name for query in more}
    return tuple([query for query in known if query.name not in names] + list(more))
