"""Expressions over an alias as expressions over its stream."""

import pytest

from watersmeet.query.model import Column, Expression
from watersmeet.query.restate import restated


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("`x.k`", "`logs.k`"),
        ("`x.k` + `x.m`", "`logs.k` + `logs.m`"),
        ("`x.k` || '`x.k`'", "`logs.k` || '`x.k`'"),
        ("'it''s `x.k`' || `x.k`", "'it''s `x.k`' || `logs.k`"),
        (r"'a \' `x.k`' || `x.k`", r"'a \' `x.k`' || `logs.k`"),
        ('"`x.k`" || `x.k`', '"`x.k`" || `logs.k`'),
        ("`x.odd``name` = `x.k`", "`logs.odd``name` = `logs.k`"),
    ],
)
def test_only_columns_are_renamed(sql: str, expected: str) -> None:
    columns = tuple(Column("x", name) for name in ("k", "m", "odd`name"))
    found = restated(Expression(sql, columns, "bigint"), "x", "logs")
    assert found.sql == expected and found.type == "bigint"
    assert {column.alias for column in found.columns} == {"logs"}
