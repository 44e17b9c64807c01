"""Sites as processes of their own that die, freeze and lose their links: the answers are those of a quiet day.

Each site is a run of the command line over one directory of links. Whoever reads the sink with DuckDB afterwards finds
exactly the answers of the law, and meanwhile nothing but answers.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml

from watersmeet.program.site.engine import SiteLedger
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.testing import bag

LONG = pytest.mark.skipif(not os.environ.get("WATERSMEET_SOAK"), reason="long; run by `make soak`")
PATIENCE_S = 300  # on a machine that has other things to do

SECOND_US = 1_000_000
DELAY_US = SECOND_US
HOMES = {"a": "ams", "b": "fra", "c": "nyc"}
SITES = tuple(HOMES.values())
SCHEMA = pa.schema(
    [("k", pa.int64()), ("s", pa.string()), ("id", pa.int64()), ("v", pa.float64()), ("ts", pa.timestamp("us", "UTC"))]
)
SQL = """SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id, b.s, a.v + c.v AS v
    FROM a [RANGE 3 SECONDS], b [TUMBLE 4 SECONDS], c [RANGE 3 SECONDS] WHERE a.k = b.k AND b.k = c.k"""
# Every method has a part in it.
PLAN = {
    "a": [{"join": "b", "method": "SM-D1", "bloom": True}, {"join": "c", "method": "SP-D"}],
    "b": [{"join": "c", "method": "SM-S1"}, {"join": "a", "method": "SM-D2"}],
    "c": [{"join": "b", "method": "SM-S2"}, {"join": "a", "method": "SP-S"}],
}
FILES = {"maxFilesPerTrigger": 1, "recursiveFileLookup": "true"}
BROKEN = ("fra", "nyc")  # the link that is taken away
TROUBLES = tuple(
    f"watersmeet: warning: query 'q': link {BROKEN[0]} -> {BROKEN[1]} cannot be {what}: "
    for what in ("written", "read")
)


def make_batches(seed: int, batches: int, rows: int) -> list[pa.Table]:
    """A stream with disorder inside the watermark, rows far too late, NULL keys, rows without a time, and ties."""
    chance = np.random.default_rng(seed)
    count = batches * rows
    ts = np.arange(count) * (SECOND_US // 10) - chance.integers(0, 3, count) * (SECOND_US // 2)
    ts -= np.where(chance.random(count) < 0.02, 9 * SECOND_US, 0)
    table = pa.table(
        {
            "k": pa.array(chance.integers(0, 30, count), mask=chance.random(count) < 0.01),
            "s": pa.array([f"s{number}" for number in chance.integers(0, 5, count)]),
            "id": pa.array(np.arange(count)),
            "v": pa.array(chance.integers(0, 64, count) / 8),
            "ts": pa.array(ts, mask=chance.random(count) < 0.01).cast(pa.timestamp("us", "UTC")),
        },
        schema=SCHEMA,
    )
    return [table.slice(number * rows, rows) for number in range(batches)]


def sort_out(batches: Sequence[pa.Table]) -> tuple[pa.Table, pa.Table]:
    """The rows that take part, and those set aside with the reason: the rule, batch by batch."""
    taken, aside, latest = [], [], None
    for batch in batches:
        ts = batch.column("ts").cast(pa.int64())
        late = pc.less(ts, latest - DELAY_US) if latest is not None else pa.nulls(len(ts), pa.bool_())
        reason = pc.if_else(pc.is_null(ts), "malformed", pc.if_else(pc.fill_null(late, False), "late", None))
        taken.append(batch.filter(pc.is_null(reason)))
        aside.append(batch.append_column("_reason", reason).filter(pc.is_valid(reason)))
        latest = max(mark for mark in (latest, pc.max(ts).as_py()) if mark is not None)
    return pa.concat_tables(taken), pa.concat_tables(aside)


def by_duckdb(directory: Path) -> Counter[Any]:
    if not any(directory.glob("*.parquet")):
        return Counter()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return bag(connection.sql(f"FROM read_parquet('{directory}/**/*.parquet')").to_arrow_table())


def wait_for(is_so: Callable[[], bool], what: str, check: Callable[[], None] = lambda: None) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        check()
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@dataclass(frozen=True, eq=False)
class Scene:
    """Streams in files, a topology over them, and what is true of its answers."""

    directory: Path
    batches: dict[str, list[pa.Table]]

    def release(self, stage: int) -> None:
        """Let the files of a stage come to the streams, all at once, so that there is work when something happens."""
        for name in HOMES:
            (self.directory / "held" / name / f"{stage:03d}").rename(self.directory / "data" / name / f"{stage:03d}")

    @property
    def topology(self) -> Path:
        return self.directory / "topology.yaml"

    @property
    def sink(self) -> Path:
        return self.directory / "out" / "q"

    @property
    def links(self) -> Path:
        return self.directory / "links" / "q"

    def checkpoint(self, site: str) -> Path:
        return self.directory / ".watersmeet" / "checkpoints" / "q" / site

    def ledger(self, site: str) -> SiteLedger:
        try:
            return SiteLedger.from_json((self.checkpoint(site) / "ledger.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return SiteLedger()

    @cached_property
    def expected(self) -> Counter[Any]:
        tables = {name: sort_out(batches)[0] for name, batches in self.batches.items()}
        query = parse_query(SQL, dict.fromkeys(HOMES, SCHEMA.names))
        return bag(answer(query, tables, dict.fromkeys(HOMES, "ts")))

    def check_what_readers_see_now(self) -> None:
        """That a reader finds nothing but whole files with answers, none of them too often, whatever has died."""
        for _ in range(20):
            # A site that starts again takes back the files of its last turn, perhaps just as they are read.
            with contextlib.suppress(duckdb.IOException):
                assert by_duckdb(self.sink) <= self.expected, "rows that are no answers"
                return

    def check(self) -> None:
        """That everything is as if nothing had happened."""
        assert len(self.expected) > 500, "an answer that says nothing"
        assert by_duckdb(self.sink) == self.expected
        aside = {name: sort_out(batches)[1] for name, batches in self.batches.items()}
        assert by_duckdb(self.directory / "out" / "late") == bag(aside["a"])
        assert sorted(os.listdir(self.directory / "out")) == ["late", "q"], "staging left behind"
        for path in (self.directory / "out").rglob("*"):
            assert path.is_dir() or (path.name.startswith("part-") and path.suffix == ".parquet"), path
        for name, site in HOMES.items():
            ledger = self.ledger(site)
            reasons = Counter(aside[name].column("_reason").to_pylist())
            state = ledger.streams[name]
            rows = sum(batch.num_rows for batch in self.batches[name])
            assert (state.rows, state.late, state.malformed) == (rows, reasons["late"], reasons["malformed"])
            kept = {str(path) for path in (self.checkpoint(site) / "state").iterdir()}
            assert kept == ledger.paths, "unreferenced or missing state"
            for to, link in ledger.links.items():
                way = self.links / to / site
                assert self.ledger(to).received[site] == link.number, "something is still on the way"
                assert {path.name for path in way.iterdir()} == {"sender", "acknowledged"}, "leftovers on a link"
        assert self.ledger("nyc").rows_out == self.expected.total()


class SiteProcess:
    """One site's command line, running in a session of its own; started again as often as it is killed."""

    def __init__(self, scene: Scene, name: str) -> None:
        self.name = name
        self._scene = scene
        self._log = scene.directory / f"{name}.log"
        self._family: list[psutil.Process] = []
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "watersmeet", "site", self.name, str(self._scene.topology)]
        command += ["--trigger", "200 milliseconds", "--quiet", "--master", "local[1]"]
        command += ["--conf", "spark.driver.memory=512m"]
        self._before = self._scene.ledger(self.name).turn
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self._family.append(psutil.Process(self._process.pid))

    @property
    def told(self) -> list[str]:
        return self._log.read_text(encoding="utf-8").splitlines()

    def check(self) -> None:
        assert self._process.poll() is None, f"site {self.name} has ended:\n" + "\n".join(self.told)

    def wait_for_a_turn(self) -> None:
        """Until it has finished a turn since it was started."""
        wait_for(lambda: self._scene.ledger(self.name).turn > self._before, f"{self.name} takes no turn", self.check)

    def kill(self, turns: int, pause_s: float) -> None:
        """Let the whole group of processes die, some turns and a while from now."""
        goal = self._scene.ledger(self.name).turn + turns
        wait_for(lambda: self._scene.ledger(self.name).turn >= goal, f"{self.name} takes no turns", self.check)
        time.sleep(pause_s)
        self.check()
        self._look_around()
        os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.wait(PATIENCE_S) == -signal.SIGKILL

    @contextlib.contextmanager
    def frozen(self, seconds: float) -> Iterator[None]:
        """Stand still for so long at least."""
        began = time.monotonic()
        self._look_around()
        self._signal(signal.SIGSTOP)
        try:
            yield
            time.sleep(max(0.0, seconds - (time.monotonic() - began)))
        finally:
            self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Ask it to stop, which must be a good end."""
        self.check()
        self._look_around()
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE_S) == 0, "\n".join(self.told)
        _, alive = psutil.wait_procs(self._family, timeout=30)
        assert not alive, "something outlived its run"

    def close(self) -> None:
        """Let no process outlive the test."""
        if self._process.poll() is None:
            self._look_around()
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _look_around(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._process.pid).children(recursive=True)
            self._family += [process for process in children if process not in self._family]

    def _signal(self, number: signal.Signals) -> None:
        for process in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


@dataclass
class Sites:
    """All sites of a scene."""

    scene: Scene
    chance: random.Random
    processes: dict[str, SiteProcess] = field(default_factory=dict)
    stage: int = 0

    def release(self) -> None:
        self.scene.release(self.stage)
        self.stage += 1

    def start(self) -> None:
        self.release()
        for name in self.chance.sample(SITES, len(SITES)):
            self.processes[name] = SiteProcess(self.scene, name)

    def kill(self, name: str) -> None:
        """Let a site die with work before it, and start again at once: what it leaves may not be quite dead yet."""
        self.processes[name].wait_for_a_turn()
        self.release()
        self.processes[name].kill(self.chance.randint(1, 3), self.chance.uniform(0, 0.3))
        self.scene.check_what_readers_see_now()
        self.processes[name].start()

    def check(self) -> None:
        for process in self.processes.values():
            process.check()

    @contextlib.contextmanager
    def without_link(self) -> Iterator[None]:
        """A link's directory that cannot be written: to root everything is allowed, so a file is put in its place."""
        sender, reader = BROKEN
        way, away = self.scene.links / reader / sender, self.scene.directory / "away"
        for name in BROKEN:  # a site that starts now would find its link unwritable, and say so
            self.processes[name].wait_for_a_turn()
        told = len(self.processes[sender].told)
        way.rename(away)
        way.write_text("not a directory")
        try:
            warning = f"watersmeet: warning: query 'q': link {sender} -> {reader} cannot be written: Not a directory"
            wait_for(
                lambda: any(line.startswith(warning) for line in self.processes[sender].told[told:]),
                "no warning",
                self.check,
            )
            yield
        finally:
            way.unlink()
            away.rename(way)

    def finish(self) -> None:
        """Wait for all answers, and a little longer for those too many; then end all, and look at what is left."""

        def count() -> int:
            with contextlib.suppress(duckdb.IOException):
                return by_duckdb(self.scene.sink).total()
            return 0

        wait_for(lambda: count() >= self.scene.expected.total(), "not all answers come", self.check)
        wait_for(self._is_at_rest, "it does not come to rest", self.check)
        time.sleep(2)
        for name in self.chance.sample(SITES, len(SITES)):
            self.processes[name].end()
        self.scene.check()
        for process in self.processes.values():
            for line in process.told:
                assert line.startswith(TROUBLES) or line.startswith("stopping"), line

    def _is_at_rest(self) -> bool:
        ledgers = {name: self.scene.ledger(name) for name in SITES}
        return all(
            ledgers[to].received.get(name) == link.number and not list((self.scene.links / to / name).glob("*.parcel"))
            for name, ledger in ledgers.items()
            for to, link in ledger.links.items()
        )


