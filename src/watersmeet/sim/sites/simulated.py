"""All sites of a deployment on one kernel: fed, crashed and changed at instants, until nothing happens any more."""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from watersmeet.plan.nodes import Plan
from watersmeet.program.operators import Purpose
from watersmeet.program.site.adoption import first_ledger
from watersmeet.program.site.agreement import DecidedBy, Judge, Takeover, accept
from watersmeet.program.site.changes import Change
from watersmeet.program.site.deployment import deployed, programs_of, shared_joins
from watersmeet.program.site.engine import SiteEngine
from watersmeet.program.site.ledger import Traffic
from watersmeet.program.site.nearest import Distance
from watersmeet.program.site.outbox import traffic_by_purpose
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.streams import StreamScan
from watersmeet.program.storage.shelf import MemoryShelf
from watersmeet.sim.internet.links import LinkModel, Network
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.sites.rows import HASH, DuckDerivation, DuckEvaluator, lay_out, spark_type
from watersmeet.sim.sites.site import (
    BATCH_INTERVAL_US,
    RETRY_US,
    CommitCrash,
    Completed,
    Observer,
    SimulatedDisk,
    SimulatedSite,
    TableSource,
    run_here,
)
from watersmeet.topology.links import Link


def _distance(model: LinkModel) -> Distance:
    return Link(latency_us=model.latency_us, bandwidth_bps=model.bandwidth_bps).distance


