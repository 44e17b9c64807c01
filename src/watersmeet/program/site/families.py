"""Which GROUP BY queries of a site are answered from shared records, and what is recorded for them.

Shared are queries over one stream, at its home, whose keys and arguments are columns of it, with output windows of the
same panes; they differ in filters, and may differ in the length of windows, HAVING, select list and order. All queries
of a shape are shared or none: it pays from a few different filters on (5.6.1), since a row then costs one look-up and
one record however many there are, and the records of fragments are never more than those of the queries' rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watersmeet.plan.nodes import JoinPlan
from watersmeet.program.finish.model import Finish
from watersmeet.program.finish.shared import Member, RecordShape, shape_of
from watersmeet.program.operators import Form, JoinProgram, Probe
from watersmeet.program.site.streams import StreamScan, View
from watersmeet.program.storage.segments import TS
from watersmeet.query.model import TIME
from watersmeet.query.windows import AsOf, Changes

LEAST_SHARED = 4  # different filters; with fewer each query has records of its own


@dataclass(frozen=True)
class Family:
    """The queries of one shape at the home of their stream."""

    shape: RecordShape
    selections: tuple[int, ...]
    cuts: tuple[int, ...]  # instants at which versions of its queries begin or end


def is_probe_of_one(program: JoinProgram) -> bool:
    """Whether all that a site does for a join is to take the rows of one stream as answers."""
    return len(program.operators) == 1 and all(
        isinstance(operator, Probe)
        and not operator.lookups
        and operator.left.form is Form.ROW
        and operator.out.form is Form.RESULT
        and operator.sub_plans is None
        for operator in program.operators
    )


def shape_of_finish(join: JoinPlan, home: JoinProgram, views: Mapping[str, View], finish: Finish) -> RecordShape | None:
    """The shape of a query, by its program at the home of its stream; None where it needs records of its own."""
    grouping = finish.grouping
    if len(join.scans) != 1 or grouping is None or isinstance(grouping.window, Changes) or finish.matching is not None:
        return None
    (scan,) = join.scans
    view = views[scan.alias]
    if isinstance(scan.window, AsOf) or view.ordered or view.keys or not is_probe_of_one(home):
        return None
    columns = stored_columns(view, finish)
    if columns is None:
        return None
    return shape_of(grouping, scan.stream, join.site or join.homes[0], columns)


def stored_columns(view: View, finish: Finish) -> list[str] | None:
    """The stored columns that the select items of a query are; None where one is more than a column."""
    if finish.plain is None:
        return None
    stored = dict(view.columns) | {TIME.flat: TS}
    columns = [stored[name] for name, _ in finish.plain]
    is_computed = any(name.startswith(f"{view.stream}.=") for name in columns)  # as rows come, which may fail
    return None if is_computed else columns


def shared_shapes(found: Sequence[tuple[RecordShape, int]]) -> frozenset[RecordShape]:
    """The shapes that are shared, of all (shape, selection) at a site."""
    selections: dict[RecordShape, set[int]] = {}
    for shape, selection in found:
        selections.setdefault(shape, set()).add(selection)
    return frozenset(shape for shape, some in selections.items() if len(some) >= LEAST_SHARED)


def member_of(scan: StreamScan, selection: int, from_us: int | None, until_us: int | None) -> Member:
    """A query as one that shared records count for; that its selection begins no earlier says it all."""
    start_us = scan.selections[selection].start_us
    begins = from_us is None or (start_us is not None and start_us >= from_us)
    return Member(selection, None if begins else from_us, until_us)
