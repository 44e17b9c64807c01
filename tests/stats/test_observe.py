"""What ingested batches tell of their streams: every row is counted, a sample is sketched, filters are shared out."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.plan.nodes import JoinPlan, join_plan_of
from watersmeet.planners.sited import central
from watersmeet.program.storage.segments import KEEP, TS, class_column
from watersmeet.query.sql import parse_query
from watersmeet.stats.observe import SAMPLE_ROWS, Observer, observe

COLUMNS = {"s": ("k", "v", "w", "ts")}
SQL = (
    "SELECT a.v AS x, b.v AS y FROM s [RANGE 1 MINUTE] AS a, s [RANGE 1 MINUTE] AS b "
    "WHERE a.k = b.k AND a.w > 1 AND a.v < 5"
)


def join() -> JoinPlan:
    found = join_plan_of(central(parse_query(SQL, COLUMNS), COLUMNS, {"s": "ams"}, "nyc"))
    classes = tuple(
        replace(one, members=tuple(replace(member, type="bigint") for member in one.members)) for one in found.classes
    )
    return replace(found, classes=classes)


def batch(rows: int, start: int, *, filtered: bool) -> pa.Table:
    random = np.random.default_rng(start)
    table = pa.table(
        {
            TS: np.arange(start, start + rows) * 1_000,  # a thousand a second
            class_column(0): random.integers(0, 100, rows),
        }
    )
    if filtered:
        table = table.append_column(KEEP, pa.array(np.arange(rows) % 4 == 0))
    name = "a.v" if filtered else "b.v"
    return table.append_column(name, pa.array(random.random(rows)))


def test_all_rows_count_and_a_sample_is_sketched() -> None:
    observer = Observer(join())
    for start in range(0, 50_000, 10_000):
        sketch = observe(join(), "b", batch(10_000, start, filtered=False))
        assert (sketch.rows, sketch.sketched) == (10_000, SAMPLE_ROWS)
        observer.take("b", sketch)
    stats = Observer.from_json(join(), observer.to_json()).stats(7.0).stream("s")
    assert stats.rate is not None and stats.rate.value == pytest.approx(1_000.0)
    assert stats.rate.taken_at == 7.0
    column = stats.columns["k"]
    assert column.distinct is not None and column.distinct.value == 100
    assert column.histogram is not None and len(column.histogram.bins) == 100
    assert column.sizes is not None and stats.columns["v"].sizes is not None
    assert stats.columns["v"].sizes[2] > 7  # random doubles do not compress


def test_filters_share_what_they_let_through_together() -> None:
    observer = Observer(join())
    observer.take("a", observe(join(), "a", batch(4_000, 0, filtered=True)))
    observer.take("b", observe(join(), "b", batch(4_000, 0, filtered=False)))
    stats = observer.stats(None)
    assert {sql: number.value for sql, number in stats.selectivities.items()} == {"`a.w` > 1": 0.5, "`a.v` < 5": 0.5}
    rate = stats.stream("s").rate
    assert rate is not None and rate.value == pytest.approx(1_000.0)  # two aliases of one stream do not make it faster


def test_nothing_seen_is_nothing_told() -> None:
    assert Observer(join()).stats(1.0).streams == {}
