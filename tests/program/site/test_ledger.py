"""The state of a site comes back from JSON as it was, and says how far its streams have come."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.program.site.filing import Made, PackedRows
from watersmeet.program.site.ledger import (
    Answers,
    Ingested,
    LinkState,
    Outgoing,
    SiteLedger,
    StreamState,
    Traffic,
    watermark,
)
from watersmeet.program.storage.codec import from_json, to_json
from watersmeet.program.storage.shelf import Part, Segment

many = settings(max_examples=50, deadline=None)

names = st.text(max_size=8)
whole = st.integers(-(2**63), 2**63 - 1)
small = st.integers(0, 2**64 - 1)
parts = st.builds(Part, names, small, small, small, small)
segments = st.builds(
    Segment, st.lists(parts, max_size=2).map(tuple), whole, whole, whole, whole, level=st.integers(0, 9)
)
several = st.lists(segments, max_size=2).map(tuple)
payloads = st.builds(PackedRows, names, small, small, names)


def by_name(values: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    return st.dictionaries(names, values, max_size=2)


traffic = st.builds(Traffic, small, small, small)
made = st.builds(
    Made, names, small, by_name(segments), by_name(payloads), results=st.none() | names, ticks=st.none() | segments
)
ingested = st.builds(
    Ingested,
    names,
    small,
    max_ts=st.none() | whole,
    null_keys=by_name(small),
    made=st.none() | made,
    pending=st.none() | segments,
    central=traffic,
    late_file=st.none() | names,
    observed=names,
)
links = st.builds(
    LinkState,
    small,
    by_name(whole),
    st.lists(names, max_size=2).map(tuple),
    st.lists(st.builds(Outgoing, small, names, small), max_size=2).map(tuple),
    by_name(traffic),
)
columns = st.lists(st.tuples(names, names), max_size=2).map(tuple)
answers = st.lists(st.builds(Answers, small, st.lists(names, max_size=2).map(tuple), columns, small), max_size=2).map(
    tuple
)
ledgers = st.builds(
    SiteLedger,
    number=small,
    batch=st.integers(-1, 9),
    ingested=st.lists(ingested, max_size=2).map(tuple),
    streams=by_name(st.builds(StreamState, st.none() | whole, small, small, small, st.none() | whole)),
    relations=by_name(several),
    clocks=by_name(several),
    pending=by_name(several),
    watermarks=by_name(whole),
    links=by_name(links),
    central=by_name(traffic),
    seen=by_name(several),
    undelivered=by_name(answers),
)


@many
@given(ledgers)
def test_a_ledger_comes_back_as_it_was(ledger: SiteLedger) -> None:
    again = SiteLedger.from_json(ledger.to_json())
    assert again == ledger
    assert again.paths == ledger.paths


@many
@given(made)
def test_what_a_task_reports_comes_back_as_it_was(report: Made) -> None:
    assert from_json(Made, to_json(report)) == report


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, None),
        (StreamState(), None),
        (StreamState(max_ts=10), 7),
        (StreamState(declared=4), 4),
        (StreamState(max_ts=10, declared=4), 7),
        (StreamState(max_ts=10, declared=9), 9),
    ],
)
def test_the_watermark_is_behind_the_latest_row_or_at_a_declared_instant(
    state: StreamState | None, expected: int | None
) -> None:
    assert watermark(state, 3) == expected
