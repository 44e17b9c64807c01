"""From a directory of files to answers: `init`, `run`, `tail`, and the prompt `sql`."""

import io
import json
import os
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from watersmeet.cli.main import run_command
from watersmeet.errors import InputError
from watersmeet.topology.keep import with_query
from watersmeet.topology.load import load_topology
from watersmeet.topology.propose import FoundStream, propose

START = datetime(2025, 1, 31, 12, tzinfo=UTC)
ORDERS: list[dict[str, Any]] = [
    {"user": n % 7, "amount": n / 2, "placed": START + timedelta(seconds=40 * n)} for n in range(30)
]
CLICKS: list[dict[str, Any]] = [
    {"user": n % 5, "page": f"page {n}", "ts": START + timedelta(seconds=50 * n)} for n in range(24)
]


def write(path: Path, rows: list[dict[str, Any]], number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        lines = [",".join(rows[0]), *(f"{row['user']},{row['page']},{row['ts']:%Y-%m-%d %H:%M:%S}Z" for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    os.utime(path, (1_700_000_000 + number,) * 2)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Parquet files of which the second is older than the first, and CSV with a header."""
    write(tmp_path / "data" / "eu-orders" / "1.parquet", ORDERS[20:], 2)
    write(tmp_path / "data" / "eu-orders" / "0.parquet", ORDERS[:20], 1)
    write(tmp_path / "data" / "clicks" / "a.csv", CLICKS[4:14], 1)
    write(tmp_path / "data" / "clicks" / "b.csv", [*CLICKS[:4], *CLICKS[14:]], 2)
    (tmp_path / "data" / "notes.txt").write_text("nothing to read here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def expected() -> Counter[tuple[Any, ...]]:
    return Counter(
        (o["user"], o["amount"], c["page"])
        for o in ORDERS
        for c in CLICKS
        if o["user"] == c["user"] and abs(o["placed"] - c["ts"]) <= timedelta(minutes=5)
    )


def test_from_files_to_answers(
    spark: SparkSession, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_command(["init", "data"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "stream clicks: 2 csv files, 3 columns, event time ts (guessed)"
    assert told[1] == "stream eu_orders: 2 parquet files, 3 columns, event time placed (guessed)"
    topology = load_topology(data / "topology.yaml")
    clicks, orders = topology.streams
    assert clicks.types == {"user": "int", "page": "string", "ts": "timestamp"}
    assert clicks.source is not None and clicks.source.options == {"header": "true"}
    assert clicks.watermark_us == 13 * 50 * 1_000_000, "page 0 comes after page 13"
    assert orders.types == {"user": "bigint", "amount": "double", "placed": "timestamp"} and orders.watermark_us == 0
    assert run_command(["check", "topology.yaml"]) == 0
    assert run_command(["init", "data"]) == 2
    assert "topology.yaml exists; remove it, or name another file" in capsys.readouterr().err

    assert "WHERE x.user = y.user" in topology.query("first").sql

    # A query at the prompt, kept in the file.
    sql = "SELECT o.user, o.amount, c.page FROM eu_orders [RANGE 5 MINUTES] o,\n"
    sql += "clicks [RANGE 5 MINUTES] c\nWHERE o.user = c.user"
    typed = f".streams\n.keep early\n{sql.replace('o.user = c', 'o.usr = c')};\n{sql};\n.keep first\n.keep mine\n.wat\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{typed}.quit\nSELECT never seen;\n"))
    assert run_command(["sql", "topology.yaml", "--rows", "3"]) == 0
    out = capsys.readouterr().out
    for part in (
        "eu_orders: user bigint, amount double, placed timestamp; event time placed",
        "watersmeet: there is no query to keep yet; type one first",
        "'o' has no column 'usr'; did you mean 'user'?",
        "  join 2 windows",
        "the first 3 answers",
        "watersmeet: the file has a query 'first' already; choose another name",
        "kept as query mine in topology.yaml; its answers go to out/mine",
        "unknown command '.wat'",
    ):
        assert part in out, out
    assert "never" not in out
    kept = load_topology(data / "topology.yaml")
    assert kept.queries[:-1] == topology.queries and kept.query("mine").sql.split() == sql.split()
    assert "# guessed" in (data / "topology.yaml").read_text(), "comments stay"

    assert run_command(["run", "topology.yaml", "--once", "--query", "mine", "--quiet"]) == 0
    assert run_command(["tail", "mine", "-n", "100000", "--no-follow"]) == 0
    answers = [tuple(json.loads(line).values()) for line in capsys.readouterr().out.splitlines()]
    assert Counter(answers) == expected()
    assert run_command(["tail", "mine", "-n", "2", "--no-follow"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_answers_are_followed_as_they_come(tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_text(
        "streams: {a: {schema: 'k long, ts timestamp', event_time: ts, source: {format: parquet, path: a}}}\n"
        "queries: {q: {sql: x, sink: {format: json, path: out}}, p: {sql: x}}\n"
    )
    command = [sys.executable, "-m", "watersmeet", "tail", "q", "-n", "1"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-1.json").write_text('{"k": 1}\n{"k": 2}\n')
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == '{"k": 2}\n'
        (tmp_path / "out" / ".hidden").write_text('{"k": 3}\n')
        time.sleep(0.05)
        (tmp_path / "out" / ".hidden").rename(tmp_path / "out" / "part-2.json")
        assert process.stdout.readline() == '{"k": 3}\n'
        process.terminate()


def test_sinks_that_cannot_be_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text(
        "streams: {a: {schema: 'k long, ts timestamp', event_time: ts, source: {format: parquet, path: a}}}\n"
        "queries: {q: {sql: x}}\n"
    )
    assert run_command(["tail", "q", str(path)]) == 2
    assert "its sink is console; tail reads local parquet, orc, csv and json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("streams: {}\n", "no `queries:`"),
        ("queries: {p: {sql: x}}\n", "no `queries:`"),
        ("queries:\np: 1\n", None),
    ],
)
def test_files_that_a_query_cannot_be_added_to(text: str, cause: str | None) -> None:
    if cause is None:
        assert with_query(text, "q", "SELECT 1", "o").startswith("queries:\n  q:\n")
    else:
        with pytest.raises(InputError, match=cause):
            with_query(text, "q", "SELECT 1", "o")


def test_a_stream_without_a_timestamp_is_a_comment(tmp_path: Path) -> None:
    plain = FoundStream("plain", "json", "data/plain", {"k": "bigint", "my col": "string"})
    timed = FoundStream("timed", "json", "no/true path", {"k": "bigint", "at": "timestamp", "b": "timestamp"})
    text = propose([plain, timed])
    assert "  # plain:" in text and "none of its columns is a timestamp" in text
    path = tmp_path / "topology.yaml"
    path.write_text(text)
    topology = load_topology(path)
    assert [stream.name for stream in topology.streams] == ["timed"]
    assert topology.streams[0].event_time == "at" and "guessed; also possible: b" in text
    assert "No stream can be joined yet" in propose([plain])


def test_init_of_what_has_no_files(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = ["--output", str(tmp_path / "t.yaml")]
    assert run_command(["init", str(tmp_path), *output]) == 2
    assert "has no files or subdirectories with files that end in .avro, .csv, " in capsys.readouterr().err
    assert run_command(["init", str(tmp_path / "none"), *output]) == 2
    assert "is not a directory" in capsys.readouterr().err
