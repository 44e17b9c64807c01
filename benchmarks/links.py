"""What travels: bytes of every join method while tuple size, matching keys, rates and windows vary.

    python benchmarks/links.py                        one-way joins in the simulator, and the whole selective query
    python benchmarks/links.py --table spark          the same plans on Spark and in the simulator, side by side
    python benchmarks/links.py --table throughput     one site without links, against sites with links
    python benchmarks/links.py --table delay          from the last row of an answer to the answer, in trigger intervals
"""

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from watersmeet.plan import Hop, Method, Plan
from watersmeet.planners.sited import central, explicit
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.network import LinkModel
from watersmeet.sim.rows import finish, typed
from watersmeet.sim.sites import SimulatedSites
from watersmeet.testing import bag

SECOND_US = 1_000_000
SCHEMA = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("payload", pa.string()), ("ts", pa.timestamp("us", "UTC"))])
COLUMNS = {name: tuple(SCHEMA.names) for name in ("a", "b")}
HOMES = {"a": "n1", "b": "n2"}
LINK = LinkModel(latency_us=25_000, bandwidth_bps=100e6)

METHODS: dict[str, tuple[Method, bool]] = {method.value: (method, False) for method in Method}
METHODS |= {f"{method.value} bloom": (method, True) for method in Method if method.value.startswith("SM")}


