"""DISTINCT: answers with equal hashes are compared for real, whichever bucket and micro-batch they come in."""

import zlib
from collections.abc import Iterable
from math import nan

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.program.finish.distinct import KeepUnseen
from watersmeet.program.storage.segments import class_column
from watersmeet.program.storage.shelf import MemoryShelf, Segment

SCHEMA = pa.schema([("c0", pa.int64()), ("c1", pa.string()), ("c2", pa.float64())])
Answer = tuple[int | None, str | None, float | None]

answers = st.tuples(
    st.none() | st.integers(0, 2), st.none() | st.sampled_from(["", "x"]), st.sampled_from([None, 0.5, nan])
)


def comparable(answer: Iterable[object]) -> tuple[object, ...]:
    return tuple("NaN" if value != value else value for value in answer)


class Sink:
    """Micro-batches of answers, each without repetitions of its own, one after the other."""

    def __init__(self, buckets: int, hashes: int) -> None:
        self._buckets, self._hashes = buckets, hashes
        self._shelf = MemoryShelf()
        self.seen: tuple[Segment, ...] = ()

    def give(self, batch: list[Answer], files: int = 1) -> list[tuple[object, ...]]:
        """Those answers that were never given before."""
        paths = []
        for number in range(files):
            rows = [dict(zip(SCHEMA.names, answer, strict=True)) for answer in batch[number::files]]
            table = pa.Table.from_pylist(rows, schema=SCHEMA)
            hashes = pa.array([self._hash(answer) for answer in batch[number::files]], pa.int64())
            paths.append(self._shelf.put("answers", table.append_column(class_column(0), hashes)).path)
        task = KeepUnseen(self._shelf, self._buckets, tuple(paths), self.seen, tuple(SCHEMA.names))
        fresh = [segment for bucket in range(self._buckets) for segment in task(bucket)]
        self.seen = (*self.seen, *fresh)
        tables = [self._shelf.get(part.path).select(SCHEMA.names) for segment in fresh for part in segment.parts]
        return [comparable(tuple(row.values())) for table in tables for row in table.to_pylist()]

    def _hash(self, answer: Answer) -> int:
        return zlib.crc32(repr(comparable(answer)).encode()) % self._hashes * 2**61


@pytest.mark.parametrize("hashes", [1, 3])  # few, so that many different answers have the same
@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.lists(answers, max_size=8), max_size=4),
    buckets=st.integers(1, 3),
    files=st.integers(1, 2),
)
def test_every_answer_is_given_once(hashes: int, batches: list[list[Answer]], buckets: int, files: int) -> None:
    sink, given_before = Sink(buckets, hashes), set[tuple[object, ...]]()
    for batch in batches:
        different = list({comparable(answer): answer for answer in batch}.values())
        fresh = sink.give(different, files)
        assert len(fresh) == len(set(fresh))
        assert set(fresh) == {comparable(answer) for answer in different} - given_before
        given_before |= set(fresh)


def test_what_was_given_is_a_segment_sorted_by_hash() -> None:
    sink = Sink(buckets=2, hashes=3)
    sink.give([(number, "x", 0.5) for number in range(9)])
    assert sum(segment.rows for segment in sink.seen) == 9
    assert all(len(segment.parts) == 1 for segment in sink.seen) and len(sink.seen) <= 2
    assert sink.give([(number, "x", 0.5) for number in range(9)]) == []
