"""Random fragment matrices for the tests of sharing, and answers from the definition."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from watersmeet.sharing.bits import Bools


@st.composite
def matrices(draw: st.DrawFn, most_rows: int = 14, most_columns: int = 12) -> Bools:
    """Any F: rows may be empty or equal, columns too, and many are unions or sums of others."""
    columns = draw(st.integers(1, most_columns))
    rows = draw(st.lists(st.integers(0, 2**columns - 1), max_size=most_rows))
    found = np.array([[number >> place & 1 for place in range(columns)] for number in rows], np.bool_)
    return found.reshape(len(rows), columns)


def sums_of_queries(fragments: Bools, sums: Sequence[int]) -> list[int]:
    """The sum of each query, fragment by fragment."""
    return [
        sum(one for row, one in zip(fragments, sums, strict=True) if row[query]) for query in range(fragments.shape[1])
    ]
