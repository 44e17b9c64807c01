"""What a planner is asked: a query in figures, where its streams arrive, what is to be small, and what is barred."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import inf

import numpy as np

from watersmeet.cost.costs import DEFAULT_UNITS, Cost, Units
from watersmeet.cost.from_statistics import workload_of
from watersmeet.cost.price import BATCH_INTERVAL_S, REACTION_S, price
from watersmeet.cost.sampling import sampled_joins
from watersmeet.cost.workload import Workload
from watersmeet.errors import InputError, did_you_mean
from watersmeet.plan.nodes import JoinPlan, Partition, Plan, SubPlan
from watersmeet.plan.shape import QueryShape, above, shape_of
from watersmeet.program.operators import Purpose
from watersmeet.query.model import JoinQuery
from watersmeet.query.windows import AsOf, counted
from watersmeet.stats.model import Stats
from watersmeet.topology.model import Link, Topology

_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Objective:
    """What a plan is judged by, as weights: of a byte, of money, of a second of delay, of a second of work.

    Work is the semijoin paper's measure: the time that messages spend on links, and processors on joins.

    >>> Objective(money=1.0, bytes=0.0)
    Objective(bytes=0.0, money=1.0, latency=0.0, work=0.0)
    """

    bytes: float = 1.0
    money: float = 0.0
    latency: float = 0.0
    work: float = 0.0

    def __post_init__(self) -> None:
        weights = [getattr(self, item.name) for item in fields(self)]
        if any(not 0 <= weight < inf for weight in weights) or not any(weights):
            raise InputError("the weights of an objective must be 0 or more, and one of them more than 0")

    @staticmethod
    def named(name: str) -> "Objective":
        """The objective that is all about one thing."""
        names = [item.name for item in fields(Objective)]
        if name not in names:
            raise InputError(f"unknown objective {name!r}; {did_you_mean(name, names)}")
        return Objective(**dict.fromkeys(names, 0.0) | {name: 1.0})

    def value(self, cost: Cost, topology: Topology) -> float:
        """What a cost comes to."""
        total = self.bytes * cost.bytes_s + self.money * cost.money_s + self.latency * cost.delay_s
        if self.work:
            total += self.work * (cost.seconds_on_links(topology) + sum(cost.cpu.values()))
        return total


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan must keep to: a longest delay, and sites to which nothing of other sites' streams may go."""

    delay_s: float | None = None
    barred: tuple[str, ...] = ()


FEWEST_BYTES, NO_LIMITS = Objective(), Limits()


class NoPlan(InputError):
    """No plan keeps to the limits."""


@dataclass(frozen=True)
class Problem:
    """A question for planners."""

    query: JoinQuery
    shape: QueryShape
    workload: Workload
    topology: Topology
    objective: Objective = FEWEST_BYTES
    limits: Limits = NO_LIMITS
    units: Units = DEFAULT_UNITS
    batch_interval_s: float = BATCH_INTERVAL_S
    reaction_s: float = REACTION_S
    parts: int = 16  # at most so many parts of the key space
    partition: str | None = None  # how pmjoin makes them; None tries all

    @property
    def aliases(self) -> tuple[str, ...]:
        return self.workload.aliases

    @property
    def homes(self) -> tuple[str, ...]:
        return self.workload.homes

    @property
    def site(self) -> str | None:
        return self.workload.site

    @cached_property
    def counting(self) -> int:
        """The aliases whose windows count rows, as a set: in trees they are not reduced, and there are no parts."""
        return sum(1 << n for n, scan in enumerate(self.shape.scans) if counted(scan.window) is not None)

    @property
    def is_refreshed(self) -> bool:
        """Whether any table is read anew while the query runs, which trees cannot have."""
        return any(scan.window == AsOf(is_refreshed=True) for scan in self.shape.scans)

    def join(self, sub_plans: Sequence[SubPlan], partition: Partition | None = None) -> JoinPlan:
        """The join that has these sub-plans."""
        return self.shape.join(self.homes, tuple(sub_plans), self.site, partition)

    def plan(self, join: JoinPlan) -> Plan:
        """The whole plan over a join."""
        return above(self.query, join)

    def cost(self, join: JoinPlan) -> Cost:
        return price(join, self.workload, self.topology, self.units, self.batch_interval_s, self.reaction_s)

    def value(self, join: JoinPlan) -> float:
        return self.objective.value(self.cost(join), self.topology)

    def limited(self, workload: Workload) -> "Problem":
        """The same question about a part of the key space."""
        return replace(self, workload=workload.estimated)

    def allows(self, origin: str, to: str) -> bool:
        """Whether rows or keys may go from a site to another."""
        return origin == to or (to not in self.limits.barred and self.topology.is_linked(origin, to))

    def broken(self, cost: Cost) -> list[str]:
        """The limits that a plan does not keep to, and by how much."""
        found = []
        limit = self.limits.delay_s
        if limit is not None and cost.delay_s > limit:
            found.append(f"the delay is {cost.delay_s:.3g} s, {cost.delay_s - limit:.3g} s above the limit")
        for (origin, to), size in cost.link_bytes.items():
            if not self.topology.is_linked(origin, to):
                found.append(f"{size:.3g} bytes a second go from {origin} to {to}, which have no link")
        for site in self.limits.barred:
            held = sum(
                flow.bytes_s
                for flow in cost.flows
                if flow.to == site and flow.purpose not in (Purpose.RESULTS, Purpose.RECORDS, Purpose.WATERMARKS)
            )
            if held > 0:
                found.append(f"{held:.3g} bytes a second of other sites' streams go to {site}, which is barred")
        return found

    @cached_property
    def byte_weight(self) -> Mapping[tuple[str, str], float]:
        """What a byte on each link is worth."""
        objective = self.objective
        return {
            pair: objective.bytes
            + objective.money * link.price_per_gb / _GIGA
            + (objective.work * 8 / link.bandwidth_bps if link.bandwidth_bps else 0.0)
            for pair, link in self._links.items()
        } | {(site, site): 0.0 for site in self.sites}

    @cached_property
    def trip_weight(self) -> Mapping[tuple[str, str], float]:
        """What a parcel on each link is worth."""
        return {pair: self.objective.work * link.latency_us / 1e6 for pair, link in self._links.items()}

    @cached_property
    def delay_weight(self) -> Mapping[tuple[str, str], float]:
        """What a trip over each link adds, where the delay counts."""
        return {
            pair: self.objective.latency * (link.latency_us / 1e6 + self.reaction_s) if pair[0] != pair[1] else 0.0
            for pair, link in self._links.items()
        }

    @cached_property
    def _links(self) -> Mapping[tuple[str, str], Link]:
        found = {}
        for number, origin in enumerate(self.sites):
            for other in self.sites[number:]:
                found[origin, other] = found[other, origin] = self.topology.link(origin, other)
        return found

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """The sites that a plan may use, in order."""
        known = {*self.homes} | ({self.site} if self.site is not None else set())
        return tuple(site for site in self.topology.site_names if site in known)


