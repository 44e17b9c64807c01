"""The compiled rewriting of rows against the rewriting of queries as values: the same refusals, the same candidates."""

from dataclasses import dataclass
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.program.rjoin import matching
from watersmeet.program.rjoin.arrays import CLASSES, DONE, MASK, NONE, UNBOUND, WAITS, Ints, KnownKeys
from watersmeet.program.rjoin.candidates import candidate_keys
from watersmeet.program.rjoin.rewriting import Key, Rewritten, candidates, rewrite
from watersmeet.program.rjoin.tables import Catalog, Known, Widths
from watersmeet.query.sql import parse_query
from watersmeet.sim.rjoin.expressions import judge
from watersmeet.sim.sites.trial import TOPOLOGIES, edges_of

SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.int32()),
        ("c", pa.int64()),
        ("s", pa.string()),
        ("z", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)
NUMBERS, STRINGS = ("a", "b", "c"), ("s", "z")
ROWS = 12  # of each stream


def drawn_sql(random: Random) -> str:
    """Joins of any shape over few streams, so that aliases share them; constants agree with each other."""
    aliases = list("pqrst")[: random.randint(2, 5)]
    where = []
    for one, other in edges_of(random.choice(TOPOLOGIES), aliases):
        for _ in range(random.choice([1, 1, 2])):
            kind = random.choice([NUMBERS, NUMBERS, STRINGS])
            where.append(f"{one}.{random.choice(kind)} = {other}.{random.choice(kind)}")
    for _ in range(random.choice([0, 0, 1, 2])):
        where.append(f"{random.choice(aliases)}.{random.choice(NUMBERS)} = 1")
    if random.random() < 0.2:
        where.append(f"'x' = {random.choice(aliases)}.{random.choice(STRINGS)}")
    froms = ", ".join(f"{random.choice('UVW')} [UNBOUNDED] AS {alias}" for alias in aliases)
    return f"SELECT {aliases[0]}.a AS one, {aliases[-1]}.s AS other FROM {froms} WHERE {' AND '.join(where)}"


def drawn_table(random: Random) -> pa.Table:
    def value(name: str) -> object:
        if random.random() < 0.04:
            return None
        return random.choice("xxy") if name in STRINGS else random.choice([1, 1, 2])

    rows = [{name: value(name) for name in (*NUMBERS, *STRINGS)} for _ in range(ROWS)]
    return pa.Table.from_pylist(rows, schema=SCHEMA.remove(5))


@dataclass
class Both:
    """One query, rewritten in both ways side by side."""

    known: Known
    aliases: tuple[str, ...]
    row: Ints
    waiting: Rewritten

    def keys_of_row(self, pairs: bool = True) -> list[tuple[str, Key]]:
        """The candidates of the row, in the words of the other side."""
        keys = KnownKeys(
            slots=np.full(256, NONE, np.int64),
            number=np.zeros(256, np.int32),
            packed=np.zeros(128, np.int64),
            host=np.zeros(0, np.int32),
            first_row=np.zeros(0, np.int32),
            first_tuple=np.zeros(0, np.int32),
            seen=np.zeros(0, np.int64),
            seen_before=np.zeros(0, np.int64),
            epoch=np.zeros(0, np.int64),
        )
        arrays, classes = self.known.query_arrays, max(1, self.known.widths.classes)
        slots, _ = candidate_keys(arrays, keys, self.row[None, :], 0, classes, pairs)
        found: list[tuple[str, Key]] = []
        for slot in np.flatnonzero(slots[0] != NONE).tolist():
            packed = int(keys.packed[slots[0, slot]])
            pair, code = self.known.catalog.attributes[packed >> 32], packed & 0xFFFFFFFF
            key: Key = (*pair, self.known.values.values[code]) if code else pair
            found.append((self.aliases[arrays.slot_alias[0, slot]], key))
        return found

    def bind(self, alias: str, one: int, told_apart: bool) -> Ints | None:
        row, out = self.row.copy(), np.empty_like(self.row)
        row[WAITS] = self.aliases.index(alias)
        arrays, classes = self.known.query_arrays, max(1, self.known.widths.classes)
        is_bound = matching.bind(arrays, self.known.tuple_arrays, row, one, out, classes, told_apart)
        return out if is_bound else None


