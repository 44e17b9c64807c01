"""The command line as a user meets it: exit codes, one clear sentence for every slip, and nothing lost.

Commands run in this process with the tests' Spark session, which the command line uses and leaves open; a few run as
processes of their own, to see what really reaches a terminal.
"""

import argparse
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from json import JSONDecodeError
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import yaml
from py4j.protocol import Py4JNetworkError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from scenes import PATIENCE_S, ledger_of, wait_for

from watersmeet import __version__
from watersmeet.cli.main import COMMANDS, run_command

START = datetime(2025, 1, 31, 12, tzinfo=UTC)
WINDOW_S = 60
FILES, ROWS = 4, 8  # of each stream
SQL = "SELECT a.id AS a_id, b.id AS b_id FROM a [RANGE 1 MINUTE], b [RANGE 1 MINUTE] WHERE a.k = b.k"
FROM = "FROM a [RANGE 1 MINUTE], b [RANGE 1 MINUTE]"
SCHEMA = "k long, id long, ts timestamp, s string"
# What no user should see without --debug.
TRACES = ("Traceback", "\tat ", "Caused by", "Py4J", "java.lang", "Exception")

Run = Callable[..., tuple[int, str, str]]


class Place:
    """A directory with two streams of small Parquet files and a topology."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "topology.yaml"
        self.topology: dict[str, Any] = {
            "streams": {
                name: {
                    "schema": SCHEMA,
                    "event_time": "ts",
                    "source": {"format": "parquet", "path": f"data/{name}", "options": {"maxFilesPerTrigger": 1}},
                }
                for name in "ab"
            },
            "queries": {"q": {"sql": SQL, "sink": {"format": "parquet", "path": "out/q"}}},
        }
        self.save()

    def save(self) -> None:
        self.file.write_text(yaml.safe_dump(self.topology, sort_keys=False), encoding="utf-8")

    def write_data(self) -> None:
        for name in "ab":
            (self.directory / "data" / name).mkdir(parents=True, exist_ok=True)
            for number in range(FILES):
                self.write_file(name, number)

    def path(self, name: str, number: int) -> Path:
        return self.directory / "data" / name / f"{number:03d}.parquet"

    def write_file(self, name: str, number: int) -> None:
        path = self.path(name, number)
        pq.write_table(pa.Table.from_pylist(made(name, number), schema=ARROW_SCHEMA), path)
        self.date_file(path, number)

    def date_file(self, path: Path, number: int) -> None:
        os.utime(path, (1_700_000_000 + 10 * number,) * 2)  # Spark takes files in the order of their times

    def answers(self, query: str = "q") -> Counter[tuple[int, int]]:
        directory = self.directory / "out" / query
        if not directory.exists() or not list(directory.glob("*.parquet")):
            return Counter()
        rows = ds.dataset(directory, format="parquet").to_table().to_pylist()
        return Counter((row["a_id"], row["b_id"]) for row in rows)

    def set(self, path: str, value: Any) -> None:
        """Change one place of the topology, as `streams.a.schema`."""
        *parents, last = path.split(".")
        target = self.topology
        for parent in parents:
            target = target[parent]
        target[last] = value
        self.save()


ARROW_SCHEMA = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("s", pa.string())])


def made(name: str, number: int) -> list[dict[str, Any]]:
    """The rows of one file; streams are in order, ten seconds between rows."""
    first = number * ROWS
    return [
        {
            "k": i % 3,
            "id": i,
            "ts": START + timedelta(seconds=10 * i + (3 if name == "b" else 0)),
            "s": f"text {i * 7919 % 1000}",
        }
        for i in range(first, first + ROWS)
    ]


def expected(without: Iterable[tuple[str, int]] = ()) -> Counter[tuple[int, int]]:
    """The answers by brute force: equal keys, and the older row not older than the window."""
    a, b = (
        [row for number in range(FILES) if (name, number) not in without for row in made(name, number)] for name in "ab"
    )
    return Counter(
        (x["id"], y["id"])
        for x in a
        for y in b
        if x["k"] == y["k"] and abs((x["ts"] - y["ts"]).total_seconds()) <= WINDOW_S
    )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made_place = Place(tmp_path)
    made_place.write_data()
    return made_place


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command here; gives its exit code, output and errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_command([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def assert_one_sentence(told: str) -> None:
    """One line, ours, with no trace of a stack."""
    lines = told.splitlines()
    assert len(lines) == 1, told
    assert lines[0].startswith("watersmeet: "), told
    assert_no_trace(told)


def assert_no_trace(text: str) -> None:
    for trace in TRACES:
        assert trace not in text, text


# What needs no Spark: slips found before it starts --------------------------------------------------------------------


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong in the file itself is found before the seconds that starting Spark takes."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("watersmeet.spark.session.start_session", refuse)


@pytest.mark.parametrize("verb", [["check"], ["explain"], ["run", "--once"]])
@pytest.mark.parametrize(
    ("path", "value", "fragments"),
    [
        ("queries.q.sql", SQL.replace("b [", "bb ["),
         ["query 'q': ", "unknown stream 'bb'; did you mean 'b'? known: a"]),
        ("queries.q.sql", SQL.replace("b.k", "b.kk"),
         ["query 'q': ", "'b' has no column 'kk'; did you mean 'k'? known: "]),
        ("queries.q.sql", SQL.replace("a.id", "c.id"), ["no stream in FROM has the alias 'c'", "a, b"]),
        ("queries.q.sql", SQL.replace("WHERE", "WERE"), ["query 'q': line 1, column "]),
        ("queries.q.sql", SQL + " AND (a.id = 1", ["query 'q': line 1, column ", "'(' is opened and never closed"]),
        ("queries.q.sql", SQL + "\nAND a.id = = 1", ["query 'q': line 2, column "]),
        ("queries.q.sql", SQL.replace("1 MINUTE", "0 SECONDS"), ["RANGE must be positive, not '0 SECONDS'"]),
        ("queries.q.sql", SQL.replace("1 MINUTE", "-1 MINUTE"), ["RANGE must be positive, not '-1 MINUTE'"]),
        ("queries.q.sql", SQL.replace("RANGE 1 MINUTE", "ROWS 0"), ["ROWS must be positive, not 0"]),
        ("queries.q.sql", SQL.replace(" [RANGE 1 MINUTE]", ""), ["stream 'a' has no window; add one, e.g. a [RANGE"]),
        ("queries.q.sql", SQL.replace("a.k = b.k", "a.k < b.k"),
         ["no equality joins the streams (a) and (b)", "set `allow_cross: true`"]),
        ("queries.q.sql", SQL.replace("b_id", "a_id"), ["two output columns are called 'a_id'"]),
        ("queries.q.sql", SQL.replace("b [RANGE", "a [RANGE"),
         ["two streams in FROM have the alias 'a'; give one another name"]),
        ("streams.a.event_time", "tss",
         ["topology.yaml, line 2: stream 'a': event_time 'tss' is not one of its columns", "did you mean 'ts'?"]),
        ("streams.a.event_time", "k", ["event_time 'k' has type long; it must be timestamp"]),
        ("streams.a.watermrk", "1 second", ["topology.yaml, line 10: unknown key 'watermrk' in stream 'a'; ",
                                            "did you mean 'watermark'?"]),
        ("streams.A", {"schema": SCHEMA, "event_time": "ts", "source": {"format": "rate"}},
         ["line 18: duplicate stream name 'A' (case does not count), first given on line 2"]),
    ],
)  # fmt: skip
def test_slips_in_the_file_are_told_in_a_sentence_before_spark_starts(
    tmp_path: Path, command: Run, no_spark: None, verb: list[str], path: str, value: Any, fragments: list[str]
) -> None:
    place = Place(tmp_path)
    place.set(path, value)
    code, out, err = command(*verb, place.file)
    assert (code, out) == (2, "")
    assert_one_sentence(err)
    for fragment in fragments:
        assert fragment in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "--trigger", "soon"], "--trigger: duration 'soon' is not understood; write it like '10 seconds'"),
        (["run", "--trigger", "0 seconds"], "--trigger: '0 seconds' must be positive"),
        (["run", "--trigger=-1 second"], "--trigger: '-1 second' must be positive"),
        (["run", "--conf", "spark.driver.memory"], "--conf 'spark.driver.memory' must be NAME=VALUE"),
        (["run", "--conf", "=4g"], "--conf '=4g' must be NAME=VALUE"),
        (["run", "--metrics-port", "70000"], "--metrics-port 70000: a port is from 0 (any free one) to 65535"),
        (["run", "--events", "absent/run.jsonl"], "--events absent/run.jsonl: there is no such directory; make it"),
        (["run", "--query", "r"], "unknown query 'r'; known: q"),
        (["check", "--query", "qq"], "unknown query 'qq'; did you mean 'q'? known: q"),
        (["explain", "--query", "r"], "unknown query 'r'; known: q"),
    ],
)
def test_wrong_options_are_told_in_a_sentence(
    tmp_path: Path, command: Run, no_spark: None, arguments: list[str], told: str
) -> None:
    code, out, err = command(arguments[0], Place(tmp_path).file, *arguments[1:])
    assert (code, out) == (2, "")
    assert_one_sentence(err)
    assert told in err


def test_a_file_that_is_not_there(tmp_path: Path, command: Run, no_spark: None) -> None:
    assert command("check", tmp_path / "none.yaml") == (
        2, "", f"watersmeet: {tmp_path}/none.yaml: there is no such file\n",
    )  # fmt: skip


def test_with_debug_the_stack_is_shown_too(tmp_path: Path, command: Run) -> None:
    code, _, err = command("check", tmp_path / "none.yaml", "--debug")
    assert code == 2
    assert "Traceback" in err
    assert err.splitlines()[-1].endswith("none.yaml: there is no such file")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), "Spark's Java process ended unexpectedly"),
        (ConnectionRefusedError(111, "Connection refused"), "Spark's Java process ended unexpectedly"),
        (JSONDecodeError("Expecting value", "{", 1), "a JSON file is damaged (line 1, column 2: Expecting value)"),
        (PermissionError(13, "Permission denied", "/x/y"), "/x/y: Permission denied; check the path"),
        (OSError(28, "No space left on device", "/x/y"), "/x/y: no space is left; make room"),
        (MemoryError(), "there is not enough memory"),
    ],
)
def test_known_causes_are_told_wherever_they_come_up(
    tmp_path: Path, command: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def fail(path: Path, parameters: object) -> None:
        raise error

    monkeypatch.setattr("watersmeet.cli.options.load_topology", fail)
    code, out, err = command("run", tmp_path / "topology.yaml")
    assert (code, out) == (1, "")
    assert_one_sentence(err)
    assert message in err and "unexpected Py" not in err


def test_what_nobody_foresaw_is_one_sentence_as_well(
    tmp_path: Path, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, parameters: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("watersmeet.cli.options.load_topology", fail)
    assert command("check", "x.yaml") == (
        1, "", "watersmeet: unexpected ZeroDivisionError: by zero (--debug shows where)\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "COMMAND"),
        (["jump"], "invalid choice: 'jump'"),
        (["run"], "the following arguments are required: topology"),
        (["explain", "t.yaml", "--format", "xml"], "invalid choice: 'xml'"),
        (["run", "t.yaml", "--onse"], "unrecognized arguments: --onse"),
    ],
)
def test_wrong_usage_ends_with_two(
    capsys: pytest.CaptureFixture[str], no_spark: None, arguments: list[str], told: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command(arguments)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


# Several sites --------------------------------------------------------------------------------------------------------

SITED_SQL = f"SELECT a.id AS a_id, b.id AS b_id {FROM}, c [RANGE 1 MINUTE] WHERE a.k = b.k AND b.k = c.k"


def make_sited(place: Place) -> Place:
    """Three streams, each at a site of its own, and a query that says how to join them."""
    streams = place.topology["streams"]
    streams["c"] = yaml.safe_load(yaml.safe_dump(streams["b"]))
    for name, site in zip("abc", ("ams", "fra", "nyc"), strict=True):
        streams[name]["site"] = site
    streams["c"]["source"]["path"] = "data/b"  # the same rows once more
    place.topology["sites"] = ["ams", "fra", "nyc", "tok"]
    place.topology["default_link"] = {"latency": "20 ms", "price_per_gb": 2}
    place.topology["queries"]["q"] |= {
        "sql": SITED_SQL,
        "site": "nyc",
        "plan": {
            "a": [{"join": "b", "method": "SM-D1", "bloom": True}, {"join": "c"}],
            "b": [{"join": "a", "method": "SM-S1"}, {"join": "c"}],
            "c": [{"join": "b", "method": "SP-S"}, {"join": "a", "method": "SP-S"}],
        },
    }
    place.save()
    return place


SITED_SLIPS: list[tuple[str, Any, str]] = [
    ("queries.q.site", "nyk", "query 'q': unknown site 'nyk'; did you mean 'nyc'? known: ams, fra, nyc, tok"),
    ("queries.q.plan.a", [{"join": "bb"}, {"join": "c"}],
     "query 'q': plan of head 'a': unknown 'bb'; did you mean 'b'? known: a, b, c"),
    ("queries.q.plan.a", [{"join": "b"}], "query 'q': plan of head 'a' never joins c; name every other alias once"),
    ("queries.q.plan.a", [{"join": "b"}, {"join": "b"}], "head 'a' joins 'b' twice; join every other alias once"),
    ("queries.q.plan.aa", [{"join": "b"}, {"join": "c"}],
     "query 'q': plan: unknown head 'aa'; did you mean 'a'? known: a, b, c"),
    ("queries.q.plan.a", [{"join": "b", "method": "SM-D3"}, {"join": "c"}],
     "unknown method 'SM-D3'; did you mean 'SM-D2' or 'SM-D1'?"),
    ("queries.q.plan.a", [{"join": "b", "method": "SP-D", "bloom": True}, {"join": "c"}],
     "bloom replaces the set of keys that an SM method sends, and SP-D sends none"),
    ("queries.q", {"sql": SITED_SQL, "planner": "centrall", "site": "nyc"},
     "query 'q': unknown planner 'centrall'; did you mean 'central'? known: auto, central, exhaustive"),
    ("queries.q", {"sql": SITED_SQL},
     "query 'q' does not say where its answers are wanted; add `site:` to the query with one of: ams, fra, nyc, tok"),
]  # fmt: skip


@pytest.mark.parametrize("verb", [["check"], ["explain"], ["run", "--once"], ["site", "ams", "--once"]])
@pytest.mark.parametrize(("path", "value", "told"), SITED_SLIPS)
def test_slips_in_a_file_of_several_sites(
    tmp_path: Path, command: Run, no_spark: None, verb: list[str], path: str, value: Any, told: str
) -> None:
    place = make_sited(Place(tmp_path))
    place.set(path, value)
    arguments = [*verb, place.file] if verb[0] != "site" else [*verb[:2], place.file, *verb[2:]]
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert_one_sentence(err)
    assert told in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["site", "nyk"], "unknown site 'nyk'; did you mean 'nyc'? known: ams, fra, nyc, tok"),
        (["site", "ams", "--planner", "thrifty"], "query 'q': unknown planner 'thrifty'; known: auto, central"),
        (
            ["run", "--planner", "centrl"],
            "query 'q': unknown planner 'centrl'; did you mean 'central'? known: auto, central, exhaustive",
        ),
        (["site", "ams", "--trigger", "soon"], "--trigger: duration 'soon' is not understood"),
        (["site", "ams", "--query", "r"], "unknown query 'r'; known: q"),
    ],
)
def test_wrong_options_for_several_sites(
    tmp_path: Path, command: Run, no_spark: None, arguments: list[str], told: str
) -> None:
    names = 2 if arguments[0] == "site" else 1
    code, out, err = command(*arguments[:names], make_sited(Place(tmp_path)).file, *arguments[names:])
    assert (code, out) == (2, "")
    assert_one_sentence(err)
    assert told in err


def test_a_site_that_has_nothing_to_do(spark: SparkSession, place: Place, command: Run) -> None:
    make_sited(place)
    code, out, err = command("site", "tok", place.file, "--once")
    assert (code, out) == (2, "")
    assert_one_sentence(err)
    assert err == "watersmeet: query 'q' has nothing to do at site 'tok'\n"
    assert not (place.directory / ".watersmeet").exists()

    twice = "FROM a [RANGE 1 MINUTE] AS x, a [RANGE 1 MINUTE] AS y"
    local = {"sql": f"SELECT x.id AS x, y.id AS y {twice} WHERE x.k = y.k", "site": "ams"}
    place.set("queries.here", local)
    code, out, err = command("site", "ams", place.file, "--once", "--query", "here")
    assert (code, out) == (2, "")
    assert_one_sentence(err)
    assert "query 'here' needs no other site than ams" in err and "use `watersmeet run`" in err

    code, out, err = command("site", "tok", place.file, "--once", "--quiet")
    assert code == 2
    assert_one_sentence(err)
    assert "none of the queries has anything to do at site 'tok'" in err
    # Of several queries the site runs its share of each, here the whole of one.
    code, out, err = command("site", "ams", place.file, "--once", "--quiet")
    assert (code, err) == (0, "")
    alone = [row for number in range(FILES) for row in made("a", number)]
    pairs = sum(x["k"] == y["k"] and abs((x["ts"] - y["ts"]).total_seconds()) <= WINDOW_S for x in alone for y in alone)
    assert sum(map(int, re.findall(r"^batch \d+: (\d+) rows$", out, re.MULTILINE))) == pairs


def test_explain_of_several_sites(spark: SparkSession, place: Place, command: Run) -> None:
    make_sited(place)
    code, text, err = command("explain", place.file)
    assert (code, err) == (0, "")
    lines = text.splitlines()
    assert lines[:7] == [
        "query q",
        "project a.id AS a_id, b.id AS b_id",
        "  join 3 windows at 3 sites, answers at nyc",
        "    key K1: a.k = b.k = c.k; compared as 64-bit values",
        "    new rows of a: b by SM-D1 with Bloom filters, c by SP-D",
        "    new rows of b: a by SM-S1, c by SP-D",
        "    new rows of c: b by SP-S, a by SP-S",
    ]
    assert (
        "  fra -> ams  Bloom filters of values of k of rows of b, each once while it is in the window  (filters)"
        in lines
    )
    assert "  ams -> fra  rows of a whose k b has too  (full tuples)" in lines
    assert not any("site ams:" in line for line in lines)
    in_full = command("explain", place.file, "--operators")[1].splitlines()
    assert set(lines) < set(in_full)
    for site, line in (
        ("ams", "ship(gathered(a,fra), fra)"),
        ("fra", "ship(bloom keys(b,K1), ams)"),
        ("nyc", "join(c, b)"),
    ):
        assert f"      {line}" in in_full[in_full.index(f"    site {site}:") :]
    assert command("explain", place.file)[1] == text  # the same on every run

    code, out, err = command("explain", place.file, "--format", "json")
    assert (code, err) == (0, "")
    join = json.loads(out)["q"]["child"]
    assert (join["node"], join["site"], join["homes"]) == ("JoinPlan", "nyc", ["ams", "fra", "nyc"])
    assert join["sub_plans"][0]["heads"][0]["hops"][0] == {
        "node": "Hop",
        "alias": "b",
        "method": "SM-D1",
        "at": None,
        "bloom": True,
    }

    central = command("explain", place.file, "--planner", "central")[1]
    assert "    new rows of a: b by SP-S at nyc, c by SP-S at nyc" in central.splitlines()


def test_a_run_at_three_sites_and_its_links(
    spark: SparkSession, place: Place, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    make_sited(place)
    code, out, err = command("run", place.file, "--once")
    assert (code, err) == (0, "")
    a, b = ([row for number in range(FILES) for row in made(name, number)] for name in "ab")
    wanted = Counter(
        (x["id"], y["id"])
        for x in a
        for y in b
        for z in b
        if x["k"] == y["k"] == z["k"] and max(t := [r["ts"].timestamp() for r in (x, y, z)]) - min(t) <= WINDOW_S
    )
    assert place.answers() == wanted
    shown = re.sub(r"[│┃\s]+", " ", out)
    assert f"rows in {3 * FILES * ROWS} (" in shown
    assert f"answers {wanted.total()} (" in shown
    assert " links ┏" in shown and "link purpose bytes batches tuples price" in shown
    number = r"([\d,]+)"
    rows = re.findall(rf"(\w+) -> (\w+) ([a-z ]+) {number} {number} {number} ([\d.]+) ", shown)
    rows = rows[-len({row[:3] for row in rows}) :]  # the last table of those that were shown
    assert {(origin, to, purpose) for origin, to, purpose, *_ in rows} >= {
        ("ams", "fra", "full tuples"),
        ("fra", "ams", "filters"),
        ("fra", "ams", "keys"),
        ("fra", "nyc", "full tuples"),
        ("ams", "nyc", "full tuples"),
    }
    counts = [[int(text.replace(",", "")) for text in row[3:6]] for row in rows]
    (total,) = re.findall(rf"total {number} ([\d.]+)", shown)[-1:]
    assert int(total[0].replace(",", "")) == sum(count[0] for count in counts)
    assert float(total[1]) == pytest.approx(sum(count[0] for count in counts) * 2e-9, abs=1e-6)
    (central,) = re.findall(rf"central would ship about {number} ([\d.]+)", shown)[-1:]
    assert 0 < int(central[0].replace(",", "")) < 10_000

    # Nothing new; and another planner is another plan, which the sites go over to.
    assert command("run", place.file, "--once")[1] == "q: nothing new since the last run with this checkpoint\n"
    before = place.answers()
    code, _, err = command("run", place.file, "--once", "--planner", "central")
    assert (code, err) == (0, "")
    assert place.answers() == before
    assert (
        "version q~2 of q"
        in command("explain", place.file, "--running", place.directory / ".watersmeet/checkpoints")[1]
    )


def test_sites_one_after_the_other(spark: SparkSession, place: Place, command: Run) -> None:
    """Each site on its own, in no good order and more than once, comes to the same as all together."""
    make_sited(place)
    for site in ("nyc", "ams", "fra", "ams", "fra", "ams", "nyc", "fra", "nyc"):
        assert command("site", site, place.file, "--once", "--quiet") == (0, "", "")
    apart = place.answers()
    shutil.rmtree(place.directory / "out")
    shutil.rmtree(place.directory / ".watersmeet")
    assert command("run", place.file, "--once", "--quiet") == (0, "", "")
    assert place.answers() == apart
    assert apart.total() > 100


@pytest.mark.parametrize(("name", "what"), [("building", "3 streams, 1 table"), ("wan", "3 streams")])
def test_examples_of_several_sites_are_right(spark: SparkSession, command: Run, name: str, what: str) -> None:
    file = Path(__file__).parents[2] / "examples" / name / "topology.yaml"
    assert command("check", file) == (0, f"{file}: {what} and 1 query, nothing wrong\n", "")


# With Spark: what only it can tell ------------------------------------------------------------------------------------


def test_check_of_a_good_topology(spark: SparkSession, place: Place, command: Run) -> None:
    assert command("check", place.file) == (0, f"{place.file}: 2 streams and 1 query, nothing wrong\n", "")
    assert sorted(path.name for path in place.directory.iterdir()) == ["data", "topology.yaml"]  # nothing was run


@pytest.mark.parametrize(
    ("path", "value", "fragments"),
    [
        ("queries.q.sql", SQL.replace("b.k", "b.s"),
         ["query 'q': type mismatch in a.k = b.s: bigint is never equal to string; cast one side, as in CAST(a.k AS"]),
        ("queries.q.sql", f"{SQL} AND a.id", ["query 'q': a.id is bigint; a condition must be boolean"]),
        ("queries.q.sql", f"SELECT lowr(a.s) AS x {FROM} WHERE a.k = b.k", ["query 'q': lowr(a.s): Cannot resolve"]),
        ("queries.q.sql", f"SELECT a.id + b.ts AS x {FROM} WHERE a.k = b.k", ["query 'q': a.id + b.ts: ", "mismatch"]),
        ("queries.q.sink", {"format": "parquet"}, ["query 'q': a sink of format parquet needs a path"]),
        ("queries.q.sink", {"format": "parkay", "path": "x"},
         ["query 'q': Spark cannot write its sink: Failed to find the data source: parkay."]),
        ("streams.a.schema", SCHEMA.replace("string", "strng"),
         ["stream 'a': schema '", 'Unsupported data type "STRNG"']),
        ("streams.a.schema", SCHEMA.replace("string", "string string"),
         ["stream 'a': schema '", "Syntax error at or near"]),
        ("streams.a.source", {"format": "parkay", "path": "data/a"},
         ["stream 'a': Spark cannot open its source: Failed to find the data source: parkay."]),
        ("streams.a.source", {"format": "parquet", "path": "data/none"},
         ["stream 'a': source path ", "/data/none does not exist; make it or correct it"]),
        ("streams.a.source", {"format": "parquet"}, ["stream 'a': its source of format parquet needs a path"]),
        ("streams.a.source", {"format": "generator", "options": {"rws": "3"}},
         ["stream 'a': ", "rws", "did you mean 'rows'"]),
        ("streams.a.schema", SCHEMA.replace("s string", "text string"),
         ["stream 'a': its schema has a column 'text' that its files, such as ", "known: id, k, s, ts"]),
        ("tables", {"t": {"schema": "k long, text string", "source": {"format": "parquet", "path": "data/a"}}},
         ["table 't': its schema has a column 'text' that its files, such as ", "known: id, k, s, ts"]),
        ("tables", {"t": {"source": {"format": "parquet", "path": "nowhere"}}}, ["table 't': source path ", "not "]),
        # A stream that no query asks for is looked at all the same.
        ("streams.spare", {"schema": SCHEMA, "event_time": "ts", "source": {"format": "parquet", "path": "nowhere"}},
         ["stream 'spare': source path ", "/nowhere does not exist"]),
    ],
)  # fmt: skip
def test_check_finds_what_only_spark_knows(
    spark: SparkSession, place: Place, command: Run, path: str, value: Any, fragments: list[str]
) -> None:
    place.set(path, value)
    code, out, err = command("check", place.file)
    assert (code, out) == (2, "")
    assert_one_sentence(err)
    for fragment in fragments:
        assert fragment in err


def test_pyspark_does_not_print_the_stack_of_what_it_refuses(
    spark: SparkSession, place: Place, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has loggers of its own for that, each with a handler for standard error."""
    printed: list[logging.LogRecord] = []
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        monkeypatch.setattr(PySparkLogger.getLogger(name), "handle", printed.append)
    place.set("queries.q.sql", f"SELECT lowr(a.s) AS x {FROM} WHERE a.k = b.k")
    assert command("check", place.file)[0] == 2
    assert printed == []


