"""What Spark's analyser makes of the functions in expressions, read in the plan that a Connect server explains.

Names of built-in functions are refused when the query is parsed; here it is about what other names stand for, such as
SQL functions of the session, whose bodies the analyser puts in their place.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from watersmeet.errors import InputError
from watersmeet.query.sql.functions import (
    BY_PARTITION,
    NEVER,
    NON_DETERMINISTIC,
    calls_java,
    moving_date,
    not_deterministic,
    tells_of_partitions,
)
from watersmeet.spark.backend.classic_functions import NOT_BY_ROW

_ANALYSED = re.compile(r"== Analyzed Logical Plan ==\n(.*?)\n\n== Optimized", re.DOTALL)
_BY_ROW = re.compile(r"^[^\n]*\nProject .*\n\+- (LocalRelation|Project)\b", re.DOTALL)
_DATES = re.compile(r"cast\(([^()]*) as (?:date|timestamp|timestamp_ntz)\)")
_CALL = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`|([A-Za-z_]\w*)\s*\(")
_VOLATILE = NON_DETERMINISTIC | {"aes_encrypt", "variablereference"}
_BUILT_IN = "Class: org.apache.spark.sql.catalyst."


def check_functions(rows: DataFrame, asked: Mapping[str, str]) -> None:
    """Refuse functions in expressions, each with the clause in which all must be deterministic, if it is in one."""
    for sql, clause in asked.items():
        if not list(_calls(sql)) and "'" not in sql:
            continue
        _check_plan(rows.select(F.expr(sql).alias("value")), {sql}, clause)


def are_harmless(rows: DataFrame, frame: DataFrame, texts: Iterable[str]) -> bool:
    """Whether no function in some texts, which a frame has as its one column, is refused anywhere."""
    try:
        _check_plan(frame, texts, "any clause")
    except InputError:
        return False
    return True


def _check_plan(frame: DataFrame, texts: Iterable[str], clause: str) -> None:
    plan = frame._explain_string(extended=True)  # type: ignore[operator]
    found = _ANALYSED.search(plan)
    analysed = found.group(1) if found is not None else plan
    if _BY_ROW.match(analysed) is None:
        raise InputError(NOT_BY_ROW)
    _check_names(set(_calls(analysed.casefold())), clause)
    if not clause:
        return
    for cast in _DATES.finditer(analysed):
        if moving_date(cast.group(1)):
            raise InputError(not_deterministic(cast.group(0), clause))
    for name in sorted({name for sql in texts for name in _calls(sql)}):
        if _is_users(frame.sparkSession, name):
            raise InputError(
                f"{name} is a function of yours, and over Spark Connect it cannot be known whether it is "
                f"deterministic, so it cannot be in {clause}; make it a column of the stream"
            )


def _check_names(names: set[str], clause: str) -> None:
    for name in sorted(names):
        if name in NEVER:
            raise InputError(calls_java(name))
        if name in BY_PARTITION:
            raise InputError(tells_of_partitions(name))
        if clause and name in _VOLATILE:
            raise InputError(not_deterministic(name, clause))


def _calls(text: str) -> Iterator[str]:
    """The names that are called in a text.

    >>> sorted(_calls("upper(`a.(x`) = 'f(1)' AND length (b) > 0"))
    ['length', 'upper']
    """
    return (match.group(1) for match in _CALL.finditer(text) if match.group(1))


_users: dict[tuple[str, str], bool] = {}  # by session and name


def _is_users(spark: SparkSession, name: str) -> bool:
    """Whether a function is none of Spark's own; what is no function at all, such as IN, is not the user's."""
    key = (str(getattr(spark, "session_id", "")), name)
    if key not in _users:
        try:
            lines = [row[0] for row in spark.sql(f"DESCRIBE FUNCTION `{name}`").collect()]
            _users[key] = not any(line.startswith(_BUILT_IN) for line in lines)
        except Exception:
            _users[key] = False
    return _users[key]
