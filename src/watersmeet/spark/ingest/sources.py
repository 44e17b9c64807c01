"""Opening a stream as a streaming DataFrame, and laying out the columns that its rows are ingested with."""

import glob
import os
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from watersmeet.errors import InputError, TopologyError
from watersmeet.program.site.classified import classified_columns, classified_selections
from watersmeet.program.site.ingest import FAILED, MALFORMED
from watersmeet.program.site.streams import StreamScan
from watersmeet.program.storage.segments import TS, class_column, keep_column
from watersmeet.query.sql.simple import ValueKind
from watersmeet.query.windows import TABLE_US
from watersmeet.spark.analyser import readable
from watersmeet.spark.backend.protocol import backend_of
from watersmeet.spark.binding import CORRUPT, CORRUPT_FIELD, class_key_sql, micros_sql
from watersmeet.spark.ingest import generator
from watersmeet.spark.ingest.kafka import check_topic, open_topic
from watersmeet.spark.ingest.nanoseconds import read_files
from watersmeet.spark.ingest.new_files import FILE_FORMATS, is_local, listing_options, local_path, reader_options
from watersmeet.spark.session import option_values
from watersmeet.topology.model import Source, Stream, Table

_OWN_SCHEMA_FORMATS = ("rate", "rate-micro-batch", "socket", "kafka")  # they refuse a schema
_LIGHT_FORMATS = ("parquet", generator.FORMAT)
_FILE_SCHEMA = "path string, modificationTime timestamp, length long, content binary"
_NO_AGE = "36500d"  # Spark leaves out files that are older than the newest one by more than a week, without a word
_KINDS = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), ValueKind.WHOLE),
    "double": ValueKind.DOUBLE,
    "string": ValueKind.TEXT,  # without a collation
}
_PARSED_FORMATS = ("json", "csv", "xml")  # their rows can be malformed one by one


def has_rows_in_java(streams: Iterable[Stream]) -> bool:
    """Whether Java works through the rows of any of these streams; Parquet is columns to it, and soon to us."""
    return any(stream.source is None or stream.source.format not in _LIGHT_FORMATS for stream in streams)


def check_source(stream: Stream, schema: StructType, *, once: bool) -> None:
    """Refuse a source that cannot be read, before anything runs."""
    source = stream.source
    if source is None:
        return
    if source.format == generator.FORMAT:
        if isinstance(stream, Table):
            raise TopologyError(f"{stream.what}: a generator makes streams; write its rows to files, and read these")
        try:
            spec = generator.spec_of(schema, source.options)
        except InputError as error:
            raise TopologyError(f"{stream.what}: {error}") from None
        if once and spec.rows is None:
            raise TopologyError(
                f"{stream.what}: its generator never ends, so --once would not either; give it the option rows"
            )
        return
    if source.format == "kafka":
        check_topic(stream)
    if source.format in FILE_FORMATS:
        if not source.path:
            raise TopologyError(f"{stream.what}: its source of format {source.format} needs a path")
        if is_local(source.path) and not glob.glob(local_path(source.path)):
            raise TopologyError(f"{stream.what}: source path {source.path} does not exist; make it or correct it")


def open_stream(spark: SparkSession, stream: Stream, schema: StructType, *, batch: bool = False) -> DataFrame:
    """The stream's rows as Spark delivers them, with a column for malformed text where the format can have it.

    `batch` opens what a source has now as a table instead.
    """
    if stream.frame is not None:
        return stream.frame  # type: ignore[return-value]
    source = stream.source
    assert source is not None, "a stream has a source or a frame"
    if source.format == "kafka":
        return open_topic(spark, stream, schema, batch=batch)
    if source.format == generator.FORMAT:
        generator.register(spark)
    options = option_values(spark, source.options, stream.what)
    if source.format in FILE_FORMATS and not batch and "maxfileage" not in map(str.casefold, options):
        options["maxFileAge"] = _NO_AGE
    reader = _reader(spark.read if batch else spark.readStream, source, schema).options(**options)
    return _loaded(stream, reader, source.path)


def open_names(spark: SparkSession, stream: Stream) -> DataFrame:
    """The names and sizes of a stream's new files, where Spark lists them: `path`, `length`.

    Spark decides how a file is read before it has seen it; by their names we open each as what it is.
    """
    source = stream.source
    assert source is not None and source.path is not None, "only streams of files have files"
    options = {"maxFileAge": _NO_AGE, **option_values(spark, listing_options(source), stream.what)}
    reader = spark.readStream.format("binaryFile").schema(_FILE_SCHEMA).options(**options)
    return _loaded(stream, reader, source.path).select("path", "length")


def open_files(spark: SparkSession, stream: Stream, schema: StructType, paths: Sequence[str]) -> DataFrame:
    """The rows of some of a stream's files, as `open_stream` has them."""
    source = stream.source
    assert source is not None and source.path is not None, "only streams of files have files"
    given = option_values(spark, reader_options(source), stream.what)
    options = {**given, "__globPaths__": "false"}  # they are names, whatever characters are in them
    if os.path.isdir(local_path(source.path)) or not (is_local(source.path) or glob.has_magic(source.path)):
        options["basePath"] = source.path  # for columns that are names of directories

    def read(schema: StructType, some: Sequence[str]) -> DataFrame:
        return _loaded(stream, _reader(spark.read, source, schema).options(**options), list(some))

    return read_files(spark, read, schema, paths) if source.format == "parquet" else read(schema, paths)


