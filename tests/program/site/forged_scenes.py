"""Small runs over several sites in which everything travels that sites ever send each other."""

from collections.abc import Callable
from random import Random

import numpy as np
import pyarrow as pa
from equivalence.statements import draw_deployment, run_deployment

from watersmeet.errors import SqlError
from watersmeet.planners.local import local
from watersmeet.query.sql import parse_query
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.trials.draw import draw, draw_changing
from watersmeet.sim.sites.trials.model import Trial
from watersmeet.sim.sites.trials.run import run

SECOND_US = 1_000_000
AGGREGATES = (
    *("count(*)", "count(a.v)", "count(DISTINCT a.s)", "sum(a.v)", "avg(a.v)", "sum(a.x)", "avg(a.x)", "var_samp(a.x)"),
    *("stddev_pop(a.v)", "min(a.s)", "max(a.x)", "min(a.v)", "bool_and(a.v > 5)", "bool_or(a.v > 990)"),
    *("approx_count_distinct(a.s)", "approx_percentile(a.x, 0.5)"),
    *("approx_percentile(a.v, array(0.1, 0.9))", "approx_top_k(a.s, 2)", "max_k(a.v, 3)", "min_k(a.x, 2)"),
)
PLAIN = AGGREGATES[:4] + AGGREGATES[10:12]
TAILS = ("TUMBLE(30 SECONDS)", "HOP(40 SECONDS, 20 SECONDS)", "EMIT CHANGES")


def groups(seed: int) -> list[str]:
    """Aggregates whose partial records travel, of which queries share some; what is answered."""
    random, chance = Random(f"forged groups {seed}"), np.random.default_rng(seed)
    rows = 40
    ts = np.sort(chance.integers(0, 90 * SECOND_US, rows))
    ts[-1] = 600 * SECOND_US
    table = pa.table(
        {
            "g": chance.integers(0, 3, rows),
            "v": pa.array(chance.integers(0, 1_000, rows), mask=chance.random(rows) < 0.1),
            "x": pa.array(chance.normal(size=rows), mask=chance.random(rows) < 0.1),
            "s": chance.choice(np.array(["p", "q", "r"]), rows),
            "ts": pa.array(ts, pa.timestamp("us", "UTC")),
        }
    )
    columns, times, plans = {"a": table.column_names}, {"a": "ts"}, {}
    tail = random.choice(TAILS)
    known = PLAIN if tail == TAILS[-1] else AGGREGATES
    items = ", ".join(f"{one} AS c{n}" for n, one in enumerate(random.sample(known, random.choice([1, 2, 4]))))
    end = "GROUP BY a.g EMIT CHANGES" if tail == TAILS[-1] else f"GROUP BY a.g, {tail}"
    for number in range(random.choice([1, 1, 3])):
        window = "[RANGE 20 SECONDS]" if tail == TAILS[-1] else ""
        sql = f"SELECT a.g, {items} FROM a {window} WHERE a.v >= {number} {end}"
        parsed = typed(parse_query(sql, columns, event_times=times), {"a": table.schema})
        plans[f"q{number}"] = local(parsed, columns, "here", "hub")
    sites = SimulatedSites(plans, times, seed=seed)
    for number in range(4):
        sites.feed(number * SECOND_US, {"a": table.slice(number * 10, 10)})
    sites.run()
    sites.drain()
    return [str(one.to_pylist()) for name in plans for one in sites.answers(name)]


def joins(seed: int) -> None:
    """Joins by any plan over a bad network."""
    _check(draw(seed, size="tiny"))


def changes(seed: int) -> None:
    """The same with plans and queries that change."""
    _check(draw_changing(seed, size="tiny"))


def _check(trial: Trial) -> None:
    outcome = run(trial)
    assert outcome.is_right, outcome.verdict


def statements(seed: int) -> None:
    """Several statements with views, outer joins, tables, groups and DISTINCT."""
    try:
        found = run_deployment(draw_deployment(seed), seed, 2 + seed % 2)
    except SqlError:
        return
    for name, (answers, expected) in found.items():
        assert answers == expected, name


SCENES: tuple[Callable[[int], object], ...] = (joins, changes, groups, statements)
