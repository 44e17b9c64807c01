"""What a simulation comes to: answers, figures of the network as a whole, and of each node."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from watersmeet.errors import RunError
from watersmeet.program.rjoin.arrays import Longs
from watersmeet.sim.rjoin.answers import ReceivedAnswers


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
class DynamicFigures:
    """Figures of dynamic networks only: nodes that come and go, bytes, lost messages, and so missing answers.

    `expected`, `right` and `surplus` are answers of the queries that were checked: those of the oracle, those of them
    that came, and whatever else came.
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
        """The share of the oracle's answers that came."""
        return self.right / self.expected if self.expected else 1.0


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a simulation; a function of the scenario alone."""

    nodes: int
    overlay: str
    latency: str
    strategy: str
    seed: int
    tuples: int
    queries: int
    answers: int
    answers_by_query: Mapping[str, int]  # of queries with names
    messages: Mapping[str, int]  # RJoin's by purpose: tuples, queries, rates (RIC), answers; on dynamic networks more
    load: Spread  # query processing load: rewritten queries and tuples received
    storage: Spread  # storage load: rewritten queries and tuples kept at the value level
    held: int  # tuples kept at the attribute level, which the paper does not count
    virtual_us: int
    dynamic: DynamicFigures | None = None  # of a dynamic network

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
        figures = asdict(self)
        if self.dynamic is None:
            del figures["dynamic"]
        else:
            figures["dynamic"]["bytes"]["total"] = self.dynamic.bytes_total
            figures["dynamic"]["recall"] = self.dynamic.recall
        figures["answers_per_query"] = self.answers / max(1, self.queries)
        figures["messages"] = {**self.messages, "total": self.messages_total}
        figures["messages_per_tuple_and_node"] = self.messages_per_tuple_and_node
        return figures


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """What a simulation leaves: its summary, the load of every node, and answers."""

    summary: Summary
    load: Longs  # of each node
    storage: Longs
    answers: ReceivedAnswers | None  # None where they were only counted
    numbers: Mapping[str, int]  # of queries with names
    received_bytes: Longs | None = None  # by each node of a dynamic network, what its overlay needs included

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


def ranked_loads(outcome: SimulationOutcome, points: int = 120) -> list[dict[str, Any]]:
    """Loads at some ranks, evenly on a logarithmic axis, the highest first: rows for a plot."""
    ranks = np.unique(np.geomspace(1, len(outcome.load), points).astype(np.int64))
    load, storage = (np.sort(counts)[::-1] for counts in (outcome.load, outcome.storage))
    return [
        {"rank": int(rank), "load": float(load[rank - 1]) or None, "storage": float(storage[rank - 1]) or None}
        for rank in ranks
    ]
