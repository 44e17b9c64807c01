"""`run --events FILE --metrics-port PORT`: what the command line does with the events of a run."""

import argparse
import contextlib
import re
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from scenes import PATIENCE_S, Scene, make_batches

from watersmeet import __version__
from watersmeet.cli import run
from watersmeet.cli.main import run_command
from watersmeet.cli.run import _watch
from watersmeet.errors import InputError
from watersmeet.metrics import prometheus
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import (
    Event,
    LinkCounts,
    MicroBatchCompleted,
    PlanInForce,
    RunEnded,
    RunStarted,
    RunWarning,
    from_json,
)
from watersmeet.metrics.jsonl import KEPT

STARTED = RunStarted(("ams",), ("q",), "1.2")


def make_bus() -> EventBus:
    return EventBus(clock=lambda: 5.0)


def options(events: Path | None = None, metrics_port: int | None = None) -> argparse.Namespace:
    return argparse.Namespace(log="text", events=None if events is None else str(events), metrics_port=metrics_port)


def get(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=PATIENCE_S) as response:
        return str(response.read().decode())


def test_events_go_to_a_file_and_to_prometheus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bus, path = make_bus(), tmp_path / "run.jsonl"
    bus.publish(STARTED)
    with _watch(bus, options(path, 0)):
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("watersmeet: metrics at http://127.0.0.1:")
        url = shown.err.split()[-1]
        assert "\nwatersmeet_run_active 1.0\n" in get(url)
        bus.publish(RunEnded("completed"))
    bus.publish(RunEnded("failed", "after it all"))
    assert [from_json(line) for line in path.read_text().splitlines()] == [
        (5.0, STARTED),
        (5.0, RunEnded("completed")),
    ]
    with pytest.raises(OSError, match="refused"):
        get(url)


def test_warnings_are_printed_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bus = make_bus()
    bus.publish(RunWarning(None, "q", "query 'q': the sink holds files of earlier runs"))
    with _watch(bus, options(tmp_path)):  # a directory
        bus.publish(RunEnded("completed"))
    bus.publish(RunWarning(None, "q", "too late"))
    assert capsys.readouterr().err.splitlines() == [
        "watersmeet: warning: query 'q': the sink holds files of earlier runs",
        f"watersmeet: warning: events are not written to {tmp_path} any more: Is a directory",
    ]


def test_a_port_in_use_ends_the_command(tmp_path: Path) -> None:
    exporter = prometheus.serve(EventBus(), 0)
    bus, path = make_bus(), tmp_path / "run.jsonl"
    try:
        with (
            pytest.raises(InputError, match="Address already in use; give another one"),
            _watch(bus, options(path, exporter.port)),
        ):
            pass
    finally:
        exporter.stop()
    bus.publish(STARTED)
    assert path.read_text() == ""  # its reader has been unsubscribed


def test_nothing_is_written_or_served_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with _watch(make_bus(), options()):
        pass
    assert capsys.readouterr() == ("", "")


# The whole command ----------------------------------------------------------------------------------------------------

AB, AC = ("FROM a [RANGE 2 SECONDS], {} [RANGE 2 SECONDS] WHERE a.k = {}.k".format(*2 * name) for name in "bc")
QUERIES = {"q": f"SELECT a.id AS a_id, b.id AS b_id {AB}", "r": f"SELECT DISTINCT a.m, c.m AS c_m {AC} AND c.m > 2"}


@pytest.fixture
def scraped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Prometheus would have read just before a run's exporter is stopped."""
    texts: list[str] = []
    serve = prometheus.serve

    def serve_and_scrape(bus: EventBus, port: int) -> prometheus.Exporter:
        exporter = serve(bus, port)

        def stop() -> None:
            texts.append(get(exporter.url))
            exporter.stop()

        return prometheus.Exporter(exporter.port, stop)

    monkeypatch.setattr(prometheus, "serve", serve_and_scrape)
    return texts


