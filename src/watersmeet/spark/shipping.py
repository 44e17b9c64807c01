"""Bytes on links beside what the plans in force are expected to ship, with micro-batches as they have come."""

from collections.abc import Callable, Mapping

from watersmeet.cost.costs import Cost
from watersmeet.metrics.describe import shipping_event
from watersmeet.metrics.events import Event, PlanInForce, SiteProgramInForce
from watersmeet.metrics.expected import costs_in_force, planned_rates
from watersmeet.metrics.traffic import LinkTraffic
from watersmeet.planners.choose import Chosen, estimate
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.site.program import SiteProgram
from watersmeet.spark.notebook import RunEvents
from watersmeet.topology.model import Topology


class ShippingReport:
    """What the sites that run here have shipped, and what their plans were expected to ship."""

    def __init__(
        self,
        programs: Callable[[], Mapping[str, tuple[SiteProgram, SiteLedger]]],
        topology: Callable[[], Topology],
        plans: Callable[[], Mapping[str, Chosen]],
    ) -> None:
        self._programs = programs
        self._topology = topology
        self._plans = plans
        self._expected: tuple[int, dict[str, Cost]] = (-1, {})  # for how many micro-batches they were computed

    @property
    def traffic(self) -> LinkTraffic:
        """What was shipped from the sites that run here, and what shipping everything would have taken."""
        return LinkTraffic.of(self._topology(), self._programs(), *self._estimate())

    @property
    def measured_bytes_s(self) -> dict[tuple[str, str], float]:
        """Bytes that links have carried for each second that streams have run."""
        seconds = self._estimate()[1]
        found: dict[tuple[str, str], float] = {}
        for row in self.traffic.rows if seconds else ():
            link = row.origin, row.to
            found[link] = found.get(link, 0.0) + row.traffic.bytes / seconds
        return found

    def _estimate(self) -> tuple[dict[str, Cost] | None, float]:
        """What the plans are expected to cost with micro-batches as they have come, and how long streams have run.

        The time is known from the rows that have come at the rates that were planned with.
        """
        known = planned_rates(self._topology(), self._plans())
        ledgers = [ledger for _, ledger in self._programs().values()]
        read = {name: state.rows for ledger in ledgers for name, state in ledger.streams.items()}
        rates = {name: known[name] for name in read if name in known}
        batches = max((ledger.batch + 1 for ledger in ledgers), default=0)
        seconds = sum(read[name] for name in rates) / max(sum(rates.values()), 1e-9)
        if not batches or not seconds:
            return None, 0.0
        if self._expected[0] != batches:
            self._expected = (batches, self._costs(seconds / batches))
        return self._expected[1] or None, seconds

    def _costs(self, batch_interval_s: float | None = None) -> dict[str, Cost]:
        """By join in force, what its plan is expected to cost."""
        programs = [program for program, _ in self._programs().values()]
        return costs_in_force(self._plans(), programs, lambda chosen: estimate(chosen, batch_interval_s))

    def report(self, events: RunEvents) -> None:
        """Publish what the plans in force are expected to ship, now and whenever others are in force."""

        def report() -> None:
            programs = {site: program for site, (program, _) in self._programs().items()}
            expected = shipping_event(planned_rates(self._topology(), self._plans()), self._costs(), programs)
            if expected is not None:
                events.publish(expected)

        def read(at: float, event: Event) -> None:
            if isinstance(event, PlanInForce | SiteProgramInForce):
                report()

        report()
        events.subscribe(read)