MakeSites = Callable[..., Sites]


@pytest.fixture
def make_sites(tmp_path: Path) -> Iterator[MakeSites]:
    made: list[Sites] = []

    def make(*, stages: int, seed: int, files: int = 4, rows: int = 60) -> Sites:
        data = {name: make_batches(seed * 10 + number, stages * files, rows) for number, name in enumerate(HOMES)}
        for name, batches in data.items():
            (tmp_path / "data" / name).mkdir(parents=True)
            for number, batch in enumerate(batches):
                path = tmp_path / "held" / name / f"{number // files:03d}" / f"{number:05d}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(batch, path)
                os.utime(path, (1_700_000_000 + 10 * number,) * 2)  # Spark takes files in the order of their times
        (tmp_path / "topology.yaml").write_text(topology_text(), encoding="utf-8")
        made.append(Sites(Scene(tmp_path, data), random.Random(seed)))
        return made[-1]

    yield make
    for sites in made:
        for process in sites.processes.values():
            process.close()
    shutil.rmtree(tmp_path / "links", ignore_errors=True)


def topology_text() -> str:
    streams: dict[str, Any] = {
        name: {
            "site": site,
            "schema": "k long, s string, id long, v double, ts timestamp",
            "event_time": "ts",
            "watermark": "1 second",
            "source": {"format": "parquet", "path": f"data/{name}", "options": FILES},
        }
        for name, site in HOMES.items()
    }
    streams["a"]["late"] = {"format": "parquet", "path": "out/late"}
    query = {"sql": SQL, "site": "nyc", "plan": PLAN, "sink": {"format": "parquet", "path": "out/q"}}
    transport = {"kind": "directory", "path": "links"}
    return yaml.safe_dump(
        {"sites": list(SITES), "streams": streams, "queries": {"q": query}, "link_transport": transport}
    )


