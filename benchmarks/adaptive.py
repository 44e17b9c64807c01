"""Plans that change against plans that do not, in the simulator with the programs of the sites.

Three streams at three sites and a query at a fourth; every few minutes other streams are busy and other keys popular.
Bytes are all that is shipped over links, migration included; answers are compared with the oracle's.

python benchmarks/adaptive.py                      phases: adaptive (cnu, dnu, planner), informed, and fixed plans
python benchmarks/adaptive.py --table steady       an hour in which nothing changes: migrations, CPU of adaptivity
                              --seed 1  --phase-s 240  --phases 4  --rate 400  --times 10  --keys 1000
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from watersmeet.adapt.controller import ControllerState, GoOver
from watersmeet.adapt.decide import first_plan
from watersmeet.adapt.decisions import Decider, Decisions, Timetable, decisions_of
from watersmeet.metrics.events import Event, LinkCounts, PlanDecision
from watersmeet.plan.nodes import JoinPlan
from watersmeet.planners.choose import choose, problem_for
from watersmeet.program.site.matches import Matched
from watersmeet.query.model import JoinQuery
from watersmeet.query.sql import parse_query
from watersmeet.sim.scenario.load import load_simulated
from watersmeet.sim.scenario.model import SitesScenario
from watersmeet.sim.scenario.sites import simulate_sites
from watersmeet.sim.scenario.sites_outcome import SitesSummary
from watersmeet.sim.scenario.sources import schema_of
from watersmeet.sim.sites.rows import typed
from watersmeet.stats.model import Origin, Stats
from watersmeet.stats.sketches import StreamSketch
from watersmeet.topology.model import Adapt, Topology

SECOND_US = 1_000_000
MODES = ("cnu", "dnu", "planner")
KEYS = 1_000
WINDOW_S = 10
AHEAD_S = 5  # sites agree on a change in so many seconds: the informed planner asks so long before
TOPOLOGY = f"""\
sites: [hub, ams, fra, nyc]
default_link: {{latency: 20 ms, bandwidth: 2 Mbps}}
streams:
  a: &stream
    site: ams
    schema: "ts timestamp, k long, v long"
    event_time: ts
    source: {{format: parquet, path: a.parquet}}
    stats: {{rate: 50, columns: {{k: {{distinct: {KEYS}}}, v: {{distinct: 1000000}}}}}}
  b: {{<<: *stream, site: fra, source: {{format: parquet, path: b.parquet}}}}
  c: {{<<: *stream, site: nyc, source: {{format: parquet, path: c.parquet}}}}
queries:
  q:
    site: hub
    sql: >
      SELECT a.k, a.v AS av, b.v AS bv, c.v AS cv
      FROM a [RANGE {WINDOW_S} SECONDS], b [RANGE {WINDOW_S} SECONDS], c [RANGE {WINDOW_S} SECONDS]
      WHERE a.k = b.k AND b.k = c.k
    assume_defaults: true
