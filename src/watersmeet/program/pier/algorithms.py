"""The aggregation algorithms of PIER (section 4.2, appendices B and C) as values: five dimensions, chosen apart.

A one-shot query is a continuous one of a single epoch: it has no epoch before from which to know a tree or children.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, assert_never

EPOCH_US = 5_000_000


class Structure(Enum):
    """The way of a record to the root."""

    ONE_LEVEL = "1L"
    MULTI_LEVEL = "ML"  # hop by hop, each record by itself
    HIERARCHICAL = "Hi"  # hop by hop, combined


class Routing(Enum):
    """How the root is named, and who is whose parent."""

    IP = "IP"  # by its address
    DHT = "DHT"  # by a point: whoever is responsible for it
    TREE = "Tree"  # the same, and nodes with too many children send some to another parent


@dataclass(frozen=True, slots=True)
class WaitForAll:
    """Optimal timing: a node knows how many records will come."""


@dataclass(frozen=True, slots=True)
class WaitFor:
    """A time since the start of the epoch or, with `by_rate`, since the last record."""

    period_us: int = EPOCH_US
    by_rate: bool = False

    def __post_init__(self) -> None:
        if self.period_us < 1:
            raise ValueError(f"period_us must be positive: {self.period_us}")


class ChildList(Enum):
    """How a node that remembers its children keeps the list."""

    LEARNED = "Learned"  # one that is sent to another parent stays on it until it is silent for too long
    TOPOLOGY = "Topology"  # one that is sent to another parent is off it at once
    ADAPTIVE = "Adaptive"  # the same; waiting ends when a record is late by what is usual for that child (ours)


@dataclass(frozen=True, slots=True)
class WaitForKnown:
    """A record of each child of the epochs before; a child that is silent for `cleanup_us` is none any more."""

    children: ChildList = ChildList.LEARNED
    cleanup_us: int = EPOCH_US

    def __post_init__(self) -> None:
        if self.cleanup_us < 1:
            raise ValueError(f"cleanup_us must be positive: {self.cleanup_us}")


Timing: TypeAlias = WaitForAll | WaitFor | WaitForKnown


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One of figures 4.1 and 4.5 to 4.7.

    >>> Algorithm(Routing.TREE, Structure.HIERARCHICAL, WaitForKnown(ChildList.TOPOLOGY), is_stable=True).name
    'Tree-Hi-S-Topology'
    """

    routing: Routing
    structure: Structure
    timing: Timing
    is_stable: bool = False  # whether a node stays with the parent of its first record until that fails

    def __post_init__(self) -> None:
        one_level = self.structure is Structure.ONE_LEVEL
        if self.routing is Routing.IP and not one_level:
            raise ValueError(f"{self.name} is no algorithm: by address there is only one level")
        if self.routing is Routing.TREE and one_level:
            raise ValueError(f"{self.name} is no algorithm: a tree has several levels")
        if self.is_stable and one_level:
            raise ValueError(f"{self.name} is no algorithm: on one level there is only one parent")
        forgets = isinstance(self.timing, WaitForKnown) and self.timing.children is ChildList.TOPOLOGY
        if forgets and (self.routing is not Routing.TREE or self.structure is not Structure.HIERARCHICAL):
            raise ValueError(f"{self.name} is no algorithm: only in a tree that combines are children sent elsewhere")

    @property
    def name(self) -> str:
        """As the paper has it."""
        stable = "-S" if self.is_stable else ""
        return f"{self.routing.value}-{self.structure.value}{stable}-{timing_name(self.timing)}"

    @property
    def is_combining(self) -> bool:
        """Whether records are combined on their way."""
        return self.structure is Structure.HIERARCHICAL

    @property
    def needs_parents(self) -> bool:
        """Whether nodes know whom they send to; otherwise the overlay knows it alone."""
        dht_alone = self.structure is Structure.MULTI_LEVEL and self.routing is Routing.DHT and not self.is_stable
        return self.structure is not Structure.ONE_LEVEL and not dht_alone


def timing_name(timing: Timing) -> str:
    """As the paper has it."""
    match timing:
        case WaitForAll():
            return "Optimal"
        case WaitFor():
            return "Timeout"
        case WaitForKnown(children=children):
            return children.value
        case _ as never:
            assert_never(never)


_SHAPES = ((Routing.IP, Structure.ONE_LEVEL), *((Routing.DHT, structure) for structure in Structure))


def one_shot_algorithms(timeout: WaitFor = WaitFor()) -> tuple[Algorithm, ...]:  # noqa: B008 - it is frozen
    """All eight of figure 4.1."""
    return tuple(Algorithm(*shape, timing) for shape in _SHAPES for timing in (WaitForAll(), timeout))


def continuous_algorithms(period_us: int = EPOCH_US) -> tuple[Algorithm, ...]:
    """All of figures 4.5 to 4.7 and those that follow from them, and ours with adaptive waiting.

    >>> len(continuous_algorithms())
    36
    """
    shapes = (*_SHAPES, (Routing.TREE, Structure.MULTI_LEVEL), (Routing.TREE, Structure.HIERARCHICAL))
    found = []
    for routing, structure in shapes:
        for is_stable in (False,) if structure is Structure.ONE_LEVEL else (False, True):
            kinds = [ChildList.LEARNED]
            if structure is Structure.HIERARCHICAL:
                kinds += [ChildList.TOPOLOGY, ChildList.ADAPTIVE] if routing is Routing.TREE else [ChildList.ADAPTIVE]
            known = (WaitForKnown(kind, period_us) for kind in kinds)
            timings: tuple[Timing, ...] = (WaitForAll(), WaitFor(period_us), *known)
            found += [Algorithm(routing, structure, timing, is_stable) for timing in timings]
    return tuple(found)


def names_for_queries() -> tuple[str, ...]:
    """Those that a query can ask for: by a point, since roots come and go, and by what nodes can know."""
    return tuple(
        each.name
        for each in continuous_algorithms()
        if each.routing is not Routing.IP and not isinstance(each.timing, WaitForAll)
    )


def algorithm_named(name: str, period_us: int = EPOCH_US) -> Algorithm | None:
    """The continuous algorithm of a name with such timeouts; None if there is none.

    >>> algorithm_named("DHT-Hi-Learned").is_stable, algorithm_named("IP-Hi-Learned")
    (False, None)
    """
    return next((each for each in continuous_algorithms(period_us) if each.name == name), None)
