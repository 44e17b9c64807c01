"""Bytes on links when what is the same row travels once, against each join shipping for itself; answers are compared.

python benchmarks/once.py [--rows 4000] [--keys 2000]
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from watersmeet.plan.nodes import (
    HeadPlan,
    Hop,
    Input,
    JoinNode,
    Leaf,
    Linear,
    Method,
    Reduction,
    SubPlan,
    join_plan_of,
    with_join,
)
from watersmeet.planners.sited import central
from watersmeet.query.bags import bag_of
from watersmeet.query.sql import parse_query
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites

SCHEMA = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("note", pa.string()), ("ts", pa.timestamp("us", "UTC"))])
HOMES = {"s": "east", "t": "west", "u": "north"}
_STEP_US = 10_000


@dataclass(frozen=True)
class Case:
    """A query over streams at three sites, and how it is planned."""

    name: str
    sql: str
    sub_plan: SubPlan


def _head(head: str, *hops: Hop) -> HeadPlan:
    return HeadPlan(head, hops)


def _fetch(alias: str) -> Hop:
    return Hop(alias, Method.SM_S1, "hq")


_WINDOW = "[RANGE 2 SECONDS]"
_STAR = (
    "FROM s [RANGE 2 SECONDS] AS a, t [RANGE 2 SECONDS] AS b, u [RANGE 2 SECONDS] AS c WHERE a.k = b.k AND a.k = c.k"
)
_SELF = (
    "FROM s [RANGE 2 SECONDS] AS a, s [RANGE 2 SECONDS] AS b, t [RANGE 2 SECONDS] AS c WHERE a.k = c.k AND b.k = c.k"
)
_TREE = JoinNode(
    "west",
    (Input(Leaf("c")), Input(Leaf("a"), Reduction.ONE_STEP), Input(Leaf("b"), Reduction.ONE_STEP)),
)
CASES = (
    Case(
        "two heads fetch one window",
        f"SELECT a.note AS x, b.note AS y, c.note AS z {_STAR}",
        Linear(
            (
                _head("a", Hop("b", Method.SM_D1), Hop("c", Method.SP_D)),
                _head("b", _fetch("a"), _fetch("c")),
                _head("c", _fetch("a"), _fetch("b")),
            )
        ),
    ),
    Case(
        "head fetched from, and reduced",
        f"SELECT a.note AS x, b.note AS y FROM s {_WINDOW} AS a, t {_WINDOW} AS b WHERE a.k = b.k",
        Linear((_head("a", Hop("b", Method.SM_D1)), _head("b", Hop("a", Method.SM_S1)))),
    ),
    Case(
        "self-join, both inputs reduced", f"SELECT a.note AS x, b.note AS y, c.id AS z {_SELF} AND a.id < b.id", _TREE
    ),
    Case(
        "self-join, one input filtered",
        f"SELECT a.note AS x, b.note AS y, c.id AS z {_SELF} AND b.id % 4 = 0",
        _TREE,
    ),
    Case(
        "self-join, one input whole",
        f"SELECT a.note AS x, b.note AS y, c.id AS z {_SELF} AND a.id < b.id",
        JoinNode("west", (Input(Leaf("a")), Input(Leaf("c")), Input(Leaf("b"), Reduction.ONE_STEP))),
    ),
)


def rows_of(seed: int, rows: int, keys: int) -> pa.Table:
    """Rows at a steady rate, with keys and a text that look random."""
    random = np.random.default_rng(seed)
    notes = [f"{number:012x}" for number in random.integers(1 << 48, size=rows)]
    times = pa.array(np.arange(rows) * _STEP_US, pa.timestamp("us", "UTC"))
    return pa.table([pa.array(random.integers(keys, size=rows)), pa.array(range(rows)), pa.array(notes), times], SCHEMA)


def shipped(case: Case, tables: Mapping[str, pa.Table], *, once: bool) -> tuple[int, object]:
    """Bytes on all links and the answers."""
    query = typed(parse_query(case.sql, dict.fromkeys(tables, SCHEMA.names)), dict.fromkeys(tables, SCHEMA))
    plan = central(query, dict.fromkeys(tables, SCHEMA.names), HOMES, "hq")
    join = replace(join_plan_of(plan), sub_plans=(case.sub_plan,), ships_once=once)
    sites = SimulatedSites(with_join(plan, join), dict.fromkeys(tables, "ts"))
    for stream, table in tables.items():
        for number, low in enumerate(range(0, table.num_rows, 100)):
            sites.feed(number * 1_000_000, {stream: table.slice(low, 100)})
    sites.run()
    answers = sum((bag_of(table) for table in sites.answers()), start=bag_of(pa.table({})))
    links = [link for site in sites.sites.values() for link in site.ledger.links.values()]
    return sum(sent.bytes for link in links for sent in link.traffic.values()), answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--keys", type=int, default=2000)
    asked = parser.parse_args()
    tables = {name: rows_of(number, asked.rows, asked.keys) for number, name in enumerate(HOMES)}
    print(f"{asked.rows} rows a stream, {asked.keys} keys\n")
    print("| case | each for itself | once | less |\n| --- | ---: | ---: | ---: |")
    for case in CASES:
        read = {name: table for name, table in tables.items() if f" {name} [" in f" {case.sql}"}
        (apart, one), (once, other) = (shipped(case, read, once=once) for once in (False, True))
        assert one == other, f"{case.name}: other answers"
        print(f"| {case.name} | {apart:,} | {once:,} | {1 - once / apart:.0%} |")


if __name__ == "__main__":
    main()
