"""The aggregate functions: which columns their partial state has, how those are combined, and what they come to.

A row is lifted to the state of a group of its own, and states of one group are combined by the rule of each column, so
that add is lift and combine. The rules are associative and commutative:

    SUM     whole numbers; those that may grow beyond 64 bits travel as two columns of 32 bits and what is above
    DOUBLE  a sum of doubles and what it has lost, in two columns: exact but for about 2 ** -104 of the largest sum
    DECIMAL a sum of decimals, exact
    MIN, MAX
    UNION   a list of distinct values
    COUNTS  a list of distinct values, with how often each came in a second column
    GREATEST, LEAST  lists of the k greatest or least values
    ALL_BITS, ANY_BITS  whole numbers, bit by bit
    BOTTOM, SAMPLE, HEAVIEST  sketches (see sketches.py), the last two with the weights of values in a second column

States are bounded but for those of DISTINCT values and percentile_disc, which are holistic: they have all distinct
values. A filter has a number for each place that is not 0, a histogram one for each bucket that is not empty.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Context, Decimal
from enum import StrEnum
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from watersmeet.errors import TypeMismatch
from watersmeet.program.aggregate import combining, double_double, filters, sketches
from watersmeet.program.aggregate.kernels import F64, I64, double_double_sums, whole_sums

State = Mapping[str, pa.Array]

_HALF = 32  # bits
_MASK = (1 << _HALF) - 1
_SAFE = 1 << 20  # upper halves below this make sums that a double holds exactly
_MOST_DIGITS = 38
_WIDE = 76
_SPARE_DIGITS = 38  # that a sum of decimals may have above those of its values


class Rule(StrEnum):
    """How the states of one group become one, column by column."""

    SUM = "sum"
    DOUBLE = "double"  # with the column of the same name and LOST
    DECIMAL = "decimal"
    MIN = "min"
    MAX = "max"
    UNION = "union"
    BOTTOM = "bottom"
    SAMPLE = "sample"  # with the column of the same name and LOST
    HEAVIEST = "heaviest"  # the same
    COUNTS = "counts"  # the same
    GREATEST = "greatest"
    LEAST = "least"
    ALL_BITS = "all_bits"
    ANY_BITS = "any_bits"


LOST = "~"  # after the name of a column: what a sum of doubles has lost, or the weights of values
_IN_PAIRS = (Rule.DOUBLE, Rule.SAMPLE, Rule.HEAVIEST, Rule.COUNTS)
_FILTERS = ("bloom_filter", "spectral_bloom_filter")
_LISTS = ("max_k", "min_k", "percentile_disc", *_FILTERS)
_COMPARING = ("count", "min", "max", "approx_count_distinct", "approx_percentile", "approx_top_k", *_LISTS)

SMALLEST = 1_024  # hashes that approx_count_distinct keeps: a standard error of 3 %
TOP, TRACKED = 5.0, 10_000.0  # values that approx_top_k has, and keeps


class BeyondRange(ArithmeticError):
    """A sum that its type cannot hold."""


@dataclass(frozen=True, slots=True)
class Function:
    """An aggregate of values of a type; without values (`count(*)`) it counts rows."""

    name: str
    kind: pa.DataType | None = None
    distinct: bool = False
    parameters: tuple[float, ...] = ()  # what follows the values in a call

    def __post_init__(self) -> None:
        kind = self.kind
        if self.name.startswith("bool_"):
            if kind != pa.bool_():
                raise TypeMismatch(f"{self.name} needs conditions, not {kind}; write a comparison")
            return
        if self.name.startswith("bit_") and (kind is None or not kinds.is_integer(kind)):
            raise TypeMismatch(f"{self.name} needs whole numbers, not {kind}; cast its argument")
        if self.name not in _COMPARING and not (kind is not None and _is_number(kind)):
            raise TypeMismatch(f"{self.name} needs numbers, not {kind}; cast its argument")
        if kind is not None and (kinds.is_nested(kind) or kinds.is_interval(kind)) and self.name != "count":
            raise TypeMismatch(f"{self.name} cannot compare values of type {kind}; take them apart")
        if self.distinct and kind is not None and kinds.is_nested(kind):
            raise TypeMismatch(f"{self.name}(DISTINCT) cannot compare values of type {kind}; take them apart")

    @staticmethod
    def of_state(
        name: str, types: Mapping[str, pa.DataType], parameters: tuple[float, ...] = (), *, distinct: bool = False
    ) -> "Function":
        """The function whose state has such columns."""
        if distinct:
            return Function(name, types["values"].value_type, distinct)
        if name.startswith("approx_") or name in ("max_k", "min_k"):
            return Function(name, types["values"].value_type, parameters=parameters)
        if name == "count":
            return Function(name)
        if name in ("min", "max", "bool_and", "bool_or"):
            return Function(name, types["value"])
        if "total" in types:
            kind = types["total"]
            return Function(name, pa.decimal128(kind.precision - _SPARE_DIGITS, kind.scale))
        return Function(name, pa.int64() if "high" in types else pa.float64())

    @property
    def rules(self) -> dict[str, Rule]:
        """The columns of the state; a column of doubles stands for two."""
        if self.distinct:
            return {"values": Rule.UNION}
        match self.name:
            case "count":
                return {"n": Rule.SUM}
            case "min" | "max":
                return {"value": Rule(self.name)}
            case "bool_and" | "bool_or":
                return {"value": Rule.MIN if self.name == "bool_and" else Rule.MAX}
            case "bit_and" | "bit_or":
                return {"n": Rule.SUM, "bits": Rule.ALL_BITS if self.name == "bit_and" else Rule.ANY_BITS}
            case "max_k" | "min_k":
                return {"values": Rule.GREATEST if self.name == "max_k" else Rule.LEAST}
            case "bloom_filter":
                return {"values": Rule.UNION}
            case "spectral_bloom_filter" | "histogram" | "percentile_disc":
                return {"values": Rule.COUNTS}
            case "approx_count_distinct":
                return {"values": Rule.BOTTOM}
            case "approx_percentile":
                return {"values": Rule.SAMPLE}
            case "approx_top_k":
                return {"values": Rule.HEAVIEST}
            case "sum" | "avg":
                return {"n": Rule.SUM, **self._sum_rules}
            case _:
                return {"n": Rule.SUM, "x": Rule.DOUBLE, "xx": Rule.DOUBLE}

    @property
    def _sum_rules(self) -> dict[str, Rule]:
        match _family(self.kind):
            case "whole":
                return {"high": Rule.SUM, "low": Rule.SUM}
            case "decimal":
                return {"total": Rule.DECIMAL}
            case _:
                return {"x": Rule.DOUBLE}

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the state's columns."""
        return tuple(
            part
            for name, rule in self.rules.items()
            for part in ((name, name + LOST) if rule in _IN_PAIRS else (name,))
        )

    def column_type(self, name: str) -> pa.DataType:
        """The type of a column of the state."""
        if name.endswith(LOST):
            is_double = self.rules[name.removesuffix(LOST)] is Rule.DOUBLE
            return pa.float64() if is_double else pa.list_(pa.int64())
        match self.rules[name]:
            case Rule.SUM | Rule.ALL_BITS | Rule.ANY_BITS:
                return pa.int64()
            case Rule.DOUBLE:
                return pa.float64()
            case Rule.DECIMAL:
                assert self.kind is not None
                return pa.decimal256(self.kind.precision + _SPARE_DIGITS, self.kind.scale)
            case Rule.MIN | Rule.MAX:
                return self.kind
            case Rule.BOTTOM:
                return pa.list_(pa.int64())
            case Rule.UNION | Rule.COUNTS if self.name in (*_FILTERS, "histogram"):
                return pa.list_(pa.int64())
            case Rule.UNION | Rule.COUNTS | Rule.SAMPLE | Rule.HEAVIEST | Rule.GREATEST | Rule.LEAST:
                return pa.list_(self.kind)
            case _ as never:
                assert_never(never)

    @property
    def most(self) -> int:
        """How many values a sketch keeps."""
        match self.name:
            case "approx_count_distinct":
                return min(int(self.parameters[0] ** -2) + 2, 1 << 16) if self.parameters else SMALLEST
            case "approx_percentile" | "max_k" | "min_k":
                return int(self.parameters[0])
            case _:
                return int(self.parameters[1])

    @property
    def places(self) -> int | None:
        """How many places a filter or histogram has; None of other functions."""
        if self.name in _FILTERS:
            return int(self.parameters[0])
        return int(self.parameters[2]) + 2 if self.name == "histogram" else None

    def lift(self, values: pa.Array | None, count: int) -> dict[str, pa.Array]:
        """Each row as the state of a group of its own."""
        if values is None:
            return {"n": pa.array(np.ones(count, np.int64))}
        known = pc.is_valid(values)
        n = known.cast(pa.int64())
        if self.distinct:
            return {"values": _one_each(n, _same_zero(values).drop_null())}
        match self.name:
            case "approx_count_distinct":
                return {"values": _one_each(n, pa.array(sketches.hashes_of(values.drop_null())))}
            case "bool_and" | "bool_or":
                return {"value": values}
            case "bit_and" | "bit_or":
                neutral = -1 if self.name == "bit_and" else 0
                return {"n": n, "bits": values.cast(pa.int64()).fill_null(neutral)}
            case "max_k" | "min_k":
                return {"values": _one_each(n, values.drop_null())}
            case "bloom_filter" | "spectral_bloom_filter":
                bits, hashes = (int(each) for each in self.parameters)
                places = filters.positions(values.drop_null(), bits, hashes)
                repeated = pc.multiply(n, hashes)
                is_plain = self.name == "bloom_filter"
                return {"values": _one_each(repeated, places)} if is_plain else _with_weights(repeated, places)
            case "histogram":
                return _with_weights(n, filters.buckets(values.drop_null(), *self.parameters))
            case "approx_percentile" | "percentile_disc":
                return _with_weights(n, values.drop_null())
            case "approx_top_k":
                return _with_weights(pa.array(np.ones(count, np.int64)), _same_zero(values))
            case "count":
                return {"n": n}
            case "min" | "max":
                return {"value": values}
            case "sum" | "avg" if _family(self.kind) == "whole":
                whole = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
                return {"n": n, "high": pa.array(whole >> _HALF), "low": pa.array(whole & _MASK)}
            case "sum" | "avg" if _family(self.kind) == "decimal":
                return {"n": n, "total": values.cast(self.column_type("total"))}
        x = values.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy(zero_copy_only=False)
        doubles = {"x": x, f"x{LOST}": np.zeros(count)}
        if self.name not in ("sum", "avg"):
            square, lost = double_double.squared(x)
            doubles |= {"xx": square, f"xx{LOST}": lost}
        return {"n": n, **{name: pa.array(column) for name, column in doubles.items()}}

    def combine(self, state: State, groups: I64, count: int) -> dict[str, pa.Array]:
        """The states of groups, of which each state has the number of its own."""
        made: dict[str, pa.Array] = {}
        for name, rule in self.rules.items():
            column = state[name]
            match rule:
                case Rule.SUM:
                    made[name] = pa.array(whole_sums(groups, combining.whole(column), count))
                case Rule.DOUBLE:
                    lost = np.ascontiguousarray(state[name + LOST].to_numpy(zero_copy_only=False))
                    values = np.ascontiguousarray(column.to_numpy(zero_copy_only=False))
                    made[name], made[name + LOST] = map(pa.array, double_double_sums(groups, values, lost, count))
                case Rule.UNION:
                    made[name] = combining.united(column, groups, count)
                case Rule.DECIMAL:
                    made[name] = combining.by_group(groups, column, "sum", count).cast(column.type)
                case Rule.BOTTOM:
                    made[name] = sketches.smallest(column, groups, count, self.most)
                case Rule.COUNTS:
                    made[name], made[name + LOST] = sketches.counted(column, state[name + LOST], groups, count)
                case Rule.GREATEST | Rule.LEAST:
                    is_greatest = rule is Rule.GREATEST
                    made[name] = sketches.extremes(column, groups, count, self.most, greatest=is_greatest)
                case Rule.ALL_BITS | Rule.ANY_BITS:
                    made[name] = combining.bits(column, groups, count, are_all=rule is Rule.ALL_BITS)
                case Rule.SAMPLE | Rule.HEAVIEST:
                    merge = sketches.sample if rule is Rule.SAMPLE else sketches.heaviest
                    made[name], made[name + LOST] = merge(column, state[name + LOST], groups, count, self.most)
                case Rule.MIN | Rule.MAX:
                    made[name] = combining.extreme(column, groups, count, is_greatest=rule is Rule.MAX)
        if "low" in made:  # the lower halves of sums stay within their bits
            high, low = _carried(combining.whole(made["high"]), combining.whole(made["low"]))
            made["high"], made["low"] = pa.array(high), pa.array(low)
        return made

    def result(self, state: State) -> pa.Array:
        """The value of each group; NULL where SQL has none."""
        if self.distinct:
            return self._of_distinct(state["values"])
        match self.name:
            case "count":
                return state["n"]
            case "min" | "max" | "bool_and" | "bool_or":
                return state["value"]
            case "bit_and" | "bit_or":
                return pc.if_else(pc.greater(state["n"], 0), state["bits"], pa.scalar(None, pa.int64()))
            case "max_k" | "min_k":
                return state["values"]
            case "bloom_filter":
                return filters.bitmaps(state["values"], int(self.parameters[0]))
            case "spectral_bloom_filter":
                return filters.counters(state["values"], state[f"values{LOST}"], int(self.parameters[0]))
            case "histogram":
                return filters.counters(state["values"], state[f"values{LOST}"], int(self.parameters[2]) + 2)
            case "percentile_disc":
                return sketches.percentiles(state["values"], state[f"values{LOST}"], self.parameters)[0]
            case "approx_count_distinct":
                return sketches.distinct_count(state["values"], self.most)
            case "approx_percentile":
                return self._percentiles(state)
            case "approx_top_k":
                return sketches.top(state["values"], state[f"values{LOST}"], int(self.parameters[0]))
        n = _numpy(state["n"])
        match self.name, _family(self.kind):
            case (("sum" | "avg"), "whole"):
                high, low = _carried(_numpy(state["high"]), _numpy(state["low"]))
                return _whole_sum(n, high, low) if self.name == "sum" else _whole_mean(n, high, low)
            case (("sum" | "avg"), "decimal"):
                return self._decimal(state["total"].to_pylist(), n.tolist())
            case "sum", _:
                return _where(n > 0, _double(state, "x"))
            case "avg", _:
                with np.errstate(invalid="ignore", divide="ignore"):
                    return _where(n > 0, _double(state, "x") / n)
        return self._spread(n, state)

    def _of_distinct(self, lists: pa.Array) -> pa.Array:
        """What lists of distinct values come to, each value counted once."""
        sizes, count = pc.list_value_length(lists), len(lists)
        if self.name == "count":
            return sizes.cast(pa.int64())
        plain, numbers = replace(self, distinct=False), np.arange(count)
        values = pa.concat_arrays([lists.flatten(), pa.nulls(count, self.kind)])  # no group is without a state
        groups = np.concatenate([np.repeat(numbers, sizes.to_numpy(zero_copy_only=False)), numbers])
        return plain.result(plain.combine(plain.lift(values, len(values)), groups, count))

    def _percentiles(self, state: State) -> pa.Array:
        """One value, or an array of them where several shares are asked for."""
        _, is_array, *shares = self.parameters
        found = sketches.percentiles(state["values"], state[f"values{LOST}"], tuple(shares))
        if not is_array:
            return found[0]
        offsets = np.arange(len(found[0]) + 1, dtype=np.int32) * len(found)
        places = np.arange(len(found) * len(found[0])).reshape(len(found), -1).T.ravel()
        values = pa.concat_arrays(found).take(pa.array(places))
        none = pc.equal(pc.list_value_length(state["values"]), 0)
        return pa.ListArray.from_arrays(pa.array(offsets), values, mask=none)

    def _decimal(self, totals: list[Decimal | None], counts: list[int]) -> pa.Array:
        assert self.kind is not None
        precision, scale = self.kind.precision, self.kind.scale
        if self.name == "sum":
            precision = min(precision + 10, _MOST_DIGITS)
        else:
            precision, scale = _bounded(precision + 4, scale + 4)
        unit, context = Decimal(1).scaleb(-scale), Context(prec=_WIDE, rounding=ROUND_HALF_UP)
        values: list[Decimal | None] = []
        for total, count in zip(totals, counts, strict=True):
            if total is None or not count:
                values.append(None)
                continue
            value = total if self.name == "sum" else context.divide(total, Decimal(count))
            values.append(value.quantize(unit, context=context))
        if any(value is not None and len(value.as_tuple().digits) > precision for value in values):
            raise BeyondRange(f"decimal({precision},{scale})")
        return pa.array(values, pa.decimal128(precision, scale))

    def _spread(self, n: Any, state: State) -> pa.Array:
        """Variance or standard deviation of each group, from the sums of values and squares."""
        sample = self.name.endswith("_samp")
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            high, low = _numpy(state["x"]), _numpy(state[f"x{LOST}"])
            mean, rest = double_double.divided(high, low, n)
            squared, lost = double_double.product(high, low, mean, rest)
            centred = (_numpy(state["xx"]) - squared) + (_numpy(state[f"xx{LOST}"]) - lost)
            centred = np.where(np.isfinite(high), np.maximum(centred, 0.0), np.nan)
            value = centred / (n - 1 if sample else n)
        if self.name.startswith("stddev"):
            value = np.sqrt(value)
        return _where(n > (1 if sample else 0), value)


