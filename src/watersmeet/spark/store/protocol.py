"""What is needed of an object store: whole objects by key, and writes that only take place on a condition.

A commit is one conditional write, so it is atomic and of two writers one is refused, wherever they run. A store that
cannot do that is refused (`check_conditions`): nothing else that it offers would make up for it.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from watersmeet.errors import RunError


class StoreFailed(RunError):
    """The store does not answer, or refuses what it was asked for."""


class Conflict(RunError):
    """A conditional write was refused: somebody else has written since."""


class Version(NamedTuple):
    """Which of the objects that had a key, one after the other, is meant; each store fills in what it goes by."""

    e_tag: str | None
    number: str | None = None


@dataclass(frozen=True, slots=True)
class ObjectData:
    """An object as it was read."""

    data: bytes
    version: Version


class Store(Protocol):
    """Objects below one URL, by keys with slashes; `StoreFailed` where nothing else is said."""

    @property
    def url(self) -> str:
        """Where it is."""

    def below(self, prefix: str) -> "Store":
        """The objects whose keys start so."""

    def get(self, key: str) -> ObjectData | None:
        """An object; None if there is none."""

    def has(self, key: str) -> bool:
        """Whether there is an object."""

    def download(self, key: str, target: Path) -> bool:
        """Write the bytes of an object to a file; False if there is none."""

    def put(self, key: str, data: bytes | Path) -> None:
        """Write an object, or a copy of a file, whatever is there: for keys that only one writer ever uses."""

    def create(self, key: str, data: bytes) -> Version:
        """Write an object where there is none; `Conflict` if there is one with other contents."""

    def replace(self, key: str, data: bytes, version: Version) -> Version:
        """Write an object over that version of it; `Conflict` if there is another one with other contents."""

    def sizes(self, prefix: str = "") -> Mapping[str, int]:
        """The keys that start so, with the sizes of their objects."""

    def places(self) -> list[str]:
        """What comes before the first slash of keys."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, if they are there."""


def check_conditions(store: Store) -> None:
    """Refuse a store that takes writes whose condition does not hold, as some imitations of S3 do."""
    key = f".trial-{uuid.uuid4().hex[:12]}"
    first = store.create(key, b"1")
    try:
        second = store.replace(key, b"2", first)
        refused: tuple[Callable[[], Version], ...] = (
            lambda: store.create(key, b"3"),
            lambda: store.replace(key, b"4", first),
        )
        for attempt in refused:
            with suppress(Conflict):
                attempt()
                raise StoreFailed(
                    f"{store.url} takes conditional writes whose condition does not hold (If-None-Match, If-Match), so "
                    "commits would not be atomic; use a store that knows them, or a directory"
                )
        store.replace(key, b"5", second)
    finally:
        store.delete([key])
