"""Where things lie on the axis of one window, so that meeting is always the intersection of two intervals.

On the axis of a window over time, an instant of an alias is `ts * m + position`, m being the number of aliases: the
order of the reference semantics, in which the latest tuple of a combination is its head and ties go by position. A row
reaches from its own instant to the last instant of the window in which it is seen. A ROWS window has an axis of its
own, the ordinals of its stream: a row reaches over as many as the window counts, and a time is translated to the
ordinal of the last row up to it by the stream's row clock. A translation holds as far as the clock has come.
"""

from dataclasses import dataclass, field
from typing import assert_never

import numpy as np

from watersmeet.program.join import kernels
from watersmeet.program.join.probe import Visibility, intervals
from watersmeet.program.storage.segments import I64
from watersmeet.query.windows import AsOf, Range, Rows, Tumble, Unbounded, Window, counted


@dataclass(frozen=True)
class Clock:
    """The timestamps of a stream's rows in order, from the row with ordinal `base` on."""

    base: int = 0
    ts: I64 = field(default_factory=lambda: np.empty(0, np.int64))

    def last_at(self, instants: I64) -> I64:
        """The ordinal of the last row up to each instant."""
        return np.searchsorted(self.ts, instants, "right") + (self.base - 1)

    def last_before(self, instant: int) -> int:
        """The ordinal of the last row before an instant."""
        return int(np.searchsorted(self.ts, instant, "left")) + self.base - 1


@dataclass(frozen=True)
class Axis:
    """The axis of one alias's window."""

    window: Window
    position: int
    aliases: int
    clock: Clock | None = None  # of a ROWS window

    @property
    def count(self) -> int | None:
        return counted(self.window)

    @property
    def counts_rows(self) -> bool:
        return self.count is not None

    def points(self, ts: I64, position: int) -> Visibility:
        """Where tuples of the head at a position of the query look."""
        if self.counts_rows:
            assert self.clock is not None, "a ROWS window has a clock"
            places = self.clock.last_at(ts)
            return intervals(places, places)
        return Visibility(ts, self.aliases, position, kernels.FIXED, 0)

    def rows(self, ts: I64, ordinals: I64 | None) -> Visibility:
        """From where to where rows of the window reach."""
        match self.window:
            case Range(window_us):
                length = (window_us + 1) * self.aliases - 1 - self.position
                return Visibility(ts, self.aliases, self.position, kernels.FIXED, length)
            case Tumble(window_us):
                return Visibility(ts, self.aliases, self.position, kernels.TUMBLE, window_us)
            case Unbounded() | AsOf(is_refreshed=False):
                return Visibility(ts, self.aliases, self.position, kernels.NEVER_ENDS)
            case Rows() | AsOf():
                count = counted(self.window)
                assert ordinals is not None and count is not None, "rows that are counted have ordinals"
                return Visibility(ordinals, 1, 0, kernels.FIXED, count - 1)
            case _:
                assert_never(self.window)

    def rows_in_time(self, ts: I64, ordinals: I64) -> Visibility:
        """From when to when rows of a window that counts them are visible in time, as far as the clock has come."""
        assert self.clock is not None and self.count is not None, "a ROWS window has a clock"
        return Visibility(
            ts,
            self.aliases,
            self.position,
            kernels.COUNTED,
            self.count,
            ordinals=ordinals,
            clock=self.clock.ts * self.aliases,
            base=self.clock.base,
        )

    def first(self, watermark: int) -> int:
        """No tuple that is still to come, at the watermark or after it, looks before this place."""
        if self.counts_rows:
            assert self.clock is not None, "a ROWS window has a clock"
            return self.clock.last_before(watermark)
        return watermark * self.aliases

    @property
    def reach(self) -> int | None:
        """How far a row reaches at most; None for ever."""
        match self.window:
            case Range(window_us) | Tumble(window_us):
                return (window_us + 1) * self.aliases
            case Rows() | Unbounded() | AsOf():
                return counted(self.window)
            case _:
                assert_never(self.window)


def instants(window: Window, ts: I64, ordinals: I64 | None, clock: Clock | None) -> Visibility:
    """From when to when rows of a window are visible, in time: where all rows of a join are at one site."""
    match window:
        case Range(window_us):
            return Visibility(ts, kind=kernels.FIXED, length=window_us)
        case Tumble(window_us):
            return Visibility(ts, kind=kernels.TUMBLE, length=window_us)
        case Unbounded() | AsOf(is_refreshed=False):
            return Visibility(ts, kind=kernels.NEVER_ENDS)
        case Rows() | AsOf():
            count = counted(window)
            assert ordinals is not None and clock is not None and count is not None, "rows that are counted have them"
            return Visibility(
                ts, kind=kernels.COUNTED, length=count, ordinals=ordinals, clock=clock.ts, base=clock.base
            )
        case _:
            assert_never(window)
