"""The formulas of the cost model against draws, and against each other."""

import numpy as np
import pytest

from watersmeet.cost.formulas import (
    advances,
    announced_per_value,
    any_of,
    bloom_bytes,
    clump,
    clumped_rate,
    distinct_keys,
    expected_where_seen,
    filter_flow_bytes,
    flow_bytes,
    key_flow_bytes,
    messages_per_s,
    present,
    present_some_time,
    rows_in,
    rows_per_message,
    rows_per_value,
    seen,
    sum_cells,
    together,
    with_false_positives,
)
from watersmeet.cost.sizes import size_at


def test_any_are_seen_as_often_as_a_poisson_draw_is_not_zero() -> None:
    expected = np.array([0.01, 0.5, 2.0, 6.0])
    drawn = np.random.default_rng(1).poisson(expected, (200_000, 4)) > 0
    assert seen(expected) == pytest.approx(drawn.mean(axis=0), abs=5e-3)
    assert expected_where_seen(seen(expected)) == pytest.approx(expected)


def test_all_windows_have_a_value_at_once_as_often_as_when_drawn() -> None:
    rate, window_s, time_s = np.array([[0.4], [0.7]]), np.array([2.0, 1.0]), 3.0
    random = np.random.default_rng(2)
    trials, hits = 20_000, 0
    for _ in range(trials):
        intervals = []
        for one_rate, one_window_s in zip(rate[:, 0], window_s, strict=True):
            count = random.poisson(one_rate * (one_window_s + time_s))
            starts = random.uniform(-one_window_s, time_s, count)
            intervals.append([(start, start + one_window_s) for start in starts])
        hits += any(
            max(low, other_low, 0.0) <= min(high, other_high, time_s)
            for low, high in intervals[0]
            for other_low, other_high in intervals[1]
        )
    assert together(rate, window_s, time_s)[0] == pytest.approx(hits / trials, rel=0.05)


def test_streams_together_are_the_product_of_each_alone() -> None:
    rate, window_s = np.array([[0.4, 3.0], [0.7, 0.1]]), np.array([2.0, 1.0])
    there, begins = present(rate, window_s[:, None])
    chance = there.prod(axis=0)
    assert together(rate, window_s) == pytest.approx(chance)
    begun = present_some_time(chance, chance * begins.sum(axis=0), 0.7)
    assert together(rate, window_s, 0.7) == pytest.approx(begun)
    assert (begun > chance).all() and (begun < 1).all()


def test_a_head_row_that_has_any_is_in_as_many_combinations_as_drawn() -> None:
    drawn = np.random.default_rng(3).poisson(1.7, 200_000)
    assert clump(1.7) == pytest.approx(drawn[drawn > 0].mean(), rel=0.01)


def test_keys_of_a_batch_are_counted_once_each() -> None:
    random = np.random.default_rng(4)
    size, share, rate, interval_s = np.array([10.0, 40.0]), np.array([0.7, 0.3]), 30.0, 2.0
    values = np.concatenate([np.full(10, 0.07), np.full(40, 0.3 / 40)])
    distinct = [(random.poisson(rate * interval_s * values) > 0).sum() for _ in range(3_000)]
    found = sum_cells(size, distinct_keys(rows_per_value(rate, share, size), interval_s))
    assert found * interval_s == pytest.approx(np.mean(distinct), rel=0.02)


def test_values_that_hardly_come_are_not_announced_and_clumps_bound_the_rate() -> None:
    often, length = announced_per_value(np.array([0.0, 1e-10, 0.5]), 4.0)
    assert often[0] == often[1] == 0 and often[2] > 0
    assert length[2] <= 4.0
    assert clumped_rate(np.array([5.0, 0.1]), np.array([0.5, 0.5]), 2.0) == pytest.approx([np.log(2) / 2, 0.1])
    assert rows_in(3.0, 2.0, 0.5) == 4.0
    assert with_false_positives(np.array([0.0, 0.5, 1.0]), 0.1) == pytest.approx([0.1, 0.55, 1.0])


def test_formulas_of_bytes_give_the_same_for_arrays_and_for_numbers() -> None:
    rates = np.array([0.01, 1.0, 40.0, 3_000.0])
    messages = messages_per_s(rates, 0.5)
    sizes = flow_bytes(rates, 7.0, messages, np.array([1, 2, 3, 4]))
    for place, rate in enumerate(rates.tolist()):
        own = messages_per_s(rate, 0.5)
        assert own == messages[place]
        assert flow_bytes(rate, 7.0, own, place + 1) == sizes[place]
        assert rows_per_message(rate, own) >= 1
    assert key_flow_bytes(rates, 7.0, messages) == pytest.approx(flow_bytes(rates, 7.0, messages, 3))
    exact = np.array([count * bloom_bytes(rate / count) for rate, count in zip(rates, messages, strict=True)])
    linear = filter_flow_bytes(rates, messages)
    assert (linear >= exact).all() and (linear <= exact + 8 * messages).all()


def test_sizes_lie_between_those_known() -> None:
    sizes = np.array([[9.0, 8.0, 4.0, 2.0, 2.0], [1.0, 1.0, 1.0, 3.0, 3.0]])
    assert size_at(sizes, [100.0, 1_000.0]).tolist() == [4.0, 3.0]
    assert size_at(sizes[0], 10**1.5) == pytest.approx(6.0)
    assert size_at(sizes[0], [0.0, 1e9]).tolist() == [9.0, 2.0]


def test_the_low_watermark_of_slow_streams_advances_as_often_as_in_a_run() -> None:
    chance = np.random.default_rng(5)
    for rates, interval_s in (((0.05, 0.01), 1.0), ((0.3, 0.3, 0.1), 1.0), ((2.0, 0.5, 4.0), 1.0), ((1.0, 1.0), 30.0)):
        last, advanced, intervals = np.zeros(len(rates)), 0, 20_000
        counts = chance.poisson(np.array(rates) * interval_s, (intervals, len(rates)))
        for number, came in enumerate(counts > 0):
            before = last.min()
            last[came] = (number + chance.random(int(came.sum()))) * interval_s
            advanced += last.min() > before
        comes = seen(np.array(rates) * interval_s)
        assert advances(rates, comes.tolist()) == pytest.approx(advanced / intervals, rel=0.1), (rates, interval_s)


def test_any_of_several_events_within_another_one() -> None:
    assert any_of([0.1], 0.4) == pytest.approx(0.1)
    assert any_of([0.2, 0.2], 0.4) == pytest.approx(0.3)
    assert any_of([0.4, 0.2], 0.4) == pytest.approx(0.4) and any_of([0.1], 0.0) == 0.0
