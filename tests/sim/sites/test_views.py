"""Derived streams on simulated sites: views of views, unions, subqueries, against the reference semantics."""

from collections.abc import Mapping, Sequence
from random import Random

import pyarrow as pa
import pytest
from sim.sites.streams import SECOND

from watersmeet.plan.nodes import Plan
from watersmeet.planners.local import local
from watersmeet.planners.sited import central
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.model import EVENT_TIME, Output
from watersmeet.query.oracle import answer_outputs
from watersmeet.query.sql import parse_script
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed_outputs
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.trial import SCHEMA

STREAMS = ("a", "b", "c")
TIMES = dict.fromkeys(STREAMS, "ts")
# What chains are made of; a statement a test.
CHAINS = {
    "filter of a stream": "SELECT v.k, v.id FROM (SELECT k, id FROM a WHERE m = 1) v",
    "join of a view with a stream": """
        SELECT v.k, v.ai, b.id AS bi FROM (SELECT k, id AS ai, m FROM a WHERE m = 1) [RANGE 4 SECONDS] v,
          b [RANGE 3 SECONDS] WHERE v.k = b.k""",
    "self-join of a view": """
        WITH v AS (SELECT a.k, a.id AS ai, b.id AS bi FROM a [RANGE 3 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k)
        SELECT x.ai, x.bi, y.ai AS ai2, y.bi AS bi2 FROM v [RANGE 2 SECONDS] x, v [TUMBLE 5 SECONDS] y
        WHERE x.k = y.k AND x.ai < y.ai""",
    "view of a view": """
        WITH v AS (SELECT a.k, b.m, a.id AS ai FROM a [RANGE 3 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k),
        w AS (SELECT v.k, c.id AS ci, v.ai FROM v [RANGE 3 SECONDS], c [UNBOUNDED] WHERE v.m = c.m AND v.k = c.k)
        SELECT k, ci, ai FROM w WHERE ai % 2 = 0""",
    "GROUP BY of a view": """
        SELECT k, count(*) AS n, min(ai) AS least FROM (SELECT a.k, a.id AS ai FROM a [RANGE 3 SECONDS],
          b [RANGE 2 SECONDS] WHERE a.k = b.k) v GROUP BY k, TUMBLE(5 SECONDS)""",
    "GROUP BY of a GROUP BY": """
        SELECT count(*) AS groups, sum(n) AS total, window_start AS s FROM (
          SELECT k, count(*) AS n FROM a GROUP BY k, TUMBLE(2 SECONDS)) v GROUP BY TUMBLE(6 SECONDS)""",
    "join of groups with their stream": """
        SELECT a.id, v.n, v.e FROM (SELECT k, count(*) AS n, window_end AS e FROM a
          GROUP BY k, HOP(4 SECONDS, 2 SECONDS))
          [RANGE 3 SECONDS] v, a [RANGE 5 SECONDS] WHERE a.k = v.k""",
    "union of three streams": """
        SELECT u.k, u.id, c.id AS ci FROM (SELECT k, id FROM a UNION ALL SELECT m, id FROM b WHERE m = 1
          UNION ALL SELECT k, id FROM c) [RANGE 2 SECONDS] u, c [RANGE 3 SECONDS] WHERE u.k = c.k""",
    "groups of a union": """
        SELECT k, count(*) AS n FROM (SELECT k FROM a UNION ALL SELECT k FROM b UNION ALL SELECT k FROM c) u
        GROUP BY k, TUMBLE(4 SECONDS)""",
    "union of joins in one sink": """
        SELECT a.k, a.id AS x, b.id AS y FROM a [RANGE 2 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k
        UNION ALL SELECT c.k, c.id, a.id FROM a [RANGE 3 SECONDS], c [RANGE 1 SECOND] WHERE a.k = c.k AND a.m = c.m
        UNION ALL SELECT k, count(*), 0 FROM b GROUP BY k, TUMBLE(3 SECONDS)""",
    "different values of a join": """
        SELECT v.k, v.m, c.id FROM (SELECT DISTINCT a.k, b.m FROM a [RANGE 3 SECONDS], b [RANGE 2 SECONDS]
          WHERE a.k = b.k) [RANGE 6 SECONDS] v, c [RANGE 6 SECONDS] WHERE v.k = c.k""",
    "count of different values": """
        SELECT count(*) AS n, window_end AS e
        FROM (SELECT DISTINCT s, m FROM a UNION ALL SELECT DISTINCT s, id % 5 FROM b) v
        GROUP BY TUMBLE(3 SECONDS)""",
    "changes of a union": """
        SELECT k, count(*) AS n FROM (SELECT k FROM a UNION ALL SELECT m FROM b) [RANGE 2 SECONDS] u
        GROUP BY k HAVING n > 1 EMIT CHANGES""",
    "changes of groups and a stream": """
        SELECT v.k, sum(v.n) AS s, max(b.id) AS m FROM
          (SELECT k, count(*) AS n FROM a GROUP BY k, TUMBLE(2 SECONDS)) [RANGE 3 SECONDS] v, b [TUMBLE 4 SECONDS]
        WHERE v.k = b.k GROUP BY v.k EMIT CHANGES""",
    "changes of a join of views": """
        WITH v AS (SELECT a.k, a.id AS ai FROM a [RANGE 3 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k)
        SELECT count(*) AS n, min(v.ai) AS least FROM v [RANGE 2 SECONDS], c [RANGE 1 SECOND] WHERE v.k = c.k
        EMIT CHANGES""",
    "different rows of a union": """
        SELECT u.k, u.m, c.id FROM (SELECT k, m FROM a UNION SELECT m, k FROM b UNION ALL SELECT k, m FROM c)
          [RANGE 2 SECONDS] u, c [RANGE 3 SECONDS] WHERE u.k = c.k""",
    "keys that are expressions": """
        SELECT v.t, v.id, b.id AS bi FROM (SELECT lower(s) AS t, id FROM a UNION ALL SELECT s, id FROM c)
          [RANGE 4 SECONDS] v, b [RANGE 3 SECONDS] WHERE v.t = lower(b.s) AND v.id > 2""",
}


