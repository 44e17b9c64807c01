"""Whole streams as tables, without Spark: files read by Arrow, and made-up rows. What never ends is refused."""

import glob
import os
import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from watersmeet.errors import InputError
from watersmeet.program.rjoin.arrays import Longs
from watersmeet.query.windows import FIRST_US, LAST_US
from watersmeet.sim.sites.rows import query_rows
from watersmeet.topology import generate
from watersmeet.topology.model import Source, Stream, Table

Arrivals = tuple[pa.Table, Longs]  # rows, and when each of them arrives

FORMATS = ("parquet", "csv", "json", "generator")
_OPTIONS = {"csv": ("header", "sep", "delimiter")}
_LEFT_ALONE = (
    "maxfilespertrigger",
    "maxbytespertrigger",
    "latestfirst",
    "recursivefilelookup",
)  # how Spark takes files
_ALIASES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
}


def schema_of(stream: Stream) -> pa.Schema:
    """A stream's columns with Arrow's types."""
    return pa.schema([(name, _arrow_type(stream.name, name, kind)) for name, kind in stream.types.items()])


def check_source(stream: Stream) -> None:
    """Refuse a source that cannot be simulated, before anything is read."""
    source, what = stream.source, stream.what
    if isinstance(stream, Table) and not stream.has_schema:
        raise InputError(f'{what}: the simulator infers no columns; give it a schema, such as schema: "id long"')
    if source is None or source.format not in FORMATS:
        name = "a DataFrame" if source is None else f"a source of format {source.format}"
        raise InputError(f"{what}: {name} cannot be simulated; what can be: {', '.join(FORMATS)} with an end")
    if source.format == "generator" and isinstance(stream, Table):
        raise InputError(f"{what}: a generator makes streams; write its rows to files, and read these")
    if source.format == "generator":
        if _generated(stream).rows is None:
            raise InputError(f"{what}: its generator never ends and cannot be simulated; give it the option rows")
        return
    known = _OPTIONS.get(source.format, ())
    for option in source.options:
        if option.casefold() not in (*known, *_LEFT_ALONE):
            allowed = f"only {', '.join(known)}" if known else f"a {source.format} source has none here"
            raise InputError(f"{what}: the option {option!r} cannot be simulated; {allowed}")
    if not source.path:
        raise InputError(f"{what}: its source of format {source.format} needs a path")
    if not _files(source.path):
        raise InputError(f"{what}: there are no files at its source path {source.path}; make them or correct it")


def read_table(table: Table) -> pa.Table:
    """All rows of a table."""
    source = table.source
    assert source is not None and source.path is not None, "a source that has been checked has a path"
    schema = schema_of(table)
    return pa.concat_tables(_read_file(table, source, path, schema) for path in _files(source.path)).combine_chunks()


def read_stream(stream: Stream) -> pa.Table:
    """All rows that have an event time, from the year 1 to 9999, in the order in which they arrive."""
    source = stream.source
    assert source is not None, "a stream that has been checked has a source"
    schema = schema_of(stream)
    if source.format == "generator":
        spec = _generated(stream)
        assert spec.rows is not None, "a stream that has been checked has an end"
        rows = generate.rows(spec, 0, spec.rows).cast(schema)
    else:
        assert source.path is not None, "a file source that has been checked has a path"
        parts = [_read_file(stream, source, path, schema) for path in _files(source.path)]
        rows = pa.concat_tables(parts).combine_chunks()
    times = rows.column(stream.event_time_column).cast(pa.int64())
    return rows.filter(pc.and_(pc.greater_equal(times, FIRST_US), pc.less_equal(times, LAST_US)))


def read_arrivals(stream: Stream, most_rows: int | None = None) -> Arrivals:
    """Rows that have an event time in the order in which they arrive, and when they do, in microseconds since 1970.

    A row arrives at its event time, or with the row before it if that one has a later event time. Rows of a generator
    arrive at its rate: disorder sets their event times back.
    """
    source = stream.source
    assert source is not None, "a stream that has been checked has a source"
    if source.format == "generator":
        spec = _generated(stream)
        assert spec.rows is not None, "a stream that has been checked has an end"
        stamp = next(column for column in spec.columns if column.name == stream.event_time_column)
        if isinstance(stamp.values, generate.Time):
            count = spec.rows if most_rows is None or stamp.null_share else min(spec.rows, most_rows)
            rows = generate.rows(spec, 0, count).cast(schema_of(stream))
            is_valid = pc.is_valid(rows.column(stream.event_time_column))
            arrivals_us = generate.arrivals_us(spec, 0, count)[is_valid.to_numpy()]
            return rows.filter(is_valid).slice(0, most_rows), arrivals_us[:most_rows]
    rows = read_stream(stream).slice(0, most_rows)
    times_us: Longs = rows.column(stream.event_time_column).cast(pa.int64()).to_numpy()
    return rows, np.maximum.accumulate(times_us)


