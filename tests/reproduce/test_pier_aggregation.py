"""PIER's experiments on aggregation: small points make whole rows, and verdicts can both agree and differ."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from watersmeet.program.pier.algorithms import algorithm_named
from watersmeet.reproduce import EXPERIMENTS, experiment_named, report, runner
from watersmeet.reproduce.experiment import Row
from watersmeet.reproduce.pier.aggregation_runs import FIGURES, NODES, RANKS, AggregationPoint
from watersmeet.sim.pier.aggregation.measure import AggregationRun, measure_aggregation

NAMES = [f"pier-fig4.{number}" for number in (*range(2, 5), *range(8, 16))]
LOADS = ("pier-fig4.3", "pier-fig4.12", "pier-fig4.14")


def algorithms_of(name: str) -> list[str]:
    return list(dict.fromkeys(point.run.algorithm.name for point in experiment_named(name).points(True)))


def test_points_are_those_of_the_paper() -> None:
    assert [each.name for each in EXPERIMENTS if each.name in NAMES] == NAMES
    for name in NAMES:
        experiment = experiment_named(name)
        points, quick = experiment.points(False), experiment.points(True)
        assert all(isinstance(point, AggregationPoint) for point in points)
        assert pickle.loads(pickle.dumps(points)) == points  # other processes can run them
        assert {point.run.nodes for point in points} == set(NODES[-1:] if name in LOADS else NODES)
        assert {point.draw for point in points} == set(range(10))
        assert {point.run.epochs for point in points} == ({1} if name in NAMES[:3] else {30})
        assert len(quick) <= len(points) / 10


@pytest.mark.parametrize("name", ["pier-fig4.4", "pier-fig4.13", "pier-fig4.14"])
def test_small_points_make_whole_rows(name: str, tmp_path: Path) -> None:
    experiment = experiment_named(name)
    points = [
        replace(point, run=replace(point.run, nodes=RANKS, epochs=min(point.run.epochs, 4), drain_us=60_000_000))
        for point in experiment.points(True)
    ]
    rows = runner.run_all(experiment, points)
    for row in rows:
        assert set(experiment.columns) <= set(row)
    if name not in LOADS:
        assert all(row["complete"] == 1 and row["latency"] is not None for row in rows)
    assert all(path.stat().st_size > 100 for path in report.write(experiment, rows, tmp_path))
    assert len(experiment.verdict(rows)) >= 2


def test_a_run_says_what_was_sent_when() -> None:
    algorithm = algorithm_named("Tree-Hi-S-Topology")
    assert algorithm is not None
    found = measure_aggregation(AggregationRun(algorithm, 150, epochs=8, in_degree_max=5))
    assert found.in_degree == 5 and found.height >= 4
    assert found.epochs[0].redirects > 0 == found.epochs[-1].redirects
    assert all(epoch.nodes == 150 for epoch in found.epochs)
    assert found.epochs[0].megabytes > found.epochs[-1].megabytes
    assert found.settled_latency_s is not None and found.latency_s is not None
    assert found.settled_latency_s < found.latency_s
    assert sum(epoch.megabytes for epoch in found.epochs) == pytest.approx(found.megabytes)
    assert found.inbound_kilobytes[0] == max(found.inbound_kilobytes)


def rows_of(names: list[str], sizes: tuple[int, ...], **figures: dict[str, list[float]]) -> list[Row]:
    return [
        {"algorithm": name, "nodes": nodes, "draw": 0}
        | dict.fromkeys(FIGURES, 1.0)
        | {figure: by_name[name][place] for figure, by_name in figures.items() if name in by_name}
        for name in names
        for place, nodes in enumerate(sizes)
    ]


def load_rows(loads: dict[str, list[float]]) -> list[Row]:
    return [
        {"algorithm": name, "nodes": 64, "draw": 0, "rank": rank, "inbound": load, "settled inbound": load}
        for name, own in loads.items()
        for rank, load in enumerate(own, 1)
    ]


def agreed(name: str, rows: list[Row]) -> list[bool]:
    verdict = experiment_named(name).verdict(rows)
    return [sentence.startswith("agrees") for sentence in verdict if not sentence.startswith("beyond")]


def by_rank(first: float, rest: float, last: float) -> list[float]:
    return [first, *[rest] * 9, *[last] * 40]


def test_verdicts_agree_with_the_paper_and_differ_from_it() -> None:
    sizes = (64, 512)
    one_shot = algorithms_of("pier-fig4.2")
    given = ([1.0, 8.0], [1.0, 9.0], [5.0, 40.0], [5.0, 40.0], [9.0, 90.0], [9.0, 90.0], [2.0, 16.0], [2.0, 20.0])
    traffic: dict[str, list[float]] = dict(zip(one_shot, given, strict=True))
    assert agreed("pier-fig4.2", rows_of(one_shot, sizes, traffic=traffic)) == [True] * 4
    upside = {name: [100 - value for value in values] for name, values in traffic.items()}
    assert not any(agreed("pier-fig4.2", rows_of(one_shot, sizes, traffic=upside))[i] for i in (0, 1, 3))
    latency = {name: [6.0, 7.0] if name.endswith("Timeout") else [1.0, 2.0] for name in one_shot}
    latency["DHT-Hi-Timeout"] = [20.0, 25.0]
    assert agreed("pier-fig4.4", rows_of(one_shot, sizes, latency=latency)) == [True] * 2
    swapped = {name: [1.0, 2.0] if name.endswith("Timeout") else [6.0, 1.0] for name in one_shot}
    assert agreed("pier-fig4.4", rows_of(one_shot, sizes, latency=swapped)) == [False] * 2

    level = algorithms_of("pier-fig4.8")
    traffic = {name: [1.0, 8.0] if name.startswith("IP") else [4.0, 60.0] for name in level}
    assert agreed("pier-fig4.8", rows_of(level, sizes, traffic=traffic)) == [True] * 3
    odd = traffic | {"IP-1L-Timeout": [2.0, 8.0], "IP-1L-Optimal": [1.0, 80.0]}
    assert agreed("pier-fig4.8", rows_of(level, sizes, traffic=odd)) == [False] * 3
    settled = {name: [6.0, 6.0] if name.endswith("Timeout") else [1.0, 2.0] for name in level}
    figures = {"settled latency": settled, "latency": settled}
    assert agreed("pier-fig4.9", rows_of(level, sizes, **figures)) == [True] * 2
    wrong = settled | {"IP-1L-Learned": [3.0, 3.0], "DHT-1L-Timeout": [0.5, 1.0]}
    assert agreed("pier-fig4.9", rows_of(level, sizes, **{"settled latency": wrong, "latency": wrong})) == [False] * 2

    structure = algorithms_of("pier-fig4.10")
    traffic = dict(zip(structure, ([1.0, 2.0], [1.0, 5.0], [1.0, 9.0], [1.0, 3.0]), strict=True))
    assert agreed("pier-fig4.10", rows_of(structure, sizes, traffic=traffic)) == [True] * 3
    reverse = dict(zip(structure, ([1.0, 9.0], [1.0, 2.0], [1.0, 3.0], [1.0, 5.0]), strict=True))
    assert agreed("pier-fig4.10", rows_of(structure, sizes, traffic=reverse)) == [False] * 3
    settled = dict(zip(structure, ([1.0, 2.0], [1.0, 5.0], [1.0, 9.0], [1.0, 1.0]), strict=True))
    assert agreed("pier-fig4.11", rows_of(structure, sizes, **{"settled latency": settled})) == [True]
    settled["DHT-Hi-Learned"] = [1.0, 10.0]
    assert agreed("pier-fig4.11", rows_of(structure, sizes, **{"settled latency": settled})) == [False]

    dynamics = algorithms_of("pier-fig4.13")
    traffic = dict(zip(dynamics, ([1.0, 2.0], [1.0, 5.0], [1.0, 6.0], [1.0, 4.0], [1.0, 4.0]), strict=True))
    until = {name: [2.0, 3.0] for name in dynamics}
    good = rows_of(dynamics, sizes, **{"traffic": traffic, "redirected until": until})
    assert agreed("pier-fig4.13", good) == [True] * 4
    traffic = dict(zip(dynamics, ([1.0, 9.0], [1.0, 7.0], [1.0, 6.0], [1.0, 8.0], [1.0, 4.0]), strict=True))
    until = {name: [2.0, 8.0] for name in dynamics}
    bad = rows_of(dynamics, sizes, **{"traffic": traffic, "redirected until": until})
    assert agreed("pier-fig4.13", bad) == [False] * 4
    assert agreed("pier-fig4.15", rows_of(dynamics, sizes, **{"settled latency": traffic})) == [False, True]
    settled = dict(zip(dynamics, ([1.0, 6.0], [1.0, 7.0], [1.0, 6.0], [1.0, 4.0], [1.0, 9.0]), strict=True))
    assert agreed("pier-fig4.15", rows_of(dynamics, sizes, **{"settled latency": settled})) == [True, False]


def test_verdicts_on_load() -> None:
    root, hops, even = by_rank(900, 1, 1), by_rank(900, 30, 1), by_rank(20, 10, 2)
    one_shot = dict.fromkeys(algorithms_of("pier-fig4.3"), root)
    one_shot |= {"DHT-ML-Timeout": hops, "DHT-Hi-Timeout": even}
    assert agreed("pier-fig4.3", load_rows(one_shot)) == [True] * 2
    assert agreed("pier-fig4.3", load_rows(dict.fromkeys(one_shot, root))) == [False] * 2
    structure = dict.fromkeys(algorithms_of("pier-fig4.12"), root) | {"DHT-Hi-Learned": by_rank(100, 20, 2)}
    assert agreed("pier-fig4.12", load_rows(structure)) == [True] * 2
    assert agreed("pier-fig4.12", load_rows(dict.fromkeys(structure, by_rank(3, 2, 1)))) == [False] * 2
    dynamics = dict.fromkeys(algorithms_of("pier-fig4.14"), by_rank(100, 20, 2)) | {"Tree-Hi-S-Topology": even}
    dynamics["Tree-Hi-S-Topology"] = by_rank(15, 10, 2)
    assert agreed("pier-fig4.14", load_rows(dynamics)) == [True] * 2
    dynamics["Tree-Hi-S-Topology"] = by_rank(150, 10, 2)
    assert agreed("pier-fig4.14", load_rows(dynamics)) == [False] * 2
