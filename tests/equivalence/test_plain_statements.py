"""Statements whose own text DuckDB reads, drawn from seeds: our reader, the reference semantics and simulated sites."""

import pytest
from equivalence.plain_statements import (
    STREAMS,
    draw_plain,
    draw_tables,
    outputs_of,
    plain_bag,
    run_plain,
    witness,
)
from equivalence.seeds import fresh_seeds, repeat_command

from watersmeet.errors import SqlError
from watersmeet.query.oracle import answer_outputs

CLAUSES = {
    *(
        "JOIN",
        "LEFT JOIN",
        "RIGHT JOIN",
        "FULL JOIN",
        "SEMI JOIN",
        "ANTI JOIN",
        "USING",
        "EXISTS",
        "IN",
        "table",
        "DISTINCT",
        "*",
        "subquery",
        "WITH",
        "UNION ALL",
        "UNION",
    ),
    *("GROUP BY", "GROUP BY 1", "FILTER", "HAVING", "ORDER BY", "ORDER BY 1"),
}


def check(seed: int, *, simulates: bool) -> bool:
    """Whether a statement is answered, rightly, or refused with a sentence by us, or DuckDB."""
    sql, _ = draw_plain(seed)
    try:
        outputs = outputs_of(sql)
    except SqlError:
        return False
    tables = draw_tables(seed)
    expected = witness(sql, tables)
    if expected is None:
        return False
    found = [("reference", plain_bag(answer_outputs(outputs, tables, dict.fromkeys(STREAMS, "ts"))["q"]))]
    found += [("site", run_plain(outputs, tables, seed))] if simulates else []
    for what, answers in found:
        wrong = f"missing {[*(expected - answers)][:3]}, surplus {[*(answers - expected)][:3]}"
        assert answers == expected, f"{what}: {wrong}\n{sql}\nrepeat: {repeat_command(__file__, 'fresh', seed)}"
    return True


def test_answers_are_those_of_the_text_itself() -> None:
    answered = [check(seed, simulates=seed % 10 == 0) for seed in range(60)]
    assert sum(answered) > 0.7 * len(answered)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(10))
def test_answers_to_many_fresh_statements_are_those_of_the_text_itself(number: int) -> None:
    answered = [check(seed, simulates=True) for seed in fresh_seeds(200)]
    assert sum(answered) > 0.7 * len(answered)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT k, m FROM s0 UNION SELECT k, m FROM s1",
        "SELECT k, m FROM s0 UNION ALL SELECT k, m FROM s1 UNION DISTINCT SELECT k, 1 FROM s0",
        "SELECT k, m FROM s0 UNION SELECT k, m FROM s1 UNION ALL SELECT k, m FROM s0",
        "SELECT k, m FROM s0 UNION ALL (SELECT k, m FROM s0 UNION SELECT k, m FROM s1)",
        "SELECT u.k, a.id FROM (SELECT k FROM s0 UNION SELECT m FROM s1) [RANGE 3 DAYS] u, s1 [RANGE 3 DAYS] a "
        "WHERE u.k = a.k",
        "SELECT k, sum(DISTINCT m) AS s, max(m) FILTER (WHERE id % 2 = 0) AS v FROM s0 GROUP BY k, TUMBLE(1 DAY)",
    ],
)
def test_answers_of_a_statement_are_those_of_its_text(sql: str) -> None:
    tables = draw_tables(5)
    outputs, expected = outputs_of(sql), witness(sql, tables)
    assert expected
    assert plain_bag(answer_outputs(outputs, tables, dict.fromkeys(STREAMS, "ts"))["q"]) == expected
    assert run_plain(outputs, tables, 5) == expected


def test_all_clauses_are_drawn() -> None:
    drawn = [draw_plain(seed) for seed in range(300)]
    assert set().union(*(clauses for _, clauses in drawn)) == CLAUSES
    assert draw_plain(7) == draw_plain(7)
