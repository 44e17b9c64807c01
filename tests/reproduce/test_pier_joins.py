"""PIER's experiments on joins: small points make whole rows, and verdicts can both agree and differ."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from watersmeet.reproduce import experiment_named, report, runner
from watersmeet.reproduce.experiment import Row
from watersmeet.reproduce.pier.join_runs import DHT, HIERARCHIES, IP, METHODS, SYMMETRIC

NAMES = [f"pier-fig4.{number}" for number in range(16, 22)]


@pytest.mark.parametrize("name", ["pier-fig4.16", "pier-fig4.18", "pier-fig4.20"])
def test_small_points_make_whole_rows(name: str, tmp_path: Path) -> None:
    experiment = experiment_named(name)
    points = experiment.points(True)
    assert len(experiment.points(False)) > len(points)
    assert pickle.loads(pickle.dumps(points)) == points  # other processes can run them
    small = [replace(point, run=replace(point.run, nodes=6, tuples=8)) for point in points[:4]]
    rows = runner.run_all(experiment, small)
    assert all(row["results"] is not None for row in rows), "a join lost results, or made some"
    assert all(path.stat().st_size > 100 for path in report.write(experiment, rows, tmp_path))


def test_computation_nodes_receive_what_the_formula_says() -> None:
    experiment = experiment_named("pier-centralised")
    points = [replace(point, run=replace(point.run, nodes=8, tuples=20)) for point in experiment.points(True)[:2]]
    rows = runner.run_all(experiment, points)
    assert [row["computation nodes"] for row in rows] == [1, 4]
    assert all(row["results"] is not None for row in rows)
    assert rows[0]["received MB"] > 3 * rows[1]["received MB"]
    sentences = experiment.verdict(rows)
    assert all(sentence.startswith("agrees") for sentence in sentences), sentences
    assert experiment.verdict([row | {"received MB": 9.0} for row in rows])[0].startswith("differs")


def rows_of(names: list[str], x: str, values: tuple[float, ...], **figures: dict[str, list[float]]) -> list[Row]:
    return [
        {"join": name, x: at, "draw": 0, "messages": 1, "most inbound": 1.0, "results": 1}
        | {figure: by_name[name][place] for figure, by_name in figures.items()}
        for name in names
        for place, at in enumerate(values)
    ]


def agreed(name: str, rows: list[Row]) -> list[bool]:
    return [sentence.startswith("agrees") for sentence in experiment_named(name).verdict(rows)]


def test_verdicts_agree_with_the_paper_and_differ_from_it() -> None:
    nodes, names = (16, 64), [DHT, IP]
    good = {DHT: [2.0, 1.5], IP: [1.0, 0.5]}
    bad = {DHT: [1.0, 2.0], IP: [2.0, 3.0]}
    for name, count in (("pier-fig4.16", 1), ("pier-fig4.17", 2)):
        assert agreed(name, rows_of(names, "nodes", nodes, traffic=good, latency=good)) == [True] * count
        assert agreed(name, rows_of(names, "nodes", nodes, traffic=bad, latency=bad)) == [False] * count
    drawn = [
        row | {"draw": draw, "latency": row["latency"] + draw}
        for row in rows_of(names, "nodes", nodes, latency=good, traffic=good)
        for draw in (0, 1)
    ]
    assert agreed("pier-fig4.17", drawn) == [True, False]  # draws differ by more than the two sizes
    shares, four = (0.1, 1.0), list(METHODS)
    traffic = dict(zip(four, ([4.0, 8.0], [5.0, 5.5], [1.0, 6.0], [2.0, 7.9]), strict=True))
    latency = dict(zip(four, ([2.0, 2.0], [1.0, 1.0], [3.0, 3.0], [7.0, 7.0]), strict=True))
    rows = rows_of(four, "selectivity", shares, traffic=traffic, latency=latency)
    assert agreed("pier-fig4.18", rows) == [True] * 5
    assert agreed("pier-fig4.19", rows) == [True] * 4
    reverse = dict(zip(four, ([1.0, 1.0], [1.0, 9.0], [1.0, 2.0], [1.1, 9.0]), strict=True))
    upside = dict(zip(four, ([9.0, 5.0], [5.0, 5.0], [4.0, 4.0], [1.0, 1.0]), strict=True))
    rows = rows_of(four, "selectivity", shares, traffic=reverse, latency=upside)
    assert agreed("pier-fig4.18", rows) == [False] * 5
    assert agreed("pier-fig4.19", rows) == [False] * 4
    curve = {name: [1.0, 1.0, 9.0] if name == "symmetric semijoin" else [9.0, 9.0, 9.0] for name in four}
    (line,) = [
        sentence
        for sentence in experiment_named("pier-fig4.18").verdict(
            rows_of(four, "selectivity", (0.1, 0.5, 1.0), traffic=curve, latency=curve)
        )
        if "linearly" in sentence
    ]
    assert line.startswith("differs")  # it grows most, but not on a line
    joins = list(HIERARCHIES)
    quick = {name: [0.5, 0.5] if "hierarchical" in name else [2.0, 2.0] for name in joins}
    dearer = {name: [1.5, 1.5] if "hierarchical" in name else [1.0, 1.0] for name in joins}
    costly = {name: [5.0, 5.0] if "hierarchical" in name else [1.0, 1.0] for name in joins}
    assert agreed("pier-fig4.20", rows_of(joins, "nodes", nodes, traffic=costly, latency=quick)) == [True] * 2
    assert agreed("pier-fig4.20", rows_of(joins, "nodes", nodes, traffic=costly, latency=costly)) == [False] * 2
    assert agreed("pier-fig4.21", rows_of(joins, "nodes", nodes, traffic=costly, latency=quick)) == [True] * 2
    assert agreed("pier-fig4.21", rows_of(joins, "nodes", nodes, traffic=quick, latency=quick)) == [False] * 2
    assert agreed("pier-fig4.21", rows_of(joins, "nodes", nodes, traffic=dearer, latency=quick)) == [False] * 2
    assert SYMMETRIC in joins
