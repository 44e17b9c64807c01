"""The page for those who come from Spark: their query and ours give the same answers."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import watersmeet as wm

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "coming-from.md"
START = datetime(2025, 1, 1, tzinfo=UTC)
ROWS = 40


def test_the_joins_of_the_page_are_equal(
    spark: SparkSession,
    tmp_path: Path,
    write_stream: Callable[[str, Sequence[pa.Table]], Path],
    monkeypatch: Any,
) -> None:
    theirs, ours, counts = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    columns = {"orders": ("user", "id", "ordered"), "clicks": ("clicker", "page", "clicked")}
    frames: dict[str, Any] = {"spark": spark, "wm": wm, "F": F}
    for shift, (name, (key, value, time)) in enumerate(columns.items()):
        made = {
            key: pa.array([(n * n + shift) % 4 for n in range(ROWS)]),
            value: pa.array(range(ROWS)),
            time: pa.array([START + timedelta(seconds=n) for n in range(ROWS)], pa.timestamp("us", "UTC")),
        }
        table = pa.table(made)
        path = write_stream(name, [table.slice(0, ROWS // 2), table.slice(ROWS // 2)])
        read = spark.readStream.schema(f"{key} long, {value} long, {time} timestamp").option("maxFilesPerTrigger", 1)
        frames[name] = read.parquet(str(path)).withWatermark(time, "10 seconds")
    code = "\n".join([theirs, ours, counts]).replace("checkpoints/ours", str(tmp_path / "ours"))
    exec(compile(code, str(PAGE), "exec"), frames)
    expected = Counter(
        (o, c) for o in range(ROWS) for c in range(ROWS) if o * o % 4 == (c * c + 1) % 4 and -5 <= o - c <= 3
    )
    frames["ours"].lastRun.awaitTermination(300)
    answers = spark.read.parquet(str(tmp_path / "ours" / "answers"))
    assert Counter(map(tuple, answers.collect())) == expected
    assert frames["counts"].isStreaming and frames["counts"].columns == ["page", "count"]
    query = frames["theirs"].writeStream.format("memory").queryName("theirs").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "theirs")).start().awaitTermination(300)
    assert Counter(map(tuple, spark.table("theirs").collect())) == expected
