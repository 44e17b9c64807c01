"""Random outer joins, EXISTS and NOT EXISTS from a seed: queries, rows, sites, plans and faults."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from random import Random

import pyarrow as pa

from watersmeet.plan.nodes import Hop, JoinPlan, Method, OuterJoin, Plan, join_plan_of, with_join
from watersmeet.plan.shape import matching_of
from watersmeet.planners.local import local, symmetric
from watersmeet.planners.sited import central, explicit
from watersmeet.program.site.changes import Change, QueryPlan
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.model import JoinQuery
from watersmeet.query.oracle import answer, versioned
from watersmeet.query.outer import branches_of
from watersmeet.query.sql import parse_query
from watersmeet.query.windows import AsOf, Range, Rows, Tumble
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.site import TableSource

SCHEMA = pa.schema(
    [("k", pa.int64()), ("m", pa.int32()), ("s", pa.string()), ("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]
)
TABLE = pa.schema([("k", pa.int64()), ("m", pa.int32()), ("s", pa.string()), ("id", pa.int64())])
COLUMNS_OF_TABLES = {"s0": SCHEMA.names, "s1": SCHEMA.names, "t0": TABLE.names}
SECOND = 1_000_000
LAST_S = 60  # rows of the scene are before this instant
FLUSH_S = (10_000, 20_000)  # rows that no equality matches, by which watermarks pass all others
MOST_COUNTED = 4
FIRST_FLUSH_ID = 1_000
_READ_US = (LAST_S + 5) * SECOND  # a table is not read again after this

CHAINS = (
    "{a} LEFT JOIN {b} ON {ab}",
    "{a} RIGHT JOIN {b} ON {ab}",
    "{a} FULL OUTER JOIN {b} ON {ab}",
    "{a} LEFT JOIN {b} ON {ab} LEFT JOIN {c} ON {ac}",
    "{a} LEFT JOIN {b} ON {ab} LEFT JOIN {c} ON {bc}",
    "{a} LEFT JOIN {b} ON {ab} JOIN {c} ON {ac}",
    "{a} JOIN {b} ON {ab} LEFT JOIN {c} ON {ac}",
    "{a} JOIN {b} ON {ab} FULL JOIN {c} ON {bc}",
    "{a} LEFT JOIN {b} ON {ab} FULL JOIN {c} ON {ac}",
    "{a} FULL JOIN {b} ON {ab} LEFT JOIN {c} ON {bc}",
    "{a} FULL JOIN {b} ON {ab} FULL JOIN {c} ON {ac}",
    "{a} LEFT JOIN {b} ON {ab} RIGHT JOIN {c} ON {ac}",
    "{a} FULL JOIN {b} ON {ab} JOIN {c} ON {ac}",
    "{a} LEFT JOIN {b} ON {ab} LEFT JOIN {c} ON {ac} LEFT JOIN {d} ON {ad}",
    "{a} FULL JOIN {b} ON {ab} FULL JOIN {c} ON {ac} FULL JOIN {d} ON {ad}",
    "{a} LEFT SEMI JOIN {b} ON {ab}",
    "{a} LEFT ANTI JOIN {b} ON {ab} LEFT JOIN {c} ON {ac}",
    "{c}, {a} LEFT JOIN {b} ON {ab}",
)
BOTH_SIDES = (
    "{a} LEFT JOIN {b} ON {ab}, {c} LEFT JOIN {d} ON {cd}",
    "{a} FULL JOIN {b} ON {ab}, {c} LEFT JOIN {d} ON {cd}",
    "{a} LEFT JOIN {b} ON {ab}, {c} FULL JOIN {d} ON {cd}",
    "{a} LEFT JOIN {b} ON {ab}, {c} LEFT JOIN {d} ON {cd} LEFT JOIN {e} ON {ce}",
)
TABLE_CHAINS = (
    "{a} LEFT JOIN {t} ON {at}",
    "{t} RIGHT JOIN {a} ON {at}",
    "{a} LEFT JOIN {t} ON {at} LEFT JOIN {u} ON {au}",
    "{a} LEFT JOIN {t} ON {at} LEFT JOIN {u} ON {tu}",
    "{a} JOIN {t} ON {at} LEFT JOIN {u} ON {tu}",
    "{a} LEFT JOIN {b} ON {ab} LEFT JOIN {t} ON {bt}",
    "{a} LEFT JOIN {b} ON {ab} LEFT JOIN {t} ON {at}",
    "{a} JOIN {b} ON {ab} LEFT JOIN {t} ON {bt}",
    "{a} FULL JOIN {b} ON {ab} LEFT JOIN {t} ON {at}",
    "{a} LEFT ANTI JOIN {t} ON {at}",
    "{a} LEFT SEMI JOIN {t} ON {at} LEFT JOIN {b} ON {ab}",
)
STATIC_CHAINS = (  # streams are joined after the table
    "{a} LEFT JOIN {t} ON {at} LEFT JOIN {b} ON {ab}",
    "{a} LEFT JOIN {t} ON {at} JOIN {b} ON {bt}",
    "{a} JOIN {t} ON {at} LEFT JOIN {b} ON {bt}",
    "{a} JOIN {t} ON {at} FULL JOIN {b} ON {ab}",
)
TABLE_CLAUSES = (
    "EXISTS (SELECT 1 FROM t0 v WHERE {av})",
    "NOT EXISTS (SELECT 1 FROM t0 v WHERE {av})",
    "a.k IN (SELECT v.k FROM t0 v)",
    "a.k NOT IN (SELECT v.m FROM t0 v WHERE v.k = a.k)",
    "NOT EXISTS (SELECT 1 FROM {e} WHERE {ae})",
)
CLAUSES = (
    "EXISTS (SELECT 1 FROM {e} WHERE {ae})",
    "NOT EXISTS (SELECT * FROM {e} WHERE {ae})",
    "a.k IN (SELECT e.k FROM {e})",
    "a.k NOT IN (SELECT e.m FROM {e} WHERE e.k = a.k)",
    "EXISTS (SELECT 1 FROM {e}, {f} WHERE {ae} AND e.k = f.k)",
)


@dataclass
class Lookup:
    """A table whose rows are others whenever it is read; remembers what was read."""

    random: Random
    refresh_us: int | None
    read_at: list[int] = field(default_factory=list)
    versions: list[pa.Table] = field(default_factory=list)

    def read(self, now_us: int) -> pa.Table:
        count = self.random.choice([0, 3, 6, 6])
        rows = [(_key(self.random), self.random.choice([None, 1, 2, 3]), number) for number in range(count)]
        keys, numbers, ids = zip(*rows, strict=True) if rows else ((), (), ())
        texts = [None if k is None else f"key {k}" for k in keys]
        self.read_at.append(now_us)
        self.versions.append(pa.table([keys, numbers, texts, ids], schema=TABLE))
        return self.versions[-1]

    @property
    def table(self) -> pa.Table:
        """What the oracle gets."""
        return versioned(self.versions, self.read_at[1:])


@dataclass(frozen=True)
class OuterScene:
    """A query, whole streams in order of arrival, and how they are run."""

    seed: int
    sql: str
    query: JoinQuery
    tables: Mapping[str, pa.Table]
    homes: Mapping[str, str]
    site: str
    delay_us: int
    lookup: "Lookup | None" = None  # the table t0

    @property
    def columns(self) -> dict[str, list[str]]:
        return dict.fromkeys(self.tables, SCHEMA.names) | {"t0": TABLE.names}

    @property
    def event_times(self) -> dict[str, str]:
        return dict.fromkeys(self.tables, "ts")

    @property
    def expected(self) -> Bag:
        """What the reference semantics ask for."""
        lookup = {} if self.lookup is None else {"t0": self.lookup.table}
        return without_flush(bag_of(answer(self.query, {**self.tables, **lookup}, self.event_times)))

    def with_late_rows(self) -> "LateScene":
        """The same rows in an order in which some are late, whatever the delay."""
        random = Random(f"late {self.seed}")
        batches = {}
        for name, table in self.tables.items():
            times = table.column("ts").cast(pa.int64()).to_pylist()
            real = [i for i, ts in enumerate(times) if ts < FLUSH_S[0] * SECOND]
            held = {i: times[i] + (random.uniform(0, 30) * SECOND if random.random() < 0.5 else 0) for i in real}
            order = sorted(real, key=held.__getitem__)
            cuts = sorted(random.randint(0, len(order)) for _ in range(6))
            parts = [order[low:high] for low, high in zip([0, *cuts], [*cuts, len(order)], strict=True)]
            rest = list(range(len(real), len(times)))
            batches[name] = tuple(table.take(pa.array(part, pa.int64())) for part in (*parts, rest) if part)
        return LateScene(self, batches)


@dataclass(frozen=True)
class LateScene:
    """A scene whose streams come in given micro-batches."""

    scene: OuterScene
    batches: Mapping[str, tuple[pa.Table, ...]]

    @property
    def on_time(self) -> dict[str, pa.Table]:
        """The rows that take part: those not before the watermark of earlier micro-batches."""
        found = {}
        for name, batches in self.batches.items():
            kept, latest = [], -(1 << 62)
            for batch in batches:
                times = batch.column("ts").cast(pa.int64()).to_pylist()
                kept.append(batch.filter(pa.array([ts >= latest - self.scene.delay_us for ts in times])))
                latest = max(latest, *times)
            found[name] = pa.concat_tables(kept)
        return found

    @property
    def expected(self) -> Bag:
        """What the reference semantics ask for."""
        return without_flush(bag_of(answer(self.scene.query, self.on_time, self.scene.event_times)))


def draw(
    seed: int,
    chain: str | None = None,
    *,
    grouped: bool = False,
    distinct: bool = False,
    changes: bool = False,
    table: bool = False,
    most: int = 25,
) -> OuterScene:
    """The scene of a seed: rows, groups of output windows, rows once, or changes of groups; `table` for one more."""
    random = Random(f"outer {seed}")
    lookup = None
    chains: tuple[str, ...] = CHAINS
    known = CLAUSES
    if table:
        lookup = Lookup(Random(f"table {seed}"), random.choice([None, None, 7 * SECOND]))
        chains = TABLE_CHAINS if lookup.refresh_us else (*TABLE_CHAINS, *STATIC_CHAINS)
        known = TABLE_CLAUSES
    chain = chain or random.choice(chains)
    clauses = random.sample(known, random.choice([0, 0, 1, 2])) if "{b}" in chain or table else []
    if random.random() < 0.25:
        chain, clauses = "{a}", random.sample(known, random.choice([1, 1, 2]))
    kinds = random.choice(["R", "R", "RT", "RN", "RTN", "RTNU"])
    kinds = kinds.replace("N", "T") if changes else kinds
    names = {"t": "t0 AS t", "u": "t0 AS u"}
    for alias in "abcdef":
        window = _window(random, kinds if alias != "a" else kinds.replace("U", "R"))
        names[alias] = f"s{random.randint(0, 2)} [{window}] AS {alias}"
    letters = "abcdeftuv" if table else "abcdef"
    pairs = {f"{x}{y}": _on(random, x, y) for x in letters for y in letters if x < y}
    body = chain.format(**names, **pairs)
    aliases = [alias for alias in "abcdtu" if f"{{{alias}}}" in chain]
    halves = {"t" if table else "b"} if "SEMI" in chain or "ANTI" in chain else set()
    visible = [alias for alias in aliases if alias not in halves]
    where = [clause.format(**names, **pairs) for clause in clauses]
    if ", " in chain:
        where.append("c.k = a.k")
    if random.random() < 0.4:
        some, other = random.choice(visible), random.choice(visible)
        where.append(random.choice([f"{some}.id % 3 <> 1", f"{some}.m IS NULL", f"coalesce({some}.m, {other}.id) > 1"]))
    items = ", ".join(f"{alias}.id AS {alias}_id" for alias in visible)
    if random.random() < 0.3:
        items += f", coalesce({visible[-1]}.s, 'none') AS shown"
    if grouped:
        some, other = random.choice(visible), random.choice(visible)
        window = random.choice(["TUMBLE(4 SECONDS)", "TUMBLE(15 SECONDS)", "HOP(10 SECONDS, 5 SECONDS)"])
        key = random.choice([f"{some}.k", f"coalesce({some}.m, 0)"])
        items = f"{key} AS g, count(*) AS n, count({other}.id) AS known, sum({other}.id) AS total, window_start AS w"
    if changes:
        some, other = random.choice(visible), random.choice(visible)
        key, function = f"{some}.k", random.choice(["sum", "max", "count"])
        items = f"{key} AS g, count(*) AS n, {function}({other}.id) AS total"
    if distinct:
        first = f"coalesce({', '.join(f'{alias}.id' for alias in visible)})"
        items = ", ".join(f"{alias}.k AS {alias}_k" for alias in visible)
        items = f"DISTINCT {items}, CASE WHEN {first} >= {FIRST_FLUSH_ID} THEN {FIRST_FLUSH_ID} END AS flush"
    sql = f"SELECT {items} FROM {body}" + (f" WHERE {' AND '.join(where)}" if where else "")
    sql += f" GROUP BY {key}, {window}" if grouped else f" GROUP BY {key} EMIT CHANGES" if changes else ""
    delay_s = random.choice([0, 0, 3])
    tables = {f"s{number}": draw_rows(random, delay_s, most) for number in range(3)}
    schemas = dict.fromkeys(tables, SCHEMA) | ({"t0": TABLE} if table else {})
    parsed = parse_query(
        sql,
        {name: schema.names for name, schema in schemas.items()},
        allow_cross=True,
        event_times=dict.fromkeys(tables, "ts"),
        tables={"t0": AsOf(bool(lookup.refresh_us))} if lookup else {},
    )
    query = typed(parsed, schemas)
    sites = ["n0", "n1", "n2"]
    homes = dict.fromkeys(schemas, "n0") if random.random() < 0.4 else {name: random.choice(sites) for name in schemas}
    used = {source.stream for source in query.sources}
    tables = {name: rows for name, rows in tables.items() if name in used}
    lookup = lookup if "t0" in used else None
    return OuterScene(seed, sql, query, tables, homes, random.choice(sites), delay_s * SECOND, lookup)


def plan_of(scene: OuterScene, version: int = 1) -> OuterJoin:
    """A random plan for each inner join."""
    random = Random(f"plan {scene.seed}" if version == 1 else f"plan {scene.seed} version {version}")
    expanded = branches_of(scene.query)
    plans = tuple(_branch_plan(random, scene, branch.query) for branch in expanded.branches)
    return OuterJoin(plans, matching_of(scene.query, expanded), scene.query.grouping)


def run(scene: OuterScene, *, crashes: bool = False, batches: Mapping[str, tuple[pa.Table, ...]] | None = None) -> Bag:
    """The answers of simulated sites; without `batches` the rows come in random ones."""
    return answers_of(simulated(scene, crashes=crashes, batches=batches))


def simulated(
    scene: OuterScene,
    *,
    crashes: bool = False,
    batches: Mapping[str, tuple[pa.Table, ...]] | None = None,
    versions: int = 1,
) -> SimulatedSites:
    """Sites that have run to the end of a scene, with so many plans after each other."""
    random, changing = Random(f"run {scene.seed}"), Random(f"changes {scene.seed}")
    is_timed = all(isinstance(source.window, Range | Tumble) for source in scene.query.sources)
    sites = SimulatedSites(
        plan_of(scene),
        scene.event_times,
        seed=scene.seed,
        delays_us=dict.fromkeys(scene.tables, scene.delay_us),
        model_of=lambda a, b: LinkModel(latency_us=25_000, loss=0.1, duplicate=0.1),
        buckets=random.choice([1, 2, 3]),
        homes=scene.homes,
        tables={}
        if scene.lookup is None
        else {"t0": TableSource(scene.lookup.read, scene.lookup.refresh_us, _READ_US)},
        changes=versions > 1,
        history=not is_timed or changing.random() < 0.7,
        slack_us=changing.choice([0, SECOND, 5 * SECOND]),
    )
    count = random.randint(1, 8)
    for name, some in sorted((batches or {}).items()):
        for number, batch in enumerate(some):
            sites.feed(number * 2 * SECOND + random.randint(0, SECOND), {name: batch})
    for name, table in sorted(scene.tables.items()) if batches is None else ():
        cuts = sorted(random.sample(range(table.num_rows + 1), min(count, table.num_rows)))
        for number, (low, high) in enumerate(zip([0, *cuts], [*cuts, table.num_rows], strict=True)):
            sites.feed(number * 2 * SECOND + random.randint(0, SECOND), {name: table.slice(low, high - low)})
    if crashes:
        for _ in range(random.randint(1, 4)):
            site, at = random.choice(sorted(sites.sites)), random.randint(0, count * 2 * SECOND)
            sites.crash(site, at, random.randint(1, 5 * SECOND))
    for version in range(2, versions + 1):
        change = Change((QueryPlan("q", plan_of(scene, version)),))
        sites.change(changing.randint(0, count * 2 * SECOND), change, changing.choice(sorted(sites.sites)))
    sites.run()
    return sites


def answers_of(sites: SimulatedSites) -> Bag:
    """All answers but those of the last rows."""
    found: Bag = bag_of(pa.table({}))
    for table in sites.answers():
        found += bag_of(table)
    return without_flush(found)


def without_flush(bag: Bag) -> Bag:
    """Answers without those of rows that only let watermarks pass others: the last may be undecided."""
    return Counter({row: count for row, count in bag.items() if not _is_flush(row)})


def _is_flush(row: tuple[object, ...]) -> bool:
    if times := [value for value in row if isinstance(value, datetime)]:  # of an output window, or of a row
        return max(times).timestamp() > (LAST_S + FLUSH_S[0]) / 2
    return any(isinstance(value, int) and value >= FIRST_FLUSH_ID for value in row)


def _branch_plan(random: Random, scene: OuterScene, query: JoinQuery) -> Plan:
    homes, site, columns = scene.homes, scene.site, scene.columns
    own = {homes[source.stream] for source in query.sources}
    if len(query.sources) == 1 or own == {site}:
        return local(query, columns, next(iter(own)) if len(query.sources) == 1 else site, site)
    plan = central(query, columns, homes, site)
    join = join_plan_of(plan)
    if any(isinstance(source.window, Rows) for source in scene.query.sources) or random.random() < 0.3:
        return with_join(plan, _symmetric(join, query, site))
    if random.random() < 0.5:
        return plan
    hops = {}
    for head in query.aliases:
        others = [alias for alias in query.aliases if alias != head]
        random.shuffle(others)
        hops[head] = [Hop(alias, random.choice(list(Method)), bloom=random.random() < 0.3) for alias in others]
    return explicit(query, columns, homes, site, hops)


def _symmetric(join: JoinPlan, query: JoinQuery, site: str) -> JoinPlan:
    return replace(join, sub_plans=(symmetric(query.aliases, join.classes, site),))


def _window(random: Random, kinds: str) -> str:
    match random.choice(kinds):
        case "T":
            return f"TUMBLE {random.choice([1, 5, 20])} SECONDS"
        case "N":
            return f"ROWS {random.randint(1, MOST_COUNTED)}"
        case "U":
            return "UNBOUNDED"
        case _:
            return f"RANGE {random.choice([1, 3, 10, 30])} SECONDS"


def _on(random: Random, x: str, y: str) -> str:
    parts = [random.choice([f"{x}.k = {y}.k", f"{y}.k = {x}.k", f"{x}.s = {y}.s", f"{x}.k = {y}.m"])]
    if random.random() < 0.4:
        parts.append(
            random.choice(
                [
                    f"{x}.id < {y}.id",
                    f"{y}.m > 1",
                    f"{x}.id % 2 = 0",
                    f"({x}.m IS NULL OR {y}.id > {x}.m)",
                    f"{x}.m = {y}.m",
                ]
            )
        )
    return " AND ".join(parts)


def draw_rows(random: Random, delay_s: int, most: int = 25) -> pa.Table:
    """A stream with NULL keys, equal times and disorder, and at its end rows by which watermarks pass all others."""
    count = random.randint(most // 2 if most > 25 else 1, most)
    times = sorted(
        random.uniform(0, LAST_S) if random.random() < 0.3 else random.randint(0, LAST_S) for _ in range(count)
    )
    order = sorted(range(count), key=lambda i: times[i] + random.uniform(0, delay_s))
    rows = [(_key(random), random.choice([None, 1, 2, 3]), times[i]) for i in order]
    rows += [(None, None, FLUSH_S[0])] * (MOST_COUNTED + 1) + [(None, None, FLUSH_S[1])]
    return pa.table(
        {
            "k": pa.array([k for k, _, _ in rows], pa.int64()),
            "m": pa.array([m for _, m, _ in rows], pa.int32()),
            "s": pa.array([None if k is None else f"key {k}" for k, _, _ in rows], pa.string()),
            "id": pa.array([i if i < count else FIRST_FLUSH_ID + i for i in range(len(rows))], pa.int64()),
            "ts": pa.array([round(ts * SECOND) for _, _, ts in rows], pa.timestamp("us", "UTC")),
        }
    )


def _key(random: Random) -> int | None:
    return random.choice([None, 1, 1, 2, 2, 3, 4])
