"""Topologies simulated as sites: the answers of the oracle, delays computed by hand, and the command line."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from watersmeet.adapt.controller import GoOver
from watersmeet.adapt.decisions import Timetable
from watersmeet.cli.main import run_command
from watersmeet.dashboard import view
from watersmeet.dashboard.model import RunModel
from watersmeet.errors import InputError
from watersmeet.metrics.events import (
    Event,
    LinkCounts,
    MicroBatchCompleted,
    PlanChangeProposed,
    PlanDecision,
    PlanInForce,
    RunEnded,
    from_json,
    to_json,
)
from watersmeet.plan.nodes import join_plan_of
from watersmeet.planners.choose import choose
from watersmeet.program.site.agreement import DecidedBy
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.query.windows import Rows
from watersmeet.sim.scenario import sites as sites_module
from watersmeet.sim.scenario.load import load_simulated
from watersmeet.sim.scenario.model import Scenario, SitesScenario, System
from watersmeet.sim.scenario.simulate import simulate
from watersmeet.sim.scenario.sites import SiteCrash, simulate_sites
from watersmeet.sim.scenario.sites_outcome import AnswerDelays, AnswersChecked, SitesOutcome
from watersmeet.sim.scenario.sources import read_arrivals, read_stream, schema_of
from watersmeet.sim.sites.rows import typed
from watersmeet.topology.model import Source, Stream, Topology

ROOT = Path(__file__).resolve().parents[3]
SECOND = 1_000_000

TOPOLOGY = """\
sites: [ams, fra, nyc]
links:
  - {between: [ams, fra], latency: 8 ms, bandwidth: 1 Mbps, price_per_gb: 1}
default_link: {latency: 700 ms, bandwidth: 20 kbps, price_per_gb: 2}
streams:
  a:
    site: ams
    schema: "ts timestamp, k int, v double"
    event_time: ts
    watermark: 1 second
    source: {format: generator, options: {rows: 90, rows_per_second: 3, disorder: 3 seconds, seed: 1,
      column.k: null 0.1 uniform 0 6, column.v: uniform 0 1}}
  b:
    site: fra
    schema: "k long, name string, ts timestamp"
    event_time: ts
    source: {format: generator, options: {rows: 60, rows_per_second: 2, seed: 2, column.k: uniform 0 6,
      column.name: choice x y z}}
  c:
    site: nyc
    schema: "ts timestamp_ntz, name string, n long"
    event_time: ts
    watermark: 2 seconds
    source: {format: generator, options: {rows: 30, rows_per_second: 1, disorder: 2 seconds, seed: 3,
      column.name: choice x y w}}
queries:
  ranges:
    site: nyc
    sql: >
      SELECT a.k, a.v, b.name, c.n FROM a [RANGE 4 SECONDS], b [RANGE 3 SECONDS], c [RANGE 5 SECONDS]
      WHERE a.k = b.k AND b.name = c.name AND a.v < 0.8
    assume_defaults: true
    sink: {format: parquet, path: out/ranges}
  mixed:
    site: ams
    sql: >
      SELECT x.k, x.v + y.v AS w, b.name FROM a [ROWS 5] AS x, a [TUMBLE 5 SECONDS] AS y, b [RANGE 2 SECONDS]
      WHERE x.k = y.k AND x.v < y.v AND b.k = x.k
    assume_defaults: true
  counted_here:
    site: ams
    sql: SELECT x.k, x.v, y.v AS w FROM a [ROWS 4] AS x, a [RANGE 5 SECONDS] AS y WHERE x.k = y.k
  few:
    site: fra
    sql: SELECT DISTINCT b.name, a.k FROM a [UNBOUNDED], b [UNBOUNDED] WHERE a.k = b.k AND b.name <> 'z'
    assume_defaults: true
  later:
    site: nyc
    sql: SELECT b.k, c.n FROM b [UNBOUNDED], c [ROWS 3] WHERE b.name = c.name
    start: "2025-01-01 00:00:15"
    assume_defaults: true
