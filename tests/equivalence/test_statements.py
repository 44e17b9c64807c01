"""Statements in which any clause may stand in any other, drawn from seeds, of simulated sites against the oracle."""

from itertools import combinations

import pytest
from equivalence.seeds import fresh_seeds, repeat_command
from equivalence.statements import draw_statement, run_statement

from watersmeet.errors import SqlError

SEEDS = range(60)
CLAUSES = ("join", "outer", "exists", "distinct", "groups", "union", "table", "HAVING", "ORDER BY", "subquery", "WITH")


def check(seed: int) -> bool:
    """Whether what was drawn is answered, rightly, or refused with a sentence."""
    statement = draw_statement(seed)
    try:
        found, expected = run_statement(statement, seed, sites=1 + seed % 3)
    except SqlError:
        return False
    command = repeat_command(__file__, "fresh", seed)
    assert found == expected, (
        f"{(expected - found).total()} missing and {(found - expected).total()} surplus of {expected.total()} answers\n"
        f"{statement.sql}\nrepeat: {command}"
    )
    return True


@pytest.mark.few(9)
@pytest.mark.parametrize("seed", SEEDS)
def test_answers_are_those_of_the_reference(seed: int) -> None:
    check(seed)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(20))
def test_answers_of_many_fresh_seeds_are_those_of_the_reference(number: int) -> None:
    answered = [check(seed) for seed in fresh_seeds(50)]
    assert sum(answered) > 0.7 * len(answered)


def test_any_two_clauses_come_up_together() -> None:
    drawn = [draw_statement(seed).clauses for seed in range(1_000)]
    missing = [pair for pair in combinations(CLAUSES, 2) if not any(set(pair) <= clauses for clauses in drawn)]
    assert missing == []
    assert draw_statement(7) == draw_statement(7)
