"""Aggregates as partial state records (PIER, table 4.1): add a value, combine two states, tell the result.

A state is a plain value, so that it can travel as a column of a tuple.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from watersmeet.program.pier.bloom import merged
from watersmeet.program.pier.values import BINARY, DOUBLE, INTEGER, NULL, NUMBERS, TYPES, checked_integer

State = Any


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """An aggregate function; NULLs are left out before `add`, except by those that take no argument."""

    result_type: Callable[[str], str | None]  # of the type of its argument; None: it does not take it
    start: State
    add: Callable[[State, Any], State]
    combine: Callable[[State, State], State]
    result: Callable[[State], Any]
    takes_argument: bool = True


def _sum(state: State, value: Any) -> State:
    if state is None:
        return value
    return checked_integer(state + value) if isinstance(value, int) else state + value


def _or_none(choose: Callable[[Any, Any], Any]) -> Callable[[State, Any], State]:
    return lambda state, value: value if state is None else value if choose(value, state) else state


def _either(combine: Callable[[State, State], State]) -> Callable[[State, State], State]:
    return lambda first, second: second if first is None else first if second is None else combine(first, second)


def _same(state: State) -> Any:
    return state


def _mean(state: State) -> float | None:
    return state[0] / state[1] if state[1] else None


_smaller, _greater = _or_none(lambda a, b: a < b), _or_none(lambda a, b: a > b)

AGGREGATES: Mapping[str, AggregateFunction] = {
    "count": AggregateFunction(
        lambda kind: INTEGER, 0, lambda s, _: s + 1, lambda a, b: a + b, _same, takes_argument=False
    ),
    "sum": AggregateFunction(lambda kind: kind if kind in NUMBERS else None, None, _sum, _either(_sum), _same),
    "min": AggregateFunction(lambda kind: kind if kind in TYPES else None, None, _smaller, _either(_smaller), _same),
    "max": AggregateFunction(lambda kind: kind if kind in TYPES else None, None, _greater, _either(_greater), _same),
    "avg": AggregateFunction(
        lambda kind: DOUBLE if kind in NUMBERS or kind == NULL else None,
        (0.0, 0),
        lambda s, v: (s[0] + float(v), s[1] + 1),
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
        _mean,
    ),
    "bloomor": AggregateFunction(
        lambda kind: BINARY if kind == BINARY else None, None, _either(merged), _either(merged), _same
    ),
}
