"""Random trials: queries over the same streams, their plans and a bad network from one seed, run against the oracle.

`python -m watersmeet.sim.sites.trial SEED` replays a seed, tells what was tried, and ends with 1 if the answers differ.
"""

import argparse
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, combinations, pairwise, permutations
from random import Random
from typing import Literal

import pyarrow as pa

from watersmeet.plan.nodes import (
    HashParts,
    HeadPlan,
    Hop,
    Input,
    JoinNode,
    JoinPlan,
    KeyClass,
    Leaf,
    Linear,
    Method,
    Partition,
    Plan,
    RangeParts,
    Reduction,
    SubPlan,
    Symmetric,
    Tree,
    ValueParts,
    join_plan_of,
    with_join,
)
from watersmeet.planners.local import local, symmetric
from watersmeet.planners.sited import central, explicit, placed
from watersmeet.program.site.agreement import Form
from watersmeet.program.site.ledger import SiteLedger, watermark
from watersmeet.program.site.versions import Change, QueryPlan
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.model import JoinQuery
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.query.windows import Rows, counted
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.site import CommitCrash, CrashNow, SimulatedSite, SimulatedSites

SCHEMA = pa.schema(
    [("k", pa.int64()), ("m", pa.int32()), ("s", pa.string()), ("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]
)
EVENT_TIME = "ts"
TOPOLOGIES = ("chain", "star", "cycle", "clique")

# Which attributes the edges of a join graph may equate.
_ATTRIBUTES = (
    [("k", "k")],
    [("k", "k")],
    [("s", "s")],
    [("k", "m"), ("k", "k")],
    [("k", "k"), ("m", "m")],
    [("k", "k"), ("s", "s"), ("m", "m")],
    [("k", "k"), ("k", "k"), ("k", "k"), ("k", "id"), ("m", "k")],
)

_WINDOW_KINDS = ("R", "T", "N", "U", "RT", "RN", "RTNU", "RTNU", "RTNU")  # a letter a kind, see _window

_GROUP_BY = " GROUP BY "

Size = Literal["small", "large"]
Edge = tuple[str, str]

_SECOND = 1_000_000
_MINUTE = 60 * _SECOND
# Rows of a stream at most, by the number of aliases: a hot key makes answers by their product.
_ROWS: Mapping[Size, Mapping[int, int]] = {
    "small": {2: 24, 3: 18, 4: 12, 5: 9},
    "large": {2: 150, 3: 60, 4: 24, 5: 14},
}
_FEEDS: Mapping[Size, int] = {"small": 4, "large": 14}
_MAX_EVENTS = 300_000
_DOWN_US = (100, 300_000, 3 * _SECOND, 5 * _MINUTE)  # for which a site may be down


@dataclass(frozen=True, slots=True)
class Feed:
    """Rows that come to a stream's home at a time."""

    time_us: int
    stream: str
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class Crash:
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
    crashes: tuple[Crash, ...]
    intervals_us: Mapping[str, int]  # between micro-batches, by site
    delays_us: Mapping[str, int]
    buckets: int
    changes: tuple[TrialChange, ...] = ()
    history: bool = True  # whether homes keep rows for later versions of plans
    form: Form = Form.POINT_TO_POINT
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
            met = _meeting(Random(query.meet), join, sorted(self.intervals_us))
            return with_join(plan, replace(join, sub_plans=(met,)))
        if query.mix is not None:
            return with_join(plan, _mixed(Random(query.mix), join, sorted(self.intervals_us)))
        return plan


@lru_cache(maxsize=64)  # a trial asks for its queries time and again
def _parsed(sql: str, streams: tuple[str, ...]) -> JoinQuery:
    query = parse_query(
        sql,
        dict.fromkeys(streams, SCHEMA.names),
        allow_cross=True,
        event_times=dict.fromkeys(streams, EVENT_TIME),
    )
    return typed(query, dict.fromkeys(streams, SCHEMA), dict.fromkeys(streams, EVENT_TIME))


@dataclass(frozen=True)
class Outcome:
    """What came of a trial, and what should have, by query."""

    trial: Trial
    plans: Mapping[str, Plan]
    answers: Mapping[str, Bag]
    expected: Mapping[str, Bag]
    sites: SimulatedSites
    is_at_rest: bool  # whether it came to an end by itself

    def missing(self, query: str) -> Bag:
        return self.expected[query] - self.answers[query]

    def surplus(self, query: str) -> Bag:
        return self.answers[query] - self.expected[query]

    @property
    def wrong(self) -> list[str]:
        """The queries whose answers are not those of the reference semantics."""
        return [name for name in self.expected if self.answers[name] != self.expected[name]]

    @property
    def is_right(self) -> bool:
        return self.is_at_rest and not self.wrong

    @property
    def verdict(self) -> str:
        """One line that says whether it went well, and how to see it again if it did not."""
        if not self.is_at_rest:
            return f"seed {self.trial.seed}: no end after {_MAX_EVENTS} events; replay: {self.trial.command}"
        if self.wrong:
            found = "; ".join(
                f"{name}: {self.missing(name).total()} missing and {self.surplus(name).total()} too many of "
                f"{self.expected[name].total()} answers"
                for name in self.wrong
            )
            return f"seed {self.trial.seed}: {found}; replay: {self.trial.command}"
        totals = " + ".join(str(bag.total()) for bag in self.expected.values())
        return f"seed {self.trial.seed}: {totals} answers, as they should be"


def edges_of(topology: str, aliases: Sequence[str]) -> list[Edge]:
    """The pairs of aliases that a join graph of this shape ties together."""
    match topology:
        case "chain":
            return list(pairwise(aliases))
        case "star":
            return [(aliases[0], other) for other in aliases[1:]]
        case "cycle":
            closing = [(aliases[-1], aliases[0])] if len(aliases) > 2 else []
            return [*pairwise(aliases), *closing]
        case "clique":
            return list(combinations(aliases, 2))
        case _:
            raise ValueError(f"unknown topology {topology!r}; there are {', '.join(TOPOLOGIES)}")


def draw(seed: int, *, size: Size = "small") -> Trial:
    """The trial of a seed, always the same one."""
    random, more = Random(seed), Random(f"{seed} more")
    aliases = list("abcde")[: random.choice([2, 2, 2, 2, 3, 3, 3, 4, 5])]
    stream_of = _streams(random, aliases)
    streams = sorted(set(stream_of.values()))
    sql = _with_residuals(Random(f"{seed} residuals"), _sql(random, aliases, stream_of))
    delay = random.choice([0, 0, 2])
    is_fine = random.random() < 0.3  # instants between whole seconds, at the very edges of windows
    keys, most = random.randint(1, 7 - len(aliases)), _ROWS[size][len(aliases)]
    tables = {name: _stream(random, keys, most, delay, is_fine) for name in streams}
    peers = [f"n{number + 1}" for number in range(random.randint(1, len(streams)))]
    sites = [*peers, "n0"]
    homes = {stream: random.choice(peers) for stream in streams}
    first = TrialQuery(
        "q1",
        sql.text,
        site=random.choice(sites),
        hops=None if random.random() < 0.05 else _hops(random, aliases, sites),
    )
    trial = Trial(
        seed=seed,
        size=size,
        queries=(first,),
        tables=tables,
        homes=homes,
        links=_links(random, sites),
        feeds=tuple(_feeds(random, tables, random.randint(1, _FEEDS[size]))),
        crashes=tuple(_crashes(random, sites)),
        intervals_us={site: random.choice([1_000, 100_000, 700_000, 4 * _SECOND]) for site in sites},
        delays_us=dict.fromkeys(streams, delay * _SECOND + (_SECOND if is_fine else 0)),
        buckets=random.choice([1, 1, 2, 3]),
    )
    start_us = random.randint(0, 8) * _SECOND if random.random() < 0.1 else None
    first = replace(first, start_us=start_us, mix=seed if random.random() < 0.5 else None)
    once = Random(f"{seed} once")
    if once.random() < 0.15:  # often of the same streams
        some = once.sample(streams, min(len(streams), 2))
        sql = replace(sql, stream_of={alias: once.choice(some) for alias in aliases})
        first = replace(first, sql=sql.text, mix=None, meet=seed)
        read = set(sql.stream_of.values())
        trial = replace(
            trial,
            tables={name: table for name, table in tables.items() if name in read},
            feeds=tuple(feed for feed in trial.feeds if feed.stream in read),
        )
    return _with_more(more, replace(trial, queries=(first,)), sql)


def _with_more(random: Random, trial: Trial, sql: "_Sql") -> Trial:
    """The trial with DISTINCT, symmetric joins, streams at one site and further queries over the same streams."""
    (first,) = trial.queries
    sites = sorted(trial.intervals_us)
    if random.random() < 0.2:  # everything at one site
        site = random.choice(sites)
        trial = replace(trial, homes=dict.fromkeys(trial.homes, site))
        first = replace(first, site=site, mix=None, meet=None, symmetric_at=site if random.random() < 0.8 else None)
    elif random.random() < 0.15:
        first = replace(first, mix=None, meet=None, symmetric_at=random.choice(sites))
    if random.random() < 0.25:
        sql = sql.distinct(random)
    drafts = [(replace(first, sql=sql.text), sql)]
    for number in range(random.choice([0, 0, 1, 1, 2])):
        like, like_sql = random.choice(drafts)
        query, drawn = _another(random, trial, like, like_sql)
        if random.random() < 0.25:
            drawn = drawn.distinct(random)
        drafts.append((replace(query, name=f"q{number + 2}", sql=drawn.text), drawn))
    return replace(trial, queries=tuple(query for query, _ in drafts))


def _another(random: Random, trial: Trial, like: TrialQuery, sql: "_Sql") -> "tuple[TrialQuery, _Sql]":
    """A query that has the join of another one, or windows, filters or a start of its own, or just its streams."""
    sites, names = sorted(trial.intervals_us), sorted(trial.tables)
    what = random.choice(["same join", "same join", "other windows", "other filters", "other start", "other join"])
    match what:
        case "same join":
            return like, sql.other_items(random)
        case "other windows":
            kinds = random.choice(_WINDOW_KINDS)
            windows = {alias: _window(random, kinds, len(sql.windows)) for alias in sql.windows}
            return like, replace(sql, windows=windows)
        case "other filters":
            where = (*sql.where, f"{random.choice(list(sql.windows))}.id % {random.choice([2, 3])} <> 1")
            return like, replace(sql, where=where)
        case "other start":
            return replace(like, start_us=random.randint(0, 8) * _SECOND), sql
        case _:
            aliases = list("abcde")[: random.randint(2, len(sql.windows))]
            drawn = _sql(random, aliases, {alias: random.choice(names) for alias in aliases})
            kind = random.choice(["central", "hops", "mix", "symmetric"])
            query = TrialQuery(
                like.name,
                drawn.text,
                site=random.choice(sites),
                hops=None if kind == "central" else _hops(random, aliases, sites),
                symmetric_at=random.choice(sites) if kind == "symmetric" else None,
                mix=random.randrange(10**6) if kind == "mix" else None,
            )
            return query, drawn


def draw_changing(seed: int, *, size: Size = "small") -> Trial:
    """The trial of a seed with plans and queries that change while it runs."""
    trial, random, groups = draw(seed, size=size), Random(f"{seed} changes"), Random(f"{seed} groups")
    drawn = (replace(one, sql=_grouped(groups, one.sql)) if groups.random() < 0.25 else one for one in trial.queries)
    trial = replace(trial, queries=tuple(drawn))
    last_us = max((feed.time_us for feed in trial.feeds), default=0)
    running = {query.name: query for query in trial.queries}
    every, changes = len(trial.queries), []
    for time_us in sorted(random.randrange(last_us + 2 * _SECOND) for _ in range(random.choice([1, 1, 2, 4]))):
        kind = random.choice(["plan"] * 7 + ["all plans", "add", "remove", "replace"])
        names = sorted(running)
        planned: tuple[TrialQuery, ...] = ()
        removed: tuple[str, ...] = ()
        if kind == "add" or not names:
            every += 1
            like = random.choice(trial.queries)
            query = replace(_replanned(random, trial, like), name=f"q{every}", sql=_varied(random, like.sql))
            query = replace(query, sql=_grouped(groups, query.sql) if groups.random() < 0.5 else query.sql)
            planned = (replace(query, start_us=None, is_fresh=True),)
        elif kind == "remove":
            removed = (random.choice(names),)
        elif kind == "replace":
            like = running[random.choice(names)]
            query = replace(_replanned(random, trial, like), sql=_varied(random, like.sql))
            if _GROUP_BY in query.sql:  # answers of one name have the same columns
                query = replace(query, sql=_grouped(groups, query.sql))
            planned = (replace(query, start_us=None, is_fresh=True),)
        else:
            chosen = names if kind == "all plans" else [random.choice(names)]
            planned = tuple(_replanned(random, trial, running[name]) for name in chosen)
        running |= {query.name: replace(query, is_fresh=False) for query in planned}
        running = {name: query for name, query in running.items() if name not in removed}
        changes.append(TrialChange(time_us, random.choice(sorted(trial.intervals_us)), planned, removed))
    asked = [query.sql for change in changes for query in change.planned]
    is_timed = not any("[ROWS" in sql or "[UNBOUNDED" in sql for sql in [*asked, *(q.sql for q in trial.queries)])
    return replace(
        trial,
        changes=tuple(changes),
        history=not is_timed or random.random() < 0.6,
        form=random.choice(list(Form)),
        slack_us=random.choice([0, 0, _SECOND, 5 * _SECOND]),
        commit_crashes=Random(f"{seed} commits").choice([0, 0, 2, 8]),
    )


def _replanned(random: Random, trial: Trial, query: TrialQuery) -> TrialQuery:
    """A query with any other plan."""
    sites = sorted(trial.intervals_us)
    aliases = trial.parsed(query).aliases
    kind = random.choice(["central", "hops", "hops", "mix", "mix", "symmetric"])
    return replace(
        query,
        hops=None if kind == "central" else _hops(random, aliases, sites),
        symmetric_at=random.choice(sites) if kind == "symmetric" else None,
        mix=random.randrange(10**6) if kind == "mix" else None,
        meet=random.randrange(10**6) if kind == "hops" and random.random() < 0.3 else None,
    )


def _varied(random: Random, sql: str) -> str:
    """Another query over the same streams with the same columns."""
    alias = "a"
    condition = f"{alias}.id % {random.choice([2, 3])} <> 1"
    sql, by, tail = sql.partition(_GROUP_BY)
    return sql + (f" AND {condition}" if " WHERE " in sql else f" WHERE {condition}") + by + tail


def _grouped(random: Random, sql: str) -> str:
    """The answers of a query counted and added up, by a key or by none, in an output window."""
    sources = sql[sql.index(" FROM ") :].partition(_GROUP_BY)[0]
    key = random.choice(["a.k", "a.id % 3", "a.id % 2"])
    length, slide = random.choice([(2, 2), (5, 5), (6, 2), (9, 3)])
    window = f"TUMBLE({length} SECONDS)" if length == slide else f"HOP({length} SECONDS, {slide} SECONDS)"
    return f"SELECT {key} AS g, count(*) AS n, sum(a.id) AS total, window_end{sources}{_GROUP_BY}{key}, {window}"


def run(trial: Trial) -> Outcome:
    """Run a trial to its end and ask the oracle."""
    plans = {query.name: trial.plan(query) for query in trial.queries}
    event_times = dict.fromkeys(trial.tables, EVENT_TIME)
    sites = SimulatedSites(
        plans,
        event_times,
        seed=trial.seed,
        model_of=lambda sender, receiver: trial.links[sender, receiver],
        delays_us=trial.delays_us,
        interval_us=trial.intervals_us,
        buckets=trial.buckets,
        start_us={query.name: query.start_us for query in trial.queries},
        homes=trial.homes,
        sites=sorted(trial.intervals_us) if trial.changes else (),
        changes=bool(trial.changes),
        history=trial.history,
        form=trial.form,
        slack_us=trial.slack_us,
        crashes=_at_commits(trial) if trial.commit_crashes else None,
    )
    for feed in trial.feeds:
        sites.feed(feed.time_us, {feed.stream: feed.rows})
    for crash in trial.crashes:
        if crash.site in sites.sites:
            sites.crash(crash.site, crash.time_us, crash.down_us)
    for change in trial.changes:
        _ask_for(sites, trial, change)
    sites.run(_MAX_EVENTS)
    answers, expected = {}, {}
    for name, versions in _versions(trial, sites).items():
        answers[name] = sum((bag_of(table) for table in sites.answers(name)), Bag())
        expected[name] = _expected(trial, sites, versions)
    return Outcome(trial, plans, answers, expected, sites, not sites.kernel.pending)


def _at_commits(trial: Trial) -> CommitCrash:
    """Crashes just before and after commits, above all those of a phase of a change."""
    random, left = Random(f"{trial.seed} commits"), iter(range(trial.commit_crashes))

    def crash(site: SimulatedSite, ledger: SiteLedger) -> CrashNow | None:
        is_phase = ledger.versions != site.ledger.versions
        if random.random() >= (0.4 if is_phase else 0.03) or next(left, None) is None:
            return None
        return CrashNow(random.random() < 0.5, random.choice(_DOWN_US))

    return crash


def _ask_for(sites: SimulatedSites, trial: Trial, change: TrialChange) -> None:
    plans = tuple(
        QueryPlan(query.name, trial.plan(query), query.start_us, is_fresh=query.is_fresh) for query in change.planned
    )
    sites.change(change.time_us, Change(plans, change.removed), change.site)


@dataclass(frozen=True)
class _Version:
    """A query as it is answered for heads of a span of time."""

    query: TrialQuery
    start_us: int | None
    from_us: int | None = None
    until_us: int | None = None
    is_fresh: bool = True  # what it asks for began with it; otherwise only the plan is another


def _versions(trial: Trial, sites: SimulatedSites) -> dict[str, list[_Version]]:
    """By query, what was to be answered when, by what the sites have agreed on."""
    found = {query.name: [_Version(query, query.start_us)] for query in trial.queries}
    planned = {trial.plan(query): query for change in trial.changes for query in change.planned}
    for entry in sites.takeovers:
        if entry.refused:
            continue
        for name in entry.change.queries:
            if name in found:
                found[name][-1] = replace(found[name][-1], until_us=entry.at_us)
        for one in entry.change.plans:
            start_us = entry.at_us if one.is_fresh else found[one.query][-1].start_us
            version = _Version(planned[one.plan], start_us, entry.at_us, is_fresh=one.is_fresh)
            found.setdefault(one.query, []).append(version)
    return found


def _expected(trial: Trial, sites: SimulatedSites, versions: Sequence[_Version]) -> Bag:
    """The answers of all versions of a query by the reference semantics, as far as heads have got them."""
    event_times = dict.fromkeys(trial.tables, EVENT_TIME)
    whole, is_distinct = Bag(), False
    for number, version in enumerate(versions):
        parsed = trial.parsed(version.query)
        if parsed.grouping is not None:
            if version.is_fresh:
                later = [one for one in versions[number + 1 :] if one.is_fresh]
                last = versions[versions.index(later[0]) - 1] if later else versions[-1]
                whole += _expected_groups(trial, sites, replace(version, until_us=last.until_us))
            continue
        is_distinct = parsed.distinct
        marked_us, is_begun = horizon(sites, trial.plan(version.query))
        ends = [end for end in (marked_us, version.until_us) if end is not None]

        def before(instant_us: int | None, parsed: JoinQuery = parsed, start_us: int | None = version.start_us) -> Bag:
            asked = replace(parsed, distinct=False)
            found = answer(asked, trial.tables, event_times, start_us=start_us, heads_before_us=instant_us)
            return bag_of(found)

        if is_begun:
            bag = before(min(ends, default=None))
            whole += bag if version.from_us is None else bag - before(version.from_us)
    return Bag(dict.fromkeys(whole, 1)) if is_distinct else whole


def _expected_groups(trial: Trial, sites: SimulatedSites, version: _Version) -> Bag:
    """The groups of output windows that all streams have passed, and that end before the query is another."""
    parsed = trial.parsed(version.query)
    marks = [_reached_us(sites, source.stream) for source in parsed.sources]
    ends = [mark for mark in (*marks, version.until_us) if mark is not None]
    if None in marks:
        return Bag()
    event_times = dict.fromkeys(trial.tables, EVENT_TIME)
    times = {"start_us": version.start_us, "heads_before_us": version.until_us, "watermark_us": min(ends)}
    return bag_of(answer(parsed, trial.tables, event_times, **times))


def _reached_us(sites: SimulatedSites, stream: str) -> int | None:
    """The watermark of a stream, also of one that nobody reads any more."""
    site = sites.sites[sites.homes[stream]]
    return watermark(site.ledger.streams.get(stream), site.delays_us[stream])


def horizon(sites: SimulatedSites, plan: Plan) -> tuple[int | None, bool]:
    """Before which instant heads have their answers (None: all have), and whether there is such an instant.

    Rows of a ROWS window have no order beyond the watermark of their stream: heads there are still to wait. In a
    symmetric join with such a window all rows wait until the watermarks of all its streams have passed them.
    """
    join = join_plan_of(plan)
    counted = [scan for scan in join.scans if isinstance(scan.window, Rows)]
    waited_for = join.scans if counted and is_symmetric(join) else counted
    marks = [_reached_us(sites, scan.stream) for scan in waited_for]
    known = [mark for mark in marks if mark is not None]
    return min(known, default=None), len(known) == len(marks)


def is_symmetric(join: JoinPlan) -> bool:
    """Whether a plan is a symmetric multi-way join for all keys."""
    return all(isinstance(sub_plan, Symmetric) for sub_plan in join.sub_plans)


def _streams(random: Random, aliases: Sequence[str]) -> dict[str, str]:
    """A stream for each alias; sometimes the same one for several."""
    if random.random() < 0.25:
        return {alias: f"s{random.randint(1, len(aliases) - 1)}" for alias in aliases}
    return {alias: f"s{number + 1}" for number, alias in enumerate(aliases)}


@dataclass(frozen=True)
class _Sql:
    """The text of a query in parts, so that others can have some of them."""

    windows: Mapping[str, str]  # by alias
    stream_of: Mapping[str, str]
    where: tuple[str, ...]
    items: tuple[str, ...]
    is_distinct: bool = False

    @property
    def text(self) -> str:
        froms = ", ".join(f"{self.stream_of[alias]} {window} AS {alias}" for alias, window in self.windows.items())
        select = f"SELECT {'DISTINCT ' if self.is_distinct else ''}{', '.join(self.items)} FROM {froms}"
        return f"{select} WHERE {' AND '.join(self.where)}" if self.where else select

    def distinct(self, random: Random) -> "_Sql":
        """The different values of a few columns that have few of them."""
        one, other = random.sample(list(self.windows), 2)
        coarse = [f"{one}.k", f"{other}.m", f"{one}.s", f"{other}.id % 2", f"{one}.m + {other}.k", f"lower({other}.s)"]
        items = random.sample(coarse, random.randint(1, 3))
        named = tuple(f"{item} AS c{number}" for number, item in enumerate(items))
        return replace(self, items=named, is_distinct=True)

    def other_items(self, random: Random) -> "_Sql":
        """The same join with other output columns, and perhaps one more condition on combinations."""
        aliases = list(self.windows)
        one, other = random.sample(aliases, 2)
        items = [f"{alias}.id AS {alias}_id" for alias in random.sample(aliases, random.randint(1, len(aliases)))]
        items += random.sample([f"{one}.s AS s", f"{one}.m * 10 + {other}.m AS both", f"{other}.ts AS at"], 2)
        more = (f"{one}.id {random.choice(['<>', '<'])} {other}.id",) if random.random() < 0.3 else ()
        return replace(self, where=(*self.where, *more), items=tuple(items))


def _sql(random: Random, aliases: Sequence[str], stream_of: Mapping[str, str]) -> _Sql:
    attributes = random.choice(_ATTRIBUTES)
    where = [
        f"{one}.{left} = {other}.{right}"
        for one, other in _edges(random, aliases)
        for left, right in random.sample(attributes, random.choice([1, 1, len(attributes)]))
    ]
    if random.random() < 0.05:
        where.append(f"lower({aliases[0]}.s) = lower({aliases[-1]}.s)")
    if random.random() < 0.3:
        where.append(f"{random.choice(aliases)}.id > {random.randint(0, 2)}")
    if random.random() < 0.2:
        where.append(f"{random.choice(aliases)}.m IS NOT NULL")
    if random.random() < 0.3:
        where.append(f"{aliases[0]}.id {random.choice(['<>', '<=', '>'])} {aliases[-1]}.id")
    kinds = random.choice(_WINDOW_KINDS)
    windows = {alias: _window(random, kinds, len(aliases)) for alias in aliases}
    items = [f"{alias}.id AS {alias}_id" for alias in aliases]
    if random.random() < 0.2:
        items = items[: random.randint(1, len(items))]  # fewer columns, so that answers repeat
    if random.random() < 0.3:
        items.append(f"{random.choice(aliases)}.{random.choice('kms')} AS more")
    return _Sql(windows, stream_of, tuple(where), tuple(items))


# Conditions on combinations: comparisons that the join itself applies, sums that may fail, and what needs an evaluator.
_RESIDUALS = (
    "{a}.id < {b}.id + 3",
    "{a}.m <> {b}.m",
    "{b}.ts BETWEEN {a}.ts - INTERVAL 3 SECONDS AND {a}.ts + INTERVAL 2 SECONDS",
    "{a}.ts <= {b}.ts",
    "abs({a}.id - {b}.id) < 6",
    "({a}.s < {b}.s OR {a}.s IS NULL OR NOT {b}.id > {a}.m)",
    "{a}.id % 3 <> {b}.id % 3",
    "{a}.id - {b}.id > {c}.m - 5",
    "{a}.m + {b}.m + {c}.m < 6",
)


def _with_residuals(random: Random, sql: _Sql) -> _Sql:
    """The join with none, one or several conditions on combinations."""
    aliases = list(sql.windows)
    more = []
    for template in random.sample(_RESIDUALS, random.choice([0, 0, 1, 1, 2, 3])):
        one, other, third = random.choices(aliases, k=3) if len(aliases) == 2 else random.sample(aliases, 3)
        more.append(template.format(a=one, b=other, c=third))
    return replace(sql, where=(*sql.where, *more))


def _edges(random: Random, aliases: Sequence[str]) -> list[Edge]:
    chosen = random.choice([*TOPOLOGIES, "tree", "tree", "product"])
    if chosen in TOPOLOGIES:
        return edges_of(chosen, random.sample(aliases, len(aliases)))
    if chosen == "product" and len(aliases) < 4 and random.random() < 0.3:
        return []
    tree = [(aliases[random.randrange(number)], aliases[number]) for number in range(1, len(aliases))]
    more = [random.sample(aliases, 2) for _ in range(random.randint(0, 2))]
    return [*tree, *((one, other) for one, other in more)]


def _window(random: Random, kinds: str, aliases: int) -> str:
    """A window of one of the kinds, longer where more streams must meet in it."""
    match random.choice(kinds):
        case "R":
            return f"[RANGE {random.randint(aliases - 1, 4 * aliases)} SECONDS]"
        case "T":
            return f"[TUMBLE {random.randint(aliases, 4 * aliases)} SECONDS]"
        case "N":
            return f"[ROWS {random.randint(1, 2 * aliases + 2)}]"
        case _:
            return "[UNBOUNDED]"


def _stream(random: Random, keys: int, most: int, delay: int, is_fine: bool) -> pa.Table:
    """Rows with ties, NULLs, perhaps a hot key, and no more disorder than the delay allows."""
    rows = random.randint(0, 2) if random.random() < 0.02 else random.randint(most // 2, most)
    clock, hot = random.randint(-2, 2), random.choice([0.0, 0.0, 0.6])
    columns: dict[str, list[object]] = {name: [] for name in SCHEMA.names}
    for number in range(rows):
        clock += random.choice([0, 0, 1, 1, 2])
        ts = (clock - random.randint(0, delay)) * _SECOND
        if is_fine:
            ts += random.choice([0, 0, 1, _SECOND - 1])
        null = random.randrange(60)
        columns["k"].append(None if null == 0 else 1 if random.random() < hot else random.randint(1, keys))
        columns["m"].append(None if null == 1 else random.randint(1, 2))
        columns["s"].append(None if null == 2 else random.choice("xxyY"))
        columns["id"].append(number)
        columns["ts"].append(None if null == 3 else ts)
    return pa.table({name: pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names})


def _hops(random: Random, aliases: Sequence[str], sites: Sequence[str]) -> dict[str, tuple[Hop, ...]]:
    """Any order, method and place for every head; a head left out goes as in `central`."""
    only = random.choice([*Method, *[None] * 12])
    plan = {}
    for head in aliases:
        if random.random() < 0.1:
            continue
        others = [alias for alias in aliases if alias != head]
        plan[head] = tuple(_hop(random, alias, only, sites) for alias in random.sample(others, len(others)))
    return plan


def _hop(random: Random, alias: str, only: Method | None, sites: Sequence[str]) -> Hop:
    method = only or random.choice(list(Method))
    at = random.choice(sites) if random.random() < 0.15 else None
    return Hop(alias, method, at, bloom=method.startswith("SM") and random.random() < 0.4)


def _mixed(random: Random, join: JoinPlan, sites: Sequence[str]) -> JoinPlan:
    """Up to four sub-plans, linear, trees or symmetric joins, each for a part of the values of some key."""
    exact = [one for one in join.classes if one.exact]
    count = random.randint(1, 4) if exact else 1
    sub_plans = tuple(_sub_plan(random, join, sites) for _ in range(count))
    partition = _partition(random, random.choice(exact), count) if count > 1 else None
    return replace(join, sub_plans=sub_plans, partition=partition)


def _meeting(random: Random, join: JoinPlan, sites: Sequence[str]) -> SubPlan:
    """All joins at one site, which fetches or is sent rows that are reduced: a tree, or a sequence for each head."""
    aliases, at = [scan.alias for scan in join.scans], random.choice(sites)
    if random.random() < 0.5 and not any(counted(scan.window) is not None for scan in join.scans):
        first, *others = random.sample(aliases, len(aliases))
        return JoinNode(at, (Input(Leaf(first)), *(_input(random, Leaf(alias)) for alias in others)))
    heads = []
    for head in aliases:
        others = random.sample([alias for alias in aliases if alias != head], len(aliases) - 1)
        some = [Method.SM_S1, Method.SM_S1, Method.SM_S2, Method.SP_S, Method.SM_D1, Method.SM_D2]
        methods = [random.choice(some) for _ in others]
        blooms = [method is not Method.SP_S and random.random() < 0.3 for method in methods]
        hops = (Hop(*one) for one in zip(others, methods, [at] * len(others), blooms, strict=True))
        heads.append(HeadPlan(head, tuple(hops)))
    return Linear(tuple(heads))


def _partition(random: Random, key: KeyClass, sub_plans: int) -> Partition:
    match random.choice("hrv"):
        case "h":
            return Partition(
                key.number, HashParts(tuple(random.randrange(sub_plans) for _ in range(random.randint(1, 6))))
            )
        case "r":
            bounds = tuple(sorted(random.sample(range(-1, 8), random.randint(1, 4))))
            return Partition(key.number, RangeParts(bounds, tuple(random.randrange(sub_plans) for _ in (*bounds, 0))))
        case _:
            values = tuple(sorted(random.sample(range(7), random.randint(0, 4))))
            return Partition(
                key.number,
                ValueParts(values, tuple(random.randrange(sub_plans) for _ in values), random.randrange(sub_plans)),
            )


def _sub_plan(random: Random, join: JoinPlan, sites: Sequence[str]) -> SubPlan:
    aliases = tuple(scan.alias for scan in join.scans)
    counts_rows = any(counted(scan.window) is not None for scan in join.scans)  # then symmetric joins wait for longer
    if counts_rows or random.random() < 0.3:
        drawn = _hops(random, aliases, sites)
        plan = {head: tuple(placed(hop, join.home(hop.alias)) for hop in hops) for head, hops in drawn.items()}
        asked = {head.head: head for head in join.heads}
        return Linear(tuple(HeadPlan(head, plan[head]) if head in plan else asked[head] for head in aliases))
    if random.random() < 0.2:
        return symmetric(aliases, join.classes, random.choice(sites))
    nodes: list[Tree] = [Leaf(alias) for alias in random.sample(aliases, len(aliases))]
    while len(nodes) > 1:
        chosen = [nodes.pop(random.randrange(len(nodes))) for _ in range(min(len(nodes), random.choice([2, 2, 3])))]
        places = [*sites, *(join.home(node.alias) for node in chosen if isinstance(node, Leaf))]
        nodes.append(JoinNode(random.choice(places), (Input(chosen[0]), *(_input(random, one) for one in chosen[1:]))))
    (root,) = nodes
    assert isinstance(root, JoinNode)
    return root


def _input(random: Random, node: Tree) -> Input:
    reduction = random.choice(list(Reduction))
    return Input(node, reduction, bloom=reduction is not Reduction.NONE and random.random() < 0.4)


def _links(random: Random, sites: Sequence[str]) -> dict[tuple[str, str], LinkModel]:
    """A model for each direction between two sites: the same everywhere, or each its own."""
    same = _link(random)
    is_same = random.random() < 0.5
    return {pair: same if is_same else _link(random) for pair in permutations(sites, 2)}


def _link(random: Random) -> LinkModel:
    drawn = LinkModel(
        latency_us=random.choice([0, 25_000, 500_000]),
        bandwidth_bps=random.choice([None, None, 1e5]),
        jitter_us=random.choice([0, 0, 400_000]),
        loss=random.choice([0.0, 0.0, 0.3]),
        duplicate=random.choice([0.0, 0.0, 0.3]),
    )
    return replace(drawn, damage=0.2) if drawn.loss or drawn.duplicate else drawn


def _feeds(random: Random, tables: Mapping[str, pa.Table], count: int) -> Iterator[Feed]:
    pace_us = random.choice([50_000, _SECOND, _SECOND, 40 * _SECOND])
    for stream, table in sorted(tables.items()):
        cuts = sorted(random.randint(0, table.num_rows) for _ in range(count - 1))
        times = accumulate(random.randrange(2 * pace_us) for _ in range(count))
        for time_us, (low, high) in zip(times, pairwise([0, *cuts, table.num_rows]), strict=True):
            if high > low:
                yield Feed(time_us, stream, table.slice(low, high - low))


def _crashes(random: Random, sites: Sequence[str]) -> Iterator[Crash]:
    for _ in range(random.choice([0, 0, 1, 4])):
        down_us = random.choice(_DOWN_US)
        yield Crash(random.choice(sites), random.randrange(random.choice([2, 12]) * _SECOND), down_us)


def describe(trial: Trial) -> Iterator[str]:
    """A trial in words, line by line."""
    yield f"seed {trial.seed}: {trial.buckets} bucket(s)"
    yield "homes: " + ", ".join(f"{stream} at {home}" for stream, home in sorted(trial.homes.items()))
    for query in trial.queries:
        start = "" if query.start_us is None else f", from {_seconds(query.start_us)} on"
        yield f"{query.name} at {query.site}{start}: {query.sql}"
        if query.symmetric_at is not None:
            yield f"  plan: symmetric join at {query.symmetric_at}"
        elif query.meet is not None:
            yield f"  plan: rows that are reduced meet at one site, drawn from {query.meet}"
        elif query.mix is not None:
            yield f"  plan: sub-plans of parts of a key, drawn from {query.mix}"
        elif not query.hops:
            yield "  plan: central"
        else:
            for head, hops in query.hops.items():
                yield f"  plan of head {head}: " + ", ".join(map(_shown_hop, hops))
    intervals = (f"{site} every {_seconds(interval_us)}" for site, interval_us in trial.intervals_us.items())
    yield "micro-batches: " + ", ".join(intervals)
    yield "delays: " + ", ".join(f"{stream} {_seconds(delay_us)}" for stream, delay_us in trial.delays_us.items())
    models = dict.fromkeys(trial.links.values())
    for model in models:
        pairs = [f"{one}->{other}" for (one, other), own in trial.links.items() if own == model]
        yield f"link {'everywhere' if len(models) == 1 else ' '.join(pairs)}: {model}"
    for feed in trial.feeds:
        yield f"at {_seconds(feed.time_us)}: {feed.rows.num_rows} rows of {feed.stream}"
    for change in trial.changes:
        plans = ", ".join(f"{'new ' if query.is_fresh else ''}{query}" for query in change.planned)
        yield f"at {_seconds(change.time_us)} at {change.site}: {plans} ends {', '.join(change.removed) or 'nothing'}"
    if trial.changes:
        yield f"agreement {trial.form}, slack {_seconds(trial.slack_us)}, {'with' if trial.history else 'no'} history"
    for crash in trial.crashes:
        yield f"at {_seconds(crash.time_us)}: {crash.site} crashes for {_seconds(crash.down_us)}"
    if trial.commit_crashes:
        yield f"up to {trial.commit_crashes} crashes as ledgers are committed"


def _shown_hop(hop: Hop) -> str:
    at = "" if hop.at is None else f" at {hop.at}"
    return f"{hop.method}{' by Bloom filter' if hop.bloom else ''} to {hop.alias}{at}"


def _seconds(time_us: int) -> str:
    return f"{time_us / _SECOND:g} s"


def main(arguments: Sequence[str] | None = None, tell: Callable[[str], object] = print) -> int:
    """Replay one seed in full, or a range of seeds with all but the failures left out; 1 if any of them fails."""
    parser = argparse.ArgumentParser("python -m watersmeet.sim.sites.trial", description=main.__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("stop", type=int, nargs="?", help="try all seeds from SEED up to this one, not included")
    parser.add_argument("--size", choices=tuple(_ROWS), default="small")
    parser.add_argument("--changes", action="store_true", help="let plans and queries change while it runs")
    asked = parser.parse_args(arguments)
    seeds = range(asked.seed, asked.seed + 1 if asked.stop is None else asked.stop)
    drawn = draw_changing if asked.changes else draw
    failed = [seed for seed in seeds if not _replay(drawn(seed, size=asked.size), tell, in_full=asked.stop is None)]
    if asked.stop is not None:
        tell(f"{len(seeds)} seeds, {len(failed)} failed{': ' if failed else ''}{', '.join(map(str, failed))}")
    return 1 if failed else 0


def _replay(trial: Trial, tell: Callable[[str], object], *, in_full: bool) -> bool:
    seed = trial.seed
    if in_full:
        tell("\n".join(describe(trial)))
    try:
        outcome = run(trial)
    except Exception:
        tell(f"seed {seed}: {traceback.format_exc()}replay: {trial.command}")
        return False
    if in_full or not outcome.is_right:
        tell(outcome.verdict)
        for name in outcome.wrong:
            for word, rows in (("missing", outcome.missing(name)), ("too many", outcome.surplus(name))):
                for row, count in sorted(rows.items(), key=repr):
                    tell(f"  {name} {word}: {row}{f' x {count}' if count > 1 else ''}")
    return outcome.is_right


if __name__ == "__main__":
    sys.exit(main())
