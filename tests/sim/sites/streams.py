"""What tests of sites share: small streams, plans of one kind, and the answers that the oracle gives."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from watersmeet.plan.nodes import Hop, Method, Plan, join_plan_of
from watersmeet.planners.sited import central, explicit
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.model import JoinQuery
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.trial import SCHEMA

SECOND = 1_000_000
SEMIJOINS = (Method.SM_S1, Method.SM_S2, Method.SM_D1, Method.SM_D2)
# Every kind of one-way join.
HOPS: dict[str, Hop] = {
    **{method.value: Hop("", method) for method in Method},
    **{f"{method.value} Bloom": Hop("", method, bloom=True) for method in SEMIJOINS},
}
# The same, and none, which ships all streams to the query's site.
KINDS: dict[str, Hop | None] = {**HOPS, "central": None}


def table(rows: Iterable[tuple[int | None, int | None, str | None, float]]) -> pa.Table:
    """Rows of (k, m, s, second), numbered as they come."""
    columns = list(zip(*((k, m, s, n, int(ts * SECOND)) for n, (k, m, s, ts) in enumerate(rows)), strict=True))
    return pa.table(
        {name: pa.array(columns[i] if columns else [], SCHEMA.field(name).type) for i, name in enumerate(SCHEMA.names)}
    )


def at(*seconds: float, k: int = 1) -> pa.Table:
    """Rows at some seconds, all with one key."""
    return table((k, 1, "x", second) for second in seconds)


def steady(seed: int, rows: int, keys: int, step_us: int) -> pa.Table:
    """Rows at a steady rate with keys that look random."""
    state, made = seed, []
    for number in range(rows):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        made.append(((state >> 33) % keys, 1, "x", number * step_us / SECOND))
    return table(made)


def parsed(sql: str, streams: Iterable[str]) -> JoinQuery:
    return typed(parse_query(sql, dict.fromkeys(streams, SCHEMA.names)), dict.fromkeys(streams, SCHEMA))


def planned(query: JoinQuery, homes: Mapping[str, str], site: str, hop: Hop | None) -> Plan:
    """All one-way joins of a query of one kind, in an order in which equalities tie each to those before."""
    columns = dict.fromkeys(homes, SCHEMA.names)
    plan = central(query, columns, homes, site)
    if hop is None:
        return plan
    heads = join_plan_of(plan).heads
    return explicit(
        query, columns, homes, site, {h.head: [replace(hop, alias=one.alias) for one in h.hops] for h in heads}
    )


def answers_of(sites: SimulatedSites, query: str | None = None) -> Bag:
    """The answers of a query, or of the only one."""
    return sum((bag_of(found) for found in sites.answers(query)), Bag())


def expected(query: JoinQuery, tables: Mapping[str, pa.Table], heads_before_us: int | None = None) -> Bag:
    """The answers of the reference semantics."""
    return bag_of(answer(query, tables, dict.fromkeys(tables, "ts"), heads_before_us=heads_before_us))
