"""Queries over tables that begin while others run: what was read for them, for heads from an instant on."""

from random import Random

import pyarrow as pa
import pytest
from sim.sites.test_tables import COLUMNS, LAST_S, SCHEMAS, SECOND, Source, _feeds, _stream

from watersmeet.errors import InputError
from watersmeet.planners.local import local
from watersmeet.planners.sited import central
from watersmeet.program.site.changes import Change, QueryPlan, check_change
from watersmeet.program.site.deployment import deployed, shared_joins
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.query.windows import AsOf
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.site import TableSource

BEFORE = "SELECT a.id, u.name FROM a, u WHERE a.k = u.k"
BEGUN = (
    "SELECT a.id, t.name, t.s FROM a, t WHERE a.s = t.s",
    "SELECT a.id, b.id AS two, t.name FROM a [RANGE 4 SECONDS], t, b [RANGE 2 SECONDS] WHERE a.k = t.k AND b.k = t.k",
    "SELECT t.name, count(*) AS n FROM b, t WHERE b.k = t.k GROUP BY t.name, TUMBLE(5 SECONDS)",
)


def run(sql: str, seed: int, sites: int, *, refreshed: bool) -> int:
    """Let a query begin that reads a table which another one reads too; how many answers it has, which are right."""
    random = Random(f"{sql} {seed}")
    names = [f"n{number}" for number in range(sites)]
    window = AsOf(refreshed)
    known, schemas = {**COLUMNS, "t": COLUMNS["u"]}, {**SCHEMAS, "t": SCHEMAS["u"]}
    homes = {name: random.choice(names) for name in known}
    queries = {
        name: typed(parse_query(text, known, tables={"u": window, "t": window}), schemas)
        for name, text in {"p": BEFORE, "q": sql}.items()
    }
    plans = {
        name: local(query, known, names[0]) if sites == 1 else central(query, known, homes, random.choice(names))
        for name, query in queries.items()
    }
    streams = {name: _stream(Random(f"{seed} {name}")) for name in "ab"}
    sources = {name: Source(Random(f"{seed} {name}")) for name in "ut"}
    refresh_us = 3 * SECOND if refreshed else None
    running = SimulatedSites(
        {"p": plans["p"]},
        dict.fromkeys("ab", "ts"),
        seed=seed,
        model_of=lambda a, b: LinkModel(latency_us=40_000, loss=0.05, duplicate=0.05),
        homes={name: homes[name] for name in "abut"},
        sites=names,
        changes=True,
        buckets=random.choice([1, 3]),
        tables={name: TableSource(sources[name].read, refresh_us, (LAST_S + 5) * SECOND) for name in "ut"},
    )
    for name in streams:
        for time_us, piece in _feeds(random, streams[name]):
            running.feed(time_us, {name: piece})
    change = Change((QueryPlan("q", plans["q"], is_fresh=True),))
    running.change(random.randrange(8 * SECOND), change, random.choice(names))
    for site in names:
        if random.random() < 0.5:
            running.crash(site, random.randrange(LAST_S) * SECOND, SECOND)
    running.run()
    times = dict.fromkeys("ab", "ts")
    marks = [int(pa.compute.max(table.column("ts")).value) for table in streams.values() if table.num_rows]
    (at_us,) = {one.at_us for one in running.takeovers if not one.refused}
    due = {"p": answer(queries["p"], {**streams, "u": sources["u"].table}, times)}
    used = {source.stream for source in queries["q"].sources}
    read = {**streams, "t": sources["t"].table}
    reached = min(marks) if len(used & set("ab")) > 1 else int(pa.compute.max(streams["b"].column("ts")).value)
    settings = {"watermark_us": reached} if queries["q"].grouping is not None else {}
    due["q"] = answer(queries["q"], read, times, start_us=at_us, **settings)
    for name, table in due.items():
        found = sum((bag_of(one) for one in running.answers(name)), Bag())
        assert found == bag_of(table), f"seed {seed}: {name}"
    assert sources["t"].read_at[0] > 0, "it is read when the query begins"
    return int(due["q"].num_rows)


@pytest.mark.few(3)
@pytest.mark.parametrize("refreshed", [False, True])
@pytest.mark.parametrize("number", range(len(BEGUN)))
def test_queries_over_tables_begin_while_others_run(number: int, refreshed: bool) -> None:
    seeds = [seed for seed in range(8) if all(_stream(Random(f"{seed} {name}")).num_rows for name in "ab")][:3]
    assert sum(run(BEGUN[number], seed, 1 + 2 * (seed % 2), refreshed=refreshed) for seed in seeds) > 0


def test_a_table_is_not_read_for_a_query_as_it_was_read_for_others_before() -> None:
    query = typed(parse_query(BEFORE, COLUMNS, tables={"u": AsOf()}), SCHEMAS)
    now = deployed(shared_joins({"p": local(query, COLUMNS, "here")}, {}))
    change = Change((QueryPlan("q", local(query, COLUMNS, "here"), is_fresh=True),))
    with pytest.raises(InputError, match="reads table 'u' as it was read for others that began meanwhile; ask"):
        check_change(now, change)
