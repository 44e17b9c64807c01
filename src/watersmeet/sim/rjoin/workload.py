"""The workload of RJoin's section 8: relations and values by Zipf's law, chains of joins over random attributes."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.query.model import Column, Equality, Expression, JoinQuery, SelectItem, StreamRef
from watersmeet.query.windows import Unbounded, Window

EVENT_TIME = "ts"


@dataclass(frozen=True, slots=True)
class ZipfWorkload:
    """Tuples and k-way chain queries, a function of the seed."""

    relations: int = 10
    attributes: int = 10
    values: int = 100
    theta: float = 0.9
    ways: int = 4
    window: Window = field(default_factory=Unbounded)
    own_ranking: bool = False  # whether each attribute has popular values of its own; else value 0 is so everywhere
    seed: int = 1

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        """Every relation has the same columns."""
        columns = [(f"a{number}", pa.int64()) for number in range(self.attributes)]
        schema = pa.schema([*columns, (EVENT_TIME, pa.timestamp("us", "UTC"))])
        return {f"r{number}": schema for number in range(self.relations)}

    @property
    def event_times(self) -> dict[str, str]:
        return dict.fromkeys(self.schemas, EVENT_TIME)

    def queries(self, count: int) -> list[JoinQuery]:
        """Chains in which neighbours differ, over attributes drawn anew for each predicate."""
        chance = np.random.default_rng([self.seed, 1])
        return [self._query(chance) for _ in range(count)]

    def tuples(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The relation of each tuple, and its values."""
        chance = np.random.default_rng([self.seed, 2])
        relations = chance.choice(self.relations, count, p=zipf(self.relations, self.theta))
        values = chance.choice(self.values, (count, self.attributes), p=zipf(self.values, self.theta))
        if self.own_ranking:
            rank = np.random.default_rng([self.seed, 3])
            shape = (self.relations, self.attributes, self.values)
            named = rank.permuted(np.broadcast_to(np.arange(self.values), shape), axis=2)
            values = named[relations[:, None], np.arange(self.attributes)[None, :], values]
        return relations, values

    def tables(self, count: int) -> Iterator[tuple[str, pa.Table]]:
        """The tuples one by one, as streams publish them; their time is filled in by whoever does."""
        relations, values = self.tuples(count)
        schema = self.schemas["r0"].remove(self.attributes)
        for relation, row in zip(relations.tolist(), values.tolist(), strict=True):
            yield f"r{relation}", pa.table([[value] for value in row], schema=schema)

    def _query(self, chance: np.random.Generator) -> JoinQuery:
        if self.ways <= self.relations:
            relations = chance.choice(self.relations, self.ways, replace=False).tolist()
        else:  # each is some way further on than the one before, and never all the way round
            first, steps = chance.integers(self.relations), chance.integers(1, self.relations, self.ways - 1)
            relations = ((first + np.array([0, *steps.cumsum()])) % self.relations).tolist()
        equalities = []
        for number in range(self.ways - 1):
            left, right = chance.integers(0, self.attributes, 2).tolist()
            equalities.append(Equality(_column(f"s{number}", left), _column(f"s{number + 1}", right)))
        return JoinQuery(
            sources=tuple(StreamRef(f"s{n}", f"r{relation}", self.window) for n, relation in enumerate(relations)),
            equalities=tuple(equalities),
            filters=(),
            residuals=(),
            select=tuple(SelectItem(f"s{n}_a0", _column(f"s{n}", 0)) for n in range(self.ways)),
        )


def zipf(count: int, theta: float) -> NDArray[np.float64]:
    """The probability of each rank by Zipf's law."""
    weights = 1.0 / np.arange(1, count + 1) ** theta
    chances: NDArray[np.float64] = weights / weights.sum()
    return chances


def _column(alias: str, number: int) -> Expression:
    column = Column(alias, f"a{number}")
    return Expression(column.sql, (column,))
