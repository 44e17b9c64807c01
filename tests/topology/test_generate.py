"""Generated rows: the same on every run and for every split, distributed as asked, and every slip named."""

import hashlib
import pickle
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.errors import InputError
from watersmeet.topology import generate

START = datetime(2025, 1, 1, tzinfo=UTC)
EVERY_TYPE = {
    "tiny": "tinyint",
    "small": "smallint",
    "n": "int",
    "big": "bigint",
    "f": "float",
    "d": "double",
    "s": "string",
    "b": "boolean",
    "ts": "timestamp",
    "ntz": "timestamp_ntz",
    "day": "date",
}


def column(sql_type: str, text: str, hi: int, **options: str) -> list[Any]:
    made = generate.spec({"c": sql_type}, {"column.c": text, **options})
    return list(generate.rows(made, 0, hi)["c"].to_pylist())


@pytest.fixture(scope="module")
def mixed() -> generate.Spec:
    return generate.spec(
        EVERY_TYPE,
        {
            "seed": "7",
            "rows_per_second": "0.3",
            "disorder": "1 minute",
            "column.big": "null 0.1 zipf 1.2 50",
            "column.S": "null 0.2 pattern 10.0.0.{}/32 zipf 1.1 250",
            "column.small": "uniform -5 5",
            "column.n": "choice 1 2 3",
        },
    )


# Determinism ---------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 300), min_size=2, max_size=6))
def test_rows_do_not_depend_on_the_split(mixed: generate.Spec, cuts: list[int]) -> None:
    cuts.sort()
    parts = pa.concat_tables([generate.rows(mixed, lo, hi) for lo, hi in pairwise(cuts)])
    assert parts.equals(generate.rows(mixed, cuts[0], cuts[-1]))


def test_rows_do_not_depend_on_chunks(mixed: generate.Spec) -> None:
    hi = 2 * generate.CHUNK_ROWS + 1
    made = list(generate.batches(mixed, 0, hi))
    assert [batch.num_rows for batch in made] == [generate.CHUNK_ROWS, generate.CHUNK_ROWS, 1]
    across = generate.rows(mixed, generate.CHUNK_ROWS - 3, generate.CHUNK_ROWS + 3)
    assert across.equals(pa.Table.from_batches(made).slice(generate.CHUNK_ROWS - 3, 6))


def test_rows_outlive_the_process() -> None:
    made = generate.spec({"k": "bigint"}, {"column.k": "uniform 0 1000000"})
    assert generate.rows(made, 0, 3)["k"].to_pylist() == [splitmix64("0", "k", i) % 1_000_000 for i in range(3)]
    assert generate.rows(made, 10**15, 10**15 + 1)["k"].to_pylist() == [splitmix64("0", "k", 10**15) % 1_000_000]


