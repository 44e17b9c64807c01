"""A dynamic network of RJoin: an Internet whose messages are counted by purpose, an overlay, peers, churn."""

from collections.abc import Callable, Collection

from watersmeet.program.rjoin.loads import Load
from watersmeet.program.rjoin.settings import NodeSettings
from watersmeet.program.rjoin.tables import Known
from watersmeet.sim.internet.churn import Churn, Sessions
from watersmeet.sim.internet.hosts import Congestion, Internet
from watersmeet.sim.internet.latency import Latency
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.kinds import churn_among, converged_routers, joining_router
from watersmeet.sim.overlays.node import Bundle, Direct, OverlayNode, Routed
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.overlays.router import Address
from watersmeet.sim.rjoin.dynamic import DynamicRJoin
from watersmeet.sim.rjoin.fault_tolerance import FaultTolerance
from watersmeet.sim.rjoin.mail import MailPurpose, purpose_of
from watersmeet.sim.rjoin.peer import Answered

ACCESS_BPS = 1_500_000.0  # PIER's
_ENDLESS = (MailPurpose.MOVES, MailPurpose.COPIES, MailPurpose.RENEWAL)  # goes on as long as nodes do


class MeteredInternet(Internet):
    """Counts messages and bytes by what they are for; one that is lost and sent again counts once."""

    __slots__ = ("_clock", "bytes_for", "last_us", "messages_for", "upkeep_bytes", "upkeep_messages")

    def __init__(
        self, kernel: Kernel, latency: Latency, *, access_bps: float | None, congestion: Congestion, loss: float
    ) -> None:
        super().__init__(kernel, latency, access_bps=access_bps, congestion=congestion, loss=loss)
        self._clock = kernel
        self.last_us = 0  # when anything was sent that has an end
        self.forget_counts()

    def forget_counts(self) -> None:
        """Set all counters to zero."""
        self.messages_for = dict.fromkeys(MailPurpose, 0)
        self.bytes_for = dict.fromkeys(MailPurpose, 0)
        self.upkeep_messages = self.upkeep_bytes = 0
        self.lost_total = 0

    def send(
        self,
        sender: int,
        receiver: int,
        message: object,
        size_bytes: int,
        failed: Callable[[], None] | None = None,
    ) -> None:
        """Send a message and count it, unless it stays at its host."""
        if sender != receiver and self.is_up(sender):
            kind = type(message)  # the overlay's own are by far the most
            if kind is not Direct and kind is not Routed and kind is not Bundle:
                self.upkeep_messages += 1
                self.upkeep_bytes += size_bytes
            else:
                self._count(message, size_bytes)
        super().send(sender, receiver, message, size_bytes, failed)

    def _count(self, message: object, size_bytes: int) -> None:
        if isinstance(message, Bundle):  # all of one call, and so of one kind
            message = message.messages[0]
        assert isinstance(message, Routed | Direct)
        purpose = purpose_of(message.payload)
        self.messages_for[purpose] += 1
        self.bytes_for[purpose] += size_bytes
        if purpose not in _ENDLESS:
            self.last_us = self._clock.now_us


class DynamicNetwork:
    """Peers on an overlay that has converged when they begin; their numbers are their addresses."""

    def __init__(
        self,
        kernel: Kernel,
        latency: Latency,
        overlay: Ring | Prefixes,
        known: Known,
        settings: NodeSettings,
        fault_tolerance: FaultTolerance,
        answered: Answered,
        *,
        epoch_us: int = 0,
        access_bps: float | None = ACCESS_BPS,
        congestion: Congestion = Congestion.NONE,
        loss: float = 0.0,
        upkeep: bool = True,
    ) -> None:
        """Without `upkeep` the overlay sends no messages of its own, and nobody may go."""
        self.kernel = kernel
        self.net = MeteredInternet(kernel, latency, access_bps=access_bps, congestion=congestion, loss=loss)
        self.rjoin = DynamicRJoin(kernel, known, settings, fault_tolerance, answered=answered, epoch_us=epoch_us)
        self.churn: Churn | None = None
        self._overlay = overlay
        for router in converged_routers(kernel, self.net, overlay, timers=upkeep):
            self.rjoin.add(OverlayNode(kernel, self.net, router))

    def start_churn(
        self,
        sessions: Sessions,
        stable: Collection[Address],
        graceful_fraction: float = 0.0,
        until_us: int | None = None,
    ) -> None:
        """From now on let all nodes but the stable ones come and go; who joins asks a stable one."""
        self.churn = churn_among(
            *(self.kernel, sessions, self.rjoin.peers, stable),
            join=self._join,
            fail=self.rjoin.fail,
            leave=self.rjoin.leave,
            graceful_fraction=graceful_fraction,
            until_us=until_us,
        )

    @property
    def is_quiet(self) -> bool:
        """Whether no peer has anything that waits to be sent; what is on its way is not seen."""
        return not any(peer.is_busy for peer in self.rjoin.peers.values())

    def forget_counts(self) -> None:
        """Set the counters of messages and load to zero."""
        self.net.forget_counts()
        self.rjoin.loads.clear()
        for peer in self.rjoin.peers.values():
            peer.shard.load = Load.of(1, self.rjoin.known.widths.aliases)

    def _join(self, address: Address, bootstrap: Address) -> None:
        node = OverlayNode(self.kernel, self.net, joining_router(self.kernel, self.net, self._overlay, address))
        self.rjoin.add(node)
        node.start(bootstrap)
