"""The multi-way probe over relations of several runs, against a loop over all combinations."""

from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.program.join import kernels, order, probe
from watersmeet.program.join.probe import Relation, RelationLookup, Run, Visibility, intervals, join
from watersmeet.program.storage.segments import class_column, key_order

many = settings(max_examples=60, deadline=None)
Row = tuple[int, int, int, int]  # key, begin, class 1, bit

rows_of_a_run = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 15), st.integers(0, 1), st.integers(0, 1)), max_size=8
)
relations = st.lists(rows_of_a_run, max_size=3)


def run_of(rows: list[Row], number: int, length: int, bit: int) -> Run:
    keys = np.array([key for key, *_ in rows], np.uint64)
    begins = np.array([begin for _, begin, *_ in rows], np.int64)
    order = key_order(keys, begins)
    visible = Visibility(begins[order], kind=kernels.FIXED, length=length)
    values = pa.table(
        {
            class_column(1): pa.array(np.array([row[2] for row in rows], np.int64)[order]),
            "text": pa.array([f"{number}.{place}" for place in range(len(rows))]).take(pa.array(order)),
            "flag": pa.array([row[3] == 1 for row in rows], pa.bool_()).take(pa.array(order)),
        }
    )
    bits = np.array([row[3] for row in rows], np.uint64)[order]
    span = (int(begins.min()), int(begins.max()) + length) if len(rows) else (0, -1)
    return Run(keys[order], visible, values, span, bits=bits, bit=bit)


def relation_of(runs: list[list[Row]], length: int, bit: int) -> Relation:
    return Relation(tuple(run_of(rows, number, length, bit) for number, rows in enumerate(runs)))


def listed(runs: list[list[Row]], bit: int) -> list[tuple[str, Row]]:
    return [
        (f"{number}.{place}", row)
        for number, rows in enumerate(runs)
        for place, row in enumerate(rows)
        if not bit or row[3] & bit
    ]


@pytest.mark.parametrize("small_chunks", [False, True])
@many
@given(
    runs=st.tuples(relations, relations, relations),
    lengths=st.tuples(*[st.integers(0, 6)] * 3),
    bits=st.tuples(*[st.integers(0, 1)] * 3),
    is_checked=st.booleans(),
)
def test_combinations_are_those_of_trying_all(
    small_chunks: bool,
    runs: tuple[list[list[Row]], ...],
    lengths: tuple[int, ...],
    bits: tuple[int, ...],
    is_checked: bool,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if small_chunks:
            patch.setattr(probe, "_CHUNK_ROWS", 2)
            patch.setattr(probe, "_CHUNK_PAIRS", 3)
            patch.setattr(order, "LEAST_ROWS", 1)  # the order follows a sample
        made = [relation_of(*one) for one in zip(runs, lengths, bits, strict=True)]
        checks = ((1, 1),) if is_checked else ()  # the last one's class is compared with that of the one before it
        found: list[tuple[object, ...]] = []
        for combinations in join(made[0], [RelationLookup(made[1]), RelationLookup(made[2], checks)]):
            texts = [
                relation.gather(rows, ["text"])[0].to_pylist()
                for relation, rows in zip(made, combinations.rows, strict=True)
            ]
            times = combinations.latest.tolist(), combinations.limit.tolist()
            found += zip(*texts, *times, strict=True)
    wanted = []
    for one in product(*(listed(*each) for each in zip(runs, bits, strict=True))):
        names, rows = zip(*one, strict=True)
        latest = max(row[1] for row in rows)
        limit = min(row[1] + length for row, length in zip(rows, lengths, strict=True))
        is_same = not is_checked or rows[1][2] == rows[2][2]
        if len({row[0] for row in rows}) == 1 and latest <= limit and is_same:
            wanted.append((*names, latest, limit))
    assert sorted(found) == sorted(wanted)


@many
@given(runs=st.lists(rows_of_a_run.filter(bool), min_size=1, max_size=4), data=st.data())
def test_columns_of_every_type_are_gathered_in_the_order_asked_for(runs: list[list[Row]], data: st.DataObject) -> None:
    relation = relation_of(runs, 1, 0)
    whole = pa.concat_tables([run.rows for run in relation.runs])
    positions = np.array(data.draw(st.lists(st.integers(0, len(relation) - 1), min_size=1, max_size=20)), np.int64)
    names = data.draw(st.permutations(["text", "flag", class_column(1)]))
    gathered = relation.gather(positions, names)
    assert [one.to_pylist() for one in gathered] == [
        [whole.column(name)[int(place)].as_py() for place in positions] for name in names
    ]


@pytest.mark.parametrize(
    "kind", [pa.int32(), pa.int64(), pa.float64(), pa.timestamp("us", "UTC"), pa.date32(), pa.decimal128(9, 2)], ids=str
)
def test_numbers_with_and_without_nulls_are_gathered_alike(kind: pa.DataType) -> None:
    plain = pa.array([3, 1, 2], pa.int32()).cast(pa.int64() if kind == pa.timestamp("us", "UTC") else pa.int32())
    values = plain.cast(kind) if not pa.types.is_decimal(kind) else pa.array(plain.to_pylist(), kind)
    with_null = pa.concat_arrays([values, pa.nulls(1, kind)])
    for columns in ([values, values.slice(1)], [with_null, values]):
        sizes = [len(one) for one in columns]
        relation = Relation(
            tuple(
                Run(np.zeros(n, np.uint64), intervals(np.zeros(n, np.int64), np.ones(n, np.int64)), rows, (0, 1))
                for n, rows in ((len(one), pa.table({"value": one})) for one in columns)
            )
        )
        whole = pa.chunked_array(columns)
        positions = np.arange(sum(sizes))[::-1].copy()
        (found,) = relation.gather(positions, ["value"])
        assert found.type == kind and found.to_pylist() == whole.take(pa.array(positions)).to_pylist()


def test_a_relation_leaves_out_empty_runs() -> None:
    relation = relation_of([[], [(1, 2, 0, 0)], []], 1, 0)
    assert len(relation.runs) == 1 and len(relation) == 1
    assert list(join(relation_of([[]], 1, 0), [RelationLookup(relation)])) == []


@pytest.mark.parametrize("finds_few", [1, 2])
def test_the_window_that_leaves_fewer_combinations_comes_first(finds_few: int) -> None:
    random = np.random.default_rng(3)

    def relation(rows: int, keys: int, bit: int = 0) -> Relation:
        drawn = [(int(key), int(at), 0, int(at % 50 == 0)) for key, at in random.integers(0, (keys, 1_000), (rows, 2))]
        return relation_of([drawn[: rows // 2], drawn[rows // 2 :]], 1_000, bit)

    head, many_found, few_found = relation(4_000, 200), relation(4_000, 200), relation(400, 20_000)
    lookups = [many_found, few_found] if finds_few == 2 else [few_found, many_found]
    run = head.runs[0]
    start = probe.Combinations(run.keys, run.visible.begins(), run.visible.ends(), (np.arange(len(run.keys)),))
    assert order.probe_order(start, lookups)[0] == finds_few
    rare = relation(4_000, 200, bit=1)  # as many rows, few of which a query selects
    assert order.probe_order(start, [relation(1_000, 200), rare]) == (2, 1)
    few = start.take(np.arange(order.LEAST_ROWS - 1))
    assert order.probe_order(few, lookups) == (1, 2), "it is not worth a sample"
