"""PIER, RJoin and site programs on the same queries, data and network."""

from dataclasses import replace

import pytest

from watersmeet.errors import InputError
from watersmeet.reproduce import experiment_named
from watersmeet.reproduce.systems.comparison import BASE, SYSTEMS, WORKLOADS, ComparedWorkload
from watersmeet.sim.scenario.compare_systems import topology_of
from watersmeet.sim.scenario.workload import UserLoad

TWO, THREE = replace(BASE, nodes=24, keys=20), replace(BASE, nodes=16, ways=3, keys=8, queries=2)


@pytest.mark.few(1)
@pytest.mark.parametrize("workload", [TWO, THREE])
def test_all_systems_have_the_answers_of_the_oracle(workload: ComparedWorkload) -> None:
    given = workload.scenario(seed=2, seconds=3)
    found = {name: run(given) for name, run in SYSTEMS.items() if workload is TWO or "100 ms" not in name}
    expected = {figures.expected for figures in found.values()}
    assert len(expected) == 1, "all were asked the same"
    assert expected.pop() > 50
    for name, figures in found.items():
        assert (figures.recall, figures.surplus) == (1.0, 0), name
        assert figures.median_us is not None
        assert 0 < figures.median_us <= figures.p99_us, name  # type: ignore[operator]
        assert figures.highest_bytes >= figures.mean_bytes > 0, name
        assert figures.bytes > 0 and figures.messages > 0, name
    if workload is TWO:
        rare, often = found["sites, auto, 1 s"], found["sites, auto, 100 ms"]
        assert rare.median_us > often.median_us  # type: ignore[operator]
        assert rare.bytes < often.bytes


def test_sites_need_homes() -> None:
    given = TWO.scenario(seed=1, seconds=2)
    assert isinstance(given.load, UserLoad)
    streams = tuple(replace(each, home=None, is_scattered=True) for each in given.load.streams)
    with pytest.raises(InputError, match="give each of them a home"):
        topology_of(replace(given, load=replace(given.load, streams=streams)))


def test_the_experiment_has_a_point_for_every_system_and_workload() -> None:
    experiment = experiment_named("systems")
    assert len(experiment.points(False)) == len(WORKLOADS) * len(SYSTEMS) * 3
    row = dict.fromkeys(experiment.columns, 1.0) | {"workload": "base", "system": "RJoin"}
    assert experiment.verdict([row]) == ["agrees: all answers of the oracle and no others"]
    assert "RJoin on base" in experiment.verdict([row | {"recall": 0.9}])[0]
