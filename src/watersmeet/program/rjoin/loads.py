"""What each node of RJoin has processed and keeps (the loads of section 8)."""

from dataclasses import dataclass

import numpy as np

from watersmeet.program.rjoin.arrays import Longs


@dataclass
class Load:
    """What each node has had to process: queries one by one, and by rows in which alike ones are one."""

    queries: Longs
    rows: Longs
    tuples: Longs
    searches: Longs  # tuples that came to a key at which queries waited
    levels: Longs  # queries received by all nodes, by how many of their aliases were bound

    @classmethod
    def of(cls, nodes: int, aliases: int) -> "Load":
        queries, rows, tuples, searches = np.zeros((4, nodes), np.int64)
        return cls(queries, rows, tuples, searches, np.zeros(aliases + 1, np.int64))


@dataclass(frozen=True, slots=True)
class StoredLoads:
    """What each node keeps: rewritten queries, one by one and by rows, and tuples at the value and attribute level."""

    queries: Longs
    rows: Longs
    tuples: Longs
    held: Longs
