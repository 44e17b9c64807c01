"""Many queries in one job against a job for each: 1, 10 and 100 three-way joins over five streams.

python benchmarks/queries.py                                     # both kinds of queries on Spark, and bytes on links
python benchmarks/queries.py --table spark --scale 0.02 --counts 1,3     # a quick look
python benchmarks/queries.py --table links                       # bytes on links only, in the simulator

Kinds: `same graph` has one join graph, one window and one select list, and filters that differ; in `mixed` streams,
keys, windows, select lists and filters are all drawn. The first N queries of a kind are the same whatever N is.
"""

import argparse
import json
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import ours
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from measure import measure
from oracle import parquet_files
from report import console, machine, show
from workload import DATA_DIR, DRIVER_MEMORY, ID_STRIDE, MASTER, SECOND_US, START_US

from watersmeet.plan.nodes import Hop, Method, Plan
from watersmeet.plan.shape import key_classes
from watersmeet.planners.sited import central, connected, explicit
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.testing import bag

STREAMS = "abcde"
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("m", pa.int64()),
        ("id", pa.int64()),
        ("v", pa.float64()),
        ("ts", pa.timestamp("us", tz="UTC")),
    ]
)
DDL = "k long, m long, id long, v double, ts timestamp"
COLUMNS = {name: tuple(SCHEMA.names) for name in STREAMS}
EVENT_TIMES = dict.fromkeys(STREAMS, "ts")
KINDS = ("same graph", "mixed")
HOMES = {"a": "n1", "b": "n1", "c": "n2", "d": "n2", "e": "n3"}
WINDOWS_S = (5, 10, 15)
PLANS = ("central", "SM-D1")  # ship whole streams, or keys first


