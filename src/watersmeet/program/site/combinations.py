"""Combinations that a join has found: which of them conditions and versions accept, and their columns."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from watersmeet.program.finish.combine import finished
from watersmeet.program.join.conditions import newly_complete, not_rejected
from watersmeet.program.join.match import Pairs
from watersmeet.program.join.probe import (
    Combinations,
    Relation,
)
from watersmeet.program.join.shared import Membership
from watersmeet.program.operators import (
    Probe,
)
from watersmeet.program.site.filing import (
    Mask,
)
from watersmeet.program.site.part import JoinPart
from watersmeet.program.site.program import Stored
from watersmeet.program.site.spans import Span
from watersmeet.program.storage.segments import (
    I64,
    SELECTED,
    U64,
    column,
)
from watersmeet.query.comparisons import Condition
from watersmeet.query.model import TIME

_NO_BITS: U64 = np.empty(0, np.uint64)
_NO_PLACES: I64 = np.empty(0, np.int64)


def membership(stored: Stored, table: pa.Table, users: Mapping[int, int], *, everyone: bool) -> Membership:
    """Which members of a group take the stored rows of a table, by the selections that they have."""
    if everyone:
        always = 0
        for members in users.values():
            always |= members
        return Membership((_NO_BITS,), _NO_PLACES, _NO_BITS, _NO_BITS, always)
    words = tuple(column(table, name).view(np.uint64) for name in table.column_names if name.startswith(SELECTED))
    bits = [(stored.bit(selection) or 0, members) for selection, members in sorted(users.items())]
    return Membership(
        words,
        np.array([bit // 64 for bit, _ in bits], np.int64),
        np.array([1 << (bit % 64) for bit, _ in bits], np.uint64),
        np.array([members for _, members in bits], np.uint64),
        0,
    )


def accepted(
    conditions: Sequence[Condition], bound: Sequence[Sequence[str]], relations: Sequence[Relation], rows: Sequence[I64]
) -> Mask:
    """Which combinations conditions do not reject; `bound` has the aliases of each relation."""
    columns: dict[str, pa.Array] = {}
    for aliases, relation, numbers in zip(bound, relations, rows, strict=True):
        names = sorted({c.flat for condition in conditions for c in condition.expression.columns if c.alias in aliases})
        columns |= dict(zip(names, relation.gather(numbers, names), strict=True))
    return not_rejected(conditions, columns)


def accepted_pairs(part: JoinPart, found: Pairs, left: tuple[str, ...], right: tuple[str, ...]) -> Pairs:
    """The pairs that no condition rejects which both sides are needed for."""
    conditions = newly_complete(part.join.conditions, (left, right), (*left, *right))
    if not conditions or not len(found.left_rows):
        return found
    rows = (found.left_rows, found.right_rows)
    mask = accepted(conditions, (left, right), (found.left, found.right), rows)
    return found if mask.all() else found.take(np.flatnonzero(mask))


def accepted_of(part: JoinPart, operator: Probe, found: Combinations, relations: Sequence[Relation]) -> Combinations:
    """Those combinations of one member of a group that its conditions do not reject."""
    if not part.join.conditions or not len(found):
        return found
    asked = {name for condition in part.join.conditions for name in condition.columns}
    columns: dict[str, pa.Array] = {}
    order = (operator.head, *(lookup.alias for lookup in operator.lookups))
    for alias, relation, rows in zip(order, relations, found.rows, strict=True):
        names = [(name, stored) for name, stored in part.views[alias].columns if name in asked]
        values = relation.gather(rows, [stored for _, stored in names])
        columns |= {name: value for (name, _), value in zip(names, values, strict=True)}
    return found.take(np.flatnonzero(not_rejected(part.join.conditions, columns)))


def columns_of(part: JoinPart, operator: Probe, found: Combinations, relations: Sequence[Relation]) -> pa.Table:
    """The finished combinations of one member of a group, with its own columns."""
    columns: dict[str, pa.Array] = {}
    order = (operator.head, *(lookup.alias for lookup in operator.lookups))
    for alias, relation, rows in zip(order, relations, found.rows, strict=True):
        names = part.views[alias].columns
        values = relation.gather(rows, [stored for _, stored in names])
        columns |= {name: value for (name, _), value in zip(names, values, strict=True)}
    return finished(part.join, {**columns, **answer_time(part, found.latest)}, len(found))


def answer_time(part: JoinPart, times: I64 | pa.Array) -> dict[str, I64 | pa.Array]:
    """The column of the times of finished combinations, where somebody asks for it."""
    return {TIME.flat: times} if TIME.flat in part.join.output else {}


def in_span(span: Span, latest_us: I64, *, is_last: bool) -> I64 | None:
    """Which combinations are those of a version, by their latest rows; None is all. A later row may still be added."""
    if span.is_all or (span.until_us is None and not is_last):
        return None
    own = np.ones(len(latest_us), bool)
    if span.until_us is not None:
        own &= latest_us < span.until_us
    if span.from_us is not None and is_last:
        own &= latest_us >= span.from_us
    return np.flatnonzero(own)
