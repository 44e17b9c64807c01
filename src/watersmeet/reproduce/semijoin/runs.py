"""The semijoin paper's measure, taken from runs: seconds of transmission and of processing for a second of streams.

A plan runs in the simulator, row by row. Transmission is, for every parcel that crosses a link, the latency and its
bytes over the bandwidth. Processing is no measured time: steps are counted in the run and multiplied by fixed costs
(`UNITS`), so that the same seed gives the same figure everywhere.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.cost.costs import Units
from watersmeet.plan.nodes import Linear
from watersmeet.planners.problem import Objective, Problem, problem_of
from watersmeet.program.finish.model import Evaluated, Finish
from watersmeet.program.operators import Announce, Flow, Form, Join, Operator, Ship
from watersmeet.program.site.engine import SiteEngine
from watersmeet.program.site.part import JoinPart
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.round import Round
from watersmeet.query.sql import parse_query
from watersmeet.reproduce.workloads import EVENT_TIME, between
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.site import run_here
from watersmeet.stats.model import ColumnStats, Number, Stats, StreamStats
from watersmeet.topology.model import Link, Site, Source, Stream, Topology

TAU_S = 0.1
LATENCY_S = 0.025
BANDWIDTH_BPS = 1024e3
ATTRIBUTE_BYTES = 5  # 250 attributes are 1250 bytes in the paper
WORK = Objective.named("work")
# What steps are assumed to take, so that figures do not change with the machine or with defaults. They are not the cost
# model's defaults: a probe is 20 times as dear here, packing 7.5 times, a match 3 times, an operator a third.
UNITS = Units(micro_batch_s=3e-3, operator_s=4e-4, row_s=2.5e-7, probe_s=4e-7, match_s=1.5e-7, pack_s=3e-7)
_SECOND = 1_000_000
_KEY_SIZES = (1.0, 1.0, 0.9, 0.7, 0.7)  # of a join attribute with tens of values, as measured


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """One stream of the paper: bytes of a tuple, distinct values of each join attribute, tuples a second, window."""

    size_bytes: int = 1250
    distinct: int = 10
    rate: float = 300.0
    window_s: float = 3.0


@dataclass(frozen=True)
class RunSetting:
    """Streams, each at a site of its own, the pairs of them that are joined, and the network between the sites."""

    streams: tuple[StreamSpec, ...]
    edges: tuple[tuple[int, int], ...] = ((0, 1),)
    latency_s: float = LATENCY_S
    bandwidth_bps: float = BANDWIDTH_BPS
    tau_s: float = TAU_S

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the streams, which are their aliases too."""
        return tuple(f"s{number}" for number in range(1, len(self.streams) + 1))

    def keys(self, stream: int) -> list[str]:
        """The join attributes of a stream: one for each pair that it is part of."""
        return [f"k{number}" for number, edge in enumerate(self.edges) if stream in edge]

    def load_bytes(self, stream: int) -> int:
        """What a tuple has beside its join attributes."""
        return max(1, self.streams[stream].size_bytes - ATTRIBUTE_BYTES * len(self.keys(stream)))

    @property
    def window_s(self) -> float:
        """The longest window."""
        return max(stream.window_s for stream in self.streams)


def problem_for(setting: RunSetting) -> Problem:
    """The question for planners, with the very figures that rows are drawn from; answers stay where they are made."""
    streams, stats = [], {}
    for number, (name, stream) in enumerate(zip(setting.names, setting.streams, strict=True)):
        keys = setting.keys(number)
        columns = [*(f"{key} long" for key in keys), "load binary", f"{EVENT_TIME} timestamp"]
        streams.append(
            Stream(name, EVENT_TIME, schema=", ".join(columns), source=Source("simulator"), site=f"n{number + 1}")
        )
        load = float(setting.load_bytes(number))
        known = {key: ColumnStats(Number(stream.distinct), sizes=_KEY_SIZES) for key in keys}
        stats[name] = StreamStats(
            Number(stream.rate), columns={**known, "load": ColumnStats(sizes=(load, load, load, load, load))}
        )
    topology = Topology(
        tuple(streams),
        sites=tuple(Site(stream.site) for stream in streams),
        default_link=Link(latency_us=round(setting.latency_s * _SECOND), bandwidth_bps=setting.bandwidth_bps),
    )
    query = typed(parse_query(sql_of(setting), topology.columns), {name: schema_of(setting, name) for name in stats})
    return problem_of(query, topology, None, Stats(stats), objective=WORK, units=UNITS, batch_interval_s=setting.tau_s)


def sql_of(setting: RunSetting) -> str:
    """The query: all streams whole, a pair of attributes of their own for each pair of streams that is joined."""
    select = ", ".join(f"{name}.load AS load_{name}" for name in setting.names)
    froms = ", ".join(
        f"{name} [RANGE {round(stream.window_s * _SECOND)} MICROSECONDS] AS {name}"
        for name, stream in zip(setting.names, setting.streams, strict=True)
    )
    where = " AND ".join(
        f"{setting.names[one]}.k{number} = {setting.names[other]}.k{number}"
        for number, (one, other) in enumerate(setting.edges)
    )
    return f"SELECT {select} FROM {froms} WHERE {where}"


