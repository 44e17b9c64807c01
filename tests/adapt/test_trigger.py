"""The trigger: changes are followed once, noise and quick swings are not."""

import math
from itertools import pairwise

import numpy as np
import pytest

from watersmeet.adapt.trigger import (
    PlanOffer,
    Policy,
    TriggerState,
    decided,
    expected_rest_s,
    judge,
    largest_change,
    started,
    watch,
)

# Two plans for one stream: A ships it (its rate counts), B ships the others (a constant).
OTHERS, WINDOW_S = 100.0, 60.0


def followed(
    rates: list[float], policy: Policy, step_s: float = 10.0, row_bytes: float = 1.0
) -> list[tuple[float, str]]:
    """The changes of plan that a controller of A and B makes over rates observed at even intervals."""
    plan, found = "A", []

    def costs(rate: float) -> dict[str, float]:
        return {"A": {"ship": rate, "rest": 50.0}, "B": {"ship": OTHERS, "rest": 50.0}}[plan]

    state = started(costs(rates[0]), 0.0)
    for number, rate in enumerate(rates):
        now_s = number * step_s
        watched = {"ship": rate, "rest": 50.0}  # a stream is watched whichever plan runs
        state, change = watch(state, policy, watched, now_s)
        if change is None:
            continue
        other = {"A": OTHERS, "B": rate}[plan]
        current = {"A": rate, "B": OTHERS}[plan]
        verdict = judge(state, policy, PlanOffer(current + 50.0, other + 50.0, other * WINDOW_S), now_s)
        state = decided(state, verdict, watched, now_s)
        if verdict.accepted:
            plan = "B" if plan == "A" else "A"
            found.append((now_s, plan))
    return found


def test_a_change_that_lasts_is_followed_once_and_back() -> None:
    rates = [50.0] * 60 + [500.0] * 60 + [50.0] * 60
    changes = followed(rates, Policy())
    assert [plan for _, plan in changes] == ["B", "A"]
    assert [when for when, _ in changes] == [610.0, 1210.0]


@pytest.mark.parametrize("seed", range(20))
def test_noise_on_steady_figures_changes_nothing(seed: int) -> None:
    noise = np.random.default_rng(seed).lognormal(0.0, 0.1, 360)
    assert followed([80.0 * each for each in noise.tolist()], Policy()) == []


@pytest.mark.parametrize("seed", range(10))
def test_figures_that_cross_the_point_where_plans_are_equal_change_nothing(seed: int) -> None:
    """Rates noisy around the point where both plans cost the same: the least saving is the hysteresis."""
    noise = np.random.default_rng(seed).lognormal(0.0, 0.03, 360)
    eager = Policy(threshold=0.02, min_interval_s=0.0, confirmations=1)
    assert followed([OTHERS * each for each in noise.tolist()], eager) == []
    assert followed([OTHERS * each for each in noise.tolist()], Policy(0.02, 0.0, 0.0, 1e300, 1)) != []  # but for it


