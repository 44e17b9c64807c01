"""When what a plan makes is made: how long rows wait for micro-batches and links until they are in a flow at a site."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from watersmeet.program.operators import Form, Gather, Join, JoinProgram, Operator, Probe, Semijoin, Ship
from watersmeet.topology.model import Topology


@dataclass
class Timing:
    """The micro-batches of sites in an interval, by the flows that come and go in them."""

    site: str | None  # where answers are wanted
    aliases: Sequence[str]
    topology: Topology
    programs: Mapping[str, JoinProgram]
    made_at: Mapping[str, tuple[str, Operator]]  # by flow: the site that makes it, and by what
    ships: Sequence[tuple[str, Ship]]  # each with the site that sends
    batch_interval_s: Mapping[str, float]
    reaction_s: float
    _ready_s: dict[tuple[str, str], float] = field(default_factory=dict)
    _moments_of: dict[tuple[str, str], frozenset[float]] = field(default_factory=dict)
    _started: dict[str, Sequence[float]] = field(default_factory=dict)

    def made_in(self, flow: str, site: str) -> frozenset[int]:
        """In which micro-batches of an interval a site ships something of a flow, by number."""
        starts = self._starts(site)
        moments = {moment % self.batch_interval_s[site] for moment in self._moments(flow, site)}
        return frozenset(max(int(np.searchsorted(starts, moment, side="right")) - 1, 0) for moment in moments)

    def _starts(self, site: str) -> Sequence[float]:
        """When the micro-batches of an interval begin at a site."""
        if site not in self._started:
            moments = {
                moment
                for origin, ship in self.ships
                if origin == site
                for moment in self._moments(ship.flow.name, site)
            }
            self._started[site] = self._batches(moments, site)
        return self._started[site]

    def delay_s(self) -> float:
        """The longest path from a new row to an answer: batch intervals and links, whatever has to be waited for."""
        delays = [0.0]
        for site, program in self.programs.items():
            for operator in program.operators:
                if operator.out.form is Form.RESULT:
                    made = self._when(operator.out.name, site)
                    wanted = self.site
                    delays.append(made if wanted in (None, site) else made + self._trip(site, wanted or ""))
        return max(delays)

    def _when(self, flow: str, site: str) -> float:
        """How long after a row has come what it leads to in a flow is at a site."""
        if (flow, site) in self._ready_s:
            return self._ready_s[flow, site]
        self._ready_s[flow, site] = inf  # nothing waits for itself
        plain = flow.removeprefix("bloom ")
        if plain in self.made_at and self.made_at[plain][0] == site and plain == flow:
            operator = self.made_at[plain][1]
            ready = max(self._when(flow_in.name, site) for flow_in in operator.inputs)
        else:
            origins = [origin for origin, ship in self.ships if ship.arrives_as.name == flow and ship.to == site]
            ready = max((self._when(plain, origin) + self._trip(origin, site) for origin in origins), default=0.0)
            if not origins and plain in self.aliases:
                ready = self.batch_interval_s[site]
        self._ready_s[flow, site] = ready
        return ready

    def batches(self, flow: str, site: str) -> int:
        """In how many micro-batches of an interval a site makes something of a flow."""
        return len(self._batches(self._moments(flow, site), site))

    def _batches(self, moments: Iterable[float], site: str) -> list[float]:
        """When a site begins micro-batches for what happens at some moments of an interval: what is close, in one."""
        interval_s = self.batch_interval_s[site]
        starts: list[float] = []
        for moment in sorted(moment % interval_s for moment in moments):
            if not starts or moment > starts[-1] + self.reaction_s:
                starts.append(moment)
        return starts[: max(1, int(interval_s / max(self.reaction_s, 1e-3)))] or [0.0]

    def _moments(self, flow: str, site: str) -> frozenset[float]:
        """How long after the rows of an interval something is made in a flow at a site: each time is a message."""
        if (flow, site) in self._moments_of:
            return self._moments_of[flow, site]
        self._moments_of[flow, site] = frozenset()
        plain = flow.removeprefix("bloom ")
        if plain == flow and flow in self.made_at and self.made_at[flow][0] == site:
            operator = self.made_at[flow][1]
            found = frozenset(moment for name in _leading(operator) for moment in self._moments(name, site))
        else:
            found = frozenset(
                moment + round(self.topology.link(origin, site).latency_us / 1e6 + self.reaction_s, 3)
                for origin, ship in self.ships
                if ship.arrives_as.name == flow and ship.to == site
                for moment in self._moments(plain, origin)
            ) or frozenset({0.0})
        self._moments_of[flow, site] = found
        return found

    def _trip(self, origin: str, to: str) -> float:
        return self.topology.link(origin, to).latency_us / 1e6 + min(self.reaction_s, self.batch_interval_s[to])


def _leading(operator: Operator) -> tuple[str, ...]:
    """The inputs whose rows make an operator make something: new ones of a head, or either side of a tree."""
    match operator:
        case Join() | Probe():
            return (operator.left.name,)
        case Semijoin() if operator.head and operator.witness.form is Form.ASK:
            return (operator.witness.name,)
        case Gather():
            return tuple(dict.fromkeys(name for member in operator.members for name in _leading(member)))
        case _:
            return tuple(flow.name for flow in operator.inputs)
