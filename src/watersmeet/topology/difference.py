"""What is different between two topologies, and what of it cannot be changed while queries run.

A query that asks for something else is replaced: the old one ends and the new one begins at the same instant, in the
same sink. So is a view, and with it whatever reads it. What stored rows, links and sinks depend on stays as it is.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from watersmeet.errors import InputError
from watersmeet.query.sql import canonical_sql
from watersmeet.topology.model import Link, Query, Sink, Source, Stream, Topology
from watersmeet.topology.views import outputs_of

_PLANNING = ("plan", "planner", "objective", "max_delay", "barred", "parts", "partition", "assume_defaults", "adapt")
_AS_ANOTHER = "add it as a query of another name and remove this one"
_ANEW = "give it another name, or stop and begin anew with --fresh"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is different: what kind of thing it is, its name, and what becomes of it."""

    kind: str  # query, stream, link, plan, sink, ...
    name: str
    change: str
    detail: str = ""
    refused: str = ""  # why it cannot be changed while queries run, and what to do


@dataclass(frozen=True)
class Differences:
    """All differences, and the queries that begin, end, are replaced by others, or are to be planned again.

    Views are among those that begin, end or are replaced as queries that read them do.
    """

    rows: tuple[Difference, ...]
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    replanned: tuple[str, ...] = ()
    begun: tuple[str, ...] = ()  # SELECTs of queries and views that begin, those of replaced ones among them
    ended: tuple[str, ...] = ()  # SELECTs that end and that nothing of the same name follows

    @property
    def refused(self) -> str:
        """Why this cannot be done while queries run; empty if it can."""
        return "; ".join(row.refused for row in self.rows if row.refused)

    @property
    def is_same_queries(self) -> bool:
        """Whether the same is asked for, perhaps by other plans."""
        return not (self.begun or self.ended)


def differences(before: Topology, after: Topology) -> Differences:
    """What is to be done to go from one topology to another while its queries run."""
    if not after.queries:
        raise InputError("no query would be left; stop the run instead")
    before, after = without_names(before), without_names(after)
    old, new = ({query.name: query for query in topology.queries} for topology in (before, after))
    running, asked = _selects(before), _selects(after)
    is_other = {name for name in running.keys() & asked.keys() if running[name] != asked[name]}
    added = tuple(name for name in new if name not in old)
    removed = tuple(name for name in old if name not in new)
    both = [name for name in new if name in old]
    replaced = tuple(name for name in both if name in is_other)
    begun = {name for owner in asked if owner not in running or owner in is_other for name in asked[owner].names}
    gone = {name for owner in running if owner not in asked or owner in is_other for name in running[owner].names}
    links = list(_links(before, after))
    stats = before.stats != after.stats or before.adapt != after.adapt
    replanned = tuple(
        name
        for name in both
        if name not in replaced and (links or stats or _planning(before, old[name], after, new[name]))
    )
    rows = [Difference("query", name, "new", _line(new[name].sql)) for name in added]
    rows += [Difference("sink", name, "new", _shown(new[name].sink)) for name in added]
    rows += [Difference("query", name, "ends") for name in removed]
    rows += [Difference("query", name, "replaced", _line(new[name].sql)) for name in replaced]
    rows += _views(before, running, after, asked)
    for name in both:
        rows += _sinks(old[name], new[name])
    rows += _streams(before, after)
    rows += _tables(before, after)
    rows += links
    if stats:
        rows.append(Difference("statistics", "of streams", "changed"))
    for name in replanned:
        if settings := _planning(before, old[name], after, new[name]):
            rows.append(Difference("plan", name, "planned again", ", ".join(settings)))
    rows += _settings(before, after)
    ended = tuple(sorted(gone - begun))
    return Differences(tuple(rows), added, removed, replaced, replanned, tuple(sorted(begun)), ended)


def streams_read(topology: Topology, queries: Iterable[Query] | None = None) -> set[str]:
    """The streams and tables that some queries of a topology read, or all of them, also through views."""
    topology = without_names(topology if queries is None else replace(topology, queries=tuple(queries)))
    outputs = [asked.output for asked in outputs_of(topology, topology.queries)]
    return {name for output in outputs for name in output.streams} - {output.target.name for output in outputs}


