"""A network of PIER nodes on an overlay that has converged, with or without churn."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from watersmeet.program.pier.tuples import Batch
from watersmeet.sim.dht.node import Dht
from watersmeet.sim.dht.settings import DhtSettings
from watersmeet.sim.internet.churn import Churn, Sessions
from watersmeet.sim.internet.hosts import Congestion, Internet
from watersmeet.sim.internet.latency import Latency
from watersmeet.sim.internet.retransmission import Retransmission
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.identifiers import identifier_of
from watersmeet.sim.overlays.kinds import churn_among, converged_routers, joining_router
from watersmeet.sim.overlays.node import OverlayNode
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.overlays.router import Address, Router
from watersmeet.sim.pier.indexes.distribution_tree import DistributionSettings
from watersmeet.sim.pier.node import PierNode

ACCESS_BPS = 1_500_000.0
SETTLE_US = 5_000_000


@dataclass(frozen=True, slots=True)
class HostTraffic:
    """What hosts have sent, and what each has received."""

    messages: int
    bytes: int
    inbound_bytes: tuple[int, ...]

    @property
    def most_inbound_bytes(self) -> int:
        """The bytes that the busiest host has received."""
        return max(self.inbound_bytes, default=0)


class PierNetwork:
    """Nodes by address; nodes that an overlay begins with have their numbers as addresses."""

    def __init__(
        self,
        kernel: Kernel,
        latency: Latency,
        overlay: Ring | Prefixes,
        *,
        access_bps: float | None = ACCESS_BPS,
        congestion: Congestion = Congestion.NONE,
        loss: float = 0.0,
        retransmission: Retransmission | None = None,
        dht: DhtSettings = DhtSettings(),  # noqa: B008 - it is frozen
        upkeep: bool = False,
        trees: int = 1,
    ) -> None:
        """Without `upkeep` the overlay sends no messages of its own, and nobody may come or go.

        With several distribution trees queries are spread over them. Without `retransmission` timeouts are ideal.
        """
        self.kernel, self._overlay, self._dht = kernel, overlay, dht
        self._distribution = DistributionSettings(trees=trees, follows_routes=upkeep)
        self.net = Internet(
            *(kernel, latency),
            access_bps=access_bps,
            congestion=congestion,
            loss=loss,
            retransmission=retransmission,
        )
        self.churn: Churn | None = None
        self._clock_offset_us = 0
        self.gone: list[PierNode] = []
        self.on_join: Callable[[PierNode], None] | None = None
        directory = None if upkeep else self._owner_address
        self.nodes: dict[Address, PierNode] = {}
        for router in converged_routers(kernel, self.net, overlay, timers=upkeep):
            self.nodes[router.address] = self._node(router, directory)
        for node in self.nodes.values():
            node.start()

    def start_churn(
        self,
        sessions: Sessions,
        stable: Collection[Address],
        graceful_fraction: float = 0.0,
        until_us: int | None = None,
    ) -> None:
        """From now on let all nodes but the stable ones come and go; who joins asks a stable one."""
        self.churn = churn_among(
            *(self.kernel, sessions, self.nodes, stable),
            join=self._join,
            fail=self._fail,
            leave=self._leave,
            graceful_fraction=graceful_fraction,
            until_us=until_us,
        )

    def place(self, namespace: str, key: str, suffix: str, batch: Batch, lifetime_us: int) -> None:
        """Store a tuple at its owner at once and without a message: data that were there before a run begins."""
        node = self.nodes[self._owner_address(identifier_of(f"{namespace}.{key}"))]
        node.dht.send(namespace, key, suffix, batch, lifetime_us, batch.size_bytes)

    def show_time(self, offset_us: int) -> None:
        """Let the clocks of all nodes show virtual time and so much more: event times, where tuples come at theirs."""
        self._clock_offset_us = offset_us
        for node in self.nodes.values():
            node.clock_offset_us = offset_us

    def settle(self) -> None:
        """Let the distribution trees form."""
        self.kernel.run(self.kernel.now_us + SETTLE_US)

    @property
    def traffic(self) -> HostTraffic:
        """All that has been sent so far."""
        net = self.net
        return HostTraffic(sum(net.messages_sent), sum(net.bytes_sent), tuple(net.bytes_received))

    def _node(self, router: Router, directory: Callable[[int], Address] | None) -> PierNode:
        dht = Dht(self.kernel, OverlayNode(self.kernel, self.net, router), self._dht)
        return PierNode(self.kernel, dht, owner_address=directory, distribution=self._distribution)

    def _owner_address(self, point: int) -> Address:
        return int(self._overlay.addresses[self._overlay.owner(point)])

    def _join(self, address: Address, bootstrap: Address) -> None:
        node = self._node(joining_router(self.kernel, self.net, self._overlay, address), None)
        node.clock_offset_us = self._clock_offset_us
        self.nodes[address] = node
        node.dht.start(bootstrap)
        node.start()
        if self.on_join is not None:
            self.on_join(node)

    def _fail(self, address: Address) -> None:
        node = self.nodes.pop(address)
        node.stop()
        self.gone.append(node)

    def _leave(self, address: Address) -> None:
        node = self.nodes.pop(address)
        node.dht.leave()
        self.gone.append(node)
