"""Op-graphs in files, as users run them: what they see of malformed tuples, taps and limits, and where mistakes are."""

import json
import sqlite3
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pier_scenarios import STREAMS

from watersmeet.cli import main
from watersmeet.program.pier.dataflow import OPERATORS

HOT = """
%opgraph(hot) {
  duration = 30
  %operator(readings) { type = scan implementation = Local table = heat }
  %operator(only.hot) {
    type = selection
    sources[] = readings
    %predicate(p) { type = atomic leftexpression = $degrees op = ">" rightexpression = 25::double }
  }
  %operator(out) { type = result sources[] = only.hot }
}
"""


def simulate(tmp_path: Path, ufl: str, *options: str) -> int:
    (tmp_path / "hot.ufl").write_text(ufl)
    (tmp_path / "scenario.yaml").write_text(
        "system: pier\nnetwork: {nodes: 12, overlay: bamboo, latency: king, seed: 1}\npier: {drain: 10 s}\n"
        f"{STREAMS.format(rows=30, seed=1)}\nqueries:\n  hot: {{ufl: hot.ufl, home: 3}}\n"
    )
    with pytest.raises(SystemExit) as ended:
        main.main(["simulate", str(tmp_path / "scenario.yaml"), *options])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_error_reports_say_what_is_wrong_and_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = HOT.replace("$degrees", "$state")
    assert simulate(tmp_path, wrong, "--format", "json") == 0
    silent = json.loads(capsys.readouterr().out)
    assert (silent["malformed"], silent["queries"]["hot"]["errors"]) == (30, [])
    asked = wrong.replace("type = selection", "type = selection errors = true")
    assert simulate(tmp_path, asked, "--format", "json") == 0
    (error,) = json.loads(capsys.readouterr().out)["queries"]["hot"]["errors"]
    assert (error["operator"], error["tuples"]) == ("only.hot", 30)
    assert "heat has no column 'state'" in error["reason"]
    assert 1 < error["nodes"] <= 12
    assert simulate(tmp_path, asked) == 0
    assert "error reports" in capsys.readouterr().out


def test_taps_are_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tapped = HOT.replace("type = selection", "type = selection tap = input")
    assert simulate(tmp_path, tapped, "--out", str(tmp_path / "out")) == 0
    assert "tap of hot, only.hot: 30" in capsys.readouterr().out
    rows = pq.read_table(tmp_path / "out" / "hot.only.hot.tap.parquet")
    assert rows.num_rows == 30
    assert {"room", "degrees", "#peer"} <= set(rows.column_names)
    answers = pq.read_table(tmp_path / "out" / "hot.parquet")
    assert 0 < answers.num_rows < 30


def test_a_limit_withholds_messages_and_counts_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(tmp_path, HOT, "--format", "json") == 0
    everything = json.loads(capsys.readouterr().out)
    assert simulate(tmp_path, HOT.replace("duration", "limit = 1 duration"), "--format", "json") == 0
    limited = json.loads(capsys.readouterr().out)
    assert everything["withheld"] == 0
    assert 0 < limited["answers"] <= 12  # one message of one tuple from each node
    assert limited["answers"] + limited["withheld"] == everything["answers"]


def test_answers_of_different_types_become_one_column(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "log.db") as database:
        database.execute("CREATE TABLE log (port, size)")
        database.execute("INSERT INTO log VALUES (22, 1), ('ssh', 2.5), (NULL, NULL), (x'00ff', 9007199254740993)")
    query = f"""%opgraph(g) {{ duration = 5 ns = anywhere rid = 1
      %operator(c) {{ type = scan implementation = JDBC url = "jdbc:sqlite:{tmp_path}/log.db" sql = "SELECT * FROM log"
                     table = log }}
      %operator(out) {{ type = result sources[] = c tap = input }} }}"""
    assert simulate(tmp_path, query, "--out", str(tmp_path / "out")) == 0
    for name in ("hot.parquet", "hot.out.tap.parquet"):
        rows = pq.read_table(tmp_path / "out" / name).to_pylist()
        found = sorted(((row["port"], row["size"]) for row in rows), key=str)
        assert found == [("00ff", 9007199254740992.0), ("22", 1.0), ("ssh", 2.5), (None, None)]


@pytest.mark.parametrize(
    ("changed", "to", "message"),
    [
        ('op = ">"', 'op = ">>"', "query 'hot': line 5, operator 'only.hot', predicate 'p': unknown op '>>'"),
        ("%operator(out)", "%operater(out)", "query 'hot': line 10, column 4: unknown kind of object 'operater'"),
        ("25::double", "25::doubel", "query 'hot': line 8, column 92: unknown type 'doubel'; did you mean 'double'?"),
        ("= only.hot", "= only.cold", "unknown source 'only.cold'; did you mean 'only.hot'?"),
        (HOT, " \n", "hot.ufl is empty; write an op-graph into it"),
    ],
)
def test_mistakes_are_named_with_their_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: str, to: str, message: str
) -> None:
    assert simulate(tmp_path, HOT.replace(changed, to)) == 2
    assert message in capsys.readouterr().err


def test_the_checklist_of_the_guide_names_operators_and_tests_that_exist() -> None:
    root = Path(__file__).parents[3]
    text = (root / "docs" / "guide" / "ufl.md").read_text().split("## The paper's list")[1].split("\n## ")[0]
    tests = {path.name: path.read_text() for path in (root / "tests").rglob("test_*.py")}
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ") and "`" in line]
    checked = {(kind, each) for kind, implementations, _ in lines for each in implementations.split(", ")}
    for kind, implementation in checked:
        if kind.startswith("op "):
            assert implementation.casefold() in OPERATORS[kind.removeprefix("op ")], (kind, implementation)
    assert {kind.removeprefix("op ") for kind, _ in checked if kind.startswith("op ")} <= set(OPERATORS)
    assert sum(kind.startswith("op ") for kind, _ in checked) == 29
    for *_, named in lines:
        for test in named.replace("`", "").split(", "):
            file, _, function = test.partition("::")
            assert f"def {function}(" in tests[file], test