"""
ROWS_SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64())])


def saved(tmp_path: Path, text: str = TOPOLOGY) -> Path:
    path = tmp_path / "topology.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def loaded(path: Path, system: System | None = None) -> SitesScenario:
    scenario = load_simulated(path, system)
    assert isinstance(scenario, SitesScenario)
    return scenario


def expected_answers(scenario: SitesScenario, *, symmetric: Sequence[str] = ()) -> dict[str, Bag]:
    """The reference semantics over the rows that are on time, told row by row."""
    topology = scenario.topology
    arriving = {stream.name: read_arrivals(stream) for stream in topology.streams}
    epoch_us = min(int(arrivals_us[0]) for _, arrivals_us in arriving.values())
    epoch_us -= epoch_us % scenario.trigger_us
    tables, marks = {}, {}
    for stream in topology.streams:
        rows, arrivals_us = arriving[stream.name]
        latest_us: dict[int, int] = {}  # event time of the rows of a micro-batch
        takes_part = []
        times_us = rows.column(stream.event_time).cast(pa.int64()).to_pylist()
        for ts_us, arrival_us in zip(times_us, arrivals_us.tolist(), strict=True):
            batch = (arrival_us - epoch_us) // scenario.trigger_us
            before_us = max((seen_us for number, seen_us in latest_us.items() if number < batch), default=None)
            takes_part.append(before_us is None or ts_us >= before_us - stream.watermark_us)
            latest_us[batch] = max(ts_us, latest_us.get(batch, ts_us))
        tables[stream.name] = rows.filter(pa.array(takes_part))
        marks[stream.name] = max(times_us) - stream.watermark_us
    event_times = {stream.name: stream.event_time for stream in topology.streams}
    found = {}
    for query in topology.queries:
        parsed = parse_query(query.sql, topology.columns, allow_cross=query.allow_cross)
        counted = [source.stream for source in parsed.sources if isinstance(source.window, Rows)]
        waited_for = [source.stream for source in parsed.sources] if counted and query.name in symmetric else counted
        before_us = min((marks[name] for name in waited_for), default=None)
        table = answer(parsed, tables, event_times, start_us=query.start_us, heads_before_us=before_us)
        found[query.name] = bag_of(table)
    return found


def bags(outcome: SitesOutcome) -> dict[str, Bag]:
    return {name: bag_of(table) for name, table in outcome.answers.items()}


@pytest.mark.few(2)
@pytest.mark.parametrize("planner", [None, "central", "greedy", "exhaustive"])
def test_every_query_has_the_answers_of_the_oracle(tmp_path: Path, planner: str | None) -> None:
    scenario = replace(loaded(saved(tmp_path)), planner=planner)
    outcome = simulate(scenario)
    expected = expected_answers(scenario, symmetric=["counted_here"])
    assert bags(outcome) == expected and all(bag.total() > 10 for bag in expected.values())
    summary = outcome.summary
    for name, query in summary.queries.items():
        assert query.checked == AnswersChecked(expected[name].total(), expected[name].total(), 0), name
        assert query.answers == expected[name].total() and query.delays is not None
        assert 0 < query.delays.median_us <= query.delays.p99_us
    assert summary.is_right and summary.tuples == 180
    assert summary.queries["counted_here"].planner == "local"
    assert {name: query.site for name, query in summary.queries.items()} == {
        query.name: query.site for query in scenario.topology.queries
    }
    assert {name: (site.rows_in, site.late > 0) for name, site in summary.sites.items()} == {
        "ams": (90, True),
        "fra": (60, False),
        "nyc": (30, False),
    }
    assert not (tmp_path / "out").exists(), "sinks are left alone"


@pytest.mark.few(2)
@pytest.mark.parametrize("planner", ["tree", "pmjoin", "optimal"])
def test_trees_have_the_answers_of_the_oracle(tmp_path: Path, planner: str) -> None:
    scenario = replace(loaded(saved(tmp_path)), planner=planner)
    queries = tuple(query for query in scenario.topology.queries if query.name in ("ranges", "few"))
    scenario = replace(scenario, topology=replace(scenario.topology, queries=queries))
    outcome = simulate(scenario)
    assert bags(outcome) == expected_answers(scenario) and outcome.summary.is_right
    assert {query.planner for query in outcome.summary.queries.values()} == {planner}


@pytest.mark.few(1)
@pytest.mark.parametrize("trigger_us", [300_000, 7 * SECOND])
def test_a_trigger_decides_which_rows_are_late_and_changes_no_other_answer(tmp_path: Path, trigger_us: int) -> None:
    scenario = replace(loaded(saved(tmp_path)), trigger_us=trigger_us)
    outcome = simulate(scenario)
    assert bags(outcome) == expected_answers(scenario, symmetric=["counted_here"])
    assert outcome.summary.is_right


def test_traffic_is_told_by_link_and_purpose_beside_central(tmp_path: Path) -> None:
    summary = simulate(replace(loaded(saved(tmp_path)), planner="central")).summary
    links = summary.data["links"]
    assert {(link["from"], link["to"]) for link in links} == {
        ("ams", "fra"),
        ("ams", "nyc"),
        ("fra", "ams"),
        ("fra", "nyc"),
    }
    assert {link["purpose"] for link in links} == {"full tuples", "watermarks"}
    full = [link for link in links if link["purpose"] == "full tuples"]
    assert all(link["bytes"] > 0 and 0 < link["messages"] <= link["tuples"] for link in full)
    assert sum(link["bytes"] for link in links) == summary.traffic.bytes == summary.data["bytes"]
    per_gb = {("ams", "fra"): 1, ("fra", "ams"): 1, ("ams", "nyc"): 2, ("fra", "nyc"): 2}
    for link in links:
        assert link["price"] == pytest.approx(link["bytes"] * per_gb[link["from"], link["to"]] / 1e9)
    assert summary.traffic.central_bytes > 0


def test_the_same_scenario_gives_the_same_bytes(tmp_path: Path) -> None:
    scenario = replace(loaded(saved(tmp_path)), seed=4)

    def told() -> tuple[list[str], str]:
        lines: list[str] = []
        outcome = simulate(scenario, events=lambda at, event: lines.append(to_json(event, at)))
        return lines, json.dumps(
            [outcome.summary.data, {n: t.to_pylist() for n, t in outcome.answers.items()}], default=str
        )

    first = told()
    assert first == told() and json.loads(first[1])[0]["seed"] == 4


def test_events_tell_of_every_micro_batch_in_virtual_time(tmp_path: Path) -> None:
    told: list[tuple[float, Event]] = []
    summary = simulate(loaded(saved(tmp_path)), events=lambda at, event: told.append((at, event))).summary
    assert [at for at, _ in told] == sorted(at for at, _ in told)
    assert isinstance(told[-1][1], RunEnded) and told[-1][1].reason == "completed"
    batches = [(at, event) for at, event in told if isinstance(event, MicroBatchCompleted)]
    assert all(at == int(at) for at, _ in batches), "one at every second at most"
    for name, site in summary.sites.items():
        own = [event for _, event in batches if event.site == name]
        assert len(own) == site.micro_batches and max(event.state_rows for event in own) == site.peak_state_rows
        assert sum(sum(event.rows_in.values()) for event in own) == site.rows_in
        assert sum(sum(event.late.values()) for event in own) == site.late
    for name, query in summary.queries.items():
        assert sum(event.answers.get(name) or 0 for _, event in batches) == query.answers
    last = {(e.site, e.to, e.purpose): e.bytes for _, e in told if isinstance(e, LinkCounts)}
    assert sum(last.values()) == summary.traffic.bytes


# Delays by hand


def two_sites(
    tmp_path: Path,
    streams: Mapping[str, Sequence[tuple[float, int]]],
    *,
    link: str = "{latency: 80 ms}",
    select: str = "SELECT a.k, b.ts",
    watermark: str = "0 seconds",
    window: str = "[RANGE 1 MINUTE]",
) -> SitesScenario:
    """Stream a at ams and b at nyc, given as (second, k); a query at nyc that gets all rows of a."""
    lines = ["sites: [ams, nyc]", f"default_link: {link}", "streams:"]
    for name, site in (("a", "ams"), ("b", "nyc")):
        stamps = pa.array([round(second * SECOND) for second, _ in streams[name]], pa.int64())
        columns = [stamps.cast(ROWS_SCHEMA.field("ts").type), pa.array([k for _, k in streams[name]], pa.int64())]
        (tmp_path / name).mkdir(exist_ok=True)
        pq.write_table(pa.table(columns, schema=ROWS_SCHEMA), tmp_path / name / "rows.parquet")
        lines += [f"  {name}:", f"    site: {site}", '    schema: "ts timestamp, k long"', "    event_time: ts"]
        lines += [f"    watermark: {watermark}", f"    source: {{format: parquet, path: {name}}}"]
    sql = f"{select} FROM a {window}, b {window} WHERE a.k = b.k"
    lines += ["queries:", f"  q: {{site: nyc, planner: central, sql: '{sql}'}}", ""]
    return loaded(saved(tmp_path, "\n".join(lines)))


@pytest.mark.parametrize(
    ("trigger_us", "link", "delivered_s"),
    [
        # a arrives at 100.3 s. It is ingested at the next trigger, is under way for 80 ms, and is joined at the next.
        (SECOND, "{latency: 80 ms}", 102.0),
        (100_000, "{latency: 80 ms}", 100.6),  # b itself is ingested at 100.6 s, when a has been there for long
        (100_000, "{latency: 230 ms}", 100.7),
        (SECOND, "{latency: 1080 ms}", 103.0),
        (SECOND, "{latency: 80 ms, bandwidth: 100 bps}", None),  # half a minute to leave
    ],
)
def test_a_delay_is_that_of_triggers_and_links(
    tmp_path: Path, trigger_us: int, link: str, delivered_s: float | None
) -> None:
    scenario = two_sites(tmp_path, {"a": [(100.3, 1)], "b": [(100.5, 1)]}, link=link)
    summary = simulate(replace(scenario, trigger_us=trigger_us)).summary
    query = summary.queries["q"]
    assert query.answers == 1 and query.delays is not None
    if delivered_s is None:
        leaving_s = summary.traffic.bytes * 8 / 100
        assert leaving_s > 3
        delivered_s = float(np.ceil(101 + leaving_s + 0.08))
    assert query.delays.median_us == query.delays.p99_us == round((delivered_s - 100.5) * SECOND)


def test_answers_that_are_equal_are_matched_in_order(tmp_path: Path) -> None:
    rows = {"a": [(10.2, 1)], "b": [(11.1, 1), (11.6, 1), (13.9, 1)]}
    query = simulate(two_sites(tmp_path, rows, select="SELECT a.k")).summary.queries["q"]
    assert query.answers == 3 and query.delays == AnswerDelays(400_000, 900_000)  # 0.9, 0.4 and 0.1 s to a trigger
    query = simulate(two_sites(tmp_path, rows, select="SELECT DISTINCT a.k")).summary.queries["q"]
    assert query.answers == 1 and query.checked.is_right
    assert query.delays == AnswerDelays(900_000, 900_000), "of its first combination"


def test_a_late_row_takes_no_part_and_one_within_the_delay_does(tmp_path: Path) -> None:
    rows = {"a": [(10.2, 1), (20.2, 1), (12.0, 2), (20.3, 3)], "b": [(19.0, 1), (19.1, 2), (22.0, 3)]}
    early = simulate(replace(two_sites(tmp_path, rows), trigger_us=10 * SECOND))
    assert early.summary.answers == 4, "12 s comes in one micro-batch with 20.2 s: nothing is late"
    rows["a"] = [(10.2, 1), (20.2, 1), (31.0, 9), (20.3, 3)]
    outcome = simulate(two_sites(tmp_path, rows))
    assert outcome.summary.sites["ams"].late == 0, "20.3 s comes with 31 s, behind which it stands"
    rows["a"] = [(10.2, 1), (20.2, 1), (31.0, 9), (32.0, 9), (20.3, 3)]
    outcome = simulate(two_sites(tmp_path, rows))
    assert outcome.summary.sites["ams"].late == 1 and outcome.summary.answers == 2 and outcome.summary.is_right
    outcome = simulate(two_sites(tmp_path, rows, watermark="12 seconds"))
    assert outcome.summary.sites["ams"].late == 0 and outcome.summary.answers == 3 and outcome.summary.is_right


def test_an_empty_stream_and_a_query_without_answers(tmp_path: Path) -> None:
    for window in ("[RANGE 1 MINUTE]", "[ROWS 3]"):
        outcome = simulate(two_sites(tmp_path, {"a": [], "b": [(1.0, 1)]}, window=window))
        figures = outcome.summary.queries["q"]
        assert (figures.answers, figures.delays, figures.checked) == (0, None, AnswersChecked(0, 0, 0))
        assert outcome.answers["q"].schema.names == ["k", "ts"], "Parquet has columns all the same"
    with pytest.raises(InputError, match="there is nothing to simulate: no stream has a tuple with an event time"):
        simulate(two_sites(tmp_path, {"a": [], "b": []}))


def test_the_oracle_finds_what_is_missing_and_what_is_surplus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = sites_module._answers

    def forged(*given: Any) -> tuple[pa.Table, Any]:
        table, delivered_us = honest(*given)
        kept = pc.not_equal(table.column("k"), 1)
        values = pc.if_else(pc.equal(table.column("k"), 2), 5, table.column("k"))
        return table.set_column(0, "k", values).filter(kept), delivered_us[kept.to_numpy()]

    monkeypatch.setattr(sites_module, "_answers", forged)
    monkeypatch.setenv("COLUMNS", "140")
    scenario = two_sites(tmp_path, {"a": [(1.0, 1), (2.0, 2), (3.0, 3)], "b": [(4.0, 1), (4.0, 2), (4.0, 3)]})
    assert simulate(scenario).summary.queries["q"].checked == AnswersChecked(expected=3, right=1, surplus=1)
    path = str(tmp_path / "topology.yaml")
    assert run_command(["simulate", path, "--check"]) == 1
    assert "2 missing of 3, 1 surplus" in capsys.readouterr().out
    assert run_command(["simulate", path]) == 0
    assert "2 missing of 3, 1 surplus" in capsys.readouterr().out, "told even if nobody asked"
    assert run_command(["simulate", path, "--check", "--quiet"]) == 1
    assert "2 answers, wrong, " in capsys.readouterr().out


# When rows arrive


def test_rows_of_a_file_arrive_in_order_and_at_their_event_times(tmp_path: Path) -> None:
    scenario = two_sites(tmp_path, {"a": [(3, 1), (1, 2), (4, 3), (2, 4), (5, 5)], "b": []})
    rows, arrivals_us = read_arrivals(scenario.topology.stream("a"), 4)
    assert rows.column("k").to_pylist() == [1, 2, 3, 4]
    assert arrivals_us.tolist() == [3 * SECOND, 3 * SECOND, 4 * SECOND, 4 * SECOND]
    rows, arrivals_us = read_arrivals(scenario.topology.stream("b"))
    assert rows.num_rows == len(arrivals_us) == 0


@pytest.mark.parametrize("nulls", ["", "null 0.3 time"])
def test_rows_of_a_generator_arrive_at_its_rate_and_disorder_sets_event_times_back(nulls: str) -> None:
    options = {"rows": "400", "rows_per_second": "8", "disorder": "2 seconds", "start": "1970-01-02"}
    options |= {"column.ts": nulls} if nulls else {}
    stream = Stream("a", event_time="ts", schema="n long, ts timestamp", source=Source("generator", options=options))
    rows, arrivals_us = read_arrivals(stream)
    assert rows.equals(read_stream(stream)) and (rows.num_rows < 400) == bool(nulls)
    assert (arrivals_us == 86_400 * SECOND + rows.column("n").to_numpy() * SECOND // 8).all()
    back_us = arrivals_us - rows.column("ts").cast(pa.int64()).to_numpy()
    assert back_us.min() >= 0 and SECOND < back_us.max() <= 2 * SECOND
    some, some_us = read_arrivals(stream, 30)
    assert some.equals(rows.slice(0, 30)) and (some_us == arrivals_us[:30]).all()


# The command line


def test_the_wan_example_is_simulated_as_sites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example, trace = str(ROOT / "examples" / "wan" / "topology.yaml"), tmp_path / "trace.jsonl"
    options = ["--tuples", "30000", "--trigger", "10 seconds", "--check", "--format", "json", "--seed", "6"]
    assert run_command(["simulate", example, *options, "--out", str(tmp_path), "--trace", str(trace)]) == 0
    figures = json.loads(capsys.readouterr().out)
    (query,) = figures["queries"].values()
    assert query["planner"] == "auto" and query["check"]["is_right"] and query["check"]["expected"] > 0
    assert (figures["system"], figures["seed"], figures["tuples"]) == ("sites", 6, 90_000)
    assert figures["trigger_us"] == 10 * SECOND and figures["wall_s"] > 0
    assert query["answers"] == pq.read_table(tmp_path / "everywhere.parquet").num_rows
    assert 0 < figures["bytes"] < figures["central_bytes"] / 10
    assert {link["purpose"] for link in figures["links"]} >= {"filters", "watermarks"}
    assert all(link["estimated_bytes"] >= 0 for link in figures["links"])
    events = [from_json(line)[1] for line in trace.read_text(encoding="utf-8").splitlines()]
    assert sum(isinstance(event, MicroBatchCompleted) for event in events) == sum(
        site["micro_batches"] for site in figures["sites"].values()
    )
    assert run_command(["simulate", example, *options, "--planner", "central"]) == 0
    central = json.loads(capsys.readouterr().out)
    assert central["queries"]["everywhere"]["planner"] == "central"
    assert central["queries"]["everywhere"]["answers"] == query["answers"]
    assert central["bytes"] == pytest.approx(figures["central_bytes"], rel=0.3)


def test_tables_and_a_line_tell_what_was_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    path = str(saved(tmp_path))
    assert run_command(["simulate", path, "--check", "--out", str(tmp_path / "answers")]) == 0
    shown = capsys.readouterr().out
    for text in ("seed 1: 180 tuples", "every 1 second", "99th percentile", "oracle", "ams -> nyc", "peak state rows"):
        assert text in shown
    assert shown.count("right") == 5 and "central would ship about" in shown
    assert shown.count("written to ") == 5 == len(list((tmp_path / "answers").iterdir()))
    assert run_command(["simulate", path]) == 0
    assert "oracle" not in capsys.readouterr().out
    assert run_command(["simulate", path, "--quiet", "--tuples", "20", "--check"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("seed 1: ") and " answers, right, " in line and line.count("\n") == 1


def test_the_number_of_sites_decides_unless_a_system_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path)
    assert isinstance(load_simulated(path, System.RJOIN), Scenario)
    one = TOPOLOGY.replace("[ams, fra, nyc]", "[here]").split("links:")[0] + "streams:" + TOPOLOGY.split("streams:")[1]
    for site in ("ams", "fra", "nyc"):
        one = one.replace(f"site: {site}", "site: here")
    path = saved(tmp_path, one)
    assert isinstance(load_simulated(path), Scenario)
    assert run_command(["simulate", str(path), "--system", "sites", "--check", "--format", "json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["links"] == [] and figures["bytes"] == figures["central_bytes"] == 0
    assert list(figures["sites"]) == ["here"] and all(q["answers"] > 10 for q in figures["queries"].values())
    delays = [query["delay"]["p99_us"] for query in figures["queries"].values() if query["site"] == "here"]
    assert len(delays) == 5 and min(delays) <= SECOND, "without links an answer waits for its trigger only"
    assert "queries" in run_json(["simulate", str(path), "--nodes", "20", "--tuples", "9"], capsys)


def run_json(command: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert run_command([*command, "--format", "json"]) == 0
    figures: dict[str, object] = json.loads(capsys.readouterr().out)
    return figures


WITH_VIEW = """views:
  v: {sql: "SELECT k FROM a", site: ams}
