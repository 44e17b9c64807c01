"""What a new user meets in the first hour: late files, answers that wait, another checkpoint, Ctrl-C, own sessions."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from scenes import PATIENCE_S, SECOND_US, Scene, by_arrow, latest_us, make_batches, sort_out, wait_for

import watersmeet as wm
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import RunWarning
from watersmeet.query.windows import END_US

JOIN = "SELECT a.id AS a_id, b.id AS b_id FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"
COUNTED = JOIN.replace("b [RANGE 5 SECONDS]", "b [ROWS 40]")


def warned(run: Callable[..., Any]) -> list[str]:
    """The warnings of a run."""
    events, texts = EventBus(), list[str]()
    events.subscribe(lambda at, event: texts.append(event.text) if isinstance(event, RunWarning) else None)
    run(events=events, warn=None)
    return texts


def test_files_in_reverse_are_told_of_with_cause_and_cure(spark: Any, tmp_path: Path) -> None:
    batches = {
        "a": make_batches(1, batches=5, trouble=0)[::-1],
        "b": make_batches(2, batches=5, trouble=0),
    }
    scene = Scene(tmp_path, batches, {"q": JOIN}, delay_us=2 * SECOND_US).write()
    texts = warned(lambda **settings: scene.run(spark, **settings))
    scene.check(least=10)
    late = scene.reasons("a")["late"]
    assert late > 100 and not scene.reasons("b")["late"]
    assert all(text.startswith("stream 'a': ") for text in texts)
    assert len(texts) == 3, "when the share passes 1 %, when it has doubled, and at the end; not for each micro-batch"
    earliest = min(int(ts.value) for table in batches["a"] for ts in table.column("ts"))
    behind_s = -(-(latest_us(batches["a"]) - earliest) // SECOND_US)
    for part in (
        f"({late:,} of {scene.rows('a'):,}) are late and take no part in any answer",
        "its watermark allows 2 seconds; its files are read in the order in which they were modified",
        f"or set `watermark: {behind_s} seconds` for the stream and begin anew (--fresh)",
    ):
        assert part in texts[-1]
    enough = sort_out(batches["a"], delay_us=behind_s * SECOND_US)[1]
    assert enough.num_rows == 0, "what it advises would have been enough"


@pytest.mark.parametrize("homes", [{}, {"b": "there"}], ids=["one site", "two sites"])
def test_answers_that_wait_for_watermarks_are_told_of_and_drained(
    spark: Any, tmp_path: Path, homes: dict[str, str]
) -> None:
    batches = {name: make_batches(seed, trouble=0) for seed, name in enumerate("ab")}
    scene = Scene(tmp_path, batches, {"q": COUNTED}, homes).write()
    (text,) = warned(lambda **settings: scene.run(spark, **settings))
    scene.check()
    waiting = scene.expected(heads_before_us=END_US).total() - scene.expected().total()
    assert waiting > 10
    assert (f"{waiting:,} answers are not given yet: " in text) == (not homes)
    assert " rows of stream 'b' wait: a ROWS window counts them once the watermark has passed" in text
    assert "`--once --drain` if none will come" in text

    assert warned(lambda **settings: scene.run(spark, drain=True, **settings)) == []
    assert by_arrow(scene.sink()) == scene.expected(heads_before_us=END_US)
    assert not scene.ledger(scene.home("b")).pending.get("b")
    scene.run(spark, drain=True)  # once more, with nothing new
    assert by_arrow(scene.sink()) == scene.expected(heads_before_us=END_US)
    scene.add("b", make_batches(7, batches=1, first=500))
    with pytest.raises(wm.CheckpointMismatch, match=r"was drained .*rows of stream 'b' that come now .*--fresh"):
        scene.run(spark)
    with pytest.raises(wm.InputError, match="add once"):
        wm.start(scene.topology, spark=spark, drain=True)


def test_open_windows_and_rows_without_partner_are_told_of_and_drained(spark: Any, tmp_path: Path) -> None:
    batches = {name: make_batches(seed, trouble=0) for seed, name in enumerate("ab")}
    queries = {
        "grouped": "SELECT k, count(*) AS n FROM a GROUP BY k, TUMBLE(1 HOUR)",
        "outer": "SELECT a.id, b.k FROM a [RANGE 1 HOUR] LEFT JOIN b [RANGE 1 HOUR] ON a.id = b.id AND a.k = b.k",
        "plain": JOIN,
        "running": "SELECT k, count(*) AS n FROM b [RANGE 5 SECONDS] GROUP BY k EMIT CHANGES",
    }
    scene = Scene(tmp_path, batches, queries).write()
    (text,) = warned(lambda **settings: scene.run(spark, **settings))
    given = {name: by_arrow(scene.sink(name)).total() for name in queries}
    assert warned(lambda **settings: scene.run(spark, drain=True, **settings)) == []
    waiting = sum(by_arrow(scene.sink(name)).total() - given[name] for name in ("grouped", "outer"))
    assert waiting > 10
    assert text.startswith(
        f"{waiting:,} answers are not given yet: output windows of 'grouped' end after the watermark; "
        "rows of 'outer' may still find a partner; "
    )
    assert by_arrow(scene.sink("plain")).total() == given["plain"]


def test_a_sink_with_answers_is_refused_to_another_run_unless_it_begins_anew(spark: Any, tmp_path: Path) -> None:
    batches = {name: make_batches(seed, batches=2) for seed, name in enumerate("ab")}
    scene = Scene(tmp_path, batches, {"q": JOIN}, late=["a"]).write()
    scene.run(spark)
    scene.check()
    before = sorted(os.listdir(scene.sink()))
    sited = Scene(tmp_path, batches, {"q": JOIN}, {"b": "there"}, late=["a"])
    attempts: list[Callable[[], object]] = [
        lambda: scene.run(spark, checkpoint=tmp_path / "other"),
        lambda: sited.run(spark, checkpoint=tmp_path / "sited"),
    ]
    for run in attempts:
        for _ in range(2):  # the first attempt leaves nothing that would let a second one pass
            with pytest.raises(wm.CheckpointMismatch, match=r"holds \d+ files of answers of an earlier run.*--fresh"):
                run()
    assert sorted(os.listdir(scene.sink())) == before

    moved = {path: path.read_bytes() for path in scene.sink().iterdir()}
    sited.run(spark, fresh=True)
    aside = sorted(path.name for path in tmp_path.rglob("*.before-*"))
    assert [name.split(".before-")[0] for name in aside] == ["checkpoint", "late_a", "q"]
    (answers,) = (tmp_path / "out").glob("q.before-*")
    assert {path.name: path.read_bytes() for path in answers.iterdir()} == {p.name: b for p, b in moved.items()}
    for path in (tmp_path / "out").glob("*.before-*"):
        path.rename(tmp_path / path.name)
    sited.check()


OWN_SESSION = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = spark.config("spark.sql.shuffle.partitions", "2").getOrCreate()
import watersmeet as wm
options = {"rows": "300", "rows_per_second": "10", "column.k": "uniform 0 20"}
streams = [wm.Stream(n, event_time="ts", schema="k long, ts timestamp", source=wm.Source("generator", None, options))
           for n in "ab"]
sql = "SELECT upper(a.k || '') AS k FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"
topology = wm.Topology(tuple(streams), (wm.Query("q", sql, sink=wm.Sink("parquet", sys.argv[1] + "/out")),))
run = wm.start(topology, spark=spark, checkpoint=sys.argv[1] + "/checkpoint", once=True)
run.awaitTermination()
print("answers", run.usage("q").rows_out)
"""


