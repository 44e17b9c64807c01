"""The SQL of random trials: join graphs, windows, residual predicates, DISTINCT and GROUP BY."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from random import Random

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

WINDOW_KINDS = ("R", "T", "N", "U", "RT", "RN", "RTNU", "RTNU", "RTNU")  # a letter a kind, see drawn_window

GROUP_BY = " GROUP BY "

Edge = tuple[str, str]

SECOND_US = 1_000_000

MINUTE_US = 60 * SECOND_US


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


def varied(random: Random, sql: str) -> str:
    """Another query over the same streams with the same columns."""
    alias = "a"
    condition = f"{alias}.id % {random.choice([2, 3])} <> 1"
    sql, by, tail = sql.partition(GROUP_BY)
    return sql + (f" AND {condition}" if " WHERE " in sql else f" WHERE {condition}") + by + tail


def grouped(random: Random, sql: str) -> str:
    """The answers of a query counted and added up, by a key or by none, in an output window."""
    sources = sql[sql.index(" FROM ") :].partition(GROUP_BY)[0]
    key = random.choice(["a.k", "a.id % 3", "a.id % 2"])
    length, slide = random.choice([(2, 2), (5, 5), (6, 2), (9, 3)])
    window = f"TUMBLE({length} SECONDS)" if length == slide else f"HOP({length} SECONDS, {slide} SECONDS)"
    return f"SELECT {key} AS g, count(*) AS n, sum(a.id) AS total, window_end{sources}{GROUP_BY}{key}, {window}"


def drawn_streams(random: Random, aliases: Sequence[str]) -> dict[str, str]:
    """A stream for each alias; sometimes the same one for several."""
    if random.random() < 0.25:
        return {alias: f"s{random.randint(1, len(aliases) - 1)}" for alias in aliases}
    return {alias: f"s{number + 1}" for number, alias in enumerate(aliases)}


@dataclass(frozen=True)
class DrawnSql:
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

    def distinct(self, random: Random) -> "DrawnSql":
        """The different values of a few columns that have few of them."""
        one, other = random.sample(list(self.windows), 2)
        coarse = [f"{one}.k", f"{other}.m", f"{one}.s", f"{other}.id % 2", f"{one}.m + {other}.k", f"lower({other}.s)"]
        items = random.sample(coarse, random.randint(1, 3))
        named = tuple(f"{item} AS c{number}" for number, item in enumerate(items))
        return replace(self, items=named, is_distinct=True)

    def other_items(self, random: Random) -> "DrawnSql":
        """The same join with other output columns, and perhaps one more condition on combinations."""
        aliases = list(self.windows)
        one, other = random.sample(aliases, 2)
        items = [f"{alias}.id AS {alias}_id" for alias in random.sample(aliases, random.randint(1, len(aliases)))]
        items += random.sample([f"{one}.s AS s", f"{one}.m * 10 + {other}.m AS both", f"{other}.ts AS at"], 2)
        more = (f"{one}.id {random.choice(['<>', '<'])} {other}.id",) if random.random() < 0.3 else ()
        return replace(self, where=(*self.where, *more), items=tuple(items))


def drawn_sql(random: Random, aliases: Sequence[str], stream_of: Mapping[str, str]) -> DrawnSql:
    """A statement over aliases of streams: a join graph, windows, filters and a select list."""
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
    kinds = random.choice(WINDOW_KINDS)
    windows = {alias: drawn_window(random, kinds, len(aliases)) for alias in aliases}
    items = [f"{alias}.id AS {alias}_id" for alias in aliases]
    if random.random() < 0.2:
        items = items[: random.randint(1, len(items))]  # fewer columns, so that answers repeat
    if random.random() < 0.3:
        items.append(f"{random.choice(aliases)}.{random.choice('kms')} AS more")
    return DrawnSql(windows, stream_of, tuple(where), tuple(items))


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


def with_residuals(random: Random, sql: DrawnSql) -> DrawnSql:
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


def drawn_window(random: Random, kinds: str, aliases: int) -> str:
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
