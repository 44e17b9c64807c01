"""What is published and asked in a scenario, as frozen values: generated, or streams and queries of the user's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from watersmeet.errors import InputError
from watersmeet.query.windows import Range, Unbounded, format_duration
from watersmeet.sim.rjoin.workload import ZipfWorkload
from watersmeet.topology.model import Query, Stream


@dataclass(frozen=True, slots=True)
class ZipfLoad:
    """Generated chains of joins and tuples by Zipf's law (RJoin, section 8): queries first, then tuples one by one."""

    relations: int = 10
    attributes: int = 10
    values: int = 100
    theta: float = 0.9
    ways: int = 4
    queries: int = 1_000
    tuples: int = 400
    warm_up: int = 200  # tuples before the queries, so that there are rates to tell; they are not counted
    rate: float = 1.0  # tuples a second
    own_ranking: bool = False
    window_us: int | None = None

    def __post_init__(self) -> None:
        for name in ("relations", "attributes", "values", "queries", "tuples"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.relations < 2:
            raise InputError("relations must be 2 or more, not 1: neighbours in a chain differ")
        if not 2 <= self.ways <= 16:
            raise InputError(f"ways must be from 2 to 16, not {self.ways}")
        if self.warm_up < 0:
            raise InputError(f"warm_up must be 0 or more, not {self.warm_up}")
        if not (isfinite(self.theta) and self.theta >= 0):
            raise InputError(f"theta must be 0 or more, not {self.theta:g}")
        if not 1e-6 <= self.rate <= 1e6:
            raise InputError(f"rate must be from 0.000001 to 1,000,000 tuples a second, not {self.rate:g}")
        if self.window_us is not None and self.window_us < 1:
            raise InputError(f"window must be positive, not {format_duration(self.window_us)}")

    def workload(self, seed: int) -> ZipfWorkload:
        """The generator of its queries and tuples."""
        return ZipfWorkload(
            relations=self.relations,
            attributes=self.attributes,
            values=self.values,
            theta=self.theta,
            ways=self.ways,
            window=Unbounded() if self.window_us is None else Range(self.window_us),
            own_ranking=self.own_ranking,
            seed=seed,
        )


@dataclass(frozen=True, slots=True)
class PublishedStream:
    """A stream and the peer that publishes it: a number, one drawn by the seed, or a new one for every tuple."""

    stream: Stream
    home: int | None = None
    is_scattered: bool = False


@dataclass(frozen=True, slots=True)
class SubmittedQuery:
    """A query and the peer that asks it: a number, or one drawn by the seed."""

    query: Query
    home: int | None = None
    ufl: str | None = None  # the text of its op-graphs, in place of SQL
    is_once: bool = False  # asked at its start, or at the end, about the tuples that there are then


@dataclass(frozen=True, slots=True)
class UserLoad:
    """Streams and queries of the user's own; tuples are published at their event times."""

    streams: tuple[PublishedStream, ...]
    queries: tuple[SubmittedQuery, ...]
    most_tuples: int | None = None  # of all streams together, the earliest

    def __post_init__(self) -> None:
        if self.most_tuples is not None and self.most_tuples < 1:
            raise InputError(f"tuples must be 1 or more, not {self.most_tuples}")

    @property
    def columns(self) -> Mapping[str, Sequence[str]]:
        """The column names of every stream."""
        return {published.stream.name: published.stream.columns for published in self.streams}
