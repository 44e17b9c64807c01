"""Requests of one node: find the owner, ask it, and start over with the lookup if it does not reply in time.

A request to an address needs no lookup; it is repeated there.
"""

from collections.abc import Callable
from functools import partial

from watersmeet.sim.dht.messages import AddressLookup, Located, Operation, Reply
from watersmeet.sim.dht.settings import DhtSettings
from watersmeet.sim.kernel import NO_EVENT, Event, Kernel
from watersmeet.sim.overlays.node import OverlayNode
from watersmeet.sim.overlays.router import Address


class _Request:
    __slots__ = ("address", "attempt", "finish", "operation", "timer", "until_us")

    def __init__(
        self, operation: Operation, finish: Callable[[Reply | None], None], address: Address | None, until_us: int
    ) -> None:
        self.operation, self.finish, self.address, self.until_us = operation, finish, address, until_us
        self.attempt = 0
        self.timer: Event = NO_EVENT


class Requests:
    """The puts, gets and renewals that are under way; `on_host_down` as in `Replicas`."""

    __slots__ = ("_kernel", "_node", "_on_host_down", "_open", "_settings", "_total")

    def __init__(
        self, kernel: Kernel, node: OverlayNode, settings: DhtSettings, *, on_host_down: Callable[[], None]
    ) -> None:
        self._kernel, self._node, self._settings, self._on_host_down = kernel, node, settings, on_host_down
        self._open: dict[int, _Request] = {}
        self._total = 0

    def start(
        self,
        operation: Callable[[int], Operation],
        finish: Callable[[Reply | None], None],
        address: Address | None = None,
        until_us: int = 0,
    ) -> None:
        """Make a request of its number, and call `finish` with the reply, or with None after the last attempt.

        Up to an instant there is always another attempt.
        """
        self._total += 1
        self._open[self._total] = _Request(operation(self._total), finish, address, until_us)
        self._try(self._total)

    def located(self, owner: Address, message: Located) -> None:
        """The owner is known: ask it directly."""
        request = self._open.get(message.request)
        if request is not None and request.attempt == message.attempt:
            self._ask(owner, message.request, request)

    def replied(self, reply: Reply) -> None:
        """The owner has replied."""
        request = self._open.pop(reply.request, None)
        if request is not None:
            self._kernel.cancel(request.timer)
            request.finish(reply)

    def clear(self) -> None:
        """Give all requests up without a word to who made them."""
        for request in self._open.values():
            self._kernel.cancel(request.timer)
        self._open.clear()

    def _try(self, number: int) -> None:
        """Begin once more with the lookup: who did not reply may be dead, or not the owner any more."""
        if not self._node.is_up:
            self._on_host_down()
            return
        request = self._open[number]
        if request.attempt >= self._settings.tries and self._kernel.now_us >= request.until_us:
            del self._open[number]
            request.finish(None)
            return
        request.attempt += 1
        request.timer = self._kernel.after(self._settings.timeout_us, self._try, number)
        if request.operation.target is None:
            assert request.address is not None
            self._ask(request.address, number, request)
            return
        message = AddressLookup(number, request.attempt)
        self._node.route(request.operation.target, message, message.size_bytes)

    def _ask(self, owner: Address, number: int, request: _Request) -> None:
        unreachable = partial(self._unreachable, number, request.attempt)
        self._node.direct(owner, request.operation, request.operation.size_bytes, unreachable)

    def _unreachable(self, number: int, attempt: int) -> None:
        request = self._open.get(number)
        if request is not None and request.attempt == attempt:
            self._kernel.cancel(request.timer)
            self._try(number)
