"""Streams and queries of the user's own, checked, and the tuples in the order of their times."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.errors import InputError, TypeMismatch
from watersmeet.program.rjoin.arrays import Longs
from watersmeet.query.model import Expression, JoinQuery
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.rjoin.answers import ROW, no_rows
from watersmeet.sim.rjoin.expressions import judge, project
from watersmeet.sim.scenario.sources import check_source, read_stream, schema_of
from watersmeet.sim.scenario.workload import UserLoad

_MOST_ALIASES = 30  # the bound ones are bits of one number


@dataclass(frozen=True, slots=True)
class UserFeed:
    """The tuples of all streams in the order of their times; ties by stream, then as they arrive."""

    tables: tuple[pa.Table, ...]  # of each stream, by time, with a column more that numbers all tuples
    stamps: Longs
    streams: Longs
    rows: Longs

    @classmethod
    def of(cls, load: UserLoad, event_times: Mapping[str, str]) -> "UserFeed":
        """Read all streams to their ends, and order their tuples."""
        tables, stamps = [], []
        for published in load.streams:
            table = read_stream(published.stream)
            times: Longs = table.column(event_times[published.stream.name]).cast(pa.int64()).to_numpy()
            order = np.argsort(times, kind="stable")
            tables.append(table.take(order))
            stamps.append(times[order])
        streams = np.repeat(np.arange(len(tables)), [len(times) for times in stamps])
        rows = np.concatenate([np.arange(len(times)) for times in stamps])
        every = np.concatenate(stamps)
        order = np.lexsort((rows, streams, every))[: load.most_tuples]
        if not len(order):
            raise InputError("there is nothing to simulate: no stream has a tuple with an event time")
        kept = [table.slice(0, int((streams[order] == place).sum())) for place, table in enumerate(tables)]
        firsts = np.cumsum([0, *(table.num_rows for table in kept)]).tolist()
        numbered = [
            table.append_column(ROW, pa.array(np.arange(first, first + table.num_rows))).combine_chunks()
            for first, table in zip(firsts, kept, strict=False)
        ]
        return cls(tuple(numbered), every[order], streams[order], rows[order])

    @property
    def tuples(self) -> int:
        return len(self.stamps)

    @property
    def first_us(self) -> int:
        return int(self.stamps[0])

    @property
    def last_us(self) -> int:
        return int(self.stamps[-1])

    def parts(self) -> Iterator[tuple[int, int, pa.Table]]:
        """Tuples of one stream and one time together: the stream, the time, and the rows."""
        is_new = (np.diff(self.stamps) != 0) | (np.diff(self.streams) != 0)
        bounds = [0, *(np.flatnonzero(is_new) + 1).tolist(), self.tuples]
        for begin, end in pairwise(bounds):
            stream, first = int(self.streams[begin]), int(self.rows[begin])
            yield stream, int(self.stamps[begin]), self.tables[stream].slice(first, end - begin)


class FeedJudge:
    """Filters, evaluated once for all tuples that will ever come: DuckDB takes as long for one."""

    def __init__(self, feed: UserFeed) -> None:
        self._tables = feed.tables
        self._first = np.cumsum([0, *(table.num_rows for table in feed.tables)])
        self._verdicts: dict[tuple[int, str, tuple[Expression, ...]], NDArray[np.bool_]] = {}

    def __call__(self, alias: str, predicates: Sequence[Expression], rows: pa.Table) -> NDArray[np.bool_]:
        if not alias or not rows.num_rows:
            return judge(alias, predicates, rows)
        numbers = rows.column(ROW).to_numpy()
        stream = int(np.searchsorted(self._first, numbers[0], side="right")) - 1
        asked = (stream, alias, tuple(predicates))
        if asked not in self._verdicts:
            self._verdicts[asked] = judge(alias, predicates, self._tables[stream])
        verdict: NDArray[np.bool_] = self._verdicts[asked][numbers - self._first[stream]]
        return verdict


def checked_streams(load: UserLoad) -> tuple[dict[str, pa.Schema], dict[str, str]]:
    """Schemas and event times of streams that can be simulated."""
    schemas, event_times = {}, {}
    for published in load.streams:
        stream = published.stream
        check_source(stream)
        schemas[stream.name], event_times[stream.name] = schema_of(stream), stream.event_time_column
        if len(stream.columns) < 2:
            raise InputError(f"stream {stream.name!r} has no column but its event time; RJoin finds tuples by others")
    return schemas, event_times


def checked_query(
    name: str, sql: str, allow_cross: bool, load: UserLoad, schemas: Mapping[str, pa.Schema]
) -> JoinQuery:
    """A query that RJoin can answer: it tells values apart by themselves, and DuckDB evaluates expressions."""
    query = parsed_query(name, sql, allow_cross, load, schemas)
    if query.grouping is not None:
        raise InputError(f"query {name!r}: RJoin answers joins; leave out GROUP BY and aggregates")
    if len(query.sources) < 2:
        raise InputError(f"query {name!r}: RJoin joins two streams or more; name another one in FROM")
    if len(query.sources) > _MOST_ALIASES:
        raise InputError(f"query {name!r} joins {len(query.sources)} streams; RJoin here takes {_MOST_ALIASES} at most")
    return query


def parsed_query(name: str, sql: str, allow_cross: bool, load: UserLoad, schemas: Mapping[str, pa.Schema]) -> JoinQuery:
    """A query over streams of the user's own whose expressions DuckDB can evaluate, and whose keys are of one kind."""
    try:
        query = parse_query(sql, load.columns, allow_cross=allow_cross)
    except InputError as error:
        raise type(error)(f"query {name!r}: {error}") from None
    if query.outer is not None:
        raise InputError(f"query {name!r}: outer joins and EXISTS are run by sites only; simulate the topology's sites")
    stream_of = {source.alias: source.stream for source in query.sources}
    for equality in query.equalities:
        sides = [side for side in (equality.left, equality.right) if side.is_plain]
        kinds = [schemas[stream_of[side.columns[0].alias]].field(side.columns[0].name).type for side in sides]
        if len({_family(kind) for kind in kinds}) > 1:
            left, right = (side.columns[0].flat for side in sides)
            raise TypeMismatch(
                f"query {name!r}: {left} is {kinds[0]} and {right} is {kinds[1]}: a simulated network compares values "
                "of one kind only; declare both alike"
            )
    try:
        answers_schema(query, schemas)
        if query.filters or query.residuals:
            judge("", [*query.filters, *query.residuals], no_rows(query, schemas))
    except InputError as error:
        raise type(error)(f"query {name!r}: {error}") from None
    except Exception as error:  # DuckDB's own, which is known to a few modules only
        reason = str(error).splitlines()[0]
        raise InputError(
            f"query {name!r}: the simulator evaluates expressions by DuckDB, which says: {reason}"
        ) from None
    return query


def answers_schema(query: JoinQuery, schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """The names and types of a query's answers."""
    if query.grouping is None:
        return project(query, no_rows(query, schemas)).schema
    tables = {source.stream: schemas[source.stream].empty_table() for source in query.sources}
    times = {
        name: next(field.name for field in table.schema if pa.types.is_timestamp(field.type))
        for name, table in tables.items()
    }
    return answer(query, tables, times).schema


def _family(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    return str(kind)
