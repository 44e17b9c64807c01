"""A simulated Internet, message by message (PIER, section 3.1.4): uplink, wire, downlink; delivery as of UdpCC.

A message is delivered once or its sender is told; order is not kept. Acknowledgements are free and never lost, so the
sender's timeout is ideal: it rings one latency and TIMEOUT_SLACK_US after the instant at which the message would have
been delivered, and only if it was not. Nothing is therefore ever sent twice that has arrived. Where no loss is drawn a
missing acknowledgement can only mean a dead host, and the first timeout is the failure; with loss the sender cannot
tell, and sends up to `retries` times again.

With `Retransmission` timeouts are not ideal but those of a real sender (PIER, section 4.2.2): it estimates the round
trip to each receiver and sends again what is not acknowledged in time. A queue in front of a receiver with many senders
then looks like loss: copies of what has arrived, or will, take bandwidth and make the queue longer. The receiver drops
copies that it knows by their number; a sender that gives up is told of a failure although the message may have arrived.

Congestion.NONE adds both transmission times and has no queue: a message is on its way at once, even if its sender
crashes then. FIFO and FAIR hold a message back on the uplink, where a crash destroys it, and again on the downlink.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from math import ceil

from watersmeet.sim.internet.latency import Latency
from watersmeet.sim.internet.retransmission import Retransmission, RoundTrips
from watersmeet.sim.kernel import NO_EVENT, Event, Kernel

TIMEOUT_SLACK_US = 1_000


class Congestion(Enum):
    """What concurrent transfers on one access link do to each other."""

    NONE = "none"  # nothing
    FIFO = "fifo"  # wait for those that came first
    FAIR = "fair"  # share the bandwidth equally


@dataclass(frozen=True, slots=True)
class HostClock:
    """A host's own clock: it was `offset_us` ahead at the start and gains `drift_ppm` microseconds a second.

    >>> HostClock(offset_us=-500, drift_ppm=20.0).local_us(10_000_000)
    9999700
    """

    offset_us: int = 0
    drift_ppm: float = 0.0

    def __post_init__(self) -> None:
        if not self.drift_ppm > -1e6:
            raise ValueError(f"drift_ppm must be above -1,000,000, or the clock would stand still: {self.drift_ppm}")

    def local_us(self, now_us: int) -> int:
        """What this clock shows at an instant of virtual time."""
        return now_us + self.offset_us + round(now_us * self.drift_ppm / 1e6)


TRUE_CLOCK = HostClock()


class Internet:
    """Carries opaque messages between numbered hosts; each has one uplink and one downlink of `access_bps`.

    >>> from watersmeet.sim.internet.latency import ConstantLatency
    >>> kernel = Kernel(seed=1)
    >>> internet = Internet(kernel, ConstantLatency(40_000))
    >>> internet.attach(1, lambda sender, message: None)
    >>> internet.attach(2, lambda sender, message: print(f"{message} from {sender} at {kernel.now_us} us"))
    >>> internet.send(1, 2, "hello", size_bytes=150)
    >>> internet.send(1, 3, "anyone?", size_bytes=150, failed=lambda: print(f"failed at {kernel.now_us} us"))
    >>> kernel.run()
    hello from 1 at 41600 us
    failed at 82600 us
    3
    >>> internet.messages_sent, internet.bytes_received
    ([0, 2, 0], [0, 0, 150])
    """

    __slots__ = (
        "_fifo",
        "_is_lean",
        "_is_queueing",
        "_kernel",
        "_latency_us",
        "_loss",
        "_ports",
        "_retransmission",
        "_tries",
        "_us_per_byte",
        "bytes_received",
        "bytes_sent",
        "clocks",
        "failed_total",
        "latency",
        "lost_total",
        "messages_received",
        "messages_sent",
        "retransmitted_bytes",
        "retransmitted_total",
    )

    def __init__(
        self,
        kernel: Kernel,
        latency: Latency,
        *,
        access_bps: float | None = 1_500_000.0,
        congestion: Congestion = Congestion.NONE,
        loss: float = 0.0,
        retries: int = 3,
        retransmission: Retransmission | None = None,
    ) -> None:
        if access_bps is not None and not access_bps > 0:
            raise ValueError(f"access_bps must be positive, or None for no transmission time: {access_bps}")
        if not 0 <= loss < 1:
            raise ValueError(f"loss must be in [0, 1), or nothing would ever arrive: {loss}")
        if retries < 0:
            raise ValueError(f"retries must not be negative: {retries}")
        self.latency = latency
        # What each host has sent and got since it was first attached, by its number; a crash does not reset it.
        self.messages_sent: list[int] = []
        self.bytes_sent: list[int] = []
        self.messages_received: list[int] = []
        self.bytes_received: list[int] = []
        self.lost_total = 0  # transmissions lost on the wire or at a host that was down
        self.failed_total = 0  # messages that a living sender gave up
        self.retransmitted_total = 0  # transmissions of what was sent before; in messages_sent and bytes_sent as well
        self.retransmitted_bytes = 0
        self.clocks: dict[int, HostClock] = {}  # of the hosts whose clock is not the true one
        self._kernel, self._latency_us = kernel, latency.latency_us
        self._us_per_byte = 0.0 if access_bps is None else 8e6 / access_bps
        self._fifo = congestion is Congestion.FIFO
        self._is_queueing = congestion is not Congestion.NONE and access_bps is not None
        self._is_lean = not self._is_queueing and not loss and retransmission is None
        self._retransmission = retransmission
        self._loss, self._tries = loss, 1 + retries if loss else 1
        if retransmission is not None:
            self._tries = retransmission.tries
        self._ports: dict[int, _Port] = {}

    def attach(self, address: int, receive: Callable[[int, object], None]) -> None:
        """Put a host on the net: from now on `receive(sender, message)` gets what is sent to it from now on."""
        if address < 0:
            raise ValueError(f"an address must not be negative: {address}")
        if address in self._ports and self._ports[address].receive is not None:
            raise ValueError(f"host {address} is attached already: detach it first")
        missing = address + 1 - len(self.messages_sent)
        if missing > 0:
            for counters in (self.messages_sent, self.bytes_sent, self.messages_received, self.bytes_received):
                counters.extend([0] * missing)
        self._ports[address] = port = _Port(address, receive)
        if self._is_queueing:
            port.up, port.down = self._link(self._left), self._link(self._arrived)

    def detach(self, address: int) -> None:
        """Crash a host: what it still had to send is gone, what is on the way to it is lost; a dead one stays dead."""
        if address in self._ports:
            self._ports[address].receive = None

    def is_up(self, address: int) -> bool:
        """Whether a host is attached."""
        return address in self._ports and self._ports[address].receive is not None

    def local_us(self, address: int) -> int:
        """What the host's own clock shows now."""
        return self.clocks.get(address, TRUE_CLOCK).local_us(self._kernel.now_us)

    def send(
        self,
        sender: int,
        receiver: int,
        message: object,
        size_bytes: int,
        failed: Callable[[], None] | None = None,
    ) -> None:
        """Send a message; `failed` is called if it is given up and the sender has not crashed since.

        It is meant for whoever has the receiver's address now. A host that is down sends nothing.
        """
        ports = self._ports
        try:
            source, target = ports[sender], ports[receiver]
        except KeyError:
            if sender not in ports:
                return
            source, target = ports[sender], _Port(receiver, None)
        if source.receive is None:
            return
        if source is target:
            self._kernel.after(0, self._to_itself, source, message)
        elif self._is_lean:
            self.messages_sent[sender] += 1
            self.bytes_sent[sender] += size_bytes
            self._kernel.after(
                self._latency_us(sender, receiver) + 2 * int(size_bytes * self._us_per_byte + 0.5),
                self._arrive_lean,
                source,
                target,
                message,
                size_bytes,
                failed,
            )
        else:
            self._transmit(_Transfer(source, target, message, size_bytes, failed, self._tries))

    def _to_itself(self, port: "_Port", message: object) -> None:
        if port.receive is not None:
            port.receive(port.address, message)

    def _arrive_lean(
        self,
        source: "_Port",
        target: "_Port",
        message: object,
        size_bytes: int,
        failed: Callable[[], None] | None,
    ) -> None:
        receive = target.receive
        if receive is None:
            self._missed(_Transfer(source, target, message, size_bytes, failed, 0))
            return
        address = target.address
        self.messages_received[address] += 1
        self.bytes_received[address] += size_bytes
        receive(source.address, message)

    def _transmit(self, transfer: "_Transfer") -> None:
        """Start the next try of a message."""
        transfer.tries_left -= 1
        if self._retransmission is not None:
            self._expect_acknowledgement(transfer, self._retransmission)
        if transfer.source.up is not None:
            transfer.source.up.enter(transfer, transfer.size_bytes * self._us_per_byte)
        else:
            self._left(transfer)

    def _left(self, transfer: "_Transfer") -> None:
        """The last bit is on the wire, or without queues the first one: count it and draw its fate."""
        source, target, size_bytes = transfer.source, transfer.target, transfer.size_bytes
        if source.receive is None:
            return
        self.messages_sent[source.address] += 1
        self.bytes_sent[source.address] += size_bytes
        latency_us = self._latency_us(source.address, target.address)
        transmission_us = int(size_bytes * self._us_per_byte + 0.5)
        is_lost = self._loss > 0 and self._kernel.random.random() < self._loss
        if not self._is_queueing:
            delay_us = latency_us + 2 * transmission_us
            self._kernel.after(delay_us, self._missed if is_lost else self._arrived, transfer)
        elif is_lost:
            self._kernel.after(latency_us + transmission_us, self._missed, transfer)
        else:
            self._kernel.after(latency_us, self._reached, transfer)

    def _reached(self, transfer: "_Transfer") -> None:
        """The wire's end: the receiver's downlink, which a dead host does not have."""
        transmission_us = transfer.size_bytes * self._us_per_byte
        if transfer.target.receive is not None and transfer.target.down is not None:
            transfer.target.down.enter(transfer, transmission_us)
        else:
            self._kernel.after(int(transmission_us + 0.5), self._missed, transfer)

    def _arrived(self, transfer: "_Transfer") -> None:
        target = transfer.target
        if target.receive is None:
            self._missed(transfer)
            return
        self.messages_received[target.address] += 1
        self.bytes_received[target.address] += transfer.size_bytes
        if self._retransmission is not None:
            if transfer.is_delivered:
                return
            transfer.is_delivered = True
            latency_us = self._latency_us(transfer.source.address, target.address)
            self._kernel.after(latency_us, self._acknowledged, transfer)
        target.receive(transfer.source.address, transfer.message)

    def _expect_acknowledgement(self, transfer: "_Transfer", retransmission: Retransmission) -> None:
        source = transfer.source
        if source.round_trips is None:
            source.round_trips = RoundTrips(retransmission)
        if transfer.sent_us < 0:
            transfer.sent_us = self._kernel.now_us
            transfer.timeout_us = source.round_trips.timeout_us(transfer.target.address)
        else:
            self.retransmitted_total += 1
            self.retransmitted_bytes += transfer.size_bytes
            transfer.is_repeated = True
            transfer.timeout_us = min(2 * transfer.timeout_us, retransmission.timeout_max_us)
        transfer.timer = self._kernel.after(transfer.timeout_us, self._timed_out, transfer)

    def _acknowledged(self, transfer: "_Transfer") -> None:
        """The sender learns that it has arrived; of a message that was sent twice it cannot tell which time."""
        self._kernel.cancel(transfer.timer)
        round_trips = transfer.source.round_trips
        if round_trips is None:
            return
        if transfer.is_repeated:
            round_trips.backed_off(transfer.target.address, transfer.timeout_us)
        else:
            round_trips.measured(transfer.target.address, self._kernel.now_us - transfer.sent_us)

    def _missed(self, transfer: "_Transfer") -> None:
        """Now it would have been delivered: the acknowledgement is due one latency from here."""
        self.lost_total += 1
        if self._retransmission is not None:
            return  # the sender's own timeout is under way
        latency_us = self._latency_us(transfer.source.address, transfer.target.address)
        self._kernel.after(latency_us + TIMEOUT_SLACK_US, self._timed_out, transfer)

    def _timed_out(self, transfer: "_Transfer") -> None:
        if transfer.source.receive is None:
            return
        if transfer.tries_left:
            self._transmit(transfer)
            return
        self.failed_total += 1
        if transfer.failed is not None:
            transfer.failed()

    def _link(self, done: Callable[["_Transfer"], None]) -> "_FifoLink | _FairLink":
        return _FifoLink(self._kernel, done) if self._fifo else _FairLink(self._kernel, done)


