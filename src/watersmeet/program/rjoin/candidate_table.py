"""What nodes know of the rates and hosts of keys elsewhere: the candidate tables CT of section 7 in one."""

import numpy as np

from watersmeet.program.rjoin import candidates
from watersmeet.program.rjoin.arrays import NONE, Candidates, Ints, Longs
from watersmeet.program.rjoin.mail import Rates


def _empty(size: int) -> Candidates:
    return Candidates(
        slots=np.full(size, NONE, np.int64),
        rate=np.zeros(size, np.float32),
        host=np.zeros(size, np.int32),
        learned_us=np.zeros(size, np.int64),
    )


class CandidateTable:
    """A hash table by node and key that grows."""

    def __init__(self) -> None:
        self.arrays = _empty(256)
        self._entries = 0

    def learn(self, nodes: Ints, keys: Ints, rates: Rates, hosts: Ints, learned_us: Longs) -> None:
        """Enter what nodes are told; the newer word counts."""
        self._make_room(len(keys))
        self._entries += candidates.learn(self.arrays, nodes, keys, rates, hosts, learned_us)

    def pass_on(self, slots: Ints, senders: Ints, receivers: Ints) -> None:
        """What senders know of candidates comes to the receivers of queries with them."""
        self._make_room(slots.size)
        self._entries += candidates.pass_on(self.arrays, slots, senders, receivers)

    def forget_hosts(self, has_moved: np.ndarray) -> None:
        """Whoever knew the host of a key that has moved has to look for it again."""
        used = np.flatnonzero(self.arrays.slots != NONE)
        self.arrays.host[used[has_moved[self.arrays.slots[used] & 0xFFFFFFFF]]] = NONE

    def _make_room(self, more: int) -> None:
        wanted = self._entries + more
        if 2 * wanted <= len(self.arrays.slots):
            return
        old, self.arrays = self.arrays, _empty(1 << (2 * wanted).bit_length())
        used = old.slots != NONE
        nodes, keys = (old.slots[used] >> 32).astype(np.int32), (old.slots[used] & 0xFFFFFFFF).astype(np.int32)
        candidates.learn(self.arrays, nodes, keys, old.rate[used], old.host[used], old.learned_us[used])
