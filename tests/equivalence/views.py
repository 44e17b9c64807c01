"""Random chains of views over the streams of scenes: filters, joins, unions, DISTINCT and groups of each other."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from random import Random

import pyarrow as pa
from equivalence.model import ONE_SITE, Bag, Scene
from equivalence.reference import bag, rows_on_time, watermark_us
from equivalence.runtimes import topology_of
from equivalence.scenes import draw_scene

import watersmeet as wm
from watersmeet.plan.nodes import Plan
from watersmeet.planners.choose import choose
from watersmeet.query.oracle import answer_outputs
from watersmeet.sim.sites.rows import typed_outputs
from watersmeet.topology.views import Asked, outputs_of, with_outputs

MOST_ROWS = 900  # of any view or query
KINDS = ("filter", "join", "union", "distinct", "groups", "nested")
_PLANNERS = ("central", "greedy", "auto")


@dataclass(frozen=True, eq=False)
class ViewScene:
    """Streams of a scene, views over them, and queries that read both."""

    scene: Scene
    views: tuple[wm.Query, ...]
    queries: tuple[wm.Query, ...]

    def topology(self, directory: Path) -> wm.Topology:
        """As a user would write it."""
        sinks = [replace(one, sink=wm.Sink("parquet", str(directory / "out" / one.name))) for one in self.queries]
        bare = topology_of(self.scene, directory)
        return replace(bare, queries=tuple(sinks), views=self.views)

    def asked(self) -> tuple[Asked, ...]:
        topology = self.topology(Path("unused"))
        return outputs_of(topology, topology.queries)

    def expected(self) -> dict[str, pa.Table]:
        """By query and view, what the reference semantics has once all micro-batches have been processed."""
        used = {name for one in self.asked() for name in one.output.streams}
        streams = [stream for stream in self.scene.streams if stream.name in used]
        return answer_outputs(
            [one.output for one in self.asked()],
            {stream.name: rows_on_time(stream) for stream in streams},
            {stream.name: stream.event_time for stream in streams},
            watermarks_us={stream.name: watermark_us(stream) for stream in streams},
        )

    def plans(self) -> dict[str, Plan]:
        """The plan of every branch."""
        asked = self.asked()
        topology = with_outputs(self.topology(Path("unused")), asked)
        schemas = {stream.name: stream.schema for stream in self.scene.streams}
        outputs, _ = typed_outputs([one.output for one in asked], schemas)
        branches = [branch for output in outputs for branch in output.branches]
        return {name: choose(topology, topology.query(name), query).plan for name, query in branches}

    def bags(self) -> dict[str, Bag]:
        """The answers of queries."""
        found = self.expected()
        return {query.name: bag(found[query.name]) for query in self.queries}

    def at_one_site(self) -> "ViewScene":
        """The same with everything at one site."""
        views, queries = (
            tuple(replace(one, site=ONE_SITE, planner=None) for one in some) for some in (self.views, self.queries)
        )
        return ViewScene(self.scene.at_one_site(), views, queries)

    def describe(self) -> str:
        """The scene in words, for the message of a failure."""
        lines = [self.scene.describe()]
        for what, some in (("view", self.views), ("query", self.queries)):
            lines += [f"  {what} {one.name} at {one.site}, planner {one.planner}: {one.sql}" for one in some]
        return "\n".join(lines)


@lru_cache(maxsize=256)
def draw_views(seed: int) -> ViewScene:
    """The views of a seed, always the same ones; every query has answers, not too many."""
    random = Random(f"views {seed}")
    while True:
        scene = replace(draw_scene(random.randrange(400)), queries=())
        names, views = [stream.name for stream in scene.streams], []
        for number in range(random.randint(1, 3)):
            sql = _draw_select(random, names, random.choice(KINDS))
            views.append(_query(random, scene, f"v{number + 1}", sql))
            names += [views[-1].name] * 2  # views are read more often than streams
        queries = []
        for number in range(random.choice([1, 1, 2])):
            sql = _draw_select(random, [*names, views[-1].name, views[-1].name], random.choice(KINDS))
            queries.append(_query(random, scene, f"q{number + 1}", sql))
        drawn = ViewScene(scene, tuple(views), tuple(queries))
        if any(one.output.target.is_stream for one in drawn.asked()) and _is_fit(drawn):
            return drawn


def _is_fit(drawn: ViewScene) -> bool:
    rows = {name: table.num_rows for name, table in drawn.expected().items()}
    return all(count <= MOST_ROWS for count in rows.values()) and all(rows[one.name] > 0 for one in drawn.queries)


def _query(random: Random, scene: Scene, name: str, sql: str) -> wm.Query:
    planner = random.choice(_PLANNERS) if " a, " in sql and "UNION" not in sql else None
    return wm.Query(name, sql, site=random.choice(scene.sites), planner=planner, assume_defaults=True, allow_cross=True)


def _draw_select(random: Random, names: list[str], kind: str) -> str:
    """A statement with the columns k, m, s and id, so that any other can read it."""
    one, other = random.choice(names), random.choice(names)
    where = random.choice(["", " WHERE id % 3 <> 1", " WHERE m > 0", " WHERE s IS NOT NULL AND k < 4"])
    match kind:
        case "join":
            key = random.choice(["a.k = b.k", "a.s = b.s", "lower(a.s) = b.s", "a.k = b.k AND a.m = b.m"])
            rest = random.choice(["", " AND a.id < b.id", " AND a.id % 2 = 0", " AND b.m <> 1"])
            froms = f"{one} [{_window(random)}] a, {other} [{_window(random)}] b"
            return f"SELECT a.k, b.m, a.s, a.id + b.id AS id FROM {froms} WHERE {key}{rest}"
        case "union":
            count = f"SELECT m, m, 'n', count(*) FROM {other} GROUP BY m, TUMBLE({random.randint(2, 9)} SECONDS)"
            last = random.choice([f"SELECT k, m, s, id FROM {other}", count, f"SELECT id, m, s, k FROM {other}{where}"])
            return f"SELECT k, m, s, id FROM {one}{where} UNION ALL {last}"
        case "distinct":
            return f"SELECT DISTINCT k, m, s, id % 2 AS id FROM {one}{where}"
        case "groups":
            length = random.randint(2, 6)
            window = random.choice([f"TUMBLE({length} SECONDS)", f"HOP({2 * length} SECONDS, {length} SECONDS)"])
            return f"SELECT k, max(m) AS m, min(s) AS s, count(*) AS id FROM {one}{where} GROUP BY k, {window}"
        case "nested":
            inner = _draw_select(random, names, random.choice(["filter", "join", "distinct", "groups", "union"]))
            if random.random() < 0.5:
                return f"WITH c AS ({inner}) SELECT k, m, s, id FROM c{where}"
            return (
                f"SELECT a.k, a.m, b.s, b.id FROM ({inner}) [{_window(random)}] a, {other} [{_window(random)}] b "
                "WHERE a.k = b.k AND a.id <= b.id"
            )
        case _:
            return f"SELECT k, m, upper(s) AS s, id FROM {one}{where}"


def _window(random: Random) -> str:
    return random.choice(
        ["RANGE 1 SECOND", "RANGE 4 SECONDS", "TUMBLE 5 SECONDS", "RANGE 500 MILLISECONDS", "UNBOUNDED"]
    )


def kinds_of(drawn: ViewScene) -> set[str]:
    """What a scene tries."""
    asked = drawn.asked()
    found = {f"{len(drawn.queries)} queries"}
    depth: dict[str, int] = {}
    for one in asked:
        output = one.output
        depth[output.target.name] = 1 + max((depth.get(stream, 0) for stream in output.streams), default=0)
        found |= {"union"} if len(output.branches) > 1 else set()
        for _, query in output.branches:
            streams = [source.stream for source in query.sources]
            reads = [stream in depth for stream in streams]
            found |= {"self-join of a view"} if len(set(streams)) < len(streams) and all(reads) else set()
            found |= {"view with a stream"} if any(reads) and not all(reads) else set()
            if output.target.is_stream:
                found |= {"DISTINCT in a view"} if query.distinct else set()
                found |= {"GROUP BY in a view"} if query.grouping is not None else set()
            found |= {"GROUP BY of a view"} if query.grouping is not None and any(reads) else set()
    readers = [name for one in asked for name in one.output.streams if name in depth]
    found |= {"a view with two readers"} if len(readers) > len(set(readers)) else set()
    sites = {one.site for one in asked if one.site} | {query.site for query in drawn.queries}
    return found | {f"depth {max(depth.values())}"} | ({"several sites"} if len(sites) > 1 else {"one site"})
