"""What Spark's analyser says of SQL expressions: their types, and which of their functions are refused.

Many queries over the same streams ask for the same things, and each question costs Java milliseconds. So a text is
analysed once for each row type, and the texts of many queries together, as the members of one struct.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from watersmeet.errors import InputError, TypeMismatch, first_line
from watersmeet.spark.backend.protocol import backend_of
from watersmeet.spark.session import empty_frame

DATE_TYPES = ("date", "timestamp", "timestamp_ntz")
_MOST_TOGETHER = 500  # texts that are analysed as one struct


class Analyser:
    """Spark's analyser for a time in which settings and functions of its session stay as they are."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._rows: dict[str, TypedRows] = {}
        backend_of(spark).define_functions(collation_keys=False)

    def rows(self, schema: StructType) -> "TypedRows":
        """Rows of a type, to ask about expressions over them."""
        text = schema.json()
        if text not in self._rows:
            self._rows[text] = TypedRows(empty_frame(self.spark, schema))
        return self._rows[text]

    def define_collation_key(self) -> None:
        """Give SQL a name for what Spark's own joins compare of collated strings."""
        backend_of(self.spark).define_functions(collation_keys=True)


class TypedRows:
    """Rows of one type: what expressions over them are."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._backend = backend_of(frame.sparkSession)
        self._types: dict[str, str] = {}
        self._harmless: set[str] = set()  # texts none of whose functions is refused anywhere

    def expect(self, texts: Iterable[str]) -> None:
        """Analyse many texts at once that will be asked for; what is wrong with one is said when it is asked for."""
        waiting = sorted({text for text in texts if text not in self._types})
        while len(waiting) > 1:
            some, waiting = waiting[:_MOST_TOGETHER], waiting[_MOST_TOGETHER:]
            self._expect_some(some)

    def _expect_some(self, texts: Sequence[str]) -> None:
        members = ", ".join(f"'{number}', {text}" for number, text in enumerate(texts))
        try:
            frame = self._frame.select(F.expr(f"named_struct({members})").alias("all"))
            (field,) = frame.schema.fields
        except (PySparkException, Py4JJavaError):
            return
        struct = field.dataType
        if not isinstance(struct, StructType) or struct.names != [str(number) for number in range(len(texts))]:
            return  # a text that is more than one expression
        self._types |= {text: field.dataType.simpleString() for text, field in zip(texts, struct.fields, strict=True)}
        if self._backend.are_harmless(self._frame, frame, texts):
            self._harmless.update(texts)

    def types(self, texts: Iterable[str]) -> dict[str, str]:
        """The Spark type of each expression, all asked for at once; one by one only to find out which is wrong."""
        asked = sorted(set(texts))
        unknown = [text for text in asked if text not in self._types]
        if unknown:
            self._types |= self._asked(unknown)
        return {text: self._types[text] for text in asked}

    def _asked(self, texts: Sequence[str]) -> dict[str, str]:
        try:
            fields = self._frame.select([F.expr(text) for text in texts]).schema.fields
        except (PySparkException, Py4JJavaError) as error:
            if len(texts) > 1:
                return {text: kind for one in texts for text, kind in self._asked([one]).items()}
            raise InputError(f"{texts[0].replace('`', '')}: {readable(error)}") from None
        return {text: field.dataType.simpleString() for text, field in zip(texts, fields, strict=True)}

    def merged_type(self, left: str, right: str) -> str:
        """The type in which Spark itself compares two expressions."""
        try:
            self._frame.select(F.expr(f"({left}) = ({right})"))
            (field,) = self._frame.select(F.expr(f"coalesce({left}, {right})")).schema.fields
        except (AnalysisException, ParseException) as error:
            raise TypeMismatch(f"{left} = {right}".replace("`", "") + f": {readable(error)}") from None
        return field.dataType.simpleString()

    def check_functions(self, asked: Mapping[str, str]) -> None:
        """Refuse functions by what Spark's analyser makes of them, whatever the text calls them.

        `asked` has the clause of each expression that must be deterministic, and an empty text for others.
        """
        asked = {text: clause for text, clause in asked.items() if text not in self._harmless}
        if asked:
            self._backend.check_functions(self._frame, asked)


@cache
def type_of(kind: str) -> DataType:
    """A type by its name, as Spark's parser reads it."""
    return DataType.fromDDL(kind)


def readable(error: Exception) -> str:
    """What Spark's analyser says, without its codes, plans and positions in generated text."""
    text = str(error).split("\n\nJVM stacktrace")[0].split("\n\tat ")[0].split("== SQL")[0]
    text = re.sub(r"^An error occurred while calling \S+\s*:\s*[\w.$]+:\s*", "", text)
    text = re.sub(r"^\[[A-Z0-9_.]+\]\s*", "", text.strip())
    text = re.sub(r"\s*SQLSTATE: \w+.*", "", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", text).strip() or first_line(error)
