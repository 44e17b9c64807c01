"""What Spark's analyser makes of the functions in expressions, asked of its own trees in Java."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from watersmeet.errors import InputError
from watersmeet.query.sql.functions import calls_java, moving_date, not_deterministic, tells_of_partitions

NOT_BY_ROW = "aggregates, generators and window functions are not supported; use them downstream"
_DATE_TYPES = ("date", "timestamp", "timestamp_ntz")
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


def check_functions(rows: DataFrame, asked: Mapping[str, str]) -> None:
    """Refuse functions in expressions, each with the clause in which all must be deterministic, if it is in one."""
    plans = _plans(rows, rows.select([F.expr(sql).alias(str(number)) for number, sql in enumerate(asked)]))
    if plans is None:
        raise InputError(NOT_BY_ROW)
    for number, (sql, clause) in enumerate(asked.items()):
        looked_for = _patterns(rows, has_texts=_has_texts(sql))
        for plan in plans:
            for node in _suspicious(plan.projectList().apply(number), looked_for):
                _check_function(node, clause)


def are_harmless(rows: DataFrame, frame: DataFrame, texts: Iterable[str]) -> bool:
    """Whether no function in some texts, which a frame has as its one column, is refused anywhere."""
    plans = _plans(rows, frame)
    looked_for = _patterns(rows, has_texts=any(_has_texts(text) for text in texts))
    return plans is not None and not any(_suspicious(plan.projectList().apply(0), looked_for) for plan in plans)


def _plans(rows: DataFrame, frame: DataFrame) -> tuple[Any, Any] | None:
    """The plan of a projection, also with functions as what they stand for; None where it is more than that."""
    plan, source = (data_frame._jdf.queryExecution().analyzed() for data_frame in (frame, rows))
    if plan.nodeName() != "Project" or plan.child().nodeName() != source.nodeName():
        return None
    jvm: Any = rows.sparkSession._jvm
    return plan, jvm.org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions.apply(plan)


def _patterns(rows: DataFrame, *, has_texts: bool) -> list[Any]:
    jvm: Any = rows.sparkSession._jvm
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    found = [patterns.CURRENT_LIKE(), patterns.RUNTIME_REPLACEABLE()]
    return [*found, patterns.CAST()] if has_texts else found  # only texts become dates


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
    return kinds[0] in _DATE_TYPES and kinds[1] == "string" and text.foldable() and moving_date(str(text.eval(None)))


def define_function(spark: SparkSession, name: str, expression_name: str) -> None:
    """Give SQL a name for an expression that Spark has, but no function for."""
    jvm: Any = spark._jvm
    expression = jvm.java.lang.Class.forName(f"org.apache.spark.sql.catalyst.expressions.{expression_name}")
    tag = jvm.scala.reflect.ClassTag.apply(expression)
    built = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistryBase.build(name, jvm.scala.Option.empty(), tag)
    functions = spark._jsparkSession.sessionState().functionRegistry()
    functions.createOrReplaceTempFunction(name, built._2(), "built-in")
