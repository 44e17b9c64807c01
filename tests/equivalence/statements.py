"""Random statements from a seed in which any clause may stand in any other.

Joins, ROWS windows, outer joins, EXISTS, IN, tables, DISTINCT, groups with HAVING and ORDER BY ... LIMIT, UNION ALL,
subqueries, WITH; EMIT CHANGES at the top. A deployment is several of them, with views that they share, some of views.

Every SELECT has the columns k, m, s, id, and f: whether it comes of rows that only let watermarks pass all others.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from equivalence.outer_scenes import FIRST_FLUSH_ID, LAST_S, SCHEMA, SECOND, TABLE, Lookup, draw_rows
from equivalence.test_outer_views import plans_of
from scenes import write_batches

import watersmeet as wm
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.model import EVENT_TIME, Output, Target
from watersmeet.query.oracle import answer_outputs
from watersmeet.query.sql import parse_script
from watersmeet.query.windows import AsOf
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed_outputs
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.site import TableSource

STREAMS = ("s0", "s1", "s2")
SCHEMAS = {**dict.fromkeys(STREAMS, SCHEMA), "t0": TABLE}
_KINDS = (
    "filter",
    "join",
    "join",
    "outer",
    "outer",
    "exists",
    "rows",
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


@dataclass(frozen=True)
class Drawn:
    """Queries that run together, and the views that they may read, each before those that read it."""

    views: Mapping[str, Statement]
    queries: Mapping[str, Statement]
    is_refreshed: bool = False  # the table


class _Drawing:
    """Draws SELECTs, and remembers what it has drawn."""

    def __init__(self, random: Random, views: Sequence[str] = (), kinds: Sequence[str] = _KINDS) -> None:
        self.random = random
        self.views = views
        self.kinds = kinds
        self.clauses: set[str] = set()
        self.common: list[str] = []  # common table expressions

    def statement(self, *, is_view: bool = False) -> Statement:
        depth = self.random.choice([1, 2, 2, 3])
        sql = self._changes() if self.random.random() < 0.15 and not is_view else self.select(depth)
        text = f"WITH {', '.join(self.common)} {sql}" if self.common else sql
        return Statement(text, frozenset(self.clauses))

    def source(self, depth: int) -> str:
        """A view, a stream, a subquery or a common table expression, which comes once or twice."""
        if self.views and self.random.random() < 0.4:
            self.clauses.add("view")
            return self.random.choice(self.views)
        if depth <= 0 or self.random.random() < 0.4:
            stream = self.random.choice(STREAMS)
            if f"{stream}f" not in "".join(self.common):
                self.common.append(f"{stream}f AS (SELECT k, m, s, id, {_flag('id')} AS f FROM {stream})")
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
        kind = self.random.choice(self.kinds)
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
        a, e = self.source(depth), f"{self.source(depth - 1)} [{self._window()}] e"
        word = self.random.choice(["EXISTS", "NOT EXISTS", "IN", "NOT IN"])
        match word:
            case "IN":
                clause = self.random.choice(
                    [f"a.k IN (SELECT e.k FROM {e})", f"a.m IN (SELECT e.m FROM {e} WHERE e.id > 3)"]
                )
            case "NOT IN":
                clause = f"a.m NOT IN (SELECT e.m FROM {e} WHERE e.k = a.k)"
            case _:
                clause = f"{word} (SELECT 1 FROM {e} WHERE {self._on('a', 'e')})"
        self.clauses |= {"IN"} if word.endswith("IN") else set()
        where = [clause, *filter(None, [self._where("a")])]
        return f"SELECT a.k, a.m, a.s, a.id, a.f FROM {a} [{self._window()}] a WHERE {' AND '.join(where)}"

    def _rows(self, depth: int) -> str:
        """Streams themselves, since views have no order in which rows could be counted."""
        a, b = self.random.sample(STREAMS, 2)
        windows = [f"ROWS {self.random.choice([1, 3, 8])}", self.random.choice([self._window(), "ROWS 5"])]
        where = self._on("a", "b")
        if self.random.random() < 0.4:
            froms = f"{a} [{windows[0]}] a LEFT JOIN {b} [{windows[1]}] b ON {where}"
            flag = f"{_flag('a.id')} + {_flag('coalesce(b.id, 0)')}"
            return f"SELECT a.k, b.m, a.s, a.id, {flag} AS f FROM {froms}"
        froms, flag = f"{a} [{windows[0]}] a, {b} [{windows[1]}] b", f"{_flag('a.id')} + {_flag('b.id')}"
        return f"SELECT a.k, b.m, a.s, a.id + b.id AS id, {flag} AS f FROM {froms} WHERE {where}"

    def _changes(self) -> str:
        """The running value of groups, of streams or views; in views it is refused, so only at the top."""
        self.clauses.add("EMIT CHANGES")
        is_derived = self.random.random() < 0.5
        a, b = (self.source(1), self.source(0)) if is_derived else self.random.sample(STREAMS, 2)
        value = self.random.choice(["count(*)", "sum(a.id)", "max(a.id)", "count(DISTINCT a.m)"])

        def own(alias: str, number: str) -> str:
            return f"coalesce({alias}.f, 0)" if is_derived else _flag(number)

        froms, flag = f"{a} [{self._window(bounded=False)}] a", own("a", "a.id")
        match self.random.choice(["alone", "join", "left", "exists", "table"]):
            case "join":
                self.clauses.add("join")
                froms += f" JOIN {b} [{self._window()}] b ON {self._on('a', 'b')}"
                flag += f" + {own('b', 'b.id')}"
                if not is_derived and (chance := Random(froms)).random() < 0.5:
                    self.clauses.add("counted changes")
                    froms = re.sub(r"\[[^]]*\] a", f"[ROWS {chance.choice([1, 3, 8])}] a", froms)
            case "left":
                self.clauses.add("outer")
                froms = f"{a} [{self._window()}] a LEFT JOIN {b} [{self._window()}] b ON {self._on('a', 'b')}"
                flag += f" + {own('b', 'coalesce(b.id, 0)')}"
            case "exists":
                self.clauses.add("exists")
                inner = f"SELECT 1 FROM {b} [{self._window()}] e WHERE {self._on('a', 'e')}"
                froms = f"{a} [{self._window()}] a WHERE {self.random.choice(['', 'NOT '])}EXISTS ({inner})"
            case "table":
                self.clauses.add("table")
                froms += f" JOIN t0 t ON {self._on('a', 't')}"
        sql = f"SELECT a.k, max(a.m) AS m, min(a.s) AS s, {value} AS id, max({flag}) AS f FROM {froms} GROUP BY a.k"
        if self.random.random() < 0.4:
            self.clauses.add("HAVING")
            sql += " HAVING count(*) > 1"
        return sql + " EMIT CHANGES"

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


def _flag(number: str) -> str:
    """Whether a row only lets watermarks pass."""
    return f"CASE WHEN {number} >= {FIRST_FLUSH_ID} THEN 1 ELSE 0 END"


def draw_statement(seed: int) -> Statement:
    """The statement of a seed, always the same one."""
    return _Drawing(Random(f"statement {seed}")).statement()


def draw_inner(random: Random, views: Sequence[str]) -> str:
    """A statement that may read views, without outer joins and EXISTS."""
    while True:
        drawing = _Drawing(random, views, [kind for kind in _KINDS if kind not in ("outer", "exists")])
        sql = drawing.select(random.choice([1, 2]))
        text = f"WITH {', '.join(drawing.common)} {sql}" if drawing.common else sql
        if not re.search(r"\b(LEFT|RIGHT|FULL|EXISTS)\b", text):
            return text


def draw_deployment(seed: int) -> Drawn:
    """The queries of a seed that run together, and their views."""
    random = Random(f"deployment {seed}")
    views: dict[str, Statement] = {}
    for number in range(random.choice([1, 2, 2])):
        views[f"v{number}"] = _Drawing(random, tuple(views)).statement(is_view=True)
    queries = {f"q{number}": _Drawing(random, tuple(views)).statement() for number in range(random.choice([2, 3]))}
    return Drawn(views, queries, random.random() < 0.3)


def outputs_asked(drawn: Drawn) -> tuple[Output, ...]:
    """What a deployment asks for, and before it the views that are read."""
    columns: dict[str, Sequence[str]] = {name: schema.names for name, schema in SCHEMAS.items()}
    found: list[Output] = []
    for name, statement in (*drawn.views.items(), *drawn.queries.items()):
        found += parse_script(
            *(name, statement.sql, columns),
            allow_cross=True,
            event_times=dict.fromkeys(STREAMS, "ts"),
            derived=tuple(drawn.views),
            into=Target(name, is_stream=name in drawn.views),
            tables={"t0": AsOf(drawn.is_refreshed)},
        )
        columns[name] = found[-1].columns
    needed = set(drawn.queries)
    for output in reversed(found):
        needed |= set(output.streams) if output.target.name in needed else set()
    return tuple(output for output in found if output.target.name in needed)


def run_statement(statement: Statement, seed: int, sites: int) -> tuple[Bag, Bag]:
    """The answers of simulated sites with crashes and a bad network, and those of the reference semantics."""
    return run_deployment(Drawn({}, {"q": statement}), seed, sites)["q"]


def run_deployment(drawn: Drawn, seed: int, sites: int) -> dict[str, tuple[Bag, Bag]]:
    """The same of all queries of a deployment."""
    random = Random(f"run {seed}")
    refresh_us = 7 * SECOND if drawn.is_refreshed else None
    lookup = Lookup(Random(f"table {seed}"), refresh_us)
    outputs, schemas = typed_outputs(outputs_asked(drawn), SCHEMAS)
    used = {name for output in outputs for name in output.streams}
    delay_s = random.choice([0, 3])
    tables = {name: draw_rows(random, delay_s, 30) for name in STREAMS if name in used}
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
        tables={"t0": TableSource(lookup.read, refresh_us, (LAST_S + 5) * SECOND)} if "t0" in used else {},
    )
    for name, table in tables.items():
        cuts = sorted(random.randrange(table.num_rows + 1) for _ in range(4))
        for number, (low, high) in enumerate(zip([0, *cuts], [*cuts, table.num_rows], strict=True)):
            if high > low:
                running.feed(number * SECOND + random.randrange(SECOND), {name: table.slice(low, high - low)})
    for _ in range(random.choice([0, 0, 2])):
        running.crash(random.choice(sorted(running.sites)), random.randrange(6 * SECOND), 400_000)
    running.run()
    running.drain()
    known: Mapping[str, pa.Table] = {**tables, **({"t0": lookup.table} if "t0" in used else {})}
    expected = answer_outputs(outputs, known, dict.fromkeys(tables, "ts"))
    return {
        name: (sum((real_answers(table) for table in running.answers(name)), Bag()), real_answers(expected[name]))
        for name in drawn.queries
    }


def run_deployment_on_spark(
    spark: Any, drawn: Drawn, seed: int, sites: int, directory: Path
) -> dict[str, tuple[Bag, Bag]]:
    """The answers of Spark, with several micro-batches, and those of the reference semantics."""
    random = Random(f"run {seed}")
    lookup = Lookup(Random(f"table {seed}"), None)
    outputs, _ = typed_outputs(outputs_asked(drawn), SCHEMAS)
    names = [f"n{number}" for number in range(sites)]
    delay_s = random.choice([0, 3])
    rows = {name: draw_rows(random, delay_s, 30) for name in STREAMS}
    for name, table in rows.items():
        half = table.num_rows // 2
        write_batches(directory / name, [table.slice(0, half), table.slice(half)])
    write_batches(directory / "t0", [lookup.read(0)])
    columns = "k long, m int, s string, id long"
    topology = wm.Topology(
        tuple(
            wm.Stream(
                *(name, "ts", f"{columns}, ts timestamp"),
                wm.Source("parquet", str(directory / name), {"maxFilesPerTrigger": "1"}),
                watermark=f"{delay_s} seconds",
                site=random.choice(names),
            )
            for name in STREAMS
        ),
        tuple(
            wm.Query(name, one.sql, wm.Sink("parquet", str(directory / "out" / name)), allow_cross=True, site="n0")
            for name, one in drawn.queries.items()
        ),
        tuple(wm.Site(name) for name in names),
        str(directory),
        tables=(
            wm.Table(
                "t0",
                schema=columns,
                source=wm.Source("parquet", str(directory / "t0")),
                site=random.choice(names),
                refresh="1 hour" if drawn.is_refreshed else None,
            ),
        ),
        views=tuple(
            wm.Query(name, one.sql, allow_cross=True, site=random.choice(names)) for name, one in drawn.views.items()
        ),
        durability="process",
    )
    run = wm.start(topology, spark=spark, checkpoint=directory / "checkpoint", once=True, drain=True)
    run.awaitTermination()
    known = {**rows, "t0": lookup.table}
    expected = answer_outputs(outputs, known, dict.fromkeys(STREAMS, "ts"))
    found = {}
    for name in drawn.queries:
        files = sorted((directory / "out" / name).glob("*.parquet"))
        answers = sum((real_answers(pq.read_table(file)) for file in files), Bag())
        found[name] = (answers, real_answers(expected[name]))
    return found


def real_answers(table: pa.Table) -> Bag:
    """Answers without those that come of rows which only let watermarks pass."""
    rows: Bag = bag_of(table)
    place = table.column_names.index("f") if table.num_columns else 0
    return Bag({row: count for row, count in rows.items() if not row[place]})
