"""Scenarios for PIER with three generated streams, and whether answers are exact."""

from pathlib import Path

from watersmeet.sim.scenario.load import load_scenario
from watersmeet.sim.scenario.model import Scenario
from watersmeet.sim.scenario.pier.outcome import PierOutcome

STREAMS = """
streams:
  heat:
    schema: "ts timestamp, room int, degrees double"
    event_time: ts
    home: any
    source:
      format: generator
      options:
        {{rows: {rows}, rows_per_second: 10, seed: {seed}1, column.room: uniform 0 9, column.degrees: uniform 15 35}}
  doors:
    schema: "ts timestamp, room int, badge int, state string"
    event_time: ts
    home: 7
    source:
      format: generator
      options:
        {{rows: {rows}, rows_per_second: 10, seed: {seed}2, column.room: uniform 0 9, column.badge: null 0.1 zipf 0.8 6,
          column.state: choice opened closed}}
  badges:
    schema: "ts timestamp, badge bigint, team string"
    event_time: ts
    source:
      format: generator
      options:
        {{rows: {rows}, rows_per_second: 8, seed: {seed}3, column.badge: uniform 0 6, column.team: choice day night}}
"""


def scenario(tmp_path: Path, sql: str, pier: str, network: str = "", rows: int = 60, seed: int = 1) -> Scenario:
    file = tmp_path / "scenario.yaml"
    file.write_text(
        f"system: pier\nnetwork: {{nodes: 30, overlay: bamboo, latency: king, seed: {seed}{network}}}\n"
        f"pier: {{drain: 25 s{pier}}}\n{STREAMS.format(rows=rows, seed=seed)}\n"
        f"queries:\n  q:\n    home: 3\n    sql: >\n      {sql}\n"
    )
    return load_scenario(file)


def is_exact(outcome: PierOutcome) -> bool:
    (query,) = outcome.summary.queries.values()
    assert query.checked is not None
    assert query.checked.expected > 0, "the query has no answers: it tests nothing"
    return query.is_right