@dataclass(frozen=True)
class Setting:
    """One point of the sweep: stream a at n1, stream b at n2, joined on k."""

    tuple_bytes: int = 1000
    match: float = 0.05  # share of each stream's keys that the other one has too
    rate_a: int = 100  # rows a second
    rate_b: int = 100
    window_s: int = 10
    seconds: int = 30
    site: str = "n1"  # where answers are wanted
    repeat: float = 1.0  # rows of b with one key in one window
    seed: int = 1

    @property
    def keys(self) -> int:
        return max(20, int(max(self.rate_a, self.rate_b) * self.window_s / self.repeat))

    @property
    def sql(self) -> str:
        window = f"[RANGE {self.window_s} SECONDS]"
        return (
            f"SELECT a.id AS a, b.id AS b, a.payload AS pa, b.payload AS pb FROM a {window}, b {window} WHERE a.k = b.k"
        )

    def table(self, stream: str) -> pa.Table:
        """All rows of a stream: keys of a from 0 on, keys of b shifted so that a share of them is common."""
        rate = self.rate_a if stream == "a" else self.rate_b
        rows = rate * self.seconds
        random = np.random.default_rng([self.seed, ord(stream)])
        first = 0 if stream == "a" else round(self.keys * (1 - self.match))
        letters = random.integers(33, 127, (rows, self.tuple_bytes), np.uint8)
        payload = pa.StringArray.from_buffers(
            rows,
            pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * self.tuple_bytes),
            pa.py_buffer(letters.tobytes()),
        )
        keys = random.integers(first, first + self.keys, rows)
        ts = np.arange(rows) * (SECOND_US // rate) + (0 if stream == "a" else 7)
        return pa.table({"k": keys, "id": np.arange(rows), "payload": payload, "ts": ts}).cast(SCHEMA)

    def batches(self, stream: str) -> list[pa.Table]:
        """One batch for each second of event time."""
        table = self.table(stream)
        size = table.num_rows // self.seconds
        return [table.slice(number * size, size) for number in range(self.seconds)]


def plan_of(setting: Setting, head_a: str, head_b: str) -> Plan:
    """A plan by the methods of its two heads."""
    query = typed(parse_query(setting.sql, COLUMNS), dict.fromkeys(COLUMNS, SCHEMA))
    if head_a == "central":
        return central(query, COLUMNS, HOMES, setting.site)
    hops = {}
    for head, other, name in (("a", "b", head_a), ("b", "a", head_b)):
        method, bloom = METHODS[name]
        hops[head] = [Hop(other, method, bloom=bloom)]
    return explicit(query, COLUMNS, HOMES, setting.site, hops)


def simulate(setting: Setting, plan: Plan) -> SimulatedSites:
    """Run a plan in the simulator, a batch of each stream a second."""
    sim = SimulatedSites(plan, dict.fromkeys(COLUMNS, "ts"), model_of=lambda one, other: LINK, turn_us=1_000)
    for stream in COLUMNS:
        for number, batch in enumerate(setting.batches(stream)):
            sim.feed((number + 1) * SECOND_US, {stream: batch})
    sim.run()
    return sim


def answers_of(sim: SimulatedSites, plan: Plan) -> Counter[Any]:
    """The bag of (a, b) pairs that were answered."""
    return bag(finish(plan, sim.answers, dict.fromkeys(COLUMNS, SCHEMA)).select(["a", "b"]))


def expected(setting: Setting) -> Counter[Any]:
    """The same by the oracle."""
    tables = {name: setting.table(name) for name in COLUMNS}
    found = answer(parse_query(setting.sql, COLUMNS), tables, dict.fromkeys(COLUMNS, "ts"))
    return bag(found.select(["a", "b"]))


def one_way_bytes(sim: SimulatedSites) -> int:
    """What the sequence of head a shipped; head b goes by SM-D2, which shares no flow with it."""
    others = ("asks(b,a)", "found(b,a)", "b|a", "answers(b)", "pace(b,a)", "watermarks", "bloom asks(b,a)")
    return sum(traffic.bytes for (_, _, flow), traffic in sim.flows.items() if flow not in others)


SWEEPS: dict[str, list[tuple[str, Setting]]] = {
    "tuple size": [(f"{size} B", Setting(tuple_bytes=size)) for size in (10, 100, 1000, 4000)],
    "matching keys": [(f"{match:.0%}", Setting(match=match)) for match in (0.01, 0.05, 0.2, 0.5, 1.0)],
    "rate of a : b": [
        (f"{a} : {b}", Setting(rate_a=a, rate_b=b)) for a, b in ((10, 400), (100, 400), (400, 100), (400, 10))
    ],
    "window": [(f"{window} s", Setting(window_s=window)) for window in (2, 10, 25)],
    "rows of a key in a window": [(f"{repeat:g}", Setting(repeat=repeat)) for repeat in (0.5, 4.0, 20.0)],
    "answers wanted at n2": [
        ("defaults", Setting(site="n2")),
        ("all keys match", Setting(site="n2", match=1.0)),
        ("a : b = 400 : 10", Setting(site="n2", rate_a=400, rate_b=10)),
        ("a : b = 10 : 400", Setting(site="n2", rate_a=10, rate_b=400)),
    ],
}


def one_way_table() -> None:
    """Kilobytes shipped by the one-way join from a to b, by method; the least in bold."""
    names = list(METHODS)
    print("| | " + " | ".join(names) + " |")
    print("| --- |" + " ---: |" * len(names))
    winners: Counter[str] = Counter()
    for sweep, settings in SWEEPS.items():
        for label, setting in settings:
            law = expected(setting)
            cells = {}
            for name in names:
                plan = plan_of(setting, name, "SM-D2")
                sim = simulate(setting, plan)
                assert answers_of(sim, plan) == law, f"{name} at {label} does not answer as the law says"
                cells[name] = one_way_bytes(sim)
            best = min(cells, key=lambda name: cells[name])
            winners[best] += 1
            shown = [f"**{cells[n] / 1e3:,.0f}**" if n == best else f"{cells[n] / 1e3:,.0f}" for n in names]
            print(f"| {sweep} {label} | " + " | ".join(shown) + " |", flush=True)
    print("\nleast bytes:", ", ".join(f"{name} {count}x" for name, count in winners.most_common()))


def selective_table() -> None:
    """Bytes of the whole query on the selective workload: central, every method, and the best mixture."""
    setting = Setting()
    law = expected(setting)
    rows = []
    pairs = [("central", "central"), *((name, name) for name in METHODS), ("SM-S1 bloom", "SM-D1 bloom")]
    for head_a, head_b in pairs:
        plan = plan_of(setting, head_a, head_b)
        sim = simulate(setting, plan)
        assert answers_of(sim, plan) == law
        rows.append((head_a if head_a == head_b else f"a by {head_a}, b by {head_b}", sim.bytes_shipped))
    base = rows[0][1]
    print("\n| plan of the selective query (1 KB tuples, 5 % of keys match) | bytes | of central |")
    print("| --- | ---: | ---: |")
    for name, size in rows:
        print(f"| {name} | {size:,} | {size / base:.3f} |")


def spark_table() -> None:
    """The same plans on Spark and in the simulator: bytes and answers."""
    import watersmeet as wm

    spark = wm.start_session()
    print("| plan | bytes on Spark | in the simulator | difference | answers equal to the law |")
    print("| --- | ---: | ---: | ---: | --- |")
    setting = Setting(seconds=20)
    law = expected(setting)
    for name in ("central", *METHODS):
        plan = plan_of(setting, name, name)
        simulated = simulate(setting, plan).bytes_shipped
        with tempfile.TemporaryDirectory() as directory:
            topology = spark_topology(Path(directory), setting, name)
            handle = wm.start(topology, "q", spark=spark, once=True)
            handle.awaitTermination()
            shipped = handle.traffic.bytes  # type: ignore[union-attr]
            got = bag(pq.read_table(Path(directory) / "out").select(["a", "b"]))
        difference = (shipped - simulated) / simulated
        print(f"| {name} | {shipped:,} | {simulated:,} | {difference:+.1%} | {got == law} |", flush=True)


def spark_topology(directory: Path, setting: Setting, method: str) -> Any:
    """A topology of two sites whose streams are files, one batch a file."""
    import watersmeet as wm

    streams = []
    for name, site in HOMES.items():
        (directory / name).mkdir()
        for number, batch in enumerate(setting.batches(name)):
            path = directory / name / f"{number:05d}.parquet"
            pq.write_table(batch, path)
            os.utime(path, (1_700_000_000 + 10 * number,) * 2)
        source = wm.Source("parquet", str(directory / name), {"maxFilesPerTrigger": "1"})
        ddl = "k long, id long, payload string, ts timestamp"
        streams.append(wm.Stream(name, event_time="ts", schema=ddl, source=source, site=site))
    plan = None
    if method != "central":
        kind, bloom = METHODS[method]
        plan = tuple(
            wm.HeadSteps(head, (wm.PlanStep(other, kind.value, bloom=bloom),)) for head, other in (("a", "b"), ("b", "a"))
        )
    query = wm.Query("q", setting.sql, sink=wm.Sink("parquet", str(directory / "out")), site=setting.site, plan=plan)
    return wm.Topology(tuple(streams), (query,), (wm.Site("n1"), wm.Site("n2")), str(directory))


def main() -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=("methods", "spark", "throughput", "delay"), default="methods")
    options = parser.parse_args()
    if options.table == "methods":
        one_way_table()
        selective_table()
    elif options.table == "spark":
        spark_table()
    elif options.table == "throughput":
        throughput_table()
    else:
        delay_table()


if __name__ == "__main__":
    main()