class SimulatedSites:
    """All sites of one or more queries on one kernel."""

    def __init__(
        self,
        plans: Plan | Mapping[str, Plan],
        event_times: Mapping[str, str],
        *,
        seed: int = 0,
        model_of: Callable[[str, str], LinkModel] = lambda a, b: LinkModel(latency_us=25_000),
        delays_us: Mapping[str, int] | None = None,
        interval_us: int | Mapping[str, int] = BATCH_INTERVAL_US,
        aligned: bool = False,
        completed: Completed | None = None,
        buckets: int = 1,
        start_us: int | Mapping[str, int | None] | None = None,
        hash_sql: str = HASH,
        retry_us: int | None = RETRY_US,
        answers: bool = True,
        errors: Mapping[str, str] | None = None,
        homes: Mapping[str, str] | None = None,
        sites: Sequence[str] = (),
        changes: bool = False,
        history: bool = True,
        form: DecidedBy = DecidedBy.POINT_TO_POINT,
        slack_us: int = 0,
        judge: Judge = accept,
        observer: Observer | None = None,
        tables: "Mapping[str, TableSource | pa.Table] | None" = None,
        insist_us: int | None = None,
        shares: bool = True,
        crashes: CommitCrash | None = None,
        disks: Callable[[str], SimulatedDisk] | None = None,
        distance_of: Callable[[str, str], Distance] | None = None,
    ) -> None:
        """`changes` lets plans and queries change, at these sites and streams too; `history` without waiting.

        Without `shares` every query with groups has partial records of its own. How near sites are to each other
        follows from the models of links if `distance_of` does not say.
        """
        self.kernel = Kernel(seed)
        self.network = Network(self.kernel, model_of, retry_us)
        if observer is not None:
            self.network.observer = lambda sender, receiver, size, delay_us: observer.transferred(
                sender, receiver, size, delay_us / 1e6, self.kernel.now_us
            )
        by_query: Mapping[str, Plan] = plans if isinstance(plans, Mapping) else {"q": plans}
        starts = start_us if isinstance(start_us, Mapping) else dict.fromkeys(by_query, start_us)
        joins = shared_joins(by_query, starts, errors)
        deployment = deployed(joins, sites, history=history and changes, answers=answers, shares=shares)
        programs = programs_of(deployment, answers=answers)
        local = {scan.stream: site for site, program in programs.items() for scan in program.sources}
        self.homes = {**(homes or {}), **local}
        delays = {stream: (delays_us or {}).get(stream, 0) for stream in self.homes}

        def laid_out(scan: StreamScan, rows: pa.Table) -> pa.Table:
            return lay_out(scan, rows, "" if scan.is_table else event_times[scan.stream], hash_sql)

        self._schemas: dict[str, pa.Schema] = {}  # of streams, as far as rows have come to them

        def type_of(stream: str, name: str) -> str:
            schema = self._schemas.get(stream)
            return "" if schema is None or name not in schema.names else spark_type(schema.field(name).type)

        sources = {
            name: TableSource(_always(one)) if isinstance(one, pa.Table) else one
            for name, one in (tables or {}).items()
            if name in self.homes
        }

        self.queries = tuple(by_query)
        self.sites: dict[str, SimulatedSite] = {}
        for name, program in programs.items():
            interval = interval_us if isinstance(interval_us, int) else interval_us[name]
            disk = None if disks is None else disks(name)
            shelf = MemoryShelf() if disk is None else disk.shelf
            engine = SiteEngine(
                *(program, delays, shelf, run_here, DuckEvaluator(shelf), buckets),
                rows_a_bucket=1,
                derive=DuckDerivation(shelf, hash_sql),
                slack_us=slack_us,
                judge=judge,
                distances={
                    other: distance_of(name, other) if distance_of else _distance(model_of(name, other))
                    for other in programs
                    if other != name
                },
                type_of=type_of,
            )
            own = {table: source for table, source in sources.items() if self.homes[table] == name}
            site = SimulatedSite(
                *(engine, self.kernel, self.network, laid_out, delays, interval, own, aligned, completed),
                observer,
                insist_us,
                crashes,
                disk,
            )
            self.sites[name] = site
            if changes:
                site.ledger = first_ledger(shelf, deployment, form)
                if disk is not None:
                    disk.commit(site, site.ledger)
        for site in self.sites.values():
            site.start()

    def feed(self, time_us: int, tables: Mapping[str, pa.Table]) -> None:
        """Let rows of streams come to their homes at a time."""
        by_site: dict[str, dict[str, pa.Table]] = {}
        for stream, table in tables.items():
            self._schemas[stream] = table.schema
            by_site.setdefault(self.homes[stream], {})[stream] = table
        for site, batch in sorted(by_site.items()):
            self.kernel.at(time_us, self.sites[site].feed, batch)

    def crash(self, site: str, time_us: int, down_us: int) -> None:
        """Let a site crash at a time and come back later."""

        def down() -> None:
            if self.sites[site].is_up:
                self.sites[site].crash()
                self.kernel.after(down_us, self.sites[site].start)

        self.kernel.at(time_us, down)

    def change(self, time_us: int, change: Change, site: str | None = None) -> None:
        """Ask for a change at a time, at a site."""
        self.kernel.at(time_us, self.sites[site or min(self.sites)].change, change)

    def run(self, max_events: int = 2_000_000) -> int:
        """Run until nothing is left to do; returns the number of events."""
        return self.kernel.run(max_events=max_events)

    def drain(self) -> None:
        """Take the end of the input for the end of time, and run until nothing is left to do."""
        for _, site in sorted(self.sites.items()):
            site.end()
        self.run()

    def answers(self, query: str | None = None) -> list[pa.Table]:
        """The answers of a query, or of the only one, as its sinks have them."""
        name = self.queries[0] if query is None else query
        return [
            table for _, site in sorted(self.sites.items()) for _, table in sorted(site.answers.get(name, {}).items())
        ]

    @property
    def takeovers(self) -> tuple[Takeover, ...]:
        """What became of the last changes, by the site that knows most of them."""
        return self.changes_after(0)

    def changes_after(self, count: int) -> tuple[Takeover, ...]:
        """What became of the changes after so many, by the site that knows most of them."""
        known = [site.engine.versions(site.ledger) for site in self.sites.values() if site.ledger.versions]
        return max(known, key=lambda one: one.changes).changes_after(count) if known else ()

    @property
    def programs(self) -> dict[str, SiteProgram]:
        """What every site does."""
        return {name: site.engine.program for name, site in self.sites.items()}

    @property
    def traffic(self) -> dict[tuple[str, str], dict[Purpose, Traffic]]:
        """What was shipped over each link, by purpose."""
        return {
            (name, to): purposes
            for name, site in sorted(self.sites.items())
            for to, purposes in traffic_by_purpose(site.engine.program, site.ledger).items()
        }

    @property
    def flows(self) -> dict[tuple[str, str, str], Traffic]:
        """What was shipped over each link, by flow."""
        return {
            (name, to, flow): traffic
            for name, site in sorted(self.sites.items())
            for to, link in sorted(site.ledger.links.items())
            for flow, traffic in sorted(link.traffic.items())
        }

    @property
    def bytes_shipped(self) -> int:
        return sum(count.bytes for purposes in self.traffic.values() for count in purposes.values())

    @property
    def bytes_central(self) -> int:
        """What shipping every stream whole to the query's site would have taken, by a sample of each batch."""
        return sum(count.bytes for site in self.sites.values() for count in site.ledger.central.values())


def _always(rows: pa.Table) -> Callable[[int], pa.Table]:
    return lambda now_us: rows
