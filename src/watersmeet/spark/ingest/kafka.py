"""Streams that are topics of Kafka: Spark's connector reads messages, and here they become rows of the stream.

JSON and Avro are parsed by Spark, message by message; Arrow and Parquet, of which a message has many rows, by tasks of
ours (docs/design/0023). A message that does not hold what the stream's schema says becomes one malformed row, which
says where it is, what is wrong with it and what it holds.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField, StructType

from watersmeet.errors import InputError, TopologyError, did_you_mean, first_line
from watersmeet.spark.analyser import readable
from watersmeet.spark.backend.protocol import backend_of
from watersmeet.spark.binding import CORRUPT, CORRUPT_FIELD
from watersmeet.spark.kafka_options import GET_CONNECTOR, spark_options
from watersmeet.spark.session import option_values
from watersmeet.topology.model import Stream
from watersmeet.topology.payload import Payload

_TOPICS = ("subscribe", "subscribePattern", "assign")
_PATIENCE_MS = "300000"  # brokers that are away for so long are waited for
_DEFAULTS = {
    "startingOffsets": "earliest",  # Spark's would be what comes after the start
    "kafka.default.api.timeout.ms": _PATIENCE_MS,  # where it asks how far a topic is
    "kafkaConsumer.pollTimeoutMs": _PATIENCE_MS,  # where a task reads; Spark's would be two minutes
}
_ADDRESS = ("topic", "partition", "offset")
_AVRO_LIMITS = {"string.maxLength": 1 << 26, "bytes.maxLength": 1 << 26, "collectionItems.maxLength": 1 << 24}
_MAGIC = 5  # bytes before Confluent's Avro: a zero, and the number of the schema


def check_topic(stream: Stream) -> None:
    """Refuse a source of Kafka that cannot be read, before anything runs."""
    source = stream.source
    assert source is not None
    names = {name.casefold() for name in source.options}
    if not names & {name.casefold() for name in _TOPICS}:
        raise TopologyError(f"{stream.what}: a source of format kafka needs a topic, such as options: {{subscribe: t}}")
    if not names & {"bootstrap.servers", "kafka.bootstrap.servers"}:
        raise TopologyError(
            f"{stream.what}: a source of format kafka needs to know its brokers, such as "
            "options: {bootstrap.servers: 'broker1:9092,broker2:9092'}"
        )
    payload = source.payload
    if payload is None:
        return
    for what, name in (("key", payload.key), ("timestamp", payload.timestamp)):
        if name is not None and name not in stream.columns:
            raise TopologyError(
                f"{stream.what}: the {what} of its payload, {name!r}, is not one of its columns; "
                + did_you_mean(name, stream.columns)
            )
    if payload.timestamp is not None and not stream.types[payload.timestamp].startswith("timestamp"):
        raise TopologyError(f"{stream.what}: column {payload.timestamp!r} has the time of messages; make it timestamp")


def with_defaults(given: Mapping[str, str]) -> dict[str, str]:
    """Options of Spark's connector, with ours for what is not given.

    >>> found = with_defaults({"startingoffsets": "latest", "subscribe": "t"})
    >>> "startingOffsets" in found, found["subscribe"], found["kafkaConsumer.pollTimeoutMs"]
    (False, 't', '300000')
    """
    folded = {name.casefold() for name in given}
    return {name: value for name, value in _DEFAULTS.items() if name.casefold() not in folded} | dict(given)


def open_topic(spark: SparkSession, stream: Stream, schema: StructType, *, batch: bool = False) -> DataFrame:
    """The rows of a topic, with a column for what malformed messages hold where they have a payload."""
    source = stream.source
    assert source is not None
    given = spark_options(option_values(spark, source.options, stream.what), stream.what)
    options = with_defaults(given)
    reader: Any = spark.read if batch else spark.readStream
    try:
        messages = reader.format("kafka").options(**options).load()
    except Exception as error:
        said = readable(error)
        if "data source" in said and "kafka" in said.casefold():
            raise InputError(f"{stream.what}: Spark has no connector for Kafka; {GET_CONNECTOR}") from None
        raise InputError(f"{stream.what}: Spark cannot open its source: {said}") from None
    if source.payload is None:
        return messages  # type: ignore[no-any-return]
    return _Messages(spark, stream, schema, source.payload, options).rows(messages)


@dataclass(frozen=True)
class _Messages:
    """How the messages of a topic become rows."""

    spark: SparkSession
    stream: Stream
    schema: StructType
    payload: Payload
    options: dict[str, str]

    @property
    def _inside(self) -> list[StructField]:
        """The columns that are in the values of messages."""
        return [field for field in self.schema.fields if field.name not in (self.payload.key, self.payload.timestamp)]

    def rows(self, messages: DataFrame) -> DataFrame:
        rows = messages.select(*_ADDRESS, "value", *self._outside())
        key = F.col("#wrong key") if self.payload.key is not None else F.lit(None).cast("string")
        reason = F.when(F.col("value").isNull(), F.lit("it has no value")).otherwise(key)
        rows = rows.withColumn("#reason", reason)
        match self.payload.format:
            case "json":
                parsed = self._json(rows)
            case "avro":
                parsed = self._avro(rows)
            case _:
                return self._tables(rows)
        malformed = F.when(F.col("#reason").isNotNull(), self._described()).alias(CORRUPT)
        found = {field.name: F.col(f"`#row`.`{_quoted(field.name)}`") for field in self._inside}
        return parsed.select(*(self._columns(found)), malformed)

    def _outside(self) -> Iterator[Column]:
        """Columns that are in keys and timestamps of messages."""
        if (name := self.payload.timestamp) is not None:
            yield F.col("timestamp").cast(self.schema[name].dataType).alias(f"#{name}")
        if self.payload.key is not None:
            kind = self.schema[self.payload.key].dataType.simpleString()
            value = F.expr("key" if kind == "binary" else f"try_cast(CAST(key AS STRING) AS {kind})")
            yield value.alias(f"#{self.payload.key}")
            wrong = F.lit(f"its key is no {kind}")
            yield F.when(F.col("key").isNotNull() & value.isNull(), wrong).alias("#wrong key")

    def _columns(self, found: dict[str, Column]) -> list[Column]:
        return [
            found.get(field.name, F.col(f"`{_quoted(f'#{field.name}')}`")).alias(field.name)
            for field in self.schema.fields
        ]

    def _json(self, rows: DataFrame) -> DataFrame:
        schema = StructType([*(StructField(field.name, field.dataType) for field in self._inside), CORRUPT_FIELD])
        options = {name: value for name, value in self.options.items() if "." not in name}
        options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        rows = rows.withColumn("#row", F.from_json(F.col("value").cast("string"), schema, options))
        wrong = F.col("#row").isNull() | F.col(f"`#row`.`{CORRUPT}`").isNotNull()
        return self._judged(rows, wrong, "it is not JSON of the stream's schema")

    def _avro(self, rows: DataFrame) -> DataFrame:
        backend = backend_of(self.spark)
        for name, limit in _AVRO_LIMITS.items():  # lengths in a damaged message must not take all memory
            backend.set_property(f"org.apache.avro.limits.{name}", str(limit), f"{self.stream.what}: Avro")
        value = "value" if self.payload.framing == "plain" else f"substring(value, {_MAGIC + 1})"
        text = json.dumps(json.loads(self.payload.schema or "")).replace("\\", "\\\\").replace("'", "\\'")
        read = f"from_avro({value}, '{text}', map('mode', 'FAILFAST'))"
        if self.payload.framing != "plain":
            read = f"IF(substring(value, 1, 1) = X'00', {read}, raise_error('framing'))"
        cast = ", ".join(
            f"'{field.name}', CAST(`#avro`.v.`{_quoted(field.name)}` AS {field.dataType.simpleString()})"
            for field in self._inside
        )
        try:
            rows = rows.withColumn("#avro", F.expr(backend.tried_sql(read)))
            rows = rows.withColumn("#row", F.expr(f"{backend.tried_sql(f'named_struct({cast})')}.v"))
        except Exception as error:
            said = readable(error)
            if "AVRO" in said.upper() and ("not found" in said or "deploy" in said.casefold()):
                raise InputError(f"{self.stream.what}: Spark cannot read Avro by itself; {GET_CONNECTOR}") from None
            raise InputError(f"{self.stream.what}: its Avro schema does not fit its schema: {said}") from None
        wrong = F.col("`#avro`.v").isNull() | F.col("`#row`").isNull()
        return self._judged(rows, wrong, "it is not Avro of the payload's schema")

    def _judged(self, rows: DataFrame, wrong: Column, text: str) -> DataFrame:
        return rows.withColumn("#reason", F.coalesce(F.col("#reason"), F.when(wrong, F.lit(text))))

    def _described(self) -> Column:
        is_text = self.payload.format == "json"
        value = F.col("value").cast("string") if is_text else F.base64("value")
        return F.to_json(F.struct(*_ADDRESS, F.col("#reason").alias("reason"), value.alias("value")))

    def _tables(self, rows: DataFrame) -> DataFrame:
        """Rows of Arrow and Parquet, decoded by tasks of ours."""
        around = [field for field in self.schema.fields if field not in self._inside]
        names = [f"#{field.name}" for field in around]
        rows = rows.withColumn("#wrong", F.when(F.col("#reason").isNotNull(), self._described()))
        rows = rows.select(*_ADDRESS, "value", "#wrong", *(F.col(f"`{_quoted(name)}`") for name in names))
        numbered = rows.toDF(*_ADDRESS, "value", "wrong", *(f"a{number}" for number in range(len(around))))
        fields = [*self._inside, *around, CORRUPT_FIELD]
        task = DecodeTables(
            self.payload.format,
            tuple((field.name, to_arrow_type(field.dataType, timezone="UTC")) for field in self._inside),
            tuple(to_arrow_type(field.dataType, timezone="UTC") for field in around),
        )
        made = StructType([StructField(f"c{number}", field.dataType) for number, field in enumerate(fields)])
        found = numbered.mapInArrow(task, made)
        places = {field.name: F.col(f"c{number}") for number, field in enumerate(fields)}
        return found.select([places[field.name].alias(field.name) for field in (*self.schema.fields, CORRUPT_FIELD)])


@dataclass(frozen=True)
class DecodeTables:
    """Turn messages that hold tables into rows; one that does not becomes a row that says so."""

    format: str
    inside: tuple[tuple[str, pa.DataType], ...]
    around: tuple[pa.DataType, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            around = [batch.column(f"a{number}") for number in range(len(self.around))]
            for number, (value, wrong) in enumerate(zip(batch.column("value"), batch.column("wrong"), strict=True)):
                yield from self._rows(batch, number, value, wrong.as_py(), [value[number] for value in around])

    def _rows(
        self, batch: pa.RecordBatch, number: int, value: pa.Scalar, wrong: str | None, around: Sequence[pa.Scalar]
    ) -> Iterator[pa.RecordBatch]:
        columns: list[pa.Array] = []
        if wrong is None:
            try:
                columns = [self._column(table, *entry) for table in [self._table(value)] for entry in self.inside]
            except (pa.ArrowException, OSError, ValueError, KeyError) as error:
                address = {name: batch.column(name)[number].as_py() for name in _ADDRESS}
                wrong = json.dumps({**address, "reason": first_line(error), "value": _base64(value)})
        if wrong is not None:
            kinds = [*(kind for _, kind in self.inside), *self.around]
            columns, rows = [pa.nulls(1, kind) for kind in kinds], 1
        else:
            rows = len(columns[0]) if columns else 0
            columns += [
                pa.repeat(value.cast(kind), rows) if value.is_valid else pa.nulls(rows, kind)
                for value, kind in zip(around, self.around, strict=True)
            ]
        columns.append(pa.repeat(wrong, rows) if wrong is not None else pa.nulls(rows, pa.string()))
        yield pa.RecordBatch.from_arrays(columns, names=[f"c{place}" for place in range(len(columns))])

    def _table(self, value: pa.Scalar) -> pa.Table:
        data = pa.BufferReader(value.as_buffer())
        if self.format == "parquet":
            return pq.read_table(data, use_threads=False)
        if value.as_buffer()[:6].to_pybytes() == b"ARROW1":
            return pa.ipc.open_file(data).read_all()
        table = pa.ipc.open_stream(data).read_all()
        table.validate(full=True)
        return table

    def _column(self, table: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
        if table.column_names.count(name) != 1:
            raise ValueError(f"it has no column {name}, or several")
        found = table.column(name)
        if pa.types.is_timestamp(kind) and pa.types.is_timestamp(found.type) and found.type.tz is None and kind.tz:
            found = found.cast(pa.timestamp(found.type.unit, kind.tz))
        try:
            return found.cast(kind).combine_chunks()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueError(f"column {name}: {first_line(error)}") from None


def _base64(value: pa.Scalar) -> str:
    return base64.b64encode(value.as_py()).decode()


def _quoted(name: str) -> str:
    return name.replace("`", "``")
