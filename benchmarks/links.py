"""What travels: bytes of every join method while tuple size, matching keys, rates and windows vary.

python benchmarks/links.py                        one-way joins in the simulator, and the whole selective query
python benchmarks/links.py --table spark          the same plans on Spark and in the simulator, side by side
python benchmarks/links.py --table throughput     one site without links, against sites with links
python benchmarks/links.py --table delay          from the last row of an answer to the answer, in trigger intervals
"""

import argparse
import os
import shutil
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

from watersmeet.plan.nodes import Hop, Method, Plan
from watersmeet.planners.sited import central, explicit
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites
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


def simulate(setting: Setting, plan: Plan, interval_us: int = 1_000) -> SimulatedSites:
    """Run a plan in the simulator, a batch of each stream a second; sites answer parcels after `interval_us`."""
    sim = SimulatedSites(plan, dict.fromkeys(COLUMNS, "ts"), model_of=lambda one, other: LINK, interval_us=interval_us)
    for stream in COLUMNS:
        for number, batch in enumerate(setting.batches(stream)):
            sim.feed((number + 1) * SECOND_US, {stream: batch})
    sim.run()
    return sim


def answers_of(sim: SimulatedSites) -> Counter[Any]:
    """The bag of (a, b) pairs that were answered."""
    return sum((bag(table.select(["a", "b"])) for table in sim.answers()), Counter())


def expected(setting: Setting) -> Counter[Any]:
    """The same by the oracle."""
    tables = {name: setting.table(name) for name in COLUMNS}
    found = answer(parse_query(setting.sql, COLUMNS), tables, dict.fromkeys(COLUMNS, "ts"))
    return bag(found.select(["a", "b"]))


def one_way_bytes(sim: SimulatedSites) -> int:
    """What the sequence of head a shipped; head b goes by SM-D2, which shares no flow with it."""
    (query,) = sim.queries
    flows = ("asks(b,a)", "found(b,a)", "b|a", "answers(b)", "pace(b,a)", "bloom asks(b,a)")
    others = {"watermarks", *(f"{query}:{flow}" for flow in flows)}
    return sum(traffic.bytes for (_, _, flow), traffic in sim.flows.items() if flow not in others)


