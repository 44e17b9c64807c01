"""Cells of key classes at the edges of 64 bits."""

import numpy as np
import pytest

from watersmeet.cost.workload import _aligned, _nested
from watersmeet.stats.model import Bin, Histogram

LOWEST, GREATEST = -(2**63), 2**63 - 1


def test_the_greatest_values_have_cells_of_their_own() -> None:
    values = [LOWEST, LOWEST + 1, -1, 0, 7, GREATEST - 1, GREATEST]
    histogram = Histogram(tuple(Bin(value, value, 1.0, 1 / 7) for value in values))
    domain = _aligned({0: histogram, 1: histogram}, {}, np.array([True, True]))
    assert domain.low.tolist() == domain.high.tolist() == values
    assert domain.size.tolist() == [1.0] * 7
    assert domain.shares == pytest.approx(np.full((2, 7), 1 / 7))


def test_bins_that_hold_all_values_there_are() -> None:
    whole = Histogram((Bin(LOWEST, GREATEST, 1_000.0, 1.0),))
    half = Histogram((Bin(0, GREATEST, 10.0, 1.0),))
    domain = _aligned({0: whole, 1: half}, {}, np.array([True, True]))
    assert domain.low.tolist() == [LOWEST, 0] and domain.high.tolist() == [-1, GREATEST]
    assert domain.shares == pytest.approx(np.array([[0.5, 0.5], [0.0, 1.0]]))


def test_more_values_than_64_bits() -> None:
    domain = _nested({0: 10.0, 1: 1e300}, np.array([True, True]))
    assert (domain.low >= 0).all() and (domain.high >= domain.low).all()