def test_run_refuses_what_check_refuses_and_leaves_nothing_behind(
    spark: SparkSession, place: Place, command: Run
) -> None:
    place.set("queries.q.sql", SQL.replace("b.k", "b.s"))
    code, out, err = command("run", place.file, "--once")
    assert (code, out) == (2, "")
    assert_one_sentence(err)
    assert "type mismatch in a.k = b.s" in err
    assert sorted(path.name for path in place.directory.iterdir()) == ["data", "topology.yaml"]


def test_a_generator_without_end_is_refused_only_with_once(spark: SparkSession, place: Place, command: Run) -> None:
    place.set("streams.a.source", {"format": "generator"})
    assert command("check", place.file)[0] == 0
    code, _, err = command("run", place.file, "--once")
    assert code == 2
    assert_one_sentence(err)
    assert "stream 'a': its generator never ends, so --once would not either; give it the option rows" in err


def test_explain_in_text_and_json(spark: SparkSession, place: Place, command: Run) -> None:
    place.set("queries.r", {"sql": f"SELECT DISTINCT a.k {FROM} WHERE a.k = b.k AND a.id < b.id"})
    code, text, err = command("explain", place.file)
    assert (code, err) == (0, "")
    assert text.splitlines()[:3] == [
        "query q",
        "project a.id AS a_id, b.id AS b_id",
        "  join 2 windows as rows arrive",
    ]
    assert "\n\nquery r\ndistinct\n  project a.k AS k\n" in text
    shared = text[text.index("shared at site here") :]
    for name in "ab":
        assert f"  stream {name} is read and stored once for q, r; indexed by {name}.k\n" in shared
    assert command("explain", place.file)[1] == text  # the same on every run

    code, out, err = command("explain", place.file, "--format", "json")
    assert (code, err) == (0, "")
    plans = json.loads(out)
    assert list(plans) == ["q", "r"]
    assert (plans["q"]["node"], plans["q"]["child"]["node"]) == ("Project", "JoinPlan")
    assert (plans["q"]["child"]["site"], plans["q"]["child"]["homes"]) == ("here", ["here", "here"])
    assert [scan["stream"] for scan in plans["q"]["child"]["scans"]] == ["a", "b"]
    assert plans["r"]["node"] == "Distinct"

    only = json.loads(command("explain", place.file, "--format", "json", "--query", "r")[1])
    assert only == {"r": plans["r"]}


