"""Continuous queries as values that check themselves: SQL, sink, plan, and how far the plan may change."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Any

from watersmeet.errors import InputError, TopologyError, did_you_mean
from watersmeet.query.windows import parse_duration
from watersmeet.topology.names import check_name
from watersmeet.topology.streams import Sink

# One-way joins: simple or semijoin, at the site of the rows so far (S) or of the other stream (D), in one step or two.
METHODS = ("SP-S", "SP-D", "SM-S1", "SM-S2", "SM-D1", "SM-D2")

# What planners can minimise: bytes a second on links, their price, delay, or the semijoin paper's execution time.
OBJECTIVES = ("bytes", "money", "latency", "work")

# How PMJoin partitions the values of a key: by hash, by range, or by their rates in each stream.
PARTITIONS = ("hash", "range", "rate")

# What becomes of a row or combination for which an expression of a query fails: it ends the run, is left out and
# counted, or is also written where `failed` says.
ERRORS = ("fail", "drop", "keep")

# Who decides on another plan while a query runs: the adaptive paper's procedures, by a coordinator or among the sites,
# or the query's planner; off keeps the plan.
ADAPT_MODES = ("cnu", "dnu", "planner", "off")


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a head's sequence: the alias it joins, the method, the site, and whether its keys are a Bloom filter.

    >>> PlanStep("b", "SM-D1", at="nyc", bloom=True)
    PlanStep(join='b', method='SM-D1', at='nyc', bloom=True)
    """

    join: str
    method: str = "SP-D"
    at: str | None = None
    bloom: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise TopologyError(
                f"the step that joins {self.join!r}: unknown method {self.method!r}; "
                + did_you_mean(self.method, METHODS)
            )
        if self.bloom and self.method.startswith("SP-"):
            raise TopologyError(
                f"the step that joins {self.join!r}: bloom replaces the set of keys that an SM method sends, and "
                f"{self.method} sends none; leave bloom out or choose an SM method"
            )


@dataclass(frozen=True, slots=True)
class HeadSteps:
    """The steps that the new rows of one alias, the head, take through the others."""

    head: str
    steps: tuple[PlanStep, ...]

    def __post_init__(self) -> None:
        joined = [self.head.casefold()]
        for step in self.steps:
            if step.join.casefold() in joined:
                raise TopologyError(f"head {self.head!r} joins {step.join!r} twice; join every other alias once")
            joined.append(step.join.casefold())


@dataclass(frozen=True, slots=True)
class Adapt:
    """Whether and how eagerly a query's plan changes while it runs.

    `threshold` is the relative change of the cost of a one-way join from which on the plan is considered again, and
    `min_interval` the least time between two plans.

    >>> Adapt("cnu", min_interval="1 minute").min_interval_us
    60000000
    """

    mode: str = "off"
    threshold: float = 0.2
    min_interval: str = "30 seconds"

    def __post_init__(self) -> None:
        if self.mode not in ADAPT_MODES:
            raise TopologyError(f"adapt: unknown mode {self.mode!r}; {did_you_mean(self.mode, ADAPT_MODES)}")
        if not 0 < self.threshold < inf:
            raise TopologyError(
                f"adapt: threshold must be positive, not {self.threshold:g}; 0.2 means that a cost has changed by 20%"
            )
        if self.min_interval_us <= 0:
            raise TopologyError(f"adapt: min_interval {self.min_interval!r} must be positive")

    @property
    def is_on(self) -> bool:
        return self.mode != "off"

    @property
    def min_interval_us(self) -> int:
        try:
            return parse_duration(self.min_interval)
        except InputError as error:
            raise TopologyError(f"adapt: min_interval: {error}") from None


BatchFunction = Callable[[Any, int], None]


