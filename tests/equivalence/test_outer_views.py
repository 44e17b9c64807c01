"""Outer joins and EXISTS in views, common table expressions and subqueries, and over them, against the oracle."""

from collections.abc import Mapping, Sequence
from random import Random

import pytest
from equivalence.outer_scenes import SCHEMA, SECOND, draw_rows, without_flush

from watersmeet.errors import SqlError
from watersmeet.plan.nodes import Into, OuterJoin, Plan
from watersmeet.plan.shape import matching_of
from watersmeet.planners.local import local
from watersmeet.planners.sited import central
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.model import EVENT_TIME, JoinQuery, Output
from watersmeet.query.oracle import answer_outputs
from watersmeet.query.outer import branches_of
from watersmeet.query.sql import parse_script
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed_outputs
from watersmeet.sim.sites.simulated import SimulatedSites

STREAMS = ("s0", "s1", "s2")
COLUMNS = dict.fromkeys(STREAMS, SCHEMA.names)
TIMES = dict.fromkeys(STREAMS, "ts")
LEFT = """SELECT a.k, a.s, a.id AS a_id, b.id AS b_id FROM s0 [RANGE 10 SECONDS] a
    LEFT JOIN s1 [RANGE 5 SECONDS] b ON a.k = b.k AND a.id < b.id"""
LACKING = """SELECT a.k, a.s, a.id FROM s0 [RANGE 20 SECONDS] a
    WHERE NOT EXISTS (SELECT 1 FROM s1 [RANGE 3 SECONDS] b WHERE b.k = a.k)"""
CHAINS = {
    "a join with an outer join": f"""
        SELECT v.a_id, v.b_id, c.id AS c_id FROM ({LEFT}) [RANGE 4 SECONDS] v, s2 [RANGE 6 SECONDS] c
        WHERE v.k = c.k""",
    "a join with NOT EXISTS": f"""
        WITH v AS ({LACKING}) SELECT v.id, c.id AS c_id FROM v [TUMBLE 5 SECONDS], s2 [RANGE 6 SECONDS] c
        WHERE v.s = c.s""",
    "an outer join over a filter": """
        SELECT v.id, c.id AS c_id FROM (SELECT k, id FROM s0 WHERE id % 3 <> 1) [RANGE 6 SECONDS] v
        LEFT JOIN s2 [RANGE 10 SECONDS] c ON v.k = c.k""",
    "an outer join over a join": """
        WITH v AS (SELECT a.k, a.id AS a_id, b.id AS b_id FROM s0 [RANGE 5 SECONDS] a, s1 [RANGE 5 SECONDS] b
          WHERE a.k = b.k)
        SELECT v.a_id, v.b_id, c.id AS c_id FROM v [RANGE 2 SECONDS] FULL JOIN s2 [RANGE 3 SECONDS] c
          ON v.k = c.k AND c.m > 1""",
    "an outer join over an outer join": f"""
        WITH v AS ({LEFT})
        SELECT x.a_id, x.b_id, y.a_id AS y_a, y.b_id AS y_b FROM v [RANGE 3 SECONDS] x
        LEFT JOIN v [TUMBLE 8 SECONDS] y ON lower(x.s) = y.s AND x.a_id < y.a_id AND y.b_id IS NULL""",
    "EXISTS over an outer join": f"""
        WITH v AS ({LEFT}) SELECT c.id FROM s2 [RANGE 10 SECONDS] c
        WHERE EXISTS (SELECT 1 FROM v [RANGE 4 SECONDS] WHERE v.k = c.k AND v.b_id IS NULL)""",
    "NOT EXISTS over NOT EXISTS": f"""
        WITH v AS ({LACKING}) SELECT c.id FROM s2 [RANGE 10 SECONDS] c
        WHERE NOT EXISTS (SELECT 1 FROM v [RANGE 4 SECONDS] WHERE v.k = c.k)""",
    "groups of a view": f"""
        SELECT k, count(*) AS n, count(b_id) AS found, window_start AS w FROM ({LEFT}) v
        GROUP BY k, HOP(10 SECONDS, 5 SECONDS)""",
    "an outer join over groups of an outer join": """
        WITH g AS (SELECT a.k, count(*) AS n, count(b.id) AS found FROM s0 [RANGE 10 SECONDS] a
          LEFT JOIN s1 [RANGE 5 SECONDS] b ON a.k = b.k GROUP BY a.k, TUMBLE(6 SECONDS))
        SELECT c.id, g.n, g.found FROM s2 [RANGE 5 SECONDS] c LEFT JOIN g [RANGE 8 SECONDS] ON c.k = g.k""",
    "a union with an outer join": f"""
        SELECT u.x, u.y, c.id AS c_id FROM (SELECT a_id AS x, b_id AS y, k FROM ({LEFT}) v
          UNION ALL SELECT id, m, k FROM s2) [RANGE 3 SECONDS] u LEFT JOIN s2 [RANGE 2 SECONDS] c ON u.k = c.k""",
    "DISTINCT of a view": f"SELECT DISTINCT k, b_id FROM ({LEFT}) v",
    "DISTINCT of an outer join": """
        WITH v AS (SELECT DISTINCT a.k, b.m FROM s0 [RANGE 10 SECONDS] a LEFT JOIN s1 [RANGE 5 SECONDS] b ON a.k = b.k)
        SELECT c.id, v.m FROM s2 [RANGE 9 SECONDS] c, v [RANGE 20 SECONDS] WHERE c.k = v.k""",
    "DISTINCT before an outer join": """
        WITH d AS (SELECT DISTINCT k, m FROM s0)
        SELECT c.id, d.m FROM s2 [RANGE 9 SECONDS] c LEFT JOIN d [RANGE 20 SECONDS] ON c.k = d.k""",
}


