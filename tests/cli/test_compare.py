"""`watersmeet compare`: every planner on the same input, and planning for the interval at which rows arrive."""

import json
from pathlib import Path
from typing import Any

import pytest

from watersmeet.cli.main import run_command
from watersmeet.planners.choose import NAMES, batch_interval_s
from watersmeet.stats.model import Number, Stats, StreamStats
from watersmeet.topology.load import load_topology
from watersmeet.topology.model import Source, Stream, Topology

TOPOLOGY = """\
sites: [ams, fra, nyc]
default_link: {latency: 20 ms, price_per_gb: 1}
streams:
  a: &stream
    site: ams
    schema: "ts timestamp, k long, v string"
    event_time: ts
    source: &source {format: generator, options: &options {rows: 300, rows_per_second: 1, seed: 1,
      column.k: uniform 0 400, column.v: "pattern some-longer-text-{} uniform 0 100000"}}
  b: {<<: *stream, site: fra, source: {<<: *source, options: {<<: *options, seed: 2}}}
  c: {<<: *stream, site: nyc, source: {<<: *source, options: {<<: *options, seed: 3, column.k: uniform 0 40}}}
queries:
  q:
    site: nyc
    sql: >
      SELECT a.v AS x, b.v AS y, c.v AS z FROM a [RANGE 2 MINUTES], b [RANGE 2 MINUTES], c [RANGE 2 MINUTES]
      WHERE a.k = b.k AND b.k = c.k
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "topology.yaml"
    path.write_text(TOPOLOGY)
    return path


def compared(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, dict[str, Any]]:
    assert run_command(["compare", *map(str, arguments), "--format", "json", "--quiet"]) == 0
    return {one["planner"]: one for one in json.loads(capsys.readouterr().out)["planners"]}


def test_every_planner_is_run_on_the_same_input_and_has_the_same_answers(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = compared(capsys, file, "--trigger", "30 seconds")
    assert list(runs) == list(NAMES)
    checks = [run["queries"]["q"]["check"] for run in runs.values()]
    assert all(check["is_right"] for check in checks)
    assert checks[0]["expected"] > 5
    assert runs["auto"]["bytes"] <= min(run["bytes"] for run in runs.values()) * 1.05
    assert runs["auto"]["bytes"] < runs["central"]["bytes"]


def test_a_sample_is_the_first_part_of_the_input(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shares = [compared(capsys, file, "--planners", "central", "--sample", share)["central"] for share in ("20%", "1")]
    first, whole = (run["links"][0]["tuples"] for run in shares)
    assert first == 60  # rows of a second each, over 299 seconds
    assert whole == 300


def test_a_table_shows_the_fewest_bytes_first_and_a_plot_is_drawn(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "planners.svg"
    options = ["--planners", "central,tree", "--trigger", "1 minute", "--plot", str(plot)]
    assert run_command(["compare", str(file), *options]) == 0
    out = capsys.readouterr().out
    assert out.index("tree") < out.index("central")
    assert "a micro-batch every 1 minute" in out
    assert plot.stat().st_size > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--planners", "fastest"], "--planners: unknown planner 'fastest'"),
        (["--planners", ","], "--planners names none; there are central"),
        (["--sample", "0"], "--sample 0: a share is more than 0"),
        (["--sample", "some"], "--sample some: a share is more than 0"),
        (["--query", "p"], "unknown query 'p'"),
        (["--plot", "a.pdf"], "--plot a.pdf: a plot is a .svg or a .png"),
        (["--trigger", "soon"], "--trigger: duration 'soon' is not understood"),
    ],
)
def test_wrong_options_are_refused(
    file: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["compare", str(file), *options]) == 2
    assert message in capsys.readouterr().err


def test_one_site_has_nothing_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(TOPOLOGY.replace("[ams, fra, nyc]", "[ams]").replace("fra", "ams").replace("nyc", "ams"))
    assert run_command(["compare", str(path)]) == 2
    assert "nothing to compare" in capsys.readouterr().err


def test_the_interval_is_that_of_the_topology_else_that_of_the_stream_that_arrives_most_often(tmp_path: Path) -> None:
    streams = tuple(Stream(name, "ts", "ts timestamp", Source("parquet", name)) for name in "ab")
    known = {
        "a": StreamStats(batch_interval=Number(1800.0)),
        "b": StreamStats(batch_interval=Number(60.0)),
    }
    topology = Topology(streams, stats=Stats(known))
    assert batch_interval_s(topology, ["a", "b"]) == 60.0
    assert batch_interval_s(topology, ["a"]) == 1800.0
    assert batch_interval_s(Topology(streams), ["a", "b"]) == 1.0
    path = tmp_path / "topology.yaml"
    path.write_text("batch_interval: 5 minutes\n" + TOPOLOGY)
    assert batch_interval_s(load_topology(path), ["a"]) == 300.0


@pytest.mark.parametrize(("text", "message"), [("0 seconds", "must be positive"), ("soon", "is not understood")])
def test_a_wrong_interval_is_refused_with_its_line(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text(f"batch_interval: {text}\n" + TOPOLOGY)
    assert run_command(["compare", str(path)]) == 2
    err = capsys.readouterr().err
    assert "line 1" in err
    assert message in err
