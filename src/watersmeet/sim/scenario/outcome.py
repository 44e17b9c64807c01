"""What a simulation comes to: answers, figures of the network as a whole, and of each node."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from watersmeet.errors import RunError
from watersmeet.program.rjoin.compiled import Ints, Longs
from watersmeet.program.rjoin.shard import table_of
from watersmeet.program.rjoin.tables import Known
from watersmeet.query.model import JoinQuery
from watersmeet.sim.rjoin.expressions import project
from watersmeet.sim.sites.rows import query_rows


@dataclass(frozen=True, slots=True)
class Spread:
    """How something is spread over the nodes."""

    total: int
    highest: int
    mean: float
    nodes: int  # that have any

    @classmethod
    def of(cls, counts: Longs) -> "Spread":
        """The spread of a count for each node."""
        total = int(counts.sum())
        return cls(total, int(counts.max()), total / len(counts), int(np.count_nonzero(counts)))


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """What only a live network has: nodes that come and go, bytes, mail that is lost, and so answers that do not come.

    `expected`, `right` and `surplus` are answers of the queries that were checked: those of the law, those of them that
    came, and whatever else came.
    """

    bytes: Mapping[str, int]  # RJoin's, by purpose
    upkeep_messages: int  # the overlay's own
    upkeep_bytes: int
    lost: int  # transmissions that did not arrive, by loss or because nobody was there; most were made again
    joins: int
    failures: int
    leaves: int
    checked: int  # queries
    expected: int
    right: int
    surplus: int

    @property
    def bytes_total(self) -> int:
        """All bytes of RJoin."""
        return sum(self.bytes.values())

    @property
    def recall(self) -> float:
        """The share of the law's answers that came."""
        return self.right / self.expected if self.expected else 1.0


@dataclass(frozen=True, slots=True)
class Summary:
    """What a simulation came to; a function of the scenario alone."""

    nodes: int
    overlay: str
    latency: str
    strategy: str
    seed: int
    tuples: int
    queries: int
    answers: int
    answers_by_query: Mapping[str, int]  # of queries with names
    messages: Mapping[str, int]  # RJoin's by purpose: tuples, queries, rates (RIC), answers; on live networks more
    load: Spread  # query processing load: rewritten queries and tuples received
    storage: Spread  # storage load: rewritten queries and tuples kept at the value level
    held: int  # tuples kept at the attribute level, which the paper does not count
    virtual_us: int
    live: LiveFigures | None = None  # of a live network

    @property
    def messages_total(self) -> int:
        """All messages of RJoin, each hop being one."""
        return sum(self.messages.values())

    @property
    def messages_per_tuple_and_node(self) -> float:
        """The paper's traffic: what one node sends for one tuple."""
        return self.messages_total / (max(1, self.tuples) * self.nodes)

    @property
    def data(self) -> dict[str, Any]:
        """All figures as plain values."""
        told = asdict(self)
        if self.live is None:
            del told["live"]
        else:
            told["live"]["bytes"]["total"] = self.live.bytes_total
            told["live"]["recall"] = self.live.recall
        told["answers_per_query"] = self.answers / max(1, self.queries)
        told["messages"] = {**self.messages, "total": self.messages_total}
        told["messages_per_tuple_and_node"] = self.messages_per_tuple_and_node
        return told


class Answers:
    """What has come to those who asked; DISTINCT is seen to here."""

    def __init__(self, known: Known, *, keeps: Callable[[int], bool] = lambda query: True) -> None:
        """`keeps` says of which queries the answers themselves are wanted, and not only how many there are."""
        self._known, self._keeps = known, keeps
        self._rows: dict[int, list[Ints]] = {}
        self._counts: dict[int, int] = {}
        self._distinct: dict[int, pa.Table] = {}

    def take(self, query: int, rows: Ints) -> None:
        """Complete rows have come."""
        if self._keeps(query):
            self._rows.setdefault(query, []).append(rows)
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

    def _projected(self, query: int, rows: Sequence[Ints]) -> pa.Table:
        asked = self._known.queries[query]
        if rows:
            return project(asked, table_of(self._known, np.concatenate(rows), query))
        return project(asked, no_rows(asked, self._known.catalog.schemas))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A simulation at its end."""

    summary: Summary
    load: Longs  # of each node
    storage: Longs
    answers: Answers | None  # None where they were only counted
    numbers: Mapping[str, int]  # of queries with names

    def table(self, name: str) -> pa.Table:
        """The answers of a query."""
        assert self.answers is not None, "answers of generated queries are counted, not kept"
        return self.answers.table(self.numbers[name])

    def write(self, name: str, path: Path) -> None:
        """Write the answers of a query to a Parquet file, or to one in a directory."""
        file = path if path.suffix == ".parquet" else path / "answers.parquet"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(self.table(name), file)
        except OSError as error:
            raise RunError(f"answers of query {name!r} cannot be written to {file}: {error.strerror}") from None


def ranked_loads(outcome: Outcome, points: int = 120) -> list[dict[str, Any]]:
    """Loads at some ranks, evenly on a logarithmic axis, the highest first: rows for a plot."""
    ranks = np.unique(np.geomspace(1, len(outcome.load), points).astype(np.int64))
    load, storage = (np.sort(counts)[::-1] for counts in (outcome.load, outcome.storage))
    return [
        {"rank": int(rank), "load": float(load[rank - 1]) or None, "storage": float(storage[rank - 1]) or None}
        for rank in ranks
    ]


def no_rows(query: JoinQuery, schemas: Mapping[str, pa.Schema]) -> pa.Table:
    """A table without rows and with the flat columns of a query."""
    fields = [(f"{source.alias}.{one.name}", one.type) for source in query.sources for one in schemas[source.stream]]
    return pa.schema(fields).empty_table()
