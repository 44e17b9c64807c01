"""The estimated bytes of combinations against batches of them that are really packed, from one row to two million."""

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.cost.sizes import size_at, thinned
from watersmeet.cost.workload import I64, Domain, Workload
from watersmeet.stats.model import BATCH_ROWS, BytesByBatch
from watersmeet.stats.packed_sizes import Sizes, body_bytes

WINDOW_S = 3.0
BATCHES = (1, 10, 100, 1_000, 10_000, 100_000, 2_000_000)
_US = 1_000_000


def drawn(rate: int, values: int, seed: int) -> tuple[pa.Table, I64]:
    """Twenty seconds of a stream: keys, numbers that rise, texts of twenty bytes, and event times."""
    chance = np.random.default_rng(seed)
    rows = rate * 20
    table = pa.table(
        {
            "k": pa.array(chance.integers(0, values, rows)),
            "id": pa.array(np.arange(rows)),
            "text": pa.array([chance.bytes(20) for _ in range(min(rows, 60_000))] * -(-rows // 60_000), pa.binary())[
                :rows
            ],
        }
    )
    return table, np.sort(chance.integers(0, 20 * _US, rows))


def sizes_of(table: pa.Table, name: str) -> BytesByBatch:
    sizes = Sizes()
    sizes.measure(table.select([name]).slice(0, 50_000), slices=3, mixed_up=True)
    assert sizes.each is not None
    return sizes.each


def workload_of(rate: int, values: int, tables: tuple[pa.Table, ...]) -> Workload:
    """Three alike streams with one key, which nobody selects; their keys' sizes differ as estimates do."""
    count = len(tables)
    domain = Domain(
        np.arange(values),
        np.arange(values),
        np.ones(values),
        np.full((count, values), 1 / values),
        np.ones(count, bool),
    )
    return Workload(
        tuple("abc"),
        tuple("xyz"),
        "x",
        np.full(count, float(rate)),
        np.full(count, WINDOW_S),
        (domain,),
        tuple(tuple(sizes_of(table, name) for name in ("id", "text", "k")) for table in tables),
        key_sizes=(sizes_of(tables[0], "k"),),
        hidden=((0,),) * count,
    )


def combined(tables: tuple[pa.Table, ...], times: tuple[I64, ...], window: int, batch: int) -> pa.Table | None:
    """As many combinations of new rows of a with a window of b as a batch has, in the order in which they are made."""
    keys = [table["k"].to_numpy() for table in tables]
    order = np.argsort(keys[1][:window], kind="stable")
    held = keys[1][:window][order]
    heads = np.arange(window, len(keys[0]))
    first = np.searchsorted(held, keys[0][heads], "left")
    found = np.searchsorted(held, keys[0][heads], "right") - first
    if found.sum() < batch:
        return None
    taken = int(np.searchsorted(np.cumsum(found), batch)) + 1
    heads, first, found = heads[:taken], first[:taken], found[:taken]
    left = np.repeat(heads, found)
    right = order[np.repeat(first, found) + np.arange(found.sum()) - np.repeat(np.cumsum(found) - found, found)]
    by_key = np.lexsort((left[:batch], keys[0][left[:batch]]))
    left, right = left[:batch][by_key], right[:batch][by_key]
    early, late = times[1][right], times[0][left]
    columns = {"low": pa.array(late), "high": pa.array(early + round(WINDOW_S * _US)), "k": pa.array(keys[0][left])}
    for name, table, rows in (("a", tables[0], left), ("b", tables[1], right)):
        columns |= {f"{name}_{one}": table[one].take(pa.array(rows)) for one in ("id", "text")}
    return pa.table(columns)


@pytest.mark.parametrize(("rate", "values"), [(300, 10), (300, 400), (3_000, 30), (3_000, 3_000)])
def test_combinations_with_few_and_many_different_values(rate: int, values: int) -> None:
    (a, a_times), (b, b_times), (c, _) = (drawn(rate, values, seed) for seed in range(3))
    workload = workload_of(rate, values, (a, b, c))
    tried = 0
    for batch in BATCHES:
        rows = combined((a, b), (a_times, b_times), round(rate * WINDOW_S), batch)
        if rows is not None:
            each = body_bytes(rows) / batch
            assert each / 1.6 <= workload.row_bytes(0b011, batch, times=2, head=0) <= each * 1.6, batch
            tried += 1
    assert tried >= 5


@pytest.mark.parametrize("batch", BATCHES)
def test_no_combination_is_estimated_at_less_than_nothing(batch: int) -> None:
    """Not even where the key's size differs from stream to stream and all else is nearly free."""
    tables = tuple(drawn(300, 10, seed)[0] for seed in range(3))
    workload = workload_of(300, 10, tables)
    nothing: BytesByBatch = (0.0, 0.0, 0.0, 0.0, 0.0)
    keys: tuple[BytesByBatch, ...] = ((8.0, 8.0, 8.0, 8.0, 8.0), (0.1, 0.1, 0.1, 0.1, 0.1), nothing)
    workload = Workload(
        workload.aliases, workload.homes, "x", workload.rate, workload.window_s, workload.domains,
        tuple((nothing, key) for key in keys), key_sizes=(keys[0],), hidden=((0,),) * 3,
    )  # fmt: skip
    for mask in (0b011, 0b101, 0b110, 0b111):
        for times in (1, 2):
            assert workload.row_bytes(mask, batch, times=times) > 0


@pytest.mark.parametrize("kind", ["regular", "at random", "some a second"])
@pytest.mark.parametrize("share", [1.0, 0.9, 0.5, 0.125, 0.02])
def test_times_of_some_rows_are_as_large_as_foreseen_from_those_of_all(kind: str, share: float) -> None:
    chance = np.random.default_rng(1)
    count, start = 100_000, 1_700_000_000_000_000
    ts = (
        start
        + {
            "regular": np.arange(count) * 2_000,
            "at random": np.cumsum(chance.exponential(2_000, count)).astype(np.int64),
            "some a second": np.arange(count) // 5 * 1_000_000,
        }[kind]
    )

    def each(times: np.ndarray, batch: int) -> float:
        tables = [pa.table({"#ts": times[place : place + batch]}) for place in range(0, len(times) - batch + 1, batch)]
        return sum(map(body_bytes, tables[:50])) / batch / len(tables[:50])

    whole = tuple(each(ts, batch) for batch in BATCH_ROWS)
    some = ts[chance.random(count) < share]
    for batch in (10, 100, 1_000):
        foreseen, packed = float(size_at(thinned(whole, share), batch)), each(some, batch)
        assert packed / 1.35 - 0.2 <= foreseen <= packed * 1.35 + 0.2, batch
