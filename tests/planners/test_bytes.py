"""`auto` beside all planners by the bytes that their plans ship, not by estimates: random joins in the simulator."""

from dataclasses import dataclass
from random import Random

import pytest

from watersmeet.planners.choose import NAMES
from watersmeet.sim.scenario.compare import compare_planners
from watersmeet.sim.scenario.model import SitesScenario
from watersmeet.sim.scenario.statistics import with_sampled_statistics
from watersmeet.topology.model import EVERY_PAIR, Link, Query, Site, Source, Stream, Topology

CASES = 300
MOST = 1.3  # of what the best planner by hindsight ships
NOISE_BYTES = 300  # of a few parcels more or less


@dataclass(frozen=True)
class Case:
    """Streams at sites of their own, or some together, with rates, keys, windows and texts drawn from a seed."""

    topology: Topology
    interval_s: float


def drawn(seed: int) -> Case:
    chance = Random(seed)
    count, rate = chance.choice((2, 2, 3, 3, 4)), 10 ** chance.uniform(-1.3, 3)
    rows = chance.choice((150, 400))
    length_s = rows / rate
    interval_s = length_s / chance.choice((8, 20))
    window_s = length_s / chance.choice((4, 10, 30))
    in_window = rate * window_s
    values = max(3.0, in_window * chance.choice((0.5, 2, 5, 20)))
    names = "abcd"[:count]
    streams, keys = [], {}
    for number, name in enumerate(names):
        own = rate * chance.choice((0.1, 0.5, 1, 1))
        distinct = max(2, round(values * chance.choice((0.3, 1, 1))))
        kind = chance.choice((f"uniform 0 {distinct}", f"uniform 0 {distinct}", f"zipf 1.1 {distinct}"))
        text = chance.choice(
            ("choice x y", "pattern item-{} uniform 0 500", "pattern some-long-text-{} uniform 0 99999")
        )
        options = {
            "rows": str(max(20, round(own * length_s))),
            "rows_per_second": f"{own:.4g}",
            "pace": "max",
            "seed": str(seed * 10 + number),
            "column.k": kind,
            "column.m": f"uniform 0 {max(2, round(values / 3))}",
            "column.text": text,
        }
        site = f"s{number}" if chance.random() < 0.8 else "s0"
        schema = "ts timestamp, k long, m long, text string"
        streams.append(Stream(name, "ts", schema, Source("generator", options=options), site=site))
        keys[name] = chance.choice(("k", "k", "m")) if number > 1 else "k"
    window = f"[{chance.choice(('RANGE', 'RANGE', 'TUMBLE'))} {max(1, round(window_s * 1e3))} MILLISECONDS]"
    where = [f"a.{keys[name]} = {name}.{keys[name]}" for name in names[1:]]
    if chance.random() < 0.3:
        where.append("a.m < b.m")
    froms = ", ".join(f"{name} {window}" for name in names)
    site = chance.choice(("hq", "s0", streams[-1].site))
    sites = sorted({stream.site for stream in streams} | {site, "hq"})
    named = ", ".join(f"{name}.text AS {name}_text" for name in names)
    query = Query("q", f"SELECT {named} FROM {froms} WHERE {' AND '.join(where)}", site=site)
    link = Link(EVERY_PAIR, latency_us=20_000)
    topology = Topology(tuple(streams), (query,), tuple(map(Site, sites)), default_link=link)
    return Case(topology, interval_s)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(CASES))
def test_auto_ships_no_more_than_the_best_planner_by_more_than_noise(seed: int) -> None:
    case = drawn(seed)
    scenario = SitesScenario(with_sampled_statistics(case.topology), trigger_us=round(case.interval_s * 1e6))
    runs = {one.planner: one for one in compare_planners(scenario, NAMES) if one.summary is not None}
    assert all(one.summary is not None and one.summary.is_right for one in runs.values())
    shipped = {name: one.bytes or 0 for name, one in runs.items()}
    foreseen = {name: round(one.summary.traffic.estimated_bytes or 0) for name, one in runs.items() if one.summary}
    best = min(shipped.values())
    assert shipped["auto"] <= MOST * best + NOISE_BYTES, f"seed {seed}: shipped {shipped}, foreseen {foreseen}"
