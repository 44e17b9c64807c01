"""`wm.sql`: a continuous join over streaming DataFrames that the user has, with PySpark's own names.

Event time and delay of a stream are those of its `withWatermark`: Spark's analyser keeps them with the column.
"""

import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from watersmeet.errors import InputError
from watersmeet.plan.explain import explain_text
from watersmeet.query.windows import Changes
from watersmeet.spark.backend.protocol import backend_of
from watersmeet.spark.handle import StreamingRun
from watersmeet.spark.live_table import LiveTable
from watersmeet.spark.outputs import answer_type
from watersmeet.spark.planning import plan_queries
from watersmeet.spark.run import start
from watersmeet.topology.model import BatchFunction, Query, Sink, Stream, Table, Topology

_DELAY = "spark.watermarkDelayMs"  # how Spark's EventTimeWatermark marks its column
_TRIGGERS = ("processingTime", "once", "availableNow", "continuous")


def sql(spark: SparkSession, text: str, /, **frames: DataFrame) -> "JoinedStream":
    """A continuous query over streaming DataFrames, each under the name that the text has for it.

    Each needs a watermark, as Spark's own joins do: `orders.withWatermark("ts", "10 seconds")`. Batch DataFrames are
    tables, read once, when the query is first started.
    """
    if not frames:
        raise InputError(
            'name the DataFrames of the query, as in wm.sql(spark, "... FROM orders [RANGE ...]", orders=df)'
        )
    backend_of(spark).prepare()
    streams = tuple(stream_of(name, frame) for name, frame in frames.items() if frame.isStreaming)
    tables = tuple(Table(name, frame=frame) for name, frame in frames.items() if not frame.isStreaming)
    # A name of its own, and the same at each start: Spark lets only one query of a name run at a time.
    query = Query(f"answers_{crc32(text.encode()):08x}", text)
    topology = Topology(streams, (query,), tables=tables)
    planned = plan_queries(spark, topology, [query])
    bound = planned.bounds[query.name]
    grouping = bound.query.grouping
    emits_changes = grouping is not None and isinstance(grouping.window, Changes)
    plan = "\n".join(explain_text(chosen.plan) for chosen in planned.plans.values())
    return JoinedStream(spark, topology, answer_type(bound), plan, emits_changes)


def stream_of(name: str, frame: DataFrame) -> Stream:
    """A streaming DataFrame as a stream, with the event time and the delay of its watermark."""
    if not frame.isStreaming:
        raise InputError(f"{name} is a batch DataFrame, which is a table and no stream; read it with spark.readStream")
    marked = [(column.name, int(column.metadata[_DELAY])) for column in frame.schema if _DELAY in column.metadata]
    if not marked:
        raise InputError(
            f"{name} has no watermark, which says what its event time is and how late rows may come; "
            f'give it one: {name}.withWatermark("ts", "10 seconds")'
        )
    if len(marked) > 1:
        names = ", ".join(column for column, _ in marked)
        raise InputError(f"{name} has {len(marked)} columns with a watermark ({names}); select one of them")
    (column, delay_ms) = marked[0]
    return Stream(name, event_time=column, frame=frame, watermark=f"{delay_ms} milliseconds")


@dataclass(eq=False)
class JoinedStream:
    """The answers of a continuous query: to be written, or to go on with in Spark."""

    sparkSession: SparkSession
    topology: Topology
    schema: StructType
    plan: str
    emitsChanges: bool = False  # whether answers revise those before them
    lastRun: StreamingRun | None = field(default=None, repr=False)  # the handle of what was started last
    _preview: LiveTable | None = field(default=None, repr=False)

    @property
    def columns(self) -> list[str]:
        return self.schema.fieldNames()

    @property
    def isStreaming(self) -> bool:
        return True

    @property
    def writeStream(self) -> "JoinedStreamWriter":
        """How its answers are written; nothing runs before `start`."""
        return JoinedStreamWriter(self)

    def printSchema(self) -> None:
        """Print the columns of the answers."""
        print(self.schema.treeString())

    def explain(self) -> None:
        """Print the plan of the join."""
        print(self.plan)

    def toStream(self, checkpointLocation: str | Path | None = None, **trigger: Any) -> DataFrame:
        """Start the join, and a streaming DataFrame of its answers to go on with in Spark.

        Answers pass through files below the checkpoint, each once. `lastRun` is the handle of the join; trigger is one
        of writeStream's, as in availableNow=True.
        """
        place = Path(checkpointLocation or tempfile.mkdtemp(prefix="watersmeet-")).absolute()
        answers = place / "answers"
        answers.mkdir(parents=True, exist_ok=True)
        writer = self.writeStream.format("parquet").option("checkpointLocation", str(place / "join"))
        (writer.trigger(**trigger) if trigger else writer).start(str(answers))
        return self.sparkSession.readStream.schema(self.schema).option("maxFileAge", "36500d").parquet(str(answers))

    def _repr_html_(self) -> str:
        """The first answers, as a table that a notebook keeps up to date for a minute."""
        if self._preview is None:
            place = tempfile.mkdtemp(prefix="watersmeet-")
            preview = LiveTable(self.columns, lambda: shutil.rmtree(place, ignore_errors=True))
            writer = self.writeStream.option("checkpointLocation", place).foreachBatch(preview.take)
            preview.follow(writer.queryName(f"preview_{uuid.uuid4().hex[:8]}").start())
            self._preview = preview
        return self._preview.html()


