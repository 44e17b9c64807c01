"""What rows take on a link, measured by packing some of them in batches of several sizes."""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from watersmeet.program.storage.packing import pack_rows
from watersmeet.program.storage.wire import COLUMN_BYTES
from watersmeet.stats.model import BATCH_ROWS, BytesByBatch

_MIXED_ROWS = 1_000  # rows that are mixed up with each other, like in a window
_SINGLE_ROWS = 10  # so many rows are measured one by one


class Sizes:
    """What rows take on a link in batches of 1 to 10,000, without what an empty batch takes."""

    def __init__(self, measured: Iterable[Sequence[int]] = ((0, 0),) * len(BATCH_ROWS)) -> None:
        self._measured = [(int(size), int(rows)) for size, rows in measured]  # bytes and rows so far
        if len(self._measured) == 3:  # as it was written by earlier releases: of 10, 100 and 1,000
            self._measured = [(0, 0), *self._measured, (0, 0)]

    def measure(self, table: pa.Table, slices: int, *, mixed_up: bool = False) -> None:
        """Pack up to so many slices of every size, of rows as they come or of a thousand mixed up, like in a window.

        Of a small table, all of it counts as ten.
        """
        if mixed_up:
            chance = np.random.default_rng(table.num_rows).random(table.num_rows)
            table = table.take(np.lexsort((chance, np.arange(table.num_rows) // _MIXED_ROWS)))
        for number, batch_rows in enumerate(BATCH_ROWS):
            if number > 1 and table.num_rows < batch_rows:
                break
            count = max(1, min(max(slices, _SINGLE_ROWS // batch_rows), table.num_rows // batch_rows))
            for place in range(count):
                piece = table.slice(place * (table.num_rows // count), batch_rows)
                if piece.num_rows:
                    self._add(number, body_bytes(piece), piece.num_rows)

    def _add(self, number: int, size: int, rows: int) -> None:
        before = self._measured[number]
        self._measured[number] = before[0] + size, before[1] + rows

    def copy(self) -> "Sizes":
        return Sizes(self._measured)

    def merge(self, other: "Sizes") -> None:
        """Take all that another one has measured."""
        for number, (size, rows) in enumerate(other._measured):
            self._add(number, size, rows)

    @property
    def each(self) -> BytesByBatch | None:
        """Bytes of one; a size that was never measured is as the one before it."""
        found: list[float] = []
        known = [(size, rows) for size, rows in self._measured if rows]
        for size, rows in self._measured:
            if rows:
                found.append(size / rows)
            elif known:
                found.append(found[-1] if found else known[0][0] / known[0][1])
        if len(found) != len(BATCH_ROWS):
            return None
        one, ten, hundred, thousand, most = (round(size, 3) for size in found)
        return one, ten, hundred, thousand, most

    @property
    def rows(self) -> int:
        """How many rows were packed."""
        return sum(rows for _, rows in self._measured)

    def to_data(self) -> list[tuple[int, int]]:
        """The measurements as values for JSON."""
        return self._measured


def body_bytes(table: pa.Table) -> int:
    """What rows take on a link beside what describes their columns."""
    beside: int = COLUMN_BYTES * table.num_columns
    return max(0, len(pack_rows(table)) - beside)
