"""Runs a scenario: RJoin on a settled overlay, tuples published at their times, what every node did, and the answers.

The delay of a message is the sum over its hops of delays drawn from the latency model, not those of the very hosts on
its way; mail is rounded up to whole grains of time, so that much of it is handled at once. Answers do not depend on it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from watersmeet.errors import InputError, RunError, TypeMismatch
from watersmeet.program.rjoin.compiled import FOREVER, Ints, Longs
from watersmeet.program.rjoin.shard import Settings, table_of
from watersmeet.program.rjoin.tables import Catalog, Known, Shape, Widths, needs_pairs, reach_us
from watersmeet.query.model import Expression, JoinQuery
from watersmeet.query.sql import parse_query
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.latency import King, Latency, Star, TransitStub
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.overlays.size import estimated_nodes, longest_route_us
from watersmeet.sim.rjoin.expressions import judge, project
from watersmeet.sim.rjoin.settled import Delays, Overlay, SettledRJoin, steady
from watersmeet.sim.rows import query_rows
from watersmeet.sim.scenario import (
    HOP_US,
    LatencyKind,
    Network,
    OverlayKind,
    Scenario,
    UserLoad,
    ZipfLoad,
    forever_if_none,
)
from watersmeet.sim.sources import check_source, read_stream, schema_of
from watersmeet.sim.trace import Trace

SECOND_US = 1_000_000
GRAIN_US = 10_000
MOST_LOOKS = 1_000  # in a trace, while tuples are published
_ROUTES_SAMPLED, _PAIRS_SAMPLED = 500, 4_096
_MOST_ALIASES = 30  # the bound ones are bits of one number
_ROW = "__row"  # a name of our own in tables that hold the user's columns
_SUCCESSORS = 16  # by which a node tells how many others there are

Tell = Callable[[int, int], object]  # tuples published, of how many


@dataclass(frozen=True, slots=True)
class Spread:
    """How something is spread over the nodes."""

    total: int
    highest: int
    mean: float
    nodes: int  # that have any

    @classmethod
    def of(cls, counts: Longs) -> "Spread":
        """The spread of a count for each node."""
        total = int(counts.sum())
        return cls(total, int(counts.max()), total / len(counts), int(np.count_nonzero(counts)))


@dataclass(frozen=True, slots=True)
class Summary:
    """What a simulation came to; a function of the scenario alone."""

    nodes: int
    overlay: str
    latency: str
    strategy: str
    seed: int
    tuples: int
    queries: int
    answers: int
    answers_by_query: Mapping[str, int]  # of queries with names
    messages: Mapping[str, int]  # by purpose: tuples, queries, rates (RIC), answers
    load: Spread  # query processing load: rewritten queries and tuples received
    storage: Spread  # storage load: rewritten queries and tuples kept at the value level
    held: int  # tuples kept at the attribute level, which the paper does not count
    virtual_us: int

    @property
    def messages_total(self) -> int:
        """All messages, each hop being one."""
        return sum(self.messages.values())

    @property
    def messages_per_tuple_and_node(self) -> float:
        """The paper's traffic: what one node sends for one tuple."""
        return self.messages_total / (max(1, self.tuples) * self.nodes)

    @property
    def data(self) -> dict[str, Any]:
        """All figures as plain values."""
        told = asdict(self)
        told["answers_per_query"] = self.answers / max(1, self.queries)
        told["messages"] = {**self.messages, "total": self.messages_total}
        told["messages_per_tuple_and_node"] = self.messages_per_tuple_and_node
        return told


