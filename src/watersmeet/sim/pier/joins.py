"""The workload of section 4.3.3, measured: two tables spread over all nodes, one join, and what it costs.

Traffic is that of the query alone: bytes sent while it runs, less those of a run in which it is disseminated and not
executed. A run ends when all results are on their way to whoever asked; latency is that of the hundredth result there.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from watersmeet.program.pier.expressions import compiled_row
from watersmeet.program.pier.sql.plan import ID, NODE, indexes_of, plan_sql
from watersmeet.program.pier.sql.settings import JoinMethod, PlanSettings, StreamTypes, Transport
from watersmeet.program.pier.tuples import Batch, Row, Schema
from watersmeet.program.pier.values import key_text
from watersmeet.query.model import JoinQuery
from watersmeet.query.sql import parse_query
from watersmeet.sim.dht.settings import DhtSettings
from watersmeet.sim.internet.hosts import Congestion
from watersmeet.sim.internet.latency import King
from watersmeet.sim.kernel import Kernel, without_cycles_collected
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.pier.client import ClientQuery
from watersmeet.sim.pier.network import PierNetwork

R_BYTES, S_BYTES, RESULT_BYTES = 1_024, 1_536, 2_048  # of tuples, with their descriptions
MATCHED = 0.9  # of R's tuples: they have two partners in S, the others none
RESULT_NUMBER = 100
_LONGEST_US = 3_600_000_000
_CHUNK_US = 5_000_000
_NUMBERS = dict.fromkeys(("pkey", "joinattr", "num1", "num2"), "integer")
_R = {"ts": "timestamp", **_NUMBERS, "pad": "string"}
_S = {**_R, "rest": "string"}  # what is needed for f, but is in no result
_ADDED = {ID: "integer", NODE: "integer"}
_RESULT = dict.fromkeys(("rkey", "skey", "#id0", "#id1"), "integer") | {"rpad": "string", "spad": "string"}


@dataclass(frozen=True, slots=True)
class JoinRun:
    """A join of the paper to be measured: how many nodes, which method, and what is drawn."""

    nodes: int
    method: JoinMethod = JoinMethod.SYMMETRIC_HASH
    transport: Transport = Transport.DHT
    skewed: bool = False
    tuples: int = 100  # of each table at each node
    r_selectivity: float = 0.5
    s_selectivity: float = 0.5
    f_selectivity: float = 0.5
    computation_nodes: int | None = None  # only these join; the query is asked by the last node then
    bloom_bits: int = 65_536
    seed: int = 1
    access_bps: float = 1_500_000.0


@dataclass(frozen=True, slots=True)
class JoinMeasured:
    """What a run came to."""

    results: int  # sent
    expected: int
    megabytes: float  # sent for the query alone
    messages: int
    latency_s: float | None  # to the hundredth result, or to the last if there are fewer; None without any
    most_inbound_megabytes: float  # of one node, of the whole run
    computation_megabytes: tuple[float, ...] = ()  # that each computation node received, but for the one that asked


@dataclass(frozen=True, slots=True)
class Tables:
    """The rows of both tables, node by node."""

    r: list[list[Row]]
    s: list[list[Row]]


def query_of(run: JoinRun) -> JoinQuery:
    """The query of section 4.3; f also looks at what is in no result, so that S travels whole."""
    sql = (
        "SELECT r.pkey AS rkey, s.pkey AS skey, r.pad AS rpad, s.pad AS spad "
        "FROM R [UNBOUNDED] AS r, S [UNBOUNDED] AS s "
        f"WHERE r.joinattr = s.joinattr AND r.num1 >= {_bound(run.r_selectivity)} "
        f"AND s.num1 >= {_bound(run.s_selectivity)} "
        f"AND (r.num2 + s.num2) % 1000 + length(s.rest) >= {_bound(run.f_selectivity) + _pads()[2]}"
    )
    return parse_query(sql, {"R": list(_R), "S": list(_S)})


def tables_of(run: JoinRun) -> Tables:
    """Both tables: 90 % of R's tuples have exactly two partners in S."""
    chance = np.random.default_rng([run.seed, 11])
    total = run.nodes * run.tuples
    keys = max(1, total // 2)
    s_keys = chance.permutation(np.arange(total) // 2 % keys)
    r_keys = np.where(chance.random(total) < MATCHED, chance.integers(0, keys, total), keys + np.arange(total))
    numbers = chance.integers(0, 1_000, (4, total))
    r_pad, s_pad, rest = ("x" * length for length in _pads())
    r: list[list[Row]] = []
    s: list[list[Row]] = []
    for node in range(run.nodes):
        here = range(node * run.tuples, (node + 1) * run.tuples)
        r.append([(0, i, int(r_keys[i]), int(numbers[0, i]), int(numbers[1, i]), r_pad, i, node) for i in here])
        s.append(
            [(0, i, int(s_keys[i]), int(numbers[2, i]), int(numbers[3, i]), s_pad, rest, total + i, node) for i in here]
        )
    return Tables(r, s)


def expected_results(run: JoinRun, tables: Tables) -> Counter[tuple[int, int]]:
    """Pairs of primary keys by definition, with a dictionary and nothing of the query processor."""
    by_key: dict[int, list[Row]] = {}
    for rows in tables.s:
        for row in rows:
            if row[3] >= _bound(run.s_selectivity):
                by_key.setdefault(row[2], []).append(row)
    return Counter(
        (row[1], match[1])
        for rows in tables.r
        for row in rows
        if row[3] >= _bound(run.r_selectivity)
        for match in by_key.get(row[2], ())
        if (row[4] + match[4]) % 1_000 >= _bound(run.f_selectivity)
    )


def measure_join(run: JoinRun) -> JoinMeasured:
    """Run it, and its baseline."""
    tables = tables_of(run)
    expected = expected_results(run, tables).total()
    with without_cycles_collected():
        pier, client, before = _started(run, tables, executes=True)
        inbound = pier.traffic.inbound_bytes
        sent = _finish(pier, expected)
        after = pier.traffic
        idle, _, idle_before = _started(run, Tables([[]] * run.nodes, [[]] * run.nodes), executes=False)
        idle.kernel.run(pier.kernel.now_us)
    idle_bytes = idle.traffic.bytes - idle_before[1]
    idle_messages = idle.traffic.messages - idle_before[0]
    latency_us = client.latency_us(min(RESULT_NUMBER, max(1, client.count)))
    return JoinMeasured(
        results=sent,
        expected=expected,
        megabytes=(after.bytes - before[1] - idle_bytes) / 1e6,
        messages=after.messages - before[0] - idle_messages,
        latency_s=None if latency_us is None else latency_us / 1e6,
        most_inbound_megabytes=after.most_inbound_bytes / 1e6,
        computation_megabytes=tuple(
            (after.inbound_bytes[node] - inbound[node]) / 1e6
            for node in range(run.computation_nodes or 0)
            if node != _asker(run)
        ),
    )


def ask_join(run: JoinRun, tables: Tables) -> tuple[PierNetwork, ClientQuery]:
    """A network on which the query has been asked at node 0, for those who look at its answers."""
    pier, client, _ = _started(run, tables, executes=True)
    return pier, client


def _started(run: JoinRun, tables: Tables, *, executes: bool) -> tuple[PierNetwork, ClientQuery, tuple[int, int]]:
    latency = King(run.nodes, seed=run.seed)
    pier = PierNetwork(
        Kernel(run.seed),
        latency,
        Prefixes.random(run.nodes, run.seed, latency),
        access_bps=run.access_bps,
        congestion=Congestion.FIFO,
        # A queue of minutes in front of one node is part of the experiment, and no sign that a message was lost.
        dht=DhtSettings(lifetime_max_us=_LONGEST_US, timeout_us=_LONGEST_US, tries=1),
    )
    settings = PlanSettings(
        method=run.method,
        transport=run.transport,
        duration_s=3_600,
        skewed=run.skewed,
        computation_nodes=run.computation_nodes,
        bloom_bits=run.bloom_bits,
    )
    query = query_of(run)
    types = {"R": StreamTypes(_R, "ts"), "S": StreamTypes(_S, "ts")}
    schemas = {
        "R": Schema.of("R", {**_R, **_ADDED}),
        "S": Schema.of("S", {**_S, **_ADDED}),
    }
    for name, rows_of in (("R", tables.r), ("S", tables.s)):
        for number, rows in enumerate(rows_of):
            if rows:
                pier.nodes[number].publish(Batch(schemas[name], rows))
    for index in indexes_of(query, settings):
        kernel, _ = compiled_row(index.keys, schemas[index.stream])
        for rows in tables.s if index.stream == "S" else tables.r:
            for row in rows:
                key = key_text(kernel(row))
                assert key is not None, "keys of the experiment are not NULL"
                batch = Batch(schemas[index.stream], (row,))
                pier.place(index.namespace, key, str(row[-2]), batch, _LONGEST_US)
    pier.settle()
    for node in pier.nodes.values():
        node.executes = executes
    before = pier.traffic
    client = pier.nodes[_asker(run)].ask(plan_sql(query, types, settings))
    return pier, client, (before.messages, before.bytes)


def _finish(pier: PierNetwork, expected: int) -> int:
    """Run until all results are on their way, and a little longer; tells how many are."""
    last_us = pier.kernel.now_us + _LONGEST_US - 60_000_000
    sent = 0
    while sent < expected and pier.kernel.now_us < last_us:
        pier.kernel.run(pier.kernel.now_us + _CHUNK_US)
        sent = sum(node.results_sent for node in pier.nodes.values())
    pier.kernel.run(pier.kernel.now_us + _CHUNK_US)
    return sum(node.results_sent for node in pier.nodes.values())


def _asker(run: JoinRun) -> int:
    return 0 if run.computation_nodes is None else run.nodes - 1


def _bound(selectivity: float) -> int:
    return round(1_000 * (1 - selectivity))


def _pads() -> tuple[int, int, int]:
    """How long the texts are that fill up R, results, and S; each has two bytes for its length."""
    r_pad = R_BYTES - Schema.of("R", {**_R, **_ADDED}).fixed_bytes - 2
    s_pad = RESULT_BYTES - Schema.of("answers", _RESULT).fixed_bytes - 4 - r_pad
    return r_pad, s_pad, S_BYTES - Schema.of("S", {**_S, **_ADDED}).fixed_bytes - 4 - s_pad
