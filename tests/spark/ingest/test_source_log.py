"""Spark's logs of input files: what no batch was planned of is struck out, and nothing else is touched."""

import json
from pathlib import Path

import pytest

from watersmeet.spark.ingest.source_log import missing_inputs, strike_out_unplanned


def files(*lists: int) -> str:
    found = [{"path": f"file:///in/some%20name-{n}.parquet", "timestamp": 1, "batchId": n} for n in lists]
    return "\n".join(["v1", *map(json.dumps, found)])


def offsets(*sources: object) -> str:
    return "\n".join(["v1", "{}", *("-" if one is None else json.dumps(one) for one in sources)])


def lay(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def seen(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text(encoding="utf-8") for p in root.rglob("*") if p.is_file()}


PLANNED = {"offsets/0": offsets({"logOffset": 0}, None), "offsets/1": offsets({"logOffset": 1}, {"logOffset": 0})}


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"sources/0/0": files(0), "sources/0/1": files(1), "sources/1/0": files(0)}, {}),
        ({"sources/0/2": files(2), "sources/1/1": files(1)}, {"sources/0/2": files(), "sources/1/1": files()}),
        ({"sources/0/2.compact": files(0, 1, 2)}, {"sources/0/2.compact": files(0, 1)}),
        ({"sources/2/0": files(0)}, {"sources/2/0": files()}),
        ({"sources/0/.2.x.tmp": files(2), "sources/0/state": "other"}, {}),
    ],
    ids=["all planned", "lists", "a list of all", "a source of no batch", "no lists"],
)
def test_what_no_batch_was_planned_of_is_struck_out(
    tmp_path: Path, given: dict[str, str], changed: dict[str, str]
) -> None:
    lay(tmp_path, PLANNED | given)
    strike_out_unplanned(str(tmp_path))
    assert seen(tmp_path) == PLANNED | given | changed


def test_killed_before_the_first_batch_was_planned(tmp_path: Path) -> None:
    lay(tmp_path, {"sources/0/0": files(0), "sources/0/.0.crc": "sum"})
    (tmp_path / "offsets").mkdir()
    strike_out_unplanned(str(tmp_path))
    assert seen(tmp_path) == {"sources/0/0": files()}, "and no checksum of what was there is left"


@pytest.mark.parametrize(
    "other",
    [
        {"sources/0/0": 'v1\n{"topic":{"0":5}}', "offsets/0": offsets({"topic": {"0": 7}})},
        {"sources/0/0": "v1\n1700000000000", "offsets/0": offsets(12)},
        {"sources/0/0": "v1\nnot json", "offsets/0": offsets({"logOffset": -1})},
        {"sources/0/0": files(0), "offsets/0": "v1\n{}\nnot json"},
        {"sources/0/0": files(0)},
    ],
    ids=["topics", "numbers", "another list", "other offsets", "no offsets"],
)
def test_logs_of_other_forms_are_let_be(tmp_path: Path, other: dict[str, str]) -> None:
    lay(tmp_path, other)
    strike_out_unplanned(str(tmp_path))
    assert seen(tmp_path) == other
    assert missing_inputs(str(tmp_path)) == []


def test_inputs_of_an_unfinished_batch_that_are_gone(tmp_path: Path) -> None:
    assert missing_inputs(str(tmp_path / "nothing here")) == []
    lay(tmp_path, PLANNED | {"sources/0/0": files(0), "sources/0/1.compact": files(0, 1), "commits/0": "v1\n{}"})
    assert missing_inputs(str(tmp_path)) == ["/in/some name-1.parquet"]
    lay(tmp_path, {"commits/1": "v1\n{}"})
    assert missing_inputs(str(tmp_path)) == []