# Running --------------------------------------------------------------------------------------------------------------


def test_a_run_its_summary_and_a_second_one_with_nothing_new(
    spark: SparkSession, place: Place, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    temporary = place.directory / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    code, out, err = command("run", place.file, "--once")
    assert (code, err) == (0, "")
    assert place.answers() == expected()
    shown = re.sub(r"[│\s]+", " ", out)
    for fragment in (
        "query q",
        f"rows in {2 * FILES * ROWS} (",
        f"answers {expected().total()} (",
        f"output path {place.directory}/out/q",
        "sample of the answers",
    ):
        assert fragment in shown
    assert (place.directory / ".watersmeet/checkpoints/here/identity.json").exists()
    # The process that called is as it was.
    assert spark.range(1).count() == 1
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert list(temporary.iterdir()) == []

    assert command("run", place.file, "--once") == (0, "q: nothing new since the last run with this checkpoint\n", "")
    assert place.answers() == expected()

    # A checkpoint is refused to another query, other columns, another watermark, and the difference is named.
    for path, value, fragments in (
        ("queries.q.sql", SQL.replace("1 MINUTE", "2 MINUTES"),
         ["[RANGE 1 MINUTE]", "where there is now", "[RANGE 2 MINUTES]"]),
        ("streams.a.schema", SCHEMA.replace("id long", "id int"),
         ["streams a schema was ", "id:bigint", " and is now ", "id:int"]),
        ("streams.a.watermark", "1 second", ["streams a watermark was 0 and is now 1000000"]),
        ("queries.q.start", "2025-01-31", ["start was None and is now '2025-01-31'"]),
    ):  # fmt: skip
        other = Place(place.directory)
        other.set(path, value)
        code, out, err = command("run", place.file, "--once")
        assert (code, out) == (2, "")
        assert_one_sentence(err)
        assert f"checkpoint {place.directory}/.watersmeet/checkpoints/here belongs to other queries: " in err
        assert "or give --checkpoint another place" in err
        for fragment in fragments:
            assert fragment in err
    assert place.answers() == expected()

    # Told in other words it is the same query; with another checkpoint it is refused, or begins anew if asked to.
    Place(place.directory).set("queries.q.sql", SQL.lower().replace("[range 1 minute]", "[RANGE 60 SECONDS]"))
    assert command("run", place.file, "--once", "--quiet") == (0, "", "")
    code, out, err = command("run", place.file, "--once", "--quiet", "--checkpoint", place.directory / "other")
    assert (code, out) == (2, "")
    assert_one_sentence(err)
    assert f"query 'q': {place.directory}/out/q holds {FILES} files of answers of an earlier run" in err
    assert place.answers() == expected()
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    code, out, err = command("run", place.file, "--once", "--quiet", "--fresh")
    assert (code, out) == (2, "")
    assert "watersmeet: begin anew: checkpoint: " in err and "there is nobody to ask; add --yes" in err
    assert place.answers() == expected()
    code, out, err = command("run", place.file, "--once", "--quiet", "--fresh", "--yes")
    assert (code, out) == (0, "")
    assert len(err.splitlines()) == 2 and f"answers of q: {FILES} files of {place.directory}/out/q -> " in err
    assert place.answers() == expected(), "what was there is moved aside, not added to"
    assert len(list((place.directory / "out").glob("q.before-*/*.parquet"))) == FILES


def test_all_queries_run_or_the_one_asked_for(spark: SparkSession, place: Place, command: Run) -> None:
    for name in "rs":
        place.set(f"queries.{name}", {"sql": SQL, "sink": {"format": "parquet", "path": f"out/{name}"}})
    place.set("queries.s.sql", SQL.replace("a.k = b.k", "a.k < b.k"))
    assert command("run", place.file, "--once", "--query", "r", "--quiet") == (0, "", "")
    assert [place.answers(name) for name in "qrs"] == [Counter(), expected(), Counter()]
    code, _, err = command("run", place.file, "--once")
    assert code == 2
    assert "query 's': no equality joins the streams" in err
    assert place.answers("q") == Counter()  # none starts where one is wrong
    place.set("queries.s.allow_cross", True)
    # All queries share a checkpoint, so it is for those that it was made for.
    code, _, err = command("run", place.file, "--once")
    assert code == 2
    assert_one_sentence(err)
    assert "belongs to other queries: query q is new; query s is new. Run the topology it was made for" in err
    shutil.rmtree(place.directory / "out")
    assert command("run", place.file, "--once", "--quiet", "--checkpoint", place.directory / "all") == (0, "", "")
    assert [place.answers(name) for name in "qr"] == [expected(), expected()]
    assert place.answers("s").total() > 0
    code, _, err = command("run", place.file, "--once", "--query", "q", "--checkpoint", place.directory / "all")
    assert code == 2
    assert "belongs to other queries: query r is missing; query s is missing." in err


def test_answers_go_to_the_console_if_nothing_else_is_said(spark: SparkSession, place: Place, command: Run) -> None:
    del place.topology["queries"]["q"]["sink"]
    place.save()
    code, out, err = command("run", place.file, "--once", "--quiet")
    assert (code, err) == (0, "")
    counts = [int(count) for count in re.findall(r"^batch \d+: (\d+) rows$", out, re.MULTILINE)]
    assert sum(counts) == expected().total()
    shown = Counter((int(a), int(b)) for a, b in re.findall(r"^\| +(\d+)\| +(\d+)\|$", out, re.MULTILINE))
    assert shown <= expected()
    assert shown.total() == sum(min(count, 20) for count in counts)
    assert "only showing top 20 rows" in out


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def garble_pages(path: Path) -> None:
    """A file whose footer is whole and whose rows are not."""
    content = bytearray(path.read_bytes())
    content[4:200] = b"\xff" * 196
    path.write_bytes(bytes(content))


def change_type(path: Path) -> None:
    pq.write_table(pa.table({"k": ["x"], "id": [1], "ts": pa.array([START]), "s": ["x"]}), path)


@pytest.mark.few(1)
@pytest.mark.parametrize("damage", [truncate, garble_pages, change_type], ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_named_and_the_run_goes_on_once_it_is_gone(
    spark: SparkSession, place: Place, command: Run, damage: Callable[[Path], None]
) -> None:
    damaged = place.path("a", 2)
    damage(damaged)
    place.date_file(damaged, 2)
    code, _, err = command("run", place.file, "--once", "--quiet")
    assert code == 1
    assert_one_sentence(err)
    assert f"query 'q': input file {damaged} cannot be read" in err
    assert "start the run again with the same checkpoint: nothing else is lost" in err
    if damage is change_type:
        assert "its column k is BINARY and not bigint as in the schema; replace or remove it" in err
    assert place.answers() <= expected(without=[("a", 2)])
    # It stays that way as long as the file does.
    if damage is truncate:
        assert command("run", place.file, "--once", "--quiet")[0] == 1
    damaged.unlink()
    code, _, err = command("run", place.file, "--once", "--quiet")
    assert (code, err) == (0, ""), "nothing of it was read: it is as if it had never been there"
    assert place.answers() == expected(without=[("a", 2)])


def test_a_damaged_file_that_is_repaired_loses_nothing(spark: SparkSession, place: Place, command: Run) -> None:
    truncate(place.path("b", 1))
    place.date_file(place.path("b", 1), 1)
    assert command("run", place.file, "--once", "--quiet")[0] == 1
    place.write_file("b", 1)
    assert command("run", place.file, "--once", "--quiet") == (0, "", "")
    assert place.answers() == expected()


def test_a_file_without_a_single_byte_is_one_without_rows(spark: SparkSession, place: Place, command: Run) -> None:
    place.path("a", 2).write_bytes(b"")
    place.date_file(place.path("a", 2), 2)
    assert command("run", place.file, "--once", "--quiet") == (0, "", "")
    assert place.answers() == expected(without=[("a", 2)])


def test_a_sink_that_cannot_be_written(spark: SparkSession, place: Place, command: Run) -> None:
    (place.directory / "out").write_text("a file where a directory should be")
    for verb in (["check"], ["run", "--once"]):
        code, out, err = command(*verb, place.file)
        assert (code, out) == (1, "")
        assert_one_sentence(err)
        assert f"the sink {place.directory}/out/q cannot be written: Not a directory; make the directory writa" in err
    (place.directory / "out").unlink()
    assert command("run", place.file, "--once", "--quiet") == (0, "", "")
    assert place.answers() == expected()


def test_a_checkpoint_that_cannot_be(spark: SparkSession, place: Place, command: Run) -> None:
    code, _, err = command("run", place.file, "--once", "--checkpoint", place.file)
    assert code == 1
    assert_one_sentence(err)
    assert f"checkpoint {place.file}/here cannot be written: Not a directory; give --checkpoint another place" in err
    code, _, err = command("run", place.file, "--once", "--checkpoint", "s3a://bucket/c")
    assert code == 2
    assert_one_sentence(err)
    assert (
        "is in no store that commits can be made in; give a directory, which may be one that machines share, or a URL"
        in err
    )
    assert not Path("s3a:").exists()


# As processes of their own --------------------------------------------------------------------------------------------


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "watersmeet", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=PATIENCE_S, **options)


def test_a_key_is_printed_as_files_of_keys_want_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["key", "2026-11"]) == 0
    shown = capsys.readouterr()
    assert re.fullmatch("2026-11 [0-9a-f]{64}\n", shown.out) and shown.err == ""
    assert run_command(["key", "two words"]) == 2
    assert capsys.readouterr().err.startswith("watersmeet: the id 'two words' of a key must be one word of up to 64")


