"""Queries and the views that they read replaced at an instant: the old ones until it, the new ones from it on."""

from collections.abc import Sequence
from random import Random

import pyarrow as pa
import pytest
from sim.sites.streams import SECOND
from sim.sites.test_views import STREAMS, TIMES, plans_of, stream

from watersmeet.errors import InputError
from watersmeet.plan.nodes import Plan
from watersmeet.program.site.changes import Change, QueryPlan, check_change
from watersmeet.program.site.deployment import deployed, shared_joins
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.model import EVENT_TIME, Output
from watersmeet.query.oracle import answer_outputs
from watersmeet.query.sql import parse_script
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed_outputs
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.trial import SCHEMA

JOIN = "SELECT a.k, a.id AS ai, b.m FROM a [RANGE 3 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k"
# What is asked before and after; views keep their columns.
PAIRS = {
    "another filter of the view": (
        f"WITH v AS ({JOIN}) SELECT k, ai FROM v",
        f"WITH v AS ({JOIN} AND a.m = 1) SELECT k, ai FROM v",
    ),
    "another window of the view, and of who reads it": (
        f"WITH v AS ({JOIN}) SELECT v.k, c.id FROM v [RANGE 3 SECONDS], c [RANGE 2 SECONDS] WHERE v.k = c.k",
        f"WITH v AS ({JOIN.replace('RANGE 3', 'RANGE 1')}) SELECT v.k, c.id FROM v [RANGE 1 SECOND], c [ROWS 2] "
        "WHERE v.k = c.k AND v.ai <> c.id",
    ),
    "other groups of the view": (
        f"SELECT m, count(*) AS n FROM ({JOIN}) v GROUP BY m, TUMBLE(3 SECONDS)",
        f"SELECT m, count(*) AS n FROM ({JOIN} AND b.id % 2 = 0) v GROUP BY m, TUMBLE(2 SECONDS)",
    ),
    "more branches": (
        "SELECT k, id FROM a UNION ALL SELECT k, id FROM b",
        "SELECT k, id FROM b WHERE m = 1 UNION ALL SELECT k, id FROM c UNION ALL SELECT k, id FROM a",
    ),
    "fewer branches of a view": (
        "SELECT k, count(*) AS n FROM (SELECT k FROM a UNION ALL SELECT k FROM b) u GROUP BY k, TUMBLE(2 SECONDS)",
        "SELECT k, count(*) AS n FROM (SELECT k FROM c) u GROUP BY k, TUMBLE(2 SECONDS)",
    ),
    "a view less": (f"SELECT k, ai FROM ({JOIN}) v", "SELECT k, id AS ai FROM a"),
    "different values": (
        "SELECT DISTINCT k, m FROM (SELECT k, m FROM a) v",
        "SELECT DISTINCT k, m FROM (SELECT k, m FROM b WHERE id > 3) v",
    ),
}


def plans(typed: tuple[Sequence[Output], dict[str, pa.Schema]], homes: dict[str, str]) -> dict[str, Plan]:
    columns = {name: [one for one in schema.names if one != EVENT_TIME] for name, schema in typed[1].items()}
    return plans_of(typed[0], columns, homes)


def check(pair: Sequence[str], seed: int, sites: int) -> int:
    """Let a statement take the place of another one; how many answers both have, which are right."""
    random = Random(f"{pair} {seed}")
    names = [f"n{number}" for number in range(sites)]
    known = dict.fromkeys(STREAMS, SCHEMA.names)
    tables = {name: stream(random, random.randint(40, 60), 0) for name in STREAMS}
    homes = {name: random.choice(names) for name in STREAMS}
    before, after = (
        typed_outputs(parse_script("q", sql, known, allow_cross=True), dict.fromkeys(STREAMS, SCHEMA)) for sql in pair
    )

    places = dict(homes)  # a view stays where it is
    old, new = plans(before, places), plans(after, places)
    running = SimulatedSites(
        old,
        TIMES,
        seed=seed,
        delays_us=dict.fromkeys(STREAMS, 0),
        model_of=lambda sender, receiver: LinkModel(25_000, loss=0.05, duplicate=0.05),
        interval_us={name: random.choice([100_000, 400_000]) for name in names},
        buckets=random.choice([1, 3]),
        sites=names,
        homes=homes,
        changes=True,
        history=random.random() < 0.5,
        slack_us=random.choice([0, 2 * SECOND]),
    )
    for name in STREAMS:
        for number, begin in enumerate(range(0, tables[name].num_rows, 5)):
            running.feed(number * SECOND + random.randrange(SECOND), {name: tables[name].slice(begin, 5)})
    begun = tuple(QueryPlan(name, plan, is_fresh=True) for name, plan in new.items())
    removed = tuple(sorted(old.keys() - new.keys()))
    running.change(random.randrange(2 * SECOND, 5 * SECOND), Change(begun, removed), random.choice(names))
    for _ in range(random.choice([0, 1])):
        running.crash(random.choice(names), random.randrange(6 * SECOND), 400_000)
    running.run()
    running.drain()
    ((at_us),) = (one.at_us for one in running.takeovers if not one.refused)
    until = {
        name: table.filter(pa.array([ts < at_us for ts in table.column("ts").cast(pa.int64()).to_pylist()]))
        for name, table in tables.items()
    }
    starts = dict.fromkeys(new, at_us)
    first = answer_outputs(before[0], until, TIMES, watermarks_us=dict.fromkeys(STREAMS, at_us))["q"]
    second = answer_outputs(after[0], tables, TIMES, starts_us=starts)["q"]
    expected = bag_of(first) + bag_of(second)
    found = sum((bag_of(table) for table in running.answers("q")), Bag())
    assert found == expected, f"seed {seed}"
    return int(min(first.num_rows, second.num_rows))


@pytest.mark.few(4)
@pytest.mark.parametrize("pair", PAIRS)
def test_views_are_replaced_together_with_the_queries_that_read_them(pair: str) -> None:
    assert sum(check(PAIRS[pair], seed, sites=1 + 2 * (seed % 2)) for seed in range(4)) > 0


def test_a_view_whose_rows_would_come_about_elsewhere_is_refused() -> None:
    views = ("SELECT k FROM (SELECT k FROM a) v", "SELECT k FROM (SELECT k FROM b) v")
    known = dict.fromkeys(STREAMS, SCHEMA.names)
    old, new = (
        plans(typed_outputs(parse_script("q", sql, known), dict.fromkeys(STREAMS, SCHEMA)), {"a": "n1", "b": "n2"})
        for sql in views
    )
    deployment = deployed(shared_joins(old, dict.fromkeys(old)), ["n0", "n1", "n2"])
    change = Change(tuple(QueryPlan(name, plan, is_fresh=True) for name, plan in new.items()))
    with pytest.raises(InputError, match=r"rows of 'q_v' would come about at site n2.*`site: n1`"):
        check_change(deployment, change)
