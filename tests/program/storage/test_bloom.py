"""Bloom filters never deny a key they were built from, and seldom claim another."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.program.storage import bloom
from watersmeet.program.storage.bloom import Filter, build
from watersmeet.program.storage.segments import U64, sort_key

repeatable = settings(derandomize=True, deadline=None, max_examples=100)


def filter_of(keys: U64) -> Filter:
    return Filter(0, 0, np.frombuffer(build(keys).as_py(), np.uint8))


@repeatable
@given(st.sets(st.integers(0, 2**64 - 1), max_size=200))
def test_no_key_is_ever_denied(values: set[int]) -> None:
    keys = np.array(sorted(values), np.uint64)
    assert filter_of(keys).holds(keys).all()


@pytest.mark.parametrize("bits", [1, 3, 16])
@repeatable
@given(values=st.sets(st.integers(0, 2**64 - 1), min_size=1, max_size=200))
def test_no_key_is_denied_however_small_the_filter(bits: int, values: set[int]) -> None:
    keys = np.array(sorted(values), np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bloom, "BITS_PER_KEY", bits)
        assert filter_of(keys).holds(keys).all()


def in_sequence(low: int, high: int) -> U64:
    """The keys of consecutive whole numbers, as sites compute them."""
    return sort_key([np.arange(low, high)], high - low)


def at_random(low: int, high: int) -> U64:
    return np.random.default_rng(low).integers(0, 2**64, high - low, np.uint64)


@pytest.mark.parametrize("draw", [in_sequence, at_random])
@pytest.mark.parametrize("count", [1, 10, 100, 1_000, 30_000])
def test_few_other_keys_are_claimed(draw: Callable[[int, int], U64], count: int) -> None:
    claimed = filter_of(draw(0, count)).holds(draw(1_000_000, 1_050_000)).mean()
    assert claimed < 0.03


@pytest.mark.parametrize("draw", [in_sequence, at_random])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_small_filters_claim_as_few_others_as_their_bits_allow(draw: Callable[[int, int], U64], count: int) -> None:
    others = draw(1_000_000, 1_030_000)
    claimed = np.mean([filter_of(draw(10 * trial, 10 * trial + count)).holds(others).mean() for trial in range(1, 60)])
    filled = 1 - (1 - 1 / 64) ** (8 * count)
    assert claimed < 2 * filled**8 + 1e-4


def test_composite_keys_are_told_apart() -> None:
    first, second = np.divmod(np.arange(10_000), 100)
    keys = sort_key([first, second], 10_000)
    held = filter_of(keys[:5_000])
    assert held.holds(keys[:5_000]).all()
    assert held.holds(keys[5_000:]).mean() < 0.03


def test_a_filter_has_its_bits_for_every_key_and_never_less_than_eight_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bloom, "BITS_PER_KEY", 10)
    assert [len(build(at_random(0, count)).as_py()) for count in (0, 1, 6, 7, 1_000)] == [8, 8, 8, 9, 1_250]


def test_an_empty_filter_holds_nothing() -> None:
    assert not filter_of(at_random(0, 0)).holds(at_random(0, 1_000)).any()


def test_a_small_filter_does_claim_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bloom, "BITS_PER_KEY", 1)
    assert filter_of(in_sequence(0, 1_000)).holds(in_sequence(5_000, 9_000)).mean() > 0.5
