"""What a node has copies of: the state of others, which it goes on with, or hands on, when they are gone.

Whoever gives copies says from time to time which arc is its own. What was given by a node that has not claimed the key
for a while, and by nobody else since, is unknown to the key's owner: the giver has died, and a new node has come into
its arc before this one took over.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from watersmeet.program.rjoin.arrays import Ints
from watersmeet.sim.overlays.identifiers import is_between
from watersmeet.sim.overlays.router import Address, Arc


@dataclass
class _Copy:
    """What one node kept for a key."""

    claimed_us: int
    rows: dict[bytes, Ints] = field(default_factory=dict)
    tuples: set[int] = field(default_factory=set)


class Copies:
    """Copies by giver and key; `point_of` says where on the circle a key is."""

    def __init__(self, width: int, point_of: Callable[[int], int]) -> None:
        self._width, self._point_of = width, point_of
        self._given: dict[Address, dict[int, _Copy]] = {}

    @property
    def size(self) -> tuple[int, int]:
        """How many rows and tuples there are copies of."""
        copies = [copy for given in self._given.values() for copy in given.values()]
        return sum(len(copy.rows) for copy in copies), sum(len(copy.tuples) for copy in copies)

    def take(self, giver: Address, key: int, rows: Ints, tuples: Ints, now_us: int) -> None:
        """More of what another node keeps for a key; the key is its own, then."""
        given = self._given.setdefault(giver, {})
        if key not in given:
            given[key] = _Copy(now_us)
        copy = given[key]
        copy.claimed_us = now_us
        copy.rows.update((row.tobytes(), row) for row in rows)
        copy.tuples.update(tuples.tolist())

    def claimed(self, giver: Address, arc: Arc | None, now_us: int) -> None:
        """A node says that it is there and what is its own; or, without an arc, that it needs no copies here."""
        if arc is None:
            self._given.pop(giver, None)
            return
        for key, copy in self._given.get(giver, {}).items():
            if is_between(self._point_of(key), *arc):
                copy.claimed_us = now_us

    def within(self, arc: Arc) -> list[int]:
        """The keys of an arc."""
        keys = {key for given in self._given.values() for key in given}
        return sorted(key for key in keys if is_between(self._point_of(key), *arc))

    def pop(self, key: int) -> tuple[Ints, Ints]:
        """The rows and tuples of a key, which are forgotten here."""
        rows: dict[bytes, Ints] = {}
        tuples: set[int] = set()
        for given in self._given.values():
            copy = given.pop(key, None)
            if copy is not None:
                rows |= copy.rows
                tuples |= copy.tuples
        return self._arrays(rows, tuples)

    def pop_orphans(self, before_us: int) -> list[tuple[int, Ints, Ints]]:
        """Keys with what was given by nodes that have not claimed them since a time, and by no other; it is forgotten.

        What another node has given too is known to who claims the key now.
        """
        orphans: dict[int, list[_Copy]] = {}
        for given in self._given.values():
            for key in [key for key, copy in given.items() if copy.claimed_us < before_us]:
                orphans.setdefault(key, []).append(given.pop(key))
        found = []
        for key, copies in sorted(orphans.items()):
            others = [given[key] for given in self._given.values() if key in given]
            rows = {text: row for copy in copies for text, row in copy.rows.items()}
            tuples = set().union(*(copy.tuples for copy in copies))
            for other in others:
                rows = {text: row for text, row in rows.items() if text not in other.rows}
                tuples -= other.tuples
            if rows or tuples:
                found.append((key, *self._arrays(rows, tuples)))
        return found

    def sweep(self, is_row_needed: Callable[[Ints], bool], needed: Callable[[int, Iterable[int]], set[int]]) -> None:
        """Forget rows and, by key, tuples that are of no use any more."""
        for given in self._given.values():
            for key, copy in list(given.items()):
                copy.rows = {text: row for text, row in copy.rows.items() if is_row_needed(row)}
                copy.tuples = needed(key, copy.tuples)
                if not copy.rows and not copy.tuples:
                    del given[key]
        self._given = {giver: given for giver, given in self._given.items() if given}

    def _arrays(self, rows: dict[bytes, Ints], tuples: set[int]) -> tuple[Ints, Ints]:
        numbers = np.array(list(rows.values()), np.int32).reshape(-1, self._width)
        return numbers, np.array(sorted(tuples), np.int32)