@dataclass
class JoinedStreamWriter:
    """The members of PySpark's `DataStreamWriter` that make sense for joins."""

    _joined: JoinedStream
    _format: str | None = None
    _options: dict[str, str] = field(default_factory=dict)
    _function: BatchFunction | None = None
    _name: str | None = None
    _trigger: Mapping[str, Any] = field(default_factory=dict)

    def format(self, source: str) -> "JoinedStreamWriter":
        """The format of the sink: that of a file, console, or any other that Spark can write a batch to."""
        self._format = source
        return self

    def option(self, key: str, value: Any) -> "JoinedStreamWriter":
        """An option of the sink; `checkpointLocation` is the run's."""
        self._options[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: Any) -> "JoinedStreamWriter":
        """Several options at once."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def outputMode(self, outputMode: str) -> "JoinedStreamWriter":
        """Append, or update with EMIT CHANGES: an answer of a join is given once and never revised."""
        if outputMode.casefold() == "update" and self._joined.emitsChanges:
            return self
        if outputMode.casefold() != "append":
            raise InputError(
                f"output mode {outputMode!r}: answers of a join are given once and never revised, so use append; for "
                "running values of groups write EMIT CHANGES at the end of the query, with update"
            )
        return self

    def queryName(self, queryName: str) -> "JoinedStreamWriter":
        """The name of the query, in Spark and in reports."""
        self._name = queryName
        return self

    def partitionBy(self, *columns: str) -> "JoinedStreamWriter":
        """Refused: files of a micro-batch are published together in one directory."""
        raise InputError(
            "partitionBy is not supported, since files of a micro-batch are published together in one directory; "
            "use .toStream().writeStream.partitionBy(...)"
        )

    def trigger(self, **trigger: Any) -> "JoinedStreamWriter":
        """`processingTime="1 second"`, `availableNow=True` or `once=True`."""
        if len(trigger) != 1 or not set(trigger) <= set(_TRIGGERS):
            raise InputError(f"trigger takes one of {', '.join(_TRIGGERS[:3])}, not {', '.join(trigger) or 'nothing'}")
        if "continuous" in trigger:
            raise InputError(
                'continuous processing has no joins; use processingTime, as in trigger(processingTime="1 s")'
            )
        self._trigger = trigger
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> "JoinedStreamWriter":
        """Give each micro-batch's answers to a function, as a DataFrame with the number of the batch."""
        self._function = func
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> StreamingRun:
        """Start the query and return its handle, which has the members of PySpark's `StreamingQuery`."""
        self.options(**options)
        if outputMode is not None:
            self.outputMode(outputMode)
        if partitionBy is not None:
            self.partitionBy()
        self._format = format or self._format
        self._name = queryName or self._name
        settings = {key.casefold(): value for key, value in self._options.items()}
        rest = {key: value for key, value in self._options.items() if key.casefold() not in _OWN}
        where = path or settings.get("path")
        query = self._joined.topology.query()
        checkpoint = settings.get("checkpointlocation") or self._default_checkpoint(self._name or query.name)
        query = replace(query, name=self._name or query.name)
        if self._function is not None:
            query = replace(query, foreach_batch=self._function)
        else:
            query = replace(query, sink=self._sink(where, rest))
        run = start(
            replace(self._joined.topology, queries=(query,)),
            spark=self._joined.sparkSession,
            checkpoint=checkpoint,
            once=bool(self._trigger.get("availableNow") or self._trigger.get("once")),
            trigger=self._trigger.get("processingTime"),
        )
        self._joined.lastRun = run
        return run

    def toTable(self, tableName: str, **options: Any) -> StreamingRun:
        """Append the answers to a table of the catalogue; after a crash it may get the last micro-batches twice."""
        source = {} if self._format is None else {"format": self._format}
        extra = {key: value for key, value in self._options.items() if key.casefold() not in _OWN}

        def append(rows: DataFrame, batch: int) -> None:
            rows.write.mode("append").options(**extra).saveAsTable(tableName, **source)

        return self.foreachBatch(append).start(**options)

    def _sink(self, path: str | None, options: Mapping[str, str]) -> Sink:
        kind = self._format or str(self._joined.sparkSession.conf.get("spark.sql.sources.default", "parquet"))
        if kind == "memory":
            raise InputError('a sink of format "memory" is Spark\'s own; use .toStream().writeStream.format("memory")')
        if kind not in ("console", "noop") and path is None and not options:
            raise InputError(f"a sink of format {kind} needs a path: start(path), or option('path', ...)")
        return Sink(kind, path, dict(options))

    def _default_checkpoint(self, name: str) -> str:
        default = self._joined.sparkSession.conf.get("spark.sql.streaming.checkpointLocation", None)
        if default is not None:
            return str(Path(default) / name)
        if self._function is None and self._format not in ("console", "noop"):
            raise InputError(
                "checkpointLocation is not set, so a restart could not go on where this run ends: "
                "option('checkpointLocation', ...)"
            )
        return tempfile.mkdtemp(prefix="watersmeet-")


_OWN = ("checkpointlocation", "path")
