"""Expressions over an alias as expressions over its stream, so that two aliases' can be compared."""

import re
from dataclasses import replace
from functools import lru_cache

from watersmeet.query.model import Column, Expression

_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`", re.DOTALL)


@lru_cache(maxsize=4096)  # a change of plans asks for the same ones again and again
def restated(expression: Expression, alias: str, stream: str) -> Expression:
    """An expression over an alias as one over its stream.

    >>> restated(Expression("lower(`a.host`) || '`a.host`'", (Column("a", "host"),)), "a", "logs").sql
    "lower(`logs.host`) || '`a.host`'"
    """
    names = {column.sql: Column(stream, column.name).sql for column in expression.columns}
    sql = _QUOTED.sub(lambda found: names.get(found.group(), found.group()), expression.sql)
    columns = tuple(replace(column, alias=stream) for column in expression.columns)
    return Expression(sql, columns, expression.type)
