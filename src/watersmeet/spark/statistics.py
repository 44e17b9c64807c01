"""Estimating statistics: a bounded sample of every stream's source is sketched in Spark tasks, and merged here.

Files are read whole and in the order in which a run would take them, until there are enough rows: rows from here and
there would tell nothing of the rate.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

from watersmeet.cost.sampling import MOST_ROWS, Compared, compared_by, rows_wanted
from watersmeet.errors import RunError, WatersmeetError
from watersmeet.plan.shape import shape_of
from watersmeet.program.storage.segments import TS, column
from watersmeet.query.windows import FIRST_US, LAST_US
from watersmeet.spark.analyser import readable
from watersmeet.spark.binding import CORRUPT, micros_sql, stream_schema
from watersmeet.spark.ingest import generator
from watersmeet.spark.ingest.nanoseconds import read_files
from watersmeet.spark.ingest.new_files import FILE_FORMATS
from watersmeet.spark.ingest.sources import catches_malformed, check_source, open_stream
from watersmeet.spark.ingest.tables import open_table, with_table_schemas
from watersmeet.spark.jobs import map_rows, reports
from watersmeet.spark.outputs import bind_outputs
from watersmeet.spark.tasks import Batches, report
from watersmeet.stats.columns import key_numbers
from watersmeet.stats.model import Number, Origin, Sample, Stats, StreamStats
from watersmeet.stats.samples import FILTER, KEY, TIME, VALUE, sample_of
from watersmeet.stats.sketches import StreamSketch
from watersmeet.topology.model import Query, Stream, Table, Topology

ROWS = 100_000
SECONDS = 60.0
SAMPLED_ROWS = 5_000  # of the sample by which joins are counted; more where windows are longer than that
_MEASURED_ROWS = 10_000  # of each task, from which slices are packed

Tell = Callable[[str, int], None]  # the stream being read and the rows of it so far


@dataclass(frozen=True)
class _Predicate:
    """A filter of a query: its text, over columns by the flat names of one alias."""

    alias: str
    sql: str


@dataclass(frozen=True)
class SketchRows:
    """Sketch the rows of a partition: all of them are counted, and the values of the first ones taken."""

    columns: tuple[str, ...]
    predicates: tuple[str, ...]
    most: int

    def __call__(self, batches: Batches) -> Batches:
        sketch = StreamSketch()
        sample: list[pa.Table] = []
        for batch in batches:
            table = pa.Table.from_batches([batch])
            sketch.count(column(table, TS))
            for number, predicate in enumerate(self.predicates):
                passed = pc.sum(table.column(_predicate_name(number))).as_py() or 0
                sketch.passed(predicate, passed, table.num_rows)
            values = table.select(list(self.columns)).slice(0, max(self.most - sketch.sketched, 0))
            if values.num_rows:
                if sketch.sketched < _MEASURED_ROWS:
                    sample.append(values.slice(0, _MEASURED_ROWS - sketch.sketched))
                sketch.add(values)
        if sample:
            sketch.measure(pa.concat_tables(sample))
        yield report([sketch.to_data()])


def _predicate_name(number: int) -> str:
    return f"#predicate{number}"


def estimate(
    spark: SparkSession,
    topology: Topology,
    queries: Sequence[Query] | None = None,
    *,
    only: Collection[str] | None = None,
    rows: int = ROWS,
    seconds: float = SECONDS,
    tell: Tell = lambda stream, rows: None,
) -> Stats:
    """Statistics of the streams that some queries read, or of all, each from about so many rows or so many seconds.

    Queries also say which filters are to be counted. `only` names some of their streams.
    """
    topology = with_table_schemas(spark, topology)
    asked = topology.queries if queries is None else tuple(queries)
    bound = bind_outputs(spark, topology, asked)
    compared = compared_by(shape_of(one.query, bound.topology.columns) for one in bound.bounds.values())
    streams: dict[str, StreamStats] = {}
    selectivities: dict[str, Number] = {}
    for stream in topology.sources:
        if queries is not None and stream.name not in compared:
            continue
        if only is not None and stream.name not in only:
            continue
        sampler = _Sampler(spark, stream, compared.get(stream.name, Compared()), rows, seconds, tell)
        sketch, seen = sampler.read()
        taken_at = float(int(time.time()))
        streams[stream.name] = sketch.stats(Origin.ESTIMATED, taken_at, seen)
        if isinstance(stream, Table):
            streams[stream.name] = replace(streams[stream.name], rows=Number(float(sketch.rows), Origin.ESTIMATED))
        else:
            streams[stream.name] = replace(streams[stream.name], sample=sampler.sample(is_whole=seen >= 1.0))
        selectivities |= sketch.selectivities(Origin.ESTIMATED, taken_at, seen)
    return Stats(streams, selectivities)


class _Sampler:
    """Reads a stream until there are enough rows."""

    def __init__(
        self,
        spark: SparkSession,
        stream: Stream,
        compared: Compared,
        rows: int,
        seconds: float,
        tell: Tell,
    ) -> None:
        self._spark = spark
        self._stream = stream
        self._compared = compared
        self._predicates = [_Predicate(predicate.aliases[0], sql) for sql, predicate in compared.filters.items()]
        self._first: pa.Table | None = None  # rows by event time, of all that were read
        self._rows = rows
        self._deadline = time.monotonic() + seconds
        self._tell = tell
        self._schema = stream_schema(spark, stream)
        self._sketch = StreamSketch()
        check_source(stream, self._schema, once=False)

    def read(self) -> tuple[StreamSketch, float]:
        """What was sketched, and the share of the whole source that it is; 0 where that is unknown."""
        self._tell(self._stream.name, 0)
        source = self._stream.source
        try:
            if isinstance(self._stream, Table):  # as a run would, as a whole
                self._take(open_table(self._spark, self._stream, self._schema))
                seen = 1.0
            elif source is not None and source.format in FILE_FORMATS:
                seen = self._read_files()
            elif source is not None and source.format == generator.FORMAT:
                seen = self._generate(source.options)
            else:
                self._read_stream(self._stream, available_now=False)
                seen = 0.0
        except WatersmeetError:
            raise
        except Exception as error:
            raise RunError(f"{self._stream.what}: its source cannot be read: {readable(error)}") from error
        return self._sketch, seen

    @property
    def _is_enough(self) -> bool:
        return self._sketch.sketched >= self._rows or time.monotonic() >= self._deadline

    def _read_files(self) -> float:
        opened = open_stream(self._spark, self._stream, self._schema, batch=True)
        files = sorted(opened.inputFiles(), key=_arrival)
        taken = 0
        while taken < len(files) and not self._is_enough:
            group = files[taken : taken + max(taken, 1)]  # as many again each time
            self._take(self._opened_files(opened, group))
            taken += len(group)
        self._sketch.arrived_in(taken)
        return taken / len(files) if files else 0.0

    def _opened_files(self, opened: DataFrame, files: Sequence[str]) -> DataFrame:
        assert self._stream.source is not None, "it has files"

        def read(schema: StructType, some: Sequence[str]) -> DataFrame:
            names = [*some, *(file.replace("file:///", "file:/") for file in some)]  # Spark itself has two spellings
            rows = opened if schema == self._schema else open_stream(self._spark, self._stream, schema, batch=True)
            return rows.where(F.col("_metadata.file_path").isin(names))

        if self._stream.source.format != "parquet":
            return read(self._schema, files)
        return read_files(self._spark, read, self._schema, files)

    def _generate(self, options: Mapping[str, str]) -> float:
        """Rows of a generator are the same however many are asked for and however fast."""
        spec = generator.spec_of(self._schema, options)
        rows = self._rows if spec.rows is None else min(self._rows, spec.rows)
        others = {name: value for name, value in options.items() if name.casefold() not in ("rows", "rows_per_batch")}
        wanted = {**others, "rows": str(rows), "rows_per_batch": str(max(rows, 1))}
        assert self._stream.source is not None, "it has the options"
        self._read_stream(
            replace(self._stream, source=replace(self._stream.source, options=wanted)), available_now=True
        )
        if spec.pace is None:  # else the trigger decides how many come together
            self._sketch.arrived_in(max(1, round(self._sketch.rows / spec.rows_per_batch)))
        return self._sketch.rows / spec.rows if spec.rows else 0.0

    def _read_stream(self, stream: Stream, *, available_now: bool) -> None:
        """Read a stream as a run would, until there is enough."""
        enough, in_batch = threading.Event(), threading.Lock()
        failures: list[BaseException] = []

        def take(frame: DataFrame, batch: int) -> None:
            with in_batch:
                if enough.is_set():
                    return
                try:
                    self._take(frame)
                except BaseException as error:
                    failures.append(error)
                    raise
                if self._is_enough:
                    enough.set()

        opened = open_stream(self._spark, stream, self._schema)
        with tempfile.TemporaryDirectory(prefix="watersmeet-") as place:
            writer = opened.writeStream.option("checkpointLocation", place).foreachBatch(take)
            writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
            running = writer.start()
            try:
                while not running.awaitTermination(0.1):  # type: ignore[arg-type]
                    if enough.is_set() or time.monotonic() >= self._deadline:
                        break
            except Exception as error:
                raise (failures or [error])[0] from error
            finally:
                enough.set()
                with in_batch:  # Spark does not take it well to be stopped in the middle of a batch
                    pass
                running.stop()

    def _take(self, rows: DataFrame) -> None:
        """Sketch some rows, and tell how far it has come."""
        names = tuple(field.name for field in self._schema.fields if _has_arrow_type(field.dataType))
        task = SketchRows(
            tuple(names),
            tuple(predicate.sql for predicate in self._predicates),
            max(self._rows - self._sketch.sketched, 0),
        )
        for data in reports(map_rows(self._laid_out(rows, names), task)):
            self._sketch.merge(StreamSketch.from_data(data))
        if not isinstance(self._stream, Table):
            self._keep_first(rows)
        self._tell(self._stream.name, self._sketch.rows)

    def _keep_first(self, rows: DataFrame) -> None:
        """Keep the first rows by event time, as the sample by which joins are counted."""
        names = [*dict.fromkeys((*self._compared.keys, *self._compared.values))]
        first = self._laid_out(rows, names).orderBy(F.col(f"`{TS}`")).limit(MOST_ROWS).toArrow()
        parts = [first] if self._first is None else [self._first, first.cast(self._first.schema)]
        self._first = pa.concat_tables(parts).sort_by(TS).slice(0, MOST_ROWS)

    def sample(self, *, is_whole: bool) -> Sample | None:
        """The first rows, with what joins compare of them."""
        known = self._first
        if known is None or not known.num_rows:
            return None
        first = known.slice(0, rows_wanted(known.column(TS).to_numpy(), self._compared.longest_us, SAMPLED_ROWS))
        columns = {TIME: first.column(TS)}
        columns |= {KEY + name: key_numbers(first.column(name)) for name in self._compared.keys}
        columns |= {
            FILTER + predicate.sql: first.column(_predicate_name(number))
            for number, predicate in enumerate(self._predicates)
        }
        columns |= {VALUE + name: first.column(name) for name in self._compared.values}
        return sample_of(columns, is_whole=is_whole and first.num_rows == known.num_rows < MOST_ROWS)

    def _laid_out(self, rows: DataFrame, names: Sequence[str]) -> DataFrame:
        """Event time, predicates and columns of the rows that are well formed."""
        if catches_malformed(self._stream.source):
            rows = rows.where(F.col(CORRUPT).isNull())
        aliases = sorted({predicate.alias for predicate in self._predicates})
        columns = [(f"`{_quoted(field.name)}`", field.name) for field in self._schema.fields]
        flat = rows.select(
            *(F.col(place).alias(f"#{name}") for place, name in columns),
            *(F.col(place).alias(f"{alias}.{name}") for alias in aliases for place, name in columns),
        )
        ts = self._stream.event_time_column
        micros = F.lit(0)
        if not isinstance(self._stream, Table):
            micros = F.expr(micros_sql(f"`#{_quoted(ts)}`", self._schema[ts].dataType.simpleString()))
        laid_out = [micros.cast("long").alias(TS)]
        laid_out += [F.expr(predicate.sql).alias(_predicate_name(n)) for n, predicate in enumerate(self._predicates)]
        laid_out += [F.col(f"`#{_quoted(name)}`").alias(name) for name in names]
        return flat.select(*laid_out).where(F.col(f"`{TS}`").between(FIRST_US, LAST_US))


def _quoted(name: str) -> str:
    return name.replace("`", "``")


def _has_arrow_type(kind: DataType) -> bool:
    try:
        to_arrow_type(kind, timezone="UTC")
    except PySparkException:
        return False
    return True


def _arrival(file: str) -> tuple[float, str]:
    """Files in the order in which a run takes them: by time where it can be seen, else by name."""
    place = urlparse(file)
    try:
        return (os.stat(unquote(place.path)).st_mtime if place.scheme == "file" else 0.0), file
    except OSError:
        return 0.0, file
