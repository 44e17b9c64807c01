"""A recorded log cut into four periods joined on the client, as figure 10 joins the access logs of four days."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from watersmeet.errors import InputError
from watersmeet.plan.nodes import HeadPlan, Hop, Linear
from watersmeet.planners.problem import Problem, problem_of
from watersmeet.query.sql import parse_query
from watersmeet.reproduce.semijoin.as_written import Sequence
from watersmeet.reproduce.semijoin.runs import UNITS, WORK, RunSetting, StreamSpec
from watersmeet.reproduce.workloads import EVENT_TIME
from watersmeet.sim.sites.rows import typed
from watersmeet.stats.model import ColumnStats, Number, Stats, StreamStats
from watersmeet.topology.model import Link, Site, Source, Stream, Topology

FILE, CLIENT = Path("zeek_wrccdc") / "dns.parquet", "orig_h"
PERIODS = 4
TUPLE_BYTES, CLIENT_BYTES = 142, 5  # a tuple as published; a client as an attribute of the other experiments
FASTER = 2.5  # times as fast as recorded: then a probe finds as many partners as with the published logs
_SECOND = 1_000_000


@dataclass(frozen=True, eq=False)
class Log:
    """The requests of one period: when, from its beginning on, and by whom."""

    ts_us: np.ndarray
    client: np.ndarray

    @property
    def rate(self) -> float:
        """Requests a second."""
        return float(len(self.ts_us) / self.ts_us[-1] * _SECOND)

    @cached_property
    def selectivity(self) -> float:
        """The share of requests that are by the client of one of them, on average."""
        return float(((np.bincount(self.client) / len(self.client)) ** 2).sum())


def read_logs(directory: Path) -> tuple[Log, ...]:
    """The periods of the recorded log."""
    if not (directory / FILE).is_file():
        raise InputError(
            f"{directory / FILE}: no such file; semijoin-fig10 joins a recorded log of requests: --data must name a "
            f"directory that has {FILE}, the DNS log of brimdata/zed-sample-data with the columns ts and {CLIENT}"
        )
    table = pq.read_table(directory / FILE, columns=["ts", CLIENT]).sort_by("ts")
    ts = table.column("ts").cast(pa.int64()).to_numpy()
    ts = ((ts - ts[0]) / FASTER).astype(np.int64)
    client = table.column(CLIENT).combine_chunks().dictionary_encode().indices.to_numpy()
    length = int(ts[-1]) // PERIODS + 1
    return tuple(Log(ts[period] - number * length, client[period]) for number, period in _periods(ts // length))


def _periods(period: np.ndarray) -> list[tuple[int, np.ndarray]]:
    return [(number, period == number) for number in range(PERIODS)]


def setting_of(logs: tuple[Log, ...], window_s: float) -> RunSetting:
    """What planners are told: rates and selectivity factors of whole logs, as in the paper."""
    streams = tuple(StreamSpec(TUPLE_BYTES, round(1 / log.selectivity), log.rate, window_s) for log in logs)
    return RunSetting(streams, tuple(combinations(range(PERIODS), 2)))


def problem_for(setting: RunSetting) -> Problem:
    """The join of all streams on the client, each at a site of its own; answers stay where they are made."""
    columns = {"client": pa.int64(), "load": pa.binary(), EVENT_TIME: pa.timestamp("us", "UTC")}
    streams = tuple(
        Stream(name, EVENT_TIME, "client long, load binary, ts timestamp", source=Source("simulator"), site=f"n{one}")
        for one, name in enumerate(setting.names, start=1)
    )
    stats = {
        name: StreamStats(
            Number(stream.rate),
            columns={
                "client": ColumnStats(Number(stream.distinct), sizes=(1.0,) * 5),
                "load": ColumnStats(sizes=(float(TUPLE_BYTES - CLIENT_BYTES),) * 5),
            },
        )
        for name, stream in zip(setting.names, setting.streams, strict=True)
    }
    topology = Topology(
        streams,
        sites=tuple(Site(stream.site) for stream in streams),
        default_link=Link(latency_us=round(setting.latency_s * _SECOND), bandwidth_bps=setting.bandwidth_bps),
    )
    froms = ", ".join(
        f"{name} [RANGE {round(setting.window_s * _SECOND)} MICROSECONDS] AS {name}" for name in setting.names
    )
    where = " AND ".join(f"{one}.client = {other}.client" for one, other in pairwise(setting.names))
    select = ", ".join(f"{name}.load AS load_{name}" for name in setting.names)
    parsed = parse_query(f"SELECT {select} FROM {froms} WHERE {where}", topology.columns)
    query = typed(parsed, dict.fromkeys(setting.names, pa.schema(list(columns.items()))))
    return problem_of(
        query,
        topology,
        None,
        Stats(stats),
        objective=WORK,
        units=UNITS,
        batch_interval_s=setting.tau_s,
    )


def tables_of(
    logs: tuple[Log, ...], setting: RunSetting, start_s: float, seconds: float, seed: int
) -> Mapping[str, pa.Table]:
    """The requests of each log from some time on, with what a tuple has beside its client as random bytes."""
    tables, low = {}, round(start_s * _SECOND)
    high = low + round((setting.window_s + seconds) * _SECOND)
    for number, (name, log) in enumerate(zip(setting.names, logs, strict=True)):
        first, last = np.searchsorted(log.ts_us, (low, high))
        count, size = int(last - first), TUPLE_BYTES - CLIENT_BYTES
        bytes_ = np.random.default_rng((seed, number)).bytes(count * size)
        ends = pa.array(np.arange(count + 1) * size, pa.int32()).buffers()[1]
        load = pa.Array.from_buffers(pa.binary(), count, [None, ends, pa.py_buffer(bytes_)])
        ts = pa.array(log.ts_us[first:last] - low).cast(pa.timestamp("us", "UTC"))
        tables[name] = pa.table({"client": pa.array(log.client[first:last], pa.int64()), "load": load, EVENT_TIME: ts})
    return tables


def linear(setting: RunSetting, plan: tuple[Sequence, ...]) -> Linear:
    """Sequences of one-way joins as a plan that sites can run."""
    return Linear(
        tuple(
            HeadPlan(head, tuple(Hop(setting.names[step.stream], step.method) for step in sequence))
            for head, sequence in zip(setting.names, plan, strict=True)
        )
    )
