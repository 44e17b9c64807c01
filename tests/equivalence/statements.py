"""Random statements from a seed in which any clause may stand in any other.

Joins, outer joins, EXISTS, tables, DISTINCT, groups with HAVING and ORDER BY ... LIMIT, UNION ALL, subqueries, WITH.

Every SELECT has the columns k, m, s, id, and f: whether it comes of rows that only let watermarks pass all others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import pyarrow as pa
from equivalence.outer_scenes import FIRST_FLUSH_ID, SCHEMA, SECOND, TABLE, Lookup, draw_rows
from equivalence.test_outer_views import plans_of

from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.model import EVENT_TIME
from watersmeet.query.oracle import answer_outputs
from watersmeet.query.sql import parse_script
from watersmeet.query.windows import AsOf
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed_outputs
from watersmeet.sim.sites.site import SimulatedSites, TableSource

STREAMS = ("s0", "s1", "s2")
SCHEMAS = {**dict.fromkeys(STREAMS, SCHEMA), "t0": TABLE}
_KINDS = (
    "filter",
    "join",
    "join",
    "outer",
    "outer",
    "exists",
    "distinct",
    "groups",
    "groups",
    "union",
    "table",
    "chain",
)


@dataclass(frozen=True)
class Statement:
    """A statement, and the clauses that were drawn for it."""

    sql: str
    clauses: frozenset[str]


class _Drawing:
    """Draws SELECTs, and remembers what it has drawn."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.clauses: set[str] = set()
        self.common: list[str] = []  # common table expressions

    def statement(self) -> Statement:
        sql = self.select(self.random.choice([1, 2, 2, 3]))
        text = f"WITH {', '.join(self.common)} {sql}" if self.common else sql
        return Statement(text, frozenset(self.clauses))

    def source(self, depth: int) -> str:
        """A stream, a subquery or a common table expression, which comes once or twice."""
        if depth <= 0 or self.random.random() < 0.4:
            stream = self.random.choice(STREAMS)
            flag = f"CASE WHEN id >= {FIRST_FLUSH_ID} THEN 1 ELSE 0 END AS f"
            if f"{stream}f" not in "".join(self.common):
                self.common.append(f"{stream}f AS (SELECT k, m, s, id, {flag} FROM {stream})")
            return f"{stream}f"
        inner = self.select(depth - 1)
        if self.random.random() < 0.5:
            self.clauses.add("subquery")
            return f"({inner})"
        self.clauses.add("WITH")
        name = f"w{len(self.common)}"
        self.common.append(f"{name} AS ({inner})")
        return name

    def select(self, depth: int) -> str:
        kind = self.random.choice(_KINDS)
        self.clauses.add(kind)
        sql: str = getattr(self, f"_{kind}")(depth)
        return sql

    def _window(self, *, bounded: bool = True) -> str:
        kinds = ["RANGE 1 SECOND", "RANGE 4 SECONDS", "RANGE 15 SECONDS", "TUMBLE 5 SECONDS", "TUMBLE 20 SECONDS"]
        return self.random.choice(kinds if bounded else [*kinds, "UNBOUNDED"])

    def _where(self, alias: str) -> str:
        return self.random.choice(
            [
                "",
                f"{alias}.id % 3 <> 1",
                f"{alias}.m > 1",
                f"{alias}.s IS NOT NULL AND {alias}.k < 4",
                f"{alias}.m IS NULL",
            ]
        )

    def _on(self, x: str, y: str) -> str:
        key = self.random.choice(
            [f"{x}.k = {y}.k", f"{y}.s = {x}.s", f"{x}.k = {y}.m", f"{x}.k = {y}.k AND {x}.m = {y}.m"]
        )
        rest = self.random.choice(["", "", f" AND {x}.id < {y}.id", f" AND {y}.m > 1", f" AND {x}.id % 2 = 0"])
        return key + rest

    def _filter(self, depth: int) -> str:
        where = self._where("a")
        return f"SELECT k, m, lower(s) AS s, id, f FROM {self.source(depth)} a" + (f" WHERE {where}" if where else "")

    def _join(self, depth: int) -> str:
        a, b = self.source(depth), self.source(depth - 1)
        where = [self._on("a", "b"), *filter(None, [self._where("b")])]
        third = self.random.random() < 0.3
        froms = f"{a} [{self._window(bounded=False)}] a, {b} [{self._window()}] b"
        froms += f", {self.source(0)} [{self._window()}] c" if third else ""
        where += [self._on("b", "c")] if third else []
        flag = "a.f + b.f + c.f" if third else "a.f + b.f"
        return f"SELECT a.k, b.m, a.s, a.id + b.id AS id, {flag} AS f FROM {froms} WHERE {' AND '.join(where)}"

    def _outer(self, depth: int) -> str:
        side = self.random.choice(["LEFT", "RIGHT", "FULL OUTER"])
        a, b = self.source(depth), self.source(depth - 1)
        froms = f"{a} [{self._window()}] a {side} JOIN {b} [{self._window()}] b ON {self._on('a', 'b')}"
        if self.random.random() < 0.3:
            more = self.random.choice(["LEFT", "FULL"])
            froms += f" {more} JOIN {self.source(0)} [{self._window()}] c ON {self._on('a', 'c')}"
            flag, item = "coalesce(a.f, 0) + coalesce(b.f, 0) + coalesce(c.f, 0)", "coalesce(a.id, b.id, c.id)"
        else:
            flag, item = "coalesce(a.f, 0) + coalesce(b.f, 0)", "coalesce(a.id, b.id)"
        where = self.random.choice(["", "", " WHERE a.m IS NULL", " WHERE coalesce(a.id, b.id) % 3 <> 1"])
        return f"SELECT coalesce(a.k, b.k) AS k, b.m AS m, a.s AS s, {item} AS id, {flag} AS f FROM {froms}{where}"

    def _exists(self, depth: int) -> str:
        word = self.random.choice(["EXISTS", "NOT EXISTS"])
        a, e = self.source(depth), self.source(depth - 1)
        inner = f"SELECT 1 FROM {e} [{self._window()}] e WHERE {self._on('a', 'e')}"
        where = [f"{word} ({inner})", *filter(None, [self._where("a")])]
        return f"SELECT a.k, a.m, a.s, a.id, a.f FROM {a} [{self._window()}] a WHERE {' AND '.join(where)}"

    def _distinct(self, depth: int) -> str:
        if self.random.random() < 0.5:
            return f"SELECT DISTINCT k, m, s, id % 3 AS id, f FROM {self.source(depth)}"
        froms = f"{self.source(depth)} [{self._window()}] a, {self.source(depth - 1)} [{self._window()}] b"
        return f"SELECT DISTINCT a.k, b.m, a.s, b.id % 2 AS id, a.f + b.f AS f FROM {froms} WHERE {self._on('a', 'b')}"

    def _groups(self, depth: int) -> str:
        length = self.random.choice([2, 5, 12])
        window = self.random.choice([f"TUMBLE({length} SECONDS)", f"HOP({2 * length} SECONDS, {length} SECONDS)"])
        value = self.random.choice(["count(*)", "sum(a.id)", "min(a.id)", "count(DISTINCT a.m)", "max(a.id)"])
        key = self.random.choice(["a.k", "coalesce(a.k, 0)", "a.m"])
        if self.random.random() < 0.4:
            side = self.random.choice(["JOIN", "LEFT JOIN", "FULL JOIN"])
            self.clauses.add(f"groups of {side}")
            froms = f"{self.source(depth)} [{self._window()}] a {side} {self.source(depth - 1)} [{self._window()}] b"
            froms += f" ON {self._on('a', 'b')}"
            flag = "max(coalesce(a.f, 0) + coalesce(b.f, 0))"
        else:
            where = self._where("a")
            froms, flag = f"{self.source(depth)} a" + (f" WHERE {where}" if where else ""), "max(a.f)"
        sql = f"SELECT {key} AS k, max(a.m) AS m, min(a.s) AS s, {value} AS id, {flag} AS f FROM {froms} "
        sql += f"GROUP BY {key}, {window}"
        if self.random.random() < 0.4:
            self.clauses.add("HAVING")
            sql += self.random.choice(
                [" HAVING count(*) > 1", " HAVING id > 2 AND m IS NOT NULL", " HAVING max(a.id) < 20"]
            )
        if self.random.random() < 0.3:
            self.clauses.add("ORDER BY")
            sql += self.random.choice(
                [" ORDER BY id DESC, k LIMIT 2", " ORDER BY s, id LIMIT 1", " ORDER BY k LIMIT 3"]
            )
        return sql

    def _union(self, depth: int) -> str:
        some = [self.source(depth), self.source(depth - 1)]
        return " UNION ALL ".join(f"SELECT k, m, s, id, f FROM {one}" for one in some)

    def _table(self, depth: int) -> str:
        a = self.source(depth)
        match self.random.choice(["join", "left", "exists", "not exists", "two"]):
            case "join":
                froms, where = f"{a} a, t0 t", f" WHERE {self._on('a', 't')}"
            case "left":
                froms, where = f"{a} [{self._window()}] a LEFT JOIN t0 t ON {self._on('a', 't')}", ""
            case "two":
                froms = f"{a} [{self._window()}] a, {self.source(depth - 1)} [{self._window()}] b, t0 t"
                return (
                    f"SELECT a.k, t.m, b.s, a.id + b.id AS id, a.f + b.f AS f FROM {froms} "
                    f"WHERE {self._on('a', 'b')} AND b.k = t.k"
                )
            case word:
                clause = f"{word.upper()} (SELECT 1 FROM t0 t WHERE {self._on('a', 't')})"
                return f"SELECT a.k, a.m, a.s, a.id, a.f FROM {a} [{self._window()}] a WHERE {clause}"
        return f"SELECT a.k, t.m, a.s, a.id, a.f FROM {froms}{where}"

    def _chain(self, depth: int) -> str:
        """A view of a view."""
        return f"SELECT k, m, s, id, f FROM ({self.select(depth)}) x WHERE id % 5 <> 1"