def first_part(read: Mapping[str, Arrivals], share: float) -> dict[str, Arrivals]:
    """What arrives of some streams in the first part of the time that all of them span."""
    spans = [(int(arrivals_us[0]), int(arrivals_us[-1])) for _, arrivals_us in read.values() if len(arrivals_us)]
    first_us, last_us = min(first for first, _ in spans), max(last for _, last in spans)
    end_us = first_us + round((last_us - first_us) * share)
    found = {}
    for name, (rows, arrivals_us) in read.items():
        count = int(np.searchsorted(arrivals_us, end_us, side="right"))
        found[name] = rows.slice(0, count), arrivals_us[:count]
    return found


def _arrow_type(stream: str, column: str, kind: str) -> pa.DataType:
    if match := re.fullmatch(r"(?:decimal|numeric|dec)(?:\((\d+)(?:,(\d+))?\))?", kind):
        return pa.decimal128(int(match[1] or 10), int(match[2] or 0))
    known = {**generate.ARROW_TYPES, "binary": pa.binary()}
    kind = _ALIASES.get(kind, kind)
    if kind not in known:
        raise InputError(
            f"stream {stream!r}: column {column!r} has type {kind}, which cannot be simulated; "
            f"what can be: {', '.join(known)}, decimal"
        )
    return known[kind]


def _generated(stream: Stream) -> generate.Spec:
    assert stream.source is not None
    try:
        return generate.spec(
            {name: _ALIASES.get(kind, kind) for name, kind in stream.types.items()}, stream.source.options
        )
    except InputError as error:
        raise InputError(f"stream {stream.name!r}: {error}") from None


def _files(path: str) -> list[str]:
    """The files of a path, the oldest first, as a streaming source takes them; hidden ones are not data."""
    found: list[str] = []
    for match in glob.glob(os.path.expanduser(path.removeprefix("file://"))):
        if os.path.isdir(match):
            for directory, below, names in os.walk(match):
                below[:] = [name for name in below if not name.startswith(("_", "."))]
                found += [os.path.join(directory, name) for name in names if not name.startswith(("_", "."))]
        else:
            found.append(match)
    return sorted(found, key=lambda file: (os.path.getmtime(file), file))


def _read_file(stream: Stream, source: Source, path: str, schema: pa.Schema) -> pa.Table:
    # Arrow wants a zone in every text of a timestamp and Spark does not: texts are read as such, and cast below.
    plain = pa.schema(
        [column.with_type(pa.string()) if pa.types.is_timestamp(column.type) else column for column in schema]
    )
    try:
        match source.format:
            case "parquet":
                rows = pq.read_table(path, columns=schema.names, partitioning=None)
            case "json":
                options = pajson.ParseOptions(explicit_schema=plain, unexpected_field_behavior="ignore")
                rows = pajson.read_json(path, parse_options=options)
            case _:
                given = {name.casefold(): value for name, value in source.options.items()}
                has_header = given.get("header", "false").casefold() == "true"
                rows = pacsv.read_csv(
                    path,
                    read_options=pacsv.ReadOptions(column_names=None if has_header else schema.names),
                    parse_options=pacsv.ParseOptions(delimiter=given.get("sep", given.get("delimiter", ","))),
                    convert_options=pacsv.ConvertOptions(
                        column_types=plain,
                        include_columns=schema.names,
                        null_values=[""],
                        strings_can_be_null=True,
                    ),
                )
        lacking = [name for name in schema.names if name not in rows.column_names]
        if lacking:
            raise pa.ArrowKeyError(f"it has no column {', '.join(lacking)}")
        return _cast(rows.select(schema.names), schema)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"{stream.what}: {path} cannot be read as {source.format}: {reason}") from None


def _cast(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    texts = [
        column
        for column in schema
        if pa.types.is_timestamp(column.type) and pa.types.is_string(rows.schema.field(column.name).type)
    ]
    for column in texts:
        kind = "TIMESTAMP" if column.type.tz is None else "TIMESTAMPTZ"
        given = pa.table({"given": rows.column(column.name)})
        made = query_rows(f"SELECT try_cast(given AS {kind}) AS made FROM given", given=given).column("made")
        wrong = pc.and_(pc.is_valid(rows.column(column.name)), pc.is_null(made))
        if pc.any(wrong).as_py():
            text = rows.column(column.name).filter(wrong)[0].as_py()
            raise pa.ArrowInvalid(f"{text!r} in column {column.name!r} is no timestamp")
        rows = rows.set_column(schema.get_field_index(column.name), column.name, made)
    return rows.cast(schema)