def schema_of(setting: RunSetting, name: str) -> pa.Schema:
    """The columns of a stream."""
    keys = setting.keys(setting.names.index(name))
    time = pa.timestamp("us", "UTC")
    return pa.schema([*((key, pa.int64()) for key in keys), ("load", pa.binary()), (EVENT_TIME, time)])


def draw_tables(setting: RunSetting, seconds: float, seed: int) -> dict[str, pa.Table]:
    """Rows at even distances, with uniform keys of which those of fewer values are among those of more.

    What a row has beside its keys is random bytes, which no compression makes smaller.
    """
    tables = {}
    for number, (name, stream) in enumerate(zip(setting.names, setting.streams, strict=True)):
        rng = np.random.default_rng((seed, number))
        count = int(seconds * stream.rate)
        ts = ((np.arange(count) + rng.random()) / stream.rate * _SECOND).astype(np.int64)
        keys = {key: pa.array(rng.integers(1, stream.distinct + 1, count)) for key in setting.keys(number)}
        size = setting.load_bytes(number)
        ends = pa.array(np.arange(count + 1) * size, pa.int32()).buffers()[1]
        load = pa.Array.from_buffers(pa.binary(), count, [None, ends, pa.py_buffer(rng.bytes(count * size))])
        times = pa.array(ts).cast(pa.timestamp("us", "UTC"))
        tables[name] = pa.table({**keys, "load": load, EVENT_TIME: times}, schema_of(setting, name))
    return tables


@dataclass(slots=True)
class Steps:
    """Counts what operators do while it runs their tasks."""

    busy: int = 0  # operators that had something to do
    taken: int = 0  # rows that operators took
    made: int = 0  # rows that operators made
    answers: int = 0  # those of them that are answers

    def __call__(self, task: Callable[[int], list[Any]], count: int, rows: int) -> list[Any]:
        """Run a task for each number, here and now."""
        results = run_here(task, count, rows)
        if isinstance(task, Round):
            fresh: dict[str, int] = {}
            for result in results:
                fresh[result.flow] = fresh.get(result.flow, 0) + result.rows
            for name, operator in task.operators:
                part = task.program.part(name)
                taken = sum(_new_rows(task, part, operator, flow, fresh) for flow in dict.fromkeys(operator.inputs))
                self.busy += taken > 0
                self.taken += taken
                self.answers += fresh.get(part.flow(operator.out), 0) if operator.out.form is Form.RESULT else 0
            self.made += sum(fresh.values())
        return results


def _new_rows(task: Round, part: JoinPart, operator: Operator, flow: Flow, fresh: Mapping[str, int]) -> int:
    filed = task.new.get(part.relation(flow, operator.key, operator.sub_plans), ())
    return sum(segment.rows for segment in filed) + fresh.get(part.flow(flow), 0)


@dataclass(frozen=True, slots=True)
class Counts:
    """What has happened so far in a run."""

    bytes: int = 0
    parcels: int = 0
    micro_batches: int = 0
    busy: int = 0
    taken: int = 0
    made: int = 0
    shipped: int = 0  # rows of any kind on links
    answers: int = 0

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, field.name) - getattr(other, field.name) for field in fields(self)))

    def transmission_s(self, setting: RunSetting) -> float:
        """The time that parcels spend on links."""
        return self.parcels * setting.latency_s + self.bytes * 8 / setting.bandwidth_bps

    def processing_s(self, units: Units = UNITS) -> float:
        """The time that sites work: the very terms of the cost model, of what has really happened."""
        return (
            self.micro_batches * units.micro_batch_s
            + self.busy * units.operator_s
            + self.taken * (units.row_s + units.probe_s)
            + self.made * units.match_s
            + 2 * self.shipped * units.pack_s
        )


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds for a second of the streams."""

    transmission: float
    processing: float
    answers: float = 0.0  # that were made in it

    @property
    def total(self) -> float:
        """The paper's total execution time."""
        return self.transmission + self.processing


