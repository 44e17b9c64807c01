"""The fragment matrix F as it grows (5.2, 5.6.1): from sets of queries a row satisfies, kept the same at all nodes.

A row of F is a set of queries that some tuples satisfy, and these tuples are its fragment.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from watersmeet.errors import InputError
from watersmeet.sharing.bits import Bools, Words, distinct_rows, pack, unpack, words_for

I32 = npt.NDArray[np.int32]


class FragmentIndex:
    """Numbers for sets of queries in order of appearance; the empty set has none (-1)."""

    def __init__(self, queries: int) -> None:
        self.queries = queries
        self._numbers: dict[bytes, int] = {}
        self._rows = np.zeros((16, words_for(queries)), np.uint64)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def words(self) -> Words:
        """F as words, a row a fragment."""
        return self._rows[: len(self)]

    @property
    def matrix(self) -> Bools:
        """F: which fragment counts for which query."""
        return unpack(self.words, self.queries)

    def number(self, sets: Words) -> I32:
        """The fragments of some sets of queries, new ones added."""
        found = np.empty(len(sets), np.int32)
        for place, row in enumerate(np.ascontiguousarray(sets)):
            if not row.any():
                found[place] = -1
                continue
            key = row.tobytes()
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self._numbers)
                if number == len(self._rows):
                    self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
                self._rows[number] = row
            found[place] = number
        return found


def union(matrices: Sequence[Bools]) -> Bools:
    """The F of all nodes: the different rows of theirs, in a fixed order.

    >>> union([np.array([[True, False]]), np.array([[True, True], [True, False]])]).tolist()
    [[True, False], [True, True]]
    """
    if not matrices:
        raise InputError("there is no F without nodes; give the matrix of at least one")
    return distinct_rows(np.concatenate(matrices))


def without_column(fragments: Bools, query: int) -> Bools:
    """F after a query has ended; nobody has to be told."""
    return distinct_rows(np.delete(fragments, query, axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class QueryChange:
    """What a new query does to the rows of F, two bits a row: whether tuples of it fail the query, and satisfy it.

    Tuples that no other query wanted have no row; `alone` says whether the new query wants some of them.
    """

    fails: Bools
    satisfies: Bools
    alone: bool = False

    @property
    def bits(self) -> int:
        """What it takes to send it."""
        return 2 * len(self.fails) + 1


def query_change(fragments: Bools, seen: Iterable[tuple[Bools, bool]]) -> QueryChange:
    """The change as one node sees it: pairs of a tuple's row in F and whether it satisfies the new query."""
    places = {row.tobytes(): place for place, row in enumerate(fragments)}
    fails, satisfies, alone = np.zeros(len(fragments), np.bool_), np.zeros(len(fragments), np.bool_), False
    for row, wanted in seen:
        if not row.any():
            alone |= wanted
            continue
        (satisfies if wanted else fails)[places[row.tobytes()]] = True
    return QueryChange(fails, satisfies, alone)


def merged_change(changes: Sequence[QueryChange]) -> QueryChange:
    """The change for all nodes: the OR of theirs."""
    return QueryChange(
        np.logical_or.reduce([change.fails for change in changes]),
        np.logical_or.reduce([change.satisfies for change in changes]),
        any(change.alone for change in changes),
    )


def with_column(fragments: Bools, change: QueryChange) -> Bools:
    """F with the new query as its last column: each row with a 0, a 1 or both; a row that nobody saw ends."""
    queries = fragments.shape[1]
    failing = np.concatenate([fragments[change.fails], np.zeros((int(change.fails.sum()), 1), np.bool_)], axis=1)
    passing = np.concatenate([fragments[change.satisfies], np.ones((int(change.satisfies.sum()), 1), np.bool_)], axis=1)
    only = np.zeros((int(change.alone), queries + 1), np.bool_)
    only[:, -1] = True
    return distinct_rows(np.concatenate([failing, passing, only]))


@dataclass(frozen=True, slots=True)
class RowsChange:
    """Rows of F that came and went, as bytes of their words: all that travels in the tree after the first epoch."""

    added: frozenset[bytes] = frozenset()
    removed: frozenset[bytes] = frozenset()


@dataclass(slots=True)
class Subtree:
    """What a node of the aggregation tree knows: the rows that it and each of its children still need."""

    rows: dict[str, set[bytes]] = field(default_factory=dict)

    def update(self, child: str, change: RowsChange) -> RowsChange:
        """Take a change from a child, or of the node itself, and tell what of it the parent has to know.

        A row that another still needs stays, and the deletion ends here.
        """
        before = self.needed
        own = self.rows.setdefault(child, set())
        own |= change.added
        own -= change.removed
        after = self.needed
        return RowsChange(frozenset(after - before), frozenset(before - after))

    @property
    def needed(self) -> set[bytes]:
        """All rows that the subtree needs."""
        return set().union(*self.rows.values())


def row_keys(fragments: Bools) -> frozenset[bytes]:
    """The rows of F as a set."""
    return frozenset(row.tobytes() for row in pack(fragments) if row.any())
