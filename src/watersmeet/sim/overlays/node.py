"""Application messages over any overlay: recursive hop by hop, together as long as the way is the same, or direct.

`route`, `route_many` and `direct` are RJoin's send, multiSend and sendDirect; `on_transit` is PIER's upcall.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from watersmeet.sim.internet.hosts import Internet
from watersmeet.sim.kernel import NO_EVENT, Event, Kernel
from watersmeet.sim.overlays.router import Address, Router

HEADER_BYTES = 28  # IPv4 and UDP, once for each message on the wire
ENVELOPE_BYTES = 18  # target 8, origin 6, hops 2, length 2: once for each message in it

# No overlay that is in order needs this many hops: the message goes round where a node has died and its neighbours do
# not agree yet. So from here on it waits before each hop, and by HOPS_MAX the neighbours have had some ten seconds.
HOPS_CALM = 40
HOPS_MAX = 140
HOLD_US = 100_000  # how long it waits, as does one at a node that has not joined yet
LINGER_US = 1_000_000  # a node that has left hands on for so long what was under way to it

Deliver: TypeAlias = Callable[[Address, int, object, int], None]  # origin, target, payload, hops
Transit: TypeAlias = Callable[[int, object], object | None]  # target, payload; what goes on, or None to stop it
Receive: TypeAlias = Callable[[Address, object], None]  # sender, payload


@dataclass(frozen=True, slots=True)
class Routed:
    """A payload on its way to whoever is responsible for a point."""

    target: int
    payload: object
    size_bytes: int
    origin: Address
    hops: int = 0  # how often it was sent, in vain or not


@dataclass(frozen=True, slots=True)
class Bundle:
    """Payloads that have the same next hop."""

    messages: tuple[Routed, ...]


@dataclass(frozen=True, slots=True)
class Direct:
    """A payload for the host it is sent to."""

    payload: object


class OverlayNode:
    """A host that is part of an overlay; it is on the net from the beginning, `start` lets it join.

    Callbacks are asked in the order in which they were given. What a node sends to itself arrives at once, but never
    before the call that sent it has returned.
    """

    __slots__ = (
        "_deliver",
        "_internet",
        "_kernel",
        "_linger",
        "_receive",
        "_transit",
        "address",
        "dropped_total",
        "router",
        "sent_total",
        "stopped_total",
    )

    def __init__(self, kernel: Kernel, internet: Internet, router: Router) -> None:
        self.router, self.address = router, router.address
        self.sent_total = 0  # messages put on the wire, without the router's own
        self.dropped_total = 0  # messages that had travelled too long
        self.stopped_total = 0  # messages that a transit callback stopped
        self._kernel, self._internet = kernel, internet
        self._deliver: list[Deliver] = []
        self._transit: list[Transit] = []
        self._receive: list[Receive] = []
        self._linger: Event = NO_EVENT  # not NO_EVENT: the node has left
        internet.attach(self.address, self.receive)

    @property
    def is_up(self) -> bool:
        """Whether the host is on the net."""
        return self._internet.is_up(self.address)

    def start(self, bootstrap: Address | None) -> None:
        """Join the overlay, for the first time or after `leave` or `stop`."""
        self._end_linger()
        if not self.is_up:
            self._internet.attach(self.address, self.receive)
        self.router.start(bootstrap)

    def leave(self) -> None:
        """Leave gracefully: neighbours are told, and for a while whatever still arrives is handed on."""
        self.router.leave()
        self._end_linger()
        self._linger = self._kernel.after(LINGER_US, self._detach)

    def stop(self) -> None:
        """Crash: the host is off the net at once, and nobody learns of it."""
        self.router.stop()
        self._end_linger()
        self._detach()

    def on_deliver(self, callback: Deliver) -> None:
        """Call `callback(origin, target, payload, hops)` with what this node is responsible for."""
        self._deliver.append(callback)

    def on_transit(self, callback: Transit) -> None:
        """Let `callback(target, payload)` change or stop what others sent and others get; None stops it."""
        self._transit.append(callback)

    def on_direct(self, callback: Receive) -> Callable[[], None]:
        """Call `callback(sender, payload)` with what was sent to this very node, until the returned call ends it."""
        self._receive = [*self._receive, callback]  # a new list: the old one may be in use by `receive`
        return partial(self._remove_direct, callback)

    def _remove_direct(self, callback: Receive) -> None:
        self._receive = [each for each in self._receive if each != callback]

    def route(self, target: int, payload: object, size_bytes: int) -> None:
        """Send a payload to the node responsible for a point."""
        self._forward((Routed(target, payload, size_bytes, self.address),))

    def route_many(self, messages: Iterable[tuple[int, object, int]]) -> None:
        """Send payloads, each (target, payload, size_bytes), together as far as they have the same way."""
        self._forward([Routed(target, payload, size, self.address) for target, payload, size in messages])

    def direct(
        self, address: Address, payload: object, size_bytes: int, failed: Callable[[], None] | None = None
    ) -> None:
        """Send a payload to a host in one hop; `failed` is called if it cannot be reached."""
        if address != self.address:
            self.sent_total += 1
        self._internet.send(
            self.address, address, Direct(payload), HEADER_BYTES + size_bytes, partial(self._missed, address, failed)
        )

    def receive(self, sender: Address, message: object) -> None:
        """Take a message from the net: the application's, or else the router's."""
        if isinstance(message, Routed):
            self._pass_on((message,))
        elif isinstance(message, Bundle):
            self._pass_on(message.messages)
        elif isinstance(message, Direct):
            for callback in self._receive:
                callback(sender, message.payload)
        elif not self.router.receive(sender, message):
            raise TypeError(f"neither the node nor its router knows what this is: {message!r}")

    def _pass_on(self, messages: Sequence[Routed]) -> None:
        """Deliver what is for this node and show the rest to the transit callbacks before it goes on."""
        if not self._transit or not self.router.is_ready:
            self._forward(messages)
            return
        going: list[Routed] = []
        for message in messages:
            hop = self.router.next_hop(message.target)
            if hop is None:
                if len(messages) == 1 and message.hops:
                    self._arrived(message)  # as `_forward` would, without asking for the next hop again
                else:
                    going.append(message)
                continue
            payload: object | None = message.payload
            for callback in self._transit:
                if payload is not None:
                    payload = callback(message.target, payload)
            if payload is None:
                self.stopped_total += 1
            elif len(messages) == 1 and payload is message.payload and message.hops < HOPS_CALM:
                self._send_on(hop, message)
            else:
                going.append(message if payload is message.payload else replace(message, payload=payload))
        if going:
            self._forward(going)

    def _send_on(self, hop: Address, message: Routed) -> None:
        """Most messages travel alone: no need to group them by their next hop."""
        self.sent_total += 1
        sent = Routed(message.target, message.payload, message.size_bytes, message.origin, message.hops + 1)
        size_bytes = HEADER_BYTES + ENVELOPE_BYTES + message.size_bytes
        self._internet.send(self.address, hop, sent, size_bytes, partial(self._not_delivered, hop, (sent,)))

    def _forward(self, messages: Sequence[Routed], was_held: bool = False) -> None:
        """Send each message to its next hop, those with the same one as a bundle."""
        router, has_left = self.router, self._linger != NO_EVENT
        if not router.is_ready and not has_left:
            self._kernel.after(HOLD_US, self._forward_held, messages)
            return
        groups: dict[Address, list[Routed]] = {}
        arrived: list[Routed] = []
        for message in messages:
            hop = router.next_hop(message.target)
            if hop is None and has_left:
                hop = next(iter(router.successors(1)), None)
            if hop is None:
                arrived.append(message)
            elif message.hops >= HOPS_MAX:
                self.dropped_total += 1
            elif message.hops >= HOPS_CALM and not was_held:
                self._kernel.after(HOLD_US, self._forward_held, (message,))
            else:
                sent = Routed(message.target, message.payload, message.size_bytes, message.origin, message.hops + 1)
                if hop in groups:
                    groups[hop].append(sent)
                else:
                    groups[hop] = [sent]
        for hop, group in groups.items():
            self.sent_total += 1
            whole: Routed | Bundle = group[0]
            size_bytes = HEADER_BYTES + ENVELOPE_BYTES + group[0].size_bytes
            if len(group) > 1:
                whole = Bundle(tuple(group))
                size_bytes = HEADER_BYTES + sum(ENVELOPE_BYTES + message.size_bytes for message in group)
            self._internet.send(self.address, hop, whole, size_bytes, partial(self._not_delivered, hop, group))
        for message in arrived:
            if message.hops:
                self._arrived(message)
            else:  # the application is just sending it: its callback must not run inside its own call
                self._kernel.after(0, self._arrived, message)

    def _forward_held(self, messages: Sequence[Routed]) -> None:
        if self.router.is_ready or self._linger != NO_EVENT:
            self._forward(messages, was_held=True)
        elif self.is_up:  # waiting counts as a hop, so that it has an end
            self.dropped_total += sum(message.hops >= HOPS_MAX for message in messages)
            kept = [replace(message, hops=message.hops + 1) for message in messages if message.hops < HOPS_MAX]
            if kept:
                self._kernel.after(HOLD_US, self._forward_held, kept)

    def _arrived(self, message: Routed) -> None:
        if not self.is_up:
            return
        for callback in self._deliver:
            callback(message.origin, message.target, message.payload, message.hops)

    def _not_delivered(self, hop: Address, messages: Sequence[Routed]) -> None:
        self.router.suspect(hop)
        self._forward(messages)

    def _missed(self, address: Address, failed: Callable[[], None] | None) -> None:
        self.router.suspect(address)
        if failed is not None:
            failed()

    def _end_linger(self) -> None:
        self._kernel.cancel(self._linger)
        self._linger = NO_EVENT

    def _detach(self) -> None:
        self._internet.detach(self.address)