def plans_of(outputs: Sequence[Output], columns: Mapping[str, Sequence[str]], homes: dict[str, str]) -> dict[str, Plan]:
    """A plan for each SELECT; a derived stream is at the home of the first stream that it reads, answers at n0."""
    plans = {}
    for output in outputs:
        site = homes[min(output.streams)] if output.target.is_stream else "n0"
        for name, query in output.branches:
            if query.outer is None:
                plans[name] = plan_of(query, columns, homes, site)
                continue
            expanded = branches_of(query)
            joins = tuple(plan_of(branch.query, columns, homes, site) for branch in expanded.branches)
            plan = OuterJoin(joins, matching_of(query, expanded), query.grouping)
            plans[name] = plan if query.into is None else Into(plan, query.into)
        homes[output.target.name] = site
    return plans


def plan_of(query: JoinQuery, columns: Mapping[str, Sequence[str]], homes: Mapping[str, str], site: str) -> Plan:
    """A plan of a SELECT that is an inner join."""
    home, *others = sorted({homes[source.stream] for source in query.sources})
    is_local = len(query.sources) == 1 or (home == site and not others)
    return local(query, columns, home, site) if is_local else central(query, columns, homes, site)


def check(sql: str, seed: int, *, sites: int) -> int:
    """Run a statement over random streams with crashes and a bad network; the number of answers, which are right."""
    random = Random(f"{sql} {seed}")
    outputs, schemas = typed_outputs(parse_script("q", sql, COLUMNS, allow_cross=True), dict.fromkeys(STREAMS, SCHEMA))
    delay_s = random.choice([0, 3])
    used = sorted({name for output in outputs for name in output.streams} & set(STREAMS))
    tables = {name: draw_rows(random, delay_s) for name in used}
    homes = {name: f"n{random.randrange(sites)}" for name in used}
    columns = {name: [n for n in schema.names if n != EVENT_TIME] for name, schema in schemas.items()}
    running = SimulatedSites(
        plans_of(outputs, columns, dict(homes)),
        TIMES,
        seed=seed,
        delays_us=dict.fromkeys(used, delay_s * SECOND),
        model_of=lambda sender, receiver: LinkModel(25_000, jitter_us=300_000, loss=0.1, duplicate=0.1),
        interval_us={f"n{n}": random.choice([100_000, 700_000]) for n in range(sites)},
        buckets=random.choice([1, 3]),
    )
    for name, table in tables.items():
        cuts = sorted(random.randrange(table.num_rows + 1) for _ in range(5))
        for number, (low, high) in enumerate(zip([0, *cuts], [*cuts, table.num_rows], strict=True)):
            if high > low:
                running.feed(number * SECOND + random.randrange(SECOND), {name: table.slice(low, high - low)})
    for _ in range(random.choice([0, 2])):
        running.crash(random.choice(sorted(running.sites)), random.randrange(6 * SECOND), 400_000)
    running.run()
    expected = without_flush(bag_of(answer_outputs(outputs, tables, dict.fromkeys(used, "ts"))["q"]))
    found = without_flush(sum((bag_of(table) for table in running.answers("q")), Bag()))
    assert found == expected
    return expected.total()


@pytest.mark.few(6)
@pytest.mark.parametrize("chain", CHAINS)
def test_answers_are_those_of_the_reference(chain: str) -> None:
    answers = [check(CHAINS[chain], seed, sites=1 if seed == 0 else 3) for seed in range(5)]
    assert sum(answers) > 10


@pytest.mark.soak
@pytest.mark.parametrize("chain", CHAINS)
def test_answers_of_many_seeds_are_those_of_the_reference(chain: str) -> None:
    for seed in range(100, 200):
        check(CHAINS[chain], seed, sites=1 + seed % 3)


EXISTS = "EXISTS (SELECT 1 FROM s1 [RANGE 3 SECONDS] b WHERE b.k = a.k)"


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT a.k, count(*) AS n FROM s0 [UNBOUNDED] a WHERE {EXISTS} GROUP BY a.k, TUMBLE(5 SECONDS)",
        f"SELECT v.k FROM (SELECT a.k FROM s0 [UNBOUNDED] a WHERE {EXISTS}) v",
    ],
)
def test_what_would_wait_without_end_is_refused(sql: str) -> None:
    with pytest.raises(SqlError, match=r"with EXISTS would wait without end, .* e\.g\. \[RANGE 1 HOUR\]"):
        plans_of(parse_script("q", sql, COLUMNS), COLUMNS, dict.fromkeys(STREAMS, "n0"))
