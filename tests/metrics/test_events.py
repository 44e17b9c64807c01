"""Events as lines of JSON: what is written is read back, and what is no event is refused."""

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    from_json,
    kind_of,
    to_json,
)

NAMES = st.text(max_size=8)
COUNTS = st.integers(0, 2**63)
SECONDS = st.floats(0, 1e12)
LISTS = st.lists(NAMES, max_size=3).map(tuple)
COUNTS_BY_NAME = st.dictionaries(NAMES, COUNTS, max_size=3)
EVENTS: dict[type[Event], st.SearchStrategy[Event]] = {
    RunStarted: st.builds(
        RunStarted, st.lists(NAMES, max_size=3).map(tuple), st.lists(NAMES, max_size=3).map(tuple), NAMES
    ),
    TopologyInForce: st.builds(
        TopologyInForce,
        LISTS,
        st.lists(st.tuples(NAMES, NAMES, SECONDS, SECONDS), max_size=3).map(tuple),
        st.dictionaries(NAMES, NAMES, max_size=3),
    ),
    QueryDescribed: st.builds(QueryDescribed, NAMES, NAMES, LISTS, NAMES),
    SiteProgramInForce: st.builds(
        SiteProgramInForce, NAMES, LISTS, st.lists(st.tuples(NAMES, NAMES, NAMES, NAMES), max_size=3).map(tuple)
    ),
    ShippingExpected: st.builds(
        ShippingExpected,
        SECONDS,
        st.lists(st.tuples(NAMES, NAMES, NAMES, NAMES, SECONDS), max_size=3).map(tuple),
        st.dictionaries(NAMES, SECONDS, max_size=3),
    ),
    SiteStatus: st.builds(
        SiteStatus,
        NAMES,
        COUNTS_BY_NAME,
        COUNTS_BY_NAME,
        st.dictionaries(NAMES, SECONDS, max_size=3),
        st.booleans(),
    ),
    AnswersDelivered: st.builds(AnswersDelivered, NAMES, NAMES, COUNTS, SECONDS),
    AnswerSample: st.builds(
        AnswerSample, NAMES, LISTS, st.lists(st.tuples(st.none() | NAMES, COUNTS, SECONDS), max_size=3).map(tuple)
    ),
    PlanDecision: st.builds(
        PlanDecision, NAMES, NAMES, COUNTS, st.booleans(), NAMES, NAMES, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS
    ),
    PlanChangeProposed: st.builds(PlanChangeProposed, st.lists(NAMES, max_size=3).map(tuple), NAMES, COUNTS),
    VersionDropped: st.builds(VersionDropped, NAMES, NAMES),
    QueryAdded: st.builds(QueryAdded, NAMES, COUNTS, COUNTS, st.booleans()),
    QueryRemoved: st.builds(QueryRemoved, NAMES, COUNTS, COUNTS),
    QueryEnded: st.builds(QueryEnded, NAMES, NAMES),
    ChangeRefused: st.builds(ChangeRefused, st.lists(NAMES, max_size=3).map(tuple), NAMES),
    PlanInForce: st.builds(PlanInForce, NAMES, NAMES, NAMES, st.none() | SECONDS, COUNTS),
    MicroBatchCompleted: st.builds(
        MicroBatchCompleted,
        NAMES,
        COUNTS,
        SECONDS,
        st.dictionaries(NAMES, SECONDS, max_size=3),
        COUNTS_BY_NAME,
        COUNTS_BY_NAME,
        COUNTS_BY_NAME,
        COUNTS,
        st.dictionaries(NAMES, st.none() | COUNTS, max_size=3),
        st.dictionaries(NAMES, st.none() | st.integers(-(2**63), 2**63), max_size=3),
        COUNTS,
        COUNTS,
        COUNTS,
    ),
    LinkCounts: st.builds(LinkCounts, NAMES, NAMES, NAMES, COUNTS, COUNTS, COUNTS, COUNTS_BY_NAME),
    ParcelsRefused: st.builds(ParcelsRefused, NAMES, NAMES, COUNTS),
    RunWarning: st.builds(RunWarning, st.none() | NAMES, st.none() | NAMES, NAMES),
    RunEnded: st.builds(RunEnded, st.sampled_from(["completed", "stopped", "failed"]), NAMES),
}


def test_every_event_is_drawn() -> None:
    assert set(EVENTS) == set(get_args(Event))


@given(st.one_of(*EVENTS.values()), st.floats(0, 1e11))
def test_a_line_is_read_back(event: Event, at: float) -> None:
    line = to_json(event, at)
    assert "\n" not in line
    assert from_json(line) == (at, event)
    data = json.loads(line)
    assert (data["at"], data["event"]) == (at, kind_of(event))


def test_a_line_in_full() -> None:
    assert json.loads(to_json(PlanInForce("q", "auto", "join\n  a\n  b", 12.5, 3), at=1_700_000_000.25)) == {
        "at": 1_700_000_000.25,
        "event": "plan_in_force",
        "query": "q",
        "planner": "auto",
        "plan_text": "join\n  a\n  b",
        "expected_bytes_s": 12.5,
        "version": 3,
    }


def test_fields_that_an_earlier_version_did_not_have() -> None:
    counts = {"bytes": 1, "batches": 2, "tuples": 3}
    line = json.dumps({"at": 1, "event": "link_traffic", "site": "a", "to": "b", "purpose": "keys", **counts})
    assert from_json(line) == (1, LinkCounts("a", "b", "keys", 1, 2, 3, {}))


def test_fields_of_a_later_version_are_ignored() -> None:
    line = '{"at": 1, "event": "warning", "site": null, "query": "q", "text": "late", "severity": 3}'
    assert from_json(line) == (1, RunWarning(None, "q", "late"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            '{"at": 1, "event": "lunch"}',
            "unknown event 'lunch'; known: answer_sample, answers_delivered, change_refused, link_traffic",
        ),
        ('{"at": 1}', "unknown event None"),
        ('{"at": 1, "event": "warning", "site": null, "text": "late"}', "event 'warning' lacks query"),
        ('{"event": "run_ended", "reason": "failed", "message": ""}', "event 'run_ended' lacks at"),
        ('{"at": 1, "event": "warn', "Unterminated string"),
    ],
)
def test_what_is_no_event_is_refused(line: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        from_json(line)


def test_figures_that_json_has_not_are_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(PlanInForce("q", "auto", "", float("nan"), 1), at=0)


def test_events_are_frozen() -> None:
    with pytest.raises(AttributeError):
        RunEnded("completed").reason = "failed"  # type: ignore[misc]
