"""At a steady rate, state, files and memory stay flat: what expires is evicted."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean

import hangs
import psutil
import pytest
import yaml
from pyspark.sql import SparkSession
from scenes import PATIENCE_S, Scene, ledger_of, make_batches, wait_for
from seeds import FreshSeeds, scaled

from watersmeet.metrics.jsonl import KEPT, KEPT_BEFORE
from watersmeet.spark.run import start

SOAK_S = {1: 180, 3: 600}  # of a long run, by its sites; a minute of event time takes six seconds
SLACK = 1.15  # how much more the second half of a steady run may hold than the first
WARM_UP = 1 / 3  # of the run: windows fill, Spark's logs reach the length they keep, Java's heap its size
ONE, THREE = ("here",), ("ams", "fra", "nyc")
CHECKPOINT, LINKS = "checkpoint", ".watersmeet/links"
ONE_KEY = "WHERE a.k = b.k AND b.k = c.k"
RETAIN = ("spark.sql.streaming.minBatchesToRetain", "7")  # Spark keeps the logs of 100 batches unless told


@dataclass(frozen=True)
class Sample:
    """What a run holds on to at one moment."""

    batch: int
    state_rows: int
    state_bytes: int
    files: int  # in checkpoints, Spark's part included, and in links
    file_bytes: int
    rss_bytes: int


def sample(checkpoint: Path, links: Path, sites: Sequence[str], rss_bytes: int = 0) -> Sample:
    ledgers = [ledger_of(checkpoint / site) for site in sites]
    segments = [segment for ledger in ledgers for segment in ledger.segments]
    found = [Path(root) / name for part in (checkpoint, links) for root, _, names in os.walk(part) for name in names]
    kept = [path for path in found if path.name not in (KEPT, KEPT_BEFORE)]  # events, which have a bound of their own
    return Sample(
        batch=min(ledger.batch for ledger in ledgers),
        state_rows=sum(segment.rows for segment in segments),
        state_bytes=sum(segment.bytes for segment in segments),
        files=len(kept),
        file_bytes=sum(size_of(path) for path in kept),
        rss_bytes=rss_bytes,
    )


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # since it was listed
        return 0


def check_flat(samples: Sequence[Sample]) -> None:
    """Compare the two halves of the steady part, and print them."""
    steady = samples[int(len(samples) * WARM_UP) :]
    halves = steady[: len(steady) // 2], steady[len(steady) // 2 :]
    grown = []
    print(f"\n{len(samples)} samples, batches {samples[0].batch} to {samples[-1].batch}")
    print(f"{'':>12} {'first half':>14} {'second half':>14} {'ratio':>6}")
    for name in (field.name for field in fields(Sample) if field.name != "batch"):
        first, second = (fmean(asdict(one)[name] for one in half) for half in halves)
        ratio = second / first if first else 1.0
        print(f"{name:>12} {first:>14,.0f} {second:>14,.0f} {ratio:>6.2f}")
        if ratio > SLACK:
            grown.append(f"{name} grew from {first:,.0f} to {second:,.0f}")
    assert not grown, "; ".join(grown)


def write_topology(directory: Path, sites: Sequence[str], first_seed: int = 0, **traffic: object) -> Path:
    """Three generated streams, at one site or at three, joined within a minute."""
    streams = {
        name: {
            "site": sites[number % len(sites)],
            "schema": "ts timestamp, id long, k long",
            "event_time": "ts",
            "watermark": "1 second",
            "source": {
                "format": "generator",
                "options": {
                    "rows_per_second": 200,
                    "disorder": "1 second",
                    "seed": first_seed + number,
                    "column.id": "sequence",
                    "column.k": "uniform 0 10000",
                    **traffic,
                },
            },
        }
        for number, name in enumerate("abc")
    }
    window = "[RANGE 1 MINUTE]"
    sql = f"SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id FROM a {window}, b {window}, c {window} {ONE_KEY}"
    path = directory / "topology.yaml"
    queries = {"steady": {"sql": sql, "site": sites[-1], "sink": {"format": "parquet", "path": "out/steady"}}}
    given = {"sites": list(sites), "streams": streams, "queries": queries}
    path.write_text(yaml.safe_dump(given), encoding="utf-8")
    return path


@pytest.fixture
def short_logs(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(*RETAIN)
    yield spark
    spark.conf.unset(RETAIN[0])


@pytest.mark.parametrize("sites", [ONE, THREE], ids=len)
def test_state_and_files_are_flat_over_dozens_of_batches(
    short_logs: SparkSession, tmp_path: Path, sites: Sequence[str]
) -> None:
    batches, rows = 22, 150  # fifteen seconds of event time each: a window is four batches
    data = {name: make_batches(seed, batches, rows, keys=2_000, trouble=0) for seed, name in enumerate("abc")}
    homes = {name: sites[number % len(sites)] for number, name in enumerate("abc")}
    window = "[RANGE 1 MINUTE]"
    sql = f"SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id FROM a {window}, b {window}, c {window} {ONE_KEY}"
    scene = Scene(tmp_path, {name: [] for name in data}, {"steady": sql}, homes, sites[-1]).write()
    handle = start(scene.topology, spark=short_logs, checkpoint=scene.checkpoint, trigger="50 milliseconds")

    def fine() -> None:
        assert handle.exception() is None

    samples = []
    try:
        for number in range(batches):  # all sites at the same pace: one that is ahead holds rows for the others
            for name, own in data.items():
                scene.add(name, own[number : number + 1])
            wait_for(scene.is_at_rest, f"batch {number} is not completed", fine)
            samples.append(sample(scene.checkpoint, scene.links, sites))
    finally:
        handle.stop()
    scene.check(least=20)
    check_flat(samples)
    places = min(len(sites), 2)  # a row is kept where it arrives and where it is joined
    assert max(one.state_rows for one in samples) < 2.5 * places * 3 * 4 * rows


@pytest.mark.soak
@pytest.mark.parametrize("sites", [ONE, THREE], ids=len)
def test_a_long_run_is_flat(tmp_path: Path, fresh_seeds: FreshSeeds, sites: Sequence[str]) -> None:
    for seed in fresh_seeds.take(1):
        seconds = float(os.environ.get("WATERSMEET_SOAK_S") or max(30, scaled(SOAK_S[len(sites)])))
        check_that_a_long_run_is_flat(write_topology(tmp_path, sites, seed, pace=10), tmp_path, sites, seconds)


def check_that_a_long_run_is_flat(topology: Path, place: Path, sites: Sequence[str], seconds: float) -> None:
    command = [sys.executable, "-m", "watersmeet", "run", str(topology), "--quiet"]
    command += ["--master", "local[2]", "--checkpoint", str(place / CHECKPOINT), "--trigger", "500 milliseconds"]
    # A small heap is soon as large as it gets.
    command += ["--conf", "=".join(RETAIN), "--conf", "spark.driver.memory=512m"]
    with open(place / "log.txt", "wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            samples = list(watch(process, place, sites, seconds))
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(timeout=PATIENCE_S)
    assert code == 0, (place / "log.txt").read_text()
    assert samples[-1].batch > seconds / 10, "hardly any micro-batch: the machine is too slow to tell"
    check_flat(samples)
    hangs.count(f"seconds of steady runs at {len(sites)} sites", round(seconds))


def watch(process: subprocess.Popen[bytes], place: Path, sites: Sequence[str], seconds: float) -> Iterator[Sample]:
    """A sample every second, from the first batch on."""
    deadline = time.monotonic() + PATIENCE_S
    while min(ledger_of(place / CHECKPOINT / site).batch for site in sites) < 0:
        assert process.poll() is None and time.monotonic() < deadline, "it never began"
        time.sleep(0.2)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, "ended by itself"
        yield sample(place / CHECKPOINT, place / LINKS, sites, rss_of_tree(process.pid))
        time.sleep(1)


def rss_of_tree(pid: int) -> int:
    """Resident memory of a process and all its descendants."""
    root = psutil.Process(pid)
    total = 0
    for process in (root, *root.children(recursive=True)):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
