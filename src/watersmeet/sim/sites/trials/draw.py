"""Random trials, each drawn from a seed and always the same."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, permutations
from random import Random

import pyarrow as pa

from watersmeet.program.site.agreement import DecidedBy
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.trials.model import SCHEMA, Feed, Size, Trial, TrialChange, TrialCrash, TrialQuery
from watersmeet.sim.sites.trials.plans import drawn_hops
from watersmeet.sim.sites.trials.run import DOWN_US
from watersmeet.sim.sites.trials.sql import (
    GROUP_BY,
    SECOND_US,
    WINDOW_KINDS,
    DrawnSql,
    drawn_sql,
    drawn_streams,
    drawn_window,
    grouped,
    varied,
    with_residuals,
)

# Rows of a stream at most, by the number of aliases: a hot key makes answers by their product.
ROWS: Mapping[Size, Mapping[int, int]] = {
    "tiny": {2: 12, 3: 8},
    "small": {2: 24, 3: 18, 4: 12, 5: 9},
    "large": {2: 150, 3: 60, 4: 24, 5: 14},
}

_FEEDS: Mapping[Size, int] = {"tiny": 2, "small": 4, "large": 14}
_WAYS: Mapping[Size, Sequence[int]] = {
    "tiny": [2, 2, 2, 3],
    "small": [2, 2, 2, 2, 3, 3, 3, 4, 5],
    "large": [2, 2, 2, 2, 3, 3, 3, 4, 5],
}
_MORE_QUERIES: Mapping[Size, Sequence[int]] = {"tiny": [0, 0, 0, 1], "small": [0, 0, 1, 1, 2], "large": [0, 0, 1, 1, 2]}


def draw(seed: int, *, size: Size = "small") -> Trial:
    """The trial of a seed, always the same one."""
    random, more = Random(seed), Random(f"{seed} more")
    aliases = list("abcde")[: random.choice(_WAYS[size])]
    stream_of = drawn_streams(random, aliases)
    streams = sorted(set(stream_of.values()))
    sql = with_residuals(Random(f"{seed} residuals"), drawn_sql(random, aliases, stream_of))
    delay = random.choice([0, 0, 2])
    is_fine = random.random() < 0.3  # instants between whole seconds, at the very edges of windows
    keys, most = random.randint(1, 7 - len(aliases)), ROWS[size][len(aliases)]
    tables = {name: _stream(random, keys, most, delay, is_fine) for name in streams}
    peers = [f"n{number + 1}" for number in range(random.randint(1, len(streams)))]
    sites = [*peers, "n0"]
    homes = {stream: random.choice(peers) for stream in streams}
    first = TrialQuery(
        "q1",
        sql.text,
        site=random.choice(sites),
        hops=None if random.random() < 0.05 else drawn_hops(random, aliases, sites),
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
        intervals_us={site: random.choice([1_000, 100_000, 700_000, 4 * SECOND_US]) for site in sites},
        delays_us=dict.fromkeys(streams, delay * SECOND_US + (SECOND_US if is_fine else 0)),
        buckets=random.choice([1, 1, 2, 3]),
    )
    start_us = random.randint(0, 8) * SECOND_US if random.random() < 0.1 else None
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


def _with_more(random: Random, trial: Trial, sql: "DrawnSql") -> Trial:
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
    for number in range(random.choice(_MORE_QUERIES[trial.size])):
        like, like_sql = random.choice(drafts)
        query, drawn = _another(random, trial, like, like_sql)
        if random.random() < 0.25:
            drawn = drawn.distinct(random)
        drafts.append((replace(query, name=f"q{number + 2}", sql=drawn.text), drawn))
    return replace(trial, queries=tuple(query for query, _ in drafts))


def _another(random: Random, trial: Trial, like: TrialQuery, sql: "DrawnSql") -> "tuple[TrialQuery, DrawnSql]":
    """A query that has the join of another one, or windows, filters or a start of its own, or just its streams."""
    sites, names = sorted(trial.intervals_us), sorted(trial.tables)
    what = random.choice(["same join", "same join", "other windows", "other filters", "other start", "other join"])
    match what:
        case "same join":
            return like, sql.other_items(random)
        case "other windows":
            kinds = random.choice(WINDOW_KINDS)
            windows = {alias: drawn_window(random, kinds, len(sql.windows)) for alias in sql.windows}
            return like, replace(sql, windows=windows)
        case "other filters":
            where = (*sql.where, f"{random.choice(list(sql.windows))}.id % {random.choice([2, 3])} <> 1")
            return like, replace(sql, where=where)
        case "other start":
            return replace(like, start_us=random.randint(0, 8) * SECOND_US), sql
        case _:
            aliases = list("abcde")[: random.randint(2, len(sql.windows))]
            drawn = drawn_sql(random, aliases, {alias: random.choice(names) for alias in aliases})
            kind = random.choice(["central", "hops", "mix", "symmetric"])
            query = TrialQuery(
                like.name,
                drawn.text,
                site=random.choice(sites),
                hops=None if kind == "central" else drawn_hops(random, aliases, sites),
                symmetric_at=random.choice(sites) if kind == "symmetric" else None,
                mix=random.randrange(10**6) if kind == "mix" else None,
            )
            return query, drawn


def draw_changing(seed: int, *, size: Size = "small") -> Trial:
    """The trial of a seed with plans and queries that change while it runs."""
    trial, random, groups = draw(seed, size=size), Random(f"{seed} changes"), Random(f"{seed} groups")
    drawn = (
        replace(query, sql=grouped(groups, query.sql)) if groups.random() < 0.25 else query for query in trial.queries
    )
    trial = replace(trial, queries=tuple(drawn))
    last_us = max((feed.time_us for feed in trial.feeds), default=0)
    running = {query.name: query for query in trial.queries}
    every, changes = len(trial.queries), []
    for time_us in sorted(random.randrange(last_us + 2 * SECOND_US) for _ in range(random.choice([1, 1, 2, 4]))):
        kind = random.choice(["plan"] * 7 + ["all plans", "add", "remove", "replace"])
        names = sorted(running)
        planned: tuple[TrialQuery, ...] = ()
        removed: tuple[str, ...] = ()
        if kind == "add" or not names:
            every += 1
            like = random.choice(trial.queries)
            query = replace(_replanned(random, trial, like), name=f"q{every}", sql=varied(random, like.sql))
            query = replace(query, sql=grouped(groups, query.sql) if groups.random() < 0.5 else query.sql)
            planned = (replace(query, start_us=None, is_fresh=True),)
        elif kind == "remove":
            removed = (random.choice(names),)
        elif kind == "replace":
            like = running[random.choice(names)]
            query = replace(_replanned(random, trial, like), sql=varied(random, like.sql))
            if GROUP_BY in query.sql:  # answers of one name have the same columns
                query = replace(query, sql=grouped(groups, query.sql))
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
        form=random.choice(list(DecidedBy)),
        slack_us=random.choice([0, 0, SECOND_US, 5 * SECOND_US]),
        commit_crashes=Random(f"{seed} commits").choice([0, 0, 2, 8]),
    )


def _replanned(random: Random, trial: Trial, query: TrialQuery) -> TrialQuery:
    """A query with any other plan."""
    sites = sorted(trial.intervals_us)
    aliases = trial.parsed(query).aliases
    kind = random.choice(["central", "hops", "hops", "mix", "mix", "symmetric"])
    return replace(
        query,
        hops=None if kind == "central" else drawn_hops(random, aliases, sites),
        symmetric_at=random.choice(sites) if kind == "symmetric" else None,
        mix=random.randrange(10**6) if kind == "mix" else None,
        meet=random.randrange(10**6) if kind == "hops" and random.random() < 0.3 else None,
    )


def _stream(random: Random, keys: int, most: int, delay: int, is_fine: bool) -> pa.Table:
    """Rows with ties, NULLs, perhaps a hot key, and no more disorder than the delay allows."""
    rows = random.randint(0, 2) if random.random() < 0.02 else random.randint(most // 2, most)
    clock, hot = random.randint(-2, 2), random.choice([0.0, 0.0, 0.6])
    columns: dict[str, list[object]] = {name: [] for name in SCHEMA.names}
    for number in range(rows):
        clock += random.choice([0, 0, 1, 1, 2])
        ts = (clock - random.randint(0, delay)) * SECOND_US
        if is_fine:
            ts += random.choice([0, 0, 1, SECOND_US - 1])
        null = random.randrange(60)
        columns["k"].append(None if null == 0 else 1 if random.random() < hot else random.randint(1, keys))
        columns["m"].append(None if null == 1 else random.randint(1, 2))
        columns["s"].append(None if null == 2 else random.choice("xxyY"))
        columns["id"].append(number)
        columns["ts"].append(None if null == 3 else ts)
    return pa.table({name: pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names})


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
    pace_us = random.choice([50_000, SECOND_US, SECOND_US, 40 * SECOND_US])
    for stream, table in sorted(tables.items()):
        cuts = sorted(random.randint(0, table.num_rows) for _ in range(count - 1))
        times = accumulate(random.randrange(2 * pace_us) for _ in range(count))
        for time_us, (low, high) in zip(times, pairwise([0, *cuts, table.num_rows]), strict=True):
            if high > low:
                yield Feed(time_us, stream, table.slice(low, high - low))


def _crashes(random: Random, sites: Sequence[str]) -> Iterator[TrialCrash]:
    for _ in range(random.choice([0, 0, 1, 4])):
        down_us = random.choice(DOWN_US)
        yield TrialCrash(random.choice(sites), random.randrange(random.choice([2, 12]) * SECOND_US), down_us)