def _reader(reader: Any, source: Source, schema: StructType) -> Any:
    reader = reader.format(source.format)
    if catches_malformed(source):
        schema = StructType([*schema.fields, CORRUPT_FIELD])
        reader = reader.option("columnNameOfCorruptRecord", CORRUPT).option("columnPruning", "false")
    return reader if source.format in _OWN_SCHEMA_FORMATS else reader.schema(schema)


def _loaded(stream: Stream, reader: Any, path: str | list[str] | None) -> DataFrame:
    try:
        return reader.load(path) if path else reader.load()  # type: ignore[no-any-return]
    except Exception as error:
        raise InputError(f"{stream.what}: Spark cannot open its source: {readable(error)}") from None


def catches_malformed(source: Source | None) -> bool:
    """Whether rows that do not parse come through, marked, instead of failing the run."""
    if source is None or source.format not in _PARSED_FORMATS:
        return source is not None and source.payload is not None
    mode = {name.casefold(): value for name, value in source.options.items()}.get("mode", "permissive")
    return mode.casefold() == "permissive"


def raw_columns(stream: Stream) -> tuple[str, ...]:
    """Flat names of the columns that are kept of a late or malformed row, where the stream asks for that."""
    if stream.late is None:
        return ()
    names = [*stream.columns, *([CORRUPT] if catches_malformed(stream.source) else [])]
    return tuple(f"{stream.name}.{name}" for name in names)


def ingest_columns(rows: DataFrame, stream: Stream, schema: StructType, scan: StreamScan) -> DataFrame:
    """Lay out a stream: event time, keys and conditions as numbers, and the values to keep by their flat names."""
    marks_malformed = catches_malformed(stream.source)
    names = [*stream.columns, *([CORRUPT] if marks_malformed else [])]
    flat = rows.select([F.col(f"`{_quoted(name)}`").alias(f"{stream.name}.{name}") for name in names])
    if isinstance(stream, Table):
        ts = F.lit(TABLE_US).alias(TS)
    else:
        time_column = stream.event_time_column
        kind = schema[time_column].dataType.simpleString()
        ts = F.expr(micros_sql(f"`{_quoted(f'{stream.name}.{time_column}')}`", kind)).alias(TS)
    malformed = None
    if marks_malformed:
        malformed = F.col(f"`{_quoted(f'{stream.name}.{CORRUPT}')}`").isNotNull().alias(MALFORMED)
    # Text formats parse only what is asked for: asking for everything makes a row malformed whatever the query.
    extra = names if raw_columns(stream) else stream.columns if marks_malformed else ()
    return laid_out(flat, scan, ts, [f"{stream.name}.{column}" for column in extra], malformed)


def laid_out(
    flat: DataFrame, scan: StreamScan, ts: Column, extra: Sequence[str], malformed: Column | None = None
) -> DataFrame:
    """Rows by flat names as they are ingested, with some more columns as they are."""
    found = [ts]
    tried = {}  # expressions that may fail: each is tried once, and its value is NULL where it does
    for number, key in enumerate(scan.keys):
        sql = class_key_sql(key.expression, exact=key.exact)
        if key.expression.is_plain:
            found.append(F.expr(sql).alias(class_column(number)))
        else:
            tried[class_column(number)] = _guarded(sql, scan, f"#{number}")
    classified = classified_selections(scan, kinds_of(flat.schema))
    for number, selection in enumerate(scan.selections):
        if selection.filters and number not in classified:
            tried[keep_column(number)] = selection.condition
    judged = list(tried)
    tried |= {i.name: _guarded(i.expression.sql, scan, i.name) for i in scan.read if not i.expression.is_plain}
    if tried:
        attempt_sql = backend_of(flat.sparkSession).tried_sql
        found += [F.col(f"`{_attempt(name)}`.v").alias(name) for name in judged]
        found.append(_failures(judged, flat.columns).alias(FAILED))
        flat = flat.select("*", *(F.expr(attempt_sql(sql)).alias(_attempt(name)) for name, sql in tried.items()))
    if malformed is not None:
        found.append(malformed)
    kept = {
        i.name: F.expr(f"`{_quoted(_attempt(i.name))}`.v" if i.name in tried else i.expression.sql).alias(i.name)
        for i in scan.read
    }
    for name in (*extra, *classified_columns(scan, classified)):
        kept.setdefault(name, F.col(f"`{_quoted(name)}`"))
    return flat.select(*found, *kept.values())


def kinds_of(schema: StructType, prefix: str = "") -> dict[str, ValueKind]:
    """What the values of each column are to predicates."""
    return {prefix + field.name: _KINDS.get(field.dataType.simpleString(), ValueKind.OTHER) for field in schema.fields}


def _guarded(sql: str, scan: StreamScan, name: str) -> str:
    """A value of the rows that pass the filters of those who need it: on others it may fail, as a cast would."""
    conditions = {scan.selections[number].condition for number in scan.users.get(name, ())}
    if not conditions or "" in conditions:
        return sql
    return f"IF({' OR '.join(f'({condition})' for condition in sorted(conditions))}, {sql}, NULL)"


def _attempt(name: str) -> str:
    return f"#tried {name}"


def _failures(names: Sequence[str], columns: Sequence[str]) -> Column:
    """Which of some attempts have failed for a row, and the row, as JSON; NULL where none has."""
    failed = [F.when(F.col(f"`{_attempt(name)}`").isNull(), F.lit(name)) for name in names]
    row = F.struct(*(F.col(f"`{_quoted(name)}`").cast("string").alias(name) for name in columns))
    report = F.to_json(F.struct(F.array_compact(F.array(*failed)).alias("failed"), row.alias("row")))
    return F.when(F.coalesce(*failed).isNotNull(), report)


def _quoted(name: str) -> str:
    return name.replace("`", "``")
