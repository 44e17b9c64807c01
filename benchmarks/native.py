"""The peer: Spark's own chained stream-stream joins, as a good Spark user writes this query.

Every join has a watermark and a time range on both sides, so that Spark drops old state, and the remaining pairs as
plain conditions. A stream may carry one event-time column only: after a join the newcomer's becomes a plain number.

    python benchmarks/native.py --window-us 60000000 --output OUT --checkpoint CHECKPOINT DIR_A DIR_B DIR_C

With `--until FILE` it follows the directories, with micro-batches as fast as they go, until there is such a file.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from functools import reduce
from operator import and_
from pathlib import Path

from oracle import rows_in
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from workload import DRIVER_MEMORY, MASTER, SPARK_SCHEMA, STREAM_NAMES

SETTINGS = {
    "spark.master": MASTER,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Inner joins answer at once; a last batch without data would only tidy state that nobody reads again.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    # Its file sink's log says when the answers of a micro-batch became visible: read after the run.
    "spark.sql.streaming.fileSink.log.cleanupDelay": "1d",
}


def session() -> SparkSession:
    """A local session on two cores with the settings that suit short micro-batches."""
    builder = SparkSession.builder.appName("w2-native")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def read(spark: SparkSession, name: str, path: Path, files: int | None = 1) -> DataFrame:
    """One stream, so many files a micro-batch (None: all that are new), with the columns that the query needs."""
    reader = spark.readStream.schema(SPARK_SCHEMA)
    rows = (reader if files is None else reader.option("maxFilesPerTrigger", files)).parquet(str(path))
    renamed = rows.select(
        F.col("k").alias(f"{name}_k"), F.col("id").alias(f"{name}_id"), F.col("ts").alias(f"{name}_ts")
    )
    return renamed.withWatermark(f"{name}_ts", "0 seconds")


def join(streams: dict[str, DataFrame], window_us: int) -> DataFrame:
    """All combinations with equal keys whose rows are pairwise at most the window apart."""
    (first, joined), *others = streams.items()
    window = F.expr(f"INTERVAL {window_us} MICROSECONDS")
    first_ts = F.col(f"{first}_ts")
    done: list[str] = []
    for name, stream in others:
        ts = F.col(f"{name}_ts")
        conditions = [
            F.col(f"{name}_k") == F.col(f"{first}_k"),
            ts >= first_ts - window,
            ts <= first_ts + window,
            *(F.abs(F.unix_micros(ts) - F.col(f"{earlier}_us")) <= window_us for earlier in done),
        ]
        joined = joined.join(stream, reduce(and_, conditions))
        joined = joined.withColumn(f"{name}_us", F.unix_micros(ts)).drop(f"{name}_k", f"{name}_ts")
        done.append(name)
    return joined.select([f"{name}_id" for name in streams])


def run(
    paths: Sequence[Path], window_us: int, output: Path, checkpoint: Path, until: Path | None = None
) -> dict[str, float]:
    """Join all files that are there, then stop; or follow them until there is a file `until`.

    `seconds` leaves out the start of the session.
    """
    spark = session()
    names = STREAM_NAMES[: len(paths)]
    files = 1 if until is None else None
    answers = join({name: read(spark, name, path, files) for name, path in zip(names, paths, strict=True)}, window_us)
    begin = time.perf_counter()
    writer = (
        answers.writeStream.format("parquet").option("path", str(output)).option("checkpointLocation", str(checkpoint))
    )
    query = (writer.trigger(availableNow=True) if until is None else writer).start()
    if until is None:
        query.awaitTermination()
    else:
        while not until.exists() and not query.awaitTermination(0.2):  # type: ignore[arg-type]
            pass
        query.stop()
    seconds = time.perf_counter() - begin
    progress = query.recentProgress
    spark.stop()
    return {
        "rows_in": sum(p.numInputRows for p in progress),
        "seconds": round(seconds, 3),
        "rows_out": rows_in(output),
        "batches": len(progress),
        # The witness that Spark did drop old rows: all joins, both sides, at the fullest moment.
        "state_rows_peak": max(sum(op.numRowsTotal for op in p.stateOperators) for p in progress),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Answer the workload's join with Spark's chained stream-stream joins.")
    parser.add_argument("--window-us", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True, help="directory of the Parquet sink")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--until", type=Path, metavar="FILE", help="follow the directories until there is this file")
    parser.add_argument(
        "paths", type=Path, nargs="+", metavar="DIR", help="one directory of Parquet files a stream, 2 to 6"
    )
    args = parser.parse_args()
    if not 2 <= len(args.paths) <= len(STREAM_NAMES):
        parser.error(f"{len(args.paths)} streams: give 2 to {len(STREAM_NAMES)} directories")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_DRIVER_MEMORY", DRIVER_MEMORY)
    print(json.dumps(run(args.paths, args.window_us, args.output, args.checkpoint, args.until)))


if __name__ == "__main__":
    main()
