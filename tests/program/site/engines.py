"""The engines of some sites without a network: who gets which parcel when is up to the test."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from watersmeet.plan.nodes import Plan
from watersmeet.program.site.deployment import overlay, shared_joins
from watersmeet.program.site.engine import Arrivals, SiteEngine
from watersmeet.program.site.ingest import Ingest
from watersmeet.program.site.ledger import Ingested, SiteLedger
from watersmeet.program.storage.shelf import MemoryShelf
from watersmeet.program.storage.wire import index_parcel
from watersmeet.query.bags import Bag, bag_of
from watersmeet.sim.sites.rows import DuckEvaluator, lay_out
from watersmeet.sim.sites.site import run_here

QUERY = "q"


class Engines:
    """The engine and the ledger of every site of some queries, or of one named q; event times are columns `ts`."""

    def __init__(
        self,
        plans: Plan | Mapping[str, Plan],
        delay_us: int = 0,
        starts_us: Mapping[str, int | None] | None = None,
        buckets: int = 1,
        errors: Mapping[str, str] | None = None,
    ) -> None:
        by_query: Mapping[str, Plan] = plans if isinstance(plans, Mapping) else {QUERY: plans}
        programs = overlay(shared_joins(by_query, starts_us or {}, errors))
        delays = {scan.stream: delay_us for program in programs.values() for scan in program.streams}
        self.shelves = {name: MemoryShelf() for name in programs}
        self.engines = {
            name: SiteEngine(program, delays, shelf, run_here, DuckEvaluator(shelf), buckets=buckets, rows_a_bucket=1)
            for (name, program), shelf in zip(programs.items(), self.shelves.values(), strict=True)
        }
        self.ledgers = dict.fromkeys(self.engines, SiteLedger())

    def ingested(self, site: str, stream: str, rows: pa.Table, late_before: int | None = None) -> Ingested:
        """New rows of a stream, filed."""
        program = self.engines[site].program
        scan = next(scan for scan in program.streams if scan.stream == stream)
        return Ingest(program, self.shelves[site], scan)(lay_out(scan, rows, "ts"), late_before)

    def ingest(self, site: str, rows: Mapping[str, pa.Table]) -> None:
        """Take new rows of streams into the ledger of their site; none is late."""
        ledger = self.ledgers[site]
        found = [self.ingested(site, stream, table) for stream, table in rows.items()]
        self.ledgers[site] = self.engines[site].ingest(ledger, ledger.ingested_batch + 1, found)

    def run(
        self,
        site: str,
        rows: Mapping[str, pa.Table] | None = None,
        parcels: Sequence[tuple[str, bytes]] = (),
        declared: Mapping[str, int] | None = None,
    ) -> bool:
        """A micro-batch of a site; whether it had anything to do. The ledger goes through JSON, as on a disk."""
        engine, before = self.engines[site], self.ledgers[site]
        if rows:
            self.ingest(site, rows)
        shelf = self.shelves[site]
        came = [(sender, shelf.put_bytes("parcel", data), index_parcel(data)) for sender, data in parcels]
        ledger = engine.run(SiteLedger.from_json(self.ledgers[site].to_json()), Arrivals(came, declared or {}))
        self.ledgers[site] = ledger
        return replace(ledger, number=before.number) != before

    def parcels(self, sender: str, to: str) -> list[tuple[str, bytes]]:
        """All that is in an outbox."""
        outbox = self.ledgers[sender].links[to].outbox
        return [(sender, self.shelves[sender].get_bytes(parcel.path)) for parcel in outbox]

    def answers(self, query: str = QUERY) -> Bag:
        """The answers of a query that wait for its sink, which is all of them."""
        found = Bag()
        for site, ledger in self.ledgers.items():
            for one in ledger.undelivered.get(query, ()):
                for path in one.paths:
                    found += bag_of(self.shelves[site].get(path).select([name for name, _ in one.columns]))
        return found