def _is_number(kind: pa.DataType) -> bool:
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind))


def _family(kind: pa.DataType | None) -> str:
    if kind is None or kinds.is_floating(kind):
        return "double"
    return "decimal" if kinds.is_decimal(kind) else "whole"


def _same_zero(values: pa.Array) -> pa.Array:
    """Values as groups compare them: -0.0 is 0.0."""
    return pc.add(values, pa.scalar(0.0, values.type)) if kinds.is_floating(values.type) else values


def _one_each(counts: pa.Array, values: pa.Array) -> pa.Array:
    """Lists of one value or none."""
    offsets = np.concatenate([[0], np.cumsum(counts.to_numpy())]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _with_weights(counts: pa.Array, values: pa.Array) -> dict[str, pa.Array]:
    return {
        "values": _one_each(counts, values),
        f"values{LOST}": _one_each(counts, pa.array(np.ones(len(values), int))),
    }


def _numpy(column: pa.Array) -> Any:
    return column.to_numpy(zero_copy_only=False)


def _where(known: Any, values: F64) -> pa.Array:
    return pa.array(values, pa.float64(), mask=~known)


def _double(state: State, name: str) -> F64:
    high, low = _numpy(state[name]), _numpy(state[name + LOST])
    found: F64 = np.where(np.isfinite(high), high + low, high)
    return found


def _carried(high: Any, low: Any) -> tuple[Any, Any]:
    """The halves of sums with the lower one within its bits."""
    return high + (low >> _HALF), low & _MASK


def _whole_sum(n: Any, high: Any, low: Any) -> pa.Array:
    limit = 1 << (63 - _HALF)
    if ((high >= limit) | (high < -limit)).any():
        raise BeyondRange("bigint")
    return pa.array((high << _HALF) | low, pa.int64(), mask=n == 0)


def _whole_mean(n: Any, high: Any, low: Any) -> pa.Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (high.astype(np.float64) * (1 << _HALF) + low) / n
    for i in np.flatnonzero(np.abs(high) >= _SAFE):
        mean[i] = ((int(high[i]) << _HALF) + int(low[i])) / int(n[i]) if n[i] else math.nan
    return _where(n > 0, mean)


def _bounded(precision: int, scale: int) -> tuple[int, int]:
    """A decimal type within Spark's limits."""
    return min(precision, _MOST_DIGITS), min(scale, _MOST_DIGITS)
