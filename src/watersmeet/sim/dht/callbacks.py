"""Callbacks of one node that are limited to a prefix of objects' names (PIER, section 3.2.4)."""

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from watersmeet.sim.dht.messages import Item

Cancel: TypeAlias = Callable[[], None]  # ends what the call that returned it began; a second time it does nothing
CallbackT = TypeVar("CallbackT")


class PrefixCallbacks(Generic[CallbackT]):
    """Callbacks by namespace and the beginning of the key; without a namespace they are for all objects."""

    __slots__ = ("_anywhere", "_in_namespace", "_total")

    def __init__(self) -> None:
        self._in_namespace: dict[str, dict[int, tuple[str, CallbackT]]] = {}
        self._anywhere: dict[int, CallbackT] = {}
        self._total = 0

    def add(self, namespace: str | None, key_prefix: str, callback: CallbackT) -> Cancel:
        """From now on `matching` has it for objects of such names."""
        if namespace is None and key_prefix:
            raise ValueError(f"a prefix of a name begins with the namespace: there is none before key {key_prefix!r}")
        self._total += 1
        if namespace is None:
            self._anywhere[self._total] = callback
        else:
            self._in_namespace.setdefault(namespace, {})[self._total] = (key_prefix, callback)
        return partial(self._remove, namespace, self._total)

    def matching(self, item: Item) -> list[CallbackT]:
        """Those for an object, in the order in which they were added."""
        here = self._in_namespace.get(item.namespace)
        if here is None:
            return list(self._anywhere.values()) if self._anywhere else []
        key = item.key
        if not self._anywhere:
            return [callback for prefix, callback in here.values() if key.startswith(prefix)]
        found = {number: callback for number, (prefix, callback) in here.items() if key.startswith(prefix)}
        found |= self._anywhere
        return [found[number] for number in sorted(found)]

    def _remove(self, namespace: str | None, number: int) -> None:
        if namespace is None:
            self._anywhere.pop(number, None)
        elif namespace in self._in_namespace:
            self._in_namespace[namespace].pop(number, None)
            if not self._in_namespace[namespace]:
                del self._in_namespace[namespace]