def problem_of(
    query: JoinQuery,
    topology: Topology,
    site: str | None,
    stats: Stats,
    *,
    objective: Objective = FEWEST_BYTES,
    limits: Limits = NO_LIMITS,
    units: Units = DEFAULT_UNITS,
    batch_interval_s: float = BATCH_INTERVAL_S,
    parts: int = 16,
    partition: str | None = None,
    defaults: bool = False,
    reaction_s: float = REACTION_S,
) -> Problem:
    """The question that a query asks; a figure that is missing is an error, or a stated default if asked for."""
    for barred in limits.barred:
        if barred not in topology.site_names:
            raise InputError(f"limits: unknown site {barred!r}; {did_you_mean(barred, topology.site_names)}")
    shape = shape_of(query, topology.columns)
    needed = sorted({topology.stream(source.stream).site for source in query.sources} | ({site} if site else set()))
    for home in needed:
        if len(needed) > 1 and not any(topology.is_linked(home, other) for other in needed if other != home):
            raise InputError(
                f"site {home} has no link to {' or '.join(other for other in needed if other != home)}; "
                "add one under `links:`, or a default_link"
            )
    homes = tuple(topology.stream(source.stream).site for source in query.sources)
    workload = workload_of(
        shape.scans,
        shape.classes,
        shape.output,
        homes,
        site,
        stats,
        conditions=shape.conditions,
        defaults=defaults,
        query=query,
        event_times={stream.name: stream.event_time_column for stream in topology.streams},
    )
    sampled = sampled_joins(shape.scans, shape.classes, shape.conditions, stats, batch_interval_s)
    if sampled is not None:
        kept = [sampled.kept(number) for number in range(len(shape.scans))]
        rates = [
            rate if share is None else arrive * share
            for rate, arrive, share in zip(workload.rate.tolist(), workload.arrivals.tolist(), kept, strict=True)
        ]
        workload = replace(workload, rate=np.array(rates), sampled=sampled, _memory={})
    return Problem(
        *(query, shape, workload, topology, objective, limits, units, batch_interval_s, reaction_s),
        parts=parts,
        partition=partition,
    )


def is_connected(problem: Problem) -> bool:
    """Whether equalities tie all streams together."""
    return not _apart(problem)


def check_connected(problem: Problem) -> None:
    """Refuse streams that no equality ties to the others, where a planner does not make products."""
    if apart := _apart(problem):
        raise InputError(
            f"no equality ties {', '.join(apart)} to the other streams; add one, or use auto, greedy or central"
        )


def _apart(problem: Problem) -> list[str]:
    """The streams that no equality ties to the first one."""
    workload = problem.workload
    reached, rest = 1, (1 << len(problem.aliases)) - 2
    while rest:
        left = [number for number in range(len(problem.aliases)) if rest >> number & 1]
        tied = [number for number in left if workload.shared(reached, 1 << number)]
        if not tied:
            return [problem.aliases[number] for number in left]
        for number in tied:
            reached |= 1 << number
            rest &= ~(1 << number)
    return []
