"""RJoin on nodes that come and go: every node has a shard of its own, and mail is sent hop by hop."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.program.rjoin.arrays import FOREVER, Ints
from watersmeet.program.rjoin.settings import NodeSettings
from watersmeet.program.rjoin.tables import Known
from watersmeet.query.model import JoinQuery
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.node import OverlayNode
from watersmeet.sim.overlays.router import Address
from watersmeet.sim.rjoin.fault_tolerance import FaultTolerance
from watersmeet.sim.rjoin.peer import HERE, Answered, DynamicPeer


class DynamicRJoin:
    """A network of dynamic peers, and who does what there; `answered` gets complete rows where they were asked for."""

    def __init__(
        self,
        kernel: Kernel,
        known: Known,
        settings: NodeSettings,
        fault_tolerance: FaultTolerance | None = None,
        *,
        answered: Answered = lambda query, rows: None,
        epoch_us: int = 0,
    ) -> None:
        """`epoch_us` is the time at the kernel's zero."""
        self.fault_tolerance = fault_tolerance or FaultTolerance()
        self.kernel, self.known = kernel, known
        self.settings = replace(settings, is_guarded=settings.is_guarded or self.fault_tolerance.is_needed)
        self.peers: dict[Address, DynamicPeer] = {}  # those that are there
        self.loads: dict[Address, int] = {}  # of those that were
        self._answered, self._epoch_us = answered, epoch_us

    @property
    def now_us(self) -> int:
        return self._epoch_us + self.kernel.now_us

    def add(self, node: OverlayNode) -> DynamicPeer:
        """Make a node of the overlay a peer of RJoin."""
        peer = DynamicPeer(
            self.kernel, node, self.known, self.settings, self.fault_tolerance, self._answered, self._epoch_us
        )
        self.peers[node.address] = peer
        return peer

    def fail(self, address: Address) -> None:
        """Crash a node: what it keeps is lost."""
        self._gone(address).node.stop()

    def leave(self, address: Address) -> None:
        """Let a node leave gracefully."""
        self._gone(address).leave()

    def submit(self, query: JoinQuery, address: Address, until_us: int | None = None) -> int:
        """Ask a query at a node, now, for ever or up to a time."""
        number = self.known.add_query(query, address, self.now_us, until_us)
        self.peers[address].submit([number])
        return number

    def ask_once(self, query: JoinQuery, address: Address) -> int:
        """Ask at a node about the tuples there are: those published up to now."""
        number = self.known.add_query(query, address, -int(FOREVER), self.now_us)
        self.peers[address].submit([number])
        return number

    def remove(self, query: int) -> None:
        """Let who asked a query want no answers with tuples from now on."""
        self.peers[int(self.known.query_arrays.home[query])].remove(query)

    def publish(self, address: Address, stream: str, rows: pa.Table) -> Ints:
        """Insert tuples at a node, now."""
        stamps: NDArray[np.int64] = np.full(rows.num_rows, self.now_us, np.int64)
        tuples = self.known.add_tuples(stream, rows, stamps)
        self.peers[address].publish(tuples)
        return tuples

    def load_of(self, peer: DynamicPeer) -> int:
        """What a peer has had to process: rewritten queries and tuples."""
        return int(peer.shard.load.queries[HERE] + peer.shard.load.tuples[HERE])

    def _gone(self, address: Address) -> DynamicPeer:
        peer = self.peers.pop(address)
        self.loads[address] = self.load_of(peer)
        return peer
