"""A run that is killed and started again ends with exactly the answers of an undisturbed one, as any reader sees them.

Two ways of dying: SIGKILL from outside at seeded random moments, of a whole run of the command line; and a failure
before every single step of a batch that leaves a trace on disk, in this process.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
import yaml
from pyspark.sql import SparkSession

from watersmeet.errors import WatersmeetError
from watersmeet.program.site.ledger import Ledger
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.spark import checkpoint as checkpoint_module
from watersmeet.spark import job as job_module
from watersmeet.spark.deliver import delivery as delivery_module
from watersmeet.spark.deliver.storage import LocalStorage
from watersmeet.spark.engine import WindowEngine
from watersmeet.spark.job import JoinJob
from watersmeet.spark.run import start
from watersmeet.testing import bag
from watersmeet.topology.model import load_topology

LONG = pytest.mark.skipif(not os.environ.get("WATERSMEET_SOAK"), reason="long; run by `make soak`")

PATIENCE_S = 300  # on a machine that has other things to do

SECOND_US = 1_000_000
DELAY_US = 2 * SECOND_US
STREAMS = ("a", "b", "c")
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
DDL = "k long, m int, s string, id long, v double, ts timestamp"
ROWS_PER_SECOND = 10
WINDOW = "RANGE 20 SECONDS"

QUERIES = {
    # Plain columns: our own tasks write the answers.
    "plain": f"""SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id, a.ts AS a_ts, b.s
        FROM a [{WINDOW}], b [{WINDOW}], c [{WINDOW}] WHERE a.k = b.k AND b.k = c.k""",
    # Expressions and a residual: Spark SQL writes them.
    "residual": f"""SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id, a.v + b.v AS sum, upper(c.s) AS name
        FROM a [{WINDOW}], b [{WINDOW}], c [{WINDOW}] WHERE a.k = b.k AND b.k = c.k AND a.v < b.v""",
    # Two keys, so two rounds.
    "chain": f"""SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id
        FROM a [RANGE 10 SECONDS], b [TUMBLE 15 SECONDS], c [{WINDOW}] WHERE a.k = b.k AND b.m = c.m""",
    # Rows taken in order, behind the watermark.
    "counted": """SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id
        FROM a [ROWS 300], b [ROWS 80], c [RANGE 10 SECONDS] WHERE a.k = b.k AND b.k = c.k""",
    # Answers remembered for ever.
    "different": f"""SELECT DISTINCT a.k, b.m, c.s
        FROM a [{WINDOW}], b [{WINDOW}], c [{WINDOW}] WHERE a.k = b.k AND b.k = c.k""",
}


def make_batches(seed: int, batches: int, rows: int) -> list[pa.Table]:
    """A stream with disorder inside the watermark, rows far too late, NULL keys, rows without a time, and ties."""
    chance = np.random.default_rng(seed)
    count = batches * rows
    ts = np.arange(count) * (SECOND_US // ROWS_PER_SECOND) - chance.integers(0, DELAY_US // SECOND_US + 1, count) * (
        SECOND_US // 2
    )
    ts -= np.where(chance.random(count) < 0.01, 40 * SECOND_US, 0)
    table = pa.table(
        {
            "k": pa.array(chance.integers(0, 150, count), mask=chance.random(count) < 0.01),
            "m": pa.array(chance.integers(0, 60, count), pa.int32()),
            "s": pa.array([f"s{number}" for number in chance.integers(0, 5, count)]),
            "id": pa.array(np.arange(count)),
            "v": pa.array(chance.integers(0, 64, count) / 8),
            "ts": pa.array(ts, mask=chance.random(count) < 0.005).cast(pa.timestamp("us", "UTC")),
        },
        schema=SCHEMA,
    )
    return [table.slice(number * rows, rows) for number in range(batches)]


def sort_out(batches: Sequence[pa.Table]) -> tuple[pa.Table, pa.Table]:
    """The rows that take part, and those set aside with the reason: the rule, batch by batch."""
    taken, aside, latest = [], [], None
    for batch in batches:
        ts = batch.column("ts").cast(pa.int64())
        late = (
            pc.fill_null(pc.less(ts, latest - DELAY_US), False) if latest is not None else pa.nulls(len(ts), pa.bool_())
        )
        late = pc.fill_null(late, False)
        reason = pc.if_else(pc.is_null(ts), "malformed", pc.if_else(late, "late", None))
        taken.append(batch.filter(pc.is_null(reason)))
        aside.append(batch.append_column("_reason", reason).filter(pc.is_valid(reason)))
        latest = max(mark for mark in (latest, pc.max(ts).as_py()) if mark is not None)
    return pa.concat_tables(taken), pa.concat_tables(aside)


@dataclass(frozen=True, eq=False)
class Scene:
    """Streams in files, a topology over them, and what is true of its answers."""

    directory: Path
    queries: tuple[str, ...]
    batches: dict[str, list[pa.Table]]

    @property
    def topology(self) -> Path:
        return self.directory / "topology.yaml"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def log(self) -> Path:
        return self.directory / "log.txt"

    def sink(self, name: str) -> Path:
        return self.directory / "out" / name

    def ledger(self, query: str) -> Ledger:
        try:
            return Ledger.from_json((self.checkpoint / query / "ledger.json").read_text())
        except FileNotFoundError:
            return Ledger()

    @property
    def progress(self) -> int:
        """Changes with every batch that a query finishes."""
        ledgers = self.checkpoint.glob("*/ledger.json")
        return sum(path.stat().st_mtime_ns for path in ledgers)

    def expected(self, query: str, heads_before_us: int | None) -> Counter[Any]:
        tables = {name: sort_out(batches)[0] for name, batches in self.batches.items()}
        parsed = parse_query(QUERIES[query], dict.fromkeys(STREAMS, SCHEMA.names))
        return bag(answer(parsed, tables, dict.fromkeys(STREAMS, "ts"), heads_before_us=heads_before_us))

    @cached_property
    def answers(self) -> dict[str, Counter[Any]]:
        """All that is ever an answer, whatever has been released yet."""
        return {query: self.expected(query, None) for query in self.queries}

    def check(self) -> None:
        """That everything is as if nothing had happened."""
        rows = {name: sum(batch.num_rows for batch in batches) for name, batches in self.batches.items()}
        aside = {name: sort_out(batches)[1] for name, batches in self.batches.items()}
        for query in self.queries:
            ledger = self.ledger(query)
            assert (query == "counted") == (ledger.released_to is not None)
            expected = self.expected(query, ledger.released_to)
            assert len(expected) > 100, "an answer that says nothing"
            for read in (by_duckdb, by_arrow):
                assert read(self.sink(query)) == expected, f"{query} as read {read.__name__}"
            assert ledger.rows_out == expected.total()
            for name, state in ledger.streams.items():
                reasons = Counter(aside[name].column("_reason").to_pylist())
                assert (state.rows, state.late, state.malformed) == (rows[name], reasons["late"], reasons["malformed"])
            state_files = {str(path) for path in (self.checkpoint / query / "state").iterdir()}
            assert state_files == ledger.paths, "unreferenced or missing state"
        kept = bag(aside["a"])
        assert {reason for *_, reason in kept} == {"late", "malformed"}
        for read in (by_duckdb, by_arrow):
            assert read(self.sink("late")) == Counter({row: len(self.queries) * count for row, count in kept.items()})
        assert sorted(os.listdir(self.directory / "out")) == sorted([*self.queries, "late"]), "staging left behind"
        for path in (self.directory / "out").rglob("*"):
            assert path.is_dir() or (path.name.startswith("part-") and path.suffix == ".parquet"), path

    def check_what_readers_see_now(self) -> None:
        """That a reader finds nothing but whole files with answers, none of them too often, whatever has died."""
        for query in self.queries:
            seen = by_arrow(self.sink(query)) if any(self.sink(query).glob("*.parquet")) else Counter()
            assert seen <= self.answers[query], f"{query} shows rows that are no answers"


def by_duckdb(directory: Path) -> Counter[Any]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return bag(connection.sql(f"FROM read_parquet('{directory}/**/*.parquet')").to_arrow_table())


def by_arrow(directory: Path) -> Counter[Any]:
    return bag(ds.dataset(directory, format="parquet").to_table())


MakeScene = Callable[..., Scene]


@pytest.fixture
def make_scene(tmp_path: Path, write_stream: Callable[[str, Sequence[pa.Table]], Path]) -> MakeScene:
    def make(queries: Sequence[str], *, batches: int, rows: int, seed: int) -> Scene:
        data = {name: make_batches(seed * 10 + number, batches, rows) for number, name in enumerate(STREAMS)}
        for name in STREAMS:
            write_stream(name, data[name])
        (tmp_path / "topology.yaml").write_text(topology_text(queries), encoding="utf-8")
        return Scene(tmp_path, tuple(queries), data)

    return make


def topology_text(queries: Sequence[str]) -> str:
    streams = {
        name: {
            "site": "here",
            "schema": DDL,
            "event_time": "ts",
            "watermark": "2 seconds",
            "source": {"format": "parquet", "path": f"data/{name}", "options": {"maxFilesPerTrigger": 1}},
        }
        for name in STREAMS
    }
    streams["a"]["late"] = {"format": "parquet", "path": "out/late"}
    asked = {name: {"sql": QUERIES[name], "sink": {"format": "parquet", "path": f"out/{name}"}} for name in queries}
    return yaml.safe_dump({"sites": ["here"], "streams": streams, "queries": asked})


class Run:
    """The command line, running in a session of its own."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._before = scene.progress
        command = [sys.executable, "-m", "watersmeet", "run", str(scene.topology), "--once", "--quiet"]
        command += ["--master", "local[2]", "--checkpoint", str(scene.checkpoint)]
        with open(scene.log, "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self._family = [psutil.Process(self._process.pid)]

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *error: object) -> None:
        """Let no process outlive the test."""
        for process in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def kill(self, victim: str, pause_s: float) -> None:
        """Kill the Python process, the Java process, or both at once, a while after a batch was finished."""
        deadline = time.monotonic() + PATIENCE_S
        while self._scene.progress == self._before:
            assert self._process.poll() is None, f"ended before it was killed:\n{self._scene.log.read_text()}"
            assert time.monotonic() < deadline, "no batch was ever finished"
            time.sleep(0.02)
        time.sleep(pause_s)
        self._family += self._family[0].children(recursive=True)
        match victim:
            case "python":
                os.kill(self._process.pid, signal.SIGKILL)
            case "java":
                next(process for process in self._family if process.name() == "java").kill()
            case "group":
                os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait(PATIENCE_S)
        assert code == (1 if victim == "java" else -signal.SIGKILL), f"the run was over when {victim} was killed"

    def finish(self) -> None:
        """Wait for the end, which must be a good one."""
        assert self._process.wait(PATIENCE_S) == 0, self._scene.log.read_text()

    def check_no_orphans(self) -> None:
        _, alive = psutil.wait_procs(self._family, timeout=30)
        assert not alive, "something outlived its run"


