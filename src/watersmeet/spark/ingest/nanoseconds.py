"""Parquet files with times in nanoseconds, as pandas writes them: read as microseconds, rounded down.

Spark refuses such a column where a timestamp is wanted, and reads it as a whole number if it may.
"""

import glob
import os
from collections.abc import Callable, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from watersmeet.spark.ingest.new_files import is_local, on_this_machine
from watersmeet.topology.model import Stream

_AS_LONG = "spark.sql.legacy.parquet.nanosAsLong"


def nanosecond_columns(file: pq.ParquetFile) -> frozenset[str]:
    """The columns of a file that are 64-bit numbers of nanoseconds; older files have 96 bits, which Spark can read."""
    wide = {file.schema.column(number).path for number in range(len(file.schema)) if _is_wide(file, number)}
    fields = {
        field.name for field in file.schema_arrow if pa.types.is_timestamp(field.type) and field.type.unit == "ns"
    }
    return frozenset(fields - wide)


def _is_wide(file: pq.ParquetFile, number: int) -> bool:
    return bool(file.schema.column(number).physical_type == "INT96")


def floored(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Times in nanoseconds as a type of microseconds."""
    return pc.floor_temporal(values.cast(pa.timestamp("ns")), unit="microsecond").cast(pa.timestamp("us")).cast(kind)


def read_files(
    spark: SparkSession,
    read: Callable[[T.StructType, Sequence[str]], DataFrame],
    schema: T.StructType,
    paths: Sequence[str],
) -> DataFrame:
    """Files as `read` reads them by Spark; where one has nanoseconds, as microseconds."""
    groups: dict[frozenset[str], list[str]] = {}
    times = _times(schema)
    for path in paths:
        found = _local_nanoseconds(path) if is_local(path) else _remote_nanoseconds(spark, path)
        groups.setdefault(found & times, []).append(path)
    if any(groups):
        spark.conf.set(_AS_LONG, "true")
    frames = []
    for columns, some in groups.items():
        fields = [T.StructField(f.name, T.LongType()) if f.name in columns else f for f in schema]
        frame = read(T.StructType(fields), some)
        frames.append(frame.select([_microseconds(f) if f.name in columns else F.col(_quoted(f.name)) for f in schema]))
    return reduce(DataFrame.union, frames)


def nanosecond_warning(stream: Stream, schema: T.StructType) -> str | None:
    """What to tell of a stream whose first file has times in nanoseconds."""
    source = stream.source
    if source is None or source.format != "parquet" or not source.path or "://" in source.path:
        return None
    files = sorted(glob.glob(os.path.join(source.path, "*.parquet")) or glob.glob(source.path))
    found = _local_nanoseconds(files[0]) & _times(schema) if files else frozenset()
    if not found:
        return None
    names = ", ".join(sorted(found))
    return f"stream {stream.name!r}: {names} is in nanoseconds in its files; it is read in microseconds, rounded down"


def _times(schema: T.StructType) -> set[str]:
    return {field.name for field in schema if isinstance(field.dataType, T.TimestampType | T.TimestampNTZType)}


def _remote_nanoseconds(spark: SparkSession, path: str) -> frozenset[str]:
    """As Spark sees a file: it cannot tell the types of one that has nanoseconds, unless they may be numbers."""
    looking = spark.newSession()  # with settings of its own
    try:
        looking.conf.set(_AS_LONG, "false")
        looking.read.parquet(path)
        return frozenset()
    except Exception as error:
        if "NANOS" not in str(error):
            return frozenset()  # Spark says what is wrong with it when it reads it
    looking.conf.set(_AS_LONG, "true")
    numbers = {field.name for field in looking.read.parquet(path).schema if isinstance(field.dataType, T.LongType)}
    return frozenset(numbers)


def _local_nanoseconds(path: str) -> frozenset[str]:
    place = on_this_machine(path)
    try:
        if os.path.getsize(place) == 0:
            return frozenset()
        with pq.ParquetFile(place) as file:
            return nanosecond_columns(file)
    except (pa.ArrowException, OSError):  # Spark says what is wrong with it
        return frozenset()


def _microseconds(field: T.StructField) -> Column:
    number = _quoted(field.name)
    time = F.expr(f"timestamp_micros(({number} - pmod({number}, 1000)) div 1000)")
    return time.cast(field.dataType).alias(field.name)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
