"""RJoin's experiments: small points have every column, and verdicts can both agree and differ."""

import csv
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from watersmeet.reproduce import EXPERIMENTS, experiment_named, report, runner
from watersmeet.reproduce.experiment import Experiment, Row
from watersmeet.reproduce.rjoin import fig3 as rjoin_fig3
from watersmeet.reproduce.rjoin import fig8 as rjoin_fig8
from watersmeet.reproduce.rjoin.fig7 import window_run
from watersmeet.reproduce.rjoin.runs import RANKS, Point, is_alike, is_rising, run_looks, run_point, shares
from watersmeet.sim.rjoin.measured import RJoinExperiment, measure

NAMES = [f"rjoin-fig{number}" for number in range(2, 10)]
SMALL = RJoinExperiment(nodes=30, queries=40, tuples=(30,), warm_up=10)


def small(point: Point) -> Point:
    """The same point with next to nothing to do."""
    run = point.run
    return replace(point, run=replace(run, nodes=30, queries=5, warm_up=5, tuples=(run.tuples[-1] // 20,)))


def grid(experiment: Experiment, **figures: Any) -> Iterator[Row]:
    """A row for every quick point and look; a figure is a value, or a function of the row's keys."""
    every = [
        dict(point.keys) | ({"tuples": tuples} if "tuples" in experiment.keys else {})
        for point in experiment.points(True)
        for tuples in (point.run.tuples if "tuples" in experiment.keys else point.run.tuples[-1:])
    ]
    for keys in every:
        row = dict.fromkeys(experiment.columns, 1.0) | keys | {"draw": 0}
        yield row | {
            name.replace("_", " "): figure(keys) if callable(figure) else figure for name, figure in figures.items()
        }


def agreed(experiment: Experiment, **figures: Any) -> list[bool]:
    sentences = experiment.verdict(list(grid(experiment, **figures)))
    assert all(one.startswith(("agrees: ", "differs: ")) for one in sentences)
    return [one.startswith("agrees") for one in sentences]


def test_all_figures_are_there() -> None:
    assert [one.name for one in EXPERIMENTS if one.name.startswith("rjoin-fig")] == NAMES


@pytest.mark.few(4)
@pytest.mark.parametrize("name", NAMES)
def test_quick_points_make_whole_rows(name: str, tmp_path: Path) -> None:
    experiment = experiment_named(name)
    points = experiment.points(True)
    assert len({(point.keys, point.draw) for point in points}) == len(points)
    assert len(experiment.points(False)) >= len(points)
    assert pickle.loads(pickle.dumps(points)) == points  # other processes can run them
    ends = [small(point) for point in (points[0], points[-1])]
    rows = runner.run_all(experiment, ends)
    for row, point in zip(rows, ends, strict=True):
        assert set(row) == set(experiment.columns)
        looked = {"tuples": point.run.tuples[-1]} if "tuples" in experiment.keys else {}
        assert {key: row[key] for key in experiment.keys} == dict(point.keys) | looked
        assert row["load"] > 0 and row["traffic"] >= row["grouped traffic"] > 0
        assert row["draw"] == point.draw
    files = report.write(experiment, rows, tmp_path)
    with files[0].open(encoding="utf-8") as file:
        written = list(csv.DictReader(file))
    assert written[0]["load at 900"] == "not run"  # of 30 nodes
    assert int(written[0]["load at 1"]) >= int(written[0]["load at 20"])
    assert all(path.stat().st_size > 1_000 for path in files[1:])


def test_a_row_is_what_was_measured() -> None:
    seen = measure(SMALL)[-1]
    row = run_point(Point((("x", 1),), SMALL))
    assert row["traffic"] * 30 * 30 == pytest.approx(seen.messages_apart)
    assert row["RIC traffic"] * 30 * 30 == pytest.approx(seen.messages_rates_apart)
    assert row["grouped RIC"] * 30 * 30 == pytest.approx(seen.messages_rates)
    assert row["load"] == seen.load.sum() and row["highest load"] == seen.load.max()
    kept = sorted(seen.storage.tolist(), reverse=True)
    assert [row[f"storage at {rank}"] for rank in (1, 5, 20)] == [kept[0], kept[4], kept[19]]


def test_every_look_is_a_row() -> None:
    run = replace(SMALL, tuples=(10, 20, 30))
    rows = run_looks(Point((("x", 1),), run))
    assert [row["tuples"] for row in rows] == [10, 20, 30]
    assert [row["load"] for row in rows] == [seen.load.sum() for seen in measure(run)]
    assert is_rising([row["load"] for row in rows])


def test_windows_make_less_load_and_storage_created_is_never_lost(tmp_path: Path) -> None:
    rows = []
    for window in (3, 30):
        run = window_run(window, queries=30, tuples=(30,))
        run = replace(run, nodes=30, warm_up=0, workload=replace(run.workload, relations=4, attributes=2, values=5))
        rows += runner.run_all(rjoin_fig8.EXPERIMENT, [Point((("queries", 30), ("window", window)), run)])
    assert rows[0]["load"] < rows[1]["load"]
    assert rows[1]["storage created"] == rows[1]["storage"]  # nothing was out of its window
    assert rows[0]["answers"] < rows[1]["answers"]
    rjoin_fig8.EXPERIMENT.plot(rows, tmp_path / "windows.svg")  # a number is the name of a curve
    assert ">window 30 load<" in (tmp_path / "windows.svg").read_text("utf-8")


def test_figure_2_wants_a_gain_in_traffic_and_load() -> None:
    experiment = experiment_named("rjoin-fig2")
    costs = {"worst": 30.0, "worst value": 30.0, "random any": 4.5, "random": 4.5, "rjoin": 1.0}

    def rates(keys: Row) -> float:
        return float(60 / keys["tuples"])

    def cost(keys: Row) -> float:
        return 2.0 * costs[keys["strategy"]]

    assert all(agreed(experiment, traffic=cost, load=cost, storage=cost, RIC_traffic=rates)[:6])
    assert agreed(experiment, traffic=cost, load=cost, storage=1.0, RIC_traffic=rates)[5] is False
    for other in (2.0, 30.0):  # less than published, or more
        costs["random"] = other
        assert agreed(experiment, traffic=cost, load=cost, storage=cost)[:2] == [True, False]


def test_figure_2_tells_whether_ric_is_most_of_the_traffic() -> None:
    experiment = experiment_named("rjoin-fig2")
    assert agreed(experiment, traffic=4.0, RIC_traffic=lambda keys: 3.0 - keys["tuples"] / 1_000)[6:] == [True, True]
    assert agreed(experiment, traffic=4.0, RIC_traffic=1.0)[6:] == [False, False]


def test_figure_3_tells_lines_from_other_curves() -> None:
    experiment = experiment_named("rjoin-fig3")

    def line(keys: Row) -> float:
        return float(1 + keys["tuples"] / 100)

    def cube(keys: Row) -> float:
        return float(keys["tuples"] ** 3)

    def nodes(keys: Row) -> float:
        return float(900 + keys["tuples"] / 10)

    def root(keys: Row) -> float:
        return float(keys["tuples"] ** 0.5)

    assert all(agreed(experiment, traffic=line, grouped_traffic=line, RIC_traffic=root, nodes=nodes, load=nodes)[:4])
    found = agreed(experiment, traffic=cube, grouped_traffic=line, nodes=500.0)
    assert found[:4] == [False, True, False, False]  # RIC that stays the same does not grow


def test_a_curve_that_slows_down_rises_all_the_same() -> None:
    assert rjoin_fig3.is_slowing([(0, 0.0), (1, 2.0), (2, 3.0)])
    assert not rjoin_fig3.is_slowing([(0, 0.0), (1, 1.0), (2, 2.0)])
    assert not rjoin_fig3.is_slowing([(0, 1.0), (1, 1.0), (2, 1.0)])
    assert not rjoin_fig3.is_slowing([(0, 0.0), (1, 2.0), (2, 1.0)])


def test_what_a_new_tuple_costs_is_between_two_looks() -> None:
    rows = [{"tuples": 10, "traffic": 2.0}, {"tuples": 20, "traffic": 3.0}, {"tuples": 40, "traffic": 5.0}]
    assert rjoin_fig3.per_new_tuple(rows, "traffic") == [(15.0, 4.0), (30.0, 7.0)]
    assert rjoin_fig3.bend([(0, 0.0), (1, 1.0), (2, 4.0)]) == pytest.approx(3.0)


def test_figure_4_wants_less_than_proportional_growth() -> None:
    experiment = experiment_named("rjoin-fig4")

    def root(keys: Row) -> float:
        return float(keys["queries"] ** 0.5)

    def square(keys: Row) -> float:
        return float(keys["queries"] ** 2)

    at = {f"{kind}_at_{rank}": root for kind in ("load", "storage") for rank in RANKS}
    assert all(agreed(experiment, traffic=root, grouped_traffic=root, load=root, storage=root, **at))
    found = agreed(
        experiment, traffic=square, grouped_traffic=root, RIC_traffic=square, load=square, storage=root, **at
    )
    assert found == [False, True, False, False, True]


def test_figure_5_wants_growth_with_theta_and_less_ric() -> None:
    experiment = experiment_named("rjoin-fig5")

    def grows(keys: Row) -> float:
        return float(keys["theta"])

    def falls(keys: Row) -> float:
        return -float(keys["theta"])

    names = ("load", "storage", "highest_load", "highest_storage", "traffic", "grouped_traffic")
    assert all(agreed(experiment, **dict.fromkeys(names, grows), RIC_traffic=falls))
    assert not any(agreed(experiment, **dict.fromkeys(names, falls), RIC_traffic=grows))


@pytest.mark.parametrize(("name", "key"), [("rjoin-fig6", "ways"), ("rjoin-fig7", "window")])
def test_figures_6_and_7_want_growth_and_one_pattern(name: str, key: str) -> None:
    experiment = experiment_named(name)

    def grows(keys: Row) -> float:
        return float(keys[key])

    names = ("traffic", "grouped_traffic", "load", "storage")
    at = {f"{kind}_at_{rank}": grows for kind in ("load", "storage") for rank in RANKS}
    assert all(agreed(experiment, **dict.fromkeys(names, grows), **at))
    found = agreed(experiment, **dict.fromkeys(names, 1.0), load_at_10=lambda keys: grows(keys) ** 2)
    assert found == [False, False, False, False, False, True]


def test_figure_8_wants_more_with_larger_windows() -> None:
    experiment = experiment_named("rjoin-fig8")

    def made(keys: Row) -> float:
        return float(keys["window"] * keys["tuples"])

    more = {"load": made, "storage_created": made}
    assert all(agreed(experiment, **more, storage=lambda keys: made(keys) / 10))
    assert agreed(experiment, load=1.0, storage_created=made, storage=made) == [False, True, False]


def test_figure_9_wants_half_the_highest_load_and_more_nodes() -> None:
    experiment = experiment_named("rjoin-fig9")

    def moved(before: float, after: float) -> Any:
        return lambda keys: after if keys["movement"] == "with" else before

    assert all(agreed(experiment, highest_load=moved(4, 2), highest_storage=moved(4, 2), nodes=moved(700, 900)))
    assert not any(agreed(experiment, highest_load=moved(4, 3), highest_storage=moved(4, 1), nodes=moved(9, 9)))


def test_patterns_are_loads_over_the_mean() -> None:
    row = {"load": 100, "nodes": 50, "load at 10": 6, "load at 100": None, "load at 500": 1}
    assert shares(row, "load") == [3.0, 0.5]
    assert is_alike([[3.0, 0.5], [2.0, 0.5]], 1.5) and not is_alike([[3.0, 0.5], [2.0, 0.2]], 1.5)
    assert is_rising([1, 2, 3]) and not is_rising([1, 1])
