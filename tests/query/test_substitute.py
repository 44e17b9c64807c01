"""Values in the place of columns, and predicates that compare a column with a constant."""

import pytest

from watersmeet.query.model import Column, Expression
from watersmeet.query.substitute import constant_of, with_values


def column(flat: str) -> Column:
    return Column(*flat.split("."))


def test_values_take_the_place_of_columns() -> None:
    both = (column("r.b"), column("s.c"))
    expression = Expression("`r.b` + 2 * `s.c`", both, "int")
    assert with_values(expression, {column("s.c"): 4}) == Expression("`r.b` + 2 * 4", (column("r.b"),), "int")
    assert with_values(expression, {column("t.c"): 4}) is expression
    assert with_values(expression, dict(zip(both, (1, 2), strict=True))).columns == ()
    quoted = with_values(Expression("`r.b` = `s.c`", both), {column("r.b"): "it's \\ `s.c`"})
    assert constant_of(quoted) == (column("s.c"), "it's \\ `s.c`")
    assert with_values(Expression("`r.b` = `s.c`", both), {column("r.b"): None}).sql == "NULL = `s.c`"


@pytest.mark.parametrize(
    ("sql", "constant"),
    [
        ("`r.a` = 7", 7),
        ("('x') = (`r.a`)", "x"),
        ("`r.a` = '7'", "7"),
        ("`r.a` = -7", -7),
        ("-(7) = `r.a`", None),
        ("`r.a` = -'7'", None),
        ("`r.a` = 7.5", None),
        ("`r.a` <> 7", None),
        ("`r.a` + 1 = 7", None),
        ("`r.a` = `r.a`", None),
        ("`r.a` = 7 OR `r.a` = 8", None),
        ("`r.a` = NULL", None),
    ],
)
def test_constants_are_read_from_predicates(sql: str, constant: object) -> None:
    found = constant_of(Expression(sql, (column("r.a"),)))
    assert found == (None if constant is None else (column("r.a"), constant))