class _Port:
    """One life of a host: what was meant for it never reaches the next one. Without `receive` it is over."""

    __slots__ = ("address", "down", "receive", "round_trips", "up")

    def __init__(self, address: int, receive: Callable[[int, object], None] | None) -> None:
        self.address, self.receive = address, receive
        self.up: _FifoLink | _FairLink | None = None
        self.down: _FifoLink | _FairLink | None = None
        self.round_trips: RoundTrips | None = None


@dataclass(slots=True, eq=False)
class _Transfer:
    """A message under way."""

    source: _Port
    target: _Port
    message: object
    size_bytes: int
    failed: Callable[[], None] | None
    tries_left: int
    # Only with Retransmission.
    sent_us: int = -1  # the first time
    timeout_us: int = 0
    timer: Event = NO_EVENT
    is_repeated: bool = False
    is_delivered: bool = False


class _FifoLink:
    """One at a time: a transfer begins when the one before it is done."""

    __slots__ = ("_done", "_free_us", "_kernel")

    def __init__(self, kernel: Kernel, done: Callable[[_Transfer], None]) -> None:
        self._kernel, self._done = kernel, done
        self._free_us = 0.0  # not rounded, or many small messages would add up to a wrong rate

    def enter(self, transfer: _Transfer, alone_us: float) -> None:
        """Queue a transfer that takes so long; when it is through, `done` gets it."""
        kernel, free_us = self._kernel, self._free_us
        now_us = kernel.now_us
        self._free_us = free_us = (free_us if free_us > now_us else now_us) + alone_us
        kernel.after(round(free_us) - now_us, self._done, transfer)


