"""A random trial as a value: queries, rows, sites, links, crashes and changes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Literal

import pyarrow as pa

from watersmeet.plan.nodes import (
    Hop,
    Plan,
    join_plan_of,
    with_join,
)
from watersmeet.planners.local import local, symmetric
from watersmeet.planners.sited import central, explicit
from watersmeet.program.site.agreement import DecidedBy
from watersmeet.query.model import JoinQuery
from watersmeet.query.sql import parse_query
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.trials.plans import meeting_plan, mixed_plan

SCHEMA = pa.schema(
    [("k", pa.int64()), ("m", pa.int32()), ("s", pa.string()), ("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]
)

EVENT_TIME = "ts"

Size = Literal["tiny", "small", "large"]


@dataclass(frozen=True, slots=True)
class Feed:
    """Rows that come to a stream's home at a time."""

    time_us: int
    stream: str
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class TrialCrash:
    """A site that goes down at a time, and for how long."""

    site: str
    time_us: int
    down_us: int


@dataclass(frozen=True)
class TrialQuery:
    """A query, where its answers are wanted, and how it is planned."""

    name: str
    sql: str
    site: str
    hops: Mapping[str, tuple[Hop, ...]] | None  # by head; None ships everything to the query's site
    symmetric_at: str | None = None  # where all windows are joined by a symmetric multi-way join instead
    meet: int | None = None  # the seed of a plan in which rows reduced by several others go to one site
    mix: int | None = None  # the seed of several sub-plans, trees among them, that replace the plan's one
    start_us: int | None = None
    is_fresh: bool = False  # of a change: whether the query begins with it


@dataclass(frozen=True)
class TrialChange:
    """Queries that get another plan, begin, or end, as it is asked for at a site at a time."""

    time_us: int
    site: str
    planned: tuple[TrialQuery, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trial:
    """All that decides a run."""

    seed: int
    size: Size
    queries: tuple[TrialQuery, ...]
    tables: Mapping[str, pa.Table]  # whole streams, in order of arrival
    homes: Mapping[str, str]
    links: Mapping[tuple[str, str], LinkModel]
    feeds: tuple[Feed, ...]
    crashes: tuple[TrialCrash, ...]
    intervals_us: Mapping[str, int]  # between micro-batches, by site
    delays_us: Mapping[str, int]
    buckets: int
    changes: tuple[TrialChange, ...] = ()
    history: bool = True  # whether homes keep rows for later versions of plans
    form: DecidedBy = DecidedBy.POINT_TO_POINT
    slack_us: int = 0
    commit_crashes: int = 0  # at most so many, most of them as a ledger says something new of a change

    @property
    def command(self) -> str:
        """What to type to see this trial again."""
        size = "" if self.size == "small" else f" --size {self.size}"
        changes = " --changes" if self.changes else ""
        return f"python -m watersmeet.sim.sites.trial {self.seed}{size}{changes}"

    def parsed(self, query: TrialQuery) -> JoinQuery:
        """A query with the types of its keys."""
        return _parsed(query.sql, tuple(self.tables))

    def plan(self, query: TrialQuery) -> Plan:
        """The plan that was drawn for a query."""
        parsed, columns = self.parsed(query), dict.fromkeys(self.tables, SCHEMA.names)
        if {query.symmetric_at} == {query.site, *self.homes.values()}:
            return local(parsed, columns, query.site)
        if query.hops is None:
            plan = central(parsed, columns, self.homes, query.site)
        else:
            plan = explicit(parsed, columns, self.homes, query.site, query.hops)
        join = join_plan_of(plan)
        if query.symmetric_at is not None:
            sub_plan = symmetric(parsed.aliases, join.classes, query.symmetric_at)
            return with_join(plan, replace(join, sub_plans=(sub_plan,)))
        if query.meet is not None:
            met = meeting_plan(Random(query.meet), join, sorted(self.intervals_us))
            return with_join(plan, replace(join, sub_plans=(met,)))
        if query.mix is not None:
            return with_join(plan, mixed_plan(Random(query.mix), join, sorted(self.intervals_us)))
        return plan


@lru_cache(maxsize=512)  # a trial asks for its queries time and again
def _parsed(sql: str, streams: tuple[str, ...]) -> JoinQuery:
    query = parse_query(
        sql,
        dict.fromkeys(streams, SCHEMA.names),
        allow_cross=True,
        event_times=dict.fromkeys(streams, EVENT_TIME),
    )
    return typed(query, dict.fromkeys(streams, SCHEMA), dict.fromkeys(streams, EVENT_TIME))
