"""Links between named sites: at least once, perhaps reordered, twice or damaged, as a store-and-retry transport gives.

A message takes size * 8 / bandwidth to leave, one at a time in each direction of a link, then the latency and a jitter
of its own. The sender keeps it, and sends it again every retry interval, until an acknowledgement covers its number.
Numbers belong to one directed link; the receiver's runtime removes duplicates by them, and acknowledges duplicates too,
since the acknowledgement of the first may be what was lost.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from watersmeet.sim.kernel import NO_EVENT, Event, Kernel


@dataclass(frozen=True, slots=True)
class LinkModel:
    """One direction of a link; no bandwidth means that sending takes no time."""

    latency_us: int = 0
    bandwidth_bps: float | None = None
    jitter_us: int = 0
    loss: float = 0.0
    duplicate: float = 0.0
    damage: float = 0.0  # of messages that are bytes: how often one comes cut short or with a bit flipped

    def __post_init__(self) -> None:
        if self.latency_us < 0 or self.jitter_us < 0:
            raise ValueError(f"latency_us and jitter_us must not be negative: {self}")
        if self.bandwidth_bps is not None and not self.bandwidth_bps > 0:
            raise ValueError(f"bandwidth_bps must be positive, or None for no limit: {self}")
        if not 0 <= self.loss < 1:
            raise ValueError(
                f"loss must be in [0, 1), or nothing would ever arrive; disconnect cuts a site off: {self}"
            )
        if not 0 <= self.duplicate <= 1:
            raise ValueError(f"duplicate must be in [0, 1]: {self}")
        if not 0 <= self.damage < 1:
            raise ValueError(f"damage must be in [0, 1), or nothing would ever arrive whole: {self}")


@dataclass(slots=True)
class DirectionCounts:
    """What one direction of a link has carried; acknowledgements are free and not counted."""

    sent: int = 0  # messages, the first time
    retransmitted: int = 0
    lost: int = 0  # on the way, or at a site that was not there
    duplicated: int = 0
    damaged: int = 0
    bytes_first: int = 0  # payload sent the first time
    bytes_all: int = 0  # and with retransmissions


@dataclass(slots=True, eq=False)
class _Kept:
    """A message that its sender keeps until it is acknowledged."""

    number: int
    message: object
    size_bytes: int
    given_us: int
    sent_before: bool = False
    timer: Event = NO_EVENT


@dataclass(slots=True, eq=False)
class _Link:
    """One direction between two sites, made at its first use."""

    sender: str
    receiver: str
    model: LinkModel
    retry_us: int
    queue: deque[_Kept] | None  # what waits to leave; none without a bandwidth, since even an empty deque is large
    leaving: Event = NO_EVENT
    free_us: float = 0.0  # when all has left; not rounded, or many small messages would add up to a wrong rate
    acknowledged: int = -1
    kept: dict[int, _Kept] = field(default_factory=dict)
    traffic: DirectionCounts = field(default_factory=DirectionCounts)


Observer: TypeAlias = Callable[[str, str, int, int], object]  # sender, receiver, bytes, microseconds under way


class Network:
    """Carries opaque messages between sites; the model of a link is asked for once, at its first use."""

    def __init__(self, kernel: Kernel, model_of: Callable[[str, str], LinkModel], retry_us: int | None = None) -> None:
        if retry_us is not None and retry_us <= 0:
            raise ValueError(f"retry_us must be positive, or time would stand still: {retry_us}")
        self._kernel, self._model_of, self._retry_us = kernel, model_of, retry_us
        self._receivers: dict[str, Callable[[str, object], None]] = {}
        self._down: set[str] = set()
        self._links: dict[str, dict[str, _Link]] = {}
        self.observer: Observer | None = None

    def connect(self, site: str, receive: Callable[[str, object], None]) -> None:
        """From now on `receive(sender, message)` gets what arrives at the site."""
        self._receivers[site] = receive
        self._down.discard(site)

    def disconnect(self, site: str) -> None:
        """Make a site unreachable: messages and acknowledgements that arrive there are lost until it connects."""
        self._receivers.pop(site, None)
        self._down.add(site)

    def send(self, sender: str, receiver: str, number: int, message: object, size_bytes: int) -> None:
        """Send a message until it is acknowledged; one that is under way or acknowledged already is not sent anew."""
        if number < 0 or size_bytes < 0:
            raise ValueError(f"number and size_bytes must not be negative: {number}, {size_bytes}")
        link = self._link(sender, receiver)
        if number > link.acknowledged and number not in link.kept:
            link.kept[number] = kept = _Kept(number, message, size_bytes, self._kernel.now_us)
            self._enqueue(link, kept)

    def acknowledge(self, receiver: str, sender: str, upto: int) -> None:
        """Tell `sender` that all its numbers <= `upto` are durable at `receiver`; it takes time and may be lost."""
        model = self._link(receiver, sender).model
        if not (model.loss and self._kernel.random.random() < model.loss):
            self._kernel.after(self._delay_us(model), self._acknowledged, self._link(sender, receiver), upto)

    def forget(self, sender: str) -> None:
        """Lose all that a crashed sender keeps: what is on the wire still arrives, nothing is sent again.

        What was acknowledged stays so: the receiver has it for good, whoever remembers.
        """
        for link in self._links.get(sender, {}).values():
            for kept in link.kept.values():
                self._kernel.cancel(kept.timer)
            link.kept.clear()
            self._kernel.cancel(link.leaving)
            link.leaving, link.free_us = NO_EVENT, 0.0
            if link.queue is not None:
                link.queue.clear()

    def acknowledged(self, sender: str, receiver: str) -> int:
        """The highest number that the sender has heard to be durable at the receiver, -1 if none."""
        return self._link(sender, receiver).acknowledged

    def traffic(self, sender: str, receiver: str) -> DirectionCounts:
        """The counters of one direction of a link."""
        return self._link(sender, receiver).traffic

    def _link(self, sender: str, receiver: str) -> _Link:
        try:
            return self._links[sender][receiver]
        except KeyError:
            model = self._model_of(sender, receiver)
            retry_us = self._retry_us or 4 * (model.latency_us + model.jitter_us) + 1_000
            link = _Link(sender, receiver, model, retry_us, None if model.bandwidth_bps is None else deque())
            return self._links.setdefault(sender, {}).setdefault(receiver, link)

    def _enqueue(self, link: _Link, kept: _Kept) -> None:
        if link.queue is None:
            self._launch(link, kept)
            return
        link.queue.append(kept)
        if link.leaving == NO_EVENT:
            link.free_us = max(link.free_us, self._kernel.now_us)
            self._leave(link, link.queue)

    def _leave(self, link: _Link, queue: deque[_Kept]) -> None:
        link.leaving = NO_EVENT
        while queue and link.leaving == NO_EVENT:
            kept = queue.popleft()
            if kept.number > link.acknowledged:  # else a retransmission that has waited until nobody needs it
                link.free_us += kept.size_bytes * 8e6 / (link.model.bandwidth_bps or 1)
                link.leaving = self._kernel.at(round(link.free_us), self._left, link, queue, kept)

    def _left(self, link: _Link, queue: deque[_Kept], kept: _Kept) -> None:
        self._launch(link, kept)
        self._leave(link, queue)

    def _launch(self, link: _Link, kept: _Kept) -> None:
        """The last bit is on the wire: count it, draw its fate, and start to wait for the acknowledgement."""
        model, traffic, kernel = link.model, link.traffic, self._kernel
        traffic.bytes_all += kept.size_bytes
        timed = None if kept.sent_before or self.observer is None else kept  # one sent again may be answered late
        if kept.sent_before:
            traffic.retransmitted += 1
        else:
            kept.sent_before = True
            traffic.sent += 1
            traffic.bytes_first += kept.size_bytes
        if model.loss and kernel.random.random() < model.loss:
            traffic.lost += 1
        else:
            kernel.after(self._delay_us(model), self._arrive, link, self._carried(link, kept.message), timed)
            if model.duplicate and kernel.random.random() < model.duplicate:
                traffic.duplicated += 1
                kernel.after(self._delay_us(model), self._arrive, link, self._carried(link, kept.message))
        if kept.number > link.acknowledged:
            # From here and not from `send`, or a long queue would be sent twice before its first half has left.
            kept.timer = kernel.after(link.retry_us, self._retry, link, kept)

    def _carried(self, link: _Link, message: object) -> object:
        """A message as it comes out of the link."""
        random = self._kernel.random
        if not link.model.damage or not isinstance(message, bytes) or random.random() >= link.model.damage:
            return message
        link.traffic.damaged += 1
        place = random.randrange(len(message))
        if random.random() < 0.5:
            return message[:place]
        return message[:place] + bytes([message[place] ^ (1 << random.randrange(8))]) + message[place + 1 :]

    def _delay_us(self, model: LinkModel) -> int:
        if not model.jitter_us:
            return model.latency_us
        return model.latency_us + int(self._kernel.random.random() * (model.jitter_us + 1))

    def _arrive(self, link: _Link, message: object, timed: _Kept | None = None) -> None:
        receive = self._receivers.get(link.receiver)
        if receive is None:
            link.traffic.lost += 1
            return
        if timed is not None and self.observer is not None:
            self.observer(link.sender, link.receiver, timed.size_bytes, self._kernel.now_us - timed.given_us)
        receive(link.sender, message)

    def _retry(self, link: _Link, kept: _Kept) -> None:
        if kept.number > link.acknowledged:
            self._enqueue(link, kept)
        else:
            del link.kept[kept.number]

    def _acknowledged(self, link: _Link, upto: int) -> None:
        if upto <= link.acknowledged or link.sender in self._down:
            return
        link.acknowledged = upto
        # Numbers are nearly always sent in order, so those covered are in front; a straggler goes when its timer rings.
        while link.kept and (number := next(iter(link.kept))) <= upto:
            self._kernel.cancel(link.kept.pop(number).timer)
