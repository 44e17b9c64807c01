"""The queries of a command, checked as far as possible before Spark starts."""

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from watersmeet.errors import InputError
from watersmeet.topology.model import Query, Topology
from watersmeet.topology.views import outputs_of, with_outputs


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
            outputs_of(topology, [query])


def check_queries(topology: Topology, queries: Sequence[Query]) -> None:
    """Check the text of queries, and their sites, planners and explicit plans."""
    from watersmeet.planners.choose import check_plan

    for query in queries if topology.has_schemas else ():
        with errors_naming(query):
            asked = outputs_of(topology, [query])
            whole = with_outputs(replace(topology, queries=(query,)), asked)
            for entry in asked:
                for name, parsed in entry.output.branches:
                    check_plan(whole, whole.query(name), parsed)
    if topology.has_schemas:
        outputs_of(topology, [query for query in topology.views if query.name not in {query.name for query in queries}])


@contextlib.contextmanager
def errors_naming(query: Query) -> Iterator[None]:
    """Prefix input errors with the name of the query."""
    try:
        yield
    except InputError as error:
        if str(error).startswith(("query ", "stream ", "table ", "view ", "views ", "checkpoint ")):
            raise
        raise type(error)(f"query {query.name!r}: {error}") from error
