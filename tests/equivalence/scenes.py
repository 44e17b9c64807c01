"""Random scenes: streams with everything that real ones have, and queries of every kind over them, from one seed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import combinations, pairwise
from math import inf, nan
from random import Random

import pyarrow as pa
from equivalence.model import Scene, SceneQuery, SceneStream
from equivalence.reference import expected_table, rows_on_time, watermark_us

import watersmeet as wm
from watersmeet.planners.choose import NAMES
from watersmeet.topology.model import METHODS, PARTITIONS

SECOND_US = 1_000_000
STAMP = pa.timestamp("us", "UTC")
GRAPHS = ("chain", "star", "cycle", "clique")
MOST_ANSWERS = 1_500
_ATTEMPTS = 25

_BASES = (
    datetime(2025, 1, 1, tzinfo=UTC),
    datetime(2024, 2, 29, 23, 59, 50, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 50, tzinfo=UTC),
)
_TEXTS = ("", "a", "A", "Zürich", "東京", "🙂 b", "o'neil", "a b")
_DATES = (date(2024, 2, 29), date(2025, 1, 1), date(1969, 12, 31), date(2100, 12, 31))
_GLITCHES = (-1, 2**63 - 1, -(2**63), 2**32)
_NUMBERS = (0.0, 0.5, 1.5, 2.25, -3.0, 1e300, inf, -inf, nan)
_WINDOW_KINDS = ("R", "R", "R", "T", "T", "U", "N", "RT", "RTU", "RT", "RN", "RTNU")
# Which columns the edges of a join graph equate; of several, each edge draws one or takes all.
_KEYS = (
    (("k", "k"),),
    (("k", "k"),),
    (("m", "m"),),
    (("s", "s"),),
    (("d", "d"),),
    (("k", "m"), ("k", "k")),
    (("k", "k"), ("m", "m")),
    (("s", "s"), ("d", "d"), ("k", "k")),
    (("k", "k"), ("lower({}.s)", "lower({}.s)")),
    (("m", "m"), ("{}.k % 3", "{}.m")),
)
_FILTERS = (
    "{a}.id > 3",
    "{a}.id % 4 <> 1",
    "{a}.m <> 1",
    "{a}.m IN (0, 1)",
    "coalesce({a}.m, 0) < 2",
    "{a}.s IS NOT NULL",
    "{a}.s <> 'Zürich'",
    "{a}.s LIKE 'a%' OR {a}.k < 2",
    "{a}.v >= 0.5",
    "{a}.d < DATE '2100-01-01'",
)
_RESIDUALS = (
    "{a}.id < {b}.id",
    "{a}.id <> {b}.id",
    "{a}.v <= {b}.v",
    "{a}.{ta} <= {b}.{tb}",
    "{a}.m + {b}.m <> 2",
    "{a}.s <> {b}.s",
    "({a}.m < {b}.m OR {a}.s = {b}.s)",
    "{b}.id BETWEEN {a}.id - 9 AND {a}.id + 9",
    "NOT {a}.v <=> {b}.v",
)
_ITEMS = (
    "{a}.k",
    "{a}.s",
    "{a}.d",
    "{a}.v",
    "{a}.{ta}",
    "{a}.m + {b}.id * 2",
    "{a}.v + {b}.v",
    "{a}.s || '-' || {b}.s",
    "CASE WHEN {a}.m > {b}.m THEN 'more' WHEN {a}.m = {b}.m THEN {a}.s ELSE 'less' END",
    "coalesce({a}.k, {b}.k, -7)",
    "lower({a}.s)",
)
_COARSE_ITEMS = ("{a}.m", "{a}.s", "{a}.d", "lower({a}.s)", "{a}.id % 2", "{a}.m + {b}.m", "coalesce({a}.s, '?')", "1")
_GROUP_KEYS = ("{a}.m", "{a}.s", "{a}.d", "lower({a}.s)", "{a}.id % 2", "{a}.k", "{a}.v", "coalesce({a}.s, {b}.s)")
_AGGREGATES = (
    "count(*)",
    "count({a}.m) FILTER (WHERE {a}.m > 1 OR {b}.s IS NULL)",
    "count(DISTINCT {a}.s)",
    "sum(DISTINCT {a}.m + {b}.m)",
    "sum({a}.id)",
    "sum({a}.m + {b}.id) * 2",
    "sum(CASE WHEN {a}.v BETWEEN -10 AND 10 THEN {a}.v END)",
    "avg(DISTINCT {a}.m) FILTER (WHERE {a}.k IS NOT NULL)",
    "approx_count_distinct({a}.s)",
    "approx_percentile({a}.id, array(0.1, 0.5))",
    "approx_top_k({a}.m, 2)",
    "avg(CASE WHEN {a}.v BETWEEN -10 AND 10 THEN {a}.v END)",
    "min({a}.v)",
    "max({a}.v)",
    "max({a}.s)",
    "min({a}.d)",
    "max({a}.{ta})",
    "round(var_samp({a}.id), 6)",
    "round(stddev_pop({a}.m + {b}.m), 6)",
    "max({a}.id) - min({b}.id) + count(*)",
    "CASE WHEN count(*) > 2 THEN 'many' ELSE lower(min({a}.s)) END",
)
_HAVINGS = ("count(*) > 1", "max({a}.id) <> 7 AND count(*) < 9", "sum({a}.m) >= 1 OR min({b}.s) IS NULL")


@lru_cache(maxsize=512)
def draw_scene(seed: int) -> Scene:
    """The scene of a seed, always the same one; every query of it has answers."""
    random = Random(seed)
    while True:
        count = random.choice([1, 2, 2, 3, 3, 4])
        sites = [f"n{number + 1}" for number in range(random.choice([1, 2, 2, 3, 3]))]
        streams = _draw_streams(random, count, sites)
        places = (*sites, "hub")
        scene = Scene(seed, streams, (), places, has_stats=random.random() < 0.7)
        joins: list[_Join] = []
        queries = [
            query
            for number in range(random.choice([1, 2, 2, 3, 4]))
            if (query := _draw_query(random, scene, f"q{number + 1}", joins)) is not None
        ]
        if queries:
            return Scene(seed, streams, tuple(queries), places, scene.has_stats)


# Streams --------------------------------------------------------------------------------------------------------------


def _draw_streams(random: Random, count: int, sites: Sequence[str]) -> tuple[SceneStream, ...]:
    """Streams of the same minute, whose values are few."""
    base_us = _us(random.choice(_BASES))
    keys = random.randint(2, 5)
    texts, dates = random.sample(_TEXTS, 3), random.sample(_DATES, 2)
    drafts = []
    for number in range(count):
        delay_us = random.choice([0, 1, 3]) * SECOND_US
        event_time = random.choice(["ts", "ts", "seen_at"])
        rows = _draw_rows(random, base_us, delay_us, keys, texts, dates)
        table = pa.Table.from_pylist([row | {event_time: row.pop("ts")} for row in rows], schema=_schema(event_time))
        drafts.append(SceneStream(f"s{number + 1}", random.choice(sites), event_time, delay_us, _cut(random, table)))
    return tuple(_closed(drafts) if random.random() < 0.75 else drafts)


def _closed(streams: Sequence[SceneStream]) -> list[SceneStream]:
    """Each with a last row that joins nothing by key, and moves the watermark past everything before it."""
    closing = _instant(max(map(watermark_us, streams)) + 3_600 * SECOND_US)
    return [
        replace(
            stream,
            batches=(
                *stream.batches,
                pa.Table.from_pylist([{"id": -1, stream.event_time: closing}], schema=stream.schema),
            ),
        )
        for stream in streams
    ]


def _schema(event_time: str) -> pa.Schema:
    return pa.schema(
        [
            ("k", pa.int64()),
            ("m", pa.int32()),
            ("s", pa.string()),
            ("d", pa.date32()),
            ("v", pa.float64()),
            ("id", pa.int64()),
            (event_time, STAMP),
        ]
    )


def _draw_rows(
    random: Random, base_us: int, delay_us: int, keys: int, texts: Sequence[str], dates: Sequence[date]
) -> Iterator[dict[str, object]]:
    """Rows in order of arrival: ties, disorder within the delay, rows far behind it, NULLs and odd values."""
    clock_us = base_us + random.choice([0, 1, 2]) * SECOND_US
    hot = random.choice([0.0, 0.0, 0.5])
    for number in range(random.randint(20, 60)):
        clock_us += random.choice([0, 0, 1, 1, 2]) * SECOND_US
        ts = clock_us
        if delay_us:
            ts -= random.choice([0, 0, delay_us // 2, delay_us])
        if random.random() < 0.06:
            ts = clock_us - delay_us - random.choice([1, SECOND_US, 9 * SECOND_US])
        elif random.random() < 0.1:
            ts += random.choice([-1, 1, 500_000])
        k = 1 if random.random() < hot else random.randrange(keys)
        odd = random.random()
        row: dict[str, object] = {
            "k": random.choice(_GLITCHES) if odd < 0.05 else k,
            "m": random.randrange(3),
            "s": random.choice(texts),
            "d": random.choice(dates),
            "v": random.choice(_NUMBERS),
        }
        for name in row:
            if random.random() < 0.04:
                row[name] = None
        yield row | {"id": number, "ts": None if random.random() < 0.02 else _instant(ts)}


def _cut(random: Random, table: pa.Table) -> tuple[pa.Table, ...]:
    """Three to seven micro-batches, now and then an empty one among them."""
    cuts = sorted(random.randint(1, table.num_rows) for _ in range(random.randint(2, 6)))
    return tuple(table.slice(low, high - low) for low, high in pairwise([0, *cuts, table.num_rows]))


def _us(instant: datetime) -> int:
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _instant(ts_us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ts_us)


# Queries --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Join:
    """The part of a query that several queries of a scene may have in common: aliases, their streams and equalities."""

    stream_of: Mapping[str, str]
    equalities: tuple[str, ...]
    is_cross: bool

    @property
    def aliases(self) -> list[str]:
        return list(self.stream_of)


def _draw_query(random: Random, scene: Scene, name: str, joins: list[_Join]) -> SceneQuery | None:
    """A query with some answers, not too many; None if there seems to be none over these streams."""
    for _ in range(_ATTEMPTS):
        join = random.choice(joins) if joins and random.random() < 0.6 else _draw_join(random, scene)
        query = _draw_over(random, scene, name, join)
        if _has_fit_answers(scene, query):
            joins.append(join)
            return query
    return None


def _has_fit_answers(scene: Scene, query: SceneQuery) -> bool:
    """Whether there are some answers, not too many; under DISTINCT, whether it removes any."""
    table = expected_table(scene, query)
    if not 0 < table.num_rows <= MOST_ANSWERS:
        return False
    if not scene.parsed(query).distinct:
        return True
    plain = replace(query, sql=query.sql.replace("SELECT DISTINCT", "SELECT", 1))
    return bool(table.num_rows < expected_table(scene, plain).num_rows)


def _draw_join(random: Random, scene: Scene) -> _Join:
    names = [stream.name for stream in scene.streams]
    aliases = list("abcd")[: random.choice([2, 2, 2, 3, 3, 4])]
    if len(names) >= len(aliases) and random.random() < 0.8:
        chosen = random.sample(names, len(aliases))
    else:
        chosen = [random.choice(names) for _ in aliases]
    is_cross = len(aliases) < 4 and random.random() < 0.06
    edges = edges_of(random.choice(GRAPHS), aliases[:-1] if is_cross else aliases)
    keys = random.choice(_KEYS)
    equalities = [
        f"{_side(one, left)} = {_side(other, right)}"
        for one, other in edges
        for left, right in random.sample(keys, random.choice([1, 1, 1, len(keys)]))
    ]
    return _Join(dict(zip(aliases, chosen, strict=True)), tuple(dict.fromkeys(equalities)), is_cross)


def _side(alias: str, column: str) -> str:
    return column.format(alias) if "{}" in column else f"{alias}.{column}"


def edges_of(graph: str, aliases: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of aliases that a join graph of this shape ties together."""
    match graph:
        case "star":
            return [(aliases[0], other) for other in aliases[1:]]
        case "cycle" if len(aliases) > 2:
            return [*pairwise(aliases), (aliases[-1], aliases[0])]
        case "clique":
            return list(combinations(aliases, 2))
        case _:
            return list(pairwise(aliases))