def without_names(topology: Topology) -> Topology:
    """The topology as a user writes it: a table has one name, however often it was read."""
    queries, views = (
        tuple(replace(query, read_as=()) if query.read_as else query for query in some)
        for some in (topology.queries, topology.views)
    )
    return replace(topology, queries=queries, views=views)


@dataclass(frozen=True)
class _Selects:
    """What a query or a view asks for, however it is written, with the views that it reads."""

    is_view: bool
    own: tuple[tuple[str, str], ...]  # its SELECTs, by name
    settings: tuple[object, ...]
    read: "tuple[tuple[str, _Selects], ...]"  # views, by name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.own)


def _selects(topology: Topology) -> dict[str, _Selects]:
    """What the queries of a topology ask for, and the views that they read."""
    found: dict[str, _Selects] = {}
    asked = outputs_of(topology, topology.queries)
    views = {entry.output.target.name: entry.owner.name for entry in asked if entry.output.target.is_stream}
    for owner in {entry.owner.name: entry.owner for entry in asked}.values():  # views before those that read them
        outputs = [entry.output for entry in asked if entry.owner.name == owner.name]
        branches = tuple((name, canonical_sql(parsed)) for output in outputs for name, parsed in output.branches)
        read = {views[name] for output in outputs for name in output.streams if name in views} - {owner.name}
        is_view = owner.name in views
        settings = (owner.start_us, owner.errors)
        found[owner.name] = _Selects(is_view, branches, settings, tuple((name, found[name]) for name in sorted(read)))
    return found


def _planning(before: Topology, old: Query, after: Topology, new: Query) -> list[str]:
    """What is different of what a query, and the views that it reads, say about their plans."""
    settings = _differing(old, new, _PLANNING)
    views = [
        {entry.owner.name: entry.owner for entry in outputs_of(*asked)} for asked in ((before, [old]), (after, [new]))
    ]
    for name in sorted((views[0].keys() & views[1].keys()) - {old.name}):
        settings += [f"{setting} of view {name}" for setting in _differing(views[0][name], views[1][name], _PLANNING)]
    return settings


def _views(
    before: Topology, old: Mapping[str, _Selects], after: Topology, new: Mapping[str, _Selects]
) -> Iterator[Difference]:
    """Views that come and go with the queries that read them, or would be elsewhere."""
    places = [
        {asked.owner.name: asked for asked in outputs_of(topology, topology.queries) if asked.output.target.is_stream}
        for topology in (before, after)
    ]
    for name in sorted(name for name in old.keys() | new.keys() if (new.get(name) or old[name]).is_view):
        if name not in new:
            yield Difference("view", name, "ends")
        elif name not in old:
            yield Difference("view", name, "new", _line(places[1][name].owner.sql))
        else:
            if old[name] != new[name]:
                yield Difference("view", name, "replaced", _line(places[1][name].owner.sql))
            if places[0][name].site != places[1][name].site:
                detail = f"{places[0][name].site} -> {places[1][name].site}"
                cause = f"view {name!r}: its site cannot change while queries read it; {_ANEW}"
                yield Difference("view", name, "other site", detail, cause)


def _sinks(old: Query, new: Query) -> Iterator[Difference]:
    if old.site != new.site:
        cause = f"query {old.name!r}: its answers are at site {old.site}, and cannot move to {new.site}; {_AS_ANOTHER}"
        yield Difference("query", old.name, "other site", f"{old.site} -> {new.site}", cause)
    for what, one, other in (("sink", old.sink, new.sink), ("failed rows", old.failed, new.failed)):
        if one != other:
            cause = f"query {old.name!r}: its {what} cannot be another one while it runs; {_AS_ANOTHER}"
            yield Difference("sink", old.name, f"other {what}", f"{_shown(one)} -> {_shown(other)}", cause)
    if old.foreach_batch is not new.foreach_batch:
        cause = f"query {old.name!r}: its function cannot be another one while it runs; {_AS_ANOTHER}"
        yield Difference("sink", old.name, "other function", "", cause)


_STREAM_CAUSES: Mapping[str, str] = {
    "schema": "rows in windows have the columns of its old schema",
    "event_time": "rows in windows are by its old event time",
    "watermark": "which rows are late was judged by its old watermark",
    "site": "its rows are kept at its home site",
    "source": "what was read of its source is remembered by the old one",
    "late": "its late rows go to one place",
    "frame": "a DataFrame is read by Spark from the start",
}


