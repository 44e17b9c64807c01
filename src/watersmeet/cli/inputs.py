"""The queries of a command, checked as far as possible before Spark starts."""

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from watersmeet.errors import InputError
from watersmeet.query.model import JoinQuery
from watersmeet.topology.model import Query, Topology


def selected_queries(topology: Topology, options: argparse.Namespace) -> tuple[Query, ...]:
    """The queries that the options select; planner options override what the file says."""
    queries = topology.queries if options.query is None else (topology.query(options.query),)
    changes: dict[str, Any] = {}
    if getattr(options, "planner", None) is not None:
        changes |= {"planner": options.planner, "plan": None}
    if getattr(options, "objective", None) is not None:
        changes["objective"] = ((options.objective, 1.0),)
    if getattr(options, "assume_defaults", False):
        changes["assume_defaults"] = True
    return tuple(replace(query, **changes) for query in queries) if changes else queries


def check_sql(topology: Topology, queries: Sequence[Query]) -> None:
    """Check the text of queries."""
    for query in queries if topology.has_schemas else ():  # else Spark has to infer them first
        with errors_naming(query):
            _parsed(topology, query)


def check_queries(topology: Topology, queries: Sequence[Query]) -> None:
    """Check the text of queries, and their sites, planners and explicit plans."""
    from watersmeet.planners.choose import check_plan

    for query in queries if topology.has_schemas else ():
        with errors_naming(query):
            check_plan(topology, query, _parsed(topology, query))


def _parsed(topology: Topology, query: Query) -> JoinQuery:
    from watersmeet.query.sql import parse_query

    return parse_query(
        query.sql,
        topology.columns,
        allow_cross=query.allow_cross,
        event_times=topology.event_times,
        tables=topology.table_windows,
    )


@contextlib.contextmanager
def errors_naming(query: Query) -> Iterator[None]:
    """Prefix input errors with the name of the query."""
    try:
        yield
    except InputError as error:
        if str(error).startswith(("query ", "stream ", "table ", "checkpoint ")):
            raise
        raise type(error)(f"query {query.name!r}: {error}") from error