def events_of(path: Path) -> list[Event]:
    return [from_json(line)[1] for line in path.read_text(encoding="utf-8").splitlines()]


def summed(batches: list[MicroBatchCompleted], counts: str) -> Counter[str]:
    """Some counts of all micro-batches by stream or query."""
    whole: Counter[str] = Counter()
    for batch in batches:
        whole.update(getattr(batch, counts))
    return whole


@pytest.mark.parametrize("sites", [1, 2])
def test_a_run_tells_all_that_it_does(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    scraped: list[str],
    sites: int,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    homes = {} if sites == 1 else {"a": "ams", "b": "nyc", "c": "ams"}
    site = "here" if sites == 1 else "nyc"
    batches = {name: make_batches(seed, kinds=5) for seed, name in enumerate("abc")}
    scene = Scene(tmp_path, batches, QUERIES, homes, site).write()
    path = tmp_path / "run.jsonl"
    command = ["run", str(scene.topology_path), "--once", "--checkpoint", str(scene.checkpoint)]
    assert run_command([*command, "--events", str(path), "--metrics-port", "0"]) == 0
    shown = capsys.readouterr()
    assert re.fullmatch(r"watersmeet: metrics at http://127\.0\.0\.1:\d+/metrics\n", shown.err)
    scene.check(least=4)
    answers = {query: scene.expected(query).total() for query in QUERIES}

    events = events_of(path)
    assert events[0] == RunStarted(scene.sites, ("q", "r"), __version__)
    plans = [event for event in events if isinstance(event, PlanInForce)]
    assert [(plan.query, plan.version) for plan in plans] == [("q", 1), ("r", 1)]
    assert all("join 2 windows" in plan.plan_text for plan in plans)
    assert events[-1] == RunEnded("completed")
    completed = [event for event in events if isinstance(event, MicroBatchCompleted)]
    assert {batch.site for batch in completed} == set(scene.sites)
    for name in scene.sites:
        numbers = [batch.batch for batch in completed if batch.site == name]
        assert numbers == list(range(len(numbers)))
    assert summed(completed, "rows_in") == {name: scene.rows(name) for name in batches}
    reasons = {name: scene.reasons(name) for name in batches}
    for kind in ("late", "malformed"):
        wanted = {name: found[kind] for name, found in reasons.items()}
        assert min(wanted.values()) > 0
        assert summed(completed, kind) == wanted
    assert summed(completed, "answers") == answers
    assert all(sum(batch.phases.values()) <= batch.seconds * 1.01 for batch in completed)
    links = {(event.site, event.to, event.purpose): event.bytes for event in events if isinstance(event, LinkCounts)}
    assert bool(links) == (sites > 1)

    (metrics,) = scraped
    assert "\nwatersmeet_run_active 0.0\n" in metrics, "it is scraped after the end"
    for name in batches:
        labels = f'site="{scene.home(name)}",stream="{name}"'
        assert f"\nwatersmeet_input_rows_total{{{labels}}} {float(scene.rows(name))}\n" in metrics
        assert f"\nwatersmeet_late_rows_total{{{labels}}} {float(reasons[name]['late'])}\n" in metrics
    for query, count in answers.items():
        assert f'\nwatersmeet_answers_total{{query="{query}",site="{site}"}} {float(count)}\n' in metrics
    for (origin, to, purpose), size in links.items():
        labels = f'from="{origin}",purpose="{purpose}",to="{to}"'
        assert f"\nwatersmeet_link_bytes_total{{{labels}}} {float(size)}\n" in metrics

    rows = {"q": scene.rows("a") + scene.rows("b"), "r": scene.rows("a") + scene.rows("c")}
    table = re.sub(r"[│┃\s]+", " ", shown.out)
    assert " queries ┏" in table and "query rows in answers late failed state rows state shipped" in table
    for query in QUERIES:
        late = sum(reasons[name]["late"] for name in ("ab" if query == "q" else "ac"))
        assert f" {query} {rows[query]:,} {answers[query]:,} {late} 0 " in table
    late = sum(found["late"] for found in reasons.values())
    assert f" all, shared counted once {sum(map(scene.rows, batches)):,} {sum(answers.values()):,} {late} 0 " in table
    assert f"total {sum(links.values()):,} " in table or not links

    # Nothing new: the run says so, and its events are added to those that are there.
    assert run_command([*command, "--events", str(path)]) == 0
    assert capsys.readouterr() == ("q, r: nothing new since the last run with this checkpoint\n", "")
    added = events_of(path)[len(events) :]
    assert added[0] == events[0] and added[-1] == RunEnded("completed")
    assert not any(isinstance(event, MicroBatchCompleted) for event in added)


def test_for_machines_a_run_prints_its_events_and_nothing_else(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--log json`, and `--dashboard` beside it, which watches the checkpoint."""
    watched: list[tuple[Path, int]] = []

    def beside(checkpoint: Path, port: int) -> contextlib.nullcontext[None]:
        watched.append((checkpoint, port))
        return contextlib.nullcontext()

    monkeypatch.setattr(run, "dashboard_beside", beside)
    scene = Scene(tmp_path, {name: make_batches(seed) for seed, name in enumerate("ab")}, {"q": QUERIES["q"]}).write()
    command = ["run", str(scene.topology_path), "--once", "--checkpoint", str(scene.checkpoint)]
    assert run_command([*command, "--log", "json", "--dashboard"]) == 0
    shown = capsys.readouterr()
    events = [from_json(line)[1] for line in shown.out.splitlines()]
    assert shown.err == "" and isinstance(events[0], RunStarted) and events[-1] == RunEnded("completed")
    completed = [event for event in events if isinstance(event, MicroBatchCompleted)]
    assert summed(completed, "answers") == {"q": scene.expected("q").total()}
    kept = [*events_of(scene.checkpoint / KEPT)]
    assert [type(event) for event in events if event in kept] == [type(event) for event in events], "as it kept them"
    assert watched == [(scene.checkpoint, 0)]


def test_a_run_that_fails_says_why_in_its_events(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batches = {name: make_batches(seed) for seed, name in enumerate("ab")}
    sql = QUERIES["q"].replace("b.id AS b_id", "raise_error('so it goes') AS b_id")
    scene = Scene(tmp_path, batches, {"p": QUERIES["q"], "q": sql}).write()
    path = tmp_path / "run.jsonl"
    command = ["run", str(scene.topology_path), "--once", "--checkpoint", str(scene.checkpoint), "--quiet"]
    assert run_command([*command, "--events", str(path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and len(shown.err.splitlines()) == 1
    assert shown.err.startswith("watersmeet: query 'q' failed: ") and "so it goes" in shown.err
    ended = events_of(path)[-1]
    assert isinstance(ended, RunEnded) and ended.reason == "failed"
    assert ended.message.startswith("query 'q' failed: ") and "so it goes" in ended.message


def test_many_queries_are_one_run_and_one_table(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    batches = {name: make_batches(seed) for seed, name in enumerate("ab")}
    queries = {f"q{number}": f"{QUERIES['q']} AND a.m >= {number}" for number in range(6)}
    scene = Scene(tmp_path, batches, queries).write()
    command = ["run", str(scene.topology_path), "--once", "--checkpoint", str(scene.checkpoint)]
    assert run_command(command) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    scene.check(least=1)
    table = re.sub(r"[│┃\s]+", " ", shown.out)
    for query in queries:
        assert f" {query} {sum(map(scene.rows, batches)):,} {scene.expected(query).total():,} " in table
    assert "query q0" not in table and "sample of the answers" not in table, "more than one can read"
    assert run_command(command) == 0
    assert capsys.readouterr() == ("6 queries: nothing new since the last run with this checkpoint\n", "")
