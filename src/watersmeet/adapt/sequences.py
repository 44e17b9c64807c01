"""Per-stream execution plans and their cost (adaptive paper, equations 1 to 4, algorithm 1).

A plan has one sequence of one-way joins for each head stream. Each is placed at the source, where the rows so far are,
or at the destination, the home of the window that they probe. Costs are seconds of work for the rows of one second.
Beyond the paper: links may differ, streams may share a site, and a stream that no equality ties to those before it
comes after all that are tied (the paper's join graphs are complete). Ties are broken by stream name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """What the cost model knows of one stream; the selectivity is the share of rows that have one key value."""

    rate: float
    selectivity: float
    row_bytes: float
    window_rows: float


@dataclass(frozen=True, slots=True)
class TransferTime:
    """A link: T(x) = latency + x / bytes a second."""

    latency_s: float = 0.005
    bytes_per_s: float = 128_000.0

    def seconds(self, size: float) -> float:
        return self.latency_s + size / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """Seconds to compare one row with one of a window (c_p), and to add one to a window or take it out (c_u)."""

    probe_s: float = 1e-6
    update_s: float = 1e-6


@dataclass(frozen=True)
class Setting:
    """What all nodes of a query know: homes, links, unit costs, and which streams an equality ties."""

    homes: Mapping[str, str]  # the site of each stream
    ties: frozenset[frozenset[str]]
    units: UnitCosts = UnitCosts()
    default_link: TransferTime = TransferTime()
    links: Mapping[frozenset[str], TransferTime] = field(default_factory=dict)
    keeps_ties: bool = False  # whether streams that cost the same stay in the order in which they are (DNU)

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(sorted(self.homes))

    def transfer_s(self, origin: str, to: str, size: float) -> float:
        if origin == to:
            return 0.0
        return self.links.get(frozenset((origin, to)), self.default_link).seconds(size)

    def is_tied(self, joined: frozenset[str], stream: str) -> bool:
        return any(frozenset((stream, other)) in self.ties for other in joined)


def clique(names: Iterable[str]) -> frozenset[frozenset[str]]:
    """The ties of streams that are all joined with each other.

    >>> len(clique(["a", "b", "c"]))
    3
    """
    known = sorted(names)
    return frozenset(frozenset((name, other)) for name in known for other in known if name < other)


@dataclass(frozen=True, slots=True)
class Partial:
    """The rows of a head joined so far: with which streams, how many a second, how large, how selective, and where."""

    joined: frozenset[str]
    rate: float
    row_bytes: float
    selectivity: float
    at: str


@dataclass(frozen=True, slots=True)
class OneWayCost:
    """The cost of a one-way join by its two placements (equations 1 and 2)."""

    source_s: float
    destination_s: float

    @property
    def at_destination(self) -> bool:
        return self.destination_s < self.source_s

    @property
    def seconds(self) -> float:
        """The cost by the better placement (equation 3)."""
        return min(self.source_s, self.destination_s)


Rank = tuple[bool, float, str]  # whether nothing ties the stream to those before it, its cost, its name


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """The sequence of one head: the order of the others, and which one-way joins are at the destination (SEP)."""

    head: str
    order: tuple[str, ...]
    at_destination: tuple[bool, ...]

    def __post_init__(self) -> None:
        if len(self.order) != len(self.at_destination):
            raise ValueError("every one-way join has one placement")


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """The sequences of all heads, by name (JEP)."""

    sequences: tuple[StreamPlan, ...]

    def of(self, head: str) -> StreamPlan:
        return next(sequence for sequence in self.sequences if sequence.head == head)


def head_rows(setting: Setting, head: str, figures: StreamFigures) -> Partial:
    """New rows of a head, before any join."""
    return Partial(frozenset((head,)), figures.rate, figures.row_bytes, figures.selectivity, setting.homes[head])


def one_way_cost(setting: Setting, rows: Partial, stream: str, figures: StreamFigures) -> OneWayCost:
    """The cost of joining rows with the window of a stream."""
    home, units = setting.homes[stream], setting.units
    common = figures.rate * units.update_s + rows.rate * units.probe_s * figures.window_rows
    return OneWayCost(
        setting.transfer_s(home, rows.at, figures.rate * figures.row_bytes) + common,
        setting.transfer_s(rows.at, home, rows.rate * rows.row_bytes) + common,
    )


def rank(setting: Setting, rows: Partial, stream: str, figures: StreamFigures) -> Rank:
    """The place of a stream among those that may come next: the least is the next (equation 4)."""
    cost_s = one_way_cost(setting, rows, stream, figures).seconds
    return (not setting.is_tied(rows.joined, stream), cost_s, stream)


def beats(setting: Setting, one: Rank, other: Rank) -> bool:
    """Whether a stream is to come before one that is there.

    By the paper's text ("if the cost is lower") those that cost the same stay in their order, so that two ways to a
    plan may end with plans that differ where nothing is gained. Names decide between them unless ties are kept.
    """
    return one[:2] < other[:2] if setting.keeps_ties else one < other


def joined_rows(
    setting: Setting, rows: Partial, stream: str, figures: StreamFigures, *, at_destination: bool
) -> Partial:
    """What a one-way join makes of rows."""
    matching = min(rows.selectivity, figures.selectivity) if setting.is_tied(rows.joined, stream) else 1.0
    return Partial(
        rows.joined | {stream},
        rows.rate * matching * figures.window_rows,
        rows.row_bytes + figures.row_bytes,
        max(rows.selectivity, figures.selectivity),
        setting.homes[stream] if at_destination else rows.at,
    )


def generate(setting: Setting, figures: Mapping[str, StreamFigures]) -> ExecutionPlan:
    """The plan by the greedy rule (algorithm 1): for every head always the cheapest one-way join next."""
    return ExecutionPlan(tuple(generate_sequence(setting, figures, head) for head in setting.streams))


def generate_sequence(setting: Setting, figures: Mapping[str, StreamFigures], head: str) -> StreamPlan:
    """The sequence of one head by the greedy rule."""
    rows = head_rows(setting, head, figures[head])
    rest, order, placements = set(setting.streams) - {head}, [], []
    while rest:
        stream = min(rest, key=lambda one: rank(setting, rows, one, figures[one]))
        at_destination = one_way_cost(setting, rows, stream, figures[stream]).at_destination
        rows = joined_rows(setting, rows, stream, figures[stream], at_destination=at_destination)
        order.append(stream)
        placements.append(at_destination)
        rest.remove(stream)
    return StreamPlan(head, tuple(order), tuple(placements))


def inputs_of(setting: Setting, figures: Mapping[str, StreamFigures], plan: StreamPlan) -> tuple[Partial, ...]:
    """The rows that come to each one-way join of a sequence, and last what it delivers."""
    rows = head_rows(setting, plan.head, figures[plan.head])
    found = [rows]
    for stream, at_destination in zip(plan.order, plan.at_destination, strict=True):
        rows = joined_rows(setting, rows, stream, figures[stream], at_destination=at_destination)
        found.append(rows)
    return tuple(found)


def step_costs(setting: Setting, figures: Mapping[str, StreamFigures], plan: StreamPlan) -> tuple[float, ...]:
    """The cost of every one-way join of a sequence as it is placed."""
    found = []
    for rows, stream, at_destination in zip(
        inputs_of(setting, figures, plan), plan.order, plan.at_destination, strict=False
    ):
        cost = one_way_cost(setting, rows, stream, figures[stream])
        found.append(cost.destination_s if at_destination else cost.source_s)
    return tuple(found)


def best_step_costs(setting: Setting, figures: Mapping[str, StreamFigures], plan: StreamPlan) -> dict[str, float]:
    """The cost of the one-way join to every stream of a sequence, were it placed as well as it can be (equation 3)."""
    rows = inputs_of(setting, figures, plan)
    return {
        stream: one_way_cost(setting, row, stream, figures[stream]).seconds
        for row, stream in zip(rows, plan.order, strict=False)
    }


def plan_cost(setting: Setting, figures: Mapping[str, StreamFigures], plan: ExecutionPlan) -> float:
    """The cost of all sequences of a plan."""
    return sum(sum(step_costs(setting, figures, sequence)) for sequence in plan.sequences)


def is_greedy(setting: Setting, figures: Mapping[str, StreamFigures], plan: StreamPlan) -> bool:
    """Whether a sequence keeps the invariant (equation 4): no later stream would have been the better next one."""
    for position, rows in enumerate(inputs_of(setting, figures, plan)[:-1]):
        ranks = [rank(setting, rows, stream, figures[stream]) for stream in plan.order[position:]]
        cost = one_way_cost(setting, rows, plan.order[position], figures[plan.order[position]])
        if any(beats(setting, one, ranks[0]) for one in ranks) or cost.at_destination != plan.at_destination[position]:
            return False
    return True
