"""What Spark's analyser says of SQL expressions: their types, and which of their functions are refused.

Many queries over the same streams ask for the same things, and each question costs Java milliseconds. So a text is
analysed once for each row type, and the texts of many queries together, as the members of one struct.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from watersmeet.errors import InputError, TypeMismatch
from watersmeet.query.sql.functions import calls_java, moving_date, not_deterministic, tells_of_partitions
from watersmeet.spark.session import empty_frame, first_line

TRY = "watersmeet_try"
DATE_TYPES = ("date", "timestamp", "timestamp_ntz")
_MOST_TOGETHER = 500  # texts that are analysed as one struct

# Deterministic to Spark, since they have one value throughout one of its own queries (or, aes_encrypt, by mistake).
_VOLATILE = {
    *("CurrentTimestamp", "Now", "CurrentDate", "CurrentTime", "LocalTimestamp", "CurrentTimeZone", "CurrentUser"),
    *("CurrentDatabase", "CurrentCatalog", "SparkVersion", "VariableReference", "AesEncrypt"),
}
_JAVA_CALLS = {"CallMethodViaReflection", "TryReflect"}
_BY_PARTITION = {
    *("InputFileName", "InputFileBlockStart", "InputFileBlockLength"),
    *("MonotonicallyIncreasingID", "SparkPartitionID"),
}


class Analyser:
    """Spark's analyser for a time in which settings and functions of its session stay as they are."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._rows: dict[str, Rows] = {}
        _define_function(spark, TRY, "TryEval")

    def rows(self, schema: StructType) -> "Rows":
        """Rows of a type, to ask about expressions over them."""
        text = schema.json()
        if text not in self._rows:
            self._rows[text] = Rows(empty_frame(self.spark, schema))
        return self._rows[text]

    def define_collation_key(self) -> None:
        """Give SQL a name for what Spark's own joins compare of collated strings."""
        _define_function(self.spark, "collation_key", "CollationKey")


class Rows:
    """Rows of one type: what expressions over them are."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
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
        self._types |= {text: one.dataType.simpleString() for text, one in zip(texts, struct.fields, strict=True)}
        plans = self._plans(frame)
        looked_for = self._patterns(has_texts=any(_has_texts(text) for text in texts))
        if plans is not None and not any(_suspicious(plan.projectList().apply(0), looked_for) for plan in plans):
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
        if not asked:
            return
        frame = self._frame.select([F.expr(sql).alias(str(number)) for number, sql in enumerate(asked)])
        plans = self._plans(frame)
        if plans is None:
            raise InputError("aggregates, generators and window functions are not supported; use them downstream")
        for number, (sql, clause) in enumerate(asked.items()):
            looked_for = self._patterns(has_texts=_has_texts(sql))
            for plan in plans:
                for node in _suspicious(plan.projectList().apply(number), looked_for):
                    _check_function(node, clause)

    def _plans(self, frame: DataFrame) -> tuple[Any, Any] | None:
        """The plan of a projection, also with functions as what they stand for; None where it is more than that."""
        plan, source = (one._jdf.queryExecution().analyzed() for one in (frame, self._frame))
        if plan.nodeName() != "Project" or plan.child().nodeName() != source.nodeName():
            return None
        catalyst = self._jvm.org.apache.spark.sql.catalyst
        return plan, catalyst.optimizer.ReplaceExpressions.apply(plan)

    def _patterns(self, *, has_texts: bool) -> list[Any]:
        patterns = self._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        found = [patterns.CURRENT_LIKE(), patterns.RUNTIME_REPLACEABLE()]
        return [*found, patterns.CAST()] if has_texts else found  # only texts become dates

    @property
    def _jvm(self) -> Any:
        return self._frame.sparkSession._jvm


def _has_texts(sql: str) -> bool:
    return "'" in sql or '"' in sql


def _suspicious(expression: Any, patterns: Sequence[Any]) -> list[Any]:
    """The parts of an expression of Spark that are not deterministic or have a pattern in them, the innermost first."""
    found, waiting = [], [expression]
    while waiting:
        node = waiting.pop()
        if not node.deterministic() or any(node.containsPattern(pattern) for pattern in patterns):
            found.append(node)
            children = node.children()
            waiting += [children.apply(number) for number in range(children.size())]
    return found[::-1]


def _check_function(node: Any, exact_clause: str) -> None:
    kind = node.getClass().getSimpleName()
    if kind in _JAVA_CALLS:
        raise InputError(calls_java(node.prettyName()))
    if kind in _BY_PARTITION:
        raise InputError(tells_of_partitions(node.prettyName()))
    if exact_clause and (kind in _VOLATILE or not node.deterministic()):
        raise InputError(not_deterministic(node.prettyName(), exact_clause))
    if exact_clause and kind == "Cast" and _is_moving(node):
        raise InputError(not_deterministic(str(node.sql()), exact_clause))


def _is_moving(cast: Any) -> bool:
    """Whether a constant such as 'today' is made a date."""
    text = cast.child()
    kinds = cast.dataType().typeName(), text.dataType().typeName()
    return kinds[0] in DATE_TYPES and kinds[1] == "string" and text.foldable() and moving_date(str(text.eval(None)))


def _define_function(spark: SparkSession, name: str, expression_name: str) -> None:
    """Give SQL a name for an expression that Spark has, but no function for."""
    jvm: Any = spark._jvm
    expression = jvm.java.lang.Class.forName(f"org.apache.spark.sql.catalyst.expressions.{expression_name}")
    tag = jvm.scala.reflect.ClassTag.apply(expression)
    built = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistryBase.build(name, jvm.scala.Option.empty(), tag)
    functions = spark._jsparkSession.sessionState().functionRegistry()
    functions.createOrReplaceTempFunction(name, built._2(), "built-in")


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
