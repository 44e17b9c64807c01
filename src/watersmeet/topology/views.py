"""Queries and views as outputs in the order in which they depend on each other, with the settings that each has.

A view is a named query whose answers are rows of a derived stream; subqueries and common table expressions are views
without a name of their own. Only views that are read take part, each once, however many queries read it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from watersmeet.errors import InputError, TopologyError
from watersmeet.query.early import grouped_early
from watersmeet.query.model import Output, Target
from watersmeet.query.sql import parse_script
from watersmeet.query.sql.script import streams_named
from watersmeet.topology.model import Query, Stream, Topology


@dataclass(frozen=True)
class Asked:
    """An output, and the query or view that it belongs to; the settings of a branch are those of that."""

    output: Output
    owner: Query
    site: str | None  # where its answers are wanted; None where the owner has to say and does not

    @property
    def queries(self) -> dict[str, Query]:
        """A query for each branch, under its name."""
        own = self.output.target.name == self.owner.name
        names = [name for name, _ in self.output.branches]
        if own and len(names) == 1:
            return {self.owner.name: self.owner if self.site is None else replace(self.owner, site=self.site)}
        site = self.site or self.owner.site
        return {name: replace(self.owner, name=name, plan=None, site=site) for name in names}


def outputs_of(topology: Topology, queries: Iterable[Query], views: Iterable[Query] = ()) -> tuple[Asked, ...]:
    """What some queries ask for, or views that nobody may read, and before it the derived streams that it reads."""
    return tuple(_Expansion(topology).all_of(queries, views))


def views_under(asked: Iterable[Asked], owner: Query) -> tuple[str, ...]:
    """The views that a query or view reads, directly or not."""
    every = list(asked)
    owners = {asked.output.target.name: asked.owner.name for asked in every if asked.output.target.is_stream}
    found: set[str] = set()
    reached = {owner.name}
    while reached:
        found |= reached
        read = {name for asked in every if asked.owner.name in reached for name in asked.output.streams}
        reached = {owners[name] for name in read if name in owners} - found
    return tuple(sorted(found - {owner.name}))


def with_outputs(topology: Topology, asked: Sequence[Asked], schemas: Mapping[str, str] | None = None) -> Topology:
    """The topology with derived streams as streams, and a query for each branch.

    `schemas` are those of derived streams that are known; columns of others are taken for texts.
    """
    streams = {stream.name: stream for stream in topology.streams}
    known = {query.name for query in topology.queries}
    branches = [(name, query) for entry in asked for name, query in entry.queries.items() if name not in known]
    for entry in asked:
        if entry.output.target.is_stream:
            name = entry.output.target.name
            texts = ", ".join(f"{_quoted(column)} string" for column in entry.output.columns)
            schema = (schemas or {}).get(name, texts)
            streams[name] = Stream(name, event_time="", schema=schema, site=entry.site or "", is_derived=True)
    tables = {table.name: table for table in topology.tables}
    stats = dict(topology.stats.streams)
    for owner in {query.name: query for query in (*topology.queries, *(entry.owner for entry in asked))}.values():
        for name, read_as in owner.read_as:
            base = next((table for table in topology.tables if table.name.casefold() == name.casefold()), None)
            if base is not None and read_as not in tables:
                tables[read_as] = replace(base, name=read_as, read_of=base.name)
                stats |= {read_as: stats[base.name]} if base.name in stats else {}
    return replace(
        topology,
        streams=tuple(streams.values()),
        tables=tuple(tables.values()),
        stats=replace(topology.stats, streams=stats),
        views=tuple(query for _, query in branches),
        derived=tuple(entry.output for entry in asked if entry.output.target.is_stream),
    )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


class _Expansion:
    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._views = {view.name.casefold(): view for view in topology.views}
        self._columns: dict[str, Sequence[str]] = dict(topology.columns)
        self._sites = dict(topology.homes)
        self._derived = {stream.name for stream in topology.streams if stream.is_derived}
        self._found: list[Asked] = []
        every = (*topology.queries, *topology.views)
        self._owners = {query.name.casefold(): query for query in every}  # by name of a query or of one of its SELECTs

    def all_of(self, queries: Iterable[Query], views: Iterable[Query]) -> list[Asked]:
        for view in views:
            if view.name not in self._sites:
                self._read(view, Target(view.name, is_stream=True), ())
        for query in queries:
            self._read(query, Target(query.name), ())
        return self._found

    def _read(self, query: Query, target: Target, path: tuple[str, ...]) -> None:
        if query.name in path:
            circle = " -> ".join([*path[path.index(query.name) :], query.name])
            raise TopologyError(f"views read each other in a circle: {circle}; a view cannot depend on itself")
        with _naming(query, target):
            named = streams_named(query.sql)
        for name in sorted(named & self._views.keys()):
            view = self._views[name]
            if view.name not in self._sites:
                self._read(
                    view, Target(view.name, is_stream=True), (*path, *([query.name] if target.is_stream else []))
                )
        with _naming(query, target):
            outputs = self._parsed(query, query.sql, target)
            if query.group_early:
                outputs = self._parsed(query, self._grouped_early(outputs), target)
            if query.plan is not None and len(outputs[-1].branches) > 1:
                raise InputError("plan: the steps are those of one SELECT; make views of the parts of the UNION ALL")
        for output in outputs:
            for name, _ in output.branches:
                owner = self._owners.setdefault(name.casefold(), query)
                if query.name not in (name, owner.name) and owner.sql != query.sql:
                    raise TopologyError(
                        f"a SELECT of {query.name!r} is given the name {name!r}, which is taken by {owner.name!r}; "
                        "rename one of the two"
                    )
            self._add(query, output)

    def _parsed(self, query: Query, sql: str, target: Target) -> tuple[Output, ...]:
        return parse_script(
            query.name,
            sql,
            self._columns,
            allow_cross=query.allow_cross,
            event_times=self._topology.event_times,
            tables=self._topology.table_windows,
            derived=self._derived,
            into=target,
        )

    def _grouped_early(self, outputs: Sequence[Output]) -> str:
        """A statement of one SELECT over streams, written over groups of each of them."""
        streams = {stream.name: stream for stream in self._topology.streams if not stream.is_derived}
        if len(outputs) > 1 or len(outputs[0].branches) > 1 or not outputs[0].streams <= streams.keys():
            raise InputError("group_early is for one SELECT over streams; make views of other parts, or leave it out")
        ((_, parsed),) = outputs[0].branches
        return grouped_early(parsed, {name: streams[name].types for name in outputs[0].streams})

    def _add(self, query: Query, output: Output) -> None:
        site = self._site(query, output)
        self._found.append(Asked(_with_tables(output, dict(query.read_as)), query, site))
        name = output.target.name
        if output.target.is_stream:
            if site is None:
                raise TopologyError(
                    f"view {name!r} reads streams of several sites and does not say where its rows are to be; "
                    f"add `site:` with one of: {', '.join(self._topology.site_names)}"
                )
            self._columns[name], self._sites[name] = output.columns, site
            self._derived.add(name)

    def _site(self, query: Query, output: Output) -> str | None:
        """Where the answers are wanted: a derived stream is where all that it reads is, if it does not say."""
        if not output.target.is_stream:
            return None
        homes = {self._sites[stream] for stream in output.streams if stream not in self._topology.table_windows}
        if query.site is None or output.target.name != query.name:
            if len(homes) == 1:
                return homes.pop()
            if len(self._topology.site_names) == 1:
                return self._topology.site_names[0]
        return query.site


def _with_tables(output: Output, names: Mapping[str, str]) -> Output:
    """An output whose tables are those that were read for its query."""
    if not names:
        return output
    branches = (
        (
            name,
            replace(
                query,
                sources=tuple(
                    replace(source, stream=names.get(source.stream, source.stream)) for source in query.sources
                ),
            ),
        )
        for name, query in output.branches
    )
    return replace(output, branches=tuple(branches))


@contextmanager
def _naming(query: Query, target: Target) -> Iterator[None]:
    """Errors with the name of the view that they are about."""
    try:
        yield
    except InputError as error:
        if not target.is_stream or str(error).startswith("view "):
            raise
        raise type(error)(f"view {query.name!r}: {error}") from None


def readers_of(asked: Sequence[Asked]) -> Iterator[tuple[str, list[str]]]:
    """Each derived stream, and the outputs that read it."""
    for entry in asked:
        if entry.output.target.is_stream:
            name = entry.output.target.name
            yield name, [other.output.target.name for other in asked if name in other.output.streams]