def test_every_command_can_show_where_it_failed() -> None:
    """`run_command` looks at the option for all of them."""
    for command in COMMANDS:
        parsers = argparse.ArgumentParser().add_subparsers()
        command.add_parser(parsers)
        assert all("--debug" in parser.format_help() for parser in parsers.choices.values()), command.__name__


def test_version_and_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def helped(*verb: str) -> str:
        with pytest.raises(SystemExit) as ended:
            run_command([*verb, "--help"])
        shown = capsys.readouterr()
        assert (ended.value.code, shown.err) == (0, "")
        return shown.out

    monkeypatch.setenv("COLUMNS", "100")
    told = process("--version")
    assert (told.returncode, told.stdout, told.stderr) == (0, f"watersmeet {__version__}\n", "")
    fragments: dict[tuple[str, ...], Sequence[str]] = {
        (): ("run", "explain", "check", "examples:", "--version"),
        ("run",): (
            "--once",
            "--trigger",
            "--checkpoint",
            "--master",
            "--query",
            "--conf",
            "--quiet",
            "--debug",
            "--events",
            "--metrics-port",
        ),
        ("explain",): ("--format {text,json}", "--query"),
        ("check",): ("--query", "topology"),
        ("site",): (
            "NAME",
            "topology",
            "--once",
            "--trigger",
            "--planner",
            "start, stop, crash and restart in any order",
        ),
    }
    told = process("--help")
    assert (told.returncode, told.stdout, told.stderr) == (0, helped(), "")
    for verb, wanted in fragments.items():
        shown = " ".join(helped(*verb).split())
        for fragment in wanted:
            assert fragment in shown


