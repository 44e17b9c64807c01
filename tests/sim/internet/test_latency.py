"""Latency models: symmetric, the same one by one and all at once, and with the distributions they promise."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from watersmeet.sim.internet.latency import ConstantLatency, King, Latency, Star, TransitStub

MODELS = [
    ConstantLatency(30_000),
    Star(200),
    Star(200, delay_us=80_000, spread_us=30_000, seed=2),
    TransitStub(200, seed=3),
    King(200, seed=4),
]


def pairs(hosts: int, count: int = 2_000, seed: int = 5) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    return generator.integers(0, hosts, count), generator.integers(0, hosts, count)


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_one_by_one_is_many_both_ways_and_zero_to_itself(model: Latency) -> None:
    a, b = pairs(300)  # numbers from 200 on are hosts that came later
    b[:10] = a[:10]
    one_by_one = [model.latency_us(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    assert all(type(delay_us) is int for delay_us in one_by_one)
    assert model.many(a, b).tolist() == one_by_one
    assert model.many(b, a).tolist() == one_by_one
    assert [delay_us == 0 for delay_us in one_by_one] == (a == b).tolist()


@pytest.mark.parametrize("make", [Star, TransitStub, King])
def test_later_hosts_share_a_place_with_earlier_ones(make: Callable[..., Latency]) -> None:
    model = make(50)
    assert model.latency_us(53, 7) == model.latency_us(3, 7)
    assert model.latency_us(3, 53) > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: Star(100, spread_us=20_000, seed=seed),
        lambda s: TransitStub(100, seed=s),
        lambda s: King(100, seed=s),
    ],
)
def test_a_model_is_a_function_of_its_seed(make: Callable[..., Latency]) -> None:
    a, b = pairs(100)
    assert make(1).many(a, b).tolist() == make(1).many(a, b).tolist()
    assert make(1).many(a, b).tolist() != make(2).many(a, b).tolist()


def test_star_adds_two_spokes() -> None:
    model = Star(300, delay_us=100_000, spread_us=40_000, seed=1)
    spokes = {h: (model.latency_us(h, 0) + model.latency_us(h, 1) - model.latency_us(0, 1)) / 2 for h in range(2, 300)}
    assert min(spokes.values()) >= 10_000
    assert max(spokes.values()) <= 90_000
    assert max(spokes.values()) - min(spokes.values()) > 60_000
    assert model.latency_us(5, 9) == spokes[5] + spokes[9]


def test_transit_stub_of_one_node_has_only_the_delays_of_stubs() -> None:
    model = TransitStub(100, transit_domains=1, nodes_per_domain=1, stubs_per_node=5)
    a, b = pairs(100)
    delays = model.many(a, b)[a != b]
    assert set(delays.tolist()) == {2_000, 2 * (2_000 + 5_000)}


def test_transit_stub_with_every_wire_has_the_four_levels() -> None:
    model = TransitStub(2_000, transit_domains=3, nodes_per_domain=1, stubs_per_node=2, density=1.0)
    a, b = pairs(2_000)
    levels, counts = np.unique(model.many(a, b)[a != b], return_counts=True)
    assert levels.tolist() == [2_000, 14_000, 64_000]  # the same stub, the same transit node, another domain
    # 6 stubs, evenly: 1/6, 1/6 and 2/3 of the pairs; four deviations of a share near 1/6 among 2,000 are 0.034.
    assert counts / counts.sum() == pytest.approx([1 / 6, 1 / 6, 2 / 3], abs=0.05)


def test_transit_stub_paths_are_sums_of_wires_and_shortest() -> None:
    model = TransitStub(400, seed=7)
    a, b = pairs(400)
    delays = model.many(a, b)
    transit = delays[delays > 2_000] - 14_000
    assert (transit % 10_000 == 0).all()  # of wires of 20 and 50 ms
    assert transit.max() <= 3 * 50_000 + 4 * 3 * 20_000  # no way is longer than through every domain
    via = 11
    detour = model.many(a, np.full_like(a, via)) + model.many(np.full_like(a, via), b)
    assert (delays <= detour).all()


@pytest.mark.parametrize("seed", range(5))
def test_king_has_its_median_and_a_long_tail(seed: int) -> None:
    model = King(1_740, seed=seed)
    rtt_ms = 2 * model.many(*pairs(1_740, 50_000, seed=100 + seed)) / 1_000
    # The model is scaled on 20,000 other pairs, and pairs share hosts: a few per cent remain.
    assert np.median(rtt_ms) == pytest.approx(150, rel=0.04)
    assert 160 < rtt_ms.mean() < 190
    assert 40 < np.percentile(rtt_ms, 10) < 80
    assert 250 < np.percentile(rtt_ms, 90) < 400
    assert np.percentile(rtt_ms, 99) > 3 * 150


def test_king_is_scaled_to_the_median_asked_for() -> None:
    model = King(500, median_us=20_000, seed=1)
    assert np.median(model.many(*pairs(500, 20_000)).astype(np.float64)) == pytest.approx(20_000, rel=0.04)


@pytest.mark.parametrize("make", [Star, TransitStub, King])
def test_no_hosts_is_an_error(make: Callable[..., Latency]) -> None:
    with pytest.raises(ValueError, match="at least one host"):
        make(0)
    assert make(1).latency_us(0, 0) == 0


def test_bad_delays_are_errors() -> None:
    with pytest.raises(ValueError, match="negative"):
        ConstantLatency(-1)
    with pytest.raises(ValueError, match="spread_us"):
        Star(3, delay_us=100, spread_us=51)
    with pytest.raises(ValueError, match="at least one member"):
        TransitStub(3, stubs_per_node=0)