def _streams(before: Topology, after: Topology) -> Iterator[Difference]:
    """Streams that are read: those that begin and end to be, and those that have changed."""
    old, new = (
        {name.casefold(): topology.stream(name) for name in streams_read(topology) - topology.table_windows.keys()}
        for topology in (before, after)
    )
    for key in sorted(new.keys() - old.keys()):
        yield Difference("stream", new[key].name, "begins", f"at {new[key].site}, {_shown(new[key].source)}")
    for key in sorted(old.keys() - new.keys()):
        yield Difference("stream", old[key].name, "ends", f"at {old[key].site}")
    for key in sorted(old.keys() & new.keys()):
        yield from _stream(old[key], new[key])


def _tables(before: Topology, after: Topology) -> Iterator[Difference]:
    """Tables that queries begin or cease to read, and those that have changed."""
    names = [
        {name.casefold() for name in streams_read(topology) & topology.table_windows.keys()}
        for topology in (before, after)
    ]
    old = {table.name.casefold(): table for table in before.tables}
    new = {table.name.casefold(): table for table in after.tables}
    for key in sorted(names[1] - names[0]):
        yield Difference("table", new[key].name, "begins", f"at {new[key].site}, {_shown(new[key].source)}")
    for key in sorted(names[0] - names[1]):
        yield Difference("table", old[key].name, "ends", f"at {old[key].site}")
    for key in sorted(names[0] & names[1]):
        if old[key] != new.get(key):
            cause = f"table {old[key].name!r} cannot change while queries read it; {_ANEW}"
            yield Difference("table", old[key].name, "changed", "", cause)


def _stream(old: Stream, new: Stream) -> Iterator[Difference]:
    for setting, why in _STREAM_CAUSES.items():
        one, other = _setting(old, setting), _setting(new, setting)
        if one is not other and one != other:
            cause = f"stream {old.name!r}: its {setting} cannot change while it is read, since {why}; {_ANEW}"
            shown = ("", "") if setting == "frame" else (_shown(one), _shown(other))
            yield Difference("stream", old.name, f"other {setting}", " -> ".join(shown), cause)
    if old.idle_timeout_us != new.idle_timeout_us:
        yield Difference("stream", old.name, "other idle_timeout", f"{old.idle_timeout} -> {new.idle_timeout}")


def _setting(stream: Stream, name: str) -> Any:
    match name:
        case "schema":
            return ", ".join(f"{column} {kind}" for column, kind in stream.types.items())
        case "event_time":
            return stream.event_time_column
        case "watermark":
            return stream.watermark_us
    return getattr(stream, name)


def _links(before: Topology, after: Topology) -> Iterator[Difference]:
    """Pairs of sites between which the network is another; new plans are made for it."""
    sites = [name for name in after.site_names if name in before.site_names]
    for number, site in enumerate(sites):
        for other in sites[number + 1 :]:
            if (old := before.link(site, other)) != (new := after.link(site, other)):
                yield Difference("link", f"{site} - {other}", "changed", f"{_network(old)} -> {_network(new)}")


def _settings(before: Topology, after: Topology) -> Iterator[Difference]:
    for name in before.site_names:
        if name not in after.site_names:
            cause = f"site {name!r} runs, and cannot leave; keep it in the topology, or stop and begin anew"
            yield Difference("site", name, "missing", "", cause)
    if before.link_transport != after.link_transport:
        cause = "link_transport: parcels are on their way in the old one; stop all sites and begin anew with --fresh"
        yield Difference("links", "link_transport", "changed", "", cause)
    if before.durability != after.durability:
        detail = f"{before.durability} -> {after.durability}"
        cause = "durability is decided at the start; stop the run and start it with the other one"
        yield Difference("setting", "durability", "changed", detail, cause)


def _differing(old: Query, new: Query, names: Iterable[str]) -> list[str]:
    return [name for name in names if getattr(old, name) != getattr(new, name)]


def _line(sql: str) -> str:
    return " ".join(sql.split())


def _network(link: Link) -> str:
    bandwidth = "no limit" if link.bandwidth_bps is None else f"{link.bandwidth_bps / 1e6:g} Mbps"
    return f"{link.latency_us / 1e3:g} ms, {bandwidth}, {link.price_per_gb:g} per GB"


def _shown(end: object) -> str:
    if isinstance(end, Sink | Source):
        return f"{end.format} {end.path}" if end.path else end.format
    return "none" if end is None else str(end)
