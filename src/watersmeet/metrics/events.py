"""What a run reports: small typed events, and each as one line of JSON.

An event has no time of its own: whoever publishes it has a clock (`bus.EventBus`), and readers get the time beside it.
Counts of a micro-batch are its own; counts of a link are totals since its checkpoint began.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Queries have been started at some sites, by a version of Watersmeet."""

    sites: tuple[str, ...]
    queries: tuple[str, ...]
    version: str


@dataclass(frozen=True, slots=True)
class PlanInForce:
    """A query is answered by this plan from now on; versions of a query's plan count up."""

    query: str
    planner: str
    plan_text: str
    expected_bytes_s: float | None  # over all links; None where the plan has no estimate
    version: int


@dataclass(frozen=True, slots=True)
class PlanChangeProposed:
    """Sites are asked to go over to other plans for some queries; those asked for before it come first."""

    queries: tuple[str, ...]
    reason: str
    changes_before: int


@dataclass(frozen=True, slots=True)
class VersionDropped:
    """A site has nothing left to do for a version of a join, and no longer keeps its state."""

    site: str
    version: str


@dataclass(frozen=True, slots=True)
class QueryAdded:
    """A query takes part with rows from an instant of event time on; `replaces` one of its name that ends there."""

    query: str
    at_us: int
    version: int
    replaces: bool


@dataclass(frozen=True, slots=True)
class QueryRemoved:
    """A query gets no rows from an instant of event time on; its last answers may still come."""

    query: str
    at_us: int
    version: int


@dataclass(frozen=True, slots=True)
class QueryEnded:
    """The sink of a query that was removed has its last answers."""

    site: str
    query: str


@dataclass(frozen=True, slots=True)
class ChangeRefused:
    """A change of plans or queries is called off by all sites."""

    queries: tuple[str, ...]
    cause: str


@dataclass(frozen=True, slots=True)
class PlanDecision:
    """Another plan of a query was considered, because a cost had changed, and taken or not.

    Costs are by the second: bytes as the query's objective weighs them, or seconds of work where the adaptive paper's
    procedures decide; `migration` is in the same unit, once. An accepted plan takes the version.
    """

    query: str
    mode: str
    version: int
    accepted: bool
    reason: str
    changed: str  # the cost that has changed most
    changed_from: float
    changed_to: float
    current: float
    proposed: float
    migration: float


@dataclass(frozen=True, slots=True)
class MicroBatchCompleted:
    """A site has completed a micro-batch, with its counts by stream and query and the state it leaves."""

    site: str
    batch: int
    seconds: float
    phases: Mapping[str, float]  # seconds of each phase
    rows_in: Mapping[str, int]
    late: Mapping[str, int]
    malformed: Mapping[str, int]
    null_keys: int
    failed: Mapping[str, int]  # by query: rows and combinations for which an expression fails
    answers: Mapping[str, int | None]  # None where the sink does not count
    watermarks: Mapping[str, int | None]  # microseconds since 1970; None before the first row
    state_rows: int
    state_bytes: int
    segments: int


@dataclass(frozen=True, slots=True)
class LinkCounts:
    """What a site has sent to another one for a purpose, in all."""

    site: str
    to: str
    purpose: str
    bytes: int
    batches: int
    tuples: int


@dataclass(frozen=True, slots=True)
class RunWarning:
    """Something a user should know, about a site or a query or the run as a whole."""

    site: str | None
    query: str | None
    text: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over; the message says why where it failed."""

    reason: Literal["completed", "stopped", "failed"]
    message: str = ""


Event: TypeAlias = (
    RunStarted
    | PlanInForce
    | PlanChangeProposed
    | PlanDecision
    | VersionDropped
    | QueryAdded
    | QueryRemoved
    | QueryEnded
    | ChangeRefused
    | MicroBatchCompleted
    | LinkCounts
    | RunWarning
    | RunEnded
)

_TYPES: dict[str, type[Event]] = {
    "run_started": RunStarted,
    "plan_in_force": PlanInForce,
    "plan_change_proposed": PlanChangeProposed,
    "version_dropped": VersionDropped,
    "query_added": QueryAdded,
    "query_removed": QueryRemoved,
    "query_ended": QueryEnded,
    "change_refused": ChangeRefused,
    "plan_decision": PlanDecision,
    "micro_batch_completed": MicroBatchCompleted,
    "link_traffic": LinkCounts,
    "warning": RunWarning,
    "run_ended": RunEnded,
}
_KINDS = {type_: kind for kind, type_ in _TYPES.items()}


def kind_of(event: Event) -> str:
    """The name of an event's type in JSON.

    >>> kind_of(RunEnded("completed"))
    'run_ended'
    """
    return _KINDS[type(event)]


def to_json(event: Event, at: float) -> str:
    """One line of JSON without its end; `at` is in seconds since 1970.

    >>> to_json(RunEnded("completed"), at=12.5)
    '{"at": 12.5, "event": "run_ended", "reason": "completed", "message": ""}'
    """
    data = {"at": at, "event": kind_of(event)}
    for field in fields(event):
        value = getattr(event, field.name)
        data[field.name] = dict(value) if isinstance(value, Mapping) else value
    return json.dumps(data, allow_nan=False)


def from_json(line: str) -> tuple[float, Event]:
    """The time and the event of a line; fields that this version does not know are ignored.

    >>> from_json('{"at": 12.5, "event": "run_ended", "reason": "completed", "message": ""}')
    (12.5, RunEnded(reason='completed', message=''))
    """
    data: dict[str, Any] = json.loads(line)
    kind = data.get("event")
    if kind not in _TYPES:
        raise ValueError(f"unknown event {kind!r}; known: {', '.join(sorted(_TYPES))}")
    names = [field.name for field in fields(_TYPES[kind])]
    if missing := [name for name in ("at", *names) if name not in data]:
        raise ValueError(f"event {kind!r} lacks {', '.join(missing)}")
    values: list[Any] = [tuple(data[name]) if isinstance(data[name], list) else data[name] for name in names]
    return data["at"], _TYPES[kind](*values)
