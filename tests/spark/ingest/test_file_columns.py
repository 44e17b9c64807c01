"""Columns of a schema that the files of a stream do not have."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from watersmeet.spark.ingest.file_columns import unknown_column
from watersmeet.topology.model import Source, Stream


def stream(path: Path, kind: str, schema: str = "k long, amout double, ts timestamp", **options: str) -> Stream:
    return Stream("a", event_time="ts", schema=schema, source=Source(kind, str(path), options))


ROWS = pa.table({"K": [1], "amount": [0.5], "ts": pa.array([0], pa.timestamp("us", "UTC"))})


def test_columns_of_parquet_and_orc(tmp_path: Path) -> None:
    for kind, write in (("parquet", pq.write_table), ("orc", orc.write_table)):
        (tmp_path / kind / "day=7").mkdir(parents=True)
        write(ROWS, tmp_path / kind / "day=7" / f"0.{kind}")
        told = unknown_column(stream(tmp_path / kind, kind))
        assert told is not None
        assert "its schema has a column 'amout' that its files" in told and "did you mean 'amount'? known: K, " in told
        assert unknown_column(stream(tmp_path / kind, kind, "k long, Amount double, ts timestamp, day int")) is None


def test_a_column_that_was_added_over_time_is_known(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "0.parquet")
    pq.write_table(ROWS.append_column("amout", pa.array([1.0])), tmp_path / "1.parquet")
    assert unknown_column(stream(tmp_path, "parquet")) is None


def test_keys_of_json_may_be_missing_but_not_misspelt(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "0.json.gz", "wt") as file:
        file.write('{"k": 1, "amount": 2, "ts": "2025-01-01"}\n')
    told = unknown_column(stream(tmp_path, "json"))
    assert told is not None and "did you mean 'amount'?" in told
    assert unknown_column(stream(tmp_path, "json", "k long, note string, ts timestamp")) is None
    assert unknown_column(stream(tmp_path, "json", multiLine="true")) is None


@pytest.mark.parametrize(("header", "wanted"), [("k;amount;ts", "'amout', but the header of"), ("K;amout;ts", None)])
def test_the_header_of_csv_is_compared_by_place(tmp_path: Path, header: str, wanted: str | None) -> None:
    (tmp_path / "0.csv").write_text(f"{header}\n1;2;2025-01-01\n")
    told = unknown_column(stream(tmp_path, "csv", header="true", sep=";"))
    assert told is None if wanted is None else told is not None and wanted in told
    assert unknown_column(stream(tmp_path, "csv")) is None, "without a header nothing says what the columns are"


def test_files_that_cannot_be_read_and_none_at_all(tmp_path: Path) -> None:
    assert unknown_column(stream(tmp_path, "parquet")) is None
    (tmp_path / "0.parquet").write_text("no Parquet")
    assert unknown_column(stream(tmp_path, "parquet")) is None
    assert unknown_column(stream(tmp_path, "xml")) is None
