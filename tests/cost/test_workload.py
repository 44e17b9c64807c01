"""Cells of key classes at the edges of 64 bits."""

import numpy as np
import pytest

from watersmeet.cost.from_statistics import _nested, aligned, workload_of
from watersmeet.cost.workload import Workload
from watersmeet.plan.shape import shape_of
from watersmeet.query.sql import parse_query
from watersmeet.stats.model import Bin, BytesByBatch, ColumnStats, Histogram, Number, Stats, StreamStats

LOWEST, GREATEST = -(2**63), 2**63 - 1


def test_the_greatest_values_have_cells_of_their_own() -> None:
    values = [LOWEST, LOWEST + 1, -1, 0, 7, GREATEST - 1, GREATEST]
    histogram = Histogram(tuple(Bin(value, value, 1.0, 1 / 7) for value in values))
    domain = aligned({0: histogram, 1: histogram}, {}, np.array([True, True]))
    assert domain.low.tolist() == domain.high.tolist() == values
    assert domain.size.tolist() == [1.0] * 7
    assert domain.shares == pytest.approx(np.full((2, 7), 1 / 7))


def test_bins_that_hold_all_values_there_are() -> None:
    whole = Histogram((Bin(LOWEST, GREATEST, 1_000.0, 1.0),))
    half = Histogram((Bin(0, GREATEST, 10.0, 1.0),))
    domain = aligned({0: whole, 1: half}, {}, np.array([True, True]))
    assert domain.low.tolist() == [LOWEST, 0] and domain.high.tolist() == [-1, GREATEST]
    assert domain.shares == pytest.approx(np.array([[0.5, 0.5], [0.0, 1.0]]))


def test_more_values_than_64_bits() -> None:
    domain = _nested({0: 10.0, 1: 1e300}, np.array([True, True]))
    assert (domain.low >= 0).all() and (domain.high >= domain.low).all()


COLUMNS = dict.fromkeys(("a", "b"), ("host", "size", "ts"))
TEXTS: BytesByBatch = (12.0, 8.0, 2.0, 0.5, 0.5)
REGULAR: BytesByBatch = (7.0, 0.9, 0.1, 0.01, 0.001)


def figures(where: str, hosts: float, selectivities: dict[str, float]) -> Workload:
    """A join by texts, whose keys travel as hashes, of streams whose rows come at regular times."""
    columns = {
        "host": ColumnStats(Number(hosts), sizes=TEXTS, in_order=TEXTS),
        "size": ColumnStats(Number(100.0), sizes=(2.0, 2.0, 2.0, 2.0, 2.0)),
        "ts": ColumnStats(sizes=(7.0, 3.0, 3.0, 3.0, 3.0), in_order=REGULAR),
    }
    known = StreamStats(rate=Number(100.0), columns=columns)
    sql = "SELECT a.size AS x, b.size AS y FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.host = b.host"
    shape = shape_of(parse_query(sql + where, COLUMNS), COLUMNS)
    assert not shape.classes[0].exact
    shares = {text: Number(share) for text, share in selectivities.items()}
    stats = Stats({"a": known, "b": known}, shares)
    times = {"a": "ts", "b": "ts"}
    return workload_of(shape.scans, shape.classes, shape.output, ("x", "y"), "x", stats, event_times=times)


def test_hashed_keys_that_come_again_take_a_mark_and_others_all_their_bytes() -> None:
    few, many = (figures("", hosts, {}).row_bytes(0b01, 1_000.0) for hosts in (20.0, 1e9))
    assert many == pytest.approx(8.0 + 0.5 + 2.0 + 0.01)  # the text is kept too, to be compared where hashes agree
    assert 0.1 < few - (many - 8.0) < 1.0


def test_times_of_a_regular_stream_take_bytes_only_where_not_all_rows_travel() -> None:
    workload = figures("", 20.0, {})
    whole, half, tenth = (workload.row_bytes(0b01, 1_000.0, rate=rate) for rate in (100.0, 50.0, 10.0))
    assert workload.row_bytes(0b01, 1_000.0) == whole
    assert 0.5 < half - whole < 1.0 < tenth - whole < 1.8


def test_a_filter_of_which_nobody_knows_how_many_rows_pass_is_named() -> None:
    (unknown,) = figures(" AND a.size > 3", 20.0, {}).unmeasured
    assert "size" in unknown
    known = figures(" AND a.size > 3", 20.0, {unknown: 0.25})
    assert known.unmeasured == () and known.rate.tolist() == [25.0, 100.0]