def _draw_over(random: Random, scene: Scene, name: str, join: _Join) -> SceneQuery:
    """Windows, filters, residual predicates and output columns over a join; its site and who plans it."""
    aliases = join.aliases
    kinds = random.choice(_WINDOW_KINDS)
    windows = {alias: _draw_window(random, random.choice(kinds), len(aliases)) for alias in aliases}
    where = list(join.equalities)
    if random.random() < 0.45:
        where.append(_filled(random, scene, join, random.choice(_FILTERS)))
    if random.random() < (0.8 if join.is_cross else 0.35):
        where.append(_filled(random, scene, join, random.choice(_RESIDUALS)))
    is_distinct = random.random() < 0.2
    items = _draw_items(random, scene, join, is_distinct=is_distinct)
    froms = ", ".join(f"{stream} [{windows[alias]}] AS {alias}" for alias, stream in join.stream_of.items())
    sql = f"SELECT {'DISTINCT ' if is_distinct else ''}{', '.join(items)} FROM {froms}"
    sql += f" WHERE {' AND '.join(f'({one})' if ' OR ' in one else one for one in where)}" if where else ""
    own = Random(f"{scene.seed} {sql}")
    if not is_distinct and own.random() < 0.35:
        sql = _draw_groups(own, scene, join, sql[sql.index(" FROM ") :])
    plan = _draw_plan(random, aliases, scene.sites) if random.random() < 0.3 else None
    if own.random() < 0.08:
        sql, plan = _draw_single(own, scene, join, windows), None
    names = ("central",) if join.is_cross else NAMES  # a cross product has no key to plan by
    planner = None if plan is not None else random.choice(names)
    return SceneQuery(
        name,
        sql,
        site=random.choice(scene.sites),
        planner=planner,
        plan=plan,
        partition=random.choice([None, *PARTITIONS]) if planner == "pmjoin" else None,
        start=_draw_start(random, scene) if random.random() < 0.1 else None,
        allow_cross=join.is_cross,
    )


