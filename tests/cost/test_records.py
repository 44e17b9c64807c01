"""Partial records of GROUP BY in the cost model: what is foreseen beside what a simulated run ships."""

from pathlib import Path

import pytest

from watersmeet.plan.explain import estimate_text
from watersmeet.planners.choose import choose
from watersmeet.query.sql import parse_query
from watersmeet.sim.scenario.load import load_simulated
from watersmeet.sim.scenario.model import SitesScenario
from watersmeet.sim.scenario.simulate import simulate
from watersmeet.sim.scenario.sites_outcome import SitesOutcome

TOPOLOGY = """\
sites: [ams, fra, hub]
default_link: {{latency: 10 ms, bandwidth: 10 Mbps, price_per_gb: 1}}
streams:
  a:
    site: ams
    schema: "ts timestamp, k int, g int, v int"
    event_time: ts
    stats: {{rate: 50, row_bytes: 5, columns: {{k: {{distinct: 100}}, g: {{distinct: {groups}}}}}}}
    source: {{format: generator, options: {{rows: 3000, rows_per_second: 50, seed: 1, column.k: uniform 0 99,
      column.g: uniform 0 {last}, column.v: uniform 0 1000}}}}
  b:
    site: fra
    schema: "ts timestamp, k int"
    event_time: ts
    stats: {{rate: 50, row_bytes: 4, columns: {{k: {{distinct: 100}}}}}}
    source: {{format: generator, options: {{rows: 3000, rows_per_second: 50, seed: 2, column.k: uniform 0 99}}}}
queries:
  q:
    site: hub
    planner: greedy
    sql: >
      SELECT a.g, count(*) AS n, sum(a.v) AS s FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k
      {tail}
"""
WINDOWED, RUNNING = "GROUP BY a.g, TUMBLE(5 SECONDS)", "GROUP BY a.g EMIT CHANGES"


def scenario(directory: Path, groups: int, tail: str) -> SitesScenario:
    path = directory / "topology.yaml"
    path.write_text(TOPOLOGY.format(groups=groups, last=groups - 1, tail=tail), encoding="utf-8")
    loaded = load_simulated(path)
    assert isinstance(loaded, SitesScenario)
    return loaded


@pytest.mark.parametrize(("groups", "tail"), [(10, WINDOWED), (1_000, WINDOWED), (10, RUNNING)])
def test_bytes_of_records_are_foreseen(tmp_path: Path, groups: int, tail: str) -> None:
    outcome = simulate(scenario(tmp_path, groups, tail))
    assert isinstance(outcome, SitesOutcome) and outcome.summary.is_right
    sent = [row for row in outcome.summary.traffic.rows if row.purpose == "partial aggregates"]
    assert sent and not any(row.purpose == "results" for row in outcome.summary.traffic.rows)
    real = sum(row.traffic.bytes for row in sent)
    foreseen = sum(row.estimated_bytes or 0.0 for row in sent)
    assert real / 2 < foreseen < 2 * real


def test_explain_shows_records_beside_rows(tmp_path: Path) -> None:
    topology = scenario(tmp_path, 10, WINDOWED).topology
    query = topology.query("q")
    chosen = choose(topology, query, parse_query(query.sql, topology.columns, event_times=topology.event_times))
    assert chosen.cost is not None
    text = estimate_text(chosen.planner, chosen.cost, 1.0)
    lines = [line for line in text.splitlines() if "partial aggregates" in line]
    assert lines and all("records/s" in line and "instead of" in line and "% saved)" in line for line in lines)
    plain = choose(
        topology,
        query,
        parse_query(query.sql.replace(WINDOWED, "").replace("count(*) AS n, sum(a.v) AS s", "a.v"), topology.columns),
    )
    assert plain.cost is not None and chosen.cost.bytes_s < plain.cost.bytes_s
