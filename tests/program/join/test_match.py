"""Rows that are looked for by semijoins: each is found once, although what it met is forgotten after a while."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.program.join.match import Meeting, Side, Witnesses, first_meetings, first_of_any
from watersmeet.program.join.probe import Relation, Run, intervals

KEY = 7
ALIVE_FROM = 20
OVER, ALIVE = (0, 10), (12, 22)  # from when to when rows are visible
WIDE = (5, 40)  # a witness that is about its whole window
NOTHING = Relation(())

Finder = Callable[[Side, Side, int | None], Sequence[int]]


def seen(*rows: tuple[int, int]) -> Relation:
    low, high = (np.array(ends, np.int64) for ends in zip(*rows, strict=True))
    keys = np.full(len(rows), KEY, np.uint64)
    return Relation((Run(keys, intervals(low, high), pa.table({}), (int(low.min()), int(high.max()))),))


def found_by_one(subject: Side, witnesses: Side, alive_from: int | None) -> Sequence[int]:
    return [int(row) for _, rows in first_meetings(subject, Witnesses(witnesses), alive_from) for row in rows]


def found_by_any(subject: Side, witnesses: Side, alive_from: int | None) -> Sequence[int]:
    others = Witnesses(Side(NOTHING, NOTHING))
    meetings = [Meeting(subject, Witnesses(witnesses), alive_from), Meeting(subject, others, alive_from)]
    return [int(row) for _, rows in first_of_any(meetings) for row in rows]


@pytest.mark.parametrize("found", [found_by_one, found_by_any])
def test_rows_that_are_over_are_not_found_again_when_what_they_met_is_forgotten(found: Finder) -> None:
    kept, late = Side(NOTHING, seen(OVER, ALIVE)), Side(seen(WIDE), NOTHING)
    assert found(kept, late, ALIVE_FROM) == [1]
    assert found(kept, late, None) == [0, 1]  # by their intervals alone, both meet it
    assert found(kept, Side(seen(WIDE), seen((22, 22))), ALIVE_FROM) == []  # met before, and that is still known


@pytest.mark.parametrize("found", [found_by_one, found_by_any])
def test_rows_that_come_late_are_found_although_they_are_over(found: Finder) -> None:
    """They cannot have been sent before."""
    assert found(Side(seen(OVER), NOTHING), Side(NOTHING, seen(WIDE)), ALIVE_FROM) == [0]


def test_a_row_that_is_over_for_one_semijoin_is_found_by_another_that_still_waits_for_it() -> None:
    late = Witnesses(Side(seen(WIDE), NOTHING))
    subject = Side(NOTHING, seen(OVER))
    meetings = [Meeting(subject, late, ALIVE_FROM), Meeting(subject, late, OVER[1])]
    assert [int(row) for _, rows in first_of_any(meetings) for row in rows] == [0]
