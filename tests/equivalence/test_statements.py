"""Statements in which any clause may stand in any other, drawn from seeds, of simulated sites against the oracle."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from equivalence.seeds import fresh_seeds, repeat_command
from equivalence.statements import (
    Drawn,
    draw_deployment,
    draw_statement,
    run_deployment,
    run_deployment_on_spark,
    run_statement,
)

from watersmeet.errors import SqlError
from watersmeet.query.bags import Bag

SEEDS = range(60)
CLAUSES = (
    *("join", "outer", "exists", "IN", "rows", "distinct", "groups", "union", "table", "HAVING", "ORDER BY"),
    *("subquery", "WITH"),
)


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


Run = Callable[[Drawn, int, int], dict[str, tuple[Bag, Bag]]]


def check_deployment(seed: int, run: Run = run_deployment, test: str = "fresh_deployments_are") -> bool:
    """The same of several queries with views that they share."""
    drawn = draw_deployment(seed)
    try:
        found = run(drawn, seed, 1 + seed % 3)
    except SqlError:
        return False
    command = repeat_command(__file__, test, seed)
    text = "\n".join(f"{name}: {one.sql}" for name, one in (*drawn.views.items(), *drawn.queries.items()))
    for name, (answers, expected) in found.items():
        assert answers == expected, f"{name} of\n{text}\nrepeat: {command}"
    return True


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_answers_of_queries_that_share_views_are_those_of_the_reference(seed: int) -> None:
    check_deployment(seed)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(20))
def test_answers_of_many_fresh_deployments_are_those_of_the_reference(number: int) -> None:
    answered = [check_deployment(seed) for seed in fresh_seeds(30)]
    assert sum(answered) > 0.4 * len(answered)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [4, 1, 7, 11])
def test_answers_of_spark_are_those_of_the_reference(spark: Any, tmp_path: Path, seed: int) -> None:
    assert check_deployment(
        seed, lambda drawn, number, sites: run_deployment_on_spark(spark, drawn, number, sites, tmp_path)
    )


@pytest.mark.soak
@pytest.mark.parametrize("number", range(20))
def test_answers_of_spark_to_fresh_deployments_are_those_of_the_reference(
    spark: Any, tmp_path: Path, number: int
) -> None:
    (seed,) = fresh_seeds(1)
    check_deployment(
        seed,
        lambda drawn, number, sites: run_deployment_on_spark(spark, drawn, number, sites, tmp_path),
        "spark_to_fresh",
    )


def test_views_of_views_refreshed_tables_and_changes_of_views_are_drawn() -> None:
    drawn = [draw_deployment(seed) for seed in range(300)]
    assert any("view" in view.clauses for one in drawn for view in one.views.values())
    assert any(one.is_refreshed and "table" in query.clauses for one in drawn for query in one.queries.values())
    assert any({"EMIT CHANGES", "view"} <= query.clauses for one in drawn for query in one.queries.values())
    assert draw_deployment(3) == draw_deployment(3)


def test_any_two_clauses_come_up_together() -> None:
    drawn = [draw_statement(seed).clauses for seed in range(1_000)]
    missing = [pair for pair in combinations(CLAUSES, 2) if not any(set(pair) <= clauses for clauses in drawn)]
    assert missing == []
    changes = [clauses - {"EMIT CHANGES"} for clauses in drawn if "EMIT CHANGES" in clauses]
    assert set().union(*changes) >= {"join", "outer", "exists", "table", "HAVING"}
    assert draw_statement(7) == draw_statement(7)
