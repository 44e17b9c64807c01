"""Messages between PIER's nodes; `size_bytes` is what each takes on the wire, without the envelope."""

from dataclasses import dataclass
from typing import Any

from watersmeet.program.pier.dataflow import PreparedGraph
from watersmeet.program.pier.tuples import Batch
from watersmeet.sim.overlays.router import Address

_KIND_BYTES = 1
_QUERY_BYTES = 12  # who asks 6, a number 4, a kind 2
_TIME_BYTES = 8
_ADDRESS_BYTES = 6
_REQUEST_BYTES = 4


@dataclass(frozen=True, slots=True)
class GraphsMessage:
    """Op-graphs of a query on their way to nodes."""

    query_id: str
    proxy: Address
    graphs: tuple[PreparedGraph, ...]
    longest_us: int  # of their durations

    @property
    def size_bytes(self) -> int:
        return _KIND_BYTES + _QUERY_BYTES + _TIME_BYTES + sum(graph.size_bytes for graph in self.graphs)


@dataclass(frozen=True, slots=True)
class PortMessage:
    """Tuples for a port of a node."""

    port: str
    batch: Batch

    @property
    def size_bytes(self) -> int:
        return _KIND_BYTES + 1 + len(self.port.encode()) + self.batch.size_bytes


@dataclass(frozen=True, slots=True)
class Published:
    """A tuple in a range index, and the node that has published it."""

    address: Address
    batch: Batch

    @property
    def size_bytes(self) -> int:
        return _ADDRESS_BYTES + self.batch.size_bytes


@dataclass(frozen=True, slots=True)
class ReplyMessage:
    """Tuples for whoever asked: results, or copies and error reports that were asked for."""

    query_id: str
    kind: str  # result, tap or error
    operator: str
    batch: Batch

    @property
    def size_bytes(self) -> int:
        return _KIND_BYTES + _QUERY_BYTES + self.batch.size_bytes


@dataclass(frozen=True, slots=True)
class FetchMessage:
    """Asks a node for tuples of a table of its own by the value of a column."""

    request: int
    table: str
    column: str
    value: Any

    @property
    def size_bytes(self) -> int:
        return _KIND_BYTES + _REQUEST_BYTES + 3 + len(self.table.encode()) + len(self.column.encode()) + 8


@dataclass(frozen=True, slots=True)
class FetchedMessage:
    """The reply to FetchMessage."""

    request: int
    batches: tuple[Batch, ...]

    @property
    def size_bytes(self) -> int:
        return _KIND_BYTES + _REQUEST_BYTES + sum(batch.size_bytes for batch in self.batches)
