"""Batches, messages, merges and answers whose text is longer than one Arrow column may be: they are cut."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scenes import SCHEMA, SECOND_US, Scene, by_arrow, make_batches

from watersmeet.program.storage import sizes

QUERIES = {
    "plain": "SELECT a.id AS a_id, b.id AS b_id, a.s AS x, b.s AS y FROM a [RANGE 20 SECONDS], b [RANGE 20 SECONDS] "
    "WHERE a.k = b.k",
    "counted": "SELECT a.id AS a_id, b.id AS b_id, b.s AS y FROM a [ROWS 90], b [ROWS 60] WHERE a.k = b.k",
    "different": "SELECT DISTINCT a.s AS x, b.s AS y FROM a [RANGE 20 SECONDS], b [RANGE 20 SECONDS] WHERE a.k = b.k",
}


@pytest.mark.few(1)
@pytest.mark.parametrize("where", [{}, {"homes": {"a": "ams", "b": "nyc"}, "site": "ams"}], ids=["one", "two"])
def test_text_that_is_too_long_for_one_column(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: dict[str, Any]
) -> None:
    data = {name: make_batches(number, 3, 120, keys=20) for number, name in enumerate("ab")}
    scene = Scene(tmp_path, data, QUERIES, **where).write()
    monkeypatch.setattr(sizes, "MAX_COLUMN_BYTES", 600)  # the tasks run in this process
    scene.run(spark)
    segments = [one for site in scene.sites for one in scene.ledger(site).segments]
    assert len(segments) > 10, "nothing was cut"
    scene.check()


TEXT_BYTES = 2_200


def long_texts(first: int, rows: int) -> pa.Table:
    """Rows of ten seconds, each with a key and a text of its own."""
    ids = np.arange(first, first + rows)
    pieces = []
    for some in np.array_split(ids, max(1, rows // 100_000)):
        letters = np.full((len(some), TEXT_BYTES), ord("x"), np.uint8)
        letters[:, :8] = np.array([f"{number:08d}" for number in some], "S8").view(np.uint8).reshape(-1, 8)
        offsets = np.arange(len(some) + 1, dtype=np.int32) * TEXT_BYTES
        buffers = [pa.py_buffer(offsets), pa.py_buffer(letters.reshape(-1))]
        pieces.append(pa.StringArray.from_buffers(len(some), *buffers))
    columns = {"k": ids, "m": np.zeros(rows, np.int32), "s": pa.chunked_array(pieces), "id": ids}
    columns |= {"v": np.zeros(rows), "ts": pa.array(ids * 9).cast(pa.timestamp("us", "UTC"))}
    return pa.table(columns, schema=SCHEMA)


@pytest.mark.soak
@pytest.mark.parametrize("files", [1, 4])
def test_more_than_2_gib_of_text_in_one_file_and_in_segments_that_would_be_merged(
    spark: Any, tmp_path: Path, files: int
) -> None:
    rows = 1_040_000
    batches = [long_texts(number * rows // files, rows // files) for number in range(files)]
    assert sum(batch.column("s").nbytes for batch in batches) > 2**31
    asked = pa.chunked_array([np.arange(0, rows, rows // 50)])
    other = make_batches(3, files, len(asked) // files, trouble=0)
    few = [
        batch.set_column(0, "k", asked.slice(number * batch.num_rows, batch.num_rows))
        for number, batch in enumerate(other)
    ]
    sql = "SELECT a.id AS a_id, b.id AS b_id, a.s AS x FROM a [RANGE 1 HOUR], b [RANGE 1 HOUR] WHERE a.k = b.k"
    scene = Scene(tmp_path, {"a": batches, "b": few}, {"q": sql}, delay_us=60 * SECOND_US).write()
    scene.run(spark)
    assert sum(segment.bytes for segment in scene.ledger("here").segments) > 2**31, "it is kept"
    pairs = [
        pair for batch in few for pair in zip(*(batch.column(name).to_pylist() for name in ("k", "id")), strict=True)
    ]
    # All are within an hour. The oracle would take minutes to read so much text.
    assert by_arrow(scene.sink()) == Counter((k, b, f"{k:08d}".ljust(TEXT_BYTES, "x")) for k, b in pairs)
    assert len(pairs) > 40