@pytest.mark.soak
def test_a_process_that_meets_a_damaged_file_and_a_run_that_goes_on(
    spark: SparkSession, place: Place, command: Run
) -> None:
    damaged = place.path("a", 1)
    truncate(damaged)
    place.date_file(damaged, 1)
    failed = process("run", place.file, "--once", "--master", "local[2]")
    assert failed.returncode == 1
    assert_one_sentence(failed.stderr)
    assert_no_trace(failed.stdout)
    assert f"query 'q': input file {damaged} cannot be read" in failed.stderr
    log = re.search(r"\(Spark's log: (\S+)\)$", failed.stderr.strip())
    assert log and "Caused by" in Path(log[1]).read_text(encoding="utf-8")
    shutil.rmtree(Path(log[1]).parent)

    damaged.unlink()
    code, out, err = command("run", place.file, "--once")
    assert (code, err) == (0, "")
    assert_no_trace(out)
    assert place.answers() == expected(without=[("a", 1)])


@pytest.mark.parametrize(
    "numbers", [(signal.SIGTERM,), pytest.param((signal.SIGINT, signal.SIGTERM), marks=pytest.mark.soak)]
)
def test_signals_end_a_run_cleanly_and_the_next_one_resumes(
    spark: SparkSession, tmp_path: Path, command: Run, numbers: tuple[signal.Signals, ...]
) -> None:
    place = Place(tmp_path)
    rows = 3_000  # in four micro-batches, a minute apart in runs that are ended: more than those complete
    for name, seed in (("a", "1"), ("b", "2")):
        options = {"rows": str(rows), "rows_per_second": "100", "pace": "max", "rows_per_batch": str(rows // 4)}
        options |= {"seed": seed, "column.k": "uniform 0 500"}
        place.set(f"streams.{name}.source", {"format": "generator", "options": options})
        place.set(f"streams.{name}.schema", "k long, id long, ts timestamp")
    for number in numbers:
        end_by_signal(place, tmp_path, command, number)

    assert command("run", place.file, "--once", "--quiet") == (0, "", "")
    resumed = place.answers()
    shutil.rmtree(tmp_path / "out")
    assert command("run", place.file, "--once", "--quiet", "--checkpoint", tmp_path / "undisturbed") == (0, "", "")
    assert resumed == place.answers()
    assert resumed.total() > rows


def end_by_signal(place: Place, directory: Path, command: Run, number: signal.Signals) -> None:
    """Run until there is a new micro-batch, then end the run by a signal to all its processes."""
    checkpoint = directory / ".watersmeet/checkpoints"
    before = ledger_of(checkpoint / "here").batch
    line = [
        sys.executable,
        "-m",
        "watersmeet",
        "run",
        str(place.file),
        "--trigger",
        "60 seconds",
        "--master",
        "local[2]",
    ]
    # Keys pressed at a terminal reach Java and the Python workers as well.
    running = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )  # fmt: skip
    try:

        def check() -> None:
            assert running.poll() is None, running.communicate()

        wait_for(lambda: ledger_of(checkpoint / "here").batch > before, "no micro-batch is completed", check)
        # While it runs, nobody else gets its checkpoint.
        code, _, err = command("run", place.file, "--once")
        assert code == 2
        assert_one_sentence(err)
        assert f"checkpoint {checkpoint}/here is in use by another run; stop that one or give another" in err
        assert running.poll() is None
        os.killpg(running.pid, number)
        out, err = running.communicate(timeout=PATIENCE_S)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
    assert (running.returncode, err) == (0, "")
    assert "stopping after the current micro-batch" in out
    assert "output path" in out
    assert_no_trace(out)
    assert [path.name for path in (directory / "out").iterdir()] == ["q"]  # nothing temporary


STATS = {
    "rate": 50,
    "columns": {"k": {"bytes": 2, "histogram": [{"low": 0, "high": 99, "share": 1}]}, "id": {"bytes": 3}},
}


def test_plans_by_cost_and_their_pictures(
    spark: SparkSession, place: Place, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_sited(place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.directory / "cache"))
    del place.topology["queries"]["q"]["plan"]
    place.save()
    code, text, err = command("explain", place.file)
    assert (code, err) == (0, "")
    assert "planned by auto: " in text and "no statistics are given: planned by a first look at the sources (" in text
    for name in "abc":
        place.topology["streams"][name]["stats"] = STATS
    place.save()
    code, text, err = command("explain", place.file, "--every", "--draw", str(place.directory / "plan.svg"))
    assert code == 0 and "plan.svg" in err
    assert (place.directory / "plan.svg").read_text().startswith("<?xml")
    assert "planned by auto" in text and "estimate, with a micro-batch every 1 s:" in text
    listed = text[text.index("cost by planner:") :]
    for planner in ("central", "greedy", "exhaustive", "tree", "pmjoin", "simple", "local-first", "optimal", "auto"):
        assert f"  {planner}: " in listed
    assert command("explain", place.file, "--every")[1] == text  # the same on every run
    code, out, err = command("explain", place.file, "--format", "json", "--planner", "tree", "--trigger", "10 seconds")
    assert (code, err) == (0, "")
    estimate = json.loads(out)["q"]["estimate"]
    assert (estimate["planner"], estimate["batch_every_s"]) == ("tree", 10)
    assert estimate["bytes_s"] == pytest.approx(sum(link["bytes_s"] for link in estimate["links"]))
    code, out, err = command("explain", place.file, "--draw", "plan.pdf")
    assert code == 2
    assert_one_sentence(err)


def test_limits_that_cannot_be_kept(spark: SparkSession, place: Place, command: Run) -> None:
    make_sited(place)
    del place.topology["queries"]["q"]["plan"]
    for name in "abc":
        place.topology["streams"][name]["stats"] = STATS
    place.topology["queries"]["q"]["limits"] = {"delay": "1 ms"}
    place.save()
    code, out, err = command("explain", place.file)
    assert (code, out) == (2, "")
    assert_one_sentence(err)
    assert "no plan keeps to the limits" in err and "s above the limit" in err


def test_calibrate_leaves_units_where_estimates_find_them(
    tmp_path: Path, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, out, err = command("calibrate", "--seconds", "0.1")
    assert (code, err) == (0, "")
    assert "written to" in out and (tmp_path / "watersmeet" / "units.json").exists()


def test_experiments_are_listed_and_run(tmp_path: Path, command: Run) -> None:
    code, out, err = command("reproduce", "--list")
    assert (code, err) == (0, "")
    for name in ("pmjoin-example1", "pmjoin-fig11", "semijoin-table3", "semijoin-fig7a"):
        assert name in out
    code, out, err = command("reproduce", "pmjoin-example1", "--quick", "--here", "--output", str(tmp_path))
    assert (code, err) == (0, "")
    assert "54.03" in out
    assert {path.name for path in tmp_path.iterdir()} == {f"pmjoin-example1.{kind}" for kind in ("csv", "png", "svg")}
    code, out, err = command("reproduce", "pmjoin-example1", "--draws", "0")
    assert code == 2 and "--draws must be 1 or more, not 0" in err
    code, out, err = command("reproduce", "pmjoin-exampel1")
    assert code == 2 and "did you mean 'pmjoin-example1'" in err
    assert_one_sentence(err)
