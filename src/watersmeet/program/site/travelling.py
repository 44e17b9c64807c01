"""What travels of shared records: k of them for each group and pane instead of one for each query (5.3 - 5.6).

A record goes with a set of queries that it counts for. Records of fragments are one choice, those of single queries
another (nothing shared), for aggregates that do not mind duplicates a cover of the fragments by fewer sets, and for
counts and sums the records of independent queries. Sets are numbered, and written out the first time only: the reader
remembers them, so that F is the same at both ends.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.program.aggregate.functions import Rule
from watersmeet.program.aggregate.records import Layout
from watersmeet.program.finish.groups import check_records
from watersmeet.program.finish.shared import SET, RecordShape, matrix_of, set_of, sets_in, spread
from watersmeet.program.site.independent import basis_size, counts_only, fresh_basis, is_linear, known_bases, owners_of
from watersmeet.program.storage.segments import TS
from watersmeet.sharing.bits import Bools
from watersmeet.sharing.cover import rectangle_cover
from watersmeet.sharing.decomposition import SetCombination
from watersmeet.sharing.gains import SharingFigures, total_gain

FRAGMENT = "#fragment"  # int64, the number of a record's set, in order of appearance
_EPOCHS = 16  # panes for which a set that comes for the first time is expected to come again
_MOST_COVERED = 1 << 17  # fragments times queries for which a cover is searched
_IDEMPOTENT = {Rule.MIN, Rule.MAX, Rule.UNION, Rule.BOTTOM}

_STATE_BITS = 24  # that a column of a record takes packed, about


def decomposed(shape: RecordShape, records: pa.Table, known: frozenset[bytes]) -> pa.Table:
    """Records of fragments as they are best sent, given the sets that the reader knows."""
    layout = shape.layout(records.schema)
    sets = sets_in(records)
    selections = np.flatnonzero(matrix_of(sets, range(8 * max(map(len, sets)))).any(axis=0)).tolist()
    queries = len(selections)
    found, owners = sets, np.eye(len(sets), dtype=bool)
    if not _pays(layout, len(sets), queries, len(set(sets) - known)):
        found, owners = [set_of([selection]) for selection in selections], matrix_of(sets, selections)
    rules = {rule for function, _ in layout.functions for rule in function.rules.values()}
    if rules <= _IDEMPOTENT and len(sets) * queries <= _MOST_COVERED:
        cover, members = _covered(tuple(sets), tuple(selections))
        if len(cover) < len(found):
            found, owners = cover, members
    if is_linear(shape, layout):
        basis = _basis(layout, tuple(sets), tuple(selections), known)
        if basis is not None and _bits(layout, basis, known) < _bits(layout, found, known):
            found, owners = basis, owners_of(basis, sets)
    return records if found is sets else _regrouped(layout, records, sets, found, owners)


def most_records(shape: RecordShape, fragments: Bools) -> int:
    """k, how many records of a pane and group travel at most for so many possible fragments (rows) and queries."""
    count, queries = len(fragments), int(fragments.shape[1])
    most = min(count, queries)
    if counts_only(shape):
        return min(most, most if (rank := basis_size(fragments)) is None else rank)
    is_idempotent = all(aggregate.function in ("min", "max", "bool_and", "bool_or") for aggregate in shape.aggregates)
    if is_idempotent and count * queries <= _MOST_COVERED:
        return min(most, rectangle_cover(fragments).size)
    return most


def _basis(
    layout: Layout, sets: tuple[bytes, ...], selections: tuple[int, ...], known: frozenset[bytes]
) -> list[bytes] | None:
    """The cheapest basis from which all queries follow: one that the reader knows, or a new one."""
    found = known_bases(known, sets)
    fresh = fresh_basis(sets, selections)
    return min([*found, *([] if fresh is None else [fresh])], key=lambda one: _bits(layout, one, known), default=None)


def _bits(layout: Layout, written: Sequence[bytes], known: frozenset[bytes]) -> float:
    """What the records of a pane take, with sets or entries that the reader does not know."""
    new = sum(len(data) for data in written if data not in known)
    return len(written) * _STATE_BITS * (len(layout.columns) - 2) + 8 * new / _EPOCHS


def _pays(layout: Layout, fragments: int, queries: int, unknown: int) -> bool:
    """Whether sending records of fragments is cheaper than those of all queries, sets that are new included (5.6.1)."""
    bits = _STATE_BITS * (len(layout.columns) - 2)
    return SharingFigures(1, queries, bits).pays(total_gain(fragments, queries), unknown / _EPOCHS)


@lru_cache(maxsize=16)  # F stays the same for most panes
def _covered(sets: tuple[bytes, ...], selections: tuple[int, ...]) -> tuple[list[bytes], Bools]:
    cover = rectangle_cover(matrix_of(sets, selections))
    assert isinstance(cover.combination, SetCombination), "a cover is made of sets"
    numbers = np.array(selections)
    return [set_of(numbers[row].tolist()) for row in cover.combination.basis], cover.assign


def _regrouped(
    layout: Layout, records: pa.Table, sets: Sequence[bytes], found: Sequence[bytes], owners: Bools
) -> pa.Table:
    """Records of other sets, each made of those of the fragments that it owns."""
    places = pc.index_in(records.column(SET), pa.array(sets, pa.binary())).to_numpy()
    rest = records.drop_columns([SET])
    pieces = []
    for rows, numbers in spread(owners[places]):
        pieces.append(layout.combine([rest.take(pa.array(rows)).append_column(SET, pa.array(numbers))]))
    made = layout.combine(pieces)
    given = pa.array(found, pa.binary()).take(made.column(SET))
    return made.set_column(made.column_names.index(SET), SET, given)


def numbered(records: pa.Table, known: Sequence[bytes]) -> tuple[pa.Table, list[bytes]]:
    """Records with the numbers of their sets, of which those that the reader does not know are written out once.

    The second is all sets that it knows then.
    """
    numbers = {data: number for number, data in enumerate(known)}
    values = records.column(SET).to_pylist()
    codes = np.empty(len(values), np.int64)
    written: list[bytes] = []
    for row, value in enumerate(values):
        is_new = value not in numbers
        codes[row] = numbers.setdefault(value, len(numbers))
        written.append(value if is_new else b"")
    table = records.set_column(records.column_names.index(SET), SET, pa.array(written, pa.binary()))
    return table.add_column(1, FRAGMENT, pa.array(codes)), list(numbers)


def unnumbered(records: pa.Table, known: Sequence[bytes]) -> tuple[pa.Table, list[bytes]]:
    """Records with their sets, and all sets that are known then; ValueError where a number stands for nothing."""
    sets = list(known)
    codes, written = records.column(FRAGMENT).to_pylist(), records.column(SET).to_pylist()
    for code, one in zip(codes, written, strict=True):
        if one and code == len(sets):
            sets.append(one)
        elif one or not 0 <= code < len(sets):
            raise ValueError(f"a record of shared queries has set {code} where {len(sets)} are known")
    table = records.drop_columns([FRAGMENT])
    values = pa.array(sets, pa.binary()).take(pa.array(codes, pa.int64()))
    return table.set_column(table.column_names.index(SET), SET, values), sets


def check_shared(shape: RecordShape, schema: pa.Schema) -> None:
    """Whether records that travel can have such columns; ValueError if not."""
    if schema.names[:3] != [TS, FRAGMENT, SET]:
        raise ValueError(f"shared records begin with the columns {', '.join(schema.names[:3])}")
    if schema.field(FRAGMENT).type != pa.int64() or schema.field(SET).type != pa.binary():
        raise ValueError("the sets of shared records have another type")
    check_records(shape.grouping, pa.schema([field for field in schema if field.name not in (FRAGMENT, SET)]))
