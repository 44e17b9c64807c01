"""Random deployments with views, unions and tables that go over to others: simulated sites against the oracle."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import pyarrow as pa
import pytest
from equivalence.outer_scenes import SCHEMA, SECOND, TABLE, Lookup, draw_rows
from equivalence.seeds import fresh_seeds, repeat_command
from equivalence.statements import SCHEMAS, STREAMS, draw_inner, real_answers
from equivalence.test_outer_views import plan_of

import watersmeet as wm
from watersmeet.plan.nodes import Plan
from watersmeet.program.site.changes import Change, QueryPlan
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.query.bags import Bag
from watersmeet.query.model import EVENT_TIME, Output
from watersmeet.query.oracle import answer_outputs
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed_outputs
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.site import CommitCrash, CrashNow, SimulatedSite, TableSource
from watersmeet.topology.difference import Differences, differences
from watersmeet.topology.views import outputs_of

DDL = "k long, m int, s string, id long"
TIMES = dict.fromkeys(STREAMS, "ts")
SEEDS = range(40)


@dataclass(frozen=True)
class Going:
    """A deployment, the one that follows it, and what is different."""

    before: wm.Topology
    after: wm.Topology
    found: Differences


def every_row() -> str:
    """A query that stays and reads all streams: a stream that nobody has read yet begins with what comes then."""
    return " UNION ALL ".join(
        f"SELECT k, m, s, id, CASE WHEN id < 1000 THEN 0 ELSE 1 END AS f FROM {one}" for one in STREAMS
    )


def topology_of(views: Mapping[str, str], queries: Mapping[str, str]) -> wm.Topology:
    return wm.Topology(
        tuple(wm.Stream(name, "ts", f"{DDL}, ts timestamp", wm.Source("parquet", name)) for name in STREAMS),
        tuple(wm.Query(name, sql, allow_cross=True) for name, sql in queries.items()),
        tables=(wm.Table("t0", schema=DDL, source=wm.Source("parquet", "t0")),),
        views=tuple(wm.Query(name, sql, allow_cross=True) for name, sql in views.items()),
    )


def draw(seed: int) -> Going:
    """What runs, and what is to run: queries and views stay, are drawn anew, end and begin."""
    random = Random(f"going {seed}")
    views, queries = dict[str, str](), dict[str, str]()
    for name in ("v0", "v1"):
        views[name] = draw_inner(random, tuple(views))
    for name in ("q0", "q1", "q2"):
        queries[name] = draw_inner(random, tuple(views))
    later = {
        name: sql if random.random() < 0.6 else draw_inner(random, tuple(views)[:number])
        for number, (name, sql) in enumerate(views.items())
    }
    wanted = {
        name: sql if random.random() < 0.5 else draw_inner(random, tuple(views))
        for name, sql in queries.items()
        if random.random() < 0.8
    }
    queries |= {"stays": every_row()}
    wanted |= {"stays": every_row(), "q3": draw_inner(random, tuple(views))}
    before, after = topology_of(views, queries), topology_of(later, wanted)
    found = differences(before, after)
    begun = {one.owner.name for one in outputs_of(after, after.queries) if set(one.queries) & set(found.begun)}
    begun |= {
        one.owner.name
        for one in outputs_of(after, after.queries)
        if set(found.begun) & {name for name, _ in one.output.branches}
    }

    def named(some: Sequence[wm.Query]) -> tuple[wm.Query, ...]:
        return tuple(replace(one, read_as=(("t0", "t0~2"),)) if one.name in begun else one for one in some)

    return Going(before, replace(after, queries=named(after.queries), views=named(after.views)), found)


def outputs(topology: wm.Topology) -> tuple[tuple[Output, ...], dict[str, pa.Schema]]:
    asked = tuple(one.output for one in outputs_of(topology, topology.queries))
    return typed_outputs(asked, {**SCHEMAS, "t0~2": TABLE})


def run(seed: int, sites: int) -> int:
    """How many answers a change has on both sides of it, all of which are right; -1 if views have other types."""
    going = draw(seed)
    random = Random(f"run {seed}")
    (old, old_schemas), (new, new_schemas) = outputs(going.before), outputs(going.after)
    both = {one.target.name for one in old if one.target.is_stream} & {one.target.name for one in new}
    if any(old_schemas[name] != new_schemas[name] for name in both):
        return -1
    names = [f"n{number}" for number in range(sites)]
    places = {one.target.name: random.choice(names) for one in (*old, *new)}
    homes = {name: random.choice(names) for name in (*STREAMS, "t0", "t0~2")} | places

    def plans(some: Sequence[Output], schemas: Mapping[str, pa.Schema]) -> dict[str, Plan]:
        columns = {name: [one for one in schema.names if one != EVENT_TIME] for name, schema in schemas.items()}
        return {
            branch: plan_of(query, columns, homes, places[output.target.name])
            for output in some
            for branch, query in output.branches
        }

    running, wanted = plans(old, old_schemas), plans(new, new_schemas)
    delay_s = random.choice([0, 3])
    streams = {name: draw_rows(random, delay_s, 60) for name in STREAMS}
    lookups = {name: Lookup(Random(f"{name} {seed}"), None) for name in ("t0", "t0~2")}
    simulated = SimulatedSites(
        running,
        TIMES,
        seed=seed,
        delays_us=dict.fromkeys(STREAMS, delay_s * SECOND),
        model_of=lambda sender, receiver: LinkModel(25_000, jitter_us=200_000, loss=0.1, duplicate=0.1),
        interval_us={name: random.choice([100_000, 700_000]) for name in names},
        buckets=random.choice([1, 3]),
        sites=names,
        homes={name: homes[name] for name in (*STREAMS, "t0", "t0~2")},
        changes=True,
        history=random.random() < 0.5,
        slack_us=random.choice([0, 5 * SECOND]),
        tables={name: TableSource(lookup.read) for name, lookup in lookups.items()},
        crashes=crashes_of_phases(random),
    )
    for name, table in streams.items():
        for number, begin in enumerate(range(0, table.num_rows, 6)):
            simulated.feed(number * SECOND + random.randrange(SECOND), {name: table.slice(begin, 6)})
    begun = tuple(QueryPlan(name, wanted[name], is_fresh=True) for name in going.found.begun)
    change = Change(begun, going.found.ended)
    simulated.change(random.randrange(SECOND // 2, 3 * SECOND), change, random.choice(names))
    for _ in range(random.choice([0, 2])):
        simulated.crash(random.choice(names), random.randrange(6 * SECOND), 400_000)
    simulated.run()
    simulated.drain()
    (at_us,) = {one.at_us for one in simulated.takeovers if not one.refused}
    ended = {*going.found.begun, *going.found.ended}  # of SELECTs that ran before, the old ones
    until = {
        name: table.filter(pa.array([ts < at_us for ts in table.column("ts").cast(pa.int64()).to_pylist()]))
        for name, table in streams.items()
    }
    tables = {name: lookup.table if lookup.versions else TABLE.empty_table() for name, lookup in lookups.items()}
    marks = dict.fromkeys(STREAMS, at_us)
    whole = answer_outputs(old, {**streams, **tables}, TIMES)
    early = answer_outputs(old, {**until, **tables}, TIMES, watermarks_us=marks)
    starts = dict.fromkeys(going.found.begun, at_us)
    late = answer_outputs(new, {**streams, **tables}, TIMES, starts_us=starts)
    answers = [0, 0]
    for name in sorted({one.name for one in (*going.before.queries, *going.after.queries)}):
        has_ended, has_begun = name in ended and name in early, name in going.found.begun
        if has_ended or has_begun:
            parts = [
                real_answers(early[name]) if has_ended else Bag(),
                real_answers(late[name]) if has_begun else Bag(),
            ]
            expected = parts[0] + parts[1]
            answers = [count + part.total() for count, part in zip(answers, parts, strict=True)]
        else:
            expected = real_answers(whole[name])
        found = sum((real_answers(table) for table in simulated.answers(name)), Bag())
        command = repeat_command(__file__, "fresh", seed)
        assert found == expected, f"{name}, at {at_us}: {described(going)}\nrepeat: {command}"
    return min(answers)


def crashes_of_phases(random: Random) -> CommitCrash:
    """Crashes just before or after commits of a phase of the change: proposed, promised, decided, adopted, dropped."""
    left = iter(range(random.choice([0, 2, 4])))

    def crash(site: SimulatedSite, ledger: SiteLedger) -> CrashNow | None:
        if ledger.versions == site.ledger.versions or random.random() < 0.5 or next(left, None) is None:
            return None
        return CrashNow(random.random() < 0.5, random.choice([1, 400_000]))

    return crash


def described(going: Going) -> str:
    texts = [
        f"{when} {one.name}: {one.sql}"
        for when, topology in (("before", going.before), ("after", going.after))
        for one in (*topology.views, *topology.queries)
    ]
    return "\n".join([*texts, f"begun: {going.found.begun}, ended: {going.found.ended}"])


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_ends_begins_and_stays_answers_as_the_reference_says(seed: int) -> None:
    run(seed, 1 + seed % 3)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(20))
def test_fresh_deployments_go_over_to_others(number: int) -> None:
    found = [run(seed, 1 + seed % 3) for seed in fresh_seeds(30)]
    assert sum(count > 0 for count in found) > 0.2 * len(found)


def test_the_deployments_change_in_every_way() -> None:
    drawn = [draw(seed) for seed in range(20)]
    changes = {(row.kind, row.change) for one in drawn for row in one.found.rows}
    assert changes >= {(kind, change) for kind in ("query", "view") for change in ("new", "ends", "replaced")}
    assert {row.refused for one in drawn for row in one.found.rows} == {""}
    assert SCHEMA.names[:4] == TABLE.names