def by_text(found: list[tuple[str, Key]]) -> list[tuple[str, Key]]:
    return sorted(found, key=repr)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_rows_are_rewritten_as_queries_are(first: int) -> None:
    refused = rewritten = finished = triples = 0
    for seed in range(first, first + 20):
        random = Random(seed)
        sql = drawn_sql(random)
        query = parse_query(sql, dict.fromkeys("UVW", SCHEMA.names))
        catalog = Catalog(dict.fromkeys("UVW", SCHEMA), dict.fromkeys("UVW", "ts"))
        known = Known(catalog, Widths.of([catalog.shape(query)]), judge)
        known.add_query(query, home=0, start_us=0)
        tables = {stream: drawn_table(random) for stream in "UVW"}
        numbers = {
            stream: known.add_tuples(stream, table, np.zeros(ROWS, np.int64)) for stream, table in tables.items()
        }
        rows = {stream: table.to_pylist() for stream, table in tables.items()}
        width = CLASSES + max(1, known.widths.classes) + known.widths.aliases
        for _ in range(12):
            both = Both(known, query.aliases, known.first_row(0, width), Rewritten(query))
            while not both.waiting.is_complete:
                told = by_text(candidates(both.waiting))
                assert by_text(both.keys_of_row()) == told, sql
                with_value = [one for one in told if len(one[1]) == 3]
                assert by_text(both.keys_of_row(pairs=False)) == (with_value or told), sql
                triples += len(with_value)
                alias, (stream, *_) = random.choice(told)
                place = random.randrange(ROWS)
                row = both.bind(alias, int(numbers[stream][place]), told_apart=True)
                after = rewrite(both.waiting, alias, rows[stream][place])
                assert (row is None) == (after is None), (sql, alias, rows[stream][place], both.waiting.bound)
                # Whether members are told apart makes no difference here.
                assert (both.bind(alias, int(numbers[stream][place]), told_apart=False) is None) == (row is None)
                if row is None or after is None:
                    refused += 1
                    break
                rewritten += 1
                both = Both(known, query.aliases, row, after)
            else:
                finished += 1
                assert both.row[MASK] == (1 << len(query.sources)) - 1
                classes = both.row[CLASSES : CLASSES + len(known.shapes[0].masks)]
                assert (classes == DONE).all()
                bound = both.row[CLASSES + max(1, known.widths.classes) :][: len(query.sources)].tolist()
                for source, one in zip(query.sources, bound, strict=True):
                    assert both.waiting.bound[source.alias] == rows[source.stream][one - numbers[source.stream][0]]
    assert min(refused, rewritten, triples) > 100
    assert finished > 10


def test_an_implied_value_refuses_a_tuple_as_an_explicit_one_does() -> None:
    sql = "SELECT p.a FROM U [UNBOUNDED] AS p, V [UNBOUNDED] AS q, W [UNBOUNDED] AS r WHERE p.a = q.a AND q.a = r.a"
    query = parse_query(sql, dict.fromkeys("UVW", ("a", "b")))
    after = rewrite(Rewritten(query), "p", {"a": 1, "b": 1})
    assert after is not None
    assert candidates(after) == [("q", ("V", "a", 1)), ("r", ("W", "a", 1))]
    assert rewrite(after, "r", {"a": 2, "b": 1}) is None  # though no predicate names both
    assert rewrite(after, "r", {"a": 1, "b": 2}) is not None


def test_two_attributes_of_a_tuple_that_must_be_equal_are() -> None:
    sql = "SELECT p.a FROM U [UNBOUNDED] AS p, V [UNBOUNDED] AS q WHERE p.a = q.a AND p.b = q.a"
    query = parse_query(sql, dict.fromkeys("UV", ("a", "b")))
    assert rewrite(Rewritten(query), "p", {"a": 1, "b": 2}) is None
    after = rewrite(Rewritten(query), "p", {"a": 1, "b": 1})
    assert after is not None
    assert candidates(after) == [("q", ("V", "a", 1))]


def test_an_input_row_has_its_constants_and_nothing_else() -> None:
    sql = "SELECT p.a FROM U [UNBOUNDED] AS p, V [UNBOUNDED] AS q WHERE p.a = q.a AND p.b = q.b AND q.b = 2"
    query = parse_query(sql, dict.fromkeys("UV", SCHEMA.names))
    catalog = Catalog(dict.fromkeys("UV", SCHEMA), dict.fromkeys("UV", "ts"))
    known = Known(catalog, Widths.of([catalog.shape(query)]), judge)
    row = known.first_row(known.add_query(query, home=0, start_us=0), CLASSES + 4)
    assert sorted(row[CLASSES : CLASSES + 2].tolist()) == [UNBOUND, known.values.code(2)]
    assert row[MASK] == 0
