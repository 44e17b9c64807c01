"""Expressions over combinations, evaluated by Spark: the rest of WHERE, the select list, and hashes for DISTINCT."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from watersmeet.program.finish.combine import ROW
from watersmeet.program.finish.model import Finish, answer_column
from watersmeet.program.storage.segments import class_column
from watersmeet.program.storage.shelf import Part
from watersmeet.spark.binding import Bound, is_collated
from watersmeet.spark.failures import raise_explained
from watersmeet.spark.files import FileShelf
from watersmeet.spark.jobs import map_rows, numbers, reports
from watersmeet.spark.tasks import KeepRows, ReadRows


class SparkEvaluator:
    """The evaluator of a site on Spark (see program.finish.model)."""

    def __init__(self, spark: SparkSession, bounds: Mapping[str, Bound], shelf: FileShelf) -> None:
        self._spark = spark
        self._bounds = bounds
        self._shelf = shelf

    def __call__(self, finish: Finish, paths: Sequence[str], rows: int) -> list[str]:
        """Evaluate a query's predicates and select list over combinations; where the results are."""
        columns = finish.columns or (ROW,)
        schema = self.combination(finish)
        task = ReadRows(self._shelf, tuple(paths), columns)
        combinations = numbers(self._spark, len(paths)).mapInArrow(task, schema)
        answers = self._evaluated(finish, combinations)
        if finish.distinct:
            answers = self._hashed(finish, answers.dropDuplicates())
        try:
            return [Part(**row).path for row in reports(map_rows(answers, KeepRows(self._shelf)))]
        except Exception as error:
            raise_explained(error, finish.query)

    def combination(self, finish: Finish) -> StructType | str:
        """The row type of the combinations that a query is answered from."""
        return self._bounds[finish.query].combination(finish.columns) if finish.columns else f"`{ROW}` boolean"

    def answer_schema(self, finish: Finish) -> StructType:
        """The row type of a query's answers."""
        if finish.plain is not None:
            return self._bounds[finish.query].combination(tuple(column for column, _ in finish.plain))
        empty = self._spark.createDataFrame([], self.combination(finish))
        return self._evaluated(finish, empty).schema

    def _evaluated(self, finish: Finish, rows: DataFrame) -> DataFrame:
        for predicate in finish.predicates:
            rows = rows.where(F.expr(predicate.sql))
        return rows.select(
            [F.expr(item.expression.sql).alias(answer_column(number)) for number, item in enumerate(finish.select)]
        )

    def _hashed(self, finish: Finish, rows: DataFrame) -> DataFrame:
        compared = list(rows.columns)
        for number, item in enumerate(self._bounds[finish.query].query.select):
            if is_collated(item.expression.type):
                compared[number] = f"k{number}"
                rows = rows.withColumn(compared[number], F.expr(f"collation_key({answer_column(number)})"))
        return rows.withColumn(class_column(0), F.xxhash64(*compared))
