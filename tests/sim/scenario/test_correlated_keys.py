"""Keys that go together: sketches of single columns say that hardly any rows match, and all of them do.

Streams a and b agree on two columns, of which one follows from the other. By the columns alone a pair in ten thousand
agrees on both, so plans join a and b first. Really it is a hundred times as many, which only the joins themselves see.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from watersmeet.adapt.decisions import Decisions, decisions_of
from watersmeet.metrics.events import Event, PlanDecision
from watersmeet.planners.choose import choose
from watersmeet.program.site.matches import Matched
from watersmeet.query.sql import parse_query
from watersmeet.sim.scenario.load import load_simulated
from watersmeet.sim.scenario.model import SitesScenario
from watersmeet.sim.scenario.sites import simulate_sites
from watersmeet.sim.scenario.sources import schema_of
from watersmeet.sim.sites.rows import typed
from watersmeet.topology.model import Adapt

SECONDS, RATE, KEYS = 120, 60, 400
TOPOLOGY = f"""\
sites: [hub, ams, fra, nyc]
default_link: {{latency: 20 ms, bandwidth: 2 Mbps}}
adapt: {{mode: planner, min_interval: 5 seconds}}
streams:
  a: &stream
    site: ams
    schema: "ts timestamp, k long, m long, v long"
    event_time: ts
    source: {{format: parquet, path: a.parquet}}
    stats: {{rate: {RATE}, columns: {{k: {{distinct: {KEYS}}}, m: {{distinct: 100}}, v: {{distinct: 1000000}}}}}}
  b: {{<<: *stream, site: fra, source: {{format: parquet, path: b.parquet}}}}
  c: {{<<: *stream, site: nyc, source: {{format: parquet, path: c.parquet}}}}
queries:
  q:
    site: hub
    sql: >
      SELECT a.v AS av, b.v AS bv, c.v AS cv
      FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS], c [RANGE 5 SECONDS]
      WHERE a.k = b.k AND a.m = b.m AND b.k = c.k
    assume_defaults: true
"""


class ByValuesAlone(Decisions):
    """Decides by what sketches of values say."""

    def matched(self, counts: Mapping[Matched, int], seconds: float, now_us: int) -> None:
        """Nobody counts what joins find."""


def write_streams(place: Path) -> None:
    random = np.random.default_rng(5)
    for name in "abc":
        count = SECONDS * RATE
        ts = np.sort(random.integers(0, SECONDS * 1_000_000, count))
        keys = random.integers(0, KEYS, count)
        table = pa.table(
            {
                "ts": pa.array(ts).cast(pa.timestamp("us", "UTC")),
                "k": keys,
                "m": keys * 7 % 100,  # follows from k
                "v": random.integers(0, 10**6, count),
            }
        )
        pq.write_table(table, place / f"{name}.parquet")


@pytest.mark.soak
def test_what_joins_find_is_seen_where_values_mislead(tmp_path: Path) -> None:
    write_streams(tmp_path)
    path = tmp_path / "topology.yaml"
    path.write_text(TOPOLOGY)
    scenario = load_simulated(path)
    assert isinstance(scenario, SitesScenario)
    scenario = replace(scenario, trigger_us=1_000_000)
    topology = replace(scenario.topology, adapt=Adapt("planner", min_interval="5 seconds"))
    query = topology.query("q")
    schemas = {stream.name: schema_of(stream) for stream in topology.streams}
    parsed = typed(parse_query(query.sql, topology.columns), schemas)
    shipped, taken = {}, {}
    for kind in (Decisions, ByValuesAlone):
        found = decisions_of(topology, {"q": (query, parsed, choose(topology, query, parsed).plan)}, 1_000_000)
        assert found is not None
        decider, events = kind(found.controller, found.state, found.trigger_us), list[Event]()
        outcome = simulate_sites(scenario, events=lambda at, event: events.append(event), decider=decider)  # noqa: B023
        assert outcome.summary.queries["q"].checked.is_right
        assert outcome.summary.queries["q"].answers > 1_000
        shipped[kind] = outcome.summary.traffic.bytes
        taken[kind] = [event for event in events if isinstance(event, PlanDecision) and event.accepted]
    assert shipped[Decisions] < 0.8 * shipped[ByValuesAlone]
    assert 1 <= len(taken[Decisions]) <= 3, "and no more changes follow"
