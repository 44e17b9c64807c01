"""What a run reports: small typed events, and each as one line of JSON.

An event has no time of its own: whoever publishes it has a clock (`bus.EventBus`), and readers get the time beside it.
Counts of a micro-batch are its own; counts of a link are totals since its checkpoint began.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, TypeAlias, get_type_hints

from watersmeet.errors import without_secrets
from watersmeet.program.storage.codec import fits


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Queries have been started at some sites, by a version of Watersmeet."""

    sites: tuple[str, ...]
    queries: tuple[str, ...]
    version: str


@dataclass(frozen=True, slots=True)
class TopologyInForce:
    """Where a run is: sites, links between pairs of them in both directions, and the home of each stream."""

    sites: tuple[str, ...]
    links: tuple[tuple[str, str, float, float], ...]  # from, to, latency in ms, price of 1e9 bytes
    streams: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class QueryDescribed:
    """What a query asks, of which streams, and at which site it is answered."""

    query: str
    sql: str
    streams: tuple[str, ...]
    site: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "sql", without_secrets(self.sql))


@dataclass(frozen=True, slots=True)
class SiteProgramInForce:
    """What a site does from now on: its operators, and the flows that it ships."""

    site: str
    operators: tuple[str, ...]
    shipments: tuple[tuple[str, str, str, str], ...]  # to, flow, purpose, names of its queries with commas between

    def __post_init__(self) -> None:
        object.__setattr__(self, "operators", tuple(map(without_secrets, self.operators)))


@dataclass(frozen=True, slots=True)
class ShippingExpected:
    """What the plans in force are expected to ship by the second of stream time, in which so many rows come."""

    rows_s: float
    flows: tuple[tuple[str, str, str, str, float], ...]  # from, to, purpose, flow, bytes a second
    queries: Mapping[str, float] = field(default_factory=dict)  # bytes a second of all flows of each, shared ones too


@dataclass(frozen=True, slots=True)
class SiteStatus:
    """A sign of life of a site every few seconds: what waits there for others."""

    site: str
    backlog_bytes: Mapping[str, int]  # by site that has not acknowledged it yet
    undelivered: Mapping[str, int]  # by query: micro-batches whose answers its sink does not have yet
    latency_s: Mapping[str, float]  # by site: until the last parcel was durable there
    is_held_back: bool  # new rows wait because too much waits for others


@dataclass(frozen=True, slots=True)
class AnswersDelivered:
    """The sink of a query has the answers of a micro-batch, so long after its rows began to be read."""

    site: str
    query: str
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class AnswerSample:
    """Some of the latest answers of a query, published only while somebody looks at them."""

    query: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class PlanInForce:
    """A query is answered by this plan from now on; versions of a query's plan count up."""

    query: str
    planner: str
    plan_text: str
    expected_bytes_s: float | None  # over all links; None where the plan has no estimate
    version: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "plan_text", without_secrets(self.plan_text))


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "cause", without_secrets(self.cause))


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
    central_bytes: Mapping[str, int] = field(default_factory=dict)  # by stream: what shipping its rows whole would take


@dataclass(frozen=True, slots=True)
class LinkCounts:
    """What a site has sent to another one for a purpose, in all."""

    site: str
    to: str
    purpose: str
    bytes: int
    batches: int
    tuples: int
    flows: Mapping[str, int] = field(default_factory=dict)  # bytes by flow


@dataclass(frozen=True, slots=True)
class ParcelsRefused:
    """How many parcels from a site did not open with the keys of links, since the site was started."""

    site: str
    sender: str
    count: int


@dataclass(frozen=True, slots=True)
class RunWarning:
    """Something a user should know, about a site or a query or the run as a whole."""

    site: str | None
    query: str | None
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", without_secrets(self.text))


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over; the message says why where it failed."""

    reason: Literal["completed", "stopped", "failed"]
    message: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", without_secrets(self.message))


Event: TypeAlias = (
    RunStarted
    | TopologyInForce
    | QueryDescribed
    | SiteProgramInForce
    | ShippingExpected
    | SiteStatus
    | AnswersDelivered
    | AnswerSample
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
    | ParcelsRefused
    | RunWarning
    | RunEnded
)

_TYPES: dict[str, type[Event]] = {
    "run_started": RunStarted,
    "topology_in_force": TopologyInForce,
    "query_described": QueryDescribed,
    "site_program_in_force": SiteProgramInForce,
    "shipping_expected": ShippingExpected,
    "site_status": SiteStatus,
    "answers_delivered": AnswersDelivered,
    "answer_sample": AnswerSample,
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
    "parcels_refused": ParcelsRefused,
    "warning": RunWarning,
    "run_ended": RunEnded,
}
_SURROGATES = re.compile("[\ud800-\udfff]")  # halves of characters, which no file can hold
_END_S = 253_402_300_800.0  # the year 10000
_KINDS = {type_: kind for kind, type_ in _TYPES.items()}
KINDS = tuple(_TYPES)


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
    for field_ in fields(event):
        value = getattr(event, field_.name)
        data[field_.name] = dict(value) if isinstance(value, Mapping) else value
    return json.dumps(data, allow_nan=False)


def from_json(line: str) -> tuple[float, Event]:
    """The time and the event of a line; fields that this version does not know are ignored, new ones may lack.

    A ValueError where a line is none: files are cut off by crashes, and lines of other sites say what they like.

    >>> from_json('{"at": 12.5, "event": "run_ended", "reason": "completed", "message": ""}')
    (12.5, RunEnded(reason='completed', message=''))
    """
    try:
        data: Any = json.loads(line)
    except RecursionError:
        raise ValueError("a line is nested too deeply") from None
    kind = data.get("event") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ValueError(f"unknown event {kind!r}; known: {', '.join(sorted(_TYPES))}")
    known = fields(_TYPES[kind])
    needed = [field_.name for field_ in known if field_.default is MISSING and field_.default_factory is MISSING]
    if missing := [name for name in ("at", *needed) if name not in data]:
        raise ValueError(f"event {kind!r} lacks {', '.join(missing)}")
    values = {field_.name: _tuples(data[field_.name]) for field_ in known if field_.name in data}
    hints = get_type_hints(_TYPES[kind])
    if wrong := [name for name, value in values.items() if not fits(hints[name], value) or not _is_sound(value)]:
        raise ValueError(f"event {kind!r} has values of other types or without bounds: {', '.join(wrong)}")
    if not fits(float, data["at"]) or not 0 <= data["at"] < _END_S:
        raise ValueError(f"event {kind!r} is of no time")
    return data["at"], _TYPES[kind](**values)


def _is_sound(value: Any) -> bool:
    """Whether all numbers are finite, and all texts can be written."""
    match value:
        case int() | float():
            return -(2**63) <= value < 2**64
        case str():
            return not _SURROGATES.search(value)
        case tuple():
            return all(map(_is_sound, value))
        case dict():
            return all(_is_sound(name) and _is_sound(one) for name, one in value.items())
        case _:
            return True


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
