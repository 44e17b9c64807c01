"""The shares that comparisons are expected to leave, beside rows that were drawn."""

from collections.abc import Callable

import numpy as np
import pytest

from watersmeet.cost.comparing import BAND, INEQUALITY, KnownColumn, share_left
from watersmeet.query.comparisons import Condition
from watersmeet.query.model import EVENT_TIME_KIND, Column, Expression
from watersmeet.stats.model import Bin, Histogram

A, B = Column("a", "x"), Column("b", "x")
EVEN = Histogram(tuple(Bin(low, low + 9, 10.0, 0.1) for low in range(0, 100, 10)))
LOW = Histogram((Bin(0, 9, 10.0, 0.5), Bin(10, 99, 90.0, 0.5)))


def condition(text: str, kind: str) -> Condition:
    return Condition(Expression(text.replace("a.x", A.sql).replace("b.x", B.sql), (A, B)), (kind, kind))


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("b.x >= a.x", lambda a, b: b >= a),
        ("b.x BETWEEN a.x - INTERVAL 2 SECONDS AND a.x + INTERVAL 3 SECONDS", lambda a, b: (b >= a - 2) & (b <= a + 3)),
        ("NOT (a.x < b.x - INTERVAL 5 SECONDS)", lambda a, b: ~(a < b - 5)),
    ],
)
def test_times_differ_by_anything_that_windows_allow(text: str, holds: Callable[..., np.ndarray]) -> None:
    random = np.random.default_rng(1)
    a, b = random.uniform(0, 1000, 4_000), random.uniform(0, 1000, 4_000)
    difference = b[None, :] - a[:, None]
    met = (difference <= 20) & (difference >= -10)  # rows of a are seen for 20 s, of b for 10 s
    drawn = np.mean(holds(a[:, None], b[None, :])[met])
    known = {A.flat: KnownColumn(20e6, None), B.flat: KnownColumn(10e6, None)}
    assert share_left([condition(text, EVENT_TIME_KIND)], known.__getitem__) == pytest.approx(drawn, abs=0.02)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("a.x < b.x", lambda a, b: a < b),
        ("a.x > b.x + 30", lambda a, b: a > b + 30),
        ("abs(a.x - b.x) <= 5", lambda a, b: abs(a - b) <= 5),
    ],
)
def test_values_are_compared_as_histograms_say(text: str, holds: Callable[..., np.ndarray]) -> None:
    random = np.random.default_rng(2)
    a = random.integers(0, 100, 3_000)
    b = np.where(random.random(3_000) < 0.5, random.integers(0, 10, 3_000), random.integers(10, 100, 3_000))
    drawn = np.mean(holds(a[:, None], b[None, :]))
    known = {A.flat: KnownColumn(1e6, EVEN), B.flat: KnownColumn(1e6, LOW)}
    assert share_left([condition(text, "bigint")], known.__getitem__) == pytest.approx(drawn, abs=0.02)


def test_two_bounds_of_one_difference_are_taken_together() -> None:
    known = {A.flat: KnownColumn(1e6, EVEN), B.flat: KnownColumn(1e6, EVEN)}
    both = [condition("a.x <= b.x + 5", "bigint"), condition("b.x <= a.x + 5", "bigint")]
    together = share_left([condition("abs(a.x - b.x) <= 5", "bigint")], known.__getitem__)
    assert share_left(both, known.__getitem__) == pytest.approx(together)


def test_nothing_known_leaves_half_or_a_quarter() -> None:
    known = {A.flat: KnownColumn(1e6, None), B.flat: KnownColumn(1e6, None)}
    assert share_left([condition("a.x < b.x", "double")], known.__getitem__) == INEQUALITY
    assert share_left([condition("abs(a.x - b.x) < 2", "double")], known.__getitem__) == BAND