def _draw_window(random: Random, kind: str, aliases: int) -> str:
    match kind:
        case "R":
            lengths_ms = [500, 1_000, 3_000, 8_000, 20_000] if aliases < 4 else [1_000, 4_000]
            return f"RANGE {random.choice(lengths_ms)} MILLISECONDS"
        case "T":
            return f"TUMBLE {random.randint(2, 15)} SECONDS"
        case "N":
            return f"ROWS {random.randint(1, 8)}"
        case _:
            return "UNBOUNDED" if aliases < 4 or random.random() < 0.3 else "RANGE 5 SECONDS"


def _filled(random: Random, scene: Scene, join: _Join, template: str) -> str:
    one, other = random.sample(join.aliases, 2) if len(join.aliases) > 1 else join.aliases * 2
    times = {alias: scene.stream(stream).event_time for alias, stream in join.stream_of.items()}
    return template.format(a=one, b=other, ta=times[one], tb=times[other])


def _draw_items(random: Random, scene: Scene, join: _Join, *, is_distinct: bool) -> list[str]:
    if is_distinct:
        templates = random.sample(_COARSE_ITEMS, random.randint(1, 3))
        return [f"{_filled(random, scene, join, item)} AS c{number}" for number, item in enumerate(templates)]
    ids = [f"{alias}.id AS {alias}_id" for alias in join.aliases]
    if random.random() < 0.25:
        ids = random.sample(ids, random.randint(1, len(ids)))  # fewer columns, so that answers repeat
    more = random.sample(_ITEMS, random.choice([0, 0, 1, 2, 3]))
    return [*ids, *(f"{_filled(random, scene, join, item)} AS x{number}" for number, item in enumerate(more))]


