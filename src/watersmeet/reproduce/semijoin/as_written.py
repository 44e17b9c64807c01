"""Algorithm 10 of the semijoin paper and the search it is compared with, as written: costs summed over heads (eq. 1).

Six methods, no Bloom filters, nothing shared between heads or between the joins of one. Prices are those of appendix B,
or those of this project's planners.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import fsum, inf, prod

from watersmeet.plan.nodes import Method
from watersmeet.planners.oneway import OneWay
from watersmeet.reproduce.semijoin.appendix_b import Costs, JoinSide, NetworkFigures, one_way_join_s
from watersmeet.reproduce.semijoin.runs import ATTRIBUTE_BYTES, RunSetting, problem_for


@dataclass(frozen=True, slots=True)
class State:
    """What of a head's sequence is done: which streams are joined (bits), and at which site the combinations are."""

    head: int
    joined: int
    site: str


@dataclass(frozen=True, slots=True)
class Step:
    """A one-way join with a stream by one method: what it costs, and where the combinations are afterwards."""

    cost: float
    after: State
    stream: int
    method: Method


Steps = Callable[[State, int], Iterable[Step]]  # all methods for the join of a state with one more stream


Sequence = tuple[Step, ...]  # of a head


def greedy_plan(setting: RunSetting, steps: Steps) -> tuple[Sequence, ...]:
    """Algorithm 10's plan: each head takes the stream and method that are the cheapest now."""
    return tuple(_greedy(setting, steps, head) for head in range(len(setting.streams)))


def best_plan(setting: RunSetting, steps: Steps) -> tuple[Sequence, ...]:
    """The best of all sequences and methods, head by head."""
    return tuple(_best(setting, steps, _start(setting, head)) for head in range(len(setting.streams)))


def greedy_cost(setting: RunSetting, steps: Steps) -> float:
    """The cost of algorithm 10's plan."""
    return sum(map(cost_of, greedy_plan(setting, steps)))


def best_cost(setting: RunSetting, steps: Steps) -> float:
    """The cost of the best plan."""
    return sum(map(cost_of, best_plan(setting, steps)))


def cost_of(sequence: Sequence) -> float:
    """What the one-way joins of a head cost together."""
    return fsum(step.cost for step in sequence)


def _greedy(setting: RunSetting, steps: Steps, head: int) -> Sequence:
    state, taken = _start(setting, head), []
    while candidates := _next_streams(setting, state.joined):
        step = min((step for stream in candidates for step in steps(state, stream)), key=lambda step: step.cost)
        state = step.after
        taken.append(step)
    return tuple(taken)


def _best(setting: RunSetting, steps: Steps, state: State) -> Sequence:
    best: Sequence = ()
    least = inf
    for stream in _next_streams(setting, state.joined):
        cheapest: dict[State, Step] = {}  # methods that end at the same site differ in nothing but their cost
        for step in steps(state, stream):
            known = cheapest.setdefault(step.after, step)
            if step.cost < known.cost:
                cheapest[step.after] = step
        for step in cheapest.values():
            if step.cost < least:
                sequence = (step, *_best(setting, steps, step.after))
                if cost_of(sequence) < least:
                    best, least = sequence, cost_of(sequence)
    return best


def _start(setting: RunSetting, head: int) -> State:
    return State(head, 1 << head, f"n{head + 1}")


def _next_streams(setting: RunSetting, joined: int) -> list[int]:
    return [
        stream for stream in range(len(setting.streams)) if not joined >> stream & 1 and _ties(setting, joined, stream)
    ]


def _ties(setting: RunSetting, joined: int, stream: int) -> list[int]:
    """Of the streams that are joined, those that a predicate ties to another one."""
    pairs = [(one, other) for edge in setting.edges for one, other in (edge, edge[::-1])]
    return [one for one, other in pairs if other == stream and joined >> one & 1]


def by_appendix_b(setting: RunSetting, costs: Costs, *, one_attribute: bool = False) -> Steps:
    """Prices of the paper's formulas; a site is not part of them, for all links are alike.

    Each predicate has a pair of attributes of its own; or all streams are joined on one attribute, of which those with
    fewer values have some of the others'.
    """
    network = NetworkFigures(setting.latency_s, setting.bandwidth_bps, setting.tau_s)
    rates: dict[tuple[int, int], float] = {}

    def rate_of(head: int, joined: int) -> float:
        """Combinations a second of a head: the rate grows with each window and falls with each predicate."""
        if (head, joined) not in rates:
            others = [number for number in range(len(setting.streams)) if joined >> number & 1 and number != head]
            windows = prod(setting.streams[other].rate * setting.streams[other].window_s for other in others)
            inside = [edge for edge in setting.edges if all(joined >> end & 1 for end in edge)]
            share = prod(1 / max(setting.streams[end].distinct for end in edge) for edge in inside)
            if one_attribute:
                values = [setting.streams[number].distinct for number in (head, *others)]
                share = min(values) / prod(values)
            rates[head, joined] = setting.streams[head].rate * windows * share
        return rates[head, joined]

    def steps(state: State, stream: int) -> Iterable[Step]:
        ties = _ties(setting, state.joined, stream)
        joined = [number for number in range(len(setting.streams)) if state.joined >> number & 1]
        if one_attribute:
            ties = [min(joined, key=lambda number: setting.streams[number].distinct)]
        spec, key_bytes = setting.streams[stream], float(ATTRIBUTE_BYTES * len(ties))
        first = JoinSide(
            rate_of(state.head, state.joined),
            setting.streams[state.head].window_s,
            float(prod(setting.streams[tie].distinct for tie in ties)),
            float(sum(setting.streams[one].size_bytes for one in joined)),
            key_bytes,
        )
        distinct = float(prod(spec.distinct for _ in ties))
        second = JoinSide(spec.rate, spec.window_s, distinct, float(spec.size_bytes), key_bytes)
        forward = prod(min(1.0, spec.distinct / setting.streams[tie].distinct) for tie in ties)
        after = State(state.head, state.joined | 1 << stream, "")
        for method in Method:
            yield Step(one_way_join_s(method, first, second, forward, network, costs), after, stream, method)

    return steps


def by_planner(setting: RunSetting) -> Steps:
    """Prices of this project's planners, without Bloom filters, everything paid anew at each use."""
    prices = OneWay(problem_for(setting))

    def steps(state: State, stream: int) -> Iterable[Step]:
        for priced in prices.priced_hops(state.head, state.joined, state.site, stream):
            if not priced.hop.bloom:
                cost = priced.own + sum(prices.price_of(item) for item in priced.shared)
                yield Step(cost, State(state.head, state.joined | 1 << stream, priced.end), stream, priced.hop.method)

    return steps