"""


@dataclass(frozen=True)
class Phase:
    """Rows a second of each stream, and which share of its rows has one of twenty popular keys, from which on."""

    rates: tuple[float, float, float]
    popular: tuple[tuple[float, int], ...] = ((0.0, 0),) * 3


def phases_of(rate: float, times: float) -> list[Phase]:
    """One stream is some times as busy as the others, each in turn, while other keys become popular."""
    slow = rate / times
    a, b, c = (rate, slow, slow), (slow, rate, slow), (slow, slow, rate)
    return [
        Phase(a),
        Phase(c, ((0.5, 0), (0.5, 500), (0.0, 0))),
        Phase(b, ((0.0, 0), (0.5, 200), (0.0, 0))),
        Phase(a, ((0.5, 800), (0.0, 0), (0.5, 200))),
    ]


def made_rows(
    directory: Path, phases: Sequence[Phase], phase_s: int, seed: int, key_count: int = KEYS
) -> list[dict[str, pa.Table]]:
    """The rows of all phases as files, and phase by phase as tables."""
    random = np.random.default_rng(seed)
    made: list[dict[str, pa.Table]] = []
    for number, phase in enumerate(phases):
        tables = {}
        for name, rate, (share, first) in zip("abc", phase.rates, phase.popular, strict=True):
            count = random.poisson(rate * phase_s)
            ts = np.sort(random.integers(0, phase_s * SECOND_US, count)) + number * phase_s * SECOND_US
            keys = random.integers(0, key_count, count)
            keys = np.where(random.random(count) < share, first + random.integers(0, 20, count), keys)
            tables[name] = pa.table(
                {
                    "ts": pa.array(ts).cast(pa.timestamp("us", "UTC")),
                    "k": keys,
                    "v": random.integers(0, 10**6, count),
                }
            )
        made.append(tables)
    for name in "abc":
        pq.write_table(pa.concat_tables([tables[name] for tables in made]), directory / f"{name}.parquet")
    return made


def stats_of(tables: dict[str, pa.Table]) -> Stats:
    """What somebody knows who has seen all rows."""
    streams = {}
    for name, table in tables.items():
        sketch = StreamSketch()
        sketch.count(table.column("ts").cast(pa.int64()).to_numpy())
        values = table.select(["k", "v"])
        sketch.add(values)
        sketch.measure(values)
        streams[name] = sketch.stats(Origin.OBSERVED, None, 1.0)
    return Stats(streams)


@dataclass
class Recorded(Decisions):
    """The controller, and all that it is asked: to be asked again by itself, so that its CPU time can be taken.

    A clock around every call would take longer than most calls do.
    """

    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    def ingested(self, stream: str, rows: int, seconds: float, now_us: int, sketch: StreamSketch | None = None) -> None:
        self.calls.append(("ingested", (stream, rows, seconds, now_us, sketch)))
        super().ingested(stream, rows, seconds, now_us, sketch)

    def wants_sketch(self, stream: str, now_us: int) -> bool:
        self.calls.append(("wants_sketch", (stream, now_us)))
        return super().wants_sketch(stream, now_us)

    def transferred(self, sender: str, receiver: str, size: int, seconds: float, now_us: int) -> None:
        self.calls.append(("transferred", (sender, receiver, size, seconds, now_us)))
        super().transferred(sender, receiver, size, seconds, now_us)

    def matched(self, counts: Mapping[Matched, int], seconds: float, now_us: int) -> None:
        self.calls.append(("matched", (counts, seconds, now_us)))
        super().matched(counts, seconds, now_us)

    def decide(self, now_us: int) -> tuple[tuple[GoOver, ...], tuple[Event, ...]]:
        self.calls.append(("decide", (now_us,)))
        return super().decide(now_us)

    def cpu_s(self, first: ControllerState) -> tuple[float, float]:
        """CPU seconds of all calls, from the state at the start on, and of those among them that planned anew."""
        again = Decisions(self.controller, first, self.trigger_us)
        planning_s, began = 0.0, process_time()
        for name, arguments in self.calls:
            before = process_time() if name == "decide" else 0.0
            found = getattr(again, name)(*arguments)
            if name == "decide" and found[1]:
                planning_s += process_time() - before
        return process_time() - began, planning_s


@dataclass(frozen=True)
class Result:
    """A run of one way to choose plans."""

    name: str
    summary: SitesSummary
    decisions: tuple[tuple[float, PlanDecision], ...]
    cpu_s: float
    adaptive_cpu_s: float  # of it, sketches left aside
    planning_cpu_s: float  # of it, planning anew
    by_second: Mapping[int, int]  # all bytes so far

    def by_phase(self, phase_s: int) -> list[int]:
        """Bytes of each phase; what is under way at its end counts for the next one."""
        last = max(self.by_second)
        ends = [*range(phase_s, last, phase_s), last]
        totals = [max((total for second, total in self.by_second.items() if second <= end), default=0) for end in ends]
        return [after - before for before, after in zip([0, *totals], totals, strict=False)]

    @property
    def total(self) -> int:
        return self.summary.traffic.bytes

    def of(self, purpose: str) -> int:
        return sum(row.traffic.bytes for row in self.summary.traffic.rows if row.purpose == purpose)

    @property
    def accepted(self) -> int:
        return sum(event.accepted for _, event in self.decisions)

    def line(self, informed: int) -> str:
        query = self.summary.queries["q"]
        assert query.delays is not None
        right = "right" if query.checked.is_right else "WRONG"
        return (
            f"{self.name:<22} {self.total:>12,} {self.total / informed:>6.2f} {self.of('migration'):>10,} "
            f"{self.of('observations'):>8,} {self.accepted:>3} {query.answers:>8,} {right} "
            f"{query.delays.median_us / 1e6:>5.1f} {query.delays.p99_us / 1e6:>5.1f} {self.cpu_s:>6.1f} "
            f"{self.adaptive_cpu_s / self.cpu_s:>6.1%} "
            f"{(self.adaptive_cpu_s - self.planning_cpu_s) / self.cpu_s:>6.1%}"
        )


def run(name: str, scenario: SitesScenario, decider: Decider) -> Result:
    seen: list[tuple[float, PlanDecision]] = []

    sent: dict[tuple[str, str, str], int] = {}
    by_second: dict[int, int] = {}

    def take(at: float, event: Event) -> None:
        if isinstance(event, PlanDecision):
            seen.append((at, event))
        elif isinstance(event, LinkCounts):
            sent[event.site, event.to, event.purpose] = event.bytes
            by_second[int(at)] = sum(sent.values())

    first = decider.state if isinstance(decider, Recorded) else None
    began = process_time()
    outcome = simulate_sites(scenario, events=take, decider=decider)
    cpu_s = process_time() - began
    adaptive_s, planning_s = decider.cpu_s(first) if isinstance(decider, Recorded) and first else (0.0, 0.0)
    return Result(name, outcome.summary, tuple(seen), cpu_s, adaptive_s, planning_s, by_second)


def adaptive(scenario: SitesScenario, mode: str) -> Decider:
    topology = replace(scenario.topology, adapt=Adapt(mode))
    query = topology.query("q")
    parsed = typed_query(topology)
    chosen = choose(topology, query, parsed)
    found = decisions_of(topology, {"q": (query, parsed, chosen.plan)}, scenario.trigger_us)
    assert found is not None
    return Recorded(found.controller, found.state, found.trigger_us)


def typed_query(topology: Topology) -> JoinQuery:
    schemas = {stream.name: schema_of(stream) for stream in topology.streams}
    return typed(parse_query(topology.query("q").sql, topology.columns), schemas)


def planned(scenario: SitesScenario, stats: Stats) -> JoinPlan:
    """The best plan that `auto` knows for some statistics."""
    topology = replace(scenario.topology, stats=stats)
    query = topology.query("q")
    return first_plan(problem_for(topology, query, typed_query(topology)), "planner").join


def greedy(scenario: SitesScenario, stats: Stats) -> JoinPlan:
    """The plan of the paper's own rule for some statistics."""
    topology = replace(scenario.topology, stats=stats)
    query = topology.query("q")
    return first_plan(problem_for(topology, query, typed_query(topology)), "cnu").join


