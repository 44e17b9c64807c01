"""A scene as a frozen value: streams in micro-batches, queries over them, and how the network behaves.

Nothing here knows the engine; `runtimes.py` is the only module of the suite that does.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

import watersmeet as wm
from watersmeet.query.model import JoinQuery
from watersmeet.query.sql import parse_query
from watersmeet.query.windows import format_duration

Bag = Counter[tuple[Any, ...]]
ONE_SITE = "here"

_DDL = {
    pa.int64(): "long",
    pa.int32(): "int",
    pa.float64(): "double",
    pa.string(): "string",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
}


@dataclass(frozen=True, eq=False)
class SceneStream:
    """A stream, the site where it arrives, and its rows in the micro-batches they come in."""

    name: str
    home: str
    event_time: str
    delay_us: int
    batches: tuple[pa.Table, ...]

    @property
    def schema(self) -> pa.Schema:
        return self.batches[0].schema

    @property
    def ddl(self) -> str:
        return ", ".join(f"{field.name} {_DDL[field.type]}" for field in self.schema)

    @property
    def watermark(self) -> str:
        return format_duration(self.delay_us)


@dataclass(frozen=True, eq=False)
class SceneQuery:
    """A query, where its answers are wanted, and who plans it: a planner by name, or the steps given here."""

    name: str
    sql: str
    site: str
    planner: str | None = None
    plan: tuple[wm.HeadSteps, ...] | None = None
    partition: str | None = None
    start: str | None = None
    allow_cross: bool = False

    @property
    def start_us(self) -> int | None:
        return wm.Query(self.name, self.sql, start=self.start).start_us


@dataclass(frozen=True, eq=False)
class Scene:
    """All that decides what the answers are, and which plans find them."""

    seed: int
    streams: tuple[SceneStream, ...]
    queries: tuple[SceneQuery, ...]
    sites: tuple[str, ...]
    has_stats: bool = True  # whether planners know rates and values, or assume defaults

    def stream(self, name: str) -> SceneStream:
        return next(stream for stream in self.streams if stream.name == name)

    def parsed(self, query: SceneQuery) -> JoinQuery:
        columns = tuple((stream.name, stream.event_time, *stream.schema.names) for stream in self.streams)
        return _parsed(query.sql, columns)

    def is_at_one_site(self, query: SceneQuery) -> bool:
        """Whether a query has all its streams where its answers are wanted, and nobody gave it a plan."""
        homes = {self.stream(source.stream).home for source in self.parsed(query).sources}
        return query.plan is None and homes == {query.site}

    def at_one_site(self) -> "Scene":
        """The same streams and queries with everything at one site."""
        return replace(
            self,
            streams=tuple(replace(stream, home=ONE_SITE) for stream in self.streams),
            queries=tuple(
                replace(query, site=ONE_SITE, planner=None, plan=None, partition=None) for query in self.queries
            ),
            sites=(ONE_SITE,),
        )

    def describe(self) -> str:
        """The scene in words, for the message of a failure."""
        lines = [f"scene {self.seed}: sites {', '.join(self.sites)}"]
        for stream in self.streams:
            rows = "+".join(str(batch.num_rows) for batch in stream.batches)
            lines.append(f"  {stream.name} ({stream.ddl}) at {stream.home}, watermark {stream.watermark}: {rows} rows")
        for query in self.queries:
            start = f" from {query.start}" if query.start else ""
            who = "explicit plan" if query.plan else f"planner {query.planner}"
            lines.append(f"  {query.name} at {query.site}{start}, {who}: {query.sql}")
            lines += [f"    head {head.head}: {', '.join(map(_shown, head.steps))}" for head in query.plan or ()]
        return "\n".join(lines)


@lru_cache(maxsize=2_048)
def _parsed(sql: str, columns: tuple[tuple[str, ...], ...]) -> JoinQuery:
    names = {name: rest for name, _, *rest in columns}
    event_times = {name: event_time for name, event_time, *_ in columns}
    return parse_query(sql, names, allow_cross=True, event_times=event_times)


def _shown(step: wm.PlanStep) -> str:
    place = f" at {step.at}" if step.at else ""
    return f"{step.method}{' Bloom' if step.bloom else ''} {step.join}{place}"


@dataclass(frozen=True, slots=True)
class NetworkBehaviour:
    """How links between sites behave, and how many times a site crashes; a lost message is sent again."""

    jitter_us: int = 0
    loss: float = 0.0
    duplicate: float = 0.0
    damage: float = 0.0
    crashes: int = 0


NETWORKS = {
    "reliable": NetworkBehaviour(),
    "reordering": NetworkBehaviour(jitter_us=900_000),
    "loss": NetworkBehaviour(loss=0.3, damage=0.2),
    "duplication": NetworkBehaviour(duplicate=0.4, jitter_us=100_000),
    "crashes": NetworkBehaviour(crashes=3),
    "everything": NetworkBehaviour(jitter_us=400_000, loss=0.2, duplicate=0.2, damage=0.1, crashes=2),
}
