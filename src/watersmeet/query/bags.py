"""Tables as multisets of rows, to compare answers whatever their order."""

from collections import Counter
from typing import Any, TypeAlias

import pyarrow as pa

Bag: TypeAlias = Counter[tuple[Any, ...]]


def bag_of(table: pa.Table) -> Bag:
    """The rows of a table with their counts.

    >>> bag_of(pa.table({"a": [1, 2, 1]}))
    Counter({(1,): 2, (2,): 1})
    >>> bag_of(pa.table({"a": [[1, 2], None]}))
    Counter({((1, 2),): 1, (None,): 1})
    """
    return Counter(zip(*(_hashable(table.column(name)) for name in table.column_names), strict=True))


def nearly_bag_of(table: pa.Table) -> Bag:
    """The same with doubles to twelve digits: sums of doubles depend on their order.

    >>> nearly_bag_of(pa.table({"a": [0.1 + 0.2]})) == nearly_bag_of(pa.table({"a": [0.3]}))
    True
    """
    columns = []
    for name in table.column_names:
        values = _hashable(table.column(name))
        if pa.types.is_floating(table.schema.field(name).type):
            values = [None if value is None else f"{value + 0.0:.11e}" for value in values]
        columns.append(values)
    return Counter(zip(*columns, strict=True))


def _hashable(column: pa.ChunkedArray) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return list(map(_frozen, values)) if pa.types.is_nested(column.type) else values


def _frozen(value: Any) -> Any:
    """Lists and structs as tuples."""
    if isinstance(value, dict):
        return tuple((name, _frozen(each)) for name, each in value.items())
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