def informed(joins: Sequence[JoinPlan], phase_s: int) -> Timetable:
    """A planner that knows each phase beforehand."""
    changes = [
        ((number * phase_s - AHEAD_S) * SECOND_US, GoOver("q", join, number + 1, f"phase {number + 1} begins"))
        for number, join in enumerate(joins)
        if number and join != joins[number - 1]
    ]
    return Timetable({"q": joins[0]}, changes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=["phases", "steady"], default="phases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--phase-s", type=int, default=0, help="240 by default, an hour if steady")
    parser.add_argument("--phases", type=int, default=4, help="3: no plan is right for two of them")
    parser.add_argument("--rate", type=float, default=400.0)
    parser.add_argument("--times", type=float, default=10.0, help="how many times as busy as the others one stream is")
    parser.add_argument("--keys", type=int, default=KEYS, help="fewer answers with more")
    parser.add_argument("--only", default="", help="cnu, dnu, planner, informed, fixed; all by default")
    parser.add_argument("--why", action="store_true", help="say what was decided and why")
    options = parser.parse_args()
    only = options.only.split(",") if options.only else [*MODES, "informed", "fixed"]
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        is_steady = options.table == "steady"
        # Statistics are right where nothing changes: with others, the first plan would be the wrong one.
        rate = options.rate / 3 if is_steady else 50
        (directory / "topology.yaml").write_text(TOPOLOGY.replace("rate: 50", f"rate: {rate:g}"))
        phases = (
            [Phase((options.rate / 3,) * 3)] if is_steady else phases_of(options.rate, options.times)[: options.phases]
        )
        phase_s = options.phase_s or (3_600 if is_steady else 240)
        made = made_rows(directory, phases, phase_s, options.seed, options.keys)
        loaded = load_simulated(directory / "topology.yaml")
        assert isinstance(loaded, SitesScenario)
        head = (
            f"{'':<22} {'bytes':>12} {'ratio':>6} {'migration':>10} {'observed':>8} new answers       median p99  CPU  "
        )
        head += "of it but planning"
        print(head, flush=True)
        joins = [planned(loaded, stats_of(tables)) for tables in made]
        bases = {}
        for name, known in (
            ("planner", joins),
            ("cnu", [greedy(loaded, stats_of(tables)) for tables in made]),
        ):
            if "informed" in only and name in only:
                result = run(f"informed, {name}", loaded, informed(known, phase_s))
                bases[name] = result.total
                print(result.line(result.total), result.by_phase(phase_s), flush=True)
        base = bases.get("planner", 0)
        for mode in MODES:
            if mode in only:
                result = run(mode, loaded, adaptive(loaded, mode))
                own = bases.get("cnu" if mode == "dnu" else mode, result.total)
                print(result.line(own), result.by_phase(phase_s), flush=True)
                for at, event in result.decisions if options.why else ():
                    print(f"    {at:7.0f} s {'takes' if event.accepted else 'keeps'}: {event.changed}: {event.reason}")
        if "fixed" in only and not is_steady:
            whole = {name: pa.concat_tables([tables[name] for tables in made]) for name in "abc"}
            candidates = [*joins, planned(loaded, stats_of(whole))]
            for number, join in enumerate(candidates):
                if join not in candidates[:number]:
                    name = f"fixed, for phase {number + 1}" if number < len(joins) else "fixed, for the mean"
                    result = run(name, loaded, Timetable({"q": join}, []))
                    print(result.line(base or result.total), result.by_phase(phase_s), flush=True)


if __name__ == "__main__":
    main()
