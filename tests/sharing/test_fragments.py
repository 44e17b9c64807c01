"""F as it grows: fragments of rows against SQL, several nodes, queries that come and go, and what travels for it."""

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import matrices

from watersmeet.errors import InputError, TypeMismatch, UnknownColumn
from watersmeet.sharing.bits import Bools, distinct_rows, pack
from watersmeet.sharing.classify import Classifier
from watersmeet.sharing.fragments import (
    FragmentIndex,
    RowsChange,
    Subtree,
    merged_change,
    query_change,
    row_keys,
    union,
    with_column,
    without_column,
)
from watersmeet.sharing.predicates import And, Comparison, IsNull, Not, OneOf, Or, Predicate, Value, columns_of

SCHEMA = {"i": pa.int64(), "x": pa.float64(), "s": pa.string(), "b": pa.bool_()}
CONSTANTS: dict[str, st.SearchStrategy[Value]] = {
    "i": st.integers(-3, 3) | st.sampled_from([0.5, -1.5, 2**63 - 1, -(2**63)]),
    "x": st.sampled_from([-1.5, 0.0, 0.5, 2.0, 3]),
    "s": st.sampled_from(["", "a", "ab", "b", "\u00e9"]),
    "b": st.booleans(),
}
COLUMNS = st.sampled_from(sorted(SCHEMA))
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-4, 4) | st.sampled_from([2**63 - 1, -(2**63)]),
        st.none() | st.sampled_from([-2.0, -1.5, 0.0, 0.25, 0.5, 2.0, 3.0, float("inf"), float("nan")]),
        st.none() | st.sampled_from(["", "a", "aa", "ab", "b", "z", "\u00e9"]),
        st.none() | st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


@st.composite
def leaves(draw: st.DrawFn) -> Predicate:
    column = draw(COLUMNS)
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return IsNull(column)
    if kind == 1:
        return OneOf(column, tuple(draw(st.lists(CONSTANTS[column], min_size=1, max_size=3))))
    return Comparison(column, draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="])), draw(CONSTANTS[column]))


PREDICATES = st.recursive(
    leaves(),
    lambda inner: (
        st.builds(And, st.lists(inner, max_size=3).map(tuple))
        | st.builds(Or, st.lists(inner, max_size=3).map(tuple))
        | st.builds(Not, inner)
    ),
    max_leaves=6,
)


def constant(value: Value) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, float):
        return f"{value!r}::DOUBLE"
    return f"({value})::BIGINT" if not isinstance(value, bool) else str(value)


def sql(predicate: Predicate) -> str:
    match predicate:
        case Comparison(column, operator, value):
            return f"{column} {operator} {constant(value)}"
        case OneOf(column, values):
            return "(" + " OR ".join(f"{column} = {constant(value)}" for value in values) + ")"
        case IsNull(column):
            return f"{column} IS NULL"
        case And(parts):
            return "(" + " AND ".join(["TRUE", *map(sql, parts)]) + ")"
        case Or(parts):
            return "(" + " OR ".join(["FALSE", *map(sql, parts)]) + ")"
        case Not(part):
            return f"(NOT {sql(part)})"


def batch_of(rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    arrays = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), SCHEMA.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(SCHEMA))


