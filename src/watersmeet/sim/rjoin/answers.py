"""Answers of a simulated RJoin network: complete rows as they come, and the tables that they make."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from watersmeet.program.rjoin.arrays import Ints, Longs
from watersmeet.program.rjoin.tables import Known, table_of
from watersmeet.query.model import JoinQuery
from watersmeet.sim.rjoin.expressions import project
from watersmeet.sim.sites.rows import query_rows

ROW = "__row"  # a column of our own in tables that hold the user's: the number of a tuple


class ReceivedAnswers:
    """The answers that have come to those who asked; DISTINCT is applied here."""

    def __init__(
        self,
        known: Known,
        *,
        keeps: Callable[[int], bool] = lambda query: True,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        """`keeps` says of which queries the answers themselves are wanted; `clock` shows event time as it passes."""
        self._known, self._keeps, self._clock = known, keeps, clock
        self._came_us: dict[int, list[int]] = {}
        self._rows: dict[int, list[Ints]] = {}
        self._counts: dict[int, int] = {}
        self._distinct: dict[int, pa.Table] = {}

    def take(self, query: int, rows: Ints) -> None:
        """Add complete rows of a query."""
        if self._keeps(query):
            self._rows.setdefault(query, []).append(rows)
            self._came_us.setdefault(query, []).append(self._clock())
        self._counts[query] = self._counts.get(query, 0) + len(rows)

    def count(self, query: int) -> int:
        """How many answers a query has."""
        is_distinct = self._known.queries[query].distinct
        return self.table(query).num_rows if is_distinct else self._counts.get(query, 0)

    def table(self, query: int) -> pa.Table:
        """The answers of a query."""
        asked = self._known.queries[query]
        if not asked.distinct:
            return self._projected(query, self._rows.get(query, []))
        came = self._rows.pop(query, [])
        if came or query not in self._distinct:
            table = self._projected(query, came)
            if query in self._distinct:
                both = pa.concat_tables([self._distinct[query], table])
                table = query_rows("SELECT DISTINCT * FROM both_of_them", both_of_them=both)
            self._distinct[query] = table
        return self._distinct[query]

    def delays_us(self, query: int) -> Longs:
        """How long after the event time of its latest tuple each answer came; not for DISTINCT."""
        came = self._rows.get(query, [])
        if not came:
            return np.empty(0, np.int64)
        table, catalog = table_of(self._known, np.concatenate(came), query), self._known.catalog
        times = [
            table.column(f"{source.alias}.{catalog.event_times[source.stream]}").cast(pa.int64()).to_numpy()
            for source in self._known.queries[query].sources
        ]
        delays_us: Longs = np.repeat(self._came_us[query], [len(rows) for rows in came]) - np.maximum.reduce(times)
        return delays_us

    def _projected(self, query: int, rows: Sequence[Ints]) -> pa.Table:
        asked = self._known.queries[query]
        if rows:
            return project(asked, table_of(self._known, np.concatenate(rows), query))
        return project(asked, no_rows(asked, self._known.catalog.schemas))


def no_rows(query: JoinQuery, schemas: Mapping[str, pa.Schema]) -> pa.Table:
    """A table without rows and with the flat columns of a query."""
    fields = [
        (f"{source.alias}.{column.name}", column.type) for source in query.sources for column in schemas[source.stream]
    ]
    return pa.schema(fields).empty_table()