def _draw_single(random: Random, scene: Scene, join: _Join, windows: Mapping[str, str]) -> str:
    """A query over one of the streams alone."""
    alias = random.choice(join.aliases)
    single = _Join({alias: join.stream_of[alias]}, (), is_cross=False)
    rest = f" FROM {join.stream_of[alias]}{random.choice(['', f' [{windows[alias]}]'])} AS {alias}"
    if random.random() < 0.7:
        rest += f" WHERE {_filled(random, scene, single, random.choice(_FILTERS))}"
    if random.random() < 0.8:
        return _draw_groups(random, scene, single, rest)
    return f"SELECT {', '.join(_draw_items(random, scene, single, is_distinct=False))}{rest}"


def _draw_groups(random: Random, scene: Scene, join: _Join, rest: str) -> str:
    """A query that groups the answers of another by some keys and an output window."""
    keys = random.sample(_GROUP_KEYS, random.choice([0, 1, 1, 2]))
    values = random.sample(_AGGREGATES, random.randint(1, 4))
    values.sort(key=_has_array)  # a sort key comes first
    slide = random.choice([1, 2, 5, 30])
    window = random.choice(
        [f"TUMBLE({slide} SECONDS)", f"HOP({slide * random.randint(1, 4)} SECONDS, {slide} SECONDS)"]
    )
    window = random.choice([window, window, "HOP(5 SECONDS, 3 SECONDS)", "TUMBLE(1 HOUR)"])
    items = [f"{_filled(random, scene, join, item)} AS k{number}" for number, item in enumerate(keys)]
    by = [item.rsplit(" AS ", 1)[0] for item in items]
    items += [f"{_filled(random, scene, join, item)} AS v{number}" for number, item in enumerate(values)]
    changes = " [ROWS" not in rest and Random(rest).random() < 0.3
    if changes:
        items += random.choice([[], ["changed_at AS at"], ["deleted", "changed_at"]])
        sql = f"SELECT {', '.join(items)}{rest}" + (f" GROUP BY {', '.join(by)}" if by else "")
        if random.random() < 0.3:
            sql += f" HAVING {_filled(random, scene, join, random.choice(_HAVINGS))}"
        return f"{sql} EMIT CHANGES"
    items += random.choice([[], ["window_start"], ["window_start", "window_end"]])
    random.shuffle(items)
    sql = f"SELECT {', '.join(items)}{rest} GROUP BY {', '.join([*by, window])}"
    if random.random() < 0.3:
        sql += f" HAVING {_filled(random, scene, join, random.choice(_HAVINGS))}"
    if random.random() < 0.3 and not _has_array(values[0]):
        order = [f"v0 {random.choice(['', 'DESC', 'DESC NULLS FIRST', 'ASC NULLS LAST'])}", *random.sample(by, len(by))]
        sql += f" ORDER BY {', '.join(order)} LIMIT {random.randint(1, 3)}"
    return sql


