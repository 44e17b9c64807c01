"""A query at its proxy: what has come back, when, and from whom."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from watersmeet.program.pier.tuples import Batch, Row
from watersmeet.sim.overlays.router import Address


@dataclass(slots=True, eq=False)
class ClientQuery:
    """Results in the order in which they came, copies and error reports that were asked for."""

    query_id: str
    asked_us: int
    ends_us: int  # when the last of its op-graphs ends
    once: tuple[str, ...] = ()  # columns by which a result that came before is known
    on_reply: Callable[["ClientQuery"], None] | None = None
    results: list[tuple[int, Batch]] = field(default_factory=list)  # when each came
    taps: list[tuple[Address, str, Batch]] = field(default_factory=list)  # from whom, of which operator
    errors: list[tuple[Address, Batch]] = field(default_factory=list)
    repeated: int = 0  # results that had come before
    _seen: set[Row] = field(default_factory=set)

    def take(self, now_us: int, sender: Address, kind: str, operator: str, batch: Batch) -> None:
        """Keep what has come from a node: results, each once, errors, or what a tap shows."""
        match kind:
            case "tap":
                self.taps.append((sender, operator, batch))
            case "error":
                self.errors.append((sender, batch))
            case _:
                batch = self._new(batch) if self.once else batch
                if batch.rows:
                    self.results.append((now_us, batch))
        if self.on_reply is not None:
            self.on_reply(self)

    @property
    def count(self) -> int:
        """How many results have come."""
        return sum(len(batch.rows) for _, batch in self.results)

    @property
    def rows(self) -> list[Row]:
        """All results."""
        return [row for _, batch in self.results for row in batch.rows]

    def records(self) -> list[dict[str, Any]]:
        """All results, by column."""
        return [dict(zip(batch.schema.names, row, strict=True)) for _, batch in self.results for row in batch.rows]

    def latency_us(self, number: int) -> int | None:
        """How long after the query was asked so many results had come; None if fewer did."""
        seen = 0
        for came_us, batch in self.results:
            seen += len(batch.rows)
            if seen >= number:
                return came_us - self.asked_us
        return None

    def _new(self, batch: Batch) -> Batch:
        places = [place for name in self.once if (place := batch.schema.place(name)) is not None]
        new = []
        for row in batch.rows:
            key = tuple(row[place] for place in places)
            if key in self._seen:
                self.repeated += 1
            else:
                self._seen.add(key)
                new.append(row)
        return Batch(batch.schema, new)
