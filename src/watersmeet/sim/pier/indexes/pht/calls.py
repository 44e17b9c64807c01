"""Requests to the owners of trie nodes, by label: routed there, answered directly, repeated if there is no reply."""

from collections.abc import Callable

from watersmeet.sim.dht.messages import Item
from watersmeet.sim.dht.node import Dht, Passage
from watersmeet.sim.kernel import NO_EVENT, Event, Kernel
from watersmeet.sim.overlays.identifiers import identifier_of
from watersmeet.sim.overlays.router import Address
from watersmeet.sim.pier.indexes.pht.labels import Label
from watersmeet.sim.pier.indexes.pht.messages import Action, PhtOutcome, PhtReply, PhtRequest, PhtSettings

# One namespace for the requests of all indexes, and one for their trie nodes: a peer need not know an index before it
# owns a part of it.
REQUESTS, NODES = "pht.requests", "pht.nodes"


def name_of(index: str, label: Label = "") -> str:
    """The key of a trie node in its namespace; none of one index begins as those of another do."""
    return f"{len(index)}:{index}/{label}"


def index_of(name: str) -> str:
    """The index of such a key.

    >>> index_of(name_of("a/b", "0110"))
    'a/b'
    """
    length, _, rest = name.partition(":")
    return rest[: int(length)]


class _Call:
    __slots__ = ("action", "busy_left", "label", "replied", "timer", "tries_left")

    def __init__(
        self, label: Label, action: Action, replied: Callable[[PhtReply | None], None], settings: PhtSettings
    ) -> None:
        self.label, self.action, self.replied = label, action, replied
        self.tries_left, self.busy_left = settings.tries, settings.busy_tries
        self.timer: Event = NO_EVENT


class LabelCalls:
    """One node's requests of an index, and those that it gets; `serve(request)` returns the reply, if it has one."""

    __slots__ = ("_dht", "_kernel", "_name", "_open", "_serve", "_settings", "_total")

    def __init__(
        self, kernel: Kernel, dht: Dht, name: str, settings: PhtSettings, serve: Callable[[PhtRequest], PhtReply | None]
    ) -> None:
        self._kernel, self._dht, self._name, self._settings, self._serve = kernel, dht, name, settings, serve
        self._open: dict[int, _Call | Callable[[PhtReply], None]] = {}
        self._total = 0
        dht.upcall(REQUESTS, self.arrived, name_of(name), [Passage.ARRIVED])
        dht.node.on_direct(self._received)

    def point(self, label: Label) -> int:
        """The point of the circle whose owner has a trie node."""
        return identifier_of(f"{NODES}.{name_of(self._name, label)}")

    def call(self, label: Label, action: Action, replied: Callable[[PhtReply | None], None]) -> None:
        """Ask the owner of a trie node; None: nobody has replied, or it was busy for too long."""
        self._total += 1
        self._open[self._total] = _Call(label, action, replied, self._settings)
        self._try(self._total)

    def tell(self, label: Label, action: Action) -> None:
        """Ask and want no reply."""
        self._route(PhtRequest(self._name, 0, self._dht.node.address, label, action))

    def listen(self, replied: Callable[[PhtReply], None]) -> int:
        """A number for `ask`: all replies to it go here until `close`."""
        self._total += 1
        self._open[self._total] = replied
        return self._total

    def ask(self, number: int, label: Label, action: Action) -> None:
        """Send a request under a number that is listened to; it is not repeated."""
        self._route(PhtRequest(self._name, number, self._dht.node.address, label, action))

    def pass_on(self, request: PhtRequest, label: Label) -> None:
        """Hand a request to another trie node, whose reply goes to who asked first."""
        self._route(PhtRequest(self._name, request.number, request.asker, label, request.action))

    def reply(self, asker: Address, reply: PhtReply) -> None:
        """Reply to a request."""
        self._dht.node.direct(asker, reply, reply.size_bytes)

    def is_open(self, number: int) -> bool:
        """Whether replies to a number are wanted: not after a crash of this peer."""
        return number in self._open

    def close(self, number: int) -> None:
        """Ignore what is still replied to a number."""
        self._open.pop(number, None)

    def clear(self) -> None:
        """Give everything up, without a word to who asked."""
        for call in self._open.values():
            if isinstance(call, _Call):
                self._kernel.cancel(call.timer)
        self._open.clear()

    def _route(self, request: PhtRequest) -> None:
        # The object is stopped where it arrives, so its lifetime does not matter; the label is in its name.
        self._dht.send(
            REQUESTS,
            name_of(self._name, request.label),
            "",
            request,
            1,
            request.size_bytes,
            target=self.point(request.label),
        )

    def _try(self, number: int) -> None:
        call = self._open.get(number)
        if not isinstance(call, _Call) or not self._dht.node.is_up:
            return
        if not call.tries_left:
            del self._open[number]
            call.replied(None)
            return
        call.tries_left -= 1
        call.timer = self._kernel.after(self._settings.timeout_us, self._try, number)
        self._route(PhtRequest(self._name, number, self._dht.node.address, call.label, call.action))

    def arrived(self, item: Item) -> None:
        """A request for a trie node that is here: it is served, and goes no further."""
        request = item.value
        assert isinstance(request, PhtRequest)
        reply = self._serve(request)
        if reply is not None and request.number:
            self.reply(request.asker, reply)

    def _received(self, sender: Address, payload: object) -> None:
        if not isinstance(payload, PhtReply) or payload.index != self._name:
            return
        call = self._open.get(payload.number)
        if call is None:
            return
        if not isinstance(call, _Call):
            call(payload)
            return
        self._kernel.cancel(call.timer)
        if payload.outcome is PhtOutcome.BUSY and call.busy_left:
            call.busy_left -= 1
            call.tries_left = max(1, call.tries_left)
            call.timer = self._kernel.after(self._settings.busy_us, self._try, payload.number)
            return
        del self._open[payload.number]
        call.replied(payload)