def kill_and_resume(scene: Scene, victims: Sequence[str], seed: int) -> None:
    chance = random.Random(seed)
    with contextlib.ExitStack() as runs:
        killed = []
        for victim in victims:
            # The next run starts at once: what the killed one leaves behind may not be quite dead yet.
            killed.append(runs.enter_context(Run(scene)))
            killed[-1].kill(victim, chance.uniform(0, 0.7))
            scene.check_what_readers_see_now()
        runs.enter_context(Run(scene)).finish()
        scene.check()
        for run in killed:
            run.check_no_orphans()


@pytest.mark.parametrize(
    ("queries", "victims"),
    [
        (("chain",), ("group",)),  # another one crashes before every step below
        pytest.param(tuple(QUERIES), ("python", "group", "java"), marks=[pytest.mark.soak, LONG]),
    ],
    ids=str,
)
def test_killed_runs_leave_exactly_the_answers_of_an_undisturbed_one(
    make_scene: MakeScene, queries: tuple[str, ...], victims: tuple[str, ...]
) -> None:
    scene = make_scene(queries, batches=12, rows=150, seed=1)
    kill_and_resume(scene, victims, seed=1)


@pytest.mark.soak
@LONG
@pytest.mark.parametrize("seed", range(2, 6))
def test_dozens_of_kills(make_scene: MakeScene, seed: int) -> None:
    scene = make_scene(list(QUERIES), batches=60, rows=150, seed=seed)
    victims = random.Random(seed).choices(["python", "group", "java"], [3, 2, 1], k=12)
    kill_and_resume(scene, victims, seed)
    with Run(scene) as again:
        again.finish()
    scene.check()