queries:
  over: {sql: "SELECT k FROM v", site: nyc}"""


@pytest.mark.parametrize(
    ("old", "new", "options", "sentence"),
    [
        ("", "", ["--system", "site"], "unknown system 'site'; did you mean 'sites'?"),
        ("", "", ["--nodes", "9"], "--nodes is an option of the system rjoin; leave it out, or add --system rjoin"),
        (
            "",
            "",
            ["--strategy", "worst"],
            "--strategy is an option of the system rjoin; leave it out, or add --system rjoin",
        ),
        ("", "", ["--system", "rjoin", "--check"], "--check is an option of the system sites"),
        ("", "", ["--system", "rjoin", "--trigger", "1 s"], "--trigger is an option of the system sites"),
        ("", "", ["--trigger", "0 seconds"], "--trigger: '0 seconds' must be positive"),
        ("", "", ["--trigger", "often"], "--trigger: "),
        ("", "", ["--trigger", "10 us"], "trigger must be 1 millisecond or longer, not 10 micros"),
        ("", "", ["--tuples", "0"], "tuples must be 1 or more, not 0"),
        ("", "", ["--planner", "greed"], "query 'ranges': unknown planner 'greed'; did you mean 'greedy'"),
        ("", "", ["--trace", "nowhere/t.jsonl"], "--trace nowhere/t.jsonl: there is no such directory"),
        ("rows: 60, ", "", [], "stream 'b': its generator never ends and cannot be simulated"),
        ("k long, name", "k double, name", [], "query 'ranges': `a.k` is int32 and `b.k` is double: the simulator"),
        ("a.v < 0.8", "crc32(a.v) < 9", [], "query 'ranges': the simulator evaluates expressions by DuckDB, which"),
        ("a.v < 0.8", "a.x < 0.8", [], "query 'ranges': line 1, column 137: 'a' has no column 'x'"),
        ("    site: nyc\n    sql", "    sql", [], "query 'ranges' does not say where its answers are wanted"),
        ("queries:", "queries: {}\nnothing:", [], "unknown key 'nothing'"),
        ("queries:", WITH_VIEW, ["--system", "rjoin"], "query 'over' reads a view or has several SELECTs, which"),
    ],
)
def test_one_sentence_for_every_slip(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
    options: list[str],
    sentence: str,
) -> None:
    text = TOPOLOGY.replace(old, new, 1) if old else TOPOLOGY
    assert run_command(["simulate", str(saved(tmp_path, text)), *options]) == 2
    told = capsys.readouterr()
    assert sentence in told.err and told.err.count("\n") == 1 and not told.out


def test_a_scenario_is_not_run_by_sites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, "network: {nodes: 9}\nworkload: {}\n")
    assert run_command(["simulate", str(path), "--system", "sites"]) == 2
    assert capsys.readouterr().err == f"watersmeet: {path}: system sites is run from a topology with sites\n"
    scenario = loaded(saved(tmp_path))
    with pytest.raises(InputError, match="there is nothing to simulate: the topology has no queries"):
        simulate(replace(scenario, topology=replace(scenario.topology, queries=())))


PHASES = """\
sites: [ams, fra, nyc]
default_link: {latency: 1 ms, bandwidth: 50 kbps}
adapt: {mode: MODE, min_interval: 10 seconds}
streams:
  a: &router
    site: ams
    schema: "ts timestamp, k long"
    event_time: ts
    source: {format: parquet, path: a.parquet}
    stats: {rate: 20, columns: {k: {distinct: 100}}}
  b: {<<: *router, site: fra, source: {format: parquet, path: b.parquet}}
  c: {<<: *router, site: nyc, source: {format: parquet, path: c.parquet}}
