"""One-shot aggregation (PIER, section 4.2.1 and appendix B): one answer from the partial state records of all nodes.

Structure, routing and timing are chosen apart: records go straight to the root by address or by `put`, hop by hop
without being combined, or hop by hop with in-network aggregation. A node that waits ends waiting when it has all that
is to come (the simulator knows how much that is), or by a timeout. What comes after a timeout starts it again; then a
further record with what is new, or at the root a revised result, follows. A record says how many nodes are in it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial

from watersmeet.program.pier.aggregates import AGGREGATES, State
from watersmeet.sim.dht.callbacks import Cancel
from watersmeet.sim.dht.messages import Item
from watersmeet.sim.dht.node import Dht, Passage
from watersmeet.sim.kernel import NO_EVENT, Event, Kernel
from watersmeet.sim.overlays.router import Address

_NAME_BYTES, _FIELDS_BYTES = 8, 6 + 4 + 4  # query; node, number, nodes in it


class Structure(Enum):
    """The way of a record to the root."""

    ONE_LEVEL = "1L"
    MULTI_LEVEL = "ML"  # hop by hop, each record by itself
    HIERARCHICAL = "Hi"  # hop by hop, combined


class Routing(Enum):
    """How the root is named."""

    IP = "IP"  # by its address
    DHT = "DHT"  # by a point: whoever is responsible for it


@dataclass(frozen=True, slots=True)
class WaitForAll:
    """Optimal timing: a node knows how many records will come."""


@dataclass(frozen=True, slots=True)
class WaitFor:
    """A time since the start or, with `by_rate`, since the last record."""

    period_us: int = 5_000_000
    by_rate: bool = False

    def __post_init__(self) -> None:
        if self.period_us < 1:
            raise ValueError(f"period_us must be positive: {self.period_us}")


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One of figure 4.1's.

    >>> Algorithm(Routing.DHT, Structure.HIERARCHICAL, WaitFor()).name
    'DHT-Hi-Timeout'
    """

    routing: Routing
    structure: Structure
    timing: WaitForAll | WaitFor

    def __post_init__(self) -> None:
        if self.routing is Routing.IP and self.structure is not Structure.ONE_LEVEL:
            raise ValueError(f"{self.name} is no algorithm: by address there is only one level")

    @property
    def name(self) -> str:
        """As the paper has it."""
        timing = "Optimal" if isinstance(self.timing, WaitForAll) else "Timeout"
        return f"{self.routing.value}-{self.structure.value}-{timing}"


def algorithms(timeout: WaitFor = WaitFor()) -> tuple[Algorithm, ...]:  # noqa: B008 - it is frozen
    """All eight."""
    shapes = [(Routing.IP, Structure.ONE_LEVEL), *((Routing.DHT, structure) for structure in Structure)]
    return tuple(Algorithm(*shape, timing) for shape in shapes for timing in (WaitForAll(), timeout))


@dataclass(frozen=True, slots=True)
class OneShotQuery:
    """What every node is told."""

    name: str
    algorithm: Algorithm
    aggregate: str  # of AGGREGATES
    root: int  # a point
    root_address: Address  # of the node that is responsible for it, for routing by IP
    requester: Address
    nodes: int  # for WaitForAll
    children: Mapping[Address, int] | None = None  # for WaitForAll with in-network aggregation: of each interior node
    state_bytes: int = 16

    def __post_init__(self) -> None:
        if self.aggregate not in AGGREGATES:
            raise ValueError(f"unknown aggregate {self.aggregate}; there are {', '.join(AGGREGATES)}")
        is_hierarchical = self.algorithm.structure is Structure.HIERARCHICAL
        if is_hierarchical and isinstance(self.algorithm.timing, WaitForAll) and self.children is None:
            raise ValueError(f"{self.algorithm.name} needs the number of children of every node")


@dataclass(frozen=True, slots=True)
class Record:
    """A partial state record on its way."""

    query: str
    sender: Address
    number: int  # of the sender's records
    state: State
    nodes: int  # whose data are in it
    state_bytes: int

    @property
    def size_bytes(self) -> int:
        return _NAME_BYTES + _FIELDS_BYTES + self.state_bytes


@dataclass(frozen=True, slots=True)
class Result:
    """What the requester gets; a later one has more nodes in it."""

    query: str
    value: object
    nodes: int
    size_bytes: int = _NAME_BYTES + 4 + 16


def children_of(parents: Iterable[Address | None]) -> dict[Address, int]:
    """How many name each node as their parent."""
    counts: dict[Address, int] = {}
    for parent in parents:
        if parent is not None:
            counts[parent] = counts.get(parent, 0) + 1
    return counts


