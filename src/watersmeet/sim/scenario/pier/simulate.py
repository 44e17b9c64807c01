"""Runs a scenario by PIER: peers publish tuples into tables of their own at their event times, and op-graphs join them.

A continuous query is asked before the first tuple, or at its start; a snapshot is asked when all tuples are there.
Fetch Matches and Bloom joins are snapshots: what is fetched, or is in a filter, must be there when it is asked for.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from watersmeet.errors import InputError
from watersmeet.program.pier.dataflow import prepare
from watersmeet.program.pier.expressions import compiled_row
from watersmeet.program.pier.graph import UflQuery
from watersmeet.program.pier.runtime import Receiver
from watersmeet.program.pier.sql.groups import ENDED, NODES, NODES_COLUMN
from watersmeet.program.pier.sql.plan import PrimaryIndex, indexes_of, plan_sql
from watersmeet.program.pier.sql.settings import PlanSettings
from watersmeet.program.pier.sql.sharing import SharedQueries, shared_queries
from watersmeet.program.pier.tuples import Batch, Schema
from watersmeet.program.pier.ufl.parse import parse_ufl
from watersmeet.program.pier.values import INTEGER, STRING, key_text
from watersmeet.program.rjoin.arrays import Longs
from watersmeet.query.bags import bag_of, nearly_bag_of
from watersmeet.query.model import JoinQuery
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.query.windows import Hop
from watersmeet.sim.dht.settings import DhtSettings
from watersmeet.sim.internet.latency import ConstantLatency
from watersmeet.sim.internet.retransmission import Retransmission
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.pier.client import ClientQuery
from watersmeet.sim.pier.network import HostTraffic, PierNetwork
from watersmeet.sim.rjoin.answers import ROW
from watersmeet.sim.scenario.model import PierMode, Scenario
from watersmeet.sim.scenario.network import HOP_US, DynamicSettings, Timeouts
from watersmeet.sim.scenario.pier.outcome import ErrorFigures, PierOutcome, PierQueryFigures, PierSummary, SharedFigures
from watersmeet.sim.scenario.pier.rows import answers_table, batch_of, stream_types
from watersmeet.sim.scenario.rjoin.feed import UserFeed, answers_schema, checked_streams, parsed_query
from watersmeet.sim.scenario.rjoin.settings import latency_of, overlay_of
from watersmeet.sim.scenario.sites_outcome import AnswerDelays, AnswersChecked
from watersmeet.sim.scenario.workload import UserLoad

Progress = Callable[[int, int], object]  # tuples published, of how many
TAPPED_AT = "#peer"  # a column of what has been tapped: where
_SECOND_US = 1_000_000
_LONGEST_US = 3_600 * _SECOND_US
_AGAIN_US = 5_000_000  # until a query that is to be asked together with others is sent again
_QUERY = Schema.of("query", {"name": STRING, "sql": STRING})
_SHARED_WAITS = 6  # of records, of entries and of windows with several panes, and of the first groups
_TREE_WAITS = 12  # for an answer of an aggregation tree: at nodes, level by level with timeouts, and for windows


@dataclass(frozen=True, slots=True)
class _Asked:
    """A query as it is asked."""

    name: str
    home: int
    graphs: UflQuery
    join: JoinQuery | None  # None: it was given as UFL
    start_us: int | None
    indexes: tuple[PrimaryIndex, ...] = ()
    counts_nodes: bool = False  # answers say how many nodes are in them


def simulate_pier(
    scenario: Scenario, *, progress: Progress = lambda done, total: None, check: bool = True
) -> PierOutcome:
    """Run a scenario to its end."""
    load = scenario.load
    if not isinstance(load, UserLoad):
        raise InputError("system pier takes streams and queries of your own; a generated workload is RJoin's")
    schemas, event_times = checked_streams(load)
    feed = UserFeed.of(load, event_times)
    chance, users = np.random.default_rng([scenario.network.seed, 5]), scenario.users

    def drawn() -> int:
        return users[int(chance.integers(len(users)))]

    homes = [drawn() if asked.home is None else asked.home for asked in load.queries]
    published_at = [drawn() if published.home is None else published.home for published in load.streams]
    is_snapshot = scenario.pier.mode is PierMode.SNAPSHOT
    span_us = 0 if is_snapshot else feed.last_us - feed.first_us + _SECOND_US
    drain_us = scenario.pier.drain_us + _last_windows_us(load, scenario.pier.plan)
    settings = replace(scenario.pier.plan, duration_s=(span_us + drain_us) / 1e6)
    asked = [_asked(scenario, place, home, schemas, event_times, settings) for place, home in enumerate(homes)]
    pier = _network(scenario)
    pier.settle()
    epoch_us = feed.first_us - pier.kernel.now_us - _SECOND_US
    pier.show_time(epoch_us)
    shared = _shared(scenario, asked, schemas, event_times, settings)
    together = {name for group in shared for name in group.names}
    alone = [query for query in asked if query.name not in together]
    run = _Run(scenario, pier, feed, asked, epoch_us, settings, shared)
    before = pier.traffic
    _start_churn(scenario, pier)
    if not is_snapshot:
        for query in alone:
            pier.kernel.at(run.begins_us(query.start_us), run.ask, query, priority=-1)
        for group in shared:
            pier.kernel.at(run.begins_us(group.family.start_us), run.ask_together, group, priority=-1)
    for stream, ts_us, rows in feed.parts():
        published = load.streams[stream]
        if not is_snapshot:
            pier.kernel.run(max(pier.kernel.now_us, ts_us - epoch_us))
        for row in range(rows.num_rows) if published.is_scattered else (None,):
            node = published_at[stream] if row is None else drawn()
            run.publish(node, published.stream.name, rows if row is None else rows.slice(row, 1))
        progress(run.tuples, feed.tuples)
    if is_snapshot:
        pier.kernel.run(pier.kernel.now_us + 1)
        before = pier.traffic
        for query in alone:
            run.ask(query)
        for group in shared:
            run.ask_together(group)
    latest_us = max([pier.kernel.now_us, *((query.start_us or 0) - epoch_us for query in asked)])
    pier.kernel.run(latest_us + drain_us)
    if pier.churn is not None:
        pier.churn.stop()
    pier.kernel.run(pier.kernel.now_us + drain_us)
    outcome = run.outcome(before.messages, before.bytes, before.inbound_bytes, event_times, schemas, check)
    for each in load.queries:
        if each.query.sink.path is not None:
            outcome.write(each.query.name, Path(each.query.sink.path))
    return outcome


def pier_standing(scenario: Scenario, until_us: int) -> HostTraffic:
    """What nodes send for their distribution trees until an instant, although nobody asks anything."""
    pier = _network(scenario)
    pier.settle()
    before = pier.traffic
    pier.kernel.run(until_us)
    after = pier.traffic
    return HostTraffic(after.messages - before.messages, after.bytes - before.bytes, after.inbound_bytes)


def _last_windows_us(load: UserLoad, plan: PlanSettings) -> int:
    """How long after the last tuple the last groups are answered: when their window has ended, and all have waited."""
    parsed = [parse_query(each.query.sql, load.columns, allow_cross=True) for each in load.queries if each.ufl is None]
    windows = [query.grouping.window for query in parsed if query.grouping is not None]
    lengths = [window.length_us for window in windows if isinstance(window, Hop)]
    waits = _SHARED_WAITS if plan.aggregation is None else _TREE_WAITS
    return max(lengths) + round(waits * plan.group_wait_s * 1e6) if lengths else 0


def ufl_of(scenario: Scenario) -> dict[str, UflQuery]:
    """The op-graphs that the queries of a scenario become, by name; those that are answered together by all names."""
    return {name: graphs for name, (graphs, _) in explained(scenario).items()}


def explained(scenario: Scenario) -> dict[str, tuple[UflQuery, SharedFigures | None]]:
    """The op-graphs of queries, and what those that are answered together have in common."""
    load = scenario.load
    if not isinstance(load, UserLoad):
        raise InputError("system pier takes streams and queries of your own; a generated workload is RJoin's")
    schemas, event_times = checked_streams(load)
    plan = scenario.pier.plan
    found = [_asked(scenario, place, 0, schemas, event_times, plan) for place in range(len(load.queries))]
    graphs: dict[str, tuple[UflQuery, SharedFigures | None]] = {each.name: (each.graphs, None) for each in found}
    for group in _shared(scenario, found, schemas, event_times, plan):
        receivers = [Receiver(0, f"q0.{number}") for number in range(1, 1 + len(group.names))]
        together = group.graphs(stream_types(schemas, event_times), plan, receivers)
        graphs[", ".join(group.names)] = together, _figures_of(group)
        for name in group.names:
            del graphs[name]
    return graphs


def _shared(
    scenario: Scenario,
    asked: Sequence[_Asked],
    schemas: Mapping[str, pa.Schema],
    event_times: Mapping[str, str],
    settings: PlanSettings,
) -> list[SharedQueries]:
    """The queries that are answered together."""
    if not scenario.pier.shares:
        return []
    dynamic = scenario.dynamic
    joins = {each.name: (each.join, each.start_us) for each in asked if each.join is not None}
    is_at_rest = dynamic is None or (dynamic.churn is None and not dynamic.loss and dynamic.timeouts is Timeouts.IDEAL)
    return shared_queries(joins, stream_types(schemas, event_times), settings, may_subtract=is_at_rest)


def _asked(
    scenario: Scenario,
    place: int,
    home: int,
    schemas: Mapping[str, pa.Schema],
    event_times: Mapping[str, str],
    settings: PlanSettings,
) -> _Asked:
    load = scenario.load
    assert isinstance(load, UserLoad)
    submitted = load.queries[place]
    query = submitted.query
    try:
        if submitted.ufl is not None:
            graphs = parse_ufl(submitted.ufl)
            prepare(graphs)
            return _Asked(query.name, home, graphs, None, query.start_us)
        join = parsed_query(query.name, query.sql, query.allow_cross, load, schemas)
        graphs = plan_sql(join, stream_types(schemas, event_times), settings, query.start_us)
    except InputError as error:
        named = f"query {query.name!r}: "
        raise type(error)(str(error) if str(error).startswith(named) else f"{named}{error}") from None
    counts_nodes = join.grouping is not None and settings.aggregation is not None
    return _Asked(query.name, home, graphs, join, query.start_us, indexes_of(join, settings), counts_nodes)


def _network(scenario: Scenario) -> PierNetwork:
    network, dynamic = scenario.network, scenario.dynamic or DynamicSettings()
    kernel = Kernel(network.seed)
    hop_us = network.hop_us or HOP_US.get(network.latency, 0)
    return PierNetwork(
        kernel,
        latency_of(network) or ConstantLatency(hop_us),
        overlay_of(network),
        access_bps=dynamic.access_bps,
        congestion=dynamic.congestion,
        loss=dynamic.loss,
        retransmission=Retransmission() if dynamic.timeouts is Timeouts.MEASURED else None,
        dht=DhtSettings(replicas=scenario.pier.replicas),
        upkeep=dynamic.churn is not None or dynamic.loss > 0,
        trees=scenario.pier.trees,
    )


def _start_churn(scenario: Scenario, pier: PierNetwork) -> None:
    churn = None if scenario.dynamic is None else scenario.dynamic.churn
    if churn is not None:
        pier.start_churn(churn.distribution, set(scenario.users), churn.graceful_fraction)


class _Run:
    """A simulation under way."""

    def __init__(
        self,
        scenario: Scenario,
        pier: PierNetwork,
        feed: UserFeed,
        asked: Sequence[_Asked],
        epoch_us: int,
        settings: PlanSettings,
        shared: Sequence[SharedQueries],
    ) -> None:
        self._settings, self._shared = settings, shared
        self._epoch_us = epoch_us  # event time when the virtual time is 0
        self._scenario, self._pier, self._feed, self._asked = scenario, pier, feed, asked
        self._clients: dict[str, ClientQuery] = {}
        self._indexes = sorted({index for query in asked for index in query.indexes}, key=lambda each: each.namespace)
        self._published_us: dict[int, int] = {}  # by id
        self.tuples = 0

    def ask(self, query: _Asked) -> None:
        """Ask a query now."""
        self._clients[query.name] = self._pier.nodes[query.home].ask(query.graphs)

    def begins_us(self, start_us: int | None) -> int:
        """When a query that counts from an instant is asked, in virtual time."""
        return max(self._pier.kernel.now_us, 0 if start_us is None else start_us - self._epoch_us)

    def ask_together(self, group: SharedQueries) -> None:
        """Ask queries that share their work: the others who ask send theirs to the first, who asks them all."""
        pier, load = self._pier, self._scenario.load
        assert isinstance(load, UserLoad)
        schemas, event_times = checked_streams(load)
        asked = {query.name: query for query in self._asked}
        sql = {each.query.name: each.query.sql for each in load.queries}
        homes = [asked[name].home for name in group.names]
        duration_us = round(self._settings.duration_s * 1e6)
        receivers = []
        for name, home, once in zip(group.names, homes, group.once, strict=True):
            client = self._clients[name] = pier.nodes[home].expect(duration_us, once)
            receivers.append(Receiver(home, client.query_id))
        graphs = group.graphs(stream_types(schemas, event_times), self._settings, receivers)
        first, port = homes[0], f"shared.{receivers[0].query_id}"
        missing = {name for name, home in zip(group.names, homes, strict=True) if home != first}

        def came(batch: Batch) -> None:
            was_missing = bool(missing)
            missing.difference_update(row[0] for row in batch.rows)
            if was_missing and not missing:
                pier.nodes[first].ask(graphs)

        def send(name: str, home: int) -> None:
            if name in missing:
                pier.nodes[home].transmit(first, port, Batch(_QUERY, [(name, sql[name])]))
                pier.kernel.after(_AGAIN_US, send, name, home)

        if not missing:
            pier.nodes[first].ask(graphs)
            return
        pier.nodes[first].listen(port, came)
        for name, home in zip(group.names, homes, strict=True):
            send(name, home)

    def publish(self, node: int, stream: str, rows: pa.Table) -> None:
        """Let a node publish rows into its table, and into the indexes that queries read."""
        batch = batch_of(stream, rows, node)
        self.tuples += rows.num_rows
        for number in rows.column(ROW).to_pylist():
            self._published_us[number] = self._pier.kernel.now_us
        for index in self._indexes:
            if index.stream == stream:
                self._place(index, batch)
        self._pier.nodes[node].publish(batch)

    def _place(self, index: PrimaryIndex, batch: Batch) -> None:
        kernel, _ = compiled_row(index.keys, batch.schema)
        for number, row in enumerate(batch.rows):
            key = key_text(kernel(row))
            if key is not None:
                suffix = str(row[-2]) if row else str(number)
                self._pier.place(index.namespace, key, suffix, Batch(batch.schema, (row,)), _LONGEST_US)

    def outcome(
        self,
        messages: int,
        sent_bytes: int,
        inbound_bytes: Sequence[int],
        event_times: Mapping[str, str],
        schemas: Mapping[str, pa.Schema],
        check: bool,
    ) -> PierOutcome:
        """Sum up; messages and bytes are counted from what they were."""
        pier, scenario = self._pier, self._scenario
        tables = self._published(schemas)
        answers, figures, delays_us = {}, {}, {}
        for query in self._asked:
            client = self._clients[query.name]
            answers[query.name] = table = _answers(query, client, schemas)
            checked = None
            if check and query.join is not None:
                bag = bag_of if query.join.grouping is None else nearly_bag_of
                wanted = bag(answer(query.join, tables, event_times, start_us=query.start_us))
                came = bag(table.select([item.name for item in query.join.output]))
                checked = AnswersChecked(wanted.total(), (wanted & came).total(), (came - wanted).total())
            delays_us[query.name] = self._delays_us(client)
            figures[query.name] = self._figures(query, client, delays_us[query.name], checked)
        traffic, churn = pier.traffic, pier.churn
        nodes = [*pier.nodes.values(), *pier.gone]
        busiest = [
            now - then for now, then in zip(traffic.inbound_bytes, [*inbound_bytes, *[0] * len(nodes)], strict=False)
        ]
        counters = [each for node in nodes for each in node.counters.values()]
        summary = PierSummary(
            nodes=scenario.network.nodes,
            overlay=scenario.network.overlay.value,
            latency=scenario.network.latency.value,
            method=scenario.pier.plan.method.value,
            transport=scenario.pier.plan.transport.value,
            mode=scenario.pier.mode.value,
            seed=scenario.network.seed,
            tuples=self.tuples,
            queries=figures,
            messages=traffic.messages - messages,
            bytes=traffic.bytes - sent_bytes,
            most_inbound_bytes=max(busiest, default=0),
            mean_inbound_bytes=sum(busiest) / max(1, scenario.network.nodes),
            lost=pier.net.lost_total,
            retransmitted=pier.net.retransmitted_total,
            malformed=sum(sum(each.malformed.values()) for each in counters)
            + sum(node.malformed_inputs for node in nodes),
            withheld=sum(each.withheld for each in counters),
            late=sum(each.late for each in counters),
            joins=0 if churn is None else churn.joins,
            failures=0 if churn is None else churn.failures,
            leaves=0 if churn is None else churn.leaves,
            virtual_us=pier.kernel.now_us,
            shared=tuple(map(_figures_of, self._shared)),
        )
        return PierOutcome(summary, answers, delays_us, self._tapped())

    def _tapped(self) -> dict[tuple[str, str], pa.Table]:
        """Copies of tuples that have come, with the node that each was tapped at."""
        found: dict[tuple[str, str], list[Batch]] = defaultdict(list)
        for name, client in self._clients.items():
            for node, operator, batch in client.taps:
                schema = Schema.of(batch.schema.table, {**batch.schema.columns, TAPPED_AT: INTEGER})
                found[name, operator].append(Batch(schema, [(*row, node) for row in batch.rows]))
        tables = {}
        for key, batches in sorted(found.items(), key=lambda item: item[0]):
            names = list(dict.fromkeys(name for batch in batches for name in batch.schema.names))
            tables[key] = answers_table(names, None, batches)
        return tables

    def _published(self, schemas: Mapping[str, pa.Schema]) -> dict[str, pa.Table]:
        load = self._scenario.load
        assert isinstance(load, UserLoad)
        return {
            published.stream.name: table.select(schemas[published.stream.name].names)
            for published, table in zip(load.streams, self._feed.tables, strict=True)
        }

    def _delays_us(self, client: ClientQuery) -> Longs:
        """How long after its last tuple, or the end of its window, each answer came; none for DISTINCT and UFL."""
        delays = []
        for came_us, batch in client.results:
            places = [place for place, name in enumerate(batch.schema.names) if name.startswith("#id")]
            for row in batch.rows if places else ():
                delays.append(came_us - max(self._published_us[row[place]] for place in places))
            if (ended := batch.schema.place(ENDED)) is not None:
                delays += [came_us + self._epoch_us - row[ended] for row in batch.rows]
        return np.array(delays, np.int64)

    def _figures(
        self, query: _Asked, client: ClientQuery, delays_us: Longs, checked: AnswersChecked | None
    ) -> PierQueryFigures:
        is_stream = self._scenario.pier.mode is PierMode.CONTINUOUS
        times = [came_us - client.asked_us for came_us, _ in client.results]
        return PierQueryFigures(
            home=query.home,
            answers=client.count,
            repeated=client.repeated,
            first_us=times[0] if times else None,
            last_us=times[-1] if times else None,
            delays=AnswerDelays.of(delays_us) if is_stream else None,
            checked=checked,
            errors=_errors(client),
            taps=dict(Counter(operator for _, operator, batch in client.taps for _ in batch.rows)),
        )


def _errors(client: ClientQuery) -> tuple[ErrorFigures, ...]:
    tuples: Counter[tuple[str, str]] = Counter()
    nodes: dict[tuple[str, str], set[int]] = defaultdict(set)
    for sender, batch in client.errors:
        for operator, count, reason, _ in batch.rows:
            tuples[operator, reason] += count
            nodes[operator, reason].add(sender)
    return tuple(ErrorFigures(*key, count, len(nodes[key])) for key, count in tuples.most_common())


def _figures_of(group: SharedQueries) -> SharedFigures:
    sharing = group.sharing
    return SharedFigures(group.names, sharing.fragments, len(sharing.entries) or None, sharing.gain)


def _answers(query: _Asked, client: ClientQuery, schemas: Mapping[str, pa.Schema]) -> pa.Table:
    batches = [batch for _, batch in client.results]
    if query.join is None:
        names = list(dict.fromkeys(name for batch in batches for name in batch.schema.names))
        return answers_table(names, None, batches)
    like = answers_schema(query.join, schemas)
    table = answers_table([item.name for item in query.join.output], like, batches)
    if not query.counts_nodes:
        return table
    return table.append_column(NODES_COLUMN, answers_table([NODES], None, batches).column(NODES).cast(pa.int64()))
