"""Queries, streams and topologies as text: what checkpoints, notes between sites and requests for a change carry.

Paths inside the topology's directory are written relative to it, so that a site on another machine finds its own. A
function of `foreach_batch` and a DataFrame cannot be written: the process that has them gives them.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeVar, get_type_hints

from watersmeet.errors import InputError
from watersmeet.program.storage.codec import decode, from_json, to_json
from watersmeet.topology.model import BatchFunction, Query, Sink, Source, Stream, Table, Topology

End = TypeVar("End", Source, Sink)


@dataclass(frozen=True)
class Definition:
    """What a SELECT of a deployment belongs to: a query or a view, with the views that it reads."""

    query: Query
    views: tuple[Query, ...] = ()
    is_view: bool = False


@dataclass(frozen=True)
class _QueryText:
    query: Query
    has_function: bool = False
    views: tuple[Query, ...] = ()
    is_view: bool = False


@dataclass(frozen=True)
class _FrameText:
    """A stream that is a DataFrame: what must be the same of it."""

    name: str
    site: str
    event_time: str
    watermark: str
    types: Mapping[str, str]


@dataclass(frozen=True)
class _StreamText:
    stream: Stream | None
    frame: _FrameText | None = None
    table: Table | None = None


def query_text(definition: Definition, directory: str) -> str:
    """What a query or a view asks for, and where its answers go."""
    query = definition.query
    moved = replace(
        query,
        foreach_batch=None,
        checkpoint=None,
        sink=_within(query.sink, directory),
        failed=None if query.failed is None else _within(query.failed, directory),
    )
    return to_json(_QueryText(moved, query.foreach_batch is not None, definition.views, definition.is_view))


def read_definition(text: str, directory: str, functions: Mapping[str, BatchFunction]) -> Definition:
    """What a text defines; its function is one of those that this process has."""
    found = from_json(_QueryText, text)
    query = found.query
    if found.has_function and query.name not in functions:
        raise InputError(
            f"query {query.name!r} gives its answers to a function (foreach_batch), which this process does not have; "
            "start it with a topology that has the query and its function"
        )
    moved = replace(
        query,
        foreach_batch=functions[query.name] if found.has_function else None,
        sink=_from(query.sink, directory),
        failed=None if query.failed is None else _from(query.failed, directory),
    )
    return Definition(moved, found.views, found.is_view)


def stream_text(stream: Stream, directory: str) -> str:
    """What a stream, a table or a view's rows are, and where they come from."""
    if stream.is_derived:
        return to_json(_StreamText(stream))
    if stream.source is None:
        frame = _FrameText(stream.name, stream.site, stream.event_time, stream.watermark, stream.types)
        return to_json(_StreamText(None, frame))
    late = None if stream.late is None else _within(stream.late, directory)
    moved = replace(stream, source=_within(stream.source, directory), late=late)
    return to_json(_StreamText(None, table=moved) if isinstance(moved, Table) else _StreamText(moved))


def read_stream(text: str, directory: str) -> Stream | None:
    """The stream or table that a text defines; None of a DataFrame."""
    found = from_json(_StreamText, text)
    stream = found.table or found.stream
    if stream is None or stream.source is None:
        return stream
    late = None if stream.late is None else _from(stream.late, directory)
    return replace(stream, source=_from(stream.source, directory), late=late)


def topology_text(topology: Topology) -> str:
    """A whole topology, for a process on this machine."""
    for query in topology.queries:
        if query.foreach_batch is not None:
            raise InputError(f"query {query.name!r} has a function, which cannot be handed to another process")
    return to_json({field.name: getattr(topology, field.name) for field in fields(topology) if field.init})


def read_topology(text: str) -> Topology:
    """The topology that `topology_text` wrote."""
    kinds = get_type_hints(Topology)
    return Topology(**{name: decode(kinds[name], value) for name, value in json.loads(text).items()})


def _within(end: End, directory: str) -> End:
    base = os.path.join(directory, "")
    if end.path is None or not os.path.isabs(directory) or not end.path.startswith(base):
        return end
    return replace(end, path=end.path[len(base) :])


def _from(end: End, directory: str) -> End:
    if end.path is None or os.path.isabs(end.path) or ":/" in end.path:
        return end
    return replace(end, path=os.path.join(directory, end.path))
