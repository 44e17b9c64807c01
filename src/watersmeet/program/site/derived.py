"""Derived streams: answers of queries as rows of a stream, in the same micro-batch and the same ledger.

Such a row's event time is the answer's time: that of its latest tuple, or the last microsecond of its output window.
It is never late, since the stream's watermark is the instant before which no more answers come.
"""

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.program.site.ledger import Answers, Ingested
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.streams import StreamScan
from watersmeet.program.storage.segments import TS
from watersmeet.program.storage.shelf import Shelf
from watersmeet.query.model import EVENT_TIME


class DeriveRows(Protocol):
    """Files answers as rows of a derived stream: a runtime evaluates the keys and conditions of those who read it."""

    def __call__(
        self, program: SiteProgram, scan: StreamScan, answers: Sequence[Answers], filed: int
    ) -> list[Ingested]:
        """File answers whose last column is their time; what was found among them.

        `filed` files of the same micro-batch are rows of the stream already: numbers of rows go on behind them.
        """


def no_derived_rows(program: SiteProgram, scan: StreamScan, answers: Sequence[Answers], filed: int) -> list[Ingested]:
    """For runtimes without derived streams."""
    raise AssertionError(f"{scan.stream} is a derived stream, and nobody files its rows")


def derived_rows(shelf: Shelf, stream: str, answers: Answers) -> list[pa.Table]:
    """Answers as rows of a stream: event time in microseconds, and columns under the stream's name."""
    return [_as_rows(shelf.get(path), stream, answers.columns) for path in answers.paths]


def _as_rows(table: pa.Table, stream: str, columns: Sequence[tuple[str, str]]) -> pa.Table:
    *values, (time, name) = columns
    assert name == EVENT_TIME, "what feeds a stream ends with the time"
    times = table.column(time)
    if pa.types.is_timestamp(times.type):  # the end of an output window
        times = pc.subtract(times.cast(pa.int64()), 1)
    return pa.table({TS: times, **{f"{stream}.{to}": table.column(stored) for stored, to in values}})
