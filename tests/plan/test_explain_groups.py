"""What explain says of groups: aggregates, windows, and what travels."""

import json

from watersmeet.plan.explain import explain_data, explain_text
from watersmeet.planners.local import local
from watersmeet.query.sql import parse_query, parse_script

COLUMNS = {"a": ["k", "v", "ts"]}
SQL = """
SELECT k % 2 AS parity, sum(v) / count(*) AS mean FROM a WHERE v > 0
GROUP BY k % 2, HOP(5 MINUTES, 1 MINUTE) HAVING count(*) > 3 ORDER BY mean DESC LIMIT 2
"""


def test_groups_at_the_site_of_the_query() -> None:
    text = explain_text(local(parse_query(SQL, COLUMNS), COLUMNS, "here"))
    assert text.splitlines()[:5] == [
        "answer each window once, when it has ended: key0 AS parity, value0 / value1 AS mean",
        "  the first 2 of each window by (value0 / value1) descending",
        "  keep where value1 > 3",
        "  group by key0, HOP(5 MINUTES, 1 MINUTE): value0 = sum(a.v), value1 = count(*)",
        "  project a.k % 2 AS key0, a.v AS argument0, .time AS time",
    ]
    assert "partial aggregates" not in text


def test_groups_at_another_site() -> None:
    text = explain_text(local(parse_query(SQL, COLUMNS), COLUMNS, "here", "hub"))
    assert "answers made elsewhere travel to hub as partial aggregates, not as rows" in text


def test_views_are_shown_without_the_column_that_their_times_are_in() -> None:
    sql = """SELECT v.w, u.n FROM (SELECT k + 1 AS w FROM a) [UNBOUNDED] v,
        (SELECT count(*) AS n FROM a GROUP BY TUMBLE(1 MINUTE)) [UNBOUNDED] u"""
    plans = [
        local(query, COLUMNS, "here")
        for output in parse_script("q", sql, COLUMNS, allow_cross=True)[:2]
        for _, query in output.branches
    ]
    assert explain_text(plans[0]).splitlines() == [
        "rows of q_v",
        "  project a.k + 1 AS w",
        "    read one stream as rows arrive",
        "      window a: a [UNBOUNDED], keeps a.k",
    ]
    for plan in plans:
        assert "#time" not in explain_text(plan) and "#time" not in json.dumps(explain_data(plan))
