"""Sites as simulated peers: the very programs that Spark runs, on a virtual clock, over links that misbehave.

A site has a disk, which survives a crash (its ledger and what the ledger names), and a memory, which does not (parcels
that arrived and wait for the next turn). Sources can be read again from any batch, as on Spark.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from watersmeet.plan.nodes import Plan, join_plan_of
from watersmeet.program.operators import Purpose, compile_sites
from watersmeet.program.site.engine import (
    Arrivals,
    Ingested,
    SiteEngine,
    SiteLedger,
    Traffic,
    ingest,
    traffic_by_purpose,
)
from watersmeet.program.site.ledger import watermark
from watersmeet.program.storage.segments import TS, column
from watersmeet.program.storage.shelf import MemoryShelf
from watersmeet.program.storage.wire import index_parcel
from watersmeet.sim.internet.links import LinkModel, Network
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.sites.rows import HASH, lay_out

TURN_US = 100_000  # the execution interval, if nobody says
RETRY_US = 1_000_000  # after which a parcel that nobody acknowledged is sent again


def run_here(task: Callable[[int], list[Any]], count: int, rows: int) -> list[Any]:
    """Run a task for each number, here and now."""
    return [result for number in range(count) for result in task(number)]


@dataclass
class SimulatedSite:
    """One peer."""

    engine: SiteEngine
    kernel: Kernel
    network: Network
    lay_out: Callable[[str, pa.Table], pa.Table]
    delays_us: Mapping[str, int]
    turn_us: int
    start_us: int | None = None
    ledger: SiteLedger = field(default_factory=SiteLedger)
    answers: list[pa.Table] = field(default_factory=list)
    batches: list[dict[str, pa.Table]] = field(default_factory=list)  # what the sources have delivered so far
    inbox: list[tuple[str, str, Any]] = field(default_factory=list)
    is_up: bool = True
    turns: int = 0
    peak_rows: int = 0
    _is_due: bool = False
    _sent: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.engine.program.site

    @property
    def shelf(self) -> MemoryShelf:
        shelf = self.engine.shelf
        assert isinstance(shelf, MemoryShelf), "a simulated disk"
        return shelf

    def start(self) -> None:
        """Come up, for the first time or after a crash."""
        self.is_up = True
        self.network.connect(self.name, self._receive)
        self._deliver()
        self._wake()

    def crash(self) -> None:
        """Lose everything that is not on disk."""
        self.is_up = False
        self.network.disconnect(self.name)
        self.network.forget(self.name)
        self.inbox.clear()
        self._sent.clear()

    def feed(self, batch: dict[str, pa.Table]) -> None:
        """New rows have come to the sources of this site; they stay readable."""
        self.batches.append(batch)
        self._wake()

    def _receive(self, sender: str, data: object) -> None:
        assert isinstance(data, bytes)
        index = index_parcel(data)
        if index.number <= self.ledger.received.get(sender, 0):
            self.network.acknowledge(self.name, sender, self.ledger.received[sender])
            return
        if not any(one[0] == sender and one[2].number == index.number for one in self.inbox):
            self.inbox.append((sender, self.shelf.put_bytes(f"from-{sender}", data), index))
            self._wake()

    def _wake(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.kernel.after(self.turn_us, self._turn)

    def _turn(self) -> None:
        self._is_due = False
        if not self.is_up:
            return
        ledger = self.ledger
        for peer in self.engine.program.peers_out:
            ledger = self.engine.acknowledged(ledger, peer, self.network.acknowledged(self.name, peer))
        last = len(self.batches) - 1
        arrivals = Arrivals(
            [one for batch in self.batches[ledger.batch + 1 :] for one in self._ingest(batch, ledger)],
            self.inbox,
            batch=last if last > ledger.batch else None,
        )
        turn = self.engine.turn(ledger, arrivals)
        self.turns += 1
        self._commit(turn.ledger)
        self.answers += [self.shelf.get(path) for path in turn.answers]
        self.shelf.keep_only(frozenset((*self.ledger.paths, *(path for _, path, _ in self.inbox))))
        self._deliver()

    def _commit(self, ledger: SiteLedger) -> None:
        """What is on disk must be enough: the ledger goes through JSON, as it does on a real one."""
        self.ledger = SiteLedger.from_json(ledger.to_json())
        taken = self.ledger.received
        self.inbox = [one for one in self.inbox if one[2].number > taken.get(one[0], 0)]
        self.peak_rows = max(self.peak_rows, sum(segment.rows for segment in self.ledger.segments))
        for sender, number in taken.items():
            self.network.acknowledge(self.name, sender, number)

    def _deliver(self) -> None:
        for to, link in self.ledger.links.items():
            for parcel in link.outbox:
                if parcel.number > self._sent.get(to, 0):
                    self._sent[to] = parcel.number
                    self.network.send(self.name, to, parcel.number, self.shelf.get_bytes(parcel.path), parcel.bytes)

    def _ingest(self, batch: dict[str, pa.Table], ledger: SiteLedger) -> list[Ingested]:
        program = self.engine.program
        found = []
        for alias in program.local:
            scan = program.join.scan(alias)
            if scan.stream not in batch or not batch[scan.stream].num_rows:
                continue
            table = self.lay_out(alias, batch[scan.stream])
            table = table.filter(table.column(TS).is_valid())
            ts = column(table, TS)
            late_before = watermark(ledger.streams.get(scan.stream), self.delays_us[scan.stream])
            late = 0
            if late_before is not None:
                late = int((ts < late_before).sum())
                table = table.filter(pa.array(ts >= late_before))
            if self.start_us is not None:
                table = table.filter(pa.array(column(table, TS) >= self.start_us))
            made = ingest(program, self.engine.shelf, alias, table)
            max_ts = int(ts.max()) if len(ts) else None
            found.append(replace(made, rows=batch[scan.stream].num_rows, late=late, max_ts=max_ts))
        return found


class SimulatedSites:
    """All sites of a plan on one kernel."""

    def __init__(
        self,
        plan: Plan,
        event_times: Mapping[str, str],
        *,
        seed: int = 0,
        model_of: Callable[[str, str], LinkModel] = lambda a, b: LinkModel(latency_us=25_000),
        delays_us: Mapping[str, int] | None = None,
        turn_us: int | Mapping[str, int] = TURN_US,
        buckets: int = 1,
        start_us: int | None = None,
        hash_sql: str = HASH,
        retry_us: int | None = RETRY_US,
        answers: bool = True,
    ) -> None:
        self.kernel = Kernel(seed)
        self.network = Network(self.kernel, model_of, retry_us)
        join = join_plan_of(plan)
        delays = {scan.stream: (delays_us or {}).get(scan.stream, 0) for scan in join.scans}

        def laid_out(alias: str, rows: pa.Table) -> pa.Table:
            scan = join.scan(alias)
            return lay_out(scan, join.classes, rows, event_times[scan.stream], hash_sql)

        self.sites: dict[str, SimulatedSite] = {}
        for name, program in compile_sites(join, answers=answers).items():
            interval = turn_us if isinstance(turn_us, int) else turn_us[name]
            engine = SiteEngine(program, delays, MemoryShelf(), run_here, buckets, rows_a_bucket=1)
            site = SimulatedSite(engine, self.kernel, self.network, laid_out, delays, interval, start_us)
            self.sites[name] = site
            site.start()
        self._answering = [self.sites[join.site]] if join.site is not None else list(self.sites.values())
        self.homes = {scan.stream: home for scan, home in zip(join.scans, join.homes, strict=True)}

    def feed(self, time_us: int, tables: Mapping[str, pa.Table]) -> None:
        """Let rows of streams come to their homes at a time."""
        by_site: dict[str, dict[str, pa.Table]] = {}
        for stream, table in tables.items():
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

    def run(self, max_events: int = 2_000_000) -> int:
        """Run until nothing is left to do; returns the number of events."""
        return self.kernel.run(max_events=max_events)

    @property
    def answers(self) -> list[pa.Table]:
        """What has been answered, where answers are wanted or wherever they were made."""
        return [table for site in self._answering for table in site.answers]

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
