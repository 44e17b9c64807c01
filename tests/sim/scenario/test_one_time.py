"""One-time queries of RJoin in scenarios: answers over the tuples that were published when they were asked."""

from dataclasses import replace
from pathlib import Path

import pytest

from watersmeet.errors import InputError
from watersmeet.query.bags import bag_of
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.scenario.load import load_scenario
from watersmeet.sim.scenario.model import Scenario, System
from watersmeet.sim.scenario.network import ChurnSettings, DynamicSettings
from watersmeet.sim.scenario.simulate import simulate
from watersmeet.sim.scenario.sources import read_stream
from watersmeet.sim.scenario.workload import UserLoad

SCENARIO = """\
network: {nodes: 30, overlay: chord, latency: king, hop: 40 ms, seed: 5}
streams:
  a:
    schema: "ts timestamp, k int, v int"
    event_time: ts
    home: any
    source: {format: generator, options: {rows: 40, rows_per_second: 2, seed: 1, column.k: uniform 0 6,
      column.v: uniform 0 4}}
  b:
    schema: "k int, v int, ts timestamp"
    event_time: ts
    source: {format: generator, options: {rows: 40, rows_per_second: 2, seed: 2, column.k: uniform 0 6,
      column.v: uniform 0 4}}
queries:
  middle:
    sql: SELECT a.k, a.v, b.v AS w FROM a [UNBOUNDED], b [UNBOUNDED] WHERE a.k = b.k
    start: "2025-01-01 00:00:10"
    once: true
  windows:
    sql: >
      SELECT a.k, c.v FROM a [RANGE 4 SECONDS], b [ROWS 8], a [RANGE 2 SECONDS] AS c WHERE a.k = b.k AND b.v = c.v
    once: true
  always:
    sql: SELECT a.v FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND] WHERE a.k = b.k
"""
MIDDLE_US = 1_735_689_610_000_000
STAYS = DynamicSettings(loss=0.02)
CHURN = DynamicSettings(churn=ChurnSettings(mean_us=60_000_000, stable_nodes=5))


def scenario_in(directory: Path) -> Scenario:
    path = directory / "scenario.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return load_scenario(path)


@pytest.mark.parametrize("dynamic", [None, STAYS], ids=["static", "dynamic"])
def test_a_one_time_query_sees_what_was_published_before_it(tmp_path: Path, dynamic: DynamicSettings | None) -> None:
    scenario = scenario_in(tmp_path)
    outcome = simulate(replace(scenario, network=replace(scenario.network, dynamic=dynamic)))
    assert isinstance(scenario.load, UserLoad)
    tables = {published.stream.name: read_stream(published.stream) for published in scenario.load.streams}
    for asked in scenario.load.queries:
        query = parse_query(asked.query.sql, scenario.load.columns)
        # Tuples of the very moment take part.
        until_us = MIDDLE_US + 1 if asked.query.name == "middle" else None
        expected = bag_of(answer(query, tables, {"a": "ts", "b": "ts"}, heads_before_us=until_us))
        assert expected.total() > 5, asked.query.name
        assert bag_of(outcome.table(asked.query.name)) == expected, asked.query.name


def test_under_churn_replicas_keep_what_one_time_queries_ask_for(tmp_path: Path) -> None:
    scenario = scenario_in(tmp_path)
    network = replace(scenario.network, dynamic=CHURN)
    rjoin = replace(scenario.rjoin, replicas=2)
    figures = simulate(replace(scenario, network=network, rjoin=rjoin)).summary.dynamic
    assert figures is not None and figures.failures > 3
    assert (figures.surplus, figures.checked) == (0, 3)
    assert figures.recall > 0.95


def test_pier_has_a_mode_of_its_own_for_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mode: snapshot"):
        replace(scenario_in(tmp_path), system=System.PIER)
