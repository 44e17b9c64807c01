"""Durations and the windows' own spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.errors import InputError
from watersmeet.query.windows import (
    LONGEST_US,
    Range,
    Rows,
    Tumble,
    Unbounded,
    Window,
    format_duration,
    parse_duration,
)


@pytest.mark.parametrize(
    ("text", "duration_us"),
    [
        ("1 microsecond", 1),
        ("10 us", 10),
        ("5 ms", 5_000),
        ("5ms", 5_000),
        ("1.5 ms", 1_500),
        ("90 seconds", 90_000_000),
        ("90 SECONDS", 90_000_000),
        ("1 sec", 1_000_000),
        ("1 s", 1_000_000),
        ("2 min", 120_000_000),
        ("1 minute 30 seconds", 90_000_000),
        ("  1 hour ", 3_600_000_000),
        ("1h", 3_600_000_000),
        ("2 days", 172_800_000_000),
        ("1 week", 604_800_000_000),
        ("0 seconds", 0),
        ("-1 second", -1_000_000),
        ("1 minute -30 seconds", 30_000_000),
    ],
)
def test_duration_is_read(text: str, duration_us: int) -> None:
    assert parse_duration(text) == duration_us


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("", "is not understood; write it like '10 seconds'"),
        ("soon", "is not understood"),
        ("10", "is not understood"),
        ("10 seconds!", "is not understood"),
        ("1 fortnight", "unknown unit 'fortnight'; units: microsecond, millisecond, second"),
        ("1 month", "a month has no fixed length; give it in days"),
        ("2 years", "a year has no fixed length; give it in days"),
        ("0.5 us", "finer than a microsecond"),
        ("400000 days", "longer than 1,000 years; use UNBOUNDED"),
        ("9" * 5_000 + " days", "is not understood"),
    ],
)
def test_bad_duration_names_cause_and_cure(text: str, fragment: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_duration(text)
    assert fragment in str(caught.value)


@given(st.integers(-LONGEST_US, LONGEST_US))
def test_duration_round_trips(duration_us: int) -> None:
    assert parse_duration(format_duration(duration_us)) == duration_us


@pytest.mark.parametrize(
    ("window", "text"),
    [
        (Range(60_000_000), "RANGE 1 MINUTE"),
        (Range(90_000_000), "RANGE 90 SECONDS"),
        (Tumble(5), "TUMBLE 5 MICROSECONDS"),
        (Rows(100), "ROWS 100"),
        (Unbounded(), "UNBOUNDED"),
    ],
)
def test_window_is_written_as_in_sql(window: Window, text: str) -> None:
    assert str(window) == text