SWEEPS: dict[str, list[tuple[str, Setting]]] = {
    "tuple size": [(f"{size} B", Setting(tuple_bytes=size)) for size in (10, 100, 1000, 4000)],
    "matching keys": [(f"{match:.0%}", Setting(match=match)) for match in (0.01, 0.05, 0.2, 0.5, 1.0)],
    "rate of a : b": [
        (f"{a} : {b}", Setting(rate_a=a, rate_b=b)) for a, b in ((10, 400), (100, 400), (400, 100), (400, 10))
    ],
    "window": [(f"{window} s", Setting(window_s=window)) for window in (2, 10, 25)],
    "rows of a key in a window": [(f"{repeat:g}", Setting(repeat=repeat)) for repeat in (0.5, 4.0, 20.0)],
    "small tuples, all keys match, 4 rows a key,": [
        ("answers at n1", Setting(tuple_bytes=10, match=1.0, repeat=4.0)),
        ("answers at n2", Setting(tuple_bytes=10, match=1.0, repeat=4.0, site="n2")),
    ],
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
            reference = expected(setting)
            cells = {}
            for name in names:
                plan = plan_of(setting, name, "SM-D2")
                sim = simulate(setting, plan)
                assert answers_of(sim) == reference, f"{name} at {label} does not answer as the oracle says"
                cells[name] = one_way_bytes(sim)
            best = min(cells, key=lambda name: cells[name])
            winners[best] += 1
            shown = [f"**{cells[n] / 1e3:,.0f}**" if n == best else f"{cells[n] / 1e3:,.0f}" for n in names]
            print(f"| {sweep} {label} | " + " | ".join(shown) + " |", flush=True)
    print("\nleast bytes:", ", ".join(f"{name} {count}x" for name, count in winners.most_common()))


def selective_table() -> None:
    """Bytes of the whole query on the selective workload: central, every method, and the best mixture."""
    setting = Setting()
    reference = expected(setting)
    rows = []
    pairs = [("central", "central"), *((name, name) for name in METHODS), ("SM-S1 bloom", "SM-D1 bloom")]
    for head_a, head_b in pairs:
        plan = plan_of(setting, head_a, head_b)
        sim = simulate(setting, plan)
        assert answers_of(sim) == reference
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
    print("| plan | bytes on Spark | in the simulator | difference | answers equal to the oracle's |")
    print("| --- | ---: | ---: | ---: | --- |")
    setting = Setting(seconds=20)
    reference = expected(setting)
    for name in ("central", *METHODS):
        plan = plan_of(setting, name, name)
        # On Spark a micro-batch takes new rows and the parcels that came since the last one: so it does here.
        simulated = simulate(setting, plan, interval_us=SECOND_US).bytes_shipped
        with tempfile.TemporaryDirectory() as directory:
            topology = spark_topology(Path(directory), setting, name)
            handle = wm.start(topology, "q", spark=spark, once=True)
            handle.awaitTermination()
            shipped = handle.traffic.bytes
            got = bag(pq.read_table(Path(directory) / "out").select(["a", "b"]))
        difference = (shipped - simulated) / simulated
        print(f"| {name} | {shipped:,} | {simulated:,} | {difference:+.1%} | {got == reference} |", flush=True)


def spark_topology(directory: Path, setting: Setting, method: str, files_a_trigger: int = 1) -> Any:
    """A topology of two sites whose streams are files, one batch a file."""
    import watersmeet as wm

    streams = []
    for name, site in HOMES.items():
        (directory / name).mkdir()
        for number, batch in enumerate(setting.batches(name)):
            path = directory / name / f"{number:05d}.parquet"
            pq.write_table(batch, path)
            os.utime(path, (1_700_000_000 + 10 * number,) * 2)
        source = wm.Source("parquet", str(directory / name), {"maxFilesPerTrigger": str(files_a_trigger)})
        ddl = "k long, id long, payload string, ts timestamp"
        streams.append(wm.Stream(name, event_time="ts", schema=ddl, source=source, site=site))
    plan = None
    if method != "central":
        kind, bloom = METHODS[method]
        plan = tuple(
            wm.HeadSteps(head, (wm.PlanStep(other, kind.value, bloom=bloom),))
            for head, other in (("a", "b"), ("b", "a"))
        )
    query = wm.Query("q", setting.sql, sink=wm.Sink("parquet", str(directory / "out")), site=setting.site, plan=plan)
    return wm.Topology(tuple(streams), (query,), (wm.Site("n1"), wm.Site("n2")), str(directory))


def throughput_table(scale: float) -> None:
    """Rows a second of one site that has all streams, of a site that ships its own, and of one fed by links.

    Everything runs in one warm Spark; the best of two runs counts, answers are compared.
    """
    from workload import SPARK_SCHEMA, Workload, generate

    import watersmeet as wm

    workload = Workload(rows=int(3_000_000 * scale), batches=max(4, int(60 * scale)))
    paths = generate(workload, Path(__file__).parent / ".data")
    spark = wm.start_session("local[2]")

    def topology(directory: Path, sites: tuple[str, ...]) -> Any:
        streams = tuple(
            wm.Stream(
                name,
                event_time="ts",
                schema=SPARK_SCHEMA,
                source=wm.Source("parquet", str(path), {"maxFilesPerTrigger": "1"}),
                site=site,
            )
            for name, path, site in zip(workload.names, paths, sites, strict=True)
        )
        query = wm.Query("q", workload.sql(), sink=wm.Sink("parquet", str(directory / "out")), site=sites[0])
        return wm.Topology(streams, (query,), tuple(wm.Site(site) for site in sorted(set(sites))), str(directory))

    def timed(run: Any) -> float:
        begin = time.perf_counter()
        run().awaitTermination()
        return time.perf_counter() - begin

    best: dict[str, float] = {}
    rows_out = set()
    for _ in range(2):
        with tempfile.TemporaryDirectory() as name:
            one = topology(Path(name), ("here",) * 3)
            seconds = timed(lambda one=one: wm.start(one, "q", spark=spark, once=True))
            best["one site, no links"] = max(best.get("one site, no links", 0), workload.rows_in / seconds)
            rows_out.add(pq.read_table(Path(name) / "out").num_rows)
        with tempfile.TemporaryDirectory() as name:
            three = topology(Path(name), ("sa", "sb", "sc"))
            for site in ("sb", "sc"):
                seconds = timed(lambda site=site, three=three: wm.start_site(three, site, "q", spark=spark, once=True))
                label = "a site that ships its stream whole"
                best[label] = max(best.get(label, 0), workload.rows / seconds)
            seconds = timed(lambda three=three: wm.start_site(three, "sa", "q", spark=spark, once=True))
            label = "the query's site, two of its three streams over links"
            best[label] = max(best.get(label, 0), workload.rows_in / seconds)
            rows_out.add(pq.read_table(Path(name) / "out").num_rows)
    assert len(rows_out) == 1, f"answers differ: {rows_out}"
    base = best["one site, no links"]
    print("| | rows/s | of one site |")
    print("| --- | ---: | ---: |")
    for label, rate in best.items():
        print(f"| {label} | {rate:,.0f} | {rate / base:.2f} |")


def delay_table(trigger_s: float = 1.0, seconds: int = 15) -> None:
    """From the arrival of an answer's last row to the answer's file, with rows that arrive as time goes by."""
    import watersmeet as wm

    spark = wm.start_session("local[2]")
    print(f"| plan, trigger {trigger_s:g} s | answers | median | 95 % | longest (trigger intervals) |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for method in ("central", "SP-S", "SP-D", "SM-S1", "SM-S2", "SM-D1", "SM-D2"):
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            topology = spark_topology(directory, replace(Setting(), seconds=1, rate_a=1, rate_b=1), method, 1000)
            for stream in COLUMNS:
                shutil.rmtree(directory / stream)
                (directory / stream).mkdir()
            handle = wm.start(topology, "q", spark=spark, trigger=f"{trigger_s} seconds")
            stop = threading.Event()
            feeder = threading.Thread(target=_feed, args=(directory, stop), daemon=True)
            time.sleep(8)  # the first batches of a query are slow
            feeder.start()
            time.sleep(seconds)
            stop.set()
            feeder.join()
            time.sleep(6 * trigger_s)
            handle.stop()
            delays = np.array(_delays(directory)) / trigger_s
        shown = (np.median(delays), np.percentile(delays, 95), delays.max())
        print(f"| {method} | {len(delays)} | " + " | ".join(f"{value:.2f}" for value in shown) + " |", flush=True)


def _feed(directory: Path, stop: threading.Event) -> None:
    """Write a few rows of each stream every fifth of a second, stamped with the time they are written."""
    random, number = np.random.default_rng(5), 0
    while not stop.is_set():
        for stream in COLUMNS:
            now_us = int(time.time() * SECOND_US)
            table = pa.table(
                {
                    "k": random.integers(0, 50, 4),
                    "id": np.arange(4) + number * 4,
                    "payload": ["x"] * 4,
                    "ts": np.full(4, now_us),
                }
            ).cast(SCHEMA)
            path = directory / stream / f".{number:06d}.parquet"
            pq.write_table(table, path)
            os.replace(path, path.with_name(path.name[1:]))
        number += 1
        time.sleep(0.2)


def _delays(directory: Path) -> list[float]:
    """Seconds from each answer's latest row to the time its file was published."""
    rows = {name: pq.read_table(directory / name, columns=["id", "ts"]) for name in COLUMNS}
    at = {
        name: dict(zip(t["id"].to_pylist(), t["ts"].cast(pa.int64()).to_pylist(), strict=True))
        for name, t in rows.items()
    }
    found = []
    for path in sorted((directory / "out").glob("part-*")):
        published = path.stat().st_ctime
        answers = pq.read_table(path)
        for a, b in zip(answers["a"].to_pylist(), answers["b"].to_pylist(), strict=True):
            found.append(published - max(at["a"][a], at["b"][b]) / SECOND_US)
    return found


def main() -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=("methods", "spark", "throughput", "delay"), default="methods")
    parser.add_argument("--scale", type=float, default=0.2, help="of the w2 workload, for throughput (default: 0.2)")
    options = parser.parse_args()
    if options.table == "methods":
        one_way_table()
        selective_table()
    elif options.table == "spark":
        spark_table()
    elif options.table == "throughput":
        throughput_table(options.scale)
    else:
        delay_table()


if __name__ == "__main__":
    main()
