"""A session of Spark Connect: no RDDs and no Java to reach into, so tasks are `mapInArrow` over numbers.

Results of tasks come back pickled, as those of plain jobs do: they are made by our own tasks in this very session and
never touch a link or a checkpoint.
"""

import hashlib
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from watersmeet.errors import InputError, RunError, first_line
from watersmeet.spark.connect.functions import are_harmless, check_functions

_RESULT = pa.schema([("result", pa.binary())])
_PROBED = 1 << 16  # rows of a range that shows how many tasks run at a time
_SETTINGS = {  # of the session on the server; what is for its start is up to whoever starts it
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "200000",
    "spark.sql.debug.maxToStringFields": "100000",  # plans are read whole
    "spark.sql.legacy.allowHashOnMapType": "true",  # only to see whether a value can be made at all
}


@dataclass(frozen=True)
class OnEachRow:
    """Run a task for the numbers of a partition and hand out all it returns."""

    task: Callable[[int], list[Any]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                found = [pickle.dumps(value) for value in self.task(number)]
                yield pa.RecordBatch.from_arrays([pa.array(found, pa.binary())], schema=_RESULT)


class ConnectBackend:
    """A client's session (see backend.protocol)."""

    is_local = False
    is_remote = True

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.name = _server_of(spark)
        self._is_prepared = False

    @cached_property
    def parallelism(self) -> int:
        """How many partitions Spark makes of a range where nobody says: as many as tasks run at a time."""
        numbers = self._spark.range(0, _PROBED).select(F.spark_partition_id().alias("number"))
        return int(numbers.select(F.max("number")).collect()[0][0]) + 1

    def prepare(self) -> None:
        """Ship the package to the server, and refuse one whose workers could not run it."""
        if self._is_prepared:
            return
        from watersmeet.spark.executors import check_executors
        from watersmeet.spark.session import zip_package

        for name, value in _SETTINGS.items():
            self._spark.conf.set(name, value)
        if not self._has_package():
            with TemporaryDirectory() as place:
                archive = zip_package(Path(place))
                try:
                    self._spark.addArtifacts(str(archive), pyfile=True)
                except Exception as error:
                    if "ALREADY_EXISTS" not in str(error):  # by another run with the same session
                        raise RunError(f"{self.name} does not take the package: {first_line(error)}") from error
        check_executors(self._spark)
        if self._spark.conf.get("spark.sql.shuffle.partitions", "200") == "200":
            self._spark.conf.set("spark.sql.shuffle.partitions", str(self.parallelism))
        self._is_prepared = True

    def _has_package(self) -> bool:
        """Whether the workers have this very package: compiled kernels are kept beside it, but not for an archive."""
        digest = package_digest()

        def compare(batches: Iterator[Any]) -> Iterator[Any]:  # sent by value: it needs nothing of ours there
            import hashlib
            import importlib.util
            import os

            import pyarrow as pa

            for batch in batches:
                found, spec = hashlib.sha256(), importlib.util.find_spec("watersmeet")
                root = "" if spec is None or spec.origin is None else os.path.dirname(spec.origin)
                paths = [os.path.join(at, name) for at, _, names in os.walk(root) for name in names] if root else []
                for path in sorted(path for path in paths if path.endswith(".py")):
                    found.update(os.path.relpath(path, root).encode())
                    with open(path, "rb") as file:
                        found.update(file.read())
                yield pa.RecordBatch.from_pydict({"same": [found.hexdigest() == digest] * batch.num_rows})

        try:
            count = 2 * self.parallelism
            compared = self._spark.range(0, count, 1, count).mapInArrow(compare, "same boolean").collect()
        except Exception:  # the check of executors says what is wrong there
            return False
        return all(row[0] for row in compared)

    def answer(self) -> None:
        _ = self._spark.version

    def run_tasks(self, task: Callable[[int], list[Any]], count: int) -> list[Any]:
        found = self._spark.range(0, count, 1, count).mapInArrow(OnEachRow(task), "result binary").toArrow()
        return [pickle.loads(value) for value in found.column(0).to_pylist()]

    def empty_frame(self, schema: StructType) -> DataFrame:
        return self._spark.createDataFrame([], schema)

    def tried_sql(self, sql: str) -> str:
        # Spark has no function that gives up on any expression, but to_binary's does on its argument: whether the value
        # can be made is tried first, and the value is made where it can. Behind a condition that Spark does not know
        # the value of: it would evaluate what comes twice ahead of the attempt.
        attempt = f"try_to_binary(IF(xxhash64({sql}) = 0, 'a', 'b'), 'utf-8')"
        return f"IF(spark_partition_id() < 0, NULL, IF({attempt} IS NULL, NULL, named_struct('v', {sql})))"

    def define_functions(self, *, collation_keys: bool) -> None:
        if collation_keys:
            raise InputError(
                "strings with a collation cannot be compared over Spark Connect, which has no function for their keys; "
                "run with --master, or cast them (CAST(x AS STRING COLLATE UTF8_BINARY)) in the source"
            )

    def check_functions(self, rows: DataFrame, asked: Mapping[str, str]) -> None:
        check_functions(rows, asked)

    def are_harmless(self, rows: DataFrame, frame: DataFrame, texts: Iterable[str]) -> bool:
        return are_harmless(rows, frame, texts)

    def unknown_format(self, name: str) -> str | None:
        try:
            _ = self._spark.read.format(name).load().schema
        except Exception as error:
            if "DATA_SOURCE_NOT_FOUND" in str(error):
                return f"{self.name} knows no data source {name!r}"
        return None  # others cannot be asked: they want options that only the sink has

    def set_property(self, name: str, value: str, what: str) -> None:
        raise InputError(
            f"{what} needs a limit in Java ({name}) that a client of Spark Connect cannot set; run with --master, "
            "or use another format"
        )

    def hadoop_files(self, root: str) -> tuple[Any, Callable[[str], Any]]:
        scheme = root.partition("://")[0]
        raise InputError(
            f"{root} is reached through Hadoop's file systems in Java, which a client of Spark Connect has not; mount "
            f"it and give the directory, or for s3://, gs:// and az:// install watersmeet[stores] (not {scheme}://)"
        )


def package_digest() -> str:
    """A digest of all modules of the package."""
    root, found = Path(__file__).resolve().parents[2], hashlib.sha256()
    for path in sorted(str(path) for path in root.rglob("*.py")):
        found.update(os.path.relpath(path, root).encode())
        found.update(Path(path).read_bytes())
    return found.hexdigest()


def _server_of(spark: Any) -> str:
    """The address of the server, without user, token or what else is in the URL."""
    try:
        return f"Spark Connect at {spark.client.host}"
    except AttributeError:
        return "the server of Spark Connect"
