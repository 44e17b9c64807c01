"""The reference semantics over complete data, in DuckDB: the independent check of every planner and runtime.

An answer is a combination that satisfies the predicates and in which every tuple lies in its window as seen at `t_max`,
the latest timestamp of the combination. The statement below says just that and shares no code with the operators.

A derived stream is the answers of the queries that feed it, each at the time of its latest tuple (with DISTINCT, the
first such time, once the watermark has passed it), or at the last microsecond of its output window. Its watermark is
the lowest of those of the streams that they read.

A row of a table has no timestamp: it takes part while its version is in force at `t_max`, from an instant on until that
of the next version. A static table has one version, in force at all times.

Where the order of joins matters (LEFT, FULL, EXISTS), the same is said of every node of FROM: a row of a side is
visible from its latest timestamp to the first end of its tuples, and two rows are partners if they satisfy ON and both
are visible at one instant. A row without partner is answered with NULLs; its time is that of its own latest tuple.

With GROUP BY, a combination counts in every output window that holds its `t_max`. A group of a window is answered if it
has a combination at all and the window has ended by the watermark that is given; without one, all have.

With EMIT CHANGES, a combination is valid from its `t_max` to the earliest end of its tuples' windows; a row of a table
ends nothing, also if its version is no longer in force. The value of a group at an instant is that of the combinations
valid at it; a group without any, or that HAVING does not keep, has no row. A change is an instant before the watermark
at which the row of a group is another one than before it.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import InputError
from watersmeet.query.model import EVENT_TIME, JoinQuery, Output
from watersmeet.query.oracle_groups import changes_sql, groups_sql
from watersmeet.query.oracle_joins import oracle_sql, outer_sql
from watersmeet.query.oracle_text import ARRIVAL, FIRST_US, FROM, NEVER_US, RANK, TO, TS, quoted
from watersmeet.query.windows import AsOf, Changes


def answer(
    query: JoinQuery,
    tables: Mapping[str, pa.Table],
    event_times: Mapping[str, str],
    *,
    start_us: int | None = None,
    heads_before_us: int | None = None,
    watermark_us: int | None = None,
) -> pa.Table:
    """Every answer of `query` over whole streams, given by name with their rows in order of arrival.

    Tables that are refreshed are given by `versioned`.
    """
    database = _database(_duckdb())
    streams = sorted({source.stream for source in query.sources})
    with database.cursor() as connection:  # with temporary tables and views of its own
        connection.execute("SET TimeZone = 'UTC'")
        are_tables = {source.stream for source in query.sources if isinstance(source.window, AsOf)}
        for position, stream in enumerate(streams):
            if stream in are_tables:
                is_versioned = FROM in tables[stream].column_names
                connection.register(
                    f"stream_{position}", tables[stream] if is_versioned else versioned([tables[stream]])
                )
                continue
            table = tables[stream].append_column(ARRIVAL, pa.array(range(tables[stream].num_rows), pa.int64()))
            connection.register(f"given_{position}", table)
            connection.execute(_stream_sql(position, event_times[stream], start_us))
        positions = {stream: i for i, stream in enumerate(streams)}
        if query.outer is not None:
            statement = outer_sql(query, query.outer, tables, positions, heads_before_us)
        else:
            statement = oracle_sql(query, tables, positions, heads_before_us)
        if query.grouping is not None:
            connection.execute(f"CREATE TEMP TABLE combinations AS {statement}")
            types = {name: str(kind) for name, kind, *_ in connection.sql("DESCRIBE combinations").fetchall()}
            make = changes_sql if isinstance(query.grouping.window, Changes) else groups_sql
            statement = make(query, query.grouping, types, watermark_us)
        result: pa.Table = connection.sql(statement).to_arrow_table()
        return result


def answer_outputs(
    outputs: Iterable[Output],
    tables: Mapping[str, pa.Table],
    event_times: Mapping[str, str],
    *,
    starts_us: Mapping[str, int | None] | None = None,
    watermarks_us: Mapping[str, int] | None = None,
) -> dict[str, pa.Table]:
    """By target, all answers over whole streams, of outputs that come after what they read.

    `starts_us` is by branch; `watermarks_us`, by stream, is how far streams have come: none is to their end.
    """
    tables, event_times, marks = dict(tables), dict(event_times), dict(watermarks_us or {})
    found: dict[str, pa.Table] = {}
    for output in outputs:
        name = output.target.name
        branches = []
        for branch, query in output.branches:
            reached = [marks[source.stream] for source in query.sources if source.stream in marks]
            start_us = (starts_us or {}).get(branch)
            watermark_us = min(reached, default=None)
            rows = answer(query, tables, event_times, start_us=start_us, watermark_us=watermark_us)
            if query.distinct and output.target.is_stream and watermark_us is not None:
                rows = rows.filter(pc.less(rows.column(EVENT_TIME), watermark_us))
            branches.append(rows)
        found[name] = pa.concat_tables(branches, promote_options="permissive")
        if output.target.is_stream:
            tables[name], event_times[name] = found[name], EVENT_TIME
            marks |= {name: min(marks[stream] for stream in output.streams if stream in marks)} if marks else {}
    return found


def versioned(versions: Sequence[pa.Table], instants_us: Sequence[int] = ()) -> pa.Table:
    """All rows of a table, each with the instants from which and until which its version is in force.

    The first version is in force from the beginning of time, each other one from its instant on.
    """
    firsts = [FIRST_US, *instants_us]
    ends = [*firsts[1:], NEVER_US]
    parts = []
    for first, end, rows in zip(firsts, ends, versions, strict=True):
        for name, instant in ((FROM, first), (TO, end)):
            rows = rows.append_column(name, pa.repeat(pa.scalar(instant, pa.int64()), rows.num_rows))
        parts.append(rows)
    return pa.concat_tables(parts)


def _duckdb() -> ModuleType:
    try:
        import duckdb
    except ImportError:
        raise InputError("the oracle needs DuckDB, which is not installed; run: pip install duckdb") from None
    return duckdb


@cache
def _database(duckdb: ModuleType) -> Any:
    """One database in memory for all calls: to open one takes longer than most answers."""
    return duckdb.connect()


def _stream_sql(position: int, event_time: str, start_us: int | None) -> str:
    """The tuples that take part, each with its timestamp in microseconds and its rank in (ts, arrival) order."""
    ts = quoted(event_time) if event_time == EVENT_TIME else f"epoch_us({quoted(event_time)})"
    start = "" if start_us is None else f" AND {ts} >= {start_us}"
    return f"""
        CREATE TEMP TABLE stream_{position} AS
        SELECT *, {ts} AS {TS}, row_number() OVER (ORDER BY {ts}, {ARRIVAL}) AS {RANK}
        FROM given_{position} WHERE {quoted(event_time)} IS NOT NULL{start}"""
