"""What a process knows of queries and streams, those that are to begin and those that are about to end among them.

All sites of a process share it. A query that was replaced is known twice, by the revision with which each began; a
definition that comes over a link is bound to its streams before a site promises to go over to it.
"""

import threading
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from watersmeet.errors import InputError
from watersmeet.program.finish.model import definition_name
from watersmeet.program.site.agreement import Versions
from watersmeet.program.site.changes import Change
from watersmeet.spark.binding import Bound
from watersmeet.spark.definitions import Definition, query_text, read_definition, read_stream, stream_text
from watersmeet.spark.outputs import bind_outputs
from watersmeet.stats.model import Stats
from watersmeet.topology.model import BatchFunction, Query, Stream, Table, Topology
from watersmeet.topology.views import Asked, views_under


class Catalogue:
    """Queries by what they ask for, streams by name, and how queries are bound to the schemas of streams."""

    def __init__(self, spark: SparkSession, topology: Topology, given: Topology | None = None) -> None:
        """`topology` has derived streams and a query for each branch; `given` is as a user writes it."""
        self._spark = spark
        self._lock = threading.RLock()
        self._topology = topology
        self.given = given or topology
        self._functions: dict[str, BatchFunction] = {}
        self._by_text: dict[str, Mapping[str, Bound]] = {}  # by branch
        self._defined: dict[str, Definition] = {}  # by what `Finish.definition` says
        self.bounds: MutableMapping[str, Bound] = {}  # by definition
        self.schemas: MutableMapping[str, StructType] = {}
        self.delays_us: MutableMapping[str, int] = {}  # of all streams
        self.give(topology)

    @property
    def topology(self) -> Topology:
        """Sites and links, and all streams that are known; queries are those that were asked for last."""
        return self._topology

    @property
    def directory(self) -> str:
        return self._topology.directory

    def give(self, topology: Topology) -> None:
        """Take the functions of a topology that somebody hands in, and its streams."""
        with self._lock:
            for query in topology.queries:
                if query.foreach_batch is not None:
                    self._functions[query.name] = query.foreach_batch
            self._know_streams(topology.sources)

    def _know_streams(self, streams: Iterable[Stream]) -> None:
        known = {stream.name: stream for stream in self._topology.sources}
        for stream in streams:
            known[stream.name] = stream
        self.delays_us.update({stream.name: stream.watermark_us for stream in known.values()})
        self._topology = replace(
            self._topology,
            streams=tuple(stream for stream in known.values() if not isinstance(stream, Table)),
            tables=tuple(stream for stream in known.values() if isinstance(stream, Table)),
        )

    def ask_for(self, topology: Topology) -> None:
        """A topology is asked for: links, statistics and queries are as it says."""
        with self._lock:
            self.give(topology)
            self.given = topology
            self._topology = replace(
                self._topology,
                queries=topology.queries,
                adapt=topology.adapt,
                links=topology.links,
                default_link=topology.default_link,
                stats=topology.stats,
            )

    # -- queries

    def know(self, name: str, defined: Definition, bound: Bound) -> None:
        """A SELECT of a query or a view is deployed under the name of a definition."""
        with self._lock:
            self._defined[name] = defined
            self.bounds[name] = bound
            self.schemas.update(bound.schemas)

    def defined(self, name: str) -> Definition:
        """What a definition of a deployment says."""
        return self._defined[name]

    def query(self, name: str) -> Query:
        """The query, or the view, that a definition of a deployment is of."""
        return self._defined[name].query

    def query_named(self, name: str) -> Query:
        """A query that is deployed; if it was replaced, as it is now: its sinks have stayed the same."""
        known = [key for key in self._defined if key.partition("~")[0] == name]
        return self.query(max(known, key=lambda key: int(key.partition("~")[2] or 1)))

    def text_of(self, definition: str) -> str:
        return query_text(self._defined[definition], self.directory)

    def stream_texts(self, names: Iterable[str]) -> dict[str, str]:
        """The definitions of some streams, tables, and views as what others read."""
        return {name: stream_text(self._topology.stream(name), self.directory) for name in sorted(set(names))}

    def remember(self, definition: Definition, bounds: Mapping[str, Bound]) -> str:
        """The text of a query or a view whose SELECTs are bound already."""
        with self._lock:
            text = query_text(definition, self.directory)
            self._by_text[text] = bounds
            return text

    def learn(self, change: Change) -> dict[str, tuple[Definition, Bound]]:
        """Bind the SELECTs that a change begins; InputError if that cannot be done here."""
        with self._lock:
            self.know_streams(change.streams)
            return {plan.query: self._bound(plan.query, plan.definition) for plan in change.plans if plan.is_fresh}

    def know_streams(self, texts: Mapping[str, str]) -> None:
        """Take streams from their definitions; what queries read that are deployed stays as it is."""
        with self._lock:
            used = {source.stream for bound in self.bounds.values() for source in bound.query.sources}
            read = (read_stream(text, self.directory) for name, text in texts.items() if name not in used)
            known = {stream.name: stream for stream in self._topology.sources}
            new = [stream for stream in read if stream is not None and stream != known.get(stream.name)]
            if new:
                self._know_streams(new)
                self._by_text.clear()  # they may be bound to what was said of these before

    def past_stream(self, versions: Versions, name: str) -> Stream | None:
        """A stream as it was when it was last read in a deployment; None if it never was, or is a DataFrame."""
        text = next((text for known, text in versions.streams.items() if known.casefold() == name.casefold()), None)
        return None if text is None else read_stream(text, self.directory)

    def adopt(self, change: Change, revision: int) -> None:
        """The queries that a change begins are deployed with a revision."""
        for name, (definition, bound) in self.learn(change).items():
            self.know(definition_name(name, revision), definition, bound)

    def resume(self, versions: Versions) -> None:
        """Know what the checkpoint of a site has, also of queries that end."""
        self.know_streams(versions.streams)
        used = {finish.definition: finish.query for joined in versions.deployment.joins for finish in joined.finishes}
        for name, text in versions.queries.items():
            if name in used and name not in self._defined and text:
                self.know(name, *self._bound(used[name], text))

    def _bound(self, branch: str, text: str) -> tuple[Definition, Bound]:
        if not text:
            raise InputError("a query begins of which nothing is said; ask for it by its topology")
        definition = read_definition(text, self.directory, self._functions)
        if text not in self._by_text:
            streams = tuple(stream for stream in self._topology.streams if not stream.is_derived)
            query, views = definition.query, definition.views
            views = (*views, query) if definition.is_view else views
            queries = () if definition.is_view else (query,)
            own = replace(self._topology, streams=streams, queries=queries, views=views, derived=(), stats=Stats())
            found = bind_outputs(self._spark, own, queries, views)
            self._know_streams(stream for stream in found.topology.streams if stream.is_derived)
            self._by_text[text] = found.bounds
        return definition, self._by_text[text][branch]


def definitions_of(topology: Topology, asked: Iterable[Asked]) -> dict[str, Definition]:
    """By SELECT, what it belongs to, of queries and the views that they read."""
    every = list(asked)
    views = {view.name: view for view in topology.views}
    found: dict[str, Definition] = {}
    for entry in every:
        is_view = entry.owner.name in views
        read = tuple(views[name] for name in views_under(every, entry.owner) if name in views)
        found |= {name: Definition(entry.owner, read, is_view) for name, _ in entry.output.branches}
    return found
