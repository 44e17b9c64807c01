"""The topology as a frozen value that checks itself: sites, the links between them, streams, tables and queries."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from watersmeet.errors import TopologyError, UnknownStream, did_you_mean
from watersmeet.query.model import Output
from watersmeet.query.windows import AsOf
from watersmeet.stats.model import Stats
from watersmeet.topology.links import EVERY_PAIR, TRANSPORTS, Link, LinkTransport, check_pair, link_name
from watersmeet.topology.names import check_name, check_site
from watersmeet.topology.queries import (
    ADAPT_MODES,
    ERRORS,
    METHODS,
    OBJECTIVES,
    PARTITIONS,
    Adapt,
    BatchFunction,
    HeadSteps,
    PlanStep,
    Query,
    check_adapt,
)
from watersmeet.topology.streams import Frame, Sink, Source, Stream, Table

__all__ = [
    "ADAPT_MODES",
    "Adapt",
    "BatchFunction",
    "DURABILITIES",
    "ERRORS",
    "EVERY_PAIR",
    "Frame",
    "HeadSteps",
    "Link",
    "LinkTransport",
    "METHODS",
    "OBJECTIVES",
    "PARTITIONS",
    "PlanStep",
    "Query",
    "Sink",
    "Site",
    "Source",
    "Stream",
    "TRANSPORTS",
    "Table",
    "Topology",
    "check_adapt",
    "check_durability",
    "check_name",
    "check_pair",
    "check_site",
    "link_name",
]

# What a run survives: that its processes are killed, or also that the machine loses power.
DURABILITIES = ("process", "power")


@dataclass(frozen=True, slots=True)
class Site:
    """A place where streams arrive and a Spark job runs."""

    name: str


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything a run needs to know: sites, streams and queries, by unique names, and the links between the sites."""

    streams: tuple[Stream, ...]
    queries: tuple[Query, ...] = ()
    sites: tuple[Site, ...] = (Site("here"),)
    directory: str = "."
    links: tuple[Link, ...] = ()
    default_link: Link | None = None
    link_transport: LinkTransport = field(default_factory=LinkTransport)
    stats: Stats = field(default_factory=Stats)
    durability: str = DURABILITIES[-1]
    adapt: Adapt = field(default_factory=Adapt)  # of queries that do not say otherwise
    batch_interval_us: int | None = None  # event time that a micro-batch covers; None is by the streams' statistics
    tables: tuple[Table, ...] = ()
    views: tuple[Query, ...] = ()  # queries that others read like streams
    derived: tuple[Output, ...] = ()  # what feeds the derived streams among `streams`, in order of dependence
    _position: dict[str, int] = field(init=False, repr=False, compare=False)  # of each site in `sites`
    _named: dict[str | None, Query] = field(init=False, repr=False, compare=False)  # queries and views by name

    def __post_init__(self) -> None:
        object.__setattr__(self, "_position", {site.name: position for position, site in enumerate(self.sites)})
        object.__setattr__(self, "_named", {query.name: query for query in (*self.views, *self.queries)})
        for what, names in (
            ("stream", [stream.name for stream in self.streams]),
            ("table", [table.name for table in self.tables]),
            ("query", [query.name for query in self.queries]),
            ("view", [view.name for view in self.views]),
            ("site", [site.name for site in self.sites]),
        ):
            counts = Counter(name.casefold() for name in names)
            twice = sorted({name for name in names if counts[name.casefold()] > 1})
            if twice:
                raise TopologyError(f"duplicate {what} names (case does not count): {', '.join(twice)}")
        named = {stream.name.casefold(): "stream" for stream in self.streams if not stream.is_derived}
        named |= {query.name.casefold(): "query" for query in self.queries}
        for view in self.views:
            if (other := named.get(view.name.casefold())) is not None:
                raise TopologyError(f"view {view.name!r} has the name of a {other}; rename one")
        check_durability(self.durability)
        if self.batch_interval_us is not None and self.batch_interval_us <= 0:
            raise TopologyError("batch_interval must be positive")
        both = {stream.name.casefold() for stream in self.streams} & {table.name.casefold() for table in self.tables}
        for table in self.tables:
            if table.name.casefold() in both:
                raise TopologyError(f"{table.name!r} is both a stream and a table (case does not count); rename one")
            check_site(table.site, f"table {table.name!r}", self.site_names)
        for stream in self.streams:
            check_site(stream.site, f"stream {stream.name!r}", self.site_names)
        for query in (*self.queries, *self.views):
            if query.site is not None:
                check_site(query.site, f"query {query.name!r}", self.site_names)
            for head, step in [(steps.head, step) for steps in query.plan or () for step in steps.steps]:
                if step.at is not None:
                    what = f"query {query.name!r}: the step of head {head!r} that joins {step.join!r}"
                    check_site(step.at, what, self.site_names)
        pairs: set[frozenset[str]] = set()
        for link in self.links:
            check_pair(link.between, self.site_names)
            if frozenset(link.between) in pairs:
                raise TopologyError(f"{link_name(link.between)} is given twice (in either order); remove one")
            pairs.add(frozenset(link.between))
        if self.default_link is not None and self.default_link.between != EVERY_PAIR:
            raise TopologyError("default_link is for every pair of sites; leave out between, or move it to links")
        for name in self.stats.streams:
            known = (*self.homes, *(view.name for view in self.views))
            if name not in known:
                raise TopologyError(f"stats: unknown stream {name!r}; {did_you_mean(name, known)}")

    def stream(self, name: str) -> Stream:
        """The stream or table of that name; case does not count, as in SQL."""
        for stream in self.sources:
            if stream.name.casefold() == name.casefold():
                return stream
        raise UnknownStream(f"unknown stream {name!r}; {did_you_mean(name, self.homes)}")

    def query(self, name: str | None = None) -> Query:
        """The query of that name, or the only one."""
        if name is None and len(self.queries) == 1:
            return self.queries[0]
        if name in self._named:
            return self._named[name]
        names = [query.name for query in self.queries]
        if name is None:
            raise TopologyError(f"say which query: {', '.join(names) or 'the topology has none'}")
        raise TopologyError(f"unknown query {name!r}; {did_you_mean(name, names)}")

    def query_site(self, query: Query) -> str:
        """The site of the query's sink: its own setting, else the only site or that of all the streams."""
        if query.site is not None:
            return check_site(query.site, f"query {query.name!r}", self.site_names)
        for names in ({site.name for site in self.sites}, {stream.site for stream in self.streams}):
            if len(names) == 1:
                return names.pop()
        raise TopologyError(
            f"query {query.name!r} does not say where its answers are wanted; "
            f"add `site:` to the query with one of: {', '.join(self.site_names)}"
        )

    def adapt_of(self, query: Query) -> Adapt:
        """Whether and how a query's plan changes: its own setting, else that of all; a plan that is given stays.

        >>> topology = Topology((), adapt=Adapt("cnu"))
        >>> [topology.adapt_of(Query("q", "SELECT 1", adapt=own)).mode for own in (None, Adapt())]
        ['cnu', 'off']
        """
        if query.adapt is not None:
            return query.adapt
        fixed = query.plan is not None or (query.planner is not None and self.adapt.mode in ("cnu", "dnu"))
        return Adapt() if fixed else self.adapt

    def link(self, a: str, b: str) -> Link:
        """The link of two sites in either order: their own, else the default, else an unlimited one.

        >>> sites = (Site("ams"), Site("nyc"))
        >>> Topology((), sites=sites, default_link=Link(latency_us=80_000)).link("nyc", "ams").latency_us
        80000
        """
        for site in (a, b):
            if site not in self._position:
                check_site(site, "link", self.site_names)
        if a == b:
            return Link((a, b))
        for link in self.links:
            if set(link.between) == {a, b}:
                return link
        first, second = sorted((a, b), key=self._position.__getitem__)
        return replace(self.default_link or Link(), between=(first, second))

    def is_linked(self, a: str, b: str) -> bool:
        """Whether two sites have a link; if no link is given at all, all sites have one."""
        named = any(set(link.between) == {a, b} for link in self.links)
        return a == b or named or self.default_link is not None or not self.links

    @property
    def survives_power_cuts(self) -> bool:
        """Whether what is committed is flushed to the disk."""
        return self.durability == "power"

    @property
    def site_names(self) -> tuple[str, ...]:
        """The names of the sites, in order."""
        return tuple(site.name for site in self.sites)

    @property
    def sources(self) -> tuple[Stream, ...]:
        """The streams, and the tables after them."""
        return (*self.streams, *self.tables)

    @property
    def homes(self) -> dict[str, str]:
        """Where each stream arrives and each table is read."""
        return {stream.name: stream.site for stream in self.sources}

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """The column names of every stream and table."""
        return {stream.name: stream.columns for stream in self.sources}

    @property
    def table_windows(self) -> dict[str, AsOf]:
        """How the rows of each table are visible to queries."""
        return {table.name: table.window for table in self.tables}

    @property
    def has_schemas(self) -> bool:
        """Whether the columns of all tables are known; if not, Spark infers them."""
        return all(table.has_schema for table in self.tables)

    @property
    def event_times(self) -> dict[str, str]:
        """The column of every stream that is its event time; rows of derived streams have none."""
        return {stream.name: stream.event_time_column for stream in self.streams if not stream.is_derived}


def check_durability(text: str) -> str:
    """What a run survives, if it is known."""
    if text not in DURABILITIES:
        raise TopologyError(f"unknown durability {text!r}; {did_you_mean(text, DURABILITIES)}")
    return text


def __getattr__(name: str) -> Callable[[str | Path], Topology]:
    """`load_topology` under its former path; imported late, since `load` imports this module."""
    if name != "load_topology":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from watersmeet.topology.load import load_topology

    return load_topology
