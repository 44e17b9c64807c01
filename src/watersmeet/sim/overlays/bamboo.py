"""The dynamic Bamboo (PIER, section 2.3.1): leaf sets kept right by periodic exchange, prefix tables of near nodes.

Recovery is periodic: a failure is noted, and what replaces the lost neighbour comes with the next exchanges. Hearsay is
never believed: a node enters leaf set or table only after a message of its own, so that nobody revives the dead.
A point belongs to the numerically closest node; one midway between two belongs to the clockwise one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

from watersmeet.sim.internet.hosts import Internet
from watersmeet.sim.kernel import NO_EVENT, Event, Kernel
from watersmeet.sim.overlays.identifiers import ID_BITS, SPACE, distance
from watersmeet.sim.overlays.prefixes import BASE, DIGIT_BITS, Prefixes, arc_between, common_digits, digit_at
from watersmeet.sim.overlays.router import Address, Arc

HEADER_BYTES = 28  # IPv4 and UDP
FIELDS_BYTES = 20  # kind, identifier, a time or a row
PEER_BYTES = 14  # identifier 8, address and port 6

HOPS_MAX = 64  # while tables are wrong a message may go round in circles


@dataclass(frozen=True, slots=True)
class BambooSettings:
    """How much a node keeps, and how often it does what."""

    leaves_a_side: int = 4
    exchange_us: int = 5_000_000  # push and pull of the leaf set with one random leaf
    check_us: int = 5_000_000  # ping of every leaf that was not heard of since the last check
    local_tuning_us: int = 10_000_000  # ping of one table entry in turn, and the same row of its table
    global_tuning_us: int = 20_000_000  # lookup of a random point with a prefix of one's own
    first_timeout_us: int = 3_000_000  # of a ping, before there is an estimate; and of a join
    timeout_slack_us: int = 50_000  # beyond the mean round trip, at least
    timeout_most_us: int = 20_000_000
    pings: int = 3  # without an answer until a node is suspected, each with twice the timeout before
    probes_at_once: int = 4  # nodes of a message that are pinged only because they might be nearer
    measured_kept: int = 64  # round trips remembered
    forget_us: int = 300_000_000  # so long a suspected node is tried again and hearsay about it ignored

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: {self}")


class Peer(NamedTuple):
    """Another node: its point and where it is reached."""

    identifier: int
    address: Address


@dataclass(frozen=True, slots=True)
class Ping:
    """Checks that the receiver is up. The time comes back with the reply, so that repeated pings are told apart."""

    identifier: int
    is_member: bool
    sent_us: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The reply to Ping."""

    identifier: int
    is_member: bool
    sent_us: int  # of the ping


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Routed to whoever is closest to the joining node; on the way each node adds what the new table can use."""

    joiner: Peer
    gathered: tuple[Peer, ...] = ()
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Welcome:
    """The end of a join: nodes of which the leaf set and the table can be made."""

    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """The leaf set of a member, and those of its peers that are closest to the receiver."""

    identifier: int
    peers: tuple[Peer, ...]
    is_answer: bool


@dataclass(frozen=True, slots=True)
class AskRow:
    """Asks for a row of the receiver's routing table."""

    identifier: int
    row: int


@dataclass(frozen=True, slots=True)
class SeekPoint:
    """Routed to whoever is closest to a point: asks for it and its neighbours."""

    asker: Peer
    target: int
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Tell:
    """The reply to AskRow and Seek: peers that the asker may want."""

    identifier: int
    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class Bye:
    """The sender leaves, and these were its leaves."""

    peers: tuple[Peer, ...]


BambooMessage: TypeAlias = Ping | Pong | JoinRequest | Welcome | Exchange | AskRow | SeekPoint | Tell | Bye


class _Probe:
    """A ping that waits for its answer."""

    __slots__ = ("timeout_us", "timer", "tries_left")

    def __init__(self, timeout_us: int, tries_left: int) -> None:
        self.timeout_us, self.tries_left = timeout_us, tries_left
        self.timer: Event = NO_EVENT


