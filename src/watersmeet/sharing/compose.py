"""Basic and Add Composition (5.5): a small basis for duplicate-insensitive aggregates by BLEND and COLLAPSE."""

from dataclasses import dataclass

import numpy as np

from watersmeet.errors import InputError, did_you_mean
from watersmeet.sharing import set_kernels as kernels
from watersmeet.sharing.bits import Bools, Words, distinct_rows, pack, unpack, words_for
from watersmeet.sharing.decomposition import Decomposition, SetCombination

_OPERATIONS = {"O": kernels.ONE_PER_LOOP, "M": kernels.MANY_PER_LOOP}
_PREFERENCES = {"A": kernels.ATTEMPT_BOTH, "R": kernels.DELAY_BLENDS, "S": kernels.SEPARATE_PASSES}
_TIMINGS = {"W": kernels.IMMEDIATE, "D": kernels.IMMEDIATE_UNSEEN, "P": kernels.QUEUED}

# Operations a loop, preference, timing; the last does not matter where a loop ends after one operation.
STRATEGIES = (
    "O/A",
    "O/R",
    "O/S",
    "M/A/D",
    "M/A/P",
    "M/A/W",
    "M/R/D",
    "M/R/P",
    "M/R/W",
    "M/S/D",
    "M/S/P",
    "M/S/W",
)


@dataclass(frozen=True, slots=True, eq=False)
class SearchState:
    """Basis rows and what is known of them, all changed in place by the kernels; see `set_kernels.py`."""

    fragments: Words
    basis: Words
    alive: Bools
    inside: Words
    members: Words
    once: Words
    essential: Words

    @property
    def arrays(self) -> tuple[Words, Bools, Words, Words, Words, Words]:
        """What the kernels change."""
        return self.basis, self.alive, self.inside, self.members, self.once, self.essential

    def rows(self, queries: int) -> Bools:
        """The basis rows as they are."""
        return unpack(self.basis[self.alive], queries)


def empty_state(fragments: Bools, rows: int) -> SearchState:
    """No basis rows yet, with room for some."""
    count, queries = fragments.shape
    tall, wide = words_for(count), words_for(queries)
    return SearchState(
        pack(fragments),
        np.zeros((rows, wide), np.uint64),
        np.zeros(rows, np.bool_),
        np.zeros((rows, tall), np.uint64),
        np.zeros((count, words_for(rows)), np.uint64),
        np.zeros((count, wide), np.uint64),
        np.zeros((rows, tall), np.uint64),
    )


def state_of(fragments: Bools, basis: Bools, room: int = 0) -> SearchState:
    """The state of given basis rows, with room for more."""
    state = empty_state(fragments, len(basis) + room)
    state.basis[: len(basis)] = pack(basis)
    state.alive[: len(basis)] = True
    kernels.load_rows(*state.arrays[:2], state.fragments, *state.arrays[2:])
    return state


def strategy_codes(strategy: str) -> tuple[int, int, int]:
    """What the kernels know a search strategy by.

    >>> strategy_codes("M/A/P")
    (1, 0, 2)
    """
    if strategy not in STRATEGIES:
        raise InputError(f"unknown search strategy {strategy!r}; {did_you_mean(strategy, STRATEGIES)}")
    operations, preference, *timing = strategy.split("/")
    return _OPERATIONS[operations], _PREFERENCES[preference], _TIMINGS[timing[0] if timing else "W"]


def basic_composition(fragments: Bools, strategy: str = "M/A/W") -> Decomposition:
    """Start from one row a query and BLEND and COLLAPSE any two rows until no more is valid."""
    codes = strategy_codes(strategy)
    queries = fragments.shape[1]
    state = empty_state(distinct_rows(fragments), queries)
    for query in range(queries):
        kernels.add_query(query, state.fragments, query, *state.arrays)
    kernels.search(-1, *codes, *state.arrays)
    return decomposition_of(fragments, state.rows(queries))


def add_composition(fragments: Bools, strategy: str = "M/A/P", start: Bools | None = None) -> Decomposition:
    """Add one query after the other, each with a row that is combined with those before it.

    start: basis rows for the first queries, from an earlier composition; only queries after those are then added.
    """
    codes = strategy_codes(strategy)
    queries = fragments.shape[1]
    known = 0 if start is None else start.shape[1]
    old = np.zeros((0, queries), np.bool_)
    if start is not None:
        old = np.concatenate([start, np.zeros((len(start), queries - known), np.bool_)], axis=1)
    state = _with_queries(distinct_rows(fragments), old, known)
    for query in range(known, queries):
        place = len(old) + query - known
        kernels.add_query(query, state.fragments, place, *state.arrays)
        kernels.search(place, *codes, *state.arrays)
    return decomposition_of(fragments, state.rows(queries))


def _with_queries(fragments: Bools, old: Bools, known: int) -> SearchState:
    """The state for the first queries only, whose rows fragments may contain whatever comes later."""
    first = fragments.copy()
    first[:, known:] = False
    state = state_of(first, old, fragments.shape[1] - known)
    state.fragments[:] = pack(fragments)
    return state


def without_query(fragments: Bools, basis: Bools, query: int) -> Bools:
    """The basis of the other queries after one has ended: its column goes, then rows that nobody needs any more."""
    others = np.arange(basis.shape[1]) != query
    left = distinct_rows(basis[:, others])
    state = state_of(distinct_rows(fragments[:, others]), left)
    kernels.drop_needless(*state.arrays)
    return state.rows(int(others.sum()))


def decomposition_of(fragments: Bools, basis: Bools) -> Decomposition:
    """The decomposition by basis rows: a fragment goes into each row that it contains."""
    return Decomposition(contained(fragments, basis), SetCombination(basis))


def contained(fragments: Bools, basis: Bools) -> Bools:
    """Whether a fragment contains a basis row, f x k."""
    outside = (~fragments).astype(np.float32) @ basis.T.astype(np.float32)
    found: Bools = (outside == 0) & np.asarray(basis.any(axis=1))[None, :]
    return found


def is_basis(fragments: Bools, basis: Bools) -> bool:
    """Whether every fragment is the union of the basis rows that it contains."""
    covered = contained(fragments, basis).astype(np.float32) @ basis.astype(np.float32) > 0
    return bool((covered == fragments).all())