def spent(
    setting: RunSetting,
    problem: Problem,
    sub_plan: Linear,
    tables: Mapping[str, pa.Table],
    seconds: float,
    *,
    head: str | None = None,
    warm_feeds: int | None = None,
) -> Spent:
    """Run a plan over rows and measure it, from when all windows have filled until all that came is done.

    Feeds come every execution interval, and every site works once in it; before, they may be fewer and larger. With
    a head, only what this head needs is run, its last join included; else the last joins are left out, which make the
    same answers in every plan. The bandwidth only counts in the figures: nothing waits for a link to be free.
    """
    join = replace(problem.join((sub_plan,)), ships_once=False)  # heads ship for themselves, as in the paper
    steps = Steps()
    tau_us = round(setting.tau_s * _SECOND)
    sites = SimulatedSites(
        problem.plan(join),
        dict.fromkeys(tables, EVENT_TIME),
        model_of=lambda origin, to: LinkModel(latency_us=round(setting.latency_s * _SECOND)),
        interval_us=tau_us,
        retry_us=3_600 * _SECOND,
        answers=head is not None,
    )
    programs = sites.programs if head is None else only_for(sites.programs, head)
    for name, site in sites.sites.items():
        site.engine = SiteEngine(programs[name], site.delays_us, site.shelf, steps, _no_expressions, rows_a_bucket=1)
    full_us = round(setting.window_s * _SECOND)
    count = warm_feeds or max(1, full_us // tau_us)
    _feed(sites, tables, [round(edge) for edge in np.linspace(0, full_us, count + 1)], tau_us)
    before = _counts(sites, steps)
    feeds = max(1, round(seconds / setting.tau_s))
    _feed(sites, tables, [full_us + number * tau_us for number in range(feeds + 1)], tau_us)
    found = _counts(sites, steps) - before
    length_s = feeds * setting.tau_s
    return Spent(found.transmission_s(setting) / length_s, found.processing_s() / length_s, found.answers / length_s)


def _feed(sites: SimulatedSites, tables: Mapping[str, pa.Table], edges_us: Sequence[int], tau_us: int) -> None:
    """Let rows come, all of an interval at once, one interval after the other, and see them to the end."""
    for low, high in pairwise(edges_us):
        slices = {name: between(table, low, high) for name, table in tables.items()}
        sites.feed(sites.kernel.now_us, {name: table for name, table in slices.items() if table.num_rows})
        sites.kernel.run(until_us=sites.kernel.now_us + tau_us)
        for site in sites.sites.values():
            site.answers.clear()
            site.batches[:-1] = [{}] * (len(site.batches) - 1)  # nobody reads them again
    sites.run()


def _no_expressions(finish: Finish, paths: Sequence[str], rows: int) -> Evaluated:
    raise AssertionError("answers are columns as they are")


def _counts(sites: SimulatedSites, steps: Steps) -> Counts:
    links = [link for site in sites.sites.values() for link in site.ledger.links.values()]
    traffic = [sent for link in links for sent in link.traffic.values()]
    return Counts(
        sum(sent.bytes for sent in traffic),
        sum(link.number for link in links),
        sum(site.micro_batches for site in sites.sites.values()),
        steps.busy,
        steps.taken,
        steps.made,
        sum(sent.tuples for sent in traffic),
        steps.answers,
    )


def only_for(programs: Mapping[str, SiteProgram], head: str) -> dict[str, SiteProgram]:
    """What of the programs of one join is needed for the answers of one head."""
    joins = {site: program.parts[0].program for site, program in programs.items()}
    operators: dict[str, dict[Operator, None]] = {site: {} for site in joins}
    ships: dict[str, dict[Ship, None]] = {site: {} for site in joins}
    left: list[tuple[str, Operator]] = [
        (site, operator)
        for site, join in joins.items()
        for operator in join.operators
        if isinstance(operator, Join) and operator.head == head and operator.out.form is Form.RESULT
    ]
    while left:
        site, operator = left.pop()
        operators[site][operator] = None
        wanted = [(site, flow) for flow in operator.inputs]
        if isinstance(operator, Announce):
            wanted += [(site, flow) for _, flow in joins[site].inbound if _paces(flow, operator, head)]
        while wanted:
            at, flow = wanted.pop()
            makers = [operator for operator in joins[at].operators if operator.out == flow]
            left += [(at, operator) for operator in makers if operator not in operators[at]]
            for origin, join in joins.items():
                for ship in join.ships:
                    if not makers and ship.to == at and ship.arrives_as == flow and ship not in ships[origin]:
                        ships[origin][ship] = None
                        wanted.append((origin, ship.flow))
    return {site: _limited(program, operators, ships) for site, program in programs.items()}


def _paces(flow: Flow, operator: Announce, head: str) -> bool:
    return flow.form is Form.PACE and flow.alias == operator.alias != head


def _limited(
    program: SiteProgram, operators: Mapping[str, Mapping[Operator, None]], ships: Mapping[str, Mapping[Ship, None]]
) -> SiteProgram:
    (part,), site = program.parts, program.site
    sent = {(site, ship.to, part.flow(ship.arrives_as)) for site, kept in ships.items() for ship in kept}
    join = replace(
        part.program,
        operators=tuple(operator for operator in part.program.operators if operator in operators[site]),
        ships=tuple(ship for ship in part.program.ships if ship in ships[site]),
        paces=tuple(pace for pace in part.program.paces if any(ship.flow == pace[0] for ship in ships[site])),
        inbound=tuple(
            (origin, flow) for origin, flow in part.program.inbound if (origin, site, part.flow(flow)) in sent
        ),
    )
    return replace(
        program,
        parts=(replace(part, program=join),),
        shipments=tuple(shipment for shipment in program.shipments if (site, shipment.to, shipment.arrives_as) in sent),
        inbound=tuple(
            (origin, shipment) for origin, shipment in program.inbound if (origin, site, shipment.arrives_as) in sent
        ),
    )
