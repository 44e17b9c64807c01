"""The keys that a shard knows, by number: their names and hosts, and where the lists of what is kept for them begin."""

from collections.abc import Callable, Sequence

import numpy as np

from watersmeet.program.rjoin import candidates, keys
from watersmeet.program.rjoin.arrays import NONE, Ints, KnownKeys, Longs
from watersmeet.program.rjoin.tables import Known, grown

HostsOf = Callable[[Sequence[str]], Ints]  # who hosts keys, given by their names


class KeyTable:
    """Keys get their numbers as they first occur; whoever hosts them is asked for then."""

    def __init__(self, known: Known, hosts_of: HostsOf) -> None:
        self.names: list[str] = []  # by number
        self.arrays = KnownKeys(
            slots=np.full(256, NONE, np.int64),
            number=np.zeros(256, np.int32),
            packed=np.zeros(128, np.int64),
            host=np.zeros(128, np.int32),
            first_row=np.full(128, NONE, np.int32),
            first_tuple=np.full(128, NONE, np.int32),
            seen=np.zeros(128, np.int64),
            seen_before=np.zeros(128, np.int64),
            epoch=np.full(128, NONE, np.int64),
        )
        self._known, self._hosts_of = known, hosts_of

    def __len__(self) -> int:
        return len(self.names)

    def numbers_of(self, attributes: Ints, values: Ints) -> Ints:
        """The numbers of keys, new ones where they are not known yet."""
        self._make_room(len(attributes))
        before = len(self.names)
        numbers, known = keys.number_keys(self.arrays, attributes, values, before)
        self._name(before, known)
        return numbers  # type: ignore[no-any-return]

    def candidates_of(self, rows: Ints, classes: int, pairs: bool) -> Ints:
        """The keys at which queries could wait next, a column for each slot."""
        self._make_room(rows.shape[0] * self._known.widths.slots)
        before = len(self.names)
        slots, known = candidates.candidate_keys(self._known.query_arrays, self.arrays, rows, before, classes, pairs)
        self._name(before, known)
        return slots  # type: ignore[no-any-return]

    def move(self, hosts: Ints) -> np.ndarray:
        """Give keys to other hosts; which of them have moved."""
        has_moved: np.ndarray = self.arrays.host[: len(hosts)] != hosts
        self.arrays.host[: len(hosts)] = hosts
        return has_moved

    def occupied(self) -> Longs:
        """The keys for which anything is kept, packed."""
        known = len(self.names)
        has_any = (self.arrays.first_row[:known] != NONE) | (self.arrays.first_tuple[:known] != NONE)
        packed: Longs = self.arrays.packed[:known][has_any]
        return packed

    def _name(self, before: int, known: int) -> None:
        if known == before:
            return
        names = [self._known.key_name(packed) for packed in self.arrays.packed[before:known].tolist()]
        self.names += names
        self.arrays.host[before:known] = self._hosts_of(names)

    def _make_room(self, more: int) -> None:
        wanted = len(self.names) + more
        if wanted > len(self.arrays.packed):
            by_number = KnownKeys(*(grown(array, wanted, NONE) for array in self.arrays))
            by_number.seen[len(self.names) :] = by_number.seen_before[len(self.names) :] = 0
            self.arrays = by_number._replace(slots=self.arrays.slots, number=self.arrays.number)
        if 2 * wanted > len(self.arrays.slots):
            size = 1 << (2 * wanted).bit_length()
            self.arrays = self.arrays._replace(slots=np.full(size, NONE, np.int64), number=np.zeros(size, np.int32))
            packed = self.arrays.packed[: len(self.names)].copy()
            keys.number_keys(self.arrays, (packed >> 32).astype(np.int32), (packed & 0xFFFFFFFF).astype(np.int32), 0)
