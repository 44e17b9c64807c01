"""Classic Spark: its Java process is beside this one and reached through py4j."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from watersmeet.spark.backend.classic_functions import are_harmless, check_functions, define_function

_TRY = "watersmeet_try"


@dataclass(frozen=True)
class OnEach:
    """Run a task for the numbers of a partition and hand out all it returns."""

    task: Callable[[int], list[Any]]

    def __call__(self, numbers: Iterable[int]) -> Iterator[Any]:
        for number in numbers:
            yield from self.task(number)


class ClassicBackend:
    """A session in this process (see backend.protocol)."""

    is_remote = False

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.name = str(spark.sparkContext.master)
        self.is_local = self.name.startswith("local")
        self.parallelism = max(1, int(spark.sparkContext.defaultParallelism))
        self._is_prepared = False

    def prepare(self) -> None:
        """Let workers run this very package with a Python like this one, whoever has started the session.

        On this machine PySpark takes the first `python3` of PATH, which knows nothing of an environment that is not
        activated; on a cluster the package is shipped, and executors that could not run it are refused.
        """
        if self._is_prepared:
            return
        if self.is_local:
            settings = self._spark._jsc.sc().conf()  # what Java asks for its own workers, as those of data sources
            if "PYSPARK_PYTHON" not in os.environ and not settings.contains("spark.pyspark.python"):
                self._spark.sparkContext.pythonExec = sys.executable
                settings.set("spark.pyspark.python", sys.executable)
        else:
            from watersmeet.spark.executors import check_executors
            from watersmeet.spark.session import ship_package

            ship_package(self._spark)
            check_executors(self._spark)
        self._is_prepared = True

    def answer(self) -> None:
        self._spark._jvm.java.lang.System.nanoTime()  # type: ignore[union-attr]

    def run_tasks(self, task: Callable[[int], list[Any]], count: int) -> list[Any]:
        # A plain job: planning a query takes Spark SQL longer than most of these tasks run.
        return self._spark.sparkContext.parallelize(range(count), count).mapPartitions(OnEach(task)).collect()

    def empty_frame(self, schema: StructType) -> DataFrame:
        # PySpark would have Python's workers make none of the rows.
        java, jvm = self._spark._jsparkSession, self._spark._jvm
        made = java.createDataFrame(jvm.java.util.ArrayList(), java.parseDataType(schema.json()))  # type: ignore[union-attr]
        return DataFrame(made, self._spark)

    def tried_sql(self, sql: str) -> str:
        # Behind a condition that Spark does not know the value of: it would evaluate what comes twice in the expression
        # ahead of the attempt, and the attempt again wherever its result is used.
        return f"{_TRY}(IF(spark_partition_id() < 0, NULL, named_struct('v', {sql})))"

    def define_functions(self, *, collation_keys: bool) -> None:
        if collation_keys:  # what Spark's own joins compare of collated strings
            define_function(self._spark, "collation_key", "CollationKey")
        define_function(self._spark, _TRY, "TryEval")

    def check_functions(self, rows: DataFrame, asked: Mapping[str, str]) -> None:
        check_functions(rows, asked)

    def are_harmless(self, rows: DataFrame, frame: DataFrame, texts: Iterable[str]) -> bool:
        return are_harmless(rows, frame, texts)

    def unknown_format(self, name: str) -> str | None:
        jvm: Any = self._spark._jvm
        settings = self._spark._jsparkSession.sessionState().conf()
        try:
            jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(name, settings)
        except Exception as error:
            from watersmeet.spark.analyser import readable

            return readable(error)
        return None

    def set_property(self, name: str, value: str, what: str) -> None:
        self._spark._jvm.java.lang.System.setProperty(name, value)  # type: ignore[union-attr]

    def hadoop_files(self, root: str) -> tuple[Any, Callable[[str], Any]]:
        make: Callable[[str], Any] = self._spark._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
        return make(root).getFileSystem(self._spark._jsc.hadoopConfiguration()), make
