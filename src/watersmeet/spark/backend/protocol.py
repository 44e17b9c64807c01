"""What is different between classic Spark and Spark Connect; everything else of this package is the same on both.

Classic Spark has its Java process beside this one, so that anything in it can be reached. A client of Spark Connect has
a session on a server and can do with it what DataFrames and SQL can say.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


class Backend(Protocol):
    """One session of Spark, whichever it is."""

    name: str  # for messages: the master, or the server without what is secret in its address
    is_local: bool  # whether its tasks run on this machine with the disk and the modules of this process
    is_remote: bool  # whether this process is a client of Spark Connect

    @property
    def parallelism(self) -> int:
        """How many tasks run at a time."""

    def prepare(self) -> None:
        """Let tasks run our package with a Python like this one; said again, it does nothing."""

    def answer(self) -> None:
        """Ask Spark for next to nothing: it returns when Java, or the server, has answered."""

    def run_tasks(self, task: Callable[[int], list[Any]], count: int) -> list[Any]:
        """Run a task for each number below `count` as a job; all that they return."""

    def empty_frame(self, schema: StructType) -> DataFrame:
        """A frame without rows."""

    def tried_sql(self, sql: str) -> str:
        """A struct with the value `v` of an expression; NULL where it fails."""

    def define_functions(self, *, collation_keys: bool) -> None:
        """Give SQL what expressions of ours need and Spark has no function for; InputError where that cannot be."""

    def check_functions(self, rows: DataFrame, asked: Mapping[str, str]) -> None:
        """Refuse functions by what Spark's analyser makes of expressions, by the clause that must be deterministic."""

    def are_harmless(self, rows: DataFrame, frame: DataFrame, texts: Iterable[str]) -> bool:
        """Whether no function in some texts, which a frame has as its one column, is refused anywhere."""

    def unknown_format(self, name: str) -> str | None:
        """Why a batch cannot be written to a format; None if it can, as far as is known before it is done."""

    def set_property(self, name: str, value: str, what: str) -> None:
        """Set a property of Java's, which something needs; InputError where Java cannot be reached."""

    def hadoop_files(self, root: str) -> tuple[Any, Callable[[str], Any]]:
        """Hadoop's file system that a path is on, and what makes a path of a text."""


_known: "WeakKeyDictionary[Any, Backend]" = WeakKeyDictionary()


def backend_of(spark: SparkSession) -> Backend:
    """The backend of a session."""
    if spark not in _known:
        _known[spark] = _made(spark)
    return _known[spark]


def is_remote(spark: object) -> bool:
    """Whether a session is one of Spark Connect; its class is not that of classic sessions."""
    return not isinstance(spark, SparkSession)


def _made(spark: SparkSession) -> Backend:
    if is_remote(spark):
        from watersmeet.spark.connect.backend import ConnectBackend

        return ConnectBackend(spark)
    from watersmeet.spark.backend.classic import ClassicBackend

    return ClassicBackend(spark)
