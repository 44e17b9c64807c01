"""Theorems 1 and 2 at random: whatever the query, the network and the delays, every exact answer comes once."""

from collections import Counter
from collections.abc import Iterable

import pytest
from seeds import FreshSeeds

from watersmeet.program.rjoin.settings import Strategy
from watersmeet.sim.rjoin.trial import main, run


def test_random_trials_give_the_answers_of_the_oracle() -> None:
    outcomes = [run(seed) for seed in range(25)]
    assert [outcome.verdict for outcome in outcomes if not outcome.is_right] == []
    # Trials that show nothing would be right too.
    strategies = Counter(outcome.settings.strategy for outcome in outcomes if outcome.expected)
    assert strategies.keys() == set(Strategy)
    assert sum(outcome.expected.total() for outcome in outcomes) > 1_000
    assert {outcome.settings.pairs for outcome in outcomes if outcome.expected} == {False, True}


def test_a_wrong_outcome_says_how_to_see_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["1"]) == 0
    assert "as they should be" in capsys.readouterr().out
    right = run(1)
    lost = type(right)(
        right.seed, right.sql, right.settings, right.answers - Counter(list(right.answers)[:1]), right.expected
    )
    assert not lost.is_right
    assert lost.verdict.endswith(
        f"1 missing and 0 too many of {right.expected.total()} answers; replay: python -m watersmeet.sim.rjoin.trial 1"
    )


def check(seeds: Iterable[int]) -> None:
    for seed in seeds:
        outcome = run(seed)
        assert outcome.is_right, outcome.verdict


def test_trials_of_fresh_seeds(fresh_seeds: FreshSeeds) -> None:
    check(fresh_seeds.take(2))


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(15))
def test_many_trials_of_fresh_seeds(chunk: int, fresh_seeds: FreshSeeds) -> None:
    check(fresh_seeds.take(100))
