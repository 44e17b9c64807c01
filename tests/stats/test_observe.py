"""What ingested batches say about their streams: every row is counted, a sample is sketched, filters share."""

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.planners.sited import central
from watersmeet.program.site.deployment import overlay, shared_joins
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.storage.segments import TS, class_column, keep_column
from watersmeet.query.sql import parse_query
from watersmeet.sim.sites.rows import typed
from watersmeet.stats.observe import SAMPLE_ROWS, StreamObserver, observe

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64()), ("w", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
SQL = (
    "SELECT a.v AS x, b.v AS y FROM s [RANGE 1 MINUTE] AS a, s [RANGE 1 MINUTE] AS b "
    "WHERE a.k = b.k AND a.w > 1 AND a.v < 5"
)


def program() -> SiteProgram:
    """The home of a stream that a query reads twice, once with filters."""
    query = typed(parse_query(SQL, {"s": SCHEMA.names}), {"s": SCHEMA})
    plan = central(query, {"s": SCHEMA.names}, {"s": "ams"}, "nyc")
    return overlay(shared_joins({"q": plan}, {}))["ams"]


def batch(rows: int, start: int) -> pa.Table:
    random = np.random.default_rng(start)
    (scan,) = program().streams
    assert [bool(selection.filters) for selection in scan.selections] == [True, False]
    return pa.table(
        {
            TS: np.arange(start, start + rows) * 1_000,  # a thousand a second
            class_column(0): random.integers(0, 100, rows),
            keep_column(0): np.arange(rows) % 4 == 0,
            "s.v": random.random(rows),
        }
    )


def test_all_rows_count_and_a_sample_is_sketched() -> None:
    observer = StreamObserver(program())
    for start in range(0, 50_000, 10_000):
        sketch = observe(program().streams[0], batch(10_000, start))
        assert (sketch.rows, sketch.sketched) == (10_000, SAMPLE_ROWS)
        observer.take("s", sketch.to_data())
    stats = StreamObserver.from_json(program(), observer.to_json()).stats(7.0).stream("s")
    assert stats.rate is not None and stats.rate.value == pytest.approx(1_000.0)
    assert stats.rate.taken_at == 7.0
    column = stats.columns["k"]
    assert column.distinct is not None and column.distinct.value == 100
    assert column.histogram is not None and len(column.histogram.bins) == 100
    assert column.sizes is not None and stats.columns["v"].sizes is not None
    assert stats.columns["v"].sizes[2] > 7  # random doubles do not compress


def test_filters_share_what_they_let_through_together() -> None:
    observer = StreamObserver(program())
    observer.take("s", observe(program().streams[0], batch(4_000, 0)).to_data())
    stats = observer.stats(None)
    assert {sql: number.value for sql, number in stats.selectivities.items()} == {"`a.w` > 1": 0.5, "`a.v` < 5": 0.5}
    rate = stats.stream("s").rate
    assert rate is not None and rate.value == pytest.approx(1_000.0)  # two aliases of one stream do not make it faster


def test_without_rows_there_are_no_statistics() -> None:
    assert StreamObserver(program()).stats(1.0).streams == {}
    assert not StreamObserver(program()).has_seen