class Answers:
    """What has come to those who asked; DISTINCT is seen to here."""

    def __init__(self, known: Known, *, are_kept: bool = True) -> None:
        self._known, self._are_kept = known, are_kept
        self._rows: dict[int, list[Ints]] = {}
        self._counts: dict[int, int] = {}
        self._distinct: dict[int, pa.Table] = {}

    def take(self, query: int, rows: Ints) -> None:
        """Complete rows have come."""
        if self._are_kept:
            self._rows.setdefault(query, []).append(rows)
        self._counts[query] = self._counts.get(query, 0) + len(rows)

    def count(self, query: int) -> int:
        """How many answers a query has."""
        is_distinct = self._known.queries[query].distinct
        return self.table(query).num_rows if is_distinct else self._counts.get(query, 0)

    def table(self, query: int) -> pa.Table:
        """The answers of a query."""
        asked = self._known.queries[query]
        if not asked.distinct:
            return self._projected(query, self._rows.get(query, []))
        came = self._rows.pop(query, [])
        if came or query not in self._distinct:
            table = self._projected(query, came)
            if query in self._distinct:
                both = pa.concat_tables([self._distinct[query], table])
                table = query_rows("SELECT DISTINCT * FROM both_of_them", both_of_them=both)
            self._distinct[query] = table
        return self._distinct[query]

    def _projected(self, query: int, rows: Sequence[Ints]) -> pa.Table:
        asked = self._known.queries[query]
        if rows:
            return project(asked, table_of(self._known, np.concatenate(rows), query))
        return project(asked, _no_rows(asked, self._known.catalog.schemas))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A simulation at its end."""

    summary: Summary
    load: Longs  # of each node
    storage: Longs
    answers: Answers | None  # None where they were only counted
    numbers: Mapping[str, int]  # of queries with names

    def table(self, name: str) -> pa.Table:
        """The answers of a query."""
        assert self.answers is not None, "answers of generated queries are counted, not kept"
        return self.answers.table(self.numbers[name])

    def write(self, name: str, path: Path) -> None:
        """Write the answers of a query to a Parquet file, or to one in a directory."""
        file = path if path.suffix == ".parquet" else path / "answers.parquet"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(self.table(name), file)
        except OSError as error:
            raise RunError(f"answers of query {name!r} cannot be written to {file}: {error.strerror}") from None


def simulate(scenario: Scenario, *, tell: Tell = lambda done, total: None, trace: Trace | None = None) -> Outcome:
    """Run a scenario to its end."""
    match scenario.load:
        case ZipfLoad() as load:
            return _simulate_zipf(scenario, load, tell, trace)
        case UserLoad() as load:
            return _simulate_user(scenario, load, tell, trace)


def ranked_loads(outcome: Outcome, points: int = 120) -> list[dict[str, Any]]:
    """Loads at some ranks, evenly on a logarithmic axis, the highest first: rows for a plot."""
    ranks = np.unique(np.geomspace(1, len(outcome.load), points).astype(np.int64))
    load, storage = (np.sort(counts)[::-1] for counts in (outcome.load, outcome.storage))
    return [
        {"rank": int(rank), "load": float(load[rank - 1]) or None, "storage": float(storage[rank - 1]) or None}
        for rank in ranks
    ]


# ---- the network


def overlay_of(network: Network) -> Overlay:
    """The peers at rest; Bamboo's prefer near ones where a latency model says who is near."""
    if network.overlay is OverlayKind.CHORD:
        return Ring.random(network.nodes, network.seed)
    return Prefixes.random(network.nodes, network.seed, latency_of(network))


