"""Views, UNION ALL and tables together, and their plans as they change: against the reference semantics."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest
from sim.sites.streams import SECOND
from sim.sites.test_tables import TABLE, Source
from sim.sites.test_views import CHAINS, STREAMS, TIMES, plans_of, stream

from watersmeet.errors import InputError
from watersmeet.plan.nodes import Into, Plan, join_plan_of, with_join
from watersmeet.planners.sited import central
from watersmeet.program.site.changes import Change, QueryPlan, check_change
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.model import EVENT_TIME
from watersmeet.query.oracle import answer_outputs
from watersmeet.query.sql import parse_script
from watersmeet.query.windows import AsOf
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites import trial
from watersmeet.sim.sites.rows import typed_outputs
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.site import TableSource
from watersmeet.sim.sites.trials.plans import mixed_plan

SCHEMAS = {**dict.fromkeys(STREAMS, trial.SCHEMA), "u": TABLE, "r": TABLE}
# Tables wherever streams may be read; r is never refreshed.
WITH_TABLES = {
    "view over a table": "SELECT v.k, v.name FROM (SELECT a.k, a.m, u.name FROM a, u WHERE a.k = u.k) v WHERE v.m = 1",
    "view joined with a table": """
        SELECT v.ai, v.bi, u.name FROM (SELECT a.k, a.id AS ai, b.id AS bi FROM a [RANGE 3 SECONDS],
          b [RANGE 2 SECONDS] WHERE a.k = b.k) v, u WHERE v.k = u.k""",
    "table in one branch of a union": """
        SELECT a.id, u.name FROM a, u WHERE a.k = u.k UNION ALL SELECT id, 'none' FROM b WHERE m = 1""",
    "table in a common table expression": """
        WITH named AS (SELECT a.k, a.id, u.name FROM a, u WHERE a.k = u.k)
        SELECT n.id, n.name, r.name AS other, c.id AS ci FROM named [RANGE 3 SECONDS] n, c [RANGE 2 SECONDS], r
        WHERE n.k = c.k AND n.k = r.k""",
    "groups of a view over a table": """
        SELECT name, count(*) AS n FROM (SELECT u.name FROM a, u WHERE a.k = u.k UNION ALL SELECT r.name FROM b, r
          WHERE b.k = r.k) v GROUP BY name, TUMBLE(3 SECONDS)""",
    "different values of a table": """
        SELECT v.name, b.id FROM (SELECT DISTINCT u.name, a.k FROM a, u WHERE a.k = u.k) [RANGE 5 SECONDS] v,
        b [RANGE 4 SECONDS] WHERE v.k = b.k""",
}
# Joins of streams with tables that are not kept for the tables' sake, beside a window of the same stream.
BESIDE = (
    "SELECT a.id, b.id AS bi, u.name FROM a [RANGE 4 SECONDS], u, b [RANGE 4 SECONDS] WHERE a.k = u.k AND b.k = a.k"
)


def check(
    sql: str, seed: int, *, sites: int, refreshed: bool = False, changes: int = 0, history: bool = True
) -> tuple[int, int]:
    """Run a statement over random streams and tables, with plans that change; how many answers and changes there are.

    The answers are those of the reference.
    """
    random = Random(f"{sql} {seed}")
    columns: Mapping[str, list[str]] = {name: schema.names for name, schema in SCHEMAS.items()}
    windows = {"u": AsOf(refreshed), "r": AsOf()}
    outputs, schemas = typed_outputs(parse_script("q", sql, columns, allow_cross=True, tables=windows), SCHEMAS)
    names = [f"n{number}" for number in range(sites)]
    rows = {name: stream(random, random.randint(25, 45), 0) for name in STREAMS}
    homes = {name: random.choice(names) for name in SCHEMAS}
    columns = {name: [n for n in schema.names if n != EVENT_TIME] for name, schema in schemas.items()}
    places = dict(homes)  # those of derived streams too
    plans = plans_of(outputs, columns, places)
    sources = {name: Source(Random(f"{seed} {name}")) for name in "ur"}
    running = SimulatedSites(
        plans,
        TIMES,
        seed=seed,
        delays_us=dict.fromkeys(STREAMS, 0),
        model_of=lambda sender, receiver: LinkModel(25_000, loss=0.05, duplicate=0.05),
        interval_us={name: random.choice([100_000, 400_000]) for name in names},
        buckets=random.choice([1, 3]),
        sites=names if changes else (),
        changes=changes > 0,
        history=history,
        slack_us=random.choice([0, 2 * SECOND]),
        tables={
            "u": TableSource(sources["u"].read, 2 * SECOND if refreshed else None, 20 * SECOND),
            "r": TableSource(sources["r"].read),
        },
    )
    for name in STREAMS:
        for number, begin in enumerate(range(0, rows[name].num_rows, 5)):
            if name in running.homes:
                running.feed(number * SECOND + random.randrange(SECOND), {name: rows[name].slice(begin, 5)})
    for _ in range(changes):
        name = random.choice(sorted(plans))
        query = next(query for one in outputs for branch, query in one.branches if branch == name)
        plan = plans[name]
        if len(query.sources) > 1:  # sub-plans at random
            join = join_plan_of(central(query, columns, places, join_plan_of(plan).site or names[0]))
            plan = with_join(plan, mixed_plan(random, join, names))
        change = Change((QueryPlan(name, plan),))
        running.change(random.randrange(6 * SECOND), change, random.choice(sorted(running.sites)))
    for _ in range(random.choice([0, 1])):
        running.crash(random.choice(sorted(running.sites)), random.randrange(6 * SECOND), 400_000)
    running.run()
    marks = {name: max(rows[name].column("ts").cast(pa.int64()).to_pylist()) for name in STREAMS}
    read = {name: source.table for name, source in sources.items() if source.versions}
    expected = answer_outputs(outputs, {**rows, **read}, TIMES, watermarks_us=marks)["q"]
    found = sum((bag_of(table) for table in running.answers("q")), Bag())
    assert found == bag_of(expected), f"seed {seed}"
    return int(expected.num_rows), sum(not entry.refused for entry in running.takeovers)


@pytest.mark.few(5)
@pytest.mark.parametrize("refreshed", [False, True])
@pytest.mark.parametrize("chain", WITH_TABLES)
def test_tables_are_read_in_views_unions_and_common_table_expressions(chain: str, refreshed: bool) -> None:
    found = [check(WITH_TABLES[chain], seed, sites=sites, refreshed=refreshed) for seed, sites in enumerate((1, 3))]
    assert sum(answers for answers, _ in found) > 10


@pytest.mark.few(6)
@pytest.mark.parametrize("chain", CHAINS)
def test_plans_of_views_unions_and_what_reads_them_change(chain: str) -> None:
    found = [check(CHAINS[chain], seed, sites=3, changes=2, history=seed != 1) for seed in range(2)]
    assert sum(answers for answers, _ in found) > 5 and sum(changed for _, changed in found) >= 2


@pytest.mark.few(4)
@pytest.mark.parametrize("chain", [*WITH_TABLES, "beside a stream"])
def test_plans_of_queries_over_tables_that_are_not_refreshed_change(chain: str) -> None:
    sql = WITH_TABLES.get(chain, BESIDE)
    found = [check(sql, seed, sites=3, changes=3) for seed in range(2)]
    assert sum(answers for answers, _ in found) > 5 and sum(changed for _, changed in found) >= 2


@pytest.mark.soak
@pytest.mark.parametrize("chain", [*CHAINS, *WITH_TABLES, "beside a stream"])
def test_many_plans_of_views_and_tables_change(chain: str) -> None:
    sql = {**CHAINS, **WITH_TABLES}.get(chain, BESIDE)
    for seed in range(100, 150):
        check(sql, seed, sites=1 + seed % 4, changes=seed % 5, refreshed=seed % 7 == 0, history=seed % 3 > 0)


def test_plans_that_would_lose_answers_are_refused() -> None:
    sql = """WITH v AS (SELECT a.k, a.id FROM a [RANGE 3 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k)
        SELECT v.id, c.id AS ci FROM v [RANGE 2 SECONDS], c [RANGE 2 SECONDS], u WHERE v.k = c.k AND u.k = c.k"""
    columns = {name: schema.names for name, schema in SCHEMAS.items()}
    outputs, schemas = typed_outputs(parse_script("q", sql, columns, tables={"u": AsOf(True), "r": AsOf()}), SCHEMAS)
    columns = {name: [n for n in schema.names if n != EVENT_TIME] for name, schema in schemas.items()}
    homes = dict.fromkeys(SCHEMAS, "n1")

    def plans(**others: str) -> dict[str, Plan]:
        return plans_of(outputs, columns, {**homes, **others})

    running = SimulatedSites(
        plans(),
        TIMES,
        sites=["n0", "n1", "n2"],
        changes=True,
        tables={"u": TableSource(Source(Random(1)).read, SECOND)},
    )
    site = running.sites["n0"]
    deployment = site.engine.versions(site.ledger).deployment

    def refused(query: str, plan: Plan) -> str:
        with pytest.raises(InputError) as caught:
            check_change(deployment, Change((QueryPlan(query, plan),)))
        return str(caught.value)

    view = plans()["q_v"]
    assert isinstance(view, Into)
    assert "gives answers to the sink of 'q_v' and the one in force to view 'q_v'" in refused("q_v", view.child)
    assert "its new plan has 'b' at site n2, and it is at n1" in refused("q_v", plans(b="n2")["q_v"])
    moved = with_join(view, replace(join_plan_of(view), site="n2"))
    assert "view 'q_v': its rows would be made at site n2, and they are at n1" in refused("q_v", moved)
    check_change(deployment, Change((QueryPlan("q", plans()["q"]),)))  # over a table that is refreshed