class Crash(WatersmeetError):
    """Stands for the end of the process."""


SPARKS_COMMIT = "Spark's own commit"
RUN_TASKS = "run_told"


class Tripwire:
    """Counts the steps of batches that leave a trace on disk, by name, from a batch on; fails before a chosen one."""

    # All that a driver does to the disk; tasks and Spark do the rest in between.
    STEPS = (
        (WindowEngine, "account"),  # rows are ingested
        (job_module, RUN_TASKS),
        (delivery_module, RUN_TASKS),
        (LocalStorage, "make"),
        (LocalStorage, "move"),
        (LocalStorage, "remove"),
        (checkpoint_module, "replace_file"),
        (checkpoint_module, "remove_all_but"),
    )

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first_batch: int) -> None:
        self._first_batch = first_batch
        self.tripped: set[tuple[str, int]] = set()
        for owner, name in self.STEPS:
            monkeypatch.setattr(owner, name, self._before(getattr(owner, name), name))
        monkeypatch.setattr(JoinJob, "begin", self._around_begin(JoinJob.begin))
        monkeypatch.setattr(JoinJob, "run_batch", self._around_batch(JoinJob.run_batch))
        monkeypatch.setattr(JoinJob, "close", self._around_close(JoinJob.close))

    def arm(self, name: str, number: int) -> None:
        """Fail before the first or a later step of this name."""
        self._chosen, self._steps, self._in_batch, self.has_tripped = (name, number), Counter[str](), False, False

    def disarm(self) -> None:
        """Let all go well."""
        self.arm("", 0)

    def _count(self, name: str) -> None:
        self._steps[name] += 1
        if (name, self._steps[name]) == self._chosen:
            self.tripped.add(self._chosen)
            self.has_tripped = True
            raise Crash(name)

    def _before(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(function)
        def step(*arguments: Any, **named: Any) -> Any:
            if self._in_batch:
                self._count(type(arguments[1]).__name__ if name == RUN_TASKS else name)
            return function(*arguments, **named)

        return step

    def _around_begin(self, begin: Callable[..., None]) -> Callable[..., None]:
        def around(job: JoinJob, failed: Any) -> None:
            self._in_batch = job.ledger.taken_batch >= self._first_batch
            begin(job, failed)

        return around

    def _around_batch(self, run_batch: Callable[..., None]) -> Callable[..., None]:
        def around(job: JoinJob, reports: Any, batch: int) -> None:
            self._in_batch = batch >= self._first_batch  # and while it is being finished, until the next one is taken
            run_batch(job, reports, batch)
            if self._in_batch:
                self._count(SPARKS_COMMIT)

        return around

    def _around_close(self, close: Callable[[JoinJob], None]) -> Callable[[JoinJob], None]:
        def around(job: JoinJob) -> None:
            job._worker.shutdown()  # a batch that was taken is finished, or fails here
            self._in_batch = False
            if self.has_tripped:  # a process that is killed does not tidy up; but its lock is gone
                job._checkpoint.close()
            else:
                close(job)

        return around


@pytest.mark.parametrize(
    ("query", "tasks"),
    [
        ("plain", {"WriteRound", "Merge"}),
        pytest.param("different", {"KeepUnseen", "Merge"}, marks=[pytest.mark.soak, LONG]),
        pytest.param("residual", {"Merge"}, marks=[pytest.mark.soak, LONG]),
        pytest.param("chain", {"Round", "WriteRound", "Merge"}, marks=[pytest.mark.soak, LONG]),
        pytest.param("counted", {"Release", "WriteRound", "Merge"}, marks=[pytest.mark.soak, LONG]),
    ],
)
def test_a_crash_before_any_step_of_a_batch_changes_nothing(
    spark: SparkSession, make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch, query: str, tasks: set[str]
) -> None:
    scene = make_scene([query], batches=24, rows=60, seed=7)
    wire = Tripwire(monkeypatch, first_batch=2)  # the next one is the first to merge segments
    topology = load_topology(scene.topology)
    names = [SPARKS_COMMIT, *sorted(tasks), *dict.fromkeys(name for _, name in Tripwire.STEPS if name != RUN_TASKS)]
    # The second step of a name is in the same batch for some, in the next one for others.
    crashes = {(name, number) for name in names for number in (1, 2)} - {("Merge", 2)}
    for name, number in sorted(crashes, key=lambda crash: (crash[1], crash[0] == "Merge", names.index(crash[0]))):
        wire.arm(name, number)
        with pytest.raises(Crash):
            start(topology, spark=spark, checkpoint=scene.checkpoint, once=True).awaitTermination()
        scene.check_what_readers_see_now()
    assert wire.tripped == crashes
    wire.disarm()
    start(topology, spark=spark, checkpoint=scene.checkpoint, once=True).awaitTermination()
    scene.check()