queries:
  q:
    site: ams
    sql: SELECT a.k FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND], c [RANGE 1 SECOND] WHERE a.k = b.k AND b.k = c.k
    assume_defaults: true
"""


CHANGE_S = 25


def routers(place: Path, mode: str, busy: int) -> SitesScenario:
    random = np.random.default_rng(1)
    for name in "abc":
        rates = [20] * CHANGE_S + [busy if name == "c" else 20] * CHANGE_S
        ts = np.concatenate([second * SECOND + np.arange(rate) * SECOND // rate for second, rate in enumerate(rates)])
        times = pa.array(ts).cast(pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"ts": times, "k": random.integers(0, 100, len(ts))}), place / f"{name}.parquet")
    path = place / "topology.yaml"
    path.write_text(PHASES.replace("MODE", mode))
    scenario = load_simulated(path)
    assert isinstance(scenario, SitesScenario)
    return scenario


def lacking(topology: Topology) -> Topology:
    """The same streams, with rows of two of them that the third has no partner for."""
    (query,) = topology.queries
    sql = query.sql.replace(", c [RANGE 1 SECOND] WHERE a.k = b.k AND b.k = c.k", "")
    sql = f"{sql.replace(', b [', ' JOIN b [')} ON a.k = b.k LEFT JOIN c [RANGE 1 SECOND] ON b.k = c.k"
    return replace(topology, queries=(replace(query, sql=sql),))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("mode", "busy", "outer"),
    [("cnu", 20, False), ("cnu", 200, False), ("planner", 200, False), ("cnu", 200, True)],
)
def test_sites_go_over_to_the_plans_that_are_decided_on(mode: str, busy: int, outer: bool, tmp_path: Path) -> None:
    """Three routers; one becomes ten times as busy in the middle, or stays as it is."""
    scenario = routers(tmp_path, mode, busy)
    scenario = replace(scenario, topology=lacking(scenario.topology)) if outer else scenario
    seen: list[tuple[float, Event]] = []
    outcome = simulate(scenario, events=lambda at, event: seen.append((at, event)))
    decisions = [(at, event) for at, event in seen if isinstance(event, PlanDecision)]
    accepted = [at for at, event in decisions if event.accepted]
    assert (len(accepted) > 0) == (busy == 200)
    assert all(CHANGE_S < at < 2 * CHANGE_S for at in accepted)
    in_force = [at for at, event in seen if isinstance(event, PlanInForce) and event.version > 1]
    assert len(in_force) == len(accepted) and all(before < at for before, at in zip(accepted, in_force, strict=True))
    assert isinstance(outcome, SitesOutcome) and outcome.summary.is_right
    observed = [row for row in outcome.summary.traffic.rows if row.purpose == "observations"]
    assert {(row.origin, row.to) for row in observed if row.traffic.bytes} == {("fra", "ams"), ("nyc", "ams")}
    assert [from_json(to_json(event, at))[1] for at, event in decisions] == [event for _, event in decisions]
    model = RunModel()
    for at, event in seen:
        model.read("run", at, event)
    (query,) = view.snapshot(model, seen[-1][0])["queries"]
    shipped = {flow["flow"]: flow["measured_s"] for flow in query["flows"] if flow["expected_s"]}
    assert shipped and all(shipped.values()), "what is expected is beside what was measured, by flow"
    if accepted:
        assert any("#2" in flow for flow in shipped), "a stream goes to a further site with the new plan"
        assert all("#2" in flow or "~2" in flow or flow in "abc" for flow in shipped)


@pytest.mark.parametrize(
    ("mode", "trigger_s", "seed"),
    [
        ("planner", 30, 2),
        *(pytest.param(mode, 1, 1, marks=pytest.mark.soak) for mode in ("cnu", "dnu", "planner")),
        *(pytest.param("planner", 30, seed, marks=pytest.mark.soak) for seed in range(3, 33)),
        *(pytest.param("cnu", 30, seed, marks=pytest.mark.soak) for seed in range(3, 33)),
    ],
)
def test_no_plan_changes_in_an_hour_in_which_nothing_does(mode: str, trigger_s: int, seed: int, tmp_path: Path) -> None:
    """Going over to the first plan makes rows of a stream wait, which must not look like a higher rate (seed 2)."""
    random = np.random.default_rng(seed)
    for name in "abc":
        ts = np.sort(random.integers(0, 3_600 * SECOND, random.poisson(20 * 3_600)))
        times = pa.array(ts).cast(pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"ts": times, "k": random.integers(0, 100, len(ts))}), tmp_path / f"{name}.parquet")
    (tmp_path / "topology.yaml").write_text(PHASES.replace("MODE", mode))
    scenario = load_simulated(tmp_path / "topology.yaml")
    assert isinstance(scenario, SitesScenario)
    changes: list[float] = []
    scenario = replace(scenario, trigger_us=trigger_s * SECOND)
    outcome = simulate_sites(
        scenario, events=lambda at, event: changes.append(at) if isinstance(event, PlanChangeProposed) else None
    )
    assert outcome.summary.is_right and outcome.summary.virtual_us > 3_590 * SECOND
    # The first plan was made without sizes and values of rows: the one for what is observed may be another.
    assert all(at < 10 * trigger_s for at in changes) and len(changes) <= 1
    reported = [row.traffic.bytes for row in outcome.summary.traffic.rows if row.purpose == "observations"]
    assert 0 < sum(reported) < 0.03 * outcome.summary.traffic.bytes


GROUPED = """\
  per_name:
    site: nyc
    sql: >
      SELECT b.name, count(*) AS n, avg(a.v) AS mean, approx_top_k(a.k, 2) AS top, window_end FROM a [RANGE 4 SECONDS],
      b [RANGE 3 SECONDS] WHERE a.k = b.k GROUP BY b.name, HOP(6 SECONDS, 2 SECONDS) HAVING n > 1
    assume_defaults: true
  running:
    site: fra
    sql: >
      SELECT a.k, sum(a.v) AS s, max(b.name) AS m FROM a [RANGE 4 SECONDS], b [UNBOUNDED] WHERE a.k = b.k GROUP BY a.k
      EMIT CHANGES
    assume_defaults: true
  alone:
    site: fra
    sql: SELECT count(*) AS n, sum(c.n) AS s FROM c GROUP BY TUMBLE(5 SECONDS)
