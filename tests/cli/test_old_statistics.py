"""Statistics that were taken long ago are named beside a plan."""

from watersmeet.cli.explain import _old_statistics
from watersmeet.planners.choose import problem_for
from watersmeet.query.sql import parse_query
from watersmeet.stats.model import ColumnStats, Number, Origin, Stats, StreamStats
from watersmeet.topology.model import EVERY_PAIR, Link, Query, Site, Source, Stream, Topology

NOW = 1_700_000_000.0
DAY_S = 86_400.0


def taken(days_ago: float) -> StreamStats:
    distinct = Number(10.0, Origin.ESTIMATED, taken_at=NOW - days_ago * DAY_S)
    return StreamStats(Number(5.0), Number(20.0), {"k": ColumnStats(distinct)})


def test_streams_whose_statistics_are_older_than_a_day_are_named() -> None:
    streams = tuple(
        Stream(name, "ts", "ts timestamp, k long", Source("parquet", name), site=f"s_{name}") for name in "abc"
    )
    froms = ", ".join(f"{name} [RANGE 1 MINUTE]" for name in "abc")
    query = Query("q", f"SELECT a.k AS k FROM {froms} WHERE a.k = b.k AND b.k = c.k", site="s_a")
    sites, link = tuple(Site(stream.site) for stream in streams), Link(EVERY_PAIR, latency_us=1_000)
    stats = Stats({"a": taken(0.5), "b": taken(3.2), "c": taken(1.1)})
    topology = Topology(streams, (query,), sites, default_link=link, stats=stats)
    problem = problem_for(topology, query, parse_query(query.sql, topology.columns))
    assert _old_statistics(problem, NOW) == [
        "old: statistics of b were taken 3 days ago; run `watersmeet stats`",
        "old: statistics of c were taken 1 day ago; run `watersmeet stats`",
    ]
