"""Records of independent queries: what arrives counts what the fragments do, whatever F is and however it changes."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.program.finish.shared import SET, RecordShape, matrix_of, set_of
from watersmeet.program.site.independent import QueryRecord, is_entry, of_all_queries
from watersmeet.program.site.travelling import decomposed, numbered, unnumbered
from watersmeet.program.storage.segments import TS
from watersmeet.query.model import Aggregate

SHAPE = RecordShape("a", "hub", 10, ("k",), ("v",), (Aggregate("count", None), Aggregate("sum", 0)))


def fragments_of(chance: np.random.Generator, queries: int, base: int, fragments: int) -> np.ndarray:
    """Rows of F: base queries at random, others their unions where they are disjoint, intersections else, and all."""
    rows = chance.random((fragments, base)) < 0.5
    columns = [rows[:, place] for place in range(base)]
    while len(columns) < queries:
        first, second = (columns[place] for place in chance.integers(0, len(columns), 2))
        columns.append(first | second if chance.random() < 0.5 else first & second)
    return np.stack(columns, axis=1)


def pane(chance: np.random.Generator, matrix: np.ndarray, instant: int) -> pa.Table:
    """A record of every fragment of a pane that any query wants, in two groups."""
    sets = [set_of(np.flatnonzero(row).tolist()) for row in matrix if row.any()]
    sets = sorted(set(sets))
    chosen = [(one, group) for one in sets for group in (0, 1) if chance.random() < 0.8]
    totals = chance.integers(-(2**62), 2**62, len(chosen))
    return pa.table(
        {
            TS: pa.array(np.full(len(chosen), instant)),
            SET: pa.array([one for one, _ in chosen], pa.binary()),
            "key0": pa.array([group for _, group in chosen], pa.int64()),
            "s0.n": pa.array(chance.integers(1, 5, len(chosen))),
            "s1.n": pa.array(chance.integers(0, 5, len(chosen))),
            "s1.high": pa.array(totals >> 32),
            "s1.low": pa.array(totals & 0xFFFF_FFFF),
        }
    )


def by_query(records: pa.Table, queries: int) -> dict[tuple[int, int, int], tuple[int, int, int]]:
    """By pane, group and query: rows, values and their sum, added up one by one."""
    found: dict[tuple[int, int, int], tuple[int, int, int]] = {}
    matrix = matrix_of(records.column(SET).to_pylist(), range(queries))
    for row, wanted in zip(records.to_pylist(), matrix, strict=True):
        for query in np.flatnonzero(wanted).tolist():
            key = (row[TS], row["key0"], query)
            rows, values, total = found.get(key, (0, 0, 0))
            own = (row["s1.high"] << 32) + row["s1.low"]
            found[key] = (rows + row["s0.n"], values + row["s1.n"], total + own)
    return found


@given(st.integers(0, 2**32), st.integers(1, 14), st.integers(1, 6), st.integers(1, 24))
@settings(max_examples=60, deadline=None)
def test_what_arrives_counts_what_was_sent(seed: int, queries: int, base: int, fragments: int) -> None:
    chance = np.random.default_rng(seed)
    sent: list[bytes] = []
    read: list[bytes] = []
    for instant in range(0, 40, 10):  # F changes from pane to pane
        matrix = fragments_of(np.random.default_rng(seed + instant // 20), max(queries, base), base, fragments)
        own = pane(chance, matrix, instant)
        if not own.num_rows:
            continue
        travelling, sent = numbered(decomposed(SHAPE, own, frozenset(sent)), sent)
        arrived, read = unnumbered(travelling, read)
        assert read == sent
        assert travelling.num_rows <= own.num_rows or travelling.num_rows <= 2 * matrix.shape[1]
        whole = of_all_queries(SHAPE, arrived)
        assert not any(map(is_entry, whole.column(SET).to_pylist()))
        assert by_query(whole, matrix.shape[1]) == by_query(own, matrix.shape[1])


def test_as_many_records_travel_as_f_has_ranks() -> None:
    chance = np.random.default_rng(1)
    base = (np.arange(64)[:, None] >> np.arange(6) & 1).astype(bool)  # all combinations of six conditions
    pairs = [(one, other) for one in range(6) for other in range(one)]
    both = [base[:, one] & base[:, other] for one, other in pairs]
    either = [base[:, one] | base[:, other] for one, other in pairs]
    matrix = np.stack([*base.T, *both, *either], axis=1)
    own = pane(chance, matrix, 0)
    known: list[bytes] = []
    table, known = numbered(decomposed(SHAPE, own, frozenset(known)), known)
    assert len(known) == np.linalg.matrix_rank(matrix) == 21 < 36 < 63
    later, again = numbered(decomposed(SHAPE, pane(chance, matrix[:50], 10), frozenset(known)), known)
    assert again == known  # the basis is right for fewer fragments too
    assert by_query(of_all_queries(SHAPE, unnumbered(table, [])[0]), 36) == by_query(own, 36)
    assert set(later.column(SET).to_pylist()) == {b""}


@pytest.mark.parametrize("length", [0, 5, 7, 9, 10, 11, 12, 14, 15, 16])
def test_an_entry_that_is_cut_within_a_factor_is_refused(length: int) -> None:
    written = QueryRecord(b"name", 3, ((-1, b"\x01\x02"), (2, b"\x07"))).to_bytes()
    assert QueryRecord.from_bytes(written).to_bytes() == written
    with pytest.raises(ValueError, match="entry of shared records"):
        QueryRecord.from_bytes(written[:length] + b"\0")