def _has_array(aggregate: str) -> bool:
    return "array" in aggregate or "top_k" in aggregate


def _draw_plan(random: Random, aliases: Sequence[str], sites: Sequence[str]) -> tuple[wm.HeadSteps, ...]:
    """Any order, method and place for every head; a head left out goes as with the planner central."""
    heads = [alias for alias in aliases if random.random() < 0.9] or list(aliases[:1])
    only = random.choice([*METHODS, *[None] * len(METHODS)])
    return tuple(
        wm.HeadSteps(
            head,
            tuple(
                _draw_step(random, alias, only or random.choice(METHODS), sites)
                for alias in random.sample([one for one in aliases if one != head], len(aliases) - 1)
            ),
        )
        for head in heads
    )


def _draw_step(random: Random, alias: str, method: str, sites: Sequence[str]) -> wm.PlanStep:
    at = random.choice(sites) if random.random() < 0.15 else None
    return wm.PlanStep(alias, method, at, bloom=method.startswith("SM") and random.random() < 0.4)


def _draw_start(random: Random, scene: Scene) -> str:
    """An instant among the first rows."""
    stream = random.choice(scene.streams)
    times = sorted(rows_on_time(stream).column(stream.event_time).cast(pa.int64()).to_pylist())
    return _instant(times[random.randrange(len(times) // 2)]).replace(tzinfo=None).isoformat(sep=" ")