class _FairLink:
    """Processor sharing: each of n transfers gets 1/n of the link.

    Virtual time is the service that each of those present has got. It runs at 1/n of real time, so a transfer ends when
    virtual time has grown by what it would take alone: its end is known, in virtual time, from its beginning. Whoever
    ends first in virtual time ends first; only the real time of that one end is kept as an event.
    """

    __slots__ = ("_done", "_ends", "_entered", "_event", "_kernel", "_since_us", "_virtual_us")

    def __init__(self, kernel: Kernel, done: Callable[[_Transfer], None]) -> None:
        self._kernel, self._done = kernel, done
        self._virtual_us = 0.0
        self._since_us = 0.0  # the instant at which virtual time was that; ends are not rounded, only their events
        self._ends: list[tuple[float, int, _Transfer]] = []
        self._entered = 0
        self._event: Event = NO_EVENT

    def enter(self, transfer: _Transfer, alone_us: float) -> None:
        """Let a transfer that takes so long alone share the link; when it is through, `done` gets it."""
        through = self._advance()
        if not self._ends:
            self._virtual_us = 0.0  # a fresh start keeps the numbers small and so exact
        self._entered += 1
        heappush(self._ends, (self._virtual_us + alone_us, self._entered, transfer))
        self._schedule()
        for each in through:
            self._done(each)

    def _ring(self) -> None:
        self._event = NO_EVENT
        through = self._advance()
        self._schedule()
        for each in through:
            self._done(each)

    def _advance(self) -> list[_Transfer]:
        """Bring virtual time up to now, and take out what has ended by then."""
        now_us, ends, through = self._kernel.now_us, self._ends, []
        while ends:
            end_us = self._since_us + (ends[0][0] - self._virtual_us) * len(ends)
            if end_us > now_us + _TOLERANCE_US:
                break
            self._virtual_us, self._since_us = ends[0][0], end_us
            through.append(heappop(ends)[2])
        if ends:
            self._virtual_us += max(0.0, now_us - self._since_us) / len(ends)
        self._since_us = now_us
        return through

    def _schedule(self) -> None:
        self._kernel.cancel(self._event)
        self._event = NO_EVENT
        if self._ends:
            end_us = self._since_us + (self._ends[0][0] - self._virtual_us) * len(self._ends)
            self._event = self._kernel.at(max(self._kernel.now_us, ceil(end_us - _TOLERANCE_US)), self._ring)


_TOLERANCE_US = 1e-6  # below which an end is not after an instant but at it