def splitmix64(seed: str, name: str, i: int) -> int:
    """The published algorithm on Python's integers."""
    mask = 2**64 - 1
    key = int.from_bytes(hashlib.blake2b(f"{seed}\0{name}\0value".encode(), digest_size=8).digest(), "little")
    z = (key + (i + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_seed_and_column_name_change_the_values() -> None:
    draws = {tuple(column("int", "uniform 0 1000", 20, seed=str(seed))) for seed in range(10)}
    assert len(draws) == 10
    two = generate.rows(generate.spec({"a": "double", "b": "double"}, {}), 0, 10)
    assert two["a"] != two["b"]


def test_spec_is_a_value(mixed: generate.Spec) -> None:
    assert pickle.loads(pickle.dumps(mixed)) == mixed
    assert hash(mixed) == hash(pickle.loads(pickle.dumps(mixed)))


def test_schema_is_the_one_asked_for(mixed: generate.Spec) -> None:
    table = generate.rows(mixed, 0, 10)
    assert table.schema.types == [generate.ARROW_TYPES[sql_type] for sql_type in EVERY_TYPE.values()]
    table.validate(full=True)
    assert generate.rows(mixed, 5, 5).num_rows == 0
    strict = generate.spec({"k": "LONG  NOT NULL"}, {})
    assert strict.arrow_schema == pa.schema([pa.field("k", pa.int64(), nullable=False)])


# Distributions -------------------------------------------------------------------------------------------------------


def test_defaults_by_type() -> None:
    table = generate.rows(generate.spec(EVERY_TYPE, {}), 0, 1000).to_pydict()
    assert table["n"] == table["big"] == list(range(1000))
    assert table["tiny"][126:130] == [126, 127, 0, 1]
    assert all(0 <= value < 1 for value in table["f"] + table["d"])
    assert set(table["s"]) <= {f"s-{number}" for number in range(1000)}
    assert set(table["b"]) == {True, False}
    assert table["ts"][1] == START + timedelta(milliseconds=1)
    assert table["ntz"][999] == datetime(2025, 1, 1, 0, 0, 0, 999_000)
    assert set(table["day"]) == {date(2025, 1, 1)}


@pytest.mark.parametrize(
    ("sql_type", "text", "low", "high"),
    [
        ("int", "uniform -5 5", -5, 5),
        ("tinyint", "uniform -128 128", -128, 128),
        ("bigint", f"uniform {-(2**63)} {2**63}", -(2**63), 2**63),
        ("double", "uniform -1.5 2", -1.5, 2),
        ("float", "uniform 0 1e-3", 0, 1e-3),
    ],
)
def test_uniform_fills_its_interval(sql_type: str, text: str, low: float, high: float) -> None:
    values = np.array(column(sql_type, text, 100_000), dtype=float)
    assert low <= values.min() and values.max() <= high
    shares = np.histogram(values, bins=5, range=(float(low), float(high)))[0] / len(values)
    assert shares == pytest.approx([0.2] * 5, abs=0.01)
    if sql_type in ("int", "tinyint"):
        assert set(values) == set(range(int(low), int(high)))


@pytest.mark.parametrize(("exponent", "count"), [(0.0, 10), (1.1, 100), (2.0, 1000)])
def test_zipf_has_its_probabilities(exponent: float, count: int) -> None:
    values = column("int", f"zipf {exponent} {count}", 200_000)
    weights = [1 / (rank + 1) ** exponent for rank in range(count)]
    seen = Counter(values)
    assert set(seen) <= set(range(count))
    for rank in range(5):
        assert seen[rank] / len(values) == pytest.approx(weights[rank] / sum(weights), abs=0.005)


def test_zipf_over_the_largest_domain() -> None:
    values = column("int", f"zipf 0 {generate.ZIPF_LARGEST}", 10_000)
    assert min(values) >= 0 and 0.99e7 < max(values) < 1e7


def test_choice_constant_and_pattern() -> None:
    words = Counter(column("string", "choice 'New York' Berlin Rome", 30_000))
    assert set(words) == {"New York", "Berlin", "Rome"}
    assert all(9_000 < count < 11_000 for count in words.values())
    assert column("string", "constant 'a b'", 2) == ["a b", "a b"]
    assert column("float", "constant 0.5", 1) == [0.5]
    assert column("date", "constant 2020-02-29", 1) == [date(2020, 2, 29)]
    assert column("timestamp", "constant 2020-01-01T02:00+02:00", 1) == [datetime(2020, 1, 1, tzinfo=UTC)]
    assert column("timestamp_ntz", "choice 2020-01-01", 1) == [datetime(2020, 1, 1)]
    assert column("boolean", "constant TRUE", 1) == [True]
    assert column("string", "pattern o{}! sequence", 2) == ["o0!", "o1!"]
    assert set(column("string", "pattern h{} zipf 1 3", 100)) == {"h0", "h1", "h2"}


def test_share_of_nulls() -> None:
    for sql_type in EVERY_TYPE.values():
        values = column(sql_type, "null 0.25", 20_000)
        assert values.count(None) / len(values) == pytest.approx(0.25, abs=0.015)
    assert column("int", "null 1 constant 3", 3) == [None] * 3
    assert column("int", "null 0 constant 3", 3) == [3] * 3
    # NULLs do not shift the values of the other rows.
    plain, holed = column("int", "uniform 0 100", 100), column("int", "null 0.5 uniform 0 100", 100)
    assert all(value in (None, at) for value, at in zip(holed, plain, strict=True))


# Event time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", ["1000", "0.3", "0.000001", "7", "333.333333", "3e6"])
def test_event_times_are_exact_at_any_row(rate: str) -> None:
    made = generate.spec({"ts": "timestamp"}, {"rows_per_second": rate, "start": "1990-01-01"})
    for lo in (0, 12_345, 100_000):
        times = generate.rows(made, lo, lo + 3)["ts"].cast(pa.int64()).to_pylist()
        assert times == [made.start_us + int(row * 10**6 / Fraction(rate)) for row in range(lo, lo + 3)]


def test_disorder_stays_in_its_bounds_and_is_shared() -> None:
    made = generate.spec({"a": "timestamp", "b": "timestamp"}, {"disorder": "2 seconds", "start": "2025-06-01T12:00"})
    table = generate.rows(made, 0, 50_000)
    assert table["a"] == table["b"]
    late = [
        datetime(2025, 6, 1, 12, tzinfo=UTC) + timedelta(milliseconds=i) - ts
        for i, ts in enumerate(table["a"].to_pylist())
    ]
    assert timedelta(0) <= min(late) < timedelta(milliseconds=1)
    assert timedelta(milliseconds=1999) < max(late) <= timedelta(seconds=2)


def test_dates_before_the_epoch_round_down() -> None:
    assert column("date", "time", 1, start="1969-12-31 23:00:00") == [date(1969, 12, 31)]


def test_time_ends_with_the_year_9999() -> None:
    made = generate.spec({"ts": "timestamp"}, {"rows_per_second": "0.000001"})
    with pytest.raises(InputError, match="after the year 9999; raise rows_per_second"):
        generate.rows(made, 10**6, 10**6 + 1)


# Flow ----------------------------------------------------------------------------------------------------------------


def flow(**options: str) -> generate.Spec:
    return generate.spec({"k": "bigint"}, options)


def test_rows_per_batch_defaults_to_ten_seconds() -> None:
    assert flow().rows_per_batch == 10_000
    assert flow(rows_per_second="0.01").rows_per_batch == 1
    assert flow(pace="max").rows_per_batch == flow(pace="0.5").rows_per_batch == 10_000
    assert flow(pace="20").rows_per_batch == 200_000


def test_available_follows_the_clock_alone() -> None:
    assert flow().available(500, 2.0) == 2500
    assert flow(pace="2.5").available(0, 2.0) == 5000
    assert flow(rows="1000").available(0, 2.0) == 1000
    assert flow(pace="max").available(0, 2.0) is None
    assert flow(pace="0", rows="9").available(0, 0.0) == 9


def test_splits_cover_the_range() -> None:
    made = flow(partitions="3")
    assert made.splits(10, 20) == [(10, 13), (13, 16), (16, 20)]
    assert made.splits(10, 12) == [(10, 11), (11, 12)]
    assert made.splits(10, 10) == []


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row": "5"}, "no option 'row'; did you mean 'rows'"),
        ({"column.hots": "sequence"}, "no column 'hots'; did you mean 'host'"),
        ({"rows": "many"}, "rows: 'many' is not a whole number"),
        ({"rows": "-1"}, "rows: -1 is out of range; give at least 0"),
        ({"rows_per_batch": "0"}, "rows_per_batch: 0 is out of range; give at least 1"),
        ({"partitions": "0"}, "partitions: 0 is out of range"),
        ({"seed": "x"}, "seed: 'x' is not a whole number"),
        ({"rows_per_second": "0"}, "rows_per_second: '0' is not a rate; give a number above 0"),
        ({"rows_per_second": "1/3"}, "not a rate"),
        ({"rows_per_second": "0.0000001"}, "at most six decimals"),
        ({"pace": "fast"}, "pace: 'fast' is not a speed; .* or 'max'"),
        ({"pace": "-1"}, "'-1' is not a speed"),
        ({"start": "yesterday"}, "start: 'yesterday' is not a timestamp; write it like"),
        ({"disorder": "2 parsecs"}, "option disorder: duration '2 parsecs': unknown unit"),
        ({"disorder": "-2 seconds"}, "'-2 seconds' is negative"),
        ({"column.k": "unifrom 0 1"}, "no form 'unifrom'; did you mean 'uniform'"),
        ({"column.k": "time"}, "'time' does not fit a column of type int; write 'sequence' or"),
        ({"column.host": "uniform 0 5"}, "does not fit a column of type string; write 'pattern"),
        ({"column.ts": "sequence"}, "does not fit a column of type timestamp; write 'time' or"),
        ({"column.k": "uniform 0"}, "too few or too many words; write it like 'uniform LOW HIGH'"),
        ({"column.k": "sequence 1"}, "write it like 'sequence'"),
        ({"column.k": "choice"}, "write it like 'choice A B C'"),
        ({"column.k": "constant 1 2"}, "write it like 'constant X'"),
        ({"column.host": "pattern"}, "write it like 'pattern"),
        ({"column.k": "uniform 5 5"}, "no number is at least 5 and below 5; give LOW below HIGH"),
        ({"column.k": "uniform 0 1.5"}, "'1.5' is not a whole number"),
        ({"column.k": "uniform 0 3000000000"}, "3000000000 does not fit type int"),
        ({"column.x": "uniform 0 inf"}, "'inf' is not a number that fits type double"),
        ({"column.x": "constant one"}, "'one' is not a number"),
        ({"column.k": "zipf -1 10"}, "zipf needs an exponent of 0 or more"),
        ({"column.k": "zipf 1 0"}, "1 to 10,000,000 values"),
        ({"column.k": "zipf 1 10000001"}, "1 to 10,000,000 values"),
        ({"column.host": "pattern host"}, "'host' needs exactly one {}"),
        ({"column.host": "pattern {}{} zipf 1 5"}, "needs exactly one {}"),
        ({"column.host": "pattern {} choice a"}, "'choice' makes no integers; use sequence"),
        ({"column.host": "pattern {} zipf 1"}, "write it like 'zipf S N'"),
        ({"column.host": "constant it's"}, "a quote that is not closed"),
        ({"column.k": "null"}, "does not say how many are NULL"),
        ({"column.k": "null 2 sequence"}, "2 is not a share; give a number from 0 to 1"),
        ({"column.k": "null x"}, "'x' is not a number"),
        ({"column.id": "null 0.5"}, "NULLs in a column that is NOT NULL"),
        ({"column.day": "constant 2025-02-30"}, "'2025-02-30' is not a date"),
        ({"column.ok": "choice yes no"}, "'yes' is not a boolean; write true or false"),
    ],
)
def test_a_slip_is_named_with_its_cure(options: dict[str, str], message: str) -> None:
    columns = {"ts": "timestamp", "k": "int", "host": "string", "x": "double", "id": "bigint not null"}
    with pytest.raises(InputError, match=message) as caught:
        generate.spec(columns | {"day": "date", "ok": "boolean"}, options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "no columns; give at least one"),
        ({"k": "int", "K": "int"}, "'k' and 'K' differ in case alone"),
        (
            {"price": "decimal(10,2)"},
            r"'price' has type decimal\(10,2\), which cannot be generated; use one of tinyint",
        ),
    ],
)
def test_a_schema_that_cannot_be_generated(columns: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        generate.spec(columns, {})
