"""Aggregation below the join: the same answers as without, from groups that travel instead of rows."""

from random import Random

import pyarrow as pa
import pytest
from equivalence.outer_scenes import SCHEMA, SECOND, draw_rows
from equivalence.statements import STREAMS
from equivalence.test_outer_views import plans_of

import watersmeet as wm
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.model import EVENT_TIME
from watersmeet.query.oracle import answer_outputs
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed_outputs
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.topology.views import outputs_of

TIMES = dict.fromkeys(STREAMS, "ts")
W = "[TUMBLE 5 SECONDS]"
STATEMENTS = {
    "counts and sums": f"""SELECT a.m, count(*) AS n, sum(a.id) AS s, sum(b.id) AS t, avg(b.m) AS v, count(b.m) AS c
        FROM s0 {W} a, s1 {W} b WHERE a.k = b.k GROUP BY a.m, TUMBLE(10 SECONDS)""",
    "conditions": f"""SELECT lower(b.s) AS s, max(a.id) + min(b.id) AS x, window_start FROM s0 {W} a, s1 {W} b
        WHERE a.k = b.k AND a.m < b.m AND a.id % 3 <> 1 AND b.s LIKE 'key%' GROUP BY lower(b.s), TUMBLE(5 SECONDS)""",
    "three streams": f"""SELECT count(*) AS n, sum(c.id) AS t, max(b.m) AS m FROM s0 {W} a, s1 {W} b, s2 {W} c
        WHERE a.k = b.k AND b.m = c.m GROUP BY HOP(20 SECONDS, 10 SECONDS) HAVING n > 3""",
    "one stream twice": f"""SELECT a.k, count(*) AS n, min(b.id) AS l FROM s0 {W} a, s0 {W} b WHERE a.k = b.k
        GROUP BY a.k, TUMBLE(15 SECONDS) ORDER BY n DESC, l LIMIT 2""",
}
REFUSED = {
    "needs GROUP BY with an output window": f"SELECT a.k FROM s0 {W} a, s1 {W} b WHERE a.k = b.k",
    "all streams need the same TUMBLE window": f"SELECT count(*) AS n FROM s0 [RANGE 5 SECONDS] a, s1 {W} b "
    "WHERE a.k = b.k GROUP BY TUMBLE(5 SECONDS)",
    "has to be made of whole intervals of TUMBLE 5 SECONDS": f"SELECT count(*) AS n FROM s0 {W} a, s1 {W} b "
    "WHERE a.k = b.k GROUP BY TUMBLE(12 SECONDS)",
    "is for inner joins of streams": f"SELECT count(*) AS n FROM s0 {W} a LEFT JOIN s1 {W} b ON a.k = b.k "
    "GROUP BY TUMBLE(5 SECONDS)",
    "cannot be made of counts, sums": f"SELECT count(DISTINCT a.m) AS n FROM s0 {W} a, s1 {W} b WHERE a.k = b.k "
    "GROUP BY TUMBLE(5 SECONDS)",
    "has to be over one stream": f"SELECT sum(a.id * b.id) AS n FROM s0 {W} a, s1 {W} b WHERE a.k = b.k "
    "GROUP BY TUMBLE(5 SECONDS)",
    "has to be over a column of whole numbers": f"SELECT sum(a.id / 2) AS n FROM s0 {W} a, s1 {W} b WHERE a.k = b.k "
    "GROUP BY TUMBLE(5 SECONDS)",
    "is for one SELECT over streams": f"SELECT count(*) AS n FROM (SELECT k FROM s0) {W} a, s1 {W} b WHERE a.k = b.k "
    "GROUP BY TUMBLE(5 SECONDS)",
}


def topology_of(sql: str, *, early: bool) -> wm.Topology:
    schema = "k long, m int, s string, id long, ts timestamp"
    streams = tuple(wm.Stream(name, "ts", schema, wm.Source("parquet", name)) for name in STREAMS)
    return wm.Topology(streams, (wm.Query("q", sql, group_early=early),))


def run(sql: str, rows: dict[str, pa.Table], *, early: bool, seed: int = 0) -> tuple[Bag, int]:
    """The answers of simulated sites, and how many bytes have travelled."""
    topology = topology_of(sql, early=early)
    asked = tuple(one.output for one in outputs_of(topology, topology.queries))
    outputs, schemas = typed_outputs(asked, dict.fromkeys(STREAMS, SCHEMA))
    columns = {name: [one for one in schema.names if one != EVENT_TIME] for name, schema in schemas.items()}
    read = [name for name in STREAMS if any(name in output.streams for output in outputs)]
    homes = {name: f"n{number}" for number, name in enumerate(read)}
    running = SimulatedSites(
        plans_of(outputs, columns, dict(homes)),
        TIMES,
        seed=seed,
        homes=homes,
        delays_us=dict.fromkeys(read, 3 * SECOND),
        model_of=lambda *_: LinkModel(25_000, loss=0.1, duplicate=0.1),
    )
    for name in read:
        table = rows[name]
        for number, begin in enumerate(range(0, table.num_rows, 40)):
            running.feed(number * SECOND, {name: table.slice(begin, 40)})
    running.run()
    running.drain()
    answers = sum((bag_of(table) for table in running.answers("q")), Bag())
    return answers, sum(count.bytes for link in running.traffic.values() for count in link.values())


@pytest.mark.parametrize("name", STATEMENTS)
def test_the_answers_are_those_of_the_query_as_it_is_written(name: str) -> None:
    for seed in range(2):
        random = Random(f"early {name} {seed}")
        rows = {stream: draw_rows(random, 3, 120) for stream in STREAMS}
        topology = topology_of(STATEMENTS[name], early=False)
        plain = tuple(one.output for one in outputs_of(topology, topology.queries))
        expected = bag_of(answer_outputs(plain, rows, TIMES)["q"])
        assert len(expected) > 3
        assert run(STATEMENTS[name], rows, early=True, seed=seed)[0] == expected


def test_rows_that_are_equal_in_what_is_read_travel_once() -> None:
    random = Random("equal rows")
    rows = {stream: draw_rows(random, 0, 3_000) for stream in STREAMS}
    items = "a.m, count(*) AS n, sum(b.m) AS s"
    sql = f"SELECT {items} FROM s0 {W} a, s1 {W} b WHERE a.k = b.k GROUP BY a.m, TUMBLE(1 MINUTE)"
    (early, few), (late, many) = (run(sql, rows, early=early) for early in (True, False))
    assert early == late and few < 0.5 * many


@pytest.mark.parametrize("cause", REFUSED)
def test_what_would_not_be_the_same_is_refused(cause: str) -> None:
    topology = topology_of(REFUSED[cause], early=True)
    with pytest.raises(wm.InputError, match=f"group_early.*{cause}"):
        outputs_of(topology, topology.queries)
