"""A PIER node (sections 3.3.2 and 3.3.8): it takes op-graphs, runs them over the DHT, and stands proxy for its clients.

An op-graph begins when it arrives and ends when its duration is over. There is no other synchronisation: tuples that
come before it wait in the DHT, or at their port, until it has begun.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from watersmeet.program.pier.algorithms import Algorithm
from watersmeet.program.pier.dataflow import PreparedGraph, RunningGraph, prepare
from watersmeet.program.pier.graph import UflQuery, expanded
from watersmeet.program.pier.runtime import ERROR_SCHEMA, Cancel, Context, Counters, Receiver, Take
from watersmeet.program.pier.tuples import Batch, grouped, well_formed
from watersmeet.program.pier.ufl.parse import parse_ufl
from watersmeet.sim.dht.messages import Item
from watersmeet.sim.dht.node import Dht, Passage
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.identifiers import identifier_of
from watersmeet.sim.overlays.router import Address
from watersmeet.sim.pier.aggregation.continuous import AggregationNode
from watersmeet.sim.pier.aggregation.query import AggregationQuery, CombiningAlgebra
from watersmeet.sim.pier.client import ClientQuery
from watersmeet.sim.pier.indexes.distribution_tree import Broadcast, DistributionSettings, DistributionTree
from watersmeet.sim.pier.indexes.pht.calls import NODES, REQUESTS, index_of
from watersmeet.sim.pier.indexes.pht.messages import PhtRequest
from watersmeet.sim.pier.indexes.pht.tree import LookupResult, PrefixHashTree
from watersmeet.sim.pier.messages import (
    FetchedMessage,
    FetchMessage,
    GraphsMessage,
    PortMessage,
    Published,
    ReplyMessage,
)
from watersmeet.sim.pier.sources import query_database, read_csv

PORT_BUFFER_US = 60_000_000  # how long tuples wait at a port for a query that listens there
_HALF = 1 << 63  # keys of a trie have no sign
PORT_LIFETIME_US = 60_000_000  # of what is broadcast to a port: nodes that join within it get it too


class PierNode:
    """One node: the host of op-graphs, and the proxy of queries that are asked here."""

    def __init__(
        self,
        kernel: Kernel,
        dht: Dht,
        *,
        owner_address: Callable[[int], Address] | None = None,
        distribution: DistributionSettings = DistributionSettings(),  # noqa: B008 - it is frozen
    ) -> None:
        self.dht, self.address = dht, dht.node.address
        self.graphs: dict[tuple[str, str], RunningGraph] = {}  # by query and name
        self.queries: dict[str, ClientQuery] = {}  # that were asked here
        self.counters: dict[tuple[str, str], Counters] = {}  # of op-graphs, also those that have ended
        self.malformed_inputs = 0  # lines of files, and tuples of applications that are not what they say
        self.results_sent = 0  # tuples
        self.executes = True  # False: op-graphs are passed on and not run, as the baseline of an experiment
        self.clock_offset_us = 0  # between what the clock of op-graphs shows and virtual time
        self._kernel, self._owner_address = kernel, owner_address
        self._tree = DistributionTree(kernel, dht, self._spread, distribution)
        self._asked = 0
        self._tables: dict[str, list[Batch]] = {}
        self._inserted: dict[str, list[Take]] = {}
        self._ports: dict[str, list[Take]] = {}
        self._buffers: dict[str, list[tuple[int, Batch]]] = {}
        self._fetches: dict[int, Callable[[Sequence[Batch]], None]] = {}
        self._fetched_total = 0
        self._replies: dict[str, int] = {}  # messages sent to whoever asked, by query
        self._ranges: dict[str, PrefixHashTree] = {}
        dht.upcall(REQUESTS, self._asked_of_index, passages=[Passage.ARRIVED])
        dht.new_data(NODES, self._got_trie_node)
        dht.node.on_deliver(self._delivered)
        dht.node.on_direct(self._received)

    def start(self) -> None:
        """Become part of the distribution trees; the DHT is up already."""
        self._tree.start()

    # Applications.

    def publish(self, batch: Batch) -> None:
        """Add tuples to the table of this node that they name; those that are not what they say are dropped."""
        batch, malformed = well_formed(batch)
        self.malformed_inputs += malformed
        name = batch.schema.table
        self._tables.setdefault(name, []).append(batch)
        for take in tuple(self._inserted.get(name, ())):
            take(batch)

    def ask(self, query: str | UflQuery, *, on_reply: Callable[[ClientQuery], None] | None = None) -> ClientQuery:
        """Parse a query, send its op-graphs to the nodes that need them, and collect what comes back."""
        self._asked += 1
        query_id = f"q{self.address}.{self._asked}"
        parsed = parse_ufl(query) if isinstance(query, str) else query
        now_us = self._kernel.now_us
        graphs = prepare(expanded(parsed, query_id, self.now_us))
        once = tuple(sorted({name for graph in graphs for name in graph.once}))
        client = ClientQuery(query_id, now_us, now_us + max(graph.duration_us for graph in graphs), once, on_reply)
        self.queries[query_id] = client
        self._disseminate(query_id, graphs)
        return client

    def expect(self, duration_us: int, once: tuple[str, ...]) -> ClientQuery:
        """Collect what comes back for a query that another node asks together with its own."""
        self._asked += 1
        query_id = f"q{self.address}.{self._asked}"
        now_us = self._kernel.now_us
        client = self.queries[query_id] = ClientQuery(query_id, now_us, now_us + duration_us, once)
        return client

    def stop(self) -> None:
        """Crash: op-graphs, tables and answers of this node are gone."""
        for graph in self.graphs.values():
            graph.stop()
        for state in (self.graphs, self._tables, self._inserted, self._ports, self._buffers, self._fetches):
            state.clear()
        for index in self._ranges.values():
            index.stop()
        self._tree.stop()
        self.dht.stop()

    # The life of an op-graph.

    def _disseminate(self, query_id: str, graphs: tuple[PreparedGraph, ...]) -> None:
        """Each op-graph goes to those who need it.

        By the equality index that is the owner of its key, by a range index whoever has published into its range, and
        by a distribution tree all nodes.
        """
        for graph in graphs:
            if graph.bounds is not None:
                self._to_publishers(query_id, graph, graph.bounds)
            elif graph.namespace is not None:
                message = GraphsMessage(query_id, self.address, (graph,), graph.duration_us)
                target = identifier_of(f"{graph.namespace}.{graph.resource}")
                self.dht.node.route(target, message, message.size_bytes)
        everywhere = tuple(graph for graph in graphs if graph.namespace is None)
        if everywhere:
            longest_us = max(graph.duration_us for graph in everywhere)
            message = GraphsMessage(query_id, self.address, everywhere, longest_us)
            self._tree.broadcast(message, message.size_bytes, longest_us)
            # Not when it comes back: it could wait behind results, longer than tuples that are sent here live.
            self._begin(message, 0)

    def _to_publishers(self, query_id: str, graph: PreparedGraph, bounds: tuple[int, int]) -> None:
        assert graph.namespace is not None, "a range is that of an index"

        def found(answer: LookupResult) -> None:
            message = GraphsMessage(query_id, self.address, (graph,), graph.duration_us)
            for address in sorted({published.address for published in _published(answer)}):
                self.dht.node.direct(address, message, message.size_bytes)
            if not answer.is_complete:
                row = (graph.graph.name, 0, "a part of the index did not answer", self.address)
                client = self.queries[query_id]
                client.take(self._kernel.now_us, self.address, "error", "", Batch(ERROR_SCHEMA, (row,)))

        low, high = bounds
        self.range_index(graph.namespace).range(low + _HALF, high + _HALF, found)

    def _begin(self, message: GraphsMessage, age_us: int) -> None:
        """Set op-graphs up; one that comes late, to a node that has just joined, runs as much shorter."""
        for prepared in message.graphs if self.executes else ():
            key = (message.query_id, prepared.graph.name)
            if key in self.counters or prepared.duration_us <= age_us:
                continue
            counters = self.counters[key] = Counters()
            reply = partial(self._reply, message.query_id, message.proxy, prepared.most_messages, counters)
            graph = self.graphs[key] = RunningGraph(prepared, Context(self, message.query_id, reply, counters))
            self._kernel.after(prepared.duration_us - age_us, self._end, key, graph)
            graph.start()

    def _end(self, key: tuple[str, str], graph: RunningGraph) -> None:
        graph.stop()
        if self.graphs.get(key) is graph:
            del self.graphs[key]

    def _reply(
        self,
        query_id: str,
        proxy: Address,
        most_messages: int | None,
        counters: Counters,
        kind: str,
        operator: str,
        batch: Batch,
        receiver: Receiver | None = None,
    ) -> None:
        sent = self._replies[query_id] = self._replies.get(query_id, 0) + 1
        if most_messages is not None and sent > most_messages:
            counters.withheld += 1
            return
        if kind == "result":
            self.results_sent += len(batch.rows)
        address, asked = (proxy, query_id) if receiver is None else receiver
        message = ReplyMessage(asked, kind, operator, batch)
        self.dht.node.direct(address, message, message.size_bytes)

    # Messages.

    def _delivered(self, origin: Address, target: int, payload: object, hops: int) -> None:
        if isinstance(payload, GraphsMessage):
            self._begin(payload, 0)

    def _spread(self, broadcast: Broadcast) -> None:
        match broadcast.payload:
            case GraphsMessage(longest_us=longest_us) as message:
                self._begin(message, longest_us - broadcast.lifetime_us)
            case PortMessage(port, batch):
                self._at_port(port, batch)

    def _received(self, sender: Address, payload: object) -> None:
        match payload:
            case GraphsMessage():
                self._begin(payload, 0)
            case ReplyMessage(query_id, kind, operator, batch):
                client = self.queries.get(query_id)
                if client is not None:
                    client.take(self._kernel.now_us, sender, kind, operator, batch)
            case PortMessage(port, batch):
                self._at_port(port, batch)
            case FetchMessage(request, table, column, value):
                reply = FetchedMessage(request, tuple(self._matching(table, column, value)))
                self.dht.node.direct(sender, reply, reply.size_bytes)
            case FetchedMessage(request, batches):
                found = self._fetches.pop(request, None)
                if found is not None:
                    found(batches)

    def _at_port(self, port: str, batch: Batch) -> None:
        takes = self._ports.get(port)
        if takes:
            for take in tuple(takes):
                take(batch)
        else:
            self._buffers.setdefault(port, []).append((self._kernel.now_us, batch))

    def _matching(self, table: str, column: str, value: Any) -> list[Batch]:
        found = []
        for batch in self._tables.get(table, ()):
            place = batch.schema.place(column)
            rows = [] if place is None else [row for row in batch.rows if row[place] == value]
            if rows:
                found.append(Batch(batch.schema, rows))
        return found

    # The host of operators.

    @property
    def now_us(self) -> int:
        return self._kernel.now_us + self.clock_offset_us

    def after(self, delay_us: int, action: Callable[[], None]) -> Cancel:
        return partial(self._kernel.cancel, self._kernel.after(delay_us, action))

    def put(self, namespace: str, key: str, suffix: str, batch: Batch, lifetime_us: int) -> None:
        lifetime_us = self._lifetime_us(lifetime_us)
        self.dht.put(namespace, key, suffix, batch, lifetime_us, batch.size_bytes, is_patient=True)

    def renew(self, namespace: str, key: str, suffix: str, batch: Batch, lifetime_us: int) -> None:
        def renewed(is_there: bool) -> None:
            if not is_there:
                self.put(namespace, key, suffix, batch, lifetime_us)

        self.dht.renew(namespace, key, suffix, self._lifetime_us(lifetime_us), renewed)

    def send(self, namespace: str, key: str, suffix: str, batch: Batch, lifetime_us: int) -> None:
        self.dht.send(namespace, key, suffix, batch, self._lifetime_us(lifetime_us), batch.size_bytes)

    def get(self, namespace: str, key: str, found: Callable[[Sequence[Batch]], None]) -> None:
        self.dht.get(namespace, key, lambda items: found(_batches(items)))

    def index(self, name: str, key: int, suffix: str, batch: Batch, lifetime_us: int) -> None:
        published = Published(self.address, batch)
        self.range_index(name).insert(key + _HALF, suffix, published, lifetime_us, published.size_bytes)

    def look_up(self, name: str, low: int, high: int, found: Callable[[Sequence[Batch]], None]) -> None:
        def answered(answer: LookupResult) -> None:
            found(grouped((each.batch.schema, row) for each in _published(answer) for row in each.batch.rows))

        self.range_index(name).range(low + _HALF, high + _HALF, answered)

    def range_index(self, name: str) -> PrefixHashTree:
        """This node's part of a range index, which begins with the first who asks for it."""
        found = self._ranges.get(name)
        if found is None:
            found = self._ranges[name] = PrefixHashTree(self._kernel, self.dht, name)
            found.start()
        return found

    def _asked_of_index(self, item: Item) -> Item | None:
        request = item.value
        assert isinstance(request, PhtRequest)
        if request.index in self._ranges:
            return item  # served by the index itself
        self.range_index(request.index).serve(item)
        return None

    def _got_trie_node(self, item: Item) -> None:
        """Look after trie nodes that have moved here, of indexes that were not known here."""
        self.range_index(index_of(item.key))

    def stored(self, namespace: str) -> Sequence[Batch]:
        return _batches(self.dht.local_scan(namespace))

    def on_stored(self, namespace: str, take: Take) -> Cancel:
        def stored(item: Item) -> None:
            if isinstance(item.value, Batch):
                take(item.value)

        return self.dht.new_data(namespace, stored)

    def on_passing(self, namespace: str, change: Callable[[Batch], Batch]) -> Cancel:
        def passing(item: Item) -> Item:
            if not isinstance(item.value, Batch):
                return item
            batch = change(item.value)
            return item if batch is item.value else replace(item, value=batch, size_bytes=batch.size_bytes)

        return self.dht.upcall(namespace, passing)

    def transmit(self, address: Address, port: str, batch: Batch) -> None:
        message = PortMessage(port, batch)
        self.dht.node.direct(address, message, message.size_bytes)

    def listen(self, port: str, take: Take) -> Cancel:
        takes = self._ports.setdefault(port, [])
        takes.append(take)
        oldest_us = self._kernel.now_us - PORT_BUFFER_US
        for came_us, batch in self._buffers.pop(port, ()):
            if came_us >= oldest_us:
                take(batch)
        return partial(_discard, takes, take)

    def owner_address(self, namespace: str, key: str) -> Address:
        assert self._owner_address is not None, "only a network that never changes has a directory"
        return self._owner_address(identifier_of(f"{namespace}.{key}"))

    def broadcast(self, port: str, batch: Batch) -> None:
        message = PortMessage(port, batch)
        self._tree.broadcast(message, message.size_bytes, PORT_LIFETIME_US)

    def aggregate(
        self,
        name: str,
        algorithm: Algorithm,
        period_us: int,
        begin_us: int,
        algebra: CombiningAlgebra,
        local: Callable[[int], Any],
        at_root: Callable[[int, Any, int], None],
    ) -> tuple[Callable[[int, Any], None], Cancel]:
        root = identifier_of(f"{name}.root")
        query = AggregationQuery(
            *(name, algorithm, algebra, root),
            root_address=self.address,  # nobody asks for it: roots are found by their point
            requester=self.address,
            nodes=1,
            epochs=None,
            period_us=period_us,
            start_us=begin_us - self.clock_offset_us,
        )
        node = AggregationNode(
            *(self._kernel, self.dht, query, lambda _, epoch: local(epoch)),
            at_root=lambda answer: at_root(answer.epoch, answer.partial, answer.nodes),
        )
        return node.add, node.stop

    def table(self, name: str) -> Sequence[Batch]:
        return tuple(self._tables.get(name, ()))

    def on_inserted(self, name: str, take: Take) -> Cancel:
        takes = self._inserted.setdefault(name, [])
        takes.append(take)
        return partial(_discard, takes, take)

    def fetch(
        self, address: Address, table: str, column: str, value: Any, found: Callable[[Sequence[Batch]], None]
    ) -> None:
        self._fetched_total += 1
        request = self._fetched_total
        self._fetches[request] = found
        message = FetchMessage(request, table, column, value)
        self.dht.node.direct(address, message, message.size_bytes, partial(self._not_fetched, request))

    def read_csv(self, path: str, table: str, types: dict[str, str]) -> Sequence[Batch]:
        batches, malformed = read_csv(path, table, types)
        self.malformed_inputs += malformed
        return batches

    def query_database(self, url: str, sql: str, table: str) -> Sequence[Batch]:
        return query_database(url, sql, table)

    def _lifetime_us(self, wanted_us: int) -> int:
        return min(wanted_us, self.dht.lifetime_max_us)

    def _not_fetched(self, request: int) -> None:
        found = self._fetches.pop(request, None)
        if found is not None:
            found(())


def _published(answer: LookupResult) -> list[Published]:
    return [entry.value for entry in answer.entries if isinstance(entry.value, Published)]


def _batches(items: Sequence[Item]) -> list[Batch]:
    return grouped(
        (item.value.schema, row) for item in items if isinstance(item.value, Batch) for row in item.value.rows
    )


def _discard(takes: list[Any], take: object) -> None:
    if take in takes:
        takes.remove(take)
