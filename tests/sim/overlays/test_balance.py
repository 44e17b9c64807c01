"""Id movement: the same load, on the same number of nodes, more evenly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from watersmeet.sim.overlays.balance import balance
from watersmeet.sim.overlays.identifiers import SPACE
from watersmeet.sim.overlays.ring import Ring


def loads(identifiers: NDArray[np.uint64], keys: NDArray[np.uint64], weights: NDArray[np.int64]) -> NDArray[np.float64]:
    ring = Ring(identifiers)
    return np.bincount(ring.owners(keys), weights, minlength=len(ring)).astype(np.float64)


@pytest.mark.parametrize("seed", range(5))
def test_highest_load_halves_on_a_zipf_load(seed: int) -> None:
    identifiers = Ring.random(1_000, seed).identifiers
    keys = np.random.default_rng(seed + 100).integers(SPACE, size=10_000, dtype=np.uint64)
    weights = np.rint(100_000 / np.arange(1, keys.size + 1) ** 0.3).astype(np.int64)
    before = loads(identifiers, keys, weights)
    moved = balance(identifiers, keys, weights, rounds=10, seed=seed)
    after = loads(moved.identifiers, keys, weights)
    assert after.max() < 0.6 * before.max()
    assert after.sum() == before.sum() == weights.sum()
    assert (after > 0).sum() > (before > 0).sum()
    assert 0 < moved.moves < 1_000
    assert (moved.identifiers != identifiers).sum() <= moved.moves


@settings(max_examples=200, deadline=None)
@given(
    st.sets(st.integers(0, 60), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=20),
    st.integers(0, 1_000),
)
def test_no_round_raises_the_highest_load(points: set[int], keyed: list[tuple[int, int]], seed: int) -> None:
    """On a crowded circle, where arcs wrap, keys are equal and nodes stand on keys."""
    identifiers = np.array(sorted(points), dtype=np.uint64)
    keys, weights = (
        np.array([key for key, _ in keyed], dtype=np.uint64),
        np.array([w for _, w in keyed], dtype=np.int64),
    )
    highest = [
        loads(balance(identifiers, keys, weights, rounds=rounds, seed=seed).identifiers, keys, weights).max()
        for rounds in range(4)
    ]
    assert highest == sorted(highest, reverse=True)
    assert len(set(balance(identifiers, keys, weights, rounds=4, seed=seed).identifiers.tolist())) == len(points)


def test_a_single_heavy_key_is_isolated_and_not_divided() -> None:
    keys = np.array([10, 50, 90, 95], dtype=np.uint64)
    weights = np.array([1, 1_000, 1, 1])
    moved = balance(np.array([20, 60, 100], dtype=np.uint64), keys, weights, rounds=20, seed=1)
    assert loads(moved.identifiers, keys, weights).max() == 1_000


def test_it_is_a_function_of_the_seed() -> None:
    identifiers, keys = Ring.random(50, 1).identifiers, Ring.random(400, 2).identifiers
    first, again, other = (
        balance(identifiers, keys, np.ones(400), rounds=3, seed=seed).identifiers.tolist() for seed in (5, 5, 6)
    )
    assert first == again != other
    assert balance(identifiers, keys, np.ones(400), rounds=0, seed=5).identifiers.tolist() == identifiers.tolist()


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="epsilon"):
        balance([1, 2], [3], [1], rounds=1, seed=0, epsilon=0.25)
    with pytest.raises(ValueError, match="one weight"):
        balance([1, 2], [3], [1, 2], rounds=1, seed=0)
    with pytest.raises(ValueError, match="negative"):
        balance([1, 2], [3], [-1], rounds=1, seed=0)
    with pytest.raises(ValueError, match="different identifiers"):
        balance([1, 1], [3], [1], rounds=1, seed=0)
