"""The windows of the reference semantics, and durations in microseconds.

A tuple is visible in its window from its own timestamp to an inclusive end that depends on the window alone, and a
combination is an answer exactly if its latest timestamp is not after the end of any of its tuples:

    RANGE T     end = ts + T
    TUMBLE T    end = the last microsecond of the T-aligned interval that holds ts
    ROWS n      end = one microsecond before the n-th successor in (ts, arrival) order
    UNBOUNDED   end = never

A table has no window in SQL: its rows are visible while their version of the table is in force (`AsOf`).
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from math import gcd

from watersmeet.errors import InputError

UNIT_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_SHORT_UNITS = {"us": "microsecond", "ms": "millisecond", "s": "second", "sec": "second", "min": "minute", "h": "hour"}
_PART = re.compile(r"\s*([+-]?\d{1,18}(?:\.\d{1,18})?)\s*([a-zA-Z]+)\s*")

# Event times are those of the calendar, from the year 1 to 9999; a row outside is malformed. With windows of at most
# 1,000 years and 32 streams, (event time + window) * streams fits 64 bits: engines add and multiply without a check.
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
TABLE_US = FIRST_US - 1  # of rows of tables that are in force from the beginning of time: before all event times
END_US = LAST_US + 1  # the end of time: the watermark of a stream that has ended
LONGEST_US = 1_000 * 365 * UNIT_US["day"]
MOST_STREAMS = 32
MOST_ROWS = 10**12


@dataclass(frozen=True, slots=True)
class Range:
    """Tuples at most `window_us` older than the head."""

    window_us: int

    def __str__(self) -> str:
        return f"RANGE {format_duration(self.window_us).upper()}"


@dataclass(frozen=True, slots=True)
class Rows:
    """The last `count` tuples of the stream at the time of the head."""

    count: int

    def __str__(self) -> str:
        return f"ROWS {self.count}"


@dataclass(frozen=True, slots=True)
class Tumble:
    """Tuples in the same epoch-aligned interval of `window_us` as the head."""

    window_us: int

    def __str__(self) -> str:
        return f"TUMBLE {format_duration(self.window_us).upper()}"


@dataclass(frozen=True, slots=True)
class Unbounded:
    """Every tuple since the query's start."""

    def __str__(self) -> str:
        return "UNBOUNDED"


@dataclass(frozen=True, slots=True)
class AsOf:
    """Rows of the version of a table that is in force at the time of the head; a static table has one version."""

    is_refreshed: bool = False

    def __str__(self) -> str:
        return "REFRESHED TABLE" if self.is_refreshed else "TABLE"


Window = Range | Rows | Tumble | Unbounded | AsOf


def counted(window: Window) -> int | None:
    """How many ordinals a row of the window is visible for; None where time decides.

    Ordinals are numbers of rows for ROWS windows, and numbers of versions for tables that are refreshed.
    """
    match window:
        case Rows(count):
            return count
        case AsOf(is_refreshed=True):
            return 1
        case _:
            return None


@dataclass(frozen=True, slots=True)
class Hop:
    """Output windows of GROUP BY: `[n * slide, n * slide + length)` for every whole n; equal lengths tumble."""

    length_us: int
    slide_us: int

    @property
    def pane_us(self) -> int:
        """The longest intervals of which every window is made up, so that an answer counts in one of them."""
        return gcd(self.length_us, self.slide_us)

    def __str__(self) -> str:
        length, slide = (format_duration(one).upper() for one in (self.length_us, self.slide_us))
        return f"TUMBLE({length})" if self.length_us == self.slide_us else f"HOP({length}, {slide})"


@dataclass(frozen=True, slots=True)
class Changes:
    """EMIT CHANGES in place of an output window: a row for every change of a group, as answers come and expire."""

    ends: tuple[tuple[int, Range | Tumble], ...]  # select item with the time of a row, and the window it is in
    answers: int  # the aggregate that counts the answers of a group
    counted: tuple[tuple[int, str, int], ...] = ()  # select item with the ordinal of a row, its alias, and its ROWS

    @property
    def longest_us(self) -> int | None:
        """How long an answer is valid at most; None without end."""
        return min((window.window_us for _, window in self.ends), default=None)

    def __str__(self) -> str:
        return "EMIT CHANGES"


def parse_duration(text: str) -> int:
    """Microseconds of a duration written as PySpark writes it.

    >>> parse_duration("1 minute 30 seconds")
    90000000
    >>> parse_duration("1.5 ms")
    1500
    """
    total = Fraction(0)
    position = 0
    while match := _PART.match(text, position):
        amount, unit = match.groups()
        unit = unit.casefold()
        unit = _SHORT_UNITS.get(unit, unit.removesuffix("s") if len(unit) > 2 else unit)
        if unit in ("month", "year"):
            raise InputError(f"duration {text!r}: a {unit} has no fixed length; give it in days")
        if unit not in UNIT_US:
            raise InputError(f"duration {text!r}: unknown unit {match.group(2)!r}; units: {', '.join(UNIT_US)}")
        total += Fraction(amount) * UNIT_US[unit]
        position = match.end()
    if position == 0 or position != len(text):
        raise InputError(f"duration {text!r} is not understood; write it like '10 seconds' or '1 minute 30 seconds'")
    if total.denominator != 1:
        raise InputError(f"duration {text!r} is finer than a microsecond; round it to whole microseconds")
    if abs(total) > LONGEST_US:
        raise InputError(f"duration {text!r} is longer than 1,000 years; use UNBOUNDED or a shorter one")
    return int(total)


def format_duration(duration_us: int) -> str:
    """A duration in the largest unit that divides it.

    >>> format_duration(90_000_000)
    '90 seconds'
    """
    for unit in reversed(UNIT_US):
        if duration_us % UNIT_US[unit] == 0 and (duration_us or unit == "second"):
            amount = duration_us // UNIT_US[unit]
            return f"{amount} {unit}{'' if amount == 1 else 's'}"
    raise AssertionError("every whole number of microseconds divides by one")
