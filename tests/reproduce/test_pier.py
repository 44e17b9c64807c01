"""Experiments on shared aggregates: small points have every column, and verdicts can both agree and differ."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from watersmeet.reproduce import experiment_named, report, runner
from watersmeet.reproduce.experiment import Row
from watersmeet.reproduce.pier import fig5_7
from watersmeet.reproduce.pier.runs import COVER, DECOMPOSITION, EXACT, LINEAR, Point
from watersmeet.reproduce.pier.table5_1 import PUBLISHED as PUBLISHED_LINEAR
from watersmeet.reproduce.pier.table5_2 import PUBLISHED as PUBLISHED_COMPOSITIONS

NAMES = ["pier-table5.1", "pier-table5.2", *(f"pier-fig5.{number}" for number in range(3, 8))]


def agreed(verdict: Sequence[str]) -> list[bool]:
    return [sentence.startswith("agrees") for sentence in verdict if not sentence.startswith("beyond")]


@pytest.mark.few(3)
@pytest.mark.parametrize("name", NAMES)
def test_quick_points_make_whole_rows(name: str, tmp_path: Path) -> None:
    experiment = experiment_named(name)
    points = experiment.points(True)
    assert len(experiment.points(False)) > len(points)
    assert pickle.loads(pickle.dumps(points)) == points  # other processes can run them
    if isinstance(points[0], Point):
        points = tuple(
            replace(point, fragments=24, queries=24, basis=basis) for point, basis in zip(points, (8, 10), strict=False)
        )
    rows = runner.run_all(experiment, points)
    assert rows
    for row in rows:
        assert set(experiment.columns) <= set(row)
    assert all(
        path.stat().st_size > 100 for path in report.write(experiment, _wanted(experiment.columns, rows), tmp_path)
    )


def _wanted(columns: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    return [row | {name: row[name] for name in columns} for row in rows]


def test_sizes_are_those_of_the_generator() -> None:
    point = Point(60, 50, 20, 3, ("QR", "SVD", "LU echelon", EXACT, "LU", DECOMPOSITION))
    sizes = {row["algorithm"]: row["A' size"] for row in runner.run_all(experiment_named("pier-table5.1"), [point])}
    assert {sizes[name] for name in ("QR", "SVD", "LU echelon", EXACT)} == {20}
    assert 20 < sizes["LU"] <= 50 and sizes[DECOMPOSITION] >= 20
    point = Point(50, 50, 15, 3, ("Basic-M/A/W", "Add-M/A/P", COVER))
    rows = runner.run_all(experiment_named("pier-table5.2"), [point])
    assert [row["A' size"] <= 50 for row in rows] == [True] * 3
    assert rows[-1]["A' size"] == 15 and rows[-1]["effective %"] == 100


def rows_of(size: str, algorithms: Sequence[str], **figures: float) -> list[Row]:
    return [
        {"F size": size, "queries": 500, "basis rows": 250, "algorithm": name, "draw": 0}
        | {"A' size": 250, "effective %": 100.0, "ms": 1.0}
        | {key.replace("_", " "): value for key, value in figures.items()}
        for name in algorithms
    ]


def test_verdicts_on_tables_can_agree_and_differ() -> None:
    table = experiment_named("pier-table5.1")
    rows = rows_of("500x500", list(LINEAR))
    assert agreed(table.verdict(rows)) == [True, False, False, False]
    for row in rows:
        if row["algorithm"].startswith("LU,") or row["algorithm"] == "LU" or row["algorithm"] == DECOMPOSITION:
            row["effective %"] = 40.0
        if row["algorithm"] == "SVD":
            row["ms"] = 10.0
    assert agreed(table.verdict(rows)) == [True] * 4
    table = experiment_named("pier-table5.2")
    published = PUBLISHED_COMPOSITIONS["100x100"]
    rows = [
        {"F size": "100x100", "algorithm": name, "draw": 0, "A' size": size, "effective %": effective, "ms": ms}
        for name, (size, effective, ms) in published.items()
    ]
    rows += [rows[0] | {"algorithm": COVER}, rows[0] | {"algorithm": DECOMPOSITION, "A' size": 100}]
    assert agreed(table.verdict(rows)) == [True] * 5
    for row in rows:
        row["effective %"] = 99.0 if row["algorithm"].startswith("Add-M/R") else 50.0
        row["ms"] = 1.0 if row["algorithm"].startswith("Add-M/R") else 9.0
        row["A' size"] = 50
    assert agreed(table.verdict(rows)) == [False] * 5


def test_published_figures_are_whole() -> None:
    assert len(PUBLISHED_LINEAR) == 9
    assert {size: len(own) for size, own in PUBLISHED_COMPOSITIONS.items()} == {
        "50x100": 13,
        "100x100": 13,
        "150x100": 13,
    }


def test_bytes_of_an_epoch_fall_with_the_gain() -> None:
    points = [fig5_7.Point(basis, 0, 8) for basis in (10, 50, 90)]
    rows = runner.run_all(fig5_7.EXPERIMENT, points)
    assert agreed(fig5_7.EXPERIMENT.verdict(rows)) == [True] * 4
    assert rows[0]["rectangle cover"] < rows[0]["Add-M/A/P"] < rows[0]["individual queries"] < rows[0]["non-optimised"]
    flat = [row | {"Add-M/A/P": float(place % 2), "non-optimised": 0.0} for place, row in enumerate(rows)]
    assert agreed(fig5_7.EXPERIMENT.verdict(flat)) == [True, False, True, False]