class OneShotNode:
    """One node's part in a query: it begins when it is made; `requested` gets results at the requester."""

    __slots__ = (
        "_cancels",
        "_combine",
        "_dht",
        "_included",
        "_kernel",
        "_numbers",
        "_query",
        "_records_left",
        "_requested",
        "_result",
        "_seen",
        "_state",
        "_timer",
    )

    def __init__(
        self,
        kernel: Kernel,
        dht: Dht,
        query: OneShotQuery,
        values: Iterable[object],
        requested: Callable[[Result], None] | None = None,
    ) -> None:
        aggregate = AGGREGATES[query.aggregate]
        self._kernel, self._dht, self._query, self._requested = kernel, dht, query, requested
        self._combine, self._result = aggregate.combine, aggregate.result
        self._state: State = aggregate.start
        for value in values:
            self._state = aggregate.add(self._state, value)
        self._included = 1  # nodes in the state
        self._numbers = 0
        self._seen: set[tuple[Address, int]] = set()
        self._timer: Event = NO_EVENT
        self._cancels: list[Cancel] = []
        self._listen()
        self._records_left = self._expected()
        kernel.after(0, self._begin)

    def stop(self) -> None:
        """The query is over, or the node has crashed."""
        for cancel in self._cancels:
            cancel()
        self._cancels.clear()
        self._kernel.cancel(self._timer)

    @property
    def is_root(self) -> bool:
        """Whether results are produced here."""
        if self._query.algorithm.routing is Routing.IP:
            return self._dht.node.address == self._query.root_address
        return self._dht.node.router.next_hop(self._query.root) is None

    @property
    def _is_combining(self) -> bool:
        return self._query.algorithm.structure is Structure.HIERARCHICAL

    def _expected(self) -> int:
        """How many records will come, where that is known."""
        if self._query.children is not None:
            return self._query.children.get(self._dht.node.address, 0)
        return self._query.nodes - 1 if self.is_root else 0

    def _listen(self) -> None:
        namespace, structure = f"{self._query.name}.records", self._query.algorithm.structure
        self._cancels.append(self._dht.node.on_direct(self._direct))
        if structure is Structure.HIERARCHICAL:
            passages = (Passage.MIDWAY, Passage.ARRIVED)
            self._cancels.append(self._dht.upcall(namespace, self._passing, passages=passages))
        elif structure is Structure.MULTI_LEVEL:
            self._cancels.append(self._dht.upcall(namespace, self._passing, passages=[Passage.ARRIVED]))
        else:
            self._cancels.append(self._dht.new_data(namespace, self._stored))
            for item in self._dht.local_scan(namespace):  # of those that were told of the query before this node
                self._kernel.after(0, self._stored, item)

    def _begin(self) -> None:
        timing = self._query.algorithm.timing
        if not self.is_root and not self._is_combining:
            self._send_record()
        elif isinstance(timing, WaitFor):
            self._timer = self._kernel.after(timing.period_us, self._end_waiting)
        elif not self._records_left:
            self._end_waiting()

    def _end_waiting(self) -> None:
        self._timer = NO_EVENT
        if not self._dht.node.is_up:
            self.stop()
        elif self.is_root:
            result = Result(self._query.name, self._result(self._state), self._included)
            self._dht.node.direct(self._query.requester, result, result.size_bytes)
        elif self._included:
            self._send_record()

    def _send_record(self) -> None:
        """Send what is here; it is here no more, so a later record has only what is new."""
        query, here = self._query, self._dht.node.address
        self._numbers += 1
        record = Record(query.name, here, self._numbers, self._state, self._included, query.state_bytes)
        self._state, self._included = AGGREGATES[query.aggregate].start, 0
        namespace, suffix = f"{query.name}.records", f"{here}.{self._numbers}"
        if query.algorithm.routing is Routing.IP:
            self._dht.node.direct(query.root_address, record, record.size_bytes)
        elif query.algorithm.structure is Structure.ONE_LEVEL:
            self._dht.put(
                namespace, "", suffix, record, self._dht.lifetime_max_us, record.size_bytes, target=query.root
            )  # fmt: skip
        else:
            self._dht.send(
                namespace, "", suffix, record, self._dht.lifetime_max_us, record.size_bytes, target=query.root
            )  # fmt: skip

    # What comes from others.

    def _passing(self, item: Item) -> None:
        assert isinstance(item.value, Record)
        self._take(item.value)

    def _stored(self, item: Item) -> None:
        assert isinstance(item.value, Record)
        self._take(item.value)

    def _direct(self, sender: Address, payload: object) -> None:
        if isinstance(payload, Record) and payload.query == self._query.name and self._cancels:
            self._take(payload)
        elif isinstance(payload, Result) and payload.query == self._query.name and self._requested is not None:
            self._requested(payload)

    def _take(self, record: Record) -> None:
        if (record.sender, record.number) in self._seen or not self._cancels:
            return
        self._seen.add((record.sender, record.number))
        self._state = self._combine(self._state, record.state)
        self._included += record.nodes
        self._records_left -= 1
        timing = self._query.algorithm.timing
        if isinstance(timing, WaitForAll):
            if self._records_left <= 0:
                self._end_waiting()
        elif self._timer is NO_EVENT or timing.by_rate:
            self._kernel.cancel(self._timer)
            self._timer = self._kernel.after(timing.period_us, self._end_waiting)


def start_everywhere(
    kernel: Kernel,
    dhts: Iterable[Dht],
    query: OneShotQuery,
    values: Callable[[Address], Iterable[object]],
    requested: Callable[[Result], None],
) -> list[OneShotNode]:
    """Let a query begin at all nodes now, as if it had been disseminated before."""
    make = partial(OneShotNode, kernel)
    return [
        make(dht, query, values(dht.node.address), requested if dht.node.address == query.requester else None)
        for dht in dhts
    ]
