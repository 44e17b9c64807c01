"""Streams in files, queries over them at one site or several, and what is true of their answers.

A scene is written to a directory as a user would have it: data, `topology.yaml`, sinks, links, checkpoint. Answers are
compared with DuckDB's over the rows that are neither late nor malformed.
"""

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import hangs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import yaml

import watersmeet as wm
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.query.model import JoinQuery
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.query.windows import Rows
from watersmeet.spark.durable import unsealed
from watersmeet.testing import bag

Bag: TypeAlias = Counter[tuple[Any, ...]]
Steps: TypeAlias = Mapping[str, Sequence[Mapping[str, Any]]]  # of a plan: what each head joins, in order

SECOND_US = 1_000_000
PATIENCE_S = 1_200 if os.environ.get("WATERSMEET_SOAK") else 300  # on a machine that has other things to do
FIRST_FILE_S = 1_700_000_000  # Spark takes files in the order of their times
DDL = "k long, m int, s string, id long, v double, ts timestamp"
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("m", pa.int32()),
        ("s", pa.string()),
        ("id", pa.int64()),
        ("v", pa.float64()),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)


def make_batches(
    seed: int,
    batches: int = 3,
    rows: int = 70,
    *,
    first: int = 0,
    keys: int = 30,
    kinds: int = 6,
    texts: int | None = None,
    late_by_s: int = 9,
    trouble: float = 0.02,
) -> list[pa.Table]:
    """A stream of 10 rows a second: disorder inside the watermark, rows far too late, NULL keys, no times, and ties."""
    chance = np.random.default_rng(seed)
    count = batches * rows
    ts = (first + np.arange(count)) * (SECOND_US // 10) - chance.integers(0, 3, count) * (SECOND_US // 2)
    ts -= np.where(chance.random(count) < trouble, late_by_s * SECOND_US, 0)
    table = pa.table(
        {
            "k": pa.array(chance.integers(0, keys, count), mask=chance.random(count) < trouble),
            "m": pa.array(chance.integers(0, kinds, count), pa.int32()),
            "s": pa.array([f"s{number}" for number in chance.integers(0, texts or keys, count)]),
            "id": pa.array(first + np.arange(count)),
            "v": pa.array(chance.integers(0, 64, count) / 8),
            "ts": pa.array(ts, mask=chance.random(count) < trouble).cast(pa.timestamp("us", "UTC")),
        },
        schema=SCHEMA,
    )
    return [table.slice(number * rows, rows) for number in range(batches)]


def sort_out(batches: Sequence[pa.Table], delay_us: int = SECOND_US) -> tuple[pa.Table, pa.Table]:
    """The rows that take part, and those set aside with the reason: the rule, batch by batch."""
    taken, aside, latest = [], [], None
    for batch in batches:
        ts = batch.column("ts").cast(pa.int64())
        late = pc.less(ts, latest - delay_us) if latest is not None else pa.nulls(len(ts), pa.bool_())
        reason = pc.if_else(pc.is_null(ts), "malformed", pc.if_else(pc.fill_null(late, False), "late", None))
        taken.append(batch.filter(pc.is_null(reason)))
        aside.append(batch.append_column("_reason", reason).filter(pc.is_valid(reason)))
        latest = max(mark for mark in (latest, pc.max(ts).as_py()) if mark is not None)
    return pa.concat_tables(taken), pa.concat_tables(aside)


def latest_us(batches: Sequence[pa.Table]) -> int:
    """The latest event time of a stream."""
    return max(int(pc.max(batch.column("ts").cast(pa.int64())).as_py()) for batch in batches)


def by_arrow(directory: Path) -> Bag:
    """What Arrow finds in a sink."""
    if not any(directory.glob("*.parquet")):
        return Counter()
    return bag(ds.dataset(directory, format="parquet").to_table())


def by_duckdb(directory: Path) -> Bag:
    """What DuckDB finds in a sink."""
    if not any(directory.glob("*.parquet")):
        return Counter()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return bag(connection.sql(f"FROM read_parquet('{directory}/**/*.parquet')").to_arrow_table())


def wait_for(
    is_so: Callable[[], bool],
    what: str,
    check: Callable[[], object] = lambda: None,
    progress: Callable[[], object] = lambda: None,
) -> None:
    """Wait until something is so, as long as there is progress, and check meanwhile that it still can be."""
    last, deadline = progress(), time.monotonic() + PATIENCE_S
    while True:
        began = time.monotonic()
        if is_so():
            return
        check()
        if (now := progress()) != last:
            last, deadline = now, time.monotonic() + PATIENCE_S
            hangs.beat()
        assert time.monotonic() < deadline, what
        looked_s = time.monotonic() - began
        time.sleep(min(max(0.02, 4 * looked_s), 0.5))  # looking takes no core from what is waited for


def write_batch(batch: pa.Table, path: Path, number: int) -> None:
    """Write one file of a stream: its time says that it is the one of this number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}")
    pq.write_table(batch, aside)
    os.utime(aside, (FIRST_FILE_S + 10 * number,) * 2)
    aside.rename(path)


def write_batches(directory: Path, batches: Sequence[pa.Table]) -> Path:
    """Write the files of a stream, one a batch, in place of what is there."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for number, batch in enumerate(batches):
        write_batch(batch, directory / f"{number:05d}.parquet", number)
    return directory


def ledger_of(checkpoint: Path) -> SiteLedger:
    """The state of a site as it was last committed."""
    try:
        return SiteLedger.from_json(unsealed((checkpoint / "ledger.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return SiteLedger()


@dataclass(frozen=True, eq=False)
class Scene:
    """Streams at sites, queries over them, and what is true of their answers."""

    directory: Path
    batches: dict[str, list[pa.Table]]
    queries: Mapping[str, str]  # SQL by name
    homes: Mapping[str, str] = field(default_factory=dict)  # the site of each stream, where it is not the queries'
    site: str = "here"
    plan: Steps | None = None  # of every query; None ships all streams to the queries' site
    start: str | None = None
    late: Sequence[str] = ()  # streams whose late rows are kept
    delay_us: int = SECOND_US
    max_pending: int = 256_000_000
    idle_timeout: str = "5 minutes"
    options: Mapping[str, Any] = field(default_factory=dict)  # of all sources
    errors: str | None = None  # of all queries
    durability: str = "process"
    views: Mapping[str, str] = field(default_factory=dict)  # SQL by name
    transport: Mapping[str, Any] = field(default_factory=lambda: {"kind": "directory", "path": "links"})

    # -- as a user has it

    @property
    def topology_path(self) -> Path:
        path = self.directory / "topology.yaml"
        path.write_text(self._yaml(), encoding="utf-8")
        return path

    @property
    def topology(self) -> wm.Topology:
        return wm.load_topology(self.topology_path)

    def write(self) -> "Scene":
        """Put the files of all streams in place."""
        for name, batches in self.batches.items():
            (self.directory / "data" / name).mkdir(parents=True, exist_ok=True)
            for number, batch in enumerate(batches):
                write_batch(batch, self.directory / "data" / name / f"{number:05d}.parquet", number)
        return self

    def add(self, name: str, batches: Sequence[pa.Table]) -> None:
        """Let files come to a stream after those that are there."""
        for batch in batches:
            number = len(self.batches[name])
            write_batch(batch, self.directory / "data" / name / f"{number:05d}.parquet", number)
            self.batches[name].append(batch)

    def run(self, spark: Any, **settings: Any) -> wm.StreamingRun:
        """Process all rows that there are, at all sites."""
        handle = wm.start(self.topology, spark=spark, once=True, **{"checkpoint": self.checkpoint} | settings)
        handle.awaitTermination()
        return handle

    def run_site(self, spark: Any, site: str, **settings: Any) -> wm.StreamingRun:
        """The same at one site."""
        settings = {"checkpoint": self.checkpoint} | settings
        handle = wm.start_site(self.topology, site, spark=spark, once=True, **settings)
        handle.awaitTermination()
        return handle

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(sorted({*(self.home(name) for name in self.batches), self.site}))

    def home(self, stream: str) -> str:
        return self.homes.get(stream, self.site)

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def links(self) -> Path:
        return self.directory / "links"

    @property
    def parcels(self) -> list[Path]:
        return sorted(self.links.rglob("*.parcel"))

    def sink(self, query: str = "q") -> Path:
        return self.directory / "out" / query

    def late_sink(self, stream: str) -> Path:
        return self.directory / "out" / f"late_{stream}"

    def ledger(self, site: str) -> SiteLedger:
        """The state of a site as it was last committed."""
        return ledger_of(self.checkpoint / site)

    def kept_state(self, site: str) -> set[str]:
        """The state files of a site."""
        return {path.name for path in (self.checkpoint / site / "state").iterdir()}

    def _yaml(self) -> str:
        streams: dict[str, Any] = {
            name: {
                "site": self.home(name),
                "schema": DDL,
                "event_time": "ts",
                "watermark": f"{self.delay_us} microseconds",
                "idle_timeout": self.idle_timeout,
                "source": {
                    "format": "parquet",
                    "path": f"data/{name}",
                    "options": {"maxFilesPerTrigger": 1, **self.options},
                },
            }
            for name in self.batches
        }
        for name in self.late:
            streams[name]["late"] = {"format": "parquet", "path": f"out/late_{name}"}
        queries: dict[str, Any] = {
            name: {"sql": sql, "site": self.site, "sink": {"format": "parquet", "path": f"out/{name}"}}
            for name, sql in self.queries.items()
        }
        for query in queries.values():
            if self.start is not None:
                query["start"] = self.start
            if self.errors is not None:
                query["errors"] = self.errors
            if self.errors == "keep":
                query["failed"] = {"format": "parquet", "path": "out/failed"}
            if self.plan is not None:
                query["plan"] = {head: [dict(step) for step in steps] for head, steps in self.plan.items()}
        views = {"views": {name: {"sql": sql, "site": self.site} for name, sql in self.views.items()}}
        transport = {**self.transport, "max_pending": f"{self.max_pending} B"}
        return yaml.safe_dump(
            {
                "sites": list(self.sites),
                "durability": self.durability,
                "streams": streams,
                **(views if self.views else {}),
                "queries": queries,
                "link_transport": transport,
            }
        )

    # -- what is true of it

    def parsed(self, query: str = "q") -> JoinQuery:
        return parse_query(self.queries[query], dict.fromkeys(self.batches, SCHEMA.names))

    def taken(self) -> dict[str, pa.Table]:
        """The rows that take part."""
        return {name: sort_out(batches, self.delay_us)[0] for name, batches in self.batches.items()}

    def aside(self, stream: str) -> pa.Table:
        """Late and malformed rows of a stream, with the reason."""
        return sort_out(self.batches[stream], self.delay_us)[1]

    def reasons(self, stream: str) -> Counter[str]:
        return Counter(self.aside(stream).column("_reason").to_pylist())

    def rows(self, stream: str) -> int:
        return sum(batch.num_rows for batch in self.batches[stream])

    def expected(self, query: str = "q", heads_before_us: int | None = None) -> Bag:
        """The answers; with ROWS windows, as far as the streams they count are known to be complete.

        Where all streams are at one site, all of them wait for each other then.
        """
        parsed = self.parsed(query)
        if heads_before_us is None:
            counted = [source for source in parsed.sources if isinstance(source.window, Rows)]
            waited_for = parsed.sources if counted and len(self.sites) == 1 else counted
            marks = [latest_us(self.batches[source.stream]) - self.delay_us for source in waited_for]
            heads_before_us = min(marks, default=None)
        tables = self.taken()
        start_us = wm.Query(query, self.queries[query], start=self.start).start_us
        times = dict.fromkeys(tables, "ts")
        return bag(answer(parsed, tables, times, start_us=start_us, heads_before_us=heads_before_us))

    def check(self, least: int = 100) -> None:
        """That everything is as if nothing had happened."""
        sinks = [*self.queries, *(f"late_{name}" for name in self.late)]
        for query in self.queries:
            expected = self.expected(query)
            assert len(expected) >= least, "an answer that says nothing"
            for read in (by_duckdb, by_arrow):
                assert read(self.sink(query)) == expected, f"{query} as read {read.__name__}"
            assert self.ledger(self.site).rows_out.get(query, 0) == expected.total()
        for name in self.late:
            kept = bag(self.aside(name))
            assert {reason for *_, reason in kept} == {"late", "malformed"}
            for read in (by_duckdb, by_arrow):
                assert read(self.late_sink(name)) == kept, f"late rows of {name} as read {read.__name__}"
        left = sorted(os.listdir(self.directory / "out"))
        assert left == sorted(sinks), f"staging left behind: {left}"
        for path in (self.directory / "out").rglob("*"):
            is_answers = path.name.startswith("part-") and path.suffix == ".parquet"
            assert path.is_dir() or is_answers or path.name.startswith(".writer-"), path
        self.check_ledgers()

    def check_ledgers(self) -> None:
        """That every row is counted once, nothing is under way, and nothing is kept that no ledger names."""
        for name in self.batches:
            reasons, state = self.reasons(name), self.ledger(self.home(name)).streams[name]
            assert (state.rows, state.late, state.malformed) == (
                *(self.rows(name), reasons["late"], reasons["malformed"]),
            )
        for site in self.sites:
            ledger = self.ledger(site)
            assert self.kept_state(site) == ledger.paths, "unreferenced or missing state"
            assert ledger.is_complete and not any(ledger.undelivered.values())
            for to, link in ledger.links.items():
                assert self.ledger(to).received.get(site, 0) == link.number, "something is still on the way"
                if self.transport["kind"] == "directory" and "://" not in self.transport["path"]:
                    left = {path.name.rstrip("0123456789") for path in (self.links / to / site).iterdir()}
                    assert left == {"sender-", "reader-"}, left

    def progress(self) -> dict[str, int]:
        """Micro-batches of each site so far."""
        return {name: self.ledger(name).number for name in self.sites}

    def is_at_rest(self) -> bool:
        """Whether every row has been joined, every parcel taken, and every answer delivered."""
        ledgers = {name: self.ledger(name) for name in self.sites}
        states = {name: ledgers[self.home(name)].streams.get(name) for name in self.batches}
        return all(state is not None and state.rows == self.rows(name) for name, state in states.items()) and all(
            ledger.is_complete
            and all(
                ledgers[to].received.get(site, 0) == link.number and not any((self.links / to / site).glob("*.parcel"))
                for to, link in ledger.links.items()
            )
            for site, ledger in ledgers.items()
        )

    def check_what_readers_see_now(self, answers: Mapping[str, Bag]) -> None:
        """That a reader finds nothing but whole files with answers, none of them too often, whatever has died."""
        for query in self.queries:
            for _ in range(20):
                # A site that starts again takes back files that it may not have been done with, just as they are read.
                with contextlib.suppress(duckdb.IOException, FileNotFoundError):
                    assert by_duckdb(self.sink(query)) <= answers[query], f"{query} shows rows that are no answers"
                    break
