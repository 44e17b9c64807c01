"""Expressions over combinations, evaluated by Spark: the rest of WHERE, the select list, and hashes for DISTINCT."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType

from watersmeet.program.finish.combine import ROW
from watersmeet.program.finish.failed import FAILING, first_failing
from watersmeet.program.finish.model import Evaluated, Finish, answer_column
from watersmeet.program.storage.codec import decode
from watersmeet.program.storage.segments import class_column
from watersmeet.program.storage.shelf import Part
from watersmeet.spark.backend.protocol import backend_of
from watersmeet.spark.binding import Bound, is_collated
from watersmeet.spark.failures import explain, raise_explained
from watersmeet.spark.files import FileShelf
from watersmeet.spark.jobs import map_rows, numbers, reports
from watersmeet.spark.session import empty_frame
from watersmeet.spark.tasks import KeepRows, ReadRows, SetFailingAside

_NO_COLUMNS = StructType([StructField(ROW, BooleanType())])


class SparkEvaluator:
    """The evaluator of a site on Spark (see program.finish.model)."""

    def __init__(self, spark: SparkSession, bounds: Mapping[str, Bound], shelf: FileShelf) -> None:
        self._spark = spark
        self._bounds = bounds
        self._shelf = shelf
        self._failing: set[str] = set()  # queries whose last combinations had some for which an expression fails

    def __call__(self, finish: Finish, paths: Sequence[str], rows: int) -> Evaluated:
        """Evaluate a query's predicates and select list over combinations; where the results are.

        All combinations at once; only if that fails, those for which an expression fails are looked for and left out.
        """
        if finish.query not in self._failing:
            try:
                return Evaluated(self._answers(finish, paths))
            except Exception as error:
                try:
                    tried = self._tried(finish, paths)
                except Exception:
                    raise_explained(error, finish.query)
                if not tried.failed:
                    raise_explained(error, finish.query)
                said = str(explain(error, finish.query)).removeprefix(f"query {finish.query!r} failed: ")
                tried = replace(tried, cause=said.split(". ")[0])
        else:
            tried = self._tried(finish, paths)
        (self._failing.add if tried.failed else self._failing.discard)(finish.query)
        try:
            return replace(tried, paths=self._answers(finish, tried.paths))
        except Exception as error:
            raise_explained(error, finish.query)

    def _answers(self, finish: Finish, paths: Sequence[str]) -> tuple[str, ...]:
        if not paths:
            return ()
        answers = self._evaluated(finish, self._combinations(finish, paths))
        if finish.distinct:
            answers = self._hashed(finish, answers.dropDuplicates())
        return tuple(Part(**row).path for row in reports(map_rows(answers, KeepRows(self._shelf))))

    def _combinations(self, finish: Finish, paths: Sequence[str]) -> DataFrame:
        task = ReadRows(self._shelf, tuple(paths), finish.columns or (ROW,))
        return numbers(self._spark, len(paths)).mapInArrow(task, self.combination(finish))

    def _tried(self, finish: Finish, paths: Sequence[str]) -> Evaluated:
        """The combinations for which no expression fails, and the others."""
        tried = backend_of(self._spark).tried_sql
        number = first_failing(
            finish,
            lambda expression: f"{tried(expression.sql)} IS NULL",
            lambda expression: f"coalesce({tried(expression.sql)}.v, false)",
        )
        combinations = self._combinations(finish, paths)
        judged = combinations.withColumn(FAILING, F.expr(f"CAST({number} AS INT)"))
        found = [decode(Evaluated, row) for row in reports(map_rows(judged, SetFailingAside(self._shelf, finish)))]
        return Evaluated(
            tuple(path for value in found for path in value.paths),
            sum(value.failed for value in found),
            tuple(path for value in found for path in value.failed_paths),
        )

    def combination(self, finish: Finish) -> StructType:
        """The row type of the combinations that a query is answered from."""
        return self._bounds[finish.definition].combination(finish.columns) if finish.columns else _NO_COLUMNS

    def answer_schema(self, finish: Finish) -> StructType:
        """The row type of a query's answers."""
        if finish.grouping is not None:
            groups = finish.of_groups
            return StructType(self.answer_schema(groups).fields[: len(finish.names)])
        if finish.plain is not None:
            columns = tuple(column for column, _ in finish.plain)
            return self._bounds[finish.definition].combination(columns[: len(finish.answers)])
        empty = empty_frame(self._spark, self.combination(finish))
        return StructType(self._evaluated(finish, empty).schema.fields[: len(finish.answers)])

    def _evaluated(self, finish: Finish, rows: DataFrame) -> DataFrame:
        for predicate in finish.predicates:
            rows = rows.where(F.expr(predicate.sql))
        return rows.select(
            [F.expr(item.expression.sql).alias(answer_column(number)) for number, item in enumerate(finish.select)]
        )

    def _hashed(self, finish: Finish, rows: DataFrame) -> DataFrame:
        compared = list(rows.columns)
        for number, item in enumerate(self._bounds[finish.definition].query.select):
            if is_collated(item.expression.type):
                compared[number] = f"k{number}"
                rows = rows.withColumn(compared[number], F.expr(f"collation_key({answer_column(number)})"))
        different = [name for name in compared if name != finish.time_column]
        return rows.withColumn(class_column(0), F.xxhash64(*different))
