"""Rows of derived streams on Spark: answers are read from the shelf, and filed by the keys of those who read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from watersmeet.program.site.derived import derived_rows
from watersmeet.program.site.ingest import Ingest, first_row_id
from watersmeet.program.site.ledger import Answers, Ingested
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.streams import StreamScan
from watersmeet.program.storage.codec import decode
from watersmeet.program.storage.segments import TS, class_column
from watersmeet.program.storage.shelf import Shelf
from watersmeet.program.storage.sizes import split_rows
from watersmeet.spark.files import FileShelf
from watersmeet.spark.ingest.parquet_files import as_number, is_plain_column
from watersmeet.spark.ingest.sources import laid_out
from watersmeet.spark.jobs import TaskRunner, map_rows, numbers, reports
from watersmeet.spark.tasks import Batches, report


@dataclass(frozen=True)
class SparkDerivation:
    """Files answers as rows of derived streams (see program.site.derived).

    Where keys and kept values are plain columns, tasks of ours do it; expressions are evaluated by Spark.
    """

    spark: SparkSession
    schemas: Mapping[str, StructType]  # of derived streams
    shelf: FileShelf
    run_tasks: TaskRunner

    def __call__(
        self, program: SiteProgram, scan: StreamScan, answers: Sequence[Answers], filed: int
    ) -> list[Ingested]:
        pieces = tuple((given, number) for given in answers for number in range(len(given.paths)))
        task = FileDerived(Ingest(program, self.shelf, scan), pieces, filed)
        if _has_plain_columns(scan, self.schemas[scan.stream]):
            return self.run_tasks(task, len(pieces), sum(given.rows for given in answers))
        flat = self._opened(scan, pieces)
        rows = laid_out(flat, scan, F.col(f"`{TS}`"), ())
        return [
            decode(Ingested, row) for row in reports(map_rows(rows, FileLaidOut(task.ingest, answers[0].batch, filed)))
        ]

    def _opened(self, scan: StreamScan, pieces: "Sequence[Piece]") -> DataFrame:
        fields = [
            StructField(f"{scan.stream}.{field.name}", field.dataType) for field in self.schemas[scan.stream].fields
        ]
        schema = StructType([StructField(TS, LongType()), *fields])
        task = ReadDerived(self.shelf, scan.stream, tuple(pieces))
        return numbers(self.spark, len(pieces)).mapInArrow(task, schema)


Piece = tuple[Answers, int]  # some answers, and which of their files


def _has_plain_columns(scan: StreamScan, schema: StructType) -> bool:
    """Whether all that is wanted of the rows are columns as they are."""
    if any(selection.filters for selection in scan.selections) or not all(key.exact for key in scan.keys):
        return False
    expressions = [*(key.expression for key in scan.keys), *(kept.expression for kept in scan.read)]
    keys = {key.expression.columns[0].name for key in scan.keys if key.expression.is_plain}
    return all(expression.is_plain for expression in expressions) and all(
        is_plain_column(schema[name]) for name in keys
    )


@dataclass(frozen=True)
class FileDerived:
    """File answers whose keys are plain columns, a file a task."""

    ingest: Ingest
    pieces: tuple[Piece, ...]
    filed: int  # files of the same micro-batch before these

    def __call__(self, number: int) -> list[Ingested]:
        scan = self.ingest.scan
        (table,) = _rows(self.ingest.shelf, scan.stream, self.pieces[number])
        columns = {TS: table.column(TS)}
        for place, key in enumerate(scan.keys):
            columns[class_column(place)] = as_number(table.column(key.expression.columns[0].flat))
        columns |= {kept.name: table.column(kept.expression.columns[0].flat) for kept in scan.read}
        first_id = first_row_id(self.pieces[number][0].batch, self.filed + number)
        return _filed(self.ingest, pa.table(columns), first_id)


@dataclass(frozen=True)
class ReadDerived:
    """Hand answers to Spark as rows of a stream, a file a task."""

    shelf: FileShelf
    stream: str
    pieces: tuple[Piece, ...]

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for table in _rows(self.shelf, self.stream, self.pieces[number]):
                    yield from table.to_batches()


@dataclass(frozen=True)
class FileLaidOut:
    """File rows whose keys and conditions Spark has evaluated."""

    ingest: Ingest
    batch: int  # the number of the micro-batch whose answers they are
    filed: int

    def __call__(self, batches: Batches) -> Batches:
        pieces = [batch for batch in batches if batch.num_rows]
        if pieces:
            context = TaskContext.get()
            number = 0 if context is None else context.partitionId()  # a task a file
            first_id = first_row_id(self.batch, self.filed + number)
            yield report(_filed(self.ingest, pa.Table.from_batches(pieces), first_id))


def _filed(ingest: Ingest, table: pa.Table, first_id: int) -> list[Ingested]:
    """File rows in pieces; where they are to be told apart, they are numbered from `first_id` on."""
    found = []
    for some in split_rows(table):
        found.append(ingest(some, None, first_id))
        first_id += some.num_rows
    return found


def _rows(shelf: Shelf, stream: str, piece: Piece) -> list[pa.Table]:
    answers, number = piece
    whole = Answers(answers.batch, answers.paths[number : number + 1], answers.columns, answers.rows)
    return derived_rows(shelf, stream, whole)