def test_quick_swings_are_followed_only_until_they_are_known_to_be_quick() -> None:
    """A swing every 20 s does not pay for windows of 60 s: few changes, then none."""
    rates = [300.0 if number // 2 % 2 else 50.0 for number in range(1_000)]
    policy = Policy(min_interval_s=0.0)
    changes = followed(rates, policy)
    assert 0 < len(changes) <= 6
    assert all(when < 300.0 for when, _ in changes)
    assert len(followed(rates, Policy(0.2, 0.0, 0.0, 1e300))) > len(changes)  # believed to last far longer


def test_what_averages_do_while_they_follow_a_change_is_one_phase() -> None:
    policy = Policy(expected_phase_s=100.0, settle_s=50.0, confirmations=1, min_interval_s=1e9)
    state = started({"a": 1.0}, 0.0)
    for number, cost in enumerate((2.0, 3.0, 4.0, 5.0)):
        state, _ = watch(state, policy, {"a": cost}, 100.0 + 10 * number)
    assert (state.began_s, state.mean_phase_s) == (100.0, 100.0)


def test_a_plan_is_considered_once_more_when_averages_have_followed() -> None:
    policy = Policy(settle_s=50.0, confirmations=1, min_interval_s=5.0)
    state, considered = started({"a": 1.0}, 0.0), []
    for second in range(100, 300, 2):
        state, change = watch(state, policy, {"a": 2.0}, float(second))
        if change is not None:
            considered.append(second)
            state = decided(state, judge(state, policy, PlanOffer(1.0, 1.0, 0.0), second), {"a": 2.0}, second)
    assert considered == [100, 150]


def test_a_change_that_stays_is_followed_after_swings() -> None:
    rates = [500.0 if number // 4 % 2 else 50.0 for number in range(200)] + [500.0] * 200
    changes = followed(rates, Policy(min_interval_s=0.0))
    assert changes[-1][1] == "B"


def test_small_changes_wait_longer_each_time_that_nothing_better_is_found() -> None:
    policy = Policy(threshold=0.1, min_interval_s=10.0, confirmations=1)
    state, considered = started({"a": 1.0}, 0.0), []
    for second in range(1, 400):
        state, change = watch(state, policy, {"a": 1.0 + 0.15 * (second % 2)}, float(second))
        if change is not None:
            considered.append(second)
            state = decided(state, judge(state, policy, PlanOffer(1.0, 1.0, 0.0), second), {"a": change.now}, second)
    waits = [later - sooner for sooner, later in pairwise(considered)]
    assert waits == sorted(waits) and waits[0] <= 21 and waits[-1] >= 159
    state, change = watch(state, policy, {"a": 3.0}, considered[-1] + 11.0)  # a large one does not
    assert change is not None


def test_changes_within_the_least_interval_wait_for_it() -> None:
    rates = [50.0] * 3 + [500.0] * 10
    assert followed(rates, Policy(min_interval_s=70.0)) == [(70.0, "B")]
    assert followed(rates, Policy(min_interval_s=0.0)) == [(40.0, "B")]
    assert followed(rates, Policy(min_interval_s=0.0, confirmations=1)) == [(30.0, "B")]


def test_a_join_that_costs_next_to_nothing_does_not_count() -> None:
    worst, share = largest_change({"large": 100.0, "small": 0.01}, {"large": 100.0, "small": 0.5})
    assert worst is not None and worst.step == "small" and share < 0.2
    assert largest_change({"a": 1.0}, {"a": 1.0}) == (None, 0.0)


def test_expected_rest_is_what_is_left_of_the_mean_phase_or_the_age_of_one_that_outlives_it() -> None:
    policy = Policy(expected_phase_s=100.0)
    state = TriggerState(began_s=0.0)
    assert expected_rest_s(state, policy, 10.0) == 90.0
    assert expected_rest_s(state, policy, 250.0) == 250.0
    state, change = watch(TriggerState({"a": 1.0}, seen=1), policy, {"a": 2.0}, 25.0)
    assert change is not None and math.isclose(expected_rest_s(state, policy, 25.0), 50.0)  # sqrt(100 * 25)
    late = Policy(expected_phase_s=100.0, reaction_s=20.0)
    assert math.isclose(expected_rest_s(state, late, 25.0), 10.0) and expected_rest_s(state, late, 45.0) == 0.0


def test_swings_back_are_phases_however_soon_they_come() -> None:
    """Averages that follow a change go one way: what goes back is another change."""
    policy = Policy(settle_s=30.0, reaction_s=5.0, min_interval_s=0.0, confirmations=1)
    state, rests = started({"a": 1.0}, 0.0), []
    for number in range(1, 12):
        state, _ = watch(state, policy, {"a": 2.0 if number % 2 else 1.0}, 600.0 + 12.0 * number)
        rests.append(expected_rest_s(state, policy, 600.0 + 12.0 * number))
    assert rests == sorted(rests, reverse=True) and rests[-1] < 3.0


def test_negative_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="threshold"):
        Policy(threshold=-0.1)
