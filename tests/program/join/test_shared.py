"""Probes of many queries at once: every query gets the combinations that a probe of its own would find."""

from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.program.join import kernels, order, probe
from watersmeet.program.join.kernels import MOST_WORDS
from watersmeet.program.join.probe import Relation, Run, Visibility
from watersmeet.program.join.shared import Membership, SharedLookup, shared_join
from watersmeet.program.storage.segments import class_column, key_order

many = settings(max_examples=60, deadline=None)
QUERIES = 5
SELECTIONS = (0, 1, 63, 64, 130)  # that queries have, in words of 64 bits

Row = tuple[int, int, int, frozenset[int]]  # key, begin, class 1, selections that it fulfils

rows_of_a_run = st.lists(
    st.tuples(
        st.integers(0, 1), st.integers(0, 12), st.integers(0, 1), st.frozensets(st.sampled_from(SELECTIONS), max_size=3)
    ),
    max_size=6,
)
relations = st.lists(rows_of_a_run, max_size=2)
# For each query the selection it has of a relation; None takes all rows.
choices = st.lists(st.none() | st.sampled_from(SELECTIONS), min_size=QUERIES, max_size=QUERIES)


def run_of(rows: list[Row], number: int, length: int) -> Run:
    keys = np.array([row[0] for row in rows], np.uint64)
    begins = np.array([row[1] for row in rows], np.int64)
    order = key_order(keys, begins)
    values = pa.table(
        {
            class_column(1): pa.array(np.array([row[2] for row in rows], np.int64)[order]),
            "name": pa.array([f"{number}.{place}" for place in range(len(rows))]).take(pa.array(order)),
        }
    )
    visible = Visibility(begins[order], kind=kernels.FIXED, length=length)
    span = (int(begins.min()), int(begins.max()) + length)
    return Run(keys[order], visible, values, span)


def membership_of(rows: list[Row], chosen: list[int | None], words: int) -> Membership:
    order = key_order(np.array([row[0] for row in rows], np.uint64), np.array([row[1] for row in rows], np.int64))
    bits = np.zeros((words, len(rows)), np.uint64)
    for place, row in enumerate(order):
        for selection in rows[row][3]:
            bits[selection // 64, place] |= np.uint64(1 << (selection % 64))
    users: dict[int, int] = {}
    always = 0
    for query, selection in enumerate(chosen):
        if selection is None:
            always |= 1 << query
        else:
            users[selection] = users.get(selection, 0) | 1 << query
    return Membership(
        tuple(bits),
        np.array([selection // 64 for selection in users], np.int64),
        np.array([1 << (selection % 64) for selection in users], np.uint64),
        np.array(list(users.values()), np.uint64),
        always,
    )


@pytest.mark.parametrize("small_chunks", [False, True])
@many
@given(
    runs=st.tuples(relations, relations, relations),
    chosen=st.tuples(choices, choices, choices),
    lengths=st.tuples(*[st.integers(0, 6)] * 3),
    words=st.integers(3, MOST_WORDS),
    is_checked=st.booleans(),
)
def test_every_query_gets_the_combinations_of_its_own_rows(
    small_chunks: bool,
    runs: tuple[list[list[Row]], ...],
    chosen: tuple[list[int | None], ...],
    lengths: tuple[int, ...],
    words: int,
    is_checked: bool,
) -> None:
    filled = [[rows for rows in relation if rows] for relation in runs]
    made = [
        Relation(tuple(run_of(rows, number, length) for number, rows in enumerate(relation)))
        for relation, length in zip(filled, lengths, strict=True)
    ]
    memberships = [
        tuple(membership_of(rows, own, words) for rows in relation)
        for relation, own in zip(filled, chosen, strict=True)
    ]
    checks = ((1, 1, 1),) if is_checked else ()
    found: list[list[tuple[str, ...]]] = [[] for _ in range(QUERIES)]
    with pytest.MonkeyPatch.context() as patch:
        if small_chunks:
            patch.setattr(probe, "_CHUNK_PAIRS", 3)
            patch.setattr(order, "LEAST_ROWS", 1)
        lookups = [SharedLookup(made[1], memberships[1]), SharedLookup(made[2], memberships[2], checks)]
        for combinations, sets in shared_join(made[0], memberships[0], lookups):
            names = [
                relation.gather(rows, ["name"])[0].to_pylist()
                for relation, rows in zip(made, combinations.rows, strict=True)
            ]
            assert (sets != 0).all(), "what is for nobody is dropped"
            for row, own in zip(zip(*names, strict=True), sets.tolist(), strict=True):
                for query in range(QUERIES):
                    if own >> query & 1:
                        found[query].append(row)
    for query in range(QUERIES):
        assert sorted(found[query]) == sorted(of_query(query, filled, chosen, lengths, is_checked))


def of_query(
    query: int,
    runs: list[list[list[Row]]],
    chosen: tuple[list[int | None], ...],
    lengths: tuple[int, ...],
    is_checked: bool,
) -> list[tuple[str, ...]]:
    """What one query finds, by trying all combinations of the rows that it selects."""
    taken = [
        [
            (f"{number}.{place}", row)
            for number, rows in enumerate(relation)
            for place, row in enumerate(rows)
            if own[query] is None or own[query] in row[3]
        ]
        for relation, own in zip(runs, chosen, strict=True)
    ]
    wanted = []
    for one in product(*taken):
        names, rows = zip(*one, strict=True)
        latest = max(row[1] for row in rows)
        limit = min(row[1] + length for row, length in zip(rows, lengths, strict=True))
        is_same = not is_checked or rows[1][2] == rows[2][2]
        if len({row[0] for row in rows}) == 1 and latest <= limit and is_same:
            wanted.append(names)
    return wanted