@dataclass(frozen=True, slots=True)
class Query:
    """A continuous query: its SQL and where its answers go (a sink, or a function given each batch as a DataFrame)."""

    name: str
    sql: str
    sink: Sink = field(default_factory=Sink)
    foreach_batch: BatchFunction | None = None
    allow_cross: bool = False
    group_early: bool | None = None  # whether rows that are equal in all that is read take part once; None: if it pays
    start: str | None = None
    checkpoint: str | None = None
    site: str | None = None
    plan: tuple[HeadSteps, ...] | None = None
    planner: str | None = None
    objective: tuple[tuple[str, float], ...] = ()  # what planners minimise, by weight; bytes if empty
    max_delay: str | None = None
    barred: tuple[str, ...] = ()  # sites that no rows of other sites' streams may be sent to
    parts: int = 16  # the most parts of the key space that get a plan of their own
    partition: str | None = None  # how pmjoin makes parts; the cheapest if None
    assume_defaults: bool = False  # whether planners use defaults for statistics that are missing
    errors: str = "fail"  # what becomes of rows for which an expression fails
    failed: Sink | None = None  # where errors: keep writes them
    adapt: Adapt | None = None  # None: as the topology says
    read_as: tuple[tuple[str, str], ...] = ()  # tables that were read for it under another name, as it began later

    def __post_init__(self) -> None:
        check_name(self.name, "query")
        if self.errors not in ERRORS:
            raise TopologyError(
                f"query {self.name!r}: unknown errors {self.errors!r}; {did_you_mean(self.errors, ERRORS)}"
            )
        if self.errors == "keep" and (self.failed is None or self.failed.format == "console" or not self.failed.path):
            raise TopologyError(
                f"query {self.name!r}: errors: keep needs to know where; give it failed: {{format: parquet, path: ...}}"
            )
        if self.errors != "keep" and self.failed is not None:
            raise TopologyError(f"query {self.name!r}: failed is for errors: keep; add that or remove it")
        if self.parts < 1:
            raise TopologyError(f"query {self.name!r}: parts must be 1 or more, not {self.parts}")
        if self.partition is not None and self.partition not in PARTITIONS:
            raise TopologyError(
                f"query {self.name!r}: unknown partition {self.partition!r}; {did_you_mean(self.partition, PARTITIONS)}"
            )
        for measure, weight in self.objective:
            if measure not in OBJECTIVES:
                raise TopologyError(
                    f"query {self.name!r}: unknown objective {measure!r}; {did_you_mean(measure, OBJECTIVES)}"
                )
            if not 0 <= weight < inf:
                raise TopologyError(f"query {self.name!r}: the weight of {measure} must be 0 or more, not {weight:g}")
        if self.objective and not any(weight for _, weight in self.objective):
            raise TopologyError(f"query {self.name!r}: at least one weight of the objective must be positive")
        if self.max_delay is not None:
            try:
                parse_duration(self.max_delay)
            except InputError as error:
                raise TopologyError(f"query {self.name!r}: limits.delay: {error}") from None
        if self.adapt is not None:
            check_adapt(self, self.adapt)
        if not self.sql.strip():
            raise TopologyError(f"query {self.name!r} has no SQL text")
        _ = self.start_us
        if self.plan is not None:
            if self.planner is not None:
                raise TopologyError(f"query {self.name!r} has both a plan and a planner; keep one of them")
            if not self.plan:
                raise TopologyError(f"query {self.name!r}: the plan is empty; give the steps of each alias or no plan")
            folded = [steps.head.casefold() for steps in self.plan]
            twice = sorted({steps.head for steps in self.plan if folded.count(steps.head.casefold()) > 1})
            if twice:
                raise TopologyError(
                    f"query {self.name!r}: duplicate heads in the plan (case does not count): {', '.join(twice)}"
                )

    @property
    def start_us(self) -> int | None:
        """Rows before this instant are not joined; UTC if the text has no time zone."""
        if self.start is None:
            return None
        try:
            instant = datetime.fromisoformat(self.start)
        except ValueError:
            raise TopologyError(
                f"query {self.name!r}: start {self.start!r} is not a timestamp; write it like 2025-01-31 12:00:00"
            ) from None
        instant = instant.replace(tzinfo=instant.tzinfo or UTC)
        delta = instant - datetime(1970, 1, 1, tzinfo=UTC)
        return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def check_adapt(query: Query, adapt: Adapt) -> None:
    """Refuse what contradicts a plan that changes by itself."""
    if not adapt.is_on:
        return
    if query.plan is not None:
        raise TopologyError(
            f"query {query.name!r} has a plan, which does not change by itself; remove plan, "
            "or set adapt: {mode: off}"
        )
    if adapt.mode in ("cnu", "dnu") and query.planner is not None:
        raise TopologyError(
            f"query {query.name!r}: adapt mode {adapt.mode} makes its own plans; remove planner, or set mode: planner"
        )