class Bamboo:
    """One node of a Bamboo overlay, as `Router` has it. Whoever owns it attaches its host and hands it messages."""

    __slots__ = (
        "_after",
        "_arc",
        "_awaited",
        "_before",
        "_bootstrap",
        "_fresh",
        "_internet",
        "_is_running",
        "_kernel",
        "_known",
        "_leaf_addresses",
        "_offsets",
        "_probes",
        "_ring",
        "_round_trips",
        "_settings",
        "_suspected",
        "_table",
        "_timers",
        "_tuned_slot",
        "_watchers",
        "address",
        "identifier",
        "is_ready",
    )

    def __init__(
        self,
        kernel: Kernel,
        internet: Internet,
        address: Address,
        identifier: int,
        settings: BambooSettings | None = None,
    ) -> None:
        if not 0 <= identifier < SPACE:
            raise ValueError(f"an identifier has {ID_BITS} bits: {identifier}")
        self.address, self.identifier = address, identifier
        self._kernel, self._internet = kernel, internet
        self._settings = BambooSettings() if settings is None else settings
        self._watchers: list[Callable[[Arc], None]] = []
        self._timers: dict[str, Event] = {}
        self._probes: dict[Address, _Probe] = {}
        self._clear()

    def _clear(self) -> None:
        self.is_ready = self._is_running = False
        self._bootstrap: Address | None = None
        self._awaited: set[Address] = set()  # of a welcome: the join is done when all have answered or failed
        self._known: dict[Address, Peer] = {}  # leaves and table entries, nobody else
        self._table: dict[int, Peer] = {}  # by row * BASE + digit
        self._tuned_slot = -1  # the last one that was
        self._suspected: dict[Address, int] = {}  # since when
        self._round_trips: dict[Address, tuple[int, int]] = {}  # smoothed mean and deviation, in microseconds
        self._fresh: set[Address] = set()  # heard of since the last check
        self._after: list[Peer] = []  # leaves clockwise, nearest first
        self._before: list[Peer] = []  # and the other way
        self._leaf_addresses: set[Address] = set()
        self._ring = [Peer(self.identifier, self.address)]  # the leaf set and this node, clockwise
        self._offsets = [0]  # how far each of the ring is from its first
        self._arc: Arc = (self.identifier, self.identifier)

    # What a router is asked.

    @property
    def arc(self) -> Arc:
        """The points closest to this node, as far as it knows; (x, x] is the whole circle."""
        return self._arc

    def watch(self, changed: Callable[[Arc], None]) -> None:
        """From now on call `changed(arc)` whenever a member's arc is another than before, and when it becomes one."""
        self._watchers.append(changed)

    def next_hop(self, target: int) -> Address | None:
        """The next node towards the one responsible for a point; None if that is this node."""
        hop = self._next(target).address
        return None if hop == self.address else hop

    def successors(self, count: int) -> Sequence[Address]:
        """Up to so many others, in pairs: both neighbours share the arc of a node that is gone, then those beyond."""
        own = self.identifier
        near: dict[Address, None] = {}
        for after, before in zip(self._after, self._before, strict=True):
            is_clockwise_first = distance(own, after.identifier) <= distance(before.identifier, own)
            for peer in (after, before) if is_clockwise_first else (before, after):
                near[peer.address] = None
        return list(near)[:count]

    def leaves(self) -> list[Peer]:
        """The leaf set, clockwise from the furthest before, or from this node if it is all there are."""
        return [peer for peer in self._ring if peer.address != self.address]

    def entries(self) -> list[Peer]:
        """The nodes in the routing table, row by row."""
        return [self._table[slot] for slot in sorted(self._table)]

    def start(self, bootstrap: Address | None) -> None:
        """Join the overlay through a member, or begin one; after `leave` or `stop` it is a new life."""
        if self._is_running:
            raise RuntimeError(f"node {self.address} is running already")
        self._clear()
        self._is_running = True
        self._bootstrap = bootstrap
        if bootstrap is None:
            self._become_member()
        else:
            self._try_join(self._settings.first_timeout_us)

    def leave(self) -> None:
        """Tell the leaves, and stop; what is known is kept, so that messages under way can be handed on."""
        if self.is_ready:
            for leaf in self.leaves():
                others = tuple(peer for peer in self.leaves() if peer != leaf)
                self._send(leaf.address, Bye(others))
        self.stop()

    def stop(self) -> None:
        """Cancel every timer, tell nobody."""
        self.is_ready = self._is_running = False
        for event in self._timers.values():
            self._kernel.cancel(event)
        for probe in self._probes.values():
            self._kernel.cancel(probe.timer)
        self._timers.clear()
        self._probes.clear()
        self._awaited.clear()

    def suspect(self, address: Address) -> None:
        """Drop a node that could not be reached; it comes back with its next message or the answer to a later ping."""
        self._suspected.setdefault(address, self._kernel.now_us)
        self._end_probe(address)
        self._drop(address)
        self._no_longer_await(address)

    def receive(self, sender: Address, message: object) -> bool:
        """Take a maintenance message; False if it is none."""
        if not isinstance(message, BambooMessage):
            return False
        if self._is_running:
            self._act(sender, message)
        return True

    def _act(self, sender: Address, message: BambooMessage) -> None:
        match message:
            case Ping(identifier, is_member, sent_us):
                self._send(sender, Pong(self.identifier, self.is_ready, sent_us))
                self._heard(sender, identifier, is_member)
            case Pong(identifier, is_member, sent_us):
                self._end_probe(sender)
                self._measured(sender, self._kernel.now_us - sent_us)
                self._heard(sender, identifier, is_member, is_measured=True)
                self._no_longer_await(sender)
            case JoinRequest():
                if self.is_ready:
                    self._drop(message.joiner.address)  # its life before this one is over
                    self._pass_join(message)
            case Welcome(peers):
                self._welcomed(peers)
            case Exchange(identifier, peers, is_answer):
                self._heard(sender, identifier, is_member=True)
                self._learn(peers)
                if self.is_ready and not is_answer:
                    self._send(sender, Exchange(self.identifier, self._around(identifier, sender), is_answer=True))
            case AskRow(identifier, row):
                self._heard(sender, identifier, is_member=True)
                if self.is_ready:
                    self._send(sender, Tell(self.identifier, self._row(row, sender)))
            case SeekPoint():
                if self.is_ready:
                    self._pass_seek(message)
            case Tell(identifier, peers):
                self._heard(sender, identifier, is_member=True)
                self._learn(peers)
            case Bye(peers):
                self.suspect(sender)
                self._learn(peers)

    # Joining.

    def _try_join(self, timeout_us: int) -> None:
        """Ask again with twice the patience until somebody welcomes this node."""
        assert self._bootstrap is not None
        self._awaited.clear()
        self._send(self._bootstrap, JoinRequest(Peer(self.identifier, self.address)), lambda: None)
        retry_us = min(2 * timeout_us, self._settings.timeout_most_us)
        self._timers["join"] = self._kernel.after(timeout_us, self._try_join, retry_us)

    def _pass_join(self, message: JoinRequest) -> None:
        joiner = message.joiner
        if message.hops > HOPS_MAX or joiner.address == self.address:
            return
        row = common_digits(self.identifier, joiner.identifier)
        gathered = (*message.gathered, Peer(self.identifier, self.address), *self._row(row, joiner.address))
        hop = self._next(joiner.identifier)
        if hop.address == self.address:
            peers = dict.fromkeys((*self._around(joiner.identifier, joiner.address), *gathered))
            self._send(joiner.address, Welcome(tuple(peers)), lambda: None)
        else:
            again = partial(self._reroute, hop.address, partial(self._pass_join, message))
            self._send(hop.address, JoinRequest(joiner, gathered, message.hops + 1), again)

    def _welcomed(self, peers: Sequence[Peer]) -> None:
        if self.is_ready or self._awaited:
            return
        self._suspected.clear()
        self._awaited = {peer.address for peer in peers if peer.address != self.address}
        for peer in peers:
            self._ping(peer.address)

    def _no_longer_await(self, address: Address) -> None:
        if address in self._awaited:
            self._awaited.remove(address)
            if not self._awaited and self._known and not self.is_ready:
                self._become_member()

    def _become_member(self) -> None:
        self._kernel.cancel(self._timers.pop("join", NO_EVENT))
        self._awaited.clear()
        self.is_ready = True
        self._begin_periods()
        for leaf in self.leaves():
            self._send(leaf.address, Exchange(self.identifier, self._around(leaf.identifier, leaf.address), False))
        self._tell_watchers()

    # What is done again and again.

    def _begin_periods(self) -> None:
        settings = self._settings
        self._every("exchange", settings.exchange_us, self._exchange)
        self._every("check", settings.check_us, self._check_leaves)
        self._every("local tuning", settings.local_tuning_us, self._tune_locally)
        self._every("global tuning", settings.global_tuning_us, self._tune_globally)

    def _every(self, name: str, period_us: int, action: Callable[[], None]) -> None:
        """From a random instant within the first period on, or nodes that start together would act together."""
        first_us = self._kernel.random.randrange(period_us)
        self._timers[name] = self._kernel.after(first_us, self._again, name, period_us, action)

    def _again(self, name: str, period_us: int, action: Callable[[], None]) -> None:
        self._timers[name] = self._kernel.after(period_us, self._again, name, period_us, action)
        action()

    def _exchange(self) -> None:
        leaves = self.leaves()
        if leaves:
            leaf = self._kernel.random.choice(leaves)
            self._send(leaf.address, Exchange(self.identifier, self._around(leaf.identifier, leaf.address), False))
        elif self._bootstrap is not None:
            self._ping(self._bootstrap)

    def _check_leaves(self) -> None:
        for leaf in self.leaves():
            if leaf.address not in self._fresh:
                self._ping(leaf.address)
        self._fresh.clear()

    def _tune_locally(self) -> None:
        if self._table:
            slots = sorted(self._table)
            self._tuned_slot = slot = slots[bisect_right(slots, self._tuned_slot) % len(slots)]
            peer = self._table[slot]
            self._ping(peer.address)
            self._send(peer.address, AskRow(self.identifier, slot // BASE))
        expired_us = self._kernel.now_us - self._settings.forget_us
        self._suspected = {address: since for address, since in self._suspected.items() if since > expired_us}
        if self._suspected:
            self._ping(self._kernel.random.choice(sorted(self._suspected)))

    def _tune_globally(self) -> None:
        if not self._table:
            return
        random = self._kernel.random
        row = random.randrange(max(self._table) // BASE + 1)
        digit = (digit_at(self.identifier, row) + random.randrange(1, BASE)) % BASE
        tail_bits = ID_BITS - DIGIT_BITS * (row + 1)
        prefix = self.identifier >> tail_bits + DIGIT_BITS
        target = (prefix << DIGIT_BITS | digit) << tail_bits | random.getrandbits(tail_bits)
        self._pass_seek(SeekPoint(Peer(self.identifier, self.address), target))

    def _pass_seek(self, message: SeekPoint) -> None:
        if message.hops > HOPS_MAX:
            return
        asker, target = message.asker, message.target
        hop = self._next(target)
        if hop.address != self.address:
            again = partial(self._reroute, hop.address, partial(self._pass_seek, message))
            self._send(hop.address, SeekPoint(asker, target, message.hops + 1), again)
        elif asker.address != self.address:
            self._send(asker.address, Tell(self.identifier, self._around(target, asker.address)))

    def _reroute(self, address: Address, forward: Callable[[], None]) -> None:
        self.suspect(address)
        if self.is_ready:
            forward()

    # Who is there.

    def _heard(self, address: Address, identifier: int, is_member: bool, is_measured: bool = False) -> None:
        """A node spoke for itself: it is alive, and what it says of itself is believed."""
        known = self._known.get(address)
        if known is not None and (known.identifier != identifier or not is_member):
            self._drop(address)
            known = None
        if not is_member or address == self.address:
            return
        self._suspected.pop(address, None)
        self._fresh.add(address)
        if known is None or is_measured:
            self._adopt(Peer(identifier, address))

    def _learn(self, peers: Iterable[Peer]) -> None:
        """Somebody else spoke of these: ask those that would be of use."""
        probes_left = self._settings.probes_at_once
        for peer in peers:
            address = peer.address
            if address in self._known or address in self._suspected or address == self.address:
                continue
            if self._is_leaf(peer) or self._slot(peer) not in self._table:
                self._ping(address)
            elif probes_left and address not in self._round_trips:
                probes_left -= 1
                self._ping(address)

    def _adopt(self, peer: Peer) -> None:
        """Take a living node into the table, if its place is free or it is nearer, and into the leaf set, if closer."""
        self._known[peer.address] = peer
        slot = self._slot(peer)
        holder = self._table.get(slot)
        if holder is None:
            self._table[slot] = peer
        elif holder.address != peer.address and self._is_nearer(peer, holder):
            self._table[slot] = peer
            self._release(holder)
        if peer.address not in self._leaf_addresses and self._is_leaf(peer):
            self._arrange([*self._ring, peer])
        self._release(peer)

    def _is_nearer(self, peer: Peer, than: Peer) -> bool:
        mine, other = self._round_trips.get(peer.address), self._round_trips.get(than.address)
        return mine is not None and other is not None and mine[0] < other[0]

    def _is_leaf(self, peer: Peer) -> bool:
        """Whether a node belongs to the leaf set: it is closer than the furthest of a side, or there is room."""
        if len(self._ring) <= 2 * self._settings.leaves_a_side:
            return True
        first = self._ring[0].identifier
        return distance(first, peer.identifier) < distance(first, self._ring[-1].identifier)

    def _slot(self, peer: Peer) -> int:
        row = common_digits(self.identifier, peer.identifier)
        return row * BASE + digit_at(peer.identifier, row)

    def _release(self, peer: Peer) -> None:
        """Forget a node that has no place any more."""
        if peer.address not in self._leaf_addresses and self._table.get(self._slot(peer)) != peer:
            self._known.pop(peer.address, None)

    def _drop(self, address: Address) -> None:
        """Take a node out of leaf set and table; the closest of the others move up."""
        peer = self._known.pop(address, None)
        if peer is None:
            return
        slot = self._slot(peer)
        if self._table.get(slot) == peer:
            del self._table[slot]
            rivals = [leaf for leaf in self.leaves() if leaf.address != address and self._slot(leaf) == slot]
            if rivals:
                self._table[slot] = rivals[0]
        if address in self._leaf_addresses:
            self._arrange(self._known.values())

    def _arrange(self, peers: Iterable[Peer]) -> None:
        """Make the leaf set of the closest of these."""
        own, side = self.identifier, self._settings.leaves_a_side
        myself, leaves_before = Peer(own, self.address), self._ring
        others = sorted({peer for peer in peers if peer.address != self.address}, key=lambda p: distance(own, p[0]))
        self._after, self._before = others[:side], others[: -side - 1 : -1]
        if len(others) < 2 * side:  # the sides overlap
            self._ring = [myself, *others]
        else:
            self._ring = [*reversed(self._before), myself, *self._after]
        first = self._ring[0].identifier
        self._offsets = [distance(first, peer.identifier) for peer in self._ring]
        self._leaf_addresses = {peer.address for peer in self._ring if peer.address != self.address}
        for peer in leaves_before:
            if peer.address != self.address and self._known.get(peer.address) == peer:
                self._release(peer)
        arc = arc_between(self._before[0].identifier, own, self._after[0].identifier) if others else (own, own)
        if arc != self._arc:
            self._arc = arc
            if self.is_ready:
                self._tell_watchers()

    def _tell_watchers(self) -> None:
        for changed in self._watchers:
            changed(self._arc)

    # The way to a point, and what others may want to know.

    def _next(self, target: int) -> Peer:
        """The next node on the way, or this one if it is responsible."""
        ring, offsets = self._ring, self._offsets
        offset = (target - ring[0].identifier) % SPACE  # `distance` without a call: this is run at every hop
        if offset <= offsets[-1] or len(self._known) <= 2 * self._settings.leaves_a_side:
            place = bisect_left(offsets, offset)
            before, after = ring[place - 1], ring[place if place < len(ring) else 0]
            is_clockwise = (after.identifier - target) % SPACE <= (target - before.identifier) % SPACE
            return after if is_clockwise else before
        row = common_digits(self.identifier, target)
        entry = self._table.get(row * BASE + digit_at(target, row))
        if entry is not None:
            return entry
        # Nobody has a longer prefix. The leaf towards the target has one as long and is closer, so somebody is.
        as_long = (peer for peer in self._known.values() if common_digits(peer.identifier, target) >= row)
        return min(as_long, key=lambda peer: (_away(peer.identifier, target), peer))

    def _around(self, point: int, asker: Address) -> tuple[Peer, ...]:
        """The leaves of this node, and those it knows closest to a point on either side."""
        side = self._settings.leaves_a_side
        others = sorted(self._known.values(), key=lambda peer: distance(point, peer.identifier))
        peers = dict.fromkeys((*self._ring, *others[:side], *others[-side:]))
        return tuple(peer for peer in peers if peer.address not in (asker, self.address))

    def _row(self, row: int, asker: Address) -> tuple[Peer, ...]:
        slots = range(row * BASE, (row + 1) * BASE)
        found = (self._table.get(slot) for slot in slots)
        return tuple(peer for peer in found if peer is not None and peer.address != asker)

    # Messages and timeouts.

    def _ping(self, address: Address) -> None:
        if address == self.address or address in self._probes:
            return
        self._probes[address] = probe = _Probe(self._timeout_us(address), self._settings.pings)
        self._try_ping(address, probe)

    def _try_ping(self, address: Address, probe: _Probe) -> None:
        if not probe.tries_left:
            self.suspect(address)
            return
        probe.tries_left -= 1
        probe.timer = self._kernel.after(probe.timeout_us, self._try_ping, address, probe)
        probe.timeout_us = min(2 * probe.timeout_us, self._settings.timeout_most_us)
        self._send(address, Ping(self.identifier, self.is_ready, self._kernel.now_us))

    def _end_probe(self, address: Address) -> None:
        probe = self._probes.pop(address, None)
        if probe is not None:
            self._kernel.cancel(probe.timer)

    def _timeout_us(self, address: Address) -> int:
        """The mean round trip and four deviations, as TCP has it: a congested way is given time, not more messages."""
        measured = self._round_trips.get(address)
        if measured is None:
            return self._settings.first_timeout_us
        mean_us, deviation_us = measured
        slack_us = max(4 * deviation_us, self._settings.timeout_slack_us)
        return min(mean_us + slack_us, self._settings.timeout_most_us)

    def _measured(self, address: Address, round_trip_us: int) -> None:
        mean_us, deviation_us = self._round_trips.pop(address, (round_trip_us, round_trip_us))
        deviation_us += (abs(round_trip_us - mean_us) - deviation_us) // 4
        mean_us += (round_trip_us - mean_us) // 8
        self._round_trips[address] = (mean_us, deviation_us)  # the last, so that the oldest are forgotten first
        if len(self._round_trips) > self._settings.measured_kept + len(self._known):
            oldest = next((each for each in self._round_trips if each not in self._known), address)
            del self._round_trips[oldest]

    def _send(self, address: Address, message: BambooMessage, failed: Callable[[], None] | None = None) -> None:
        if isinstance(message, JoinRequest):
            peers = len(message.gathered) + 1
        elif isinstance(message, Welcome | Exchange | Tell | Bye):
            peers = len(message.peers)
        else:
            peers = 0
        size_bytes = HEADER_BYTES + FIELDS_BYTES + PEER_BYTES * peers
        if failed is None:
            failed = partial(self.suspect, address)
        self._internet.send(self.address, address, message, size_bytes, failed)

    def _settle(self, leaves: Sequence[Peer], entries: Sequence[Peer], timers: bool) -> None:
        """Become a member of the overlay with these peers."""
        for peer in entries:
            self._known[peer.address] = self._table[self._slot(peer)] = peer
        self._known |= {peer.address: peer for peer in leaves}
        self._arrange(leaves)
        self._is_running = self.is_ready = True
        if timers:
            self._begin_periods()


def _away(first: int, second: int) -> int:
    return min(distance(first, second), distance(second, first))


def converged(
    kernel: Kernel,
    internet: Internet,
    prefixes: Prefixes,
    settings: BambooSettings | None = None,
    *,
    timers: bool = False,
) -> list[Bamboo]:
    """Members of a converged overlay, by position; their hosts must be attached before the kernel runs.

    Without timers nothing is done again and again: few messages are sent, and nobody finds out who died.
    """
    if settings is None:
        settings = BambooSettings(leaves_a_side=prefixes.leaves_a_side)
    if settings.leaves_a_side != prefixes.leaves_a_side:
        raise ValueError(f"leaf sets differ: {settings.leaves_a_side} and {prefixes.leaves_a_side} a side")
    peers = [
        Peer(identifier, address)
        for identifier, address in zip(prefixes.identifiers.tolist(), prefixes.addresses.tolist(), strict=True)
    ]
    nodes = []
    for position, peer in enumerate(peers):
        node = Bamboo(kernel, internet, peer.address, peer.identifier, settings)
        node._settle(
            [peers[leaf] for leaf in prefixes.leaves(position)],
            [peers[entry] for entry in prefixes.entries(position)],
            timers,
        )
        nodes.append(node)
    return nodes