def test_sites_that_die_freeze_and_lose_a_link_leave_exactly_the_answers(make_sites: MakeSites) -> None:
    sites = make_sites(stages=3, seed=1)
    sites.start()
    with sites.without_link():
        sites.release()
    with sites.processes["fra"].frozen(5):
        sites.kill("nyc")
    sites.finish()


@pytest.mark.soak
@LONG
@pytest.mark.parametrize("seed", range(2, 5))
def test_dozens_of_kills(make_sites: MakeSites, seed: int) -> None:
    rounds = 8
    sites = make_sites(stages=1 + rounds * len(SITES), seed=seed)
    sites.start()
    for _ in range(rounds):
        for name in sites.chance.sample(SITES, len(SITES)):
            sites.kill(name)
    sites.finish()


@pytest.mark.soak
@LONG
def test_a_link_that_is_away_time_and_again(make_sites: MakeSites) -> None:
    sites = make_sites(stages=9, seed=5)
    sites.start()
    for _ in range(8):
        with sites.without_link():
            sites.release()
            time.sleep(sites.chance.uniform(0, 10))
        time.sleep(sites.chance.uniform(0, 3))
    sites.finish()


@pytest.mark.soak
@LONG
@pytest.mark.parametrize("name", SITES)
def test_a_site_that_stands_still_for_a_minute(make_sites: MakeSites, name: str) -> None:
    sites = make_sites(stages=3, seed=6)
    sites.start()
    for process in sites.processes.values():
        process.wait_for_a_turn()
    with sites.processes[name].frozen(60):
        sites.release()
    sites.release()
    sites.finish()