def stream(random: Random, rows: int, delay: int) -> pa.Table:
    """Rows with ties, NULLs and disorder within the delay."""
    clock, found = 0, []
    for number in range(rows):
        clock += random.choice([0, 0, 1, 1, 2])
        ts = (clock - random.randint(0, delay)) * SECOND
        k = None if random.random() < 0.05 else random.randint(1, 4)
        found.append((k, random.randint(1, 2), random.choice(["x", "X", "y", None]), number, ts))
    columns = list(zip(*found, strict=True))
    return pa.table({n: pa.array(columns[i], SCHEMA.field(n).type) for i, n in enumerate(SCHEMA.names)})


def plans_of(outputs: Sequence[Output], columns: Mapping[str, Sequence[str]], homes: dict[str, str]) -> dict[str, Plan]:
    """A plan for each branch; a derived stream is at the home of the first stream that it reads, answers at n0.

    The homes of derived streams are added to `homes`; one that is there already stays where it is.
    """
    plans = {}
    for output in outputs:
        first = min(output.streams)
        site = homes.get(output.target.name, homes[first]) if output.target.is_stream else "n0"
        for name, query in output.branches:
            home, *others = sorted({homes[source.stream] for source in query.sources})
            is_local = len(query.sources) == 1 or (home == site and not others)
            plans[name] = local(query, columns, home, site) if is_local else central(query, columns, homes, site)
        homes[output.target.name] = site
    return plans


def check(sql: str, seed: int, *, sites: int, crashes: bool = True) -> int:
    """Run a statement over random streams with crashes and a bad network; the number of answers, which are right."""
    random = Random(f"{sql} {seed}")
    outputs, schemas = typed_outputs(
        parse_script("q", sql, dict.fromkeys(STREAMS, SCHEMA.names), allow_cross=True), dict.fromkeys(STREAMS, SCHEMA)
    )
    delay = random.choice([0, 2])
    tables = {name: stream(random, random.randint(15, 40), delay) for name in STREAMS}
    homes = {name: f"n{random.randrange(sites)}" for name in STREAMS}
    columns = {name: [n for n in schema.names if n != EVENT_TIME] for name, schema in schemas.items()}
    plans = plans_of(outputs, columns, dict(homes))
    is_bad = random.random() < 0.5
    model = LinkModel(latency_us=25_000, jitter_us=300_000, loss=0.2, duplicate=0.2) if is_bad else LinkModel(25_000)
    running = SimulatedSites(
        plans,
        TIMES,
        seed=seed,
        delays_us=dict.fromkeys(STREAMS, delay * SECOND),
        model_of=lambda sender, receiver: model,
        interval_us={f"n{n}": random.choice([100_000, 700_000]) for n in range(sites)},
        buckets=random.choice([1, 3]),
    )
    for name in STREAMS:
        cuts = sorted(random.randrange(tables[name].num_rows + 1) for _ in range(4))
        for number, (low, high) in enumerate(zip([0, *cuts], [*cuts, tables[name].num_rows], strict=True)):
            if name in running.homes and high > low:
                running.feed(number * SECOND + random.randrange(SECOND), {name: tables[name].slice(low, high - low)})
    for _ in range(random.choice([0, 2]) if crashes else 0):
        running.crash(random.choice(sorted(running.sites)), random.randrange(6 * SECOND), 400_000)
    running.run()
    marks = {n: max(tables[n].column("ts").cast(pa.int64()).to_pylist()) - delay * SECOND for n in STREAMS}
    expected = answer_outputs(outputs, tables, TIMES, watermarks_us=marks)["q"]
    found = sum((bag_of(table) for table in running.answers("q")), Bag())
    assert found == bag_of(expected)
    return int(expected.num_rows)


@pytest.mark.few(6)
@pytest.mark.parametrize("chain", CHAINS)
def test_answers_at_one_site_are_those_of_the_reference(chain: str) -> None:
    assert sum(check(CHAINS[chain], seed, sites=1) for seed in range(3)) > 10


@pytest.mark.few(6)
@pytest.mark.parametrize("chain", CHAINS)
def test_answers_at_several_sites_are_those_of_the_reference(chain: str) -> None:
    assert sum(check(CHAINS[chain], seed, sites=3) for seed in range(4)) > 10