"""


@pytest.mark.few(2)
@pytest.mark.parametrize("planner", ["central", "greedy", "tree"])
def test_groups_and_changes_are_checked_by_the_oracle(
    tmp_path: Path, planner: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TOPOLOGY[: TOPOLOGY.index("queries:")] + "queries:\n" + GROUPED
    outcome = simulate(replace(loaded(saved(tmp_path, text)), planner=planner))
    for name, query in outcome.summary.queries.items():
        assert query.checked.is_right and query.checked.expected > 4, name
        assert query.delays is not None and 0 <= query.delays.median_us < 30 * SECOND
    sent = {row.purpose for row in outcome.summary.traffic.rows}
    assert "partial aggregates" in sent
    assert run_command(["simulate", str(saved(tmp_path, text)), "--check", "--planner", planner]) == 0
    assert "per_name" in capsys.readouterr().out


JOINED = "FROM a [RANGE 4 SECONDS], b [RANGE 3 SECONDS], c [RANGE 5 SECONDS] WHERE a.k = b.k AND b.name = c.name"
GROUPINGS = {
    "by_key": f"SELECT a.k, count(*) AS n, max(c.n) AS m {JOINED} GROUP BY a.k, TUMBLE(5 SECONDS)",
    "by_name": f"SELECT b.name, sum(a.v) AS m {JOINED} GROUP BY b.name, HOP(6 SECONDS, 2 SECONDS)",
}


def test_different_groups_of_one_join_share_what_the_join_ships(tmp_path: Path) -> None:
    def run(*names: str) -> tuple[dict[tuple[str, str, str], int], dict[str, Bag]]:
        queries = "".join(f"  {n}: {{site: fra, sql: '{GROUPINGS[n]}', assume_defaults: true}}\n" for n in names)
        text = TOPOLOGY[: TOPOLOGY.index("queries:")] + "queries:\n" + queries
        outcome = simulate(replace(loaded(saved(tmp_path, text)), planner="greedy"))
        assert outcome.summary.is_right
        links = outcome.summary.data["links"]
        return {(each["from"], each["to"], each["purpose"]): each["tuples"] for each in links}, bags(outcome)

    together, answers = run("by_key", "by_name")
    joined = {key: tuples for key, tuples in together.items() if key[2] != "partial aggregates"}
    assert sum(joined.values()) > 0
    for name in GROUPINGS:
        alone, bag = run(name)
        assert bag[name] == answers[name]
        assert joined == {key: tuples for key, tuples in alone.items() if key[2] != "partial aggregates"}


def test_a_group_is_due_when_all_watermarks_have_passed_its_window(tmp_path: Path) -> None:
    rows = {"a": [(1.2, 1), (6.4, 1), (9.1, 2)], "b": [(1.3, 1), (7.7, 2), (11.2, 1)]}
    scenario = two_sites(tmp_path, rows)
    (query,) = scenario.topology.queries
    grouped = replace(query, sql=f"{query.sql.replace('a.k, b.ts', 'count(*) AS n')} GROUP BY TUMBLE(5 SECONDS)")
    scenario = replace(scenario, topology=replace(scenario.topology, queries=(grouped,)))
    figures = simulate(scenario).summary.queries["q"]
    # That of second 5 is due with b's row of 7.7 s and answered at 8 s: a's row of 6.4 s has come over by then. That of
    # second 10 would need a row of a.
    assert figures.answers == 1 and figures.checked == AnswersChecked(1, 1, 0)
    assert figures.delays == AnswerDelays(300_000, 300_000)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("mode", "form", "after_us", "down_us"),
    [
        ("cnu", DecidedBy.COORDINATED, -2 * SECOND, 12 * SECOND),  # before it has decided: another site does
        ("cnu", DecidedBy.COORDINATED, 3 * SECOND // 2, 12 * SECOND),  # others know of it, and decide by themselves
        ("planner", DecidedBy.POINT_TO_POINT, SECOND // 10, 8 * SECOND),  # with the request on its disk
    ],
)
def test_another_site_takes_over_where_the_coordinator_crashes(
    mode: str, form: DecidedBy, after_us: int, down_us: int, tmp_path: Path
) -> None:
    scenario = routers(tmp_path, mode, 200)
    seen: list[tuple[float, Event]] = []

    def take(at: float, event: Event) -> None:
        seen.append((at, event))

    if after_us > 0:
        simulate_sites(scenario, events=take, form=form)
        decided_us = next(round(at * SECOND) for at, one in seen if isinstance(one, PlanDecision) and one.accepted)
        seen.clear()
    else:
        decided_us = (CHANGE_S + 4) * SECOND
    crash = SiteCrash("ams", decided_us + after_us, down_us)
    outcome = simulate_sites(scenario, events=take, form=form, crashes=[crash])
    assert outcome.summary.is_right
    accepted = [event for _, event in seen if isinstance(event, PlanDecision) and event.accepted]
    in_force = [event for _, event in seen if isinstance(event, PlanInForce) and event.version > 1]
    assert accepted and in_force


def test_a_plan_that_needs_what_was_not_stored_is_refused(tmp_path: Path) -> None:
    """Keys that are hashed in one plan and not in the other: rows of the past have one of them only."""
    scenario = routers(tmp_path, "planner", 20)
    (query,) = scenario.topology.queries
    parsed = parse_query(query.sql, scenario.topology.columns)
    schemas = {stream.name: schema_of(stream) for stream in scenario.topology.streams}
    joins = [join_plan_of(choose(scenario.topology, query, one).plan) for one in (typed(parsed, schemas), parsed)]
    timetable = Timetable({"q": joins[0]}, [(10 * SECOND, GoOver("q", joins[1], 2, "to try"))])
    seen: list[Event] = []
    outcome = simulate_sites(scenario, decider=timetable, events=lambda at, event: seen.append(event))
    assert outcome.summary.is_right and any(isinstance(event, PlanChangeProposed) for event in seen)
    assert {event.version for event in seen if isinstance(event, PlanInForce)} == {1}


@pytest.mark.soak
def test_the_rush_example_changes_its_plan_and_plots_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, plot = ROOT / "examples/rush/topology.yaml", tmp_path / "rush.svg"
    assert run_command(["simulate", str(path), "--check", "--plot", str(plot), "--trigger", "2 seconds"]) == 0
    shown = capsys.readouterr().out
    assert "query everywhere: version 2 of its plan was decided on after " in shown
    text = plot.read_text()
    assert all(name in text for name in ("adaptive", "first plan", "last plan"))


def test_tables_are_read_once_and_shipped_under_a_purpose_of_their_own(tmp_path: Path) -> None:
    prices = pa.array(map(Decimal, range(6)), pa.decimal128(21, 1))
    kinds = pa.table({"k": pa.array(range(6), pa.int32()), "kind": list("uvwxyz"), "price": prices})
    pq.write_table(kinds, tmp_path / "kinds.parquet")
    tables = """\
