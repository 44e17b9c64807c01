"""Comparisons of columns of several streams, as trees that engines evaluate without SQL.

`a.price < b.price`, `b.ts BETWEEN a.ts - INTERVAL 5 MINUTES AND a.ts`, `abs(a.x - b.x) < 0.5 OR a.id <> b.id`: plain
columns and constants, sums and distances of them, compared, and joined by AND, OR and NOT, with the types that Spark
compares them in. Everything else in WHERE is left to an evaluator of SQL.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from sqlglot import exp

from watersmeet.query.dialect import syntax_tree
from watersmeet.query.model import EVENT_TIME_KIND, Column, Expression, JoinQuery
from watersmeet.query.windows import UNIT_US

WHOLE = ("tinyint", "smallint", "int", "bigint")  # from the narrowest to the widest
_TIMES = ("timestamp", "timestamp_ntz", EVENT_TIME_KIND)
_LIKE_ITSELF = ("string", "date", "timestamp_ntz", "float")  # compared with values of the same type only
_INTERVAL = "interval"
_DECIMAL = "decimal"  # of constants only
_DAY_US = 86_400_000_000  # longer intervals depend on the time zone
_MOST_NODES = 200


@dataclass(frozen=True, slots=True)
class Field:
    """A column by its flat name."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A number; of an interval, microseconds."""

    value: int | float
    kind: str


@dataclass(frozen=True, slots=True)
class Sum:
    """`left + right`, or `left - right` with a sign of -1."""

    left: "Term"
    right: "Term"
    sign: int
    kind: str


@dataclass(frozen=True, slots=True)
class Magnitude:
    """`abs(of)`."""

    of: "Term"
    kind: str


Term = Field | Constant | Sum | Magnitude


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison by `=`, `<>`, `<`, `<=`, `>` or `>=`."""

    operator: str
    left: Term
    right: Term


@dataclass(frozen=True, slots=True)
class Missing:
    """`of IS NULL`."""

    of: Term


@dataclass(frozen=True, slots=True)
class Every:
    """Tests joined by AND."""

    tests: tuple["Test", ...]


@dataclass(frozen=True, slots=True)
class Some:
    """Tests joined by OR."""

    tests: tuple["Test", ...]


@dataclass(frozen=True, slots=True)
class Opposite:
    """NOT of a test."""

    of: "Test"


Test = Compare | Missing | Every | Some | Opposite

_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of columns of several aliases, with the types of its columns."""

    expression: Expression
    kinds: tuple[str, ...]  # Spark types, in the order of the expression's columns

    @property
    def aliases(self) -> tuple[str, ...]:
        return self.expression.aliases

    @property
    def columns(self) -> tuple[str, ...]:
        """Flat names."""
        return tuple(dict.fromkeys(column.flat for column in self.expression.columns))

    @property
    def test(self) -> Test:
        """Its tree."""
        found = _read(self)
        assert found is not None, "a condition is a comparison"
        return found

    @property
    def can_fail(self) -> bool:
        """Whether some values make it fail: sums of whole numbers and of times may be too large for their type."""
        return _can_fail(self.test)


def conditions_of(query: JoinQuery) -> tuple[Condition, ...]:
    """Those residual predicates of a query that are comparisons of columns whose types are known."""
    types = dict(query.types)
    found = []
    for residual in query.residuals:
        kinds = [types.get(column) for column in residual.columns]
        known = tuple(kind for kind in kinds if kind is not None)
        if len(residual.aliases) > 1 and len(known) == len(kinds):
            condition = Condition(residual, known)
            if _read(condition) is not None:
                found.append(condition)
    return tuple(found)


class _NotComparable(Exception):
    """An expression has something that only an evaluator of SQL knows."""


@lru_cache(maxsize=1_024)
def _read(condition: Condition) -> Test | None:
    expression = condition.expression
    kinds = dict(zip(expression.columns, condition.kinds, strict=True))
    try:
        tree = syntax_tree(expression)
        if sum(1 for _ in tree.walk()) > _MOST_NODES:
            return None
        return _Reader({column.flat: Field(column.flat, kind) for column, kind in kinds.items()}).test(tree)
    except (_NotComparable, RecursionError):
        return None


