"""The monitor: averages follow what changes, forget what is long past, and say nothing of what was not seen."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.adapt.monitor import LinkObserved, MonitorState, StreamObserved, observe, statistics, with_links
from watersmeet.stats.model import Number, Origin, Stats, StreamStats
from watersmeet.stats.sketches import StreamSketch
from watersmeet.topology.model import Link, Site, Topology

SECOND = 1_000_000


def sketch(keys: np.ndarray, first_s: float) -> StreamSketch:
    found = StreamSketch()
    found.count((first_s * SECOND + np.arange(len(keys)) * 1_000).astype(np.int64))
    table = pa.table({"k": pa.array(keys)})
    found.add(table)
    found.measure(table, slices=1)
    return found


@given(st.lists(st.tuples(st.integers(0, 1_000), st.floats(0.1, 30)), min_size=1, max_size=20), st.floats(1, 100))
def test_a_rate_is_the_mean_of_all_rows_by_their_age(seen: list[tuple[int, float]], half_life_s: float) -> None:
    state, now_s, times = MonitorState(half_life_s), 0.0, []
    for rows, seconds in seen:
        now_s += seconds
        times.append(now_s)
        state = observe(state, StreamObserved("a", rows, seconds), now_s)
    weights = [0.5 ** ((now_s - time) / half_life_s) for time in times]
    rows_seen = sum(weight * rows for weight, (rows, _) in zip(weights, seen, strict=True))
    seconds_seen = sum(weight * seconds for weight, (_, seconds) in zip(weights, seen, strict=True))
    rate = statistics(state, Stats()).stream("a").rate
    assert rate is not None and math.isclose(rate.value, rows_seen / seconds_seen, rel_tol=1e-9, abs_tol=1e-9)
    assert rate.origin is Origin.OBSERVED


def test_popular_values_are_forgotten_after_two_generations() -> None:
    random, state = np.random.default_rng(1), MonitorState(half_life_s=5.0)

    def popular(now_s: float) -> set[int]:
        histogram = statistics(state, Stats(), now_s).stream("a").columns["k"].histogram
        assert histogram is not None and histogram.taken_at == now_s
        return {one.low for one in histogram.bins if one.low == one.high and one.share > 0.3}

    for step in range(12):
        value = 7 if step < 6 else 9
        keys = np.where(random.random(500) < 0.6, value, random.integers(100, 200, 500))
        state = observe(state, StreamObserved("a", 500, 5.0, sketch(keys, step * 5.0)), step * 5.0)
        if step == 5:
            assert popular(25.0) == {7}
    assert popular(55.0) == {9}


def test_states_are_values() -> None:
    first = observe(MonitorState(), StreamObserved("a", 100, 1.0, sketch(np.arange(100), 0.0)), 0.0)
    before = statistics(first, Stats())
    observe(first, StreamObserved("a", 900, 1.0, sketch(np.zeros(900, np.int64), 1.0)), 1.0)
    assert statistics(first, Stats()) == before


def test_what_was_given_stays_where_nothing_is_seen() -> None:
    given_stats = Stats({"a": StreamStats(Number(5.0), Number(40.0)), "b": StreamStats(Number(6.0))})
    state = observe(MonitorState(), StreamObserved("a", 700, 10.0), 0.0)
    found = statistics(state, given_stats)
    rates = [found.stream(name).rate for name in "ab"]
    assert [rate.value for rate in rates if rate is not None] == [70.0, 6.0]
    assert found.stream("a").row_bytes == Number(40.0)


def test_links_are_as_observed_and_the_others_as_given() -> None:
    sites = tuple(Site(name) for name in ("ams", "fra", "nyc"))
    topology = Topology((), sites=sites, default_link=Link(latency_us=80_000, bandwidth_bps=1e6, price_per_gb=0.02))
    state = MonitorState(half_life_s=10.0)
    for step, latency_s in enumerate((0.1, 0.3)):
        state = observe(state, LinkObserved(("nyc", "ams"), latency_s), step * 10.0)
    state = observe(state, LinkObserved(("ams", "nyc"), bandwidth_bps=2e6), 20.0)
    seen = with_links(state, topology)
    assert seen.link("ams", "nyc") == Link(("ams", "nyc"), round(0.7 / 3 * 1e6), 2e6, 0.02)
    assert seen.link("ams", "fra") == topology.link("ams", "fra")
    free = replace(topology, default_link=None)
    assert with_links(state, free).is_linked("fra", "nyc")  # all sites have a link where none is given
    assert with_links(MonitorState(), topology) == topology


def test_a_half_life_is_positive() -> None:
    with pytest.raises(ValueError, match="half-life"):
        MonitorState(0.0)
