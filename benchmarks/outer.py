"""What a LEFT JOIN costs beside the inner join: w2's shape (RANGE 60 seconds, int keys) on the engine, one process.

    python -m benchmarks.outer [--rows 400000] [--keys 70000] [--seed 1]

Both queries run over the same micro-batches in the simulator's engine, without Spark and network, in turn;
CPU time of this process is compared. The answers of the LEFT JOIN are those of the inner one and a row for each row
without partner, which is checked by counting.
"""

import argparse
import time
from statistics import median

import numpy as np
import pyarrow as pa

from watersmeet.plan.nodes import OuterJoin, Plan
from watersmeet.plan.shape import matching_of
from watersmeet.planners.local import local
from watersmeet.query.outer import branches_of
from watersmeet.query.sql import parse_query
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites

SECOND_US = 1_000_000
SPAN_S = 600
BATCHES = 30
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
SQL = "SELECT l.k, l.v AS lv, r.v AS rv FROM l [RANGE 60 SECONDS] {} JOIN r [RANGE 60 SECONDS] ON l.k = r.k"


def stream(seed: int, rows: int, keys: int) -> pa.Table:
    """Rows in order of time, keys drawn evenly."""
    random = np.random.default_rng(seed)
    times = np.sort(random.integers(0, SPAN_S * SECOND_US, rows))
    return pa.table(
        [
            pa.array(random.integers(0, keys, rows)),
            pa.array(np.arange(rows)),
            pa.array(times).cast(SCHEMA.field("ts").type),
        ],
        schema=SCHEMA,
    )


def plan_of(sql: str, columns: dict[str, list[str]]) -> Plan:
    query = typed(parse_query(sql, columns), dict.fromkeys(columns, SCHEMA))
    if query.outer is None:
        return local(query, columns, "here")
    expanded = branches_of(query)
    branches = tuple(local(branch.query, columns, "here") for branch in expanded.branches)
    return OuterJoin(branches, matching_of(query, expanded))


def run(sql: str, tables: dict[str, pa.Table]) -> tuple[float, int]:
    """CPU seconds and answers of one run."""
    columns = dict.fromkeys(tables, SCHEMA.names)
    sites = SimulatedSites(plan_of(sql, columns), dict.fromkeys(tables, "ts"), buckets=1)
    for number in range(BATCHES):
        for name, table in tables.items():
            low, high = (table.num_rows * i // BATCHES for i in (number, number + 1))
            sites.feed(number * 100 * SECOND_US, {name: table.slice(low, high - low)})
    began = time.process_time()
    sites.run()
    return time.process_time() - began, sum(table.num_rows for table in sites.answers())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=400_000, help="of each stream")
    parser.add_argument("--keys", type=int, default=70_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    tables = {name: stream(asked.seed + i, asked.rows, asked.keys) for i, name in enumerate("lr")}
    run(SQL.format(""), {name: table.slice(0, 20_000) for name, table in tables.items()})  # compiles kernels
    run(SQL.format("LEFT"), {name: table.slice(0, 20_000) for name, table in tables.items()})
    figures: dict[str, list[tuple[float, int]]] = {"": [], "LEFT": []}
    for _ in range(3):
        for kind, found in figures.items():
            found.append(run(SQL.format(kind), tables))
    inner, left = (median(seconds for seconds, _ in figures[kind]) for kind in ("", "LEFT"))
    rows = {kind: found[0][1] for kind, found in figures.items()}
    print(f"inner {inner:.2f} s CPU, {rows['']:,} answers; LEFT {left:.2f} s CPU, {rows['LEFT']:,} answers")
    print(f"LEFT costs {left / inner:.2f} times the inner join")


if __name__ == "__main__":
    main()
