"""The monitor: averages follow what changes, forget what is long past, and say nothing of what was not seen."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.adapt.monitor import MonitorState, StreamObserved, TransferObserved, observe, statistics, with_links
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


@given(st.lists(st.tuples(st.floats(90, 110), st.floats(0.1, 30)), min_size=1, max_size=20), st.floats(1, 100))
def test_a_rate_is_the_mean_of_all_rows_by_their_age(drawn: list[tuple[float, float]], half_life_s: float) -> None:
    state, now_s, times = MonitorState(half_life_s), 0.0, []
    seen = [(round(rate * seconds), seconds) for rate, seconds in drawn]
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


def rate_of(state: MonitorState) -> float:
    rate = statistics(state, Stats()).stream("a").rate
    assert rate is not None
    return rate.value


def test_a_rate_that_jumps_is_followed_after_three_observations() -> None:
    state = MonitorState(half_life_s=100.0)
    for second in range(30):
        state = observe(state, StreamObserved("a", 100, 1.0), float(second))
    for second in range(30, 33):
        assert rate_of(state) < 200 and state.is_moving(second) == (second > 30)
        state = observe(state, StreamObserved("a", 1_000, 1.0), float(second))
    assert rate_of(state) == 1_000 and not state.is_moving(33.0)
    for rows in (400, 2_000, 400, 2_000):  # this way and that: no change, but noise
        state = observe(state, StreamObserved("a", rows, 1.0), 33.0)
    assert 800 < rate_of(state) < 1_400


@pytest.mark.parametrize("rows", [40, 600])
@pytest.mark.parametrize("popular", ["none", "moved", "new", "gone", "same"])
def test_other_popular_values_are_noticed_with_the_next_sketch(rows: int, popular: str) -> None:
    random, state = np.random.default_rng(rows), MonitorState(half_life_s=50.0)

    def keys(first: int | None) -> np.ndarray:
        some = random.integers(0, 5_000, rows)
        return (
            some if first is None else np.where(random.random(rows) < 0.7, first + random.integers(0, 20, rows), some)
        )

    before, after = {
        "none": (None, None),
        "moved": (0, 500),
        "new": (None, 7),
        "gone": (7, None),
        "same": (7, 7),
    }[popular]
    for second in range(60):
        state = observe(state, StreamObserved("a", rows, 1.0, sketch(keys(before), second)), float(second))
    assert state.sketches["a"].drifts == 0
    for second in range(60, 63):
        state = observe(state, StreamObserved("a", rows, 1.0, sketch(keys(after), second)), float(second))
    assert state.sketches["a"].drifts == (popular in ("moved", "new", "gone"))


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


LINK = Link(latency_us=80_000, bandwidth_bps=1e6, price_per_gb=0.02)
SITES = tuple(Site(name) for name in ("ams", "fra", "nyc"))


def transfers(latency_s: float, bandwidth_bps: float, sizes: np.ndarray, jitter_s: float = 0.0) -> MonitorState:
    random, state = np.random.default_rng(1), MonitorState(half_life_s=30.0)
    for step, size in enumerate(sizes.tolist()):
        seconds = latency_s + 8 * size / bandwidth_bps + jitter_s * random.random()
        state = observe(state, TransferObserved(("nyc", "ams"), size, seconds), float(step))
    return state


def test_links_are_as_observed_and_the_others_as_given() -> None:
    topology = Topology((), sites=SITES, default_link=LINK)
    sizes = np.random.default_rng(2).integers(1_000, 50_000, 40)
    state = transfers(0.3, 2e5, sizes, jitter_s=0.01)
    seen = with_links(state, topology)
    found = seen.link("ams", "nyc")
    assert found.latency_us == pytest.approx(300_000, rel=0.2) and found.price_per_gb == 0.02
    assert found.bandwidth_bps == pytest.approx(2e5, rel=0.2)
    assert seen.link("ams", "fra") == topology.link("ams", "fra")
    free = replace(topology, default_link=None)
    assert with_links(state, free).is_linked("fra", "nyc")  # all sites have a link where none is given
    assert with_links(MonitorState(), topology) == topology


@pytest.mark.parametrize("spread", [0, 900])
def test_links_about_as_given_stay_so(spread: int) -> None:
    topology = Topology((), sites=SITES, default_link=LINK)
    sizes = 1_000 + np.arange(20) * spread
    assert with_links(transfers(0.085, 0.95e6, sizes, jitter_s=0.01), topology) == topology


def test_sizes_that_do_not_differ_say_nothing_of_bandwidth() -> None:
    topology = Topology((), sites=SITES, default_link=LINK)
    found = with_links(transfers(0.5, 1e6, np.full(20, 1_000)), topology).link("nyc", "ams")
    assert found.bandwidth_bps == 1e6 and found.latency_us == pytest.approx(500_000, rel=0.15)
    assert with_links(transfers(0.5, 1e6, np.full(2, 1_000)), topology) == topology  # too few


def test_a_half_life_is_positive() -> None:
    with pytest.raises(ValueError, match="half-life"):
        MonitorState(0.0)
