"""Aggregation below the join, chosen by the planner: where it is expected to ship less, and with the same answers."""

from dataclasses import replace
from pathlib import Path

import pytest

from watersmeet.planners.early import compare_early
from watersmeet.sim.scenario.load import load_simulated
from watersmeet.sim.scenario.model import SitesScenario
from watersmeet.sim.scenario.sites import simulate_sites
from watersmeet.sim.scenario.sites_plans import plan_queries
from watersmeet.spark.resume import with_settled

TOPOLOGY = """\
sites: [x, y]
streams:
  a:
    site: x
    schema: "k long, v long, ts timestamp"
    event_time: ts
    source: {{format: generator, options: {{rows: 1500, rows_per_second: 50, seed: 1, column.k: uniform 0 {keys},
      column.v: uniform 0 4}}}}
    stats: {{rate: 50, columns: {{k: {{distinct: {keys}}}, v: {{distinct: 4}}}}}}
  b:
    site: y
    schema: "k long, v long, ts timestamp"
    event_time: ts
    source: {{format: generator, options: {{rows: 1500, rows_per_second: 50, seed: 2, column.k: uniform 0 {keys},
      column.v: uniform 0 4}}}}
    stats: {{rate: 50, columns: {{k: {{distinct: {keys}}}, v: {{distinct: 4}}}}}}
queries:
  q:
    site: x
    sql: >
      SELECT a.v, {items}, window_start FROM a [TUMBLE 5 SECONDS], b [TUMBLE 5 SECONDS] WHERE a.k = b.k
      GROUP BY a.v, TUMBLE(10 SECONDS)
{settings}
"""
PLAIN = "count(*) AS n, sum(b.v) AS s, avg(a.v) AS mean"


def scenario(tmp_path: Path, keys: int = 3, items: str = PLAIN, settings: str = "") -> SitesScenario:
    path = tmp_path / "topology.yaml"
    path.write_text(TOPOLOGY.format(keys=keys, items=items, settings=settings), encoding="utf-8")
    found = load_simulated(path)
    assert isinstance(found, SitesScenario)
    return found


def test_rows_are_grouped_first_where_keys_repeat_and_the_answers_are_the_same(tmp_path: Path) -> None:
    asked = scenario(tmp_path)
    planned = plan_queries(asked)
    assert planned.selects.keys() == {"q", "q_a_early", "q_b_early"}
    grouped = simulate_sites(asked, planned=planned)
    plain = simulate_sites(scenario(tmp_path, settings="    group_early: false"))
    for outcome in (grouped, plain):
        (checked,) = (query.checked for query in outcome.summary.queries.values())
        assert checked is not None and checked.is_right and checked.expected > 5
    assert grouped.summary.traffic.bytes < 0.8 * plain.summary.traffic.bytes


@pytest.mark.parametrize(
    "asked",
    [
        {"keys": 1_000_000},
        {"settings": "    group_early: false"},
        {"settings": "    planner: central"},
        {"settings": "    errors: drop"},
        {"items": "max(100 / b.v) AS m"},  # which fails for a row of b that may have no partner
        {"items": "count(DISTINCT b.v) AS n"},
    ],
    ids=str,
)
def test_rows_stay_where_that_pays_more_or_would_not_be_the_same(tmp_path: Path, asked: dict[str, str]) -> None:
    assert plan_queries(scenario(tmp_path, **asked)).selects.keys() == {"q"}  # type: ignore[arg-type]


def test_what_both_ship_is_compared(tmp_path: Path) -> None:
    topology = scenario(tmp_path).topology

    def plans_of(one, query):  # type: ignore[no-untyped-def]
        planned = plan_queries(replace(scenario(tmp_path), topology=one))
        return {name: each.chosen for name, each in planned.selects.items()}

    found = compare_early(topology, topology.query("q"), plans_of)
    assert found is not None and found.pays
    assert found.groups.rows_s < 0.2 * found.rows.rows_s and found.groups.bytes_s < found.rows.bytes_s


def test_a_restart_goes_on_with_what_was_chosen(tmp_path: Path) -> None:
    topology = scenario(tmp_path).topology
    query = topology.query("q")
    for chosen in (True, False):
        before = replace(topology, queries=(replace(query, group_early=chosen),))
        assert with_settled(topology, before).query("q").group_early is chosen
        other = replace(topology, queries=(replace(query, sql=query.sql.replace("5 SECONDS", "2 SECONDS")),))
        assert with_settled(other, before).query("q").group_early is None