def latency_of(network: Network) -> Latency | None:
    """The delays between hosts; None where all hops take the same time."""
    hop_us = network.hop_us or HOP_US.get(network.latency, 0)
    match network.latency:
        case LatencyKind.CONSTANT:
            return None
        case LatencyKind.STAR:
            return Star(network.nodes, delay_us=hop_us, spread_us=hop_us // 4, seed=network.seed)
        case LatencyKind.KING:
            return King(network.nodes, median_us=hop_us, seed=network.seed)
        case LatencyKind.TRANSIT_STUB:
            return TransitStub(network.nodes, seed=network.seed)


@dataclass(frozen=True, slots=True)
class Hops:
    """What hops take: of a message that knows its host, a pair's delay; of a route, those of hops on such routes."""

    pairs_us: Longs
    routed_us: Longs

    @property
    def longest_us(self) -> int:
        return int(max(self.pairs_us.max(), self.routed_us.max()))

    @property
    def mean_us(self) -> int:
        return int(max(self.pairs_us.mean(), self.routed_us.mean()))

    def delays(self, seed: int) -> Delays:
        """Draw what messages take, in whole grains."""
        if self.pairs_us.min() == self.pairs_us.max() == self.routed_us.min() == self.routed_us.max():
            return steady(int(self.pairs_us[0]))
        chance = np.random.default_rng([seed, 6])

        def drawn(hops: Longs) -> Longs:
            each = self.routed_us[chance.integers(0, len(self.routed_us), int(hops.sum()))]
            ends = np.cumsum(hops)
            sums = np.concatenate([[0], np.cumsum(each)])
            total = sums[ends] - sums[ends - hops]
            is_direct = hops == 1
            total[is_direct] = self.pairs_us[chance.integers(0, len(self.pairs_us), int(is_direct.sum()))]
            grains: Longs = -(-total // GRAIN_US)
            return grains * GRAIN_US

        return drawn


def hops_of(network: Network, overlay: Overlay) -> Hops:
    """A sample of what hops take on this overlay."""
    latency = latency_of(network)
    if latency is None:
        hop_us = np.array([network.hop_us or HOP_US[network.latency]], np.int64)
        return Hops(hop_us, hop_us)
    assert isinstance(overlay, Ring | Prefixes)
    chance = np.random.default_rng([network.seed, 7])
    nodes = len(overlay)
    one = chance.integers(0, nodes, _PAIRS_SAMPLED)
    other = (one + chance.integers(1, max(2, nodes), _PAIRS_SAMPLED)) % nodes
    pairs_us = latency.many(one, other)
    froms, tos = [], []
    for source in chance.integers(0, nodes, _ROUTES_SAMPLED).tolist():
        way = [source, *overlay.path(source, int(chance.integers(0, 1 << 64, dtype=np.uint64)))]
        froms += way[:-1]
        tos += way[1:]
    routed_us = latency.many(np.array(froms, np.int64), np.array(tos, np.int64)) if froms else pairs_us
    return Hops(pairs_us, routed_us)


def delta_us(overlay: Overlay, hops: Hops, widths: Widths) -> int:
    """The paper's Delta, from what a node can tell of the network's size.

    A route is bounded by twice the logarithm in hops of mean length, and four of the longest besides. A tuple's route
    comes first; then each alias may take a walk along all candidate keys for their rates, a route to the chosen one,
    and a visit to the holder of a ROWS window; a last route is to spare.
    """
    identifiers = overlay.identifiers[: _SUCCESSORS + 1].tolist()
    nodes = estimated_nodes(identifiers[0], identifiers[1:])
    route_us = longest_route_us(nodes, hops.mean_us) + 4 * hops.longest_us + GRAIN_US
    return route_us * (2 + widths.aliases * (2 * widths.slots + 3))


# ---- a run


class _Run:
    """A network under way, looked at now and then."""

    def __init__(
        self,
        scenario: Scenario,
        known: Known,
        queries: Sequence[tuple[JoinQuery, Shape]],
        trace: Trace | None,
        *,
        members: bool = True,
        epoch_us: int = 0,
    ) -> None:
        self.scenario, self.trace = scenario, trace
        network, choice = scenario.network, scenario.choice
        overlay = overlay_of(network)
        hops = hops_of(network, overlay)
        reaches = [reach_us(query) for query, _ in queries]
        held = [
            reach
            for reach, (query, shape) in zip(reaches, queries, strict=True)
            if choice.pairs or needs_pairs(query, shape)
        ]
        settings = Settings(
            strategy=choice.strategy,
            pairs=choice.pairs,
            members=members,
            rate_window_us=choice.rate_window_us,
            rate_age_us=forever_if_none(choice.rate_age_us),
            keep_us=max(reaches),
            hold_us=max(held, default=0),
            delay_us=delta_us(overlay, hops, known.widths),
            seed=network.seed,
        )
        self.kernel = Kernel(network.seed)
        self.answers = Answers(known, are_kept=isinstance(scenario.load, UserLoad)) if members else None
        self.network = SettledRJoin(
            self.kernel,
            overlay,
            known,
            settings,
            delays=hops.delays(network.seed),
            answered=self.answers.take if self.answers is not None else None,
            epoch_us=epoch_us,
        )
        finite = [reach for reach in reaches if reach != FOREVER]
        self._sweep_us = max(SECOND_US, (min(finite) + settings.delay_us) // 2) if finite else None
        self._next_sweep_us = self._sweep_us
        self._every_us, self._next_look_us = SECOND_US, int(FOREVER)
        self._began_us = 0
        self.tuples = 0

    def begin(self, span_us: int) -> None:
        """Count from now on; tuples will come for so long."""
        self.network.forget_counts()
        self._began_us = self.kernel.now_us
        if self.trace is not None:
            self._every_us = -(-max(SECOND_US, span_us // MOST_LOOKS) // SECOND_US) * SECOND_US
            self._next_look_us = self._began_us + self._every_us
            identifiers = self.network.overlay.identifiers
            self.trace.start(self.scenario.parameters, identifiers, self._every_us, self.network.now_us)

    def publish(self, at_us: int, node: int, stream: str, rows: pa.Table) -> None:
        """Let tuples come at a time."""
        self.advance(at_us)
        self.network.publish(node, stream, rows)
        self.tuples += rows.num_rows

    def advance(self, until_us: int) -> None:
        """Let time pass."""
        while self._next_look_us <= until_us:
            self.kernel.run(self._next_look_us)
            self._look()
        self.kernel.run(until_us)
        if self._sweep_us is not None and self._next_sweep_us is not None and until_us >= self._next_sweep_us:
            self.network.sweep()
            self._next_sweep_us = until_us + self._sweep_us

    def wait(self) -> None:
        """Let time pass until all is quiet, and no longer, whether somebody looks or not."""
        if self.trace is None:
            self.kernel.run()
            return
        while self.kernel.run(max_events=1):
            if self.kernel.now_us >= self._next_look_us:
                self._look()

    def finish(self, names: Mapping[str, int]) -> Outcome:
        """Wait until all is quiet, and sum up."""
        self.wait()
        shard, network = self.network.shard, self.scenario.network
        stored = shard.stored()
        load, storage = self._load(), stored.queries + stored.tuples
        summary = Summary(
            nodes=network.nodes,
            overlay=network.overlay.value,
            latency=network.latency.value,
            strategy=self.scenario.choice.strategy.value,
            seed=network.seed,
            tuples=self.tuples,
            queries=len(self.network.known.queries),
            answers=self._answers(),
            answers_by_query={
                name: self.answers.count(number) for name, number in names.items() if self.answers is not None
            },
            messages=self._messages(),
            load=Spread.of(load),
            storage=Spread.of(storage),
            held=int(stored.held.sum()),
            virtual_us=self.kernel.now_us - self._began_us,
        )
        if self.trace is not None:
            self.trace.end(self.network.now_us, summary.data)
        return Outcome(summary, load, storage, self.answers, names)

    def _look(self) -> None:
        assert self.trace is not None
        past_us = self.kernel.now_us - self._began_us
        self._next_look_us = self._began_us + (past_us // self._every_us + 1) * self._every_us
        load, stored = self._load(), self.network.shard.stored()
        figures = {
            "tuples": self.tuples,
            "answers": self._answers(),
            "messages": self._messages(),
            "load": asdict(Spread.of(load)),
            "storage": asdict(Spread.of(stored.queries + stored.tuples)),
        }
        self.trace.look(self.network.now_us, figures, load)

    def _load(self) -> Longs:
        return self.network.shard.load.queries + self.network.shard.load.tuples

    def _messages(self) -> dict[str, int]:
        traffic = self.network.traffic
        purposes = {
            "tuples": traffic.tuples,
            "queries": traffic.queries,
            "rates": traffic.rates,
            "answers": traffic.answers,
        }
        return {name: int(sent.sum()) for name, sent in purposes.items()}

    def _answers(self) -> int:
        if self.answers is None:
            return int(self.network.shard.answers.sum())
        return sum(self.answers.count(number) for number in range(len(self.network.known.queries)))


# ---- what is published and asked


def _simulate_zipf(scenario: Scenario, load: ZipfLoad, tell: Tell, trace: Trace | None) -> Outcome:
    nodes, seed = scenario.network.nodes, scenario.network.seed
    chance = np.random.default_rng([seed, 4])
    workload = load.workload(seed)
    queries = workload.queries(load.queries)
    catalog = Catalog(workload.schemas, workload.event_times)
    known = Known(catalog, Widths(load.ways, 2 * (load.ways - 1), load.ways - 1), judge)
    kinds = [(queries[0], catalog.shape(queries[0]))]  # all have the same windows
    run = _Run(scenario, known, kinds, trace, members=load.window_us is not None)
    kernel, gap_us = run.kernel, round(SECOND_US / load.rate)
    feeds = list(workload.tables(load.warm_up + load.tuples))
    for stream, row in feeds[: load.warm_up]:
        run.network.publish(int(chance.integers(nodes)), stream, row)
        kernel.run(kernel.now_us + gap_us)
    kernel.run()
    run.begin(load.tuples * gap_us)
    run.network.submit(queries, chance.integers(0, nodes, len(queries)).tolist())
    run.wait()
    first_us = kernel.now_us
    for number, (stream, row) in enumerate(feeds[load.warm_up :]):
        run.publish(first_us + number * gap_us, int(chance.integers(nodes)), stream, row)
        tell(number + 1, load.tuples)
    return run.finish({})


def _simulate_user(scenario: Scenario, load: UserLoad, tell: Tell, trace: Trace | None) -> Outcome:
    schemas, event_times = _checked_streams(load)
    catalog = Catalog(schemas, event_times)
    queries = [
        _checked_query(one.query.name, one.query.sql, one.query.allow_cross, load, schemas) for one in load.queries
    ]
    shapes = [catalog.shape(query) for query in queries]
    feed = Feed.of(load, event_times)
    chance = np.random.default_rng([scenario.network.seed, 5])
    nodes = scenario.network.nodes
    homes = [int(chance.integers(nodes)) if one.home is None else one.home for one in load.queries]
    published_at = [int(chance.integers(nodes)) if one.home is None else one.home for one in load.streams]
    epoch_us = feed.first_us - SECOND_US
    known = Known(catalog, Widths.of(shapes), _Judge(feed))
    run = _Run(scenario, known, list(zip(queries, shapes, strict=True)), trace, epoch_us=epoch_us)
    run.begin(feed.last_us - epoch_us)
    numbers: dict[str, int] = {}  # in the order of asking: queries that start later are asked later

    def submit(place: int) -> None:
        numbers[load.queries[place].query.name] = run.network.submit([queries[place]], [homes[place]])[0]

    for place, asked in enumerate(load.queries):
        start_us = asked.query.start_us
        at_us = 0 if start_us is None else max(0, start_us - epoch_us)
        run.kernel.at(at_us, submit, place, priority=-1)
    for stream, ts_us, rows in feed.parts():
        one = load.streams[stream]
        for row in range(rows.num_rows) if one.is_scattered else (None,):
            node = published_at[stream] if row is None else int(chance.integers(nodes))
            run.publish(ts_us - epoch_us, node, one.stream.name, rows if row is None else rows.slice(row, 1))
        tell(run.tuples, feed.tuples)
    run.wait()
    outcome = run.finish({asked.query.name: numbers[asked.query.name] for asked in load.queries})
    for asked in load.queries:
        if asked.query.sink.path is not None:
            outcome.write(asked.query.name, Path(asked.query.sink.path))
    return outcome


@dataclass(frozen=True, slots=True)
class Feed:
    """The tuples of all streams in the order of their times; ties by stream, then as they arrive."""

    tables: tuple[pa.Table, ...]  # of each stream, by time, with a column more that numbers all tuples
    stamps: Longs
    streams: Longs
    rows: Longs

    @classmethod
    def of(cls, load: UserLoad, event_times: Mapping[str, str]) -> "Feed":
        """Read all streams."""
        tables, stamps = [], []
        for one in load.streams:
            table = read_stream(one.stream)
            times: Longs = table.column(event_times[one.stream.name]).cast(pa.int64()).to_numpy()
            order = np.argsort(times, kind="stable")
            tables.append(table.take(order))
            stamps.append(times[order])
        streams = np.repeat(np.arange(len(tables)), [len(times) for times in stamps])
        rows = np.concatenate([np.arange(len(times)) for times in stamps])
        every = np.concatenate(stamps)
        order = np.lexsort((rows, streams, every))[: load.most_tuples]
        if not len(order):
            raise InputError("there is nothing to simulate: no stream has a tuple with an event time")
        kept = [table.slice(0, int((streams[order] == place).sum())) for place, table in enumerate(tables)]
        firsts = np.cumsum([0, *(table.num_rows for table in kept)]).tolist()
        numbered = [
            table.append_column(_ROW, pa.array(np.arange(first, first + table.num_rows))).combine_chunks()
            for first, table in zip(firsts, kept, strict=False)
        ]
        return cls(tuple(numbered), every[order], streams[order], rows[order])

    @property
    def tuples(self) -> int:
        return len(self.stamps)

    @property
    def first_us(self) -> int:
        return int(self.stamps[0])

    @property
    def last_us(self) -> int:
        return int(self.stamps[-1])

    def parts(self) -> Iterator[tuple[int, int, pa.Table]]:
        """Tuples of one stream and one time together: the stream, the time, and the rows."""
        is_new = (np.diff(self.stamps) != 0) | (np.diff(self.streams) != 0)
        bounds = [0, *(np.flatnonzero(is_new) + 1).tolist(), self.tuples]
        for begin, end in pairwise(bounds):
            stream, first = int(self.streams[begin]), int(self.rows[begin])
            yield stream, int(self.stamps[begin]), self.tables[stream].slice(first, end - begin)


class _Judge:
    """Filters, evaluated once for all tuples that will ever come: DuckDB takes as long for one."""

    def __init__(self, feed: Feed) -> None:
        self._tables = feed.tables
        self._first = np.cumsum([0, *(table.num_rows for table in feed.tables)])
        self._told: dict[tuple[int, str, tuple[Expression, ...]], NDArray[np.bool_]] = {}

    def __call__(self, alias: str, predicates: Sequence[Expression], rows: pa.Table) -> NDArray[np.bool_]:
        if not alias or not rows.num_rows:
            return judge(alias, predicates, rows)
        numbers = rows.column(_ROW).to_numpy()
        stream = int(np.searchsorted(self._first, numbers[0], side="right")) - 1
        asked = (stream, alias, tuple(predicates))
        if asked not in self._told:
            self._told[asked] = judge(alias, predicates, self._tables[stream])
        verdict: NDArray[np.bool_] = self._told[asked][numbers - self._first[stream]]
        return verdict


def _checked_streams(load: UserLoad) -> tuple[dict[str, pa.Schema], dict[str, str]]:
    schemas, event_times = {}, {}
    for one in load.streams:
        stream = one.stream
        check_source(stream)
        schemas[stream.name], event_times[stream.name] = schema_of(stream), stream.event_time_column
        if len(stream.columns) < 2:
            raise InputError(f"stream {stream.name!r} has no column but its event time; RJoin finds tuples by others")
    return schemas, event_times


def _checked_query(
    name: str, sql: str, allow_cross: bool, load: UserLoad, schemas: Mapping[str, pa.Schema]
) -> JoinQuery:
    """A query that can be answered here: RJoin tells values apart by themselves, and DuckDB evaluates expressions."""
    try:
        query = parse_query(sql, load.columns, allow_cross=allow_cross)
    except InputError as error:
        raise type(error)(f"query {name!r}: {error}") from None
    if len(query.sources) > _MOST_ALIASES:
        raise InputError(f"query {name!r} joins {len(query.sources)} streams; RJoin here takes {_MOST_ALIASES} at most")
    stream_of = {source.alias: source.stream for source in query.sources}
    for equality in query.equalities:
        sides = [side for side in (equality.left, equality.right) if side.is_plain]
        kinds = [schemas[stream_of[side.columns[0].alias]].field(side.columns[0].name).type for side in sides]
        if len({_family(kind) for kind in kinds}) > 1:
            left, right = (side.columns[0].flat for side in sides)
            raise TypeMismatch(
                f"query {name!r}: {left} is {kinds[0]} and {right} is {kinds[1]}: a simulated network compares values "
                "of one kind only; declare both alike"
            )
    try:
        flat = _no_rows(query, schemas)
        project(query, flat)
        if query.filters or query.residuals:
            judge("", [*query.filters, *query.residuals], flat)
    except InputError as error:
        raise type(error)(f"query {name!r}: {error}") from None
    except Exception as error:  # DuckDB's own, which is known to a few modules only
        reason = str(error).splitlines()[0]
        raise InputError(
            f"query {name!r}: the simulator evaluates expressions by DuckDB, which says: {reason}"
        ) from None
    return query


def _family(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    return str(kind)


def _no_rows(query: JoinQuery, schemas: Mapping[str, pa.Schema]) -> pa.Table:
    fields = [(f"{source.alias}.{one.name}", one.type) for source in query.sources for one in schemas[source.stream]]
    return pa.schema(fields).empty_table()
