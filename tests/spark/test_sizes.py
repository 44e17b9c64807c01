"""Batches, messages, merges and answers whose text is longer than one Arrow column may be: they are cut."""

from pathlib import Path
from typing import Any

import pytest
from scenes import Scene, make_batches

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
