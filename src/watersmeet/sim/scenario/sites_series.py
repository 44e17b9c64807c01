"""Bytes over all links by the second of event time: of plans that change, beside the first and the last plan fixed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from watersmeet.adapt.decisions import Timetable
from watersmeet.metrics.events import Event, LinkCounts, PlanDecision
from watersmeet.plan.nodes import JoinPlan
from watersmeet.sim.scenario.model import SitesScenario
from watersmeet.sim.scenario.sites import simulate_sites


@dataclass
class BytesBySecond:
    """A reader of a run's events that keeps what is shipped in each second, and which plans were taken."""

    began_s: float | None = None
    by_second: dict[int, int] = field(default_factory=dict)
    taken: list[tuple[float, PlanDecision]] = field(default_factory=list)
    _sent: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def __call__(self, at: float, event: Event) -> None:
        if self.began_s is None:
            self.began_s = at
        if isinstance(event, PlanDecision) and event.accepted:
            self.taken.append((at - self.began_s, event))
        if isinstance(event, LinkCounts):
            slot, second = (event.site, event.to, event.purpose), int(at - self.began_s)
            more = event.bytes - self._sent.get(slot, 0)
            self._sent[slot] = event.bytes
            self.by_second[second] = self.by_second.get(second, 0) + more


def fixed_series(scenario: SitesScenario, plans: Mapping[str, Mapping[str, JoinPlan]]) -> dict[str, BytesBySecond]:
    """What plans that stay would ship: by name of a choice, the joins of the queries."""
    found = {}
    for name, joins in plans.items():
        found[name] = BytesBySecond()
        simulate_sites(scenario, events=found[name], decider=Timetable(joins, []))
    return found


def smoothed(series: BytesBySecond, seconds: int, over: int = 5) -> list[float]:
    """Bytes a second, as the mean of a few seconds around each."""
    counts = [series.by_second.get(second, 0) for second in range(seconds)]
    return [
        sum(part) / len(part) for part in (counts[max(0, n - over // 2) : n + over // 2 + 1] for n in range(seconds))
    ]
