"""Queries over views that begin and end while others run: the reference semantics from an instant on, or until it."""

from random import Random

import pyarrow as pa
import pytest
from sim.sites.streams import SECOND
from sim.sites.test_views import CHAINS, STREAMS, TIMES, plans_of, stream

from watersmeet.program.site.changes import Change, QueryPlan
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.model import EVENT_TIME
from watersmeet.query.oracle import answer_outputs
from watersmeet.query.sql import parse_script
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed_outputs
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.trial import SCHEMA

# What runs before: a view of all streams, and a query that reads it.
BEFORE = """WITH v AS (SELECT a.k, a.id AS ai, b.m, c.id AS ci FROM a [RANGE 3 SECONDS], b [RANGE 2 SECONDS],
  c [RANGE 2 SECONDS] WHERE a.k = b.k AND b.k = c.k) SELECT k, ai FROM v WHERE ai % 2 = 0"""
OF_THE_VIEW = {
    "other columns and another filter": "SELECT k, ai, ci FROM p_v WHERE m = 1",
    "a join by another key": """SELECT x.k, x.ci, b.id FROM p_v [RANGE 3 SECONDS] x, b [RANGE 3 SECONDS]
        WHERE x.m = b.m AND x.ai = b.id""",
    "groups": "SELECT m, count(*) AS n FROM p_v GROUP BY m, TUMBLE(3 SECONDS)",
}


def check(sql: str, seed: int, sites: int, *, ends: bool = False) -> int:
    """Let a statement begin while another one runs, and end if it should; how many answers it has, which are right."""
    random = Random(f"{sql} {seed}")
    names = [f"n{number}" for number in range(sites)]
    known = dict.fromkeys(STREAMS, SCHEMA.names)
    before, schemas = typed_outputs(parse_script("p", BEFORE, known), dict.fromkeys(STREAMS, SCHEMA))
    columns = {name: [one for one in schema.names if one != EVENT_TIME] for name, schema in schemas.items()}
    added, schemas = typed_outputs(parse_script("q", sql, columns, allow_cross=True, derived={"p_v"}), schemas)
    columns = {name: [one for one in schema.names if one != EVENT_TIME] for name, schema in schemas.items()}
    tables = {name: stream(random, random.randint(40, 60), 0) for name in STREAMS}
    homes = {name: random.choice(names) for name in STREAMS}
    plans = plans_of([*before, *added], columns, dict(homes))
    begun = [name for output in added for name, _ in output.branches]
    running = SimulatedSites(
        {name: plan for name, plan in plans.items() if name not in begun},
        TIMES,
        seed=seed,
        delays_us=dict.fromkeys(STREAMS, 0),
        model_of=lambda sender, receiver: LinkModel(25_000, loss=0.05, duplicate=0.05),
        interval_us={name: random.choice([100_000, 400_000]) for name in names},
        buckets=random.choice([1, 3]),
        sites=names,
        changes=True,
        history=random.random() < 0.5,
        slack_us=random.choice([0, 2 * SECOND]),
    )
    for name in STREAMS:
        for number, begin in enumerate(range(0, tables[name].num_rows, 5)):
            running.feed(number * SECOND + random.randrange(SECOND), {name: tables[name].slice(begin, 5)})
    change = Change(tuple(QueryPlan(name, plans[name], is_fresh=True) for name in begun))
    running.change(random.randrange(3 * SECOND), change, random.choice(names))
    if ends:
        running.change(6 * SECOND + random.randrange(2 * SECOND), Change(removed=tuple(begun)), random.choice(names))
    for _ in range(random.choice([0, 1])):
        running.crash(random.choice(names), random.randrange(6 * SECOND), 400_000)
    running.run()
    begins, *ended = (one.at_us for one in running.takeovers if not one.refused)
    marks = {name: max(tables[name].column("ts").cast(pa.int64()).to_pylist()) for name in STREAMS}
    if ended:  # nothing from then on takes part
        marks = {name: min(mark, ended[0]) for name, mark in marks.items()}
    rows = {
        name: table.filter(pa.array([ts < ended[0] for ts in table.column("ts").cast(pa.int64()).to_pylist()]))
        for name, table in (tables.items() if ended else ())
    }
    starts = dict.fromkeys(begun, begins)
    found = {name: sum((bag_of(table) for table in running.answers(name)), Bag()) for name in "pq"}
    expected = answer_outputs([*before, *added], rows or tables, TIMES, starts_us=starts, watermarks_us=marks)
    assert found["q"] == bag_of(expected["q"]), f"seed {seed}"
    assert found["p"] == bag_of(answer_outputs(before, tables, TIMES)["p"]), f"seed {seed}: of the one that was there"
    assert len(ended) == ends
    return int(expected["q"].num_rows)


@pytest.mark.few(4)
@pytest.mark.parametrize("chain", CHAINS)
def test_queries_with_views_of_their_own_begin_while_others_run(chain: str) -> None:
    assert sum(check(CHAINS[chain], seed, sites=1 + 2 * seed) for seed in range(2)) > 5


@pytest.mark.few(2)
@pytest.mark.parametrize("chain", OF_THE_VIEW)
def test_queries_over_a_view_that_is_there_begin_while_others_run(chain: str) -> None:
    assert sum(check(OF_THE_VIEW[chain], seed, sites=1 + 2 * seed) for seed in range(2)) > 5


@pytest.mark.few(3)
@pytest.mark.parametrize("chain", CHAINS)
def test_queries_with_views_of_their_own_end_while_others_run(chain: str) -> None:
    assert sum(check(CHAINS[chain], seed, sites=1 + 2 * seed, ends=True) for seed in range(2)) > 0
