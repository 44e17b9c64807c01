"""Tables as multisets of rows, to compare answers whatever their order."""

from collections import Counter
from typing import Any, TypeAlias

import pyarrow as pa

Bag: TypeAlias = Counter[tuple[Any, ...]]


def bag_of(table: pa.Table) -> Bag:
    """The rows of a table with their counts.

    >>> bag_of(pa.table({"a": [1, 2, 1]}))
    Counter({(1,): 2, (2,): 1})
    """
    return Counter(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True))