@pytest.mark.soak
def test_a_session_of_the_users_own_needs_no_activated_environment(tmp_path: Path) -> None:
    wrong = tmp_path / "bin" / "python3"
    wrong.parent.mkdir()
    wrong.write_text("#!/bin/sh\necho a Python without any package >&2\nexit 3\n")
    wrong.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    environment["PATH"] = f"{wrong.parent}:/usr/bin:/bin"
    command = [sys.executable, "-c", OWN_SESSION, str(tmp_path)]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert told.returncode == 0, told.stderr[-2000:]
    assert int(told.stdout.split()[-1]) > 300


def family(session: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.Error):
            continue
    return found


def is_starting_java(session: int) -> bool:
    """Whether the shell that starts Java for Spark is there, or Java already: not one that tells its version."""
    for process in family(session):
        with contextlib.suppress(psutil.Error):
            if process.pid != session and "spark" in " ".join(process.cmdline()):
                return True
    return False


def test_ctrl_c_while_java_starts_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_text(
        "streams: {a: {schema: 'k long, ts timestamp', event_time: ts, source: {format: rate}}}\n"
        "queries: {q: {sql: 'SELECT x.k FROM a [RANGE 1 SECOND] x, a [RANGE 1 SECOND] y WHERE x.k = y.k'}}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "watersmeet", "check", str(tmp_path / "topology.yaml")],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )

    def check() -> None:
        assert process.poll() is None, process.stderr and process.stderr.read()

    try:
        wait_for(lambda: is_starting_java(process.pid), "Java is never started", check)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert process.stderr is not None and process.stderr.read() == "watersmeet: interrupted\n"
        wait_for(lambda: not family(process.pid), "a process is left")
    finally:
        for one in family(process.pid):
            one.kill()
