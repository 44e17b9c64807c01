"""The generator under Spark: micro-batches, resumption and pace over the rows that the pure part makes."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import DecimalType, LongType, StructField, StructType

from watersmeet.errors import InputError
from watersmeet.spark.ingest.generator import GeneratorReader, GeneratorSource, register, spec_of
from watersmeet.topology import generate

COLUMNS = {
    "id": "bigint",
    "ts": "timestamp",
    "ntz": "timestamp_ntz",
    "day": "date",
    "tiny": "tinyint",
    "small": "smallint",
    "Host": "string",
    "f": "float",
    "x": "double",
    "ok": "boolean",
}
DDL = ", ".join(f"{name} {sql_type}" for name, sql_type in COLUMNS.items())
OPTIONS = {
    "seed": "3",
    "disorder": "2 seconds",
    "rows_per_batch": "400",
    "partitions": "2",
    "column.host": "null 0.1 pattern 10.0.0.{} zipf 1.1 250",
    "column.small": "uniform -10 10",
}
SPEC = generate.spec(COLUMNS, OPTIONS)


@pytest.fixture(scope="module")
def source(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


class Run:
    """A query over the generator that keeps what each of its micro-batches held."""

    def __init__(self, spark: SparkSession, checkpoint: Path, **options: str) -> None:
        self.batches: dict[int, pa.Table] = {}
        frame = spark.readStream.format("generator").schema(DDL).options(**OPTIONS, **options).load()
        self.writer = frame.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(checkpoint))

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = frame.toArrow()

    def once(self) -> "Run":
        self.writer.trigger(availableNow=True).start().awaitTermination()
        return self

    @property
    def sizes(self) -> dict[int, int]:
        return {batch: table.num_rows for batch, table in self.batches.items()}

    @property
    def rows(self) -> pa.Table:
        # Spark labels timestamps with the zone of its session; the cast keeps the instants.
        return pa.concat_tables(self.batches.values()).cast(SPEC.arrow_schema).sort_by("id")


def test_available_now_takes_batch_after_batch_and_ends(source: SparkSession, tmp_path: Path) -> None:
    run = Run(source, tmp_path, rows="1000").once()
    assert run.sizes == {0: 400, 1: 400, 2: 200}
    assert run.rows.equals(generate.rows(SPEC, 0, 1000))


def test_a_resumed_run_goes_on_at_the_next_row(source: SparkSession, tmp_path: Path) -> None:
    assert Run(source, tmp_path, rows="500").once().sizes == {0: 400, 1: 100}
    assert Run(source, tmp_path, rows="500").once().sizes == {}
    longer = Run(source, tmp_path, rows="1000").once()
    assert longer.sizes == {2: 400, 3: 100}
    assert longer.rows.equals(generate.rows(SPEC, 500, 1000))
    assert Run(source, tmp_path, rows="10").once().sizes == {}


def test_available_now_without_an_end_is_refused(source: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="without `rows` a run over what is available now has no end"):
        Run(source, tmp_path).once()


def test_a_slip_in_the_options_is_named(source: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="there is no option 'rowz'; did you mean 'rows'"):
        Run(source, tmp_path, rowz="1").once()


def test_slips_are_found_before_a_query_starts() -> None:
    with pytest.raises(InputError, match="'price' has type decimal"):
        spec_of(StructType([StructField("price", DecimalType(10, 2))]), {})
    assert not spec_of(StructType([StructField("id", LongType(), nullable=False)]), {}).columns[0].nullable
    with pytest.raises(InputError, match="give one, as in"):
        GeneratorSource({}).schema()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def reader(**options: str) -> tuple[GeneratorReader, Clock]:
    clock = Clock()
    return GeneratorReader(generate.spec({"k": "bigint"}, options), clock), clock


def test_pace_follows_the_clock_from_the_restart_and_catches_up() -> None:
    paced, clock = reader(rows_per_second="100", pace="2", rows_per_batch="300")
    limit = paced.getDefaultReadLimit()
    assert limit == ReadMaxRows(300)
    assert paced.reportLatestOffset() is None
    assert paced.latestOffset({"rows": 50}, limit) == {"rows": 50}
    clock.now += 1
    assert paced.latestOffset({"rows": 50}, limit) == {"rows": 250}
    clock.now += 2
    assert paced.reportLatestOffset() == {"rows": 650}
    assert paced.latestOffset({"rows": 250}, limit) == {"rows": 550}
    assert paced.latestOffset({"rows": 550}, limit) == {"rows": 650}
    assert paced.latestOffset({"rows": 250}, ReadAllAvailable()) == {"rows": 650}


def test_pace_max_gives_whole_batches() -> None:
    fast, _ = reader(pace="max", rows_per_batch="300")
    assert fast.latestOffset({"rows": 0}, fast.getDefaultReadLimit()) == {"rows": 300}
    assert fast.latestOffset({"rows": 0}, ReadAllAvailable()) == {"rows": 300}
    ending, _ = reader(pace="max", rows="500", rows_per_batch="300")
    assert ending.latestOffset({"rows": 300}, ending.getDefaultReadLimit()) == {"rows": 500}
    assert ending.latestOffset({"rows": 500}, ending.getDefaultReadLimit()) == {"rows": 500}
    assert ending.latestOffset({"rows": 0}, ReadAllAvailable()) == {"rows": 500}


def test_partitions_share_a_batch() -> None:
    parted, _ = reader(partitions="2")
    ranges = parted.partitions({"rows": 4}, {"rows": 9})
    assert [(part.lo, part.hi) for part in ranges] == [(4, 6), (6, 9)]
    assert [batch["k"].to_pylist() for part in ranges for batch in parted.read(part)] == [[4, 5], [6, 7, 8]]
    assert parted.partitions({"rows": 4}, {"rows": 4}) == []