class _Reader:
    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = fields

    def test(self, tree: exp.Expr) -> Test:
        match tree:
            case exp.Paren():
                return self.test(tree.this)
            case exp.And():
                return Every((self.test(tree.this), self.test(tree.expression)))
            case exp.Or():
                return Some((self.test(tree.this), self.test(tree.expression)))
            case exp.Not():
                return Opposite(self.test(tree.this))
            case exp.Between() if not tree.args.get("symmetric"):
                low, high = (
                    self._compared(operator, tree.this, tree.args[bound])
                    for operator, bound in ((">=", "low"), ("<=", "high"))
                )
                return Every((low, high))
            case exp.Is() if isinstance(tree.expression, exp.Null):
                return Missing(self._term(tree.this))
        operator = _OPERATORS.get(type(tree))
        if operator is None:
            raise _NotComparable
        return self._compared(operator, tree.this, tree.expression)

    def _compared(self, operator: str, left: exp.Expr, right: exp.Expr) -> Compare:
        terms = self._term(left), self._term(right)
        if not _are_comparable(terms[0].kind, terms[1].kind):
            raise _NotComparable
        return Compare(operator, *terms)

    def _term(self, tree: exp.Expr) -> Term:
        match tree:
            case exp.Paren():
                return self._term(tree.this)
            case exp.Column():
                if tree.name in self._fields:
                    return self._fields[tree.name]
            case exp.Literal():
                return _constant(tree, "")
            case exp.Neg() if isinstance(tree.this, exp.Literal):
                return _constant(tree.this, "-")
            case exp.Interval():
                return _interval(tree)
            case exp.Add() | exp.Sub():
                left, right = self._term(tree.this), self._term(tree.expression)
                sign = 1 if isinstance(tree, exp.Add) else -1
                return Sum(left, right, sign, _kind_of_sum(left.kind, right.kind, sign))
            case exp.Abs():
                of = self._term(tree.this)
                if of.kind in WHOLE or of.kind == "double":
                    return Magnitude(of, of.kind)
        raise _NotComparable


def _constant(literal: exp.Literal, sign: str) -> Constant:
    text = f"{sign}{literal.this}"
    if literal.is_string:
        raise _NotComparable
    if str(literal.this).isdigit():
        whole = int(text)
        if not -(2**63) <= whole < 2**63:
            raise _NotComparable
        return Constant(whole, "int" if -(2**31) <= whole < 2**31 else "bigint")
    try:
        return Constant(float(text), "double" if "e" in text.casefold() else _DECIMAL)
    except ValueError:  # with a suffix that says its type
        raise _NotComparable from None


def _interval(tree: exp.Interval) -> Constant:
    unit = str(tree.text("unit")).casefold().removesuffix("s")
    amount = str(tree.this.this) if isinstance(tree.this, exp.Literal) else ""
    if unit not in UNIT_US or not amount.removeprefix("-").isdigit() or not amount.isascii():
        raise _NotComparable
    length_us = int(amount) * UNIT_US[unit]
    if abs(length_us) >= _DAY_US:
        raise _NotComparable
    return Constant(length_us, _INTERVAL)


def _kind_of_sum(left: str, right: str, sign: int) -> str:
    if left in WHOLE and right in WHOLE:
        return max(left, right, key=WHOLE.index)
    if "double" in (left, right) and {left, right} <= {*WHOLE, "double", "float", _DECIMAL}:
        return "double"
    if left in _TIMES and right == _INTERVAL:
        return left
    if left == _INTERVAL and right in _TIMES and sign > 0:
        return right
    raise _NotComparable


def _are_comparable(left: str, right: str) -> bool:
    if left in WHOLE and right in WHOLE:
        return True
    if "double" in (left, right):
        return {left, right} <= {*WHOLE, "double", "float", _DECIMAL}
    instants = ("timestamp", EVENT_TIME_KIND)
    return (left in instants and right in instants) or (left == right and left in _LIKE_ITSELF)


def _can_fail(node: Test | Term) -> bool:
    match node:
        case Compare(_, left, right):
            return _can_fail(left) or _can_fail(right)
        case Every(tests) | Some(tests):
            return any(map(_can_fail, tests))
        case Missing(of) | Opposite(of):
            return _can_fail(of)
        case Sum(left, right, _, kind):
            return kind not in ("double", EVENT_TIME_KIND) or _can_fail(left) or _can_fail(right)
        case Magnitude(of, kind):
            return kind != "double" or _can_fail(of)
        case Field() | Constant():
            return False


def column_types(
    query: JoinQuery, types: Mapping[Column, str], event_times: Mapping[str, str]
) -> tuple[tuple[Column, str], ...]:
    """The types of the columns that the residual predicates of a query read; `event_times` are columns by stream."""
    times = {Column(source.alias, event_times.get(source.stream, "")) for source in query.sources}
    asked = sorted({column for residual in query.residuals for column in residual.columns} & types.keys())
    is_time = {column for column in times if types.get(column) == "timestamp"}
    return tuple((column, EVENT_TIME_KIND if column in is_time else types[column]) for column in asked)
