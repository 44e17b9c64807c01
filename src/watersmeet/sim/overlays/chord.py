"""The dynamic Chord protocol (Stoica et al., 2001 and 2003): join, stabilise, notify, fix fingers, successor lists.

A node needs only its right successor for lookups to be right; fingers make them short. Stabilising mends successors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from watersmeet.sim.internet.hosts import Internet
from watersmeet.sim.kernel import NO_EVENT, Event, Kernel
from watersmeet.sim.overlays.identifiers import ID_BITS, SPACE
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.overlays.router import Address, Arc

_MASK = SPACE - 1
_HEADER_BYTES = 28 + 2  # IPv4 and UDP, and the kind of message
_PEER_BYTES = 14  # identifier 8, IPv4 address 4, port 2
_LOOKUP_HOPS_MAX = 128
_JOIN = -1  # in place of a finger's exponent: who asks wants to join


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node: its point on the circle and its address."""

    identifier: int
    address: Address


@dataclass(frozen=True, slots=True)
class ChordSettings:
    """How often a node looks after its pointers, and how many successors it keeps."""

    successors: int = 8
    stabilise_us: int = 1_000_000  # a round with the successor; also a silent predecessor is tried this often
    fix_finger_us: int = 1_000_000  # a lookup for one finger; there are about log2 N different ones
    join_retry_us: int = 3_000_000
    suspicion_us: int = 10_000_000  # how long other nodes' word for a peer that did not answer counts for nothing

    def __post_init__(self) -> None:
        for name in ("successors", "stabilise_us", "fix_finger_us", "join_retry_us", "suspicion_us"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive: {getattr(self, name)}")
        if self.suspicion_us < self.successors * self.stabilise_us:
            raise ValueError(
                f"suspicion_us must be at least {self.successors * self.stabilise_us}: "
                "so long a dead node can go round in the successor lists"
            )


# Lookups are recursive: a node hands the question on, and who knows the answer sends it straight to who asked. That is
# half the messages of an iterative lookup, and the node that meets a dead peer is the one that has it in its table.
# A question that is lost with a dying node is asked again by the next round of the timer.
#
# Once in each pass over the fingers a node asks its bootstrap for its own successor, as if it were new. In a ring that
# is whole it hears what it knows. If many die before the others know enough of each other, the ring falls into several
# that are each in order, which stabilising alone never joins again; this does.


@dataclass(frozen=True, slots=True)
class FindSuccessor:
    """Asks for the node responsible for a point; the reply goes to the asker."""

    target: int
    asker: Peer
    exponent: int
    hops: int = 0

    @property
    def size_bytes(self) -> int:
        return _HEADER_BYTES + 8 + _PEER_BYTES + 2


@dataclass(frozen=True, slots=True)
class SuccessorFound:
    """The reply to FindSuccessor."""

    exponent: int
    owner: Peer

    @property
    def size_bytes(self) -> int:
        return _HEADER_BYTES + 1 + _PEER_BYTES


@dataclass(frozen=True, slots=True)
class Stabilise:
    """To the successor: asks for its neighbours and names its sender as predecessor (stabilise and notify in one)."""

    sender: Peer
    predecessor: Peer | None  # of the sender, for the case that the sender dies
    is_joined: bool = True  # else it only asks: nobody may count on it before it knows its place

    @property
    def size_bytes(self) -> int:
        return _HEADER_BYTES + 2 * _PEER_BYTES + 1


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The reply to Stabilise: whom the answering node had for a predecessor, or before it if that was the asker."""

    predecessor: Peer | None
    successors: tuple[Peer, ...]

    @property
    def size_bytes(self) -> int:
        return _HEADER_BYTES + _PEER_BYTES * (1 + len(self.successors))


@dataclass(frozen=True, slots=True)
class Newcomer:
    """To the predecessor of a node that has just joined. Not in the paper: the gap lasts a latency and not a period."""

    sender: Peer

    @property
    def size_bytes(self) -> int:
        return _HEADER_BYTES + _PEER_BYTES


@dataclass(frozen=True, slots=True)
class Leaving:
    """The sender leaves: the pointers to be used in its place."""

    sender: Peer
    predecessor: Peer | None
    successors: tuple[Peer, ...]

    @property
    def size_bytes(self) -> int:
        return _HEADER_BYTES + _PEER_BYTES * (2 + len(self.successors))


@dataclass(frozen=True, slots=True)
class Absent:
    """The sender is not in the ring: the receiver knows it from an earlier session."""

    @property
    def size_bytes(self) -> int:
        return _HEADER_BYTES


@dataclass(frozen=True, slots=True)
class Ping:
    """Checks that the receiver is up: the transport's acknowledgement is the reply."""

    @property
    def size_bytes(self) -> int:
        return _HEADER_BYTES


ChordMessage: TypeAlias = FindSuccessor | SuccessorFound | Stabilise | Neighbours | Newcomer | Leaving | Absent | Ping


class Chord:
    """One node. It sends over the Internet; whoever has attached its address hands `receive` what comes in.

    Its arc is (predecessor, itself]. When the predecessor dies, the one before it is known from its last round; should
    that be gone as well, the nearest node known behind takes its place until a new predecessor calls. Until it has
    joined a node answers for its own point alone.
    """

    __slots__ = (
        "_after",
        "_before",
        "_bootstrap",
        "_exponent",
        "_finger_timer",
        "_fingers",
        "_heard_us",
        "_internet",
        "_is_hurrying",
        "_is_joined",
        "_is_running",
        "_join_timer",
        "_kernel",
        "_me",
        "_predecessor",
        "_settings",
        "_stabilise_timer",
        "_successors",
        "_suspects",
        "_watchers",
        "_width",
        "address",
        "identifier",
    )

    def __init__(
        self,
        kernel: Kernel,
        internet: Internet,
        address: Address,
        identifier: int,
        settings: ChordSettings = ChordSettings(),  # noqa: B008 - it is frozen
    ) -> None:
        if not 0 <= identifier < SPACE:
            raise ValueError(f"an identifier has {ID_BITS} bits: {identifier}")
        self.address, self.identifier = address, identifier
        self._kernel, self._internet, self._settings = kernel, internet, settings
        self._me = Peer(identifier, address)
        self._watchers: list[Callable[[Arc], None]] = []
        self._stabilise_timer: Event = NO_EVENT
        self._finger_timer: Event = NO_EVENT
        self._join_timer: Event = NO_EVENT
        self._is_running = False  # the timers are: else it repairs nothing
        self._is_joined = False
        self._forget()

    def _forget(self) -> None:
        self._bootstrap: Address | None = None
        self._successors: list[Peer] = []  # nearest first, without itself and without suspects
        self._predecessor: Peer | None = None
        self._before: Peer | None = None  # the predecessor's predecessor, as it last told
        self._heard_us = 0  # when the predecessor last called
        self._fingers: list[Peer | None] = [None] * ID_BITS
        self._exponent = 0  # of the finger to fix next
        self._is_hurrying = True  # the first time each finger is asked for as soon as the last is known
        self._suspects: dict[Address, int] = {}  # until when
        self._after, self._width = (self.identifier - 1) & _MASK, 1

    # What every router offers.

    def start(self, bootstrap: Address | None) -> None:
        """Join through a node of the ring, or begin one; what was known from an earlier life is forgotten."""
        self.stop()
        self._forget()
        self._is_running = True
        if bootstrap is None or bootstrap == self.address:
            self._joined()
        else:
            self._bootstrap = bootstrap
            self._join()

    def leave(self) -> None:
        """Hand the pointers over to both neighbours and fall silent."""
        if self._is_joined and self._successors:
            message = Leaving(self._me, self._predecessor, tuple(self._successors))
            neighbours = {self._successors[0].address: None}
            if self._predecessor is not None:
                neighbours[self._predecessor.address] = None
            for address in neighbours:
                self._send(address, message)
        self.stop()

    def stop(self) -> None:
        """Cancel the timers. The tables stay as they are, so that `next_hop` can still be asked."""
        for timer in (self._stabilise_timer, self._finger_timer, self._join_timer):
            self._kernel.cancel(timer)
        self._is_running = self._is_joined = False

    def receive(self, sender: Address, message: object) -> bool:
        """Take a maintenance message; False if it is none of Chord's."""
        if not isinstance(message, ChordMessage):
            return False
        self._suspects.pop(sender, None)
        if not self._is_joined and not isinstance(message, SuccessorFound | Neighbours | Absent):
            if not isinstance(message, Leaving):
                self._send(sender, Absent())
            return True
        match message:
            case FindSuccessor():
                self._find(message)
            case SuccessorFound():
                self._found(message)
            case Stabilise():
                self._stabilised_by(message)
            case Neighbours():
                self._meet(sender, message)
            case Newcomer():
                self._welcome(message.sender)
            case Leaving():
                self._bid_farewell(message)
            case Absent():
                self.suspect(sender)
            case Ping():
                pass
        self._settle_arc()
        return True

    def next_hop(self, target: int) -> Address | None:
        """The closest finger before the target, or the successor if that is the owner; None if this node is."""
        if (target - self._after - 1) & _MASK < self._width or not self._successors:
            return None
        me = self.identifier
        ahead = (target - me) & _MASK
        if ahead <= (self._successors[0].identifier - me) & _MASK:
            return self._successors[0].address
        fingers = self._fingers
        for exponent in range((ahead - 1).bit_length() - 1, -1, -1):
            finger = fingers[exponent]
            if finger is not None and (finger.identifier - me) & _MASK < ahead:
                return finger.address
        # No finger is known that is near enough: they are being mended, or not there yet.
        for peer in reversed(self._successors):
            if (peer.identifier - me) & _MASK < ahead:
                return peer.address
        raise AssertionError("the first successor precedes every target that is not its own")

    def suspect(self, address: Address) -> None:
        """A message to this node was not delivered: go by others until it calls, or others name it much later."""
        if address == self.address:
            return
        self._suspects[address] = self._kernel.now_us + self._settings.suspicion_us
        self._drop(address, self._before, ())
        self._settle_arc()

    def successors(self, count: int) -> Sequence[Address]:
        """Up to so many of the nodes that follow; there are never more than the settings say."""
        return [peer.address for peer in self._successors[:count]]

    def watch(self, changed: Callable[[Arc], None]) -> None:
        """Call `changed(arc)` from now on whenever the arc changes."""
        self._watchers.append(changed)

    @property
    def arc(self) -> Arc:
        """(predecessor, itself], as far as it knows."""
        return self._after, self.identifier

    @property
    def is_ready(self) -> bool:
        """Whether it has joined, and neither left nor stopped since."""
        return self._is_joined

    # What only Chord has: for tests and for those who draw the ring.

    @property
    def predecessor(self) -> Address | None:
        """The node before, if one is known."""
        return None if self._predecessor is None else self._predecessor.address

    @property
    def fingers(self) -> tuple[Address | None, ...]:
        """The first node 2^i or more after this one, for each i; None where it is not known or this node itself."""
        return tuple(None if finger is None else finger.address for finger in self._fingers)

    def adopt(
        self,
        predecessors: Sequence[Peer],
        successors: Sequence[Peer],
        fingers: Sequence[Peer | None],
        *,
        timers: bool,
    ) -> None:
        """Be in the ring at once, with these tables; predecessors and successors nearest first."""
        self.stop()
        self._forget()
        self._predecessor, self._before = (*predecessors, None, None)[:2]
        self._successors = list(successors[: self._settings.successors])
        self._fingers = list(fingers)
        self._is_hurrying = False
        self._is_running = timers
        self._joined()

    # Joining and leaving.

    def _join(self) -> None:
        assert self._bootstrap is not None
        self._join_timer = self._kernel.after(self._settings.join_retry_us, self._join)
        self._successors = []
        self._send(self._bootstrap, FindSuccessor(self.identifier, self._me, _JOIN))

    def _joined(self) -> None:
        self._kernel.cancel(self._join_timer)
        self._is_joined = True
        self._heard_us = self._kernel.now_us
        if self._is_running:
            chance = self._kernel.random
            settings = self._settings
            self._stabilise_timer = self._kernel.after(chance.randrange(settings.stabilise_us), self._stabilise_round)
            self._finger_timer = self._kernel.after(chance.randrange(settings.fix_finger_us), self._finger_round)
            if self._predecessor is not None and self._is_hurrying:
                self._send(self._predecessor.address, Newcomer(self._me))
        self._settle_arc()

    def _welcome(self, peer: Peer) -> None:
        if not self._successors or self._is_before_successor(peer):
            self._successors = [peer, *self._successors][: self._settings.successors]
            self._ask_successor()

    def _bid_farewell(self, message: Leaving) -> None:
        address = message.sender.address
        self._suspects[address] = self._kernel.now_us + self._settings.suspicion_us
        self._drop(address, message.predecessor, message.successors)

    def _drop(self, address: Address, predecessor: Peer | None, successors: tuple[Peer, ...]) -> None:
        """Do without a node; with what took its place, as far as that is known."""
        if self._predecessor is not None and self._predecessor.address == address:
            self._predecessor = predecessor if predecessor is not None and self._is_credible(predecessor) else None
            self._before = None
        elif self._before is not None and self._before.address == address:
            self._before = None
        replacements = [peer for peer in successors if self._is_credible(peer)]
        replacement = replacements[0] if replacements else None
        for exponent, finger in enumerate(self._fingers):
            if finger is not None and finger.address == address:
                self._fingers[exponent] = replacement
        if not any(peer.address == address for peer in self._successors):
            return
        was_first = self._successors[0].address == address
        known = {peer: None for peer in (*self._successors, *replacements) if peer.address != address}
        if not known:  # so many have died at once that the list was too short: anyone is better than nobody
            known = {peer: None for peer in (*self._fingers, self._predecessor) if peer is not None}
        self._successors = sorted(known, key=self._distance)[: self._settings.successors]
        if was_first:
            self._ask_successor()

    # Stabilising.

    def _stabilise_round(self) -> None:
        settings, now_us = self._settings, self._kernel.now_us
        self._stabilise_timer = self._kernel.after(settings.stabilise_us, self._stabilise_round)
        for address in [address for address, until_us in self._suspects.items() if until_us <= now_us]:
            del self._suspects[address]
        # A predecessor in good health calls once a period, so only a silent one is tried.
        if self._predecessor is not None and now_us - self._heard_us > 3 * settings.stabilise_us // 2:
            self._send(self._predecessor.address, Ping())
        if self._successors:
            self._ask_successor()
        elif self._bootstrap is not None:  # everyone it knew has died: into the ring again
            self._send(self._bootstrap, FindSuccessor(self.identifier, self._me, _JOIN))
        self._settle_arc()

    def _ask_successor(self) -> None:
        if self._successors and self._is_running:
            self._send(self._successors[0].address, Stabilise(self._me, self._predecessor, self._is_joined))

    def _stabilised_by(self, message: Stabilise) -> None:
        peer, predecessor = message.sender, self._predecessor
        if predecessor is not None and predecessor.address == peer.address:
            before = self._before
        elif predecessor is None and not self._successors:
            before = self._me
        else:
            before = predecessor
        self._send(peer.address, Neighbours(before, tuple(self._successors)))
        if not message.is_joined:
            return
        if predecessor is None or self._distance_from(predecessor, peer) < self._distance_from(predecessor, self._me):
            self._predecessor, self._before = peer, message.predecessor
            self._heard_us = self._kernel.now_us
        if not self._successors:
            self._successors = [peer]

    def _meet(self, sender: Address, message: Neighbours) -> None:
        if not self._successors or self._successors[0].address != sender or not self._is_running:
            return
        following = [self._successors[0]]
        for peer in message.successors:
            if peer.address == self.address:
                break
            if self._is_credible(peer) and peer != following[0]:
                following.append(peer)
        between = message.predecessor
        if between is not None and not self._is_credible(between):
            between = None
        if between is not None and self._is_before_successor(between):
            self._successors = [between, *following][: self._settings.successors]
            self._ask_successor()
            return
        self._successors = following[: self._settings.successors]
        if not self._is_joined:
            self._predecessor = between
            self._joined()
            self._ask_successor()
            self._finger_round()

    # Fingers.

    def _finger_round(self) -> None:
        self._kernel.cancel(self._finger_timer)
        self._finger_timer = self._kernel.after(self._settings.fix_finger_us, self._finger_round)
        if not self._successors:
            self._exponent, self._fingers = 0, [None] * ID_BITS
            return
        if self._exponent == 0:
            if self._bootstrap is not None and not self._is_hurrying:
                self._send(self._bootstrap, FindSuccessor(self.identifier, self._me, _JOIN))
            self._set_fingers(0, self._successors[0])
        if self._exponent < ID_BITS:
            target = (self.identifier + (1 << self._exponent)) & _MASK
            self._find(FindSuccessor(target, self._me, self._exponent))

    def _set_fingers(self, exponent: int, peer: Peer) -> None:
        """This is the finger, and also the one of every higher exponent that does not reach beyond it."""
        reach = self._distance(peer) or SPACE
        finger = None if peer == self._me else peer
        while exponent < ID_BITS and 1 << exponent <= reach:
            self._fingers[exponent] = finger
            exponent += 1
        self._exponent = exponent % ID_BITS
        if exponent == ID_BITS:
            self._is_hurrying = False

    def _find(self, message: FindSuccessor) -> None:
        owner = self._known_owner(message.target)
        if owner is None:
            hop = self.next_hop(message.target)
            assert hop is not None
            if message.hops < _LOOKUP_HOPS_MAX:
                self._send(hop, replace(message, hops=message.hops + 1))
        elif message.asker.address == self.address:
            self._found(SuccessorFound(message.exponent, owner))
        else:
            self._send(message.asker.address, SuccessorFound(message.exponent, owner))

    def _known_owner(self, target: int) -> Peer | None:
        if (target - self._after - 1) & _MASK < self._width or not self._successors:
            return self._me
        ahead = (target - self.identifier) & _MASK
        return self._successors[0] if ahead <= self._distance(self._successors[0]) else None

    def _found(self, message: SuccessorFound) -> None:
        if message.exponent != _JOIN:
            if self._is_joined and (message.owner == self._me or self._is_credible(message.owner)):
                self._set_fingers(message.exponent, message.owner)
                if self._is_hurrying:
                    self._finger_round()
        elif self._is_running and self._is_credible(message.owner):  # not itself, if it came back before it was missed
            self._welcome(message.owner)

    # Small things.

    def _send(self, address: Address, message: ChordMessage) -> None:
        self._internet.send(
            self.address, address, message, message.size_bytes, partial(self._undelivered, address, message)
        )

    def _undelivered(self, address: Address, message: ChordMessage) -> None:
        self.suspect(address)
        if not self._is_joined or not isinstance(message, FindSuccessor):
            return
        if message.exponent != _JOIN or message.asker.address != self.address:
            self._find(message)

    def _settle_arc(self) -> None:
        """Find out what the arc is now and tell the watchers if it is another."""
        if not self._is_joined:
            return
        if self._predecessor is not None:
            after = self._predecessor.identifier
        elif not self._successors:
            after = self.identifier
        else:
            known = [peer for peer in (*self._successors, *self._fingers) if peer is not None]
            after = max(known, key=self._distance).identifier
        if after != self._after:
            self._after, self._width = after, ((self.identifier - after - 1) & _MASK) + 1
            for changed in self._watchers:
                changed(self.arc)

    def _distance(self, peer: Peer) -> int:
        return (peer.identifier - self.identifier) & _MASK

    def _distance_from(self, start: Peer, end: Peer) -> int:
        return (end.identifier - start.identifier) & _MASK

    def _is_before_successor(self, peer: Peer) -> bool:
        return 0 < self._distance(peer) < self._distance(self._successors[0])

    def _is_credible(self, peer: Peer) -> bool:
        """Whether to believe what others say of a node: not while it does not answer."""
        return peer.address != self.address and self._suspects.get(peer.address, 0) <= self._kernel.now_us


def converged(
    kernel: Kernel,
    internet: Internet,
    ring: Ring,
    settings: ChordSettings = ChordSettings(),  # noqa: B008 - it is frozen
    *,
    timers: bool = False,
) -> list[Chord]:
    """The nodes of a ring that has converged, in its order. Without timers no message is sent, and nobody may die."""
    points = ring.identifiers
    peers = [Peer(int(point), int(address)) for point, address in zip(points, ring.addresses, strict=True)]
    fingers = np.stack([ring.owners(points + np.uint64(1 << exponent)) for exponent in range(ID_BITS)], axis=1)
    count = len(peers)
    nodes = []
    for number, peer in enumerate(peers):
        node = Chord(kernel, internet, peer.address, peer.identifier, settings)
        node.adopt(
            [peers[(number - step) % count] for step in range(1, min(3, count))],
            [peers[(number + step) % count] for step in range(1, min(settings.successors + 1, count))],
            [None if finger == number else peers[finger] for finger in fingers[number].tolist()],
            timers=timers,
        )
        nodes.append(node)
    return nodes