@dataclass(frozen=True, slots=True)
class Streams:
    """Five equally fast streams with two keys; rows find about one match in a window of 10 s, whatever the key."""

    rows: int = 200_000
    rate: int = 5_000
    batches: int = 20
    seed: int = 7

    @property
    def keys(self) -> int:
        return max(1, self.rate * 10 * 5 // 3)

    def table(self, stream: int) -> pa.Table:
        """All rows of a stream, in order of event time."""
        rng = np.random.default_rng([self.seed, stream])
        i = np.arange(self.rows, dtype=np.int64)
        columns = [
            rng.integers(self.keys, size=self.rows),
            rng.integers(self.keys, size=self.rows),
            i + stream * ID_STRIDE,
            rng.random(self.rows),
            pa.array(START_US + i * (SECOND_US // self.rate)).cast(SCHEMA.field("ts").type),
        ]
        return pa.table(columns, schema=SCHEMA)

    def parts(self, stream: int) -> list[pa.Table]:
        """The same in micro-batches."""
        table = self.table(stream)
        edges = [number * self.rows // self.batches for number in range(self.batches + 1)]
        return [table.slice(begin, end - begin) for begin, end in pairwise(edges)]

    def write(self, directory: Path) -> None:
        """One directory of Parquet files a stream, a file a micro-batch."""
        for stream, name in enumerate(STREAMS):
            (directory / name).mkdir(parents=True)
            for batch, part in enumerate(self.parts(stream)):
                file = directory / name / f"{batch:05}.parquet"
                pq.write_table(part, file)
                os.utime(file, (START_US // SECOND_US + batch,) * 2)  # Spark reads in order of modification time


@dataclass(frozen=True, slots=True)
class Drawn:
    """A query and the site where its answers are wanted, for the variant with several sites."""

    name: str
    sql: str
    site: str


def draw(kind: str, count: int, seed: int) -> list[Drawn]:
    """The first `count` queries of a kind; always the same for a seed."""
    return [_draw_one(kind, number, Random(f"{kind} {seed} {number}")) for number in range(count)]


def _draw_one(kind: str, number: int, random: Random) -> Drawn:
    aliases = list("abc") if kind == "same graph" else random.sample(STREAMS, 3)
    keys = ["k", "k"] if kind == "same graph" else [random.choice("km"), random.choice("km")]
    windows = [10] * 3 if kind == "same graph" else [random.choice(WINDOWS_S) for _ in aliases]
    items = [f"{alias}.id AS {alias}_id" for alias in aliases]
    if kind == "mixed":
        more = [f"{alias}.{column} AS {alias}_{column}" for alias in aliases for column in "kmv"]
        items = random.sample(items, random.randint(1, 3)) + random.sample(more, random.randint(0, 3))
    where = [f"{left}.{key} = {right}.{key}" for left, right, key in zip(aliases, aliases[1:], keys, strict=False)]
    filtered = random.sample(aliases, random.randint(1, 3) if kind == "same graph" else random.randint(0, 2))
    for alias in sorted(filtered):
        low = random.randint(0, 50) / 100
        where.append(f"{alias}.v >= {low} AND {alias}.v < {low + random.randint(20, 50) / 100:.2f}")
    sources = ", ".join(f"{alias} [RANGE {s} SECONDS]" for alias, s in zip(aliases, windows, strict=True))
    site = random.choice(sorted(set(HOMES.values())))
    return Drawn(f"q{number:03}", f"SELECT {', '.join(items)} FROM {sources} WHERE {' AND '.join(where)}", site)


def expected(query: Drawn, tables: Mapping[str, pa.Table]) -> Counter[Any]:
    """Its answers by DuckDB, as a bag."""
    return bag(answer(parse_query(query.sql, COLUMNS), tables, EVENT_TIMES))


# -- on Spark, as users run it


@dataclass(frozen=True, slots=True)
class Taken:
    """What a run took, start-up included; state is the most after any micro-batch."""

    wall_seconds: float
    cpu_seconds: float
    state_bytes: int
    peak_bytes: int

    @classmethod
    def total(cls, runs: Sequence["Taken"], times: float = 1.0) -> "Taken":
        """Of several runs together, each so many times; memory as if they ran at the same time."""
        return cls(
            sum(run.wall_seconds for run in runs) * times,
            sum(run.cpu_seconds for run in runs) * times,
            round(sum(run.state_bytes for run in runs) * times),
            round(sum(run.peak_bytes for run in runs) * times),
        )


class SparkRuns:
    """Runs queries of a topology with the command line, in a scratch directory of its own."""

    def __init__(self, streams: Streams, scratch: Path, timeout_seconds: float) -> None:
        self.streams = streams
        self.scratch = scratch
        self.timeout_seconds = timeout_seconds
        self._runs = 0
        streams.write(scratch / "data")
        replace(streams, rows=100, batches=1).write(scratch / "start")
        self._tables: dict[str, pa.Table] = {}

    def run(self, queries: Sequence[Drawn], check: Sequence[Drawn] = (), data: str = "data") -> Taken:
        """All of the queries in one job; the answers of some of them are compared with DuckDB's."""
        self._runs += 1
        directory = self.scratch / f"run-{self._runs}"
        directory.mkdir()
        file = directory / "topology.yaml"
        file.write_text(yaml.safe_dump(self._topology(queries, directory, data), sort_keys=False, width=200))
        command = [sys.executable, "-m", "watersmeet", "run", str(file), "--once", "--quiet", "--master", MASTER]
        command += ["--checkpoint", str(directory / "checkpoint"), "--events", str(directory / ours.EVENTS)]
        command += ["--conf", f"spark.driver.memory={DRIVER_MEMORY}"]
        taken = measure(command, env=ours.environment(), timeout_seconds=self.timeout_seconds)
        if taken.returncode or taken.timed_out:
            raise SystemExit(f"{shlex.join(command)} failed:\n{taken.last_lines()}")
        events = [json.loads(line) for line in (directory / ours.EVENTS).read_text().splitlines()]
        state = max((e["state_bytes"] for e in events if e["event"] == "micro_batch_completed"), default=0)
        for query in check:
            self._check(query, directory / query.name)
        shutil.rmtree(directory)
        return Taken(taken.wall_seconds, taken.cpu_seconds, state, taken.peak_bytes)

    def _topology(self, queries: Sequence[Drawn], directory: Path, data: str) -> dict[str, Any]:
        streams = {
            name: {
                "site": "here",
                "schema": DDL,
                "event_time": "ts",
                "watermark": "0 seconds",
                "source": {
                    "format": "parquet",
                    "path": str(self.scratch / data / name),
                    "options": {"maxFilesPerTrigger": 1},
                },
            }
            for name in STREAMS
        }
        asked = {
            query.name: {"sql": query.sql, "sink": {"format": "parquet", "path": str(directory / query.name)}}
            for query in queries
        }
        return {"sites": ["here"], "streams": streams, "queries": asked}

    def _check(self, query: Drawn, output: Path) -> None:
        if not self._tables:
            self._tables = {name: self.streams.table(stream) for stream, name in enumerate(STREAMS)}
        wanted = expected(query, self._tables)
        files = parquet_files(output)
        found = bag(pa.concat_tables([pq.read_table(file) for file in files])) if files else Counter()
        if found != wanted:
            missing, extra = (wanted - found).total(), (found - wanted).total()
            raise SystemExit(f"{query.name}: {missing:,} answers are missing and {extra:,} too many\n{query.sql}")
        if not wanted:
            console.print(f"{query.name} has no answers: nothing is checked; give more rows", style="yellow")


def spread(queries: Sequence[Drawn], count: int) -> list[Drawn]:
    """Some of the queries, evenly spread.

    >>> [query.name for query in spread(draw("mixed", 10, 1), 3)]
    ['q000', 'q003', 'q006']
    """
    count = min(count, len(queries))
    return [queries[number * len(queries) // count] for number in range(count)]


def spark_table(runs: SparkRuns, counts: Sequence[int], seed: int, sample: int, all_up_to: int) -> dict[str, Any]:
    """Together against separately: CPU, wall time and state."""
    header = ["", "queries", "CPU s", "separately", "of it", "beyond start-up", "of it"]
    header += ["wall s", "separately", "state MB", "separately", "of it", "memory MB", "measured separately"]
    lines, raw = [], {}
    start = runs.run(draw("same graph", 1, seed), data="start")
    console.log(f"start-up: {start.wall_seconds:.1f} s, {start.cpu_seconds:.1f} s of CPU")
    for kind in KINDS:
        alone: dict[str, Taken] = {}
        for count in counts:
            queries = draw(kind, count, seed)
            measured = queries if count <= all_up_to else spread(queries, sample)
            for query in measured:
                if query.name not in alone:
                    console.log(f"{kind}: {query.name} alone ...")
                    alone[query.name] = runs.run([query], check=[query])
            console.log(f"{kind}: {count} queries in one job ...")
            # One query together is one query alone.
            one = alone[queries[0].name] if count == 1 else runs.run(queries, check=spread(queries, sample))
            times = count / len(measured)
            many = Taken.total([alone[query.name] for query in measured], times)
            beyond = one.cpu_seconds - start.cpu_seconds, many.cpu_seconds - count * start.cpu_seconds
            lines.append(
                [
                    kind,
                    str(count),
                    f"{one.cpu_seconds:,.1f}",
                    f"{many.cpu_seconds:,.1f}",
                    _share(one.cpu_seconds, many.cpu_seconds),
                    f"{beyond[0]:,.1f} of {beyond[1]:,.1f}",
                    _share(*beyond),
                    f"{one.wall_seconds:,.1f}",
                    f"{many.wall_seconds:,.1f}",
                    f"{one.state_bytes / 1e6:,.1f}",
                    f"{many.state_bytes / 1e6:,.1f}",
                    _share(one.state_bytes, many.state_bytes),
                    f"{one.peak_bytes / 2**20:,.0f}",
                    "all" if times == 1 else f"{len(measured)}, times {times:.3g}",
                ]
            )
            raw[f"{kind}, {count}"] = {"together": asdict(one), "separately": asdict(many), "measured": len(measured)}
    title = (
        f"Queries in one job against a job each: {len(STREAMS)} streams x {runs.streams.rows:,} rows, "
        f"{runs.streams.batches} micro-batches, seed {seed}"
    )
    show(title, header, lines, machine())
    print(
        f"A job's start-up took {start.cpu_seconds:.1f} s of CPU and {start.wall_seconds:.1f} s (one query over 100 "
        f"rows a stream). Answers of {min(sample, max(counts))} queries of each run are DuckDB's."
    )
    return {"start": asdict(start), **raw}


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.2f}" if whole > 0 else ""


# -- bytes on links, in the simulator


def plan_of(query: Drawn, method: str) -> Plan:
    """The plan of a query over three sites: whole streams to its site, or every one-way join by one method."""
    parsed = typed(parse_query(query.sql, COLUMNS), dict.fromkeys(COLUMNS, SCHEMA))
    if method == "central":
        return central(parsed, COLUMNS, HOMES, query.site)
    classes, _, _ = key_classes(parsed)
    hops = {
        head: [Hop(alias, Method(method)) for alias in connected(parsed.aliases, head, classes)]
        for head in parsed.aliases
    }
    return explicit(parsed, COLUMNS, HOMES, query.site, hops)


def simulate(plans: Mapping[str, Plan], streams: Streams) -> SimulatedSites:
    """Run some plans in one deployment of three sites, with rows that come as fast as their event time says."""
    interval_us = streams.rows * SECOND_US // streams.rate // streams.batches
    sim = SimulatedSites(plans, EVENT_TIMES, interval_us=interval_us)
    for name in sorted(sim.homes):  # the streams that any of them reads
        for number, part in enumerate(streams.parts(STREAMS.index(name))):
            sim.feed((number + 1) * interval_us, {name: part})
    sim.run(max_events=50_000_000)
    return sim


def links_table(streams: Streams, counts: Sequence[int], sample: int) -> dict[str, Any]:
    """Bytes on the links of one deployment against the sum over a deployment for each query."""
    tables = {name: streams.table(stream) for stream, name in enumerate(STREAMS)}
    header, lines, raw = ["", "case", "queries", "kB shipped", "separately", "of it"], [], {}
    for method in PLANS:
        for kind in KINDS:
            alone: dict[str, int] = {}
            for count in counts:
                queries = draw(kind, count, streams.seed)
                plans = {query.name: plan_of(query, method) for query in queries}
                for name in plans:
                    if name not in alone:
                        alone[name] = simulate({name: plans[name]}, streams).bytes_shipped
                sim = simulate(plans, streams)
                for query in spread(queries, sample):
                    found = sum((bag(table) for table in sim.answers(query.name)), Counter())
                    assert found == expected(query, tables), f"{query.name} is not answered as DuckDB does: {query.sql}"
                shipped, separately = sim.bytes_shipped, sum(alone[name] for name in plans)
                figures = [f"{shipped / 1e3:,.0f}", f"{separately / 1e3:,.0f}", _share(shipped, separately)]
                lines.append([method, kind, str(count), *figures])
                raw[f"{method}, {kind}, {count}"] = {"shipped": shipped, "separately": separately}
                console.log(f"{method}, {kind}, {count} queries: {_share(shipped, separately)}")
    title = (
        f"Bytes on links, {len(STREAMS)} streams x {streams.rows:,} rows at 3 sites, simulated, every query also "
        f"separately, seed {streams.seed}"
    )
    show(title, header, lines)
    return raw


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", choices=("all", "spark", "links"), default="all")
    parser.add_argument("--counts", default="1,10,100", help="numbers of queries (default %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows: less event time at the same rate")
    parser.add_argument("--sample", type=int, default=5, help="queries to check, and to run alone where not all are")
    parser.add_argument("--all-up-to", type=int, default=10, help="with no more queries than this, run all alone")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds a run may take")
    parser.add_argument("--data", type=Path, default=DATA_DIR, help="where files are kept (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the raw figures")
    args = parser.parse_args()
    counts = [int(count) for count in args.counts.split(",")]
    if args.sample < 3:
        parser.error("--sample: give 3 or more")
    whole = Streams(seed=args.seed)
    streams = replace(whole, rows=round(whole.rows * args.scale), batches=max(2, round(whole.batches * args.scale)))
    print(f"`{shlex.join(['python', 'benchmarks/queries.py', *sys.argv[1:]])}`, seed {args.seed}\n")
    raw: dict[str, Any] = {"machine": machine(), "seed": args.seed}
    if args.table in ("all", "spark"):
        scratch = args.data.absolute() / "runs" / f"queries-{os.getpid()}"
        try:
            runs = SparkRuns(streams, scratch, args.timeout)
            raw["spark"] = spark_table(runs, counts, args.seed, args.sample, args.all_up_to)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    if args.table in ("all", "links"):
        # As much event time in slower streams: everything runs in this process.
        slow = replace(streams, rows=max(streams.batches, streams.rows // 100), rate=whole.rate // 100)
        raw["links"] = links_table(slow, counts, args.sample)
    if args.json:
        args.json.write_text(json.dumps(raw, indent=2) + "\n")


if __name__ == "__main__":
    main()
