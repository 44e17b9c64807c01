"""The adaptive paper's experiments: quick points have every column, and what they say can be wrong."""

import csv
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from watersmeet.adapt.messages import Phase
from watersmeet.adapt.sequences import generate, plan_cost
from watersmeet.reproduce import experiment_named, report, runner
from watersmeet.reproduce.adaptive import table3
from watersmeet.reproduce.adaptive.prototype import SYSTEMS, PrototypeSetup, RunRows, draw_rows, run

NAMES = ("adaptive-fig4", "adaptive-fig5", "adaptive-table3", "adaptive-sensitivity", "adaptive-cutover")


@pytest.mark.parametrize("name", NAMES)
def test_quick_points_make_whole_rows(name: str, tmp_path: Path) -> None:
    experiment = experiment_named(name)
    points = experiment.points(True)
    assert len(set(points)) == len(points) < len(experiment.points(False))
    assert pickle.loads(pickle.dumps(points)) == points  # other processes can run them
    some = points[:: max(len(points) // 2, 1)] if name == "adaptive-sensitivity" else points
    rows = runner.run_all(experiment, some)
    assert all(set(row) == set(experiment.columns) for row in rows)
    table, *plots = report.write(experiment, rows, tmp_path)
    assert all(path.stat().st_size > 1_000 for path in plots)
    with table.open() as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    if name != "adaptive-sensitivity":
        assert all(one.startswith(("agrees: ", "differs: ")) for one in experiment.verdict(rows))


def test_verdicts_of_table_3_tell_the_published_figures_from_others() -> None:
    rows = []
    for (ways, change, system), counts in table3.PUBLISHED.items():
        row = {"ways": ways, "change": change, "system": system, "draw": 0, "by coordinator": 5 * (ways - 1)}
        row |= dict(zip(table3.PHASES, counts, strict=True))
        row |= {f"published {phase}": count for phase, count in zip(table3.PHASES, counts, strict=True)}
        rows.append(row)
    verdict = experiment_named("adaptive-table3").verdict
    assert all(one.startswith("agrees") for one in verdict(rows))
    assert all(one.startswith("differs") for one in verdict([row | {"modification": 5_000} for row in rows]))


def test_figure_4_compares_draws_with_the_same_tuples() -> None:
    """DNU is judged against CNU in the same draw: chance of key values is no difference, 10 % in all draws are one."""
    verdict = experiment_named("adaptive-fig4").verdict

    def said(factors: tuple[float, ...]) -> str:
        rows = []
        for draw, factor in enumerate(factors):
            cost = 100.0 * (draw + 1)  # draws differ much more than systems do
            for ms in range(300, 9_301, 200):
                row = {"ways": 8, "ms": ms, "draw": draw, "non-adaptive": 2 * cost, "CNU": cost, "DNU": factor * cost}
                rows.append(row)
        (found,) = (one for one in verdict(rows) if "between CNU and DNU" in one)
        return found

    assert said((0.9, 1.16, 0.92, 1.1)).startswith("agrees")
    assert said((1.1, 1.12, 1.09, 1.11)).startswith("differs")
    assert said((1.01,)).startswith("agrees")


def _answers(
    rows: RunRows, names: tuple[str, ...], window_ms: float, since_ms: float, end_ms: float, step_ms: int
) -> int:
    """Combinations of one key whose head came within some time, by their definition, tuple by tuple."""
    stamped = [
        [
            (time, key, (time - since_ms) // step_ms)
            for time, key in zip(rows.times_ms[name], rows.keys[name], strict=True)
        ]
        for name in names
    ]

    def is_met(number: int, tuple_: tuple[float, int, float], head: int, batch: float) -> bool:
        edge_ms = since_ms + (batch + (1 if number < head else 0)) * step_ms
        return edge_ms - window_ms < tuple_[0] <= edge_ms

    found = 0
    for head, stream in enumerate(stamped):
        for time, key, batch in stream:
            if since_ms < time <= end_ms:
                met = [
                    sum(other[1] == key and is_met(number, other, head, batch) for other in others)
                    for number, others in enumerate(stamped)
                    if number != head
                ]
                found += int(np.prod(met))
    return found


def test_every_system_gives_the_answers_of_the_definition() -> None:
    settings = PrototypeSetup(ways=3, end_ms=2_100, values=20)
    rows = draw_rows(settings, 5)
    expected = _answers(rows, settings.names, settings.window_ms, 100, 2_100, settings.interval_ms)
    for system in SYSTEMS:
        outcome = run(settings, system, 5)
        assert sum(outcome.answers.values()) == expected > 0
    assert run(settings, "CNU", 5).switches and run(settings, "DNU", 5).switches


def test_plans_in_force_are_those_of_the_rates_and_their_cost_is_as_expected() -> None:
    """Where rates are steady, what is spent is what equations 1 to 3 say, with five shipments a second for one."""
    settings = PrototypeSetup(changing=2)
    found = run(settings, "CNU", 3)
    assert [switch.rate for switch in found.switches] == [200.0, 50.0, 200.0, 50.0]
    a_second = replace(settings.setting, default_link=replace(settings.setting.default_link, latency_s=0.0))
    for first, last in ((2_500, 3_300), (4_500, 5_300)):
        spent = sum(found.cost_s[ms] for ms in range(first, last + 1, 200))
        figures = settings.figures_at(first)
        plan = generate(settings.setting, figures)
        trips = spent - plan_cost(a_second, figures, plan)
        assert 0 < trips < 5 * 12 * 0.005 + 0.25 * spent


def test_a_switch_takes_the_time_of_its_messages() -> None:
    settings = PrototypeSetup(end_ms=2_500)
    (switch,) = run(settings, "CNU", 0).switches
    assert switch.count(Phase.SYNCHRONISATION) == 24
    assert switch.done_ms is not None
    assert switch.done_ms - switch.triggered_ms > 4 * settings.latency_s * 1e3  # report, operators, request, two phases
    assert run(replace(settings, threshold=10.0), "CNU", 0).switches == []
