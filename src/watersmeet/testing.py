"""A test kit: compare bags of rows, and cut tables into micro-batches."""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pyarrow as pa


def bag(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """The rows of a table with their counts; NaN equals NaN."""
    columns = [table.column(name).to_pylist() for name in table.column_names]
    return Counter(tuple(map(_comparable, row)) for row in zip(*columns, strict=True))


def _comparable(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    return tuple(sorted(value.items())) if isinstance(value, dict) else value


def split(table: pa.Table, cuts: Iterable[int]) -> list[pa.Table]:
    """A table in consecutive pieces."""
    edges = [0, *sorted(cuts), table.num_rows]
    return [table.slice(low, high - low) for low, high in pairwise(edges)]
