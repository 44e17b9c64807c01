"""Tables whose text is longer than 32-bit offsets reach; the limit is lowered here, and real in the soak tests."""

import numpy as np
import pyarrow as pa
import pytest
from sim.sites.streams import SECOND

from watersmeet.program.storage import sizes
from watersmeet.program.storage.merging import choose_merges
from watersmeet.program.storage.packing import pack_rows, unpack_rows
from watersmeet.program.storage.segments import TS
from watersmeet.program.storage.shelf import Part, Segment
from watersmeet.program.storage.sizes import split_rows, take_rows, united


def texts(count: int, size: int = 100) -> pa.Table:
    return pa.table({"n": np.arange(count), "s": [f"{number:0{size}d}" for number in range(count)]})


def test_tables_are_cut_below_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.concat_tables([texts(40), texts(60), pa.table({"n": [0], "s": ["x" * 5_000]})])
    assert split_rows(table) == [table]
    monkeypatch.setattr(sizes, "MAX_COLUMN_BYTES", 2_000)
    pieces = split_rows(table)
    assert pa.concat_tables(pieces) == table and len(pieces) > 5
    assert [piece.num_rows for piece in pieces if piece.column("s").nbytes > 2_000] == [1], "a row is never cut"
    for piece in pieces:
        assert unpack_rows(pack_rows(piece), piece.schema) == piece


def test_wide_and_narrow_text_is_united_and_cut_into_narrow() -> None:
    narrow = texts(5)
    wide = narrow.cast(pa.schema([("n", pa.int64()), ("s", pa.large_string())]))
    whole = united([narrow, wide])
    assert whole.schema == wide.schema and united([narrow, narrow]).schema == narrow.schema
    (cut,) = split_rows(whole)
    assert cut == pa.concat_tables([narrow, narrow])


def test_segments_that_would_be_too_long_are_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [Segment((Part(f"p{n}", 2_000, 300),), n * SECOND, n * SECOND) for n in range(9)]
    assert len(choose_merges(segments, None, TS, None)) == 2
    monkeypatch.setattr(sizes, "MAX_COLUMN_BYTES", 1_199)
    assert choose_merges(segments, None, TS, None) == ()


@pytest.mark.soak
def test_more_than_2_gib_of_text() -> None:
    value = "x" * 1_000_000
    table = pa.table({"n": np.arange(1_000), "s": pa.array([value] * 1_000)})
    found = take_rows(table, pa.array(np.arange(2_300) % 1_000))
    assert found.num_rows == 2_300 and found.column("s").nbytes > 2**31
    pieces = split_rows(united([table, found]))
    assert sum(piece.num_rows for piece in pieces) == 3_300
    assert all(piece.schema == table.schema and piece.column("s").nbytes <= 2**30 for piece in pieces)
    with pytest.raises(ValueError, match="too many values"):
        pack_rows(pa.concat_tables([table, table, table]))