tables:
  kinds:
    site: nyc
    schema: "k int, kind string, price decimal(21, 1)"
    source: {format: parquet, path: kinds.parquet}
queries:
  priced: {site: ams, sql: "SELECT a.v, coalesce(t.price, 0) AS price FROM a LEFT JOIN kinds t ON a.k = t.k"}
  looked_up: {site: ams, sql: "SELECT a.v, t.kind FROM a JOIN kinds t ON a.k = t.k WHERE t.kind <> 'w'"}
  three:
    site: ams
    sql: SELECT a.v, b.name, t.kind FROM a [RANGE 4 SECONDS], b [ROWS 3], kinds t WHERE a.k = b.k AND a.k = t.k
  counted:
    site: fra
    sql: SELECT t.kind, count(*) AS n FROM a, kinds t WHERE a.k = t.k GROUP BY t.kind, TUMBLE(5 SECONDS)
"""
    text = TOPOLOGY[: TOPOLOGY.index("queries:")] + tables
    outcome = simulate(load_simulated(saved(tmp_path, text)))
    assert isinstance(outcome, SitesOutcome)
    for name, figures in outcome.summary.queries.items():
        assert figures.checked.surplus == 0 and figures.checked.right == figures.checked.expected > 10, name
    with pytest.raises(InputError, match="table 'kinds': the simulator infers no columns; give it a schema"):
        simulate(
            load_simulated(
                saved(tmp_path, text.replace('    schema: "k int, kind string, price decimal(21, 1)"\n', ""))
            )
        )


VIEWS = """\
sites: [ams, fra, nyc]
default_link: {latency: 20 ms}
streams:
  a:
    site: ams
    schema: "ts timestamp, k int, v double"
    event_time: ts
    watermark: 1 second
    source: {format: generator, options: {rows: 400, rows_per_second: 20, disorder: 2 seconds, seed: 1,
      column.k: null 0.1 uniform 0 20, column.v: uniform 0 1}}
    stats: {rate: 20, columns: {k: {distinct: 20, bytes: 2}, v: {distinct: 1000, bytes: 8}}}
  b:
    site: fra
    schema: "k int, name string, ts timestamp"
    event_time: ts
    source: {format: generator, options: {rows: 100, rows_per_second: 5, seed: 2, column.k: uniform 0 20,
      column.name: choice x y z}}
    stats: {rate: 5, columns: {k: {distinct: 20, bytes: 2}, name: {distinct: 3, bytes: 2}}}
  c:
    site: nyc
    schema: "ts timestamp, name string, k int"
    event_time: ts
    source: {format: generator, options: {rows: 20, rows_per_second: 1, seed: 3, column.name: choice x y w,
      column.k: uniform 0 20}}
    stats: {rate: 1, columns: {k: {distinct: 20, bytes: 2}, name: {distinct: 3, bytes: 2}}}