@given(st.lists(PREDICATES, min_size=1, max_size=5), ROWS, st.booleans())
@settings(max_examples=40, deadline=None)
def test_rows_go_to_the_fragment_that_sql_says(
    predicates: list[Predicate], rows: list[tuple[object, ...]], encoded: bool
) -> None:
    batch = batch_of(rows)
    data = pa.Table.from_batches([batch])  # noqa: F841 (DuckDB reads it by name)
    chosen = ", ".join(f"coalesce({sql(predicate)}, FALSE) AS q{number}" for number, predicate in enumerate(predicates))
    expected = duckdb.execute(f"SELECT {chosen} FROM data").fetchall()
    if encoded:
        batch = batch.set_column(2, "s", batch.column("s").dictionary_encode())
    classifier = Classifier(predicates, SCHEMA)
    halves = [batch.slice(0, len(rows) // 2), batch.slice(len(rows) // 2)]
    numbers = np.concatenate([classifier.classify(half) for half in halves])
    found = [
        tuple(classifier.fragments.matrix[number].tolist()) if number >= 0 else (False,) * len(predicates)
        for number in numbers
    ]
    assert found == expected
    every = {row.tobytes() for row in classifier.static_superset()}
    assert {row.tobytes() for row in classifier.fragments.matrix} <= every


def test_many_combinations_are_looked_up_sparsely() -> None:
    rng = np.random.default_rng(2)
    names = [f"c{number}" for number in range(4)]
    predicates: list[Predicate] = [
        And(tuple(Comparison(name, ">", int(rng.integers(0, 200))) for name in names)) for _ in range(150)
    ]
    schema = {name: pa.int64() for name in names}
    classifier = Classifier(predicates, schema)
    values = {name: rng.integers(0, 200, 500) for name in names}
    batch = pa.RecordBatch.from_pydict(values)
    for part in (batch.slice(0, 300), batch.slice(200), batch):
        numbers = classifier.classify(part)
        matrix = classifier.fragments.matrix
        for number, row in zip(numbers[:40], part.to_pylist()[:40], strict=True):
            wanted = [
                all(row[name] > condition.value for name, condition in zip(names, predicate.parts, strict=True))  # type: ignore[union-attr]
                for predicate in predicates
            ]
            assert (matrix[number].tolist() if number >= 0 else [False] * 150) == wanted
    with pytest.raises(InputError, match="too many to list"):
        classifier.static_superset()


def test_what_cannot_be_classified_is_said() -> None:
    with pytest.raises(UnknownColumn, match="reads column 'j'; known: b, i, s, x"):
        Classifier([Comparison("j", "=", 1)], SCHEMA)
    with pytest.raises(TypeMismatch, match="write it in quotes"):
        Classifier([Comparison("s", "=", 1)], SCHEMA)
    with pytest.raises(TypeMismatch, match="give a number"):
        Classifier([Comparison("i", "=", "1")], SCHEMA)
    with pytest.raises(InputError, match="finite"):
        Classifier([Comparison("x", "<", float("nan"))], SCHEMA)
    with pytest.raises(TypeMismatch, match="numbers, text or booleans"):
        Classifier([IsNull("t")], {"t": pa.date32()})
    pairs = tuple(Or((Comparison("i", "=", n), Comparison("x", "=", n))) for n in range(10))
    with pytest.raises(InputError, match="more than 256 alternatives"):
        Classifier([And(pairs)], SCHEMA)
    assert columns_of(Not(And(pairs))) == {"i", "x"}


@given(st.lists(matrices(), min_size=1, max_size=4), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_the_union_is_that_of_the_rows(parts: list[Bools], queries: int) -> None:
    same = [np.concatenate([part, np.zeros((len(part), 12), np.bool_)], axis=1)[:, :queries] for part in parts]
    expected = {tuple(row) for part in same for row in part.tolist() if any(row)}
    assert {tuple(row) for row in union(same).tolist()} == expected
    index = FragmentIndex(queries)
    for part in same:
        numbers = index.number(pack(part))
        for number, row in zip(numbers, part, strict=True):
            assert (number == -1) == (not row.any())
            assert number == -1 or (index.matrix[number] == row).all()
    assert len(index) == len(expected)
    gone = queries - 1
    left = {tuple(row[:gone]) for row in expected if any(row[:gone])}
    assert {tuple(row) for row in without_column(union(same), gone).tolist()} == left


@given(st.data(), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_a_new_query_is_two_bits_a_row(data: st.DataObject, queries: int, nodes: int) -> None:
    tuples = st.lists(st.integers(0, 2 ** (queries + 1) - 1), max_size=8)
    seen = [
        np.array([[number >> place & 1 for place in range(queries + 1)] for number in data.draw(tuples)], np.bool_)
        for _ in range(nodes)
    ]
    seen = [own.reshape(-1, queries + 1) for own in seen]
    before = union([own[:, :queries] for own in seen])
    changes = [query_change(before, [(row[:queries], bool(row[-1])) for row in own]) for own in seen]
    change = merged_change(changes)
    assert change.bits == 2 * len(before) + 1
    after = with_column(before, change)
    assert {row.tobytes() for row in after} == {row.tobytes() for row in union(seen)}


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_only_changes_that_matter_go_up_the_tree(data: st.DataObject) -> None:
    """Two nodes below one in the middle, and that one and another below the root."""
    middle, root = Subtree(), Subtree()
    now: dict[str, frozenset[bytes]] = dict.fromkeys(("a", "b", "c"), frozenset())
    sent = 0
    for _ in range(8):
        node = data.draw(st.sampled_from(sorted(now)))
        rows = frozenset(bytes([number]) for number in data.draw(st.sets(st.integers(0, 5))))
        change = RowsChange(rows - now[node], now[node] - rows)
        now[node] = rows
        upward = middle.update(node, change) if node != "c" else change
        if upward.added or upward.removed:
            sent += 1
            root.update("middle" if node != "c" else "c", upward)
        assert middle.needed == now["a"] | now["b"]
        assert root.needed == now["a"] | now["b"] | now["c"]
    middle.update("b", RowsChange(frozenset((b"z",))))
    middle.update("a", RowsChange(frozenset((b"z",))))
    assert middle.update("a", RowsChange(removed=frozenset((b"z",)))) == RowsChange()
    assert row_keys(np.array([[True, False], [False, False]])) == row_keys(distinct_rows(np.array([[True, False]])))


def test_no_nodes_have_no_matrix() -> None:
    with pytest.raises(InputError, match="at least one"):
        union([])
