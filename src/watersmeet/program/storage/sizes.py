"""Tables of any size: Arrow's text has 32-bit offsets, so what is filed and packed is cut below 2 GiB a column.

Text with 64-bit offsets would cost every row 4 bytes more; it is used only where an intermediate table is longer.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

MAX_COLUMN_BYTES = 1 << 30  # of one column of a file, a message or a merge

_WIDE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
_NARROW = {wide: narrow for narrow, wide in _WIDE.items()}


def split_rows(table: pa.Table) -> list[pa.Table]:
    """The table in consecutive pieces none of whose columns is longer than MAX_COLUMN_BYTES, in the usual types."""
    if table.num_rows > 1 and any(column.nbytes > MAX_COLUMN_BYTES for column in table.columns):
        half = table.num_rows // 2
        return [*split_rows(table.slice(0, half)), *split_rows(table.slice(half))]
    if any(kind in _NARROW for kind in table.schema.types):
        table = _cast(table.take(pa.array(np.arange(table.num_rows))), _NARROW)  # a copy of its own
    return [table]


def take_rows(table: pa.Table, places: pa.Array) -> pa.Table:
    """The rows at some places, with 64-bit offsets where the text is too long for less."""
    try:
        return table.take(places)
    except pa.ArrowInvalid:
        return _cast(table, _WIDE).take(places)


def united(tables: Sequence[pa.Table]) -> pa.Table:
    """All rows of some tables, in the wider types where they differ."""
    alike = all(table.schema.equals(tables[0].schema) for table in tables)
    return pa.concat_tables(tables, promote_options="none" if alike else "permissive")


def _cast(table: pa.Table, to: dict[pa.DataType, pa.DataType]) -> pa.Table:
    return table.cast(pa.schema([field.with_type(to.get(field.type, field.type)) for field in table.schema]))
