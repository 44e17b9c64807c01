"""The time line of a run: what happened when, in words, from events that are no figures."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never

from watersmeet.dashboard.redact import redacted
from watersmeet.metrics.events import (
    AnswerSample,
    AnswersDelivered,
    ChangeRefused,
    Event,
    LinkCounts,
    MicroBatchCompleted,
    ParcelsRefused,
    PlanChangeProposed,
    PlanDecision,
    PlanInForce,
    QueryAdded,
    QueryDescribed,
    QueryEnded,
    QueryRemoved,
    RunEnded,
    RunStarted,
    RunWarning,
    ShippingExpected,
    SiteProgramInForce,
    SiteStatus,
    TopologyInForce,
    VersionDropped,
)
from watersmeet.texts import cost_text

Lane: TypeAlias = Literal["run", "plan", "query", "pressure", "warning"]


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that happened; a plan that others followed has its version, to find what changed with it."""

    at: float
    lane: Lane
    title: str
    detail: str = ""
    query: str | None = None
    site: str | None = None
    is_bad: bool = False
    version: int | None = None  # of a plan that came into force


def notes_of(at: float, event: Event, before: Event | None) -> Iterator[Note]:
    """What an event adds to the time line; `before` is the event of this kind about the same thing that it follows."""
    match event:
        case RunStarted():
            title = f"started {', '.join(event.sites)}" if len(event.sites) < 6 else f"started {len(event.sites)} sites"
            yield Note(at, "run", title, f"queries {', '.join(event.queries)}; version {event.version}")
        case RunEnded():
            is_bad = event.reason == "failed"
            yield Note(at, "run", f"run {event.reason}", redacted(event.message), is_bad=is_bad)
        case PlanInForce():
            if isinstance(before, PlanInForce) and _same(before, event):
                return
            title = f"{event.query}: plan version {event.version} in force"
            yield Note(at, "plan", title, f"by {event.planner}", event.query, version=event.version)
        case PlanChangeProposed():
            title = f"{', '.join(event.queries)}: another plan proposed"
            title += f", after {event.changes_before} asked for before" if event.changes_before else ""
            yield Note(at, "plan", title, redacted(event.reason), event.queries[0] if event.queries else None)
        case PlanDecision():
            yield _decision(at, event)
        case VersionDropped():
            yield Note(at, "plan", f"version {event.version} dropped", "its state is evicted", site=event.site)
        case ChangeRefused():
            title = f"{', '.join(event.queries)}: change refused"
            query = event.queries[0] if event.queries else None
            yield Note(at, "plan", title, redacted(event.cause), query, is_bad=True)
        case QueryAdded():
            what = "replaced" if event.replaces else "added"
            yield Note(at, "query", f"{event.query}: {what}", f"as revision {event.version}", event.query)
        case QueryRemoved():
            yield Note(at, "query", f"{event.query}: removed", f"as revision {event.version}", event.query)
        case QueryEnded():
            yield Note(at, "query", f"{event.query}: ended", "its sink has the last answers", event.query, event.site)
        case SiteStatus():
            was = isinstance(before, SiteStatus) and before.is_held_back
            if event.is_held_back and not was:
                waiting = max(event.backlog_bytes, key=lambda to: event.backlog_bytes[to], default="others")
                title = f"{event.site}: back-pressure, new rows wait"
                yield Note(at, "pressure", title, f"most waits for {waiting}", site=event.site, is_bad=True)
            elif was and not event.is_held_back:
                yield Note(at, "pressure", f"{event.site}: back-pressure over", site=event.site)
        case ParcelsRefused():
            title = f"{event.site}: refused a parcel from {event.sender}"
            yield Note(at, "warning", title, f"{event.count} since it was started", site=event.site, is_bad=True)
        case RunWarning():
            yield Note(at, "warning", redacted(event.text), "", event.query, event.site, is_bad=True)
        case TopologyInForce() | QueryDescribed() | SiteProgramInForce() | ShippingExpected():
            return
        case MicroBatchCompleted() | LinkCounts() | AnswersDelivered() | AnswerSample():
            return
        case _:
            assert_never(event)


def _same(before: PlanInForce, event: PlanInForce) -> bool:
    return (before.version, before.plan_text) == (event.version, event.plan_text)


def _signed(share: float) -> str:
    return "±0 %" if abs(share) < 0.005 else f"{100 * share:+.0f} %"


def _decision(at: float, event: PlanDecision) -> Note:
    """Why another plan was considered, and what was expected of it."""
    verb = "another plan taken" if event.accepted else "another plan not taken"
    saved = 1 - event.proposed / event.current if event.current else 0.0
    unit = "bytes" if event.mode == "planner" else "s of work"
    changed = f"{event.changed} {cost_text(event.changed_from)} → {cost_text(event.changed_to)}"
    cost = f"{cost_text(event.current)} → {cost_text(event.proposed)} {unit} ({_signed(-saved)})"
    migration = f"migration {cost_text(event.migration)} {unit}"
    detail = f"{redacted(event.reason)}; {changed}; cost a second {cost}, {migration}"
    return Note(at, "plan", f"{event.query}: {verb}", detail, event.query)