def draw_statement(seed: int) -> Statement:
    """The statement of a seed, always the same one."""
    return _Drawing(Random(f"statement {seed}")).statement()


def run_statement(statement: Statement, seed: int, sites: int) -> tuple[Bag, Bag]:
    """The answers of simulated sites with crashes and a bad network, and those of the reference semantics."""
    random = Random(f"run {seed}")
    lookup = Lookup(Random(f"table {seed}"), None)
    outputs = parse_script(
        *("q", statement.sql, {name: schema.names for name, schema in SCHEMAS.items()}),
        allow_cross=True,
        event_times=dict.fromkeys(STREAMS, "ts"),
        tables={"t0": AsOf()},
    )
    outputs, schemas = typed_outputs(outputs, SCHEMAS)
    used = {name for output in outputs for name in output.streams}
    delay_s = random.choice([0, 3])
    tables = {name: draw_rows(random, delay_s, 18) for name in STREAMS if name in used}
    homes = {name: f"n{random.randrange(sites)}" for name in SCHEMAS if name in used}
    columns = {name: [one for one in schema.names if one != EVENT_TIME] for name, schema in schemas.items()}
    running = SimulatedSites(
        plans_of(outputs, columns, dict(homes)),
        dict.fromkeys(STREAMS, "ts"),
        seed=seed,
        delays_us=dict.fromkeys(tables, delay_s * SECOND),
        model_of=lambda sender, receiver: LinkModel(25_000, jitter_us=300_000, loss=0.1, duplicate=0.1),
        interval_us={f"n{number}": random.choice([100_000, 700_000]) for number in range(sites)},
        buckets=random.choice([1, 3]),
        homes=homes,
        tables={"t0": TableSource(lookup.read)} if "t0" in used else {},
    )
    for name, table in tables.items():
        cuts = sorted(random.randrange(table.num_rows + 1) for _ in range(4))
        for number, (low, high) in enumerate(zip([0, *cuts], [*cuts, table.num_rows], strict=True)):
            if high > low:
                running.feed(number * SECOND + random.randrange(SECOND), {name: table.slice(low, high - low)})
    for _ in range(random.choice([0, 0, 2])):
        running.crash(random.choice(sorted(running.sites)), random.randrange(6 * SECOND), 400_000)
    running.run()
    known: Mapping[str, pa.Table] = {**tables, **({"t0": lookup.table} if "t0" in used else {})}
    expected = answer_outputs(outputs, known, dict.fromkeys(tables, "ts"))["q"]
    found = sum((_real(table) for table in running.answers("q")), Bag())
    return found, _real(expected)


def _real(table: pa.Table) -> Bag:
    """Answers without those that come of rows which only let watermarks pass."""
    rows: Bag = bag_of(table)
    place = table.column_names.index("f") if table.num_columns else 0
    return Bag({row: count for row, count in rows.items() if not row[place]})