views:
  pairs: {site: ams, sql: "SELECT a.k, a.v, b.name FROM a [RANGE 4 SECONDS], b [RANGE 3 SECONDS] WHERE a.k = b.k"}
queries:
  three:
    site: nyc
    sql: >
      SELECT p.k, p.v, c.name FROM pairs [RANGE 2 SECONDS] p, c [RANGE 5 SECONDS] WHERE p.k = c.k AND p.name = c.name
  lonely:
    site: nyc
    sql: SELECT c.k, c.name, p.v FROM c [RANGE 3 SECONDS] LEFT JOIN pairs [RANGE 3 SECONDS] p ON c.k = p.k
  both:
    site: ams
    sql: >
      SELECT k, sum(n) AS n FROM (SELECT k, count(*) AS n FROM b GROUP BY k, TUMBLE(3 SECONDS)
        UNION ALL SELECT k, 1 FROM c) u GROUP BY k, TUMBLE(6 SECONDS)
  plain:
    site: fra
    sql: SELECT a.k, b.name FROM a [ROWS 10], b [RANGE 3 SECONDS] WHERE a.k = b.k
  counts:
    site: fra
    sql: SELECT name, count(*) AS n FROM b GROUP BY name, TUMBLE(6 SECONDS)
"""


def test_views_are_planned_by_cost_and_have_the_answers_of_the_oracle(tmp_path: Path) -> None:
    scenario = loaded(saved(tmp_path, VIEWS))
    found = {planner: simulate(replace(scenario, planner=planner)).summary for planner in (None, "central")}
    for summary in found.values():
        assert summary.is_right and summary.tuples == 520
        assert min(query.checked.expected for query in summary.queries.values()) > 5
        assert {name: query.delays is not None for name, query in summary.queries.items()} == {
            **dict.fromkeys(("three", "lonely", "both"), False),
            **dict.fromkeys(("plain", "counts"), True),
        }
        assert summary.sites["ams"].rows_in == 400, "rows of views do not arrive"
    planners = {name: query.planner for name, query in found[None].queries.items()}
    assert planners == {"three": "auto", "lonely": "auto", "both": "local", "plain": "auto", "counts": "local"}
    assert found[None].traffic.bytes < 0.9 * found["central"].traffic.bytes


def test_what_is_wrong_with_a_view_is_said_with_its_name(tmp_path: Path) -> None:
    wrong = VIEWS.replace("SELECT a.k, a.v, b.name FROM a [", "SELECT a.k, a.v, b.nme FROM a [")
    with pytest.raises(InputError, match=r"view 'pairs': .*nme"):
        simulate(loaded(saved(tmp_path, wrong)))
