"""What a simulation of PIER comes to: answers with their delays, and what the network has carried."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from watersmeet.errors import RunError
from watersmeet.program.rjoin.arrays import Longs
from watersmeet.sim.scenario.sites_outcome import AnswerDelays, AnswersChecked


@dataclass(frozen=True, slots=True)
class ErrorFigures:
    """What nodes have reported of malformed tuples, for operators that were asked to."""

    operator: str
    reason: str
    tuples: int
    nodes: int


@dataclass(frozen=True, slots=True)
class PierQueryFigures:
    """What one query has got."""

    home: int
    answers: int
    repeated: int  # answers that came again and were dropped by the node that asked
    first_us: int | None  # after the query was asked; None without answers
    last_us: int | None
    delays: AnswerDelays | None  # from the last tuple of an answer, or the end of its window; None for DISTINCT and UFL
    checked: AnswersChecked | None  # None if nobody asked, or the query is UFL
    errors: tuple[ErrorFigures, ...] = ()  # the most frequent first
    taps: Mapping[str, int] = field(default_factory=dict)  # copies of tuples that have come, by operator

    @property
    def is_right(self) -> bool:
        return self.checked is None or self.checked.is_right


@dataclass(frozen=True, slots=True)
class SharedFigures:
    """Queries that were answered together."""

    queries: tuple[str, ...]
    fragments: int | None  # of F as their filters allow; None where only the data say
    entries: int | None  # of A'
    gain: float | None

    def __str__(self) -> str:
        if self.entries is None or self.gain is None:
            return "each node decomposes the fragments of its own rows, since the filters do not say which there are"
        return (
            f"{self.entries:,} aggregates for {len(self.queries):,} queries (gain {self.gain:.2f}), from "
            f"{self.fragments:,} fragments"
        )


@dataclass(frozen=True, slots=True)
class PierSummary:
    """The figures of a simulation; a function of the scenario alone."""

    nodes: int
    overlay: str
    latency: str
    method: str
    transport: str
    mode: str
    seed: int
    tuples: int
    queries: Mapping[str, PierQueryFigures]
    messages: int  # of all kinds, while queries ran
    bytes: int
    most_inbound_bytes: int  # of one node
    mean_inbound_bytes: float
    lost: int
    retransmitted: int  # messages taken for lost too early; only where timeouts are measured
    malformed: int  # tuples that an operator could not process, lines of files that are none
    withheld: int  # messages to whoever asked, beyond the limit of an op-graph
    late: int  # tuples and records of windows that had been answered
    joins: int
    failures: int
    leaves: int
    virtual_us: int
    shared: tuple[SharedFigures, ...] = ()

    @property
    def answers(self) -> int:
        """Answers of all queries."""
        return sum(query.answers for query in self.queries.values())

    @property
    def is_right(self) -> bool:
        """Whether the oracle agrees with all queries that were checked."""
        return all(query.is_right for query in self.queries.values())

    @property
    def data(self) -> dict[str, Any]:
        """All figures as plain values."""
        return {"system": "pier", **asdict(self), "answers": self.answers, "is_right": self.is_right}


@dataclass(frozen=True, slots=True)
class PierOutcome:
    """The figures, and the answers of each query."""

    summary: PierSummary
    answers: Mapping[str, pa.Table]
    delays_us: Mapping[str, Longs]  # of answers, in the order in which they came
    taps: Mapping[tuple[str, str], pa.Table] = field(default_factory=dict)  # by query and operator

    def write(self, name: str, path: Path) -> None:
        """Write the answers of a query to a Parquet file, or to one in a directory."""
        _write(
            self.answers[name], path if path.suffix == ".parquet" else path / "answers.parquet", f"answers of {name!r}"
        )

    def write_taps(self, directory: Path) -> list[Path]:
        """Write what has been tapped, a file for each operator of a query."""
        files = []
        for (name, operator), table in self.taps.items():
            files.append(directory / f"{name}.{operator.replace('/', '_')}.tap.parquet")
            _write(table, files[-1], f"what was tapped of {name!r}")
        return files


def _write(table: pa.Table, file: Path, what: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, file)
    except OSError as error:
        raise RunError(f"{what} cannot be written to {file}: {error.strerror}") from None
