"""The queries of a topology that is simulated, and the views that they read: parsed, typed and planned."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from watersmeet.cost.price import REACTION_S
from watersmeet.errors import InputError, TypeMismatch
from watersmeet.planners.choose import Chosen, choose
from watersmeet.planners.early import with_early_groups
from watersmeet.query.model import JoinQuery, Output
from watersmeet.query.sql import to_duckdb
from watersmeet.sim.rjoin.answers import no_rows
from watersmeet.sim.rjoin.expressions import judge, project
from watersmeet.sim.scenario.model import SitesScenario
from watersmeet.sim.scenario.sites_oracle import answer_schema
from watersmeet.sim.scenario.sources import check_source, schema_of
from watersmeet.sim.sites.rows import query_rows, typed_output
from watersmeet.topology.model import Query, Topology
from watersmeet.topology.views import Asked, outputs_of, with_outputs


@dataclass(frozen=True)
class PlannedQuery:
    """A SELECT that can be simulated: parsed, typed and planned."""

    query: Query
    parsed: JoinQuery
    typed: JoinQuery  # with the types of its keys
    chosen: Chosen
    schema: pa.Schema  # of its answers
    site: str


@dataclass(frozen=True)
class PlannedQueries:
    """The SELECTs of all queries and of the views that they read, in the order in which they depend on each other."""

    topology: Topology  # with derived streams, and a query for each SELECT
    outputs: tuple[Output, ...]
    selects: Mapping[str, PlannedQuery]

    @property
    def answered(self) -> list[Output]:
        """The outputs that are queries, not views."""
        return [output for output in self.outputs if not output.target.is_stream]

    @property
    def derived(self) -> set[str]:
        """The names of derived streams."""
        return {output.target.name for output in self.outputs if output.target.is_stream}

    @property
    def starts_us(self) -> dict[str, int | None]:
        return {name: planned.query.start_us for name, planned in self.selects.items()}

    def is_direct(self, output: Output) -> bool:
        """Whether each answer is a combination of rows of streams, which is due when the last of them has come."""
        (_, query), *more = output.branches
        return not more and query.outer is None and not output.streams & self.derived

    @property
    def is_drained(self) -> bool:
        """Whether the end of the input has to be the end of time: what rows may still find would never be known."""
        return not all(self.is_direct(output) for output in self.answered)


def plan_queries(scenario: SitesScenario) -> PlannedQueries:
    """The queries of a scenario, and the views that they read, parsed, typed and planned."""
    topology = replace(
        scenario.topology, batch_interval_us=scenario.trigger_us, queries=scenario.queries, views=scenario.views
    )
    return _planned(with_early_groups(topology, lambda topology, _: _chosen(_planned(topology))))


def _chosen(planned: PlannedQueries) -> dict[str, Chosen]:
    return {name: planned_query.chosen for name, planned_query in planned.selects.items()}


def _planned(topology: Topology) -> PlannedQueries:
    asked: list[Asked] = []
    for query in topology.queries:
        with _naming(query):
            known = {entry.output.target.name for entry in asked}
            asked += [asked for asked in outputs_of(topology, [query]) if asked.output.target.name not in known]
    schemas: dict[str, pa.Schema] = {}
    outputs: list[Output] = []
    selects: dict[str, PlannedQuery] = {}
    for number, entry in enumerate(asked):
        whole = with_outputs(topology, asked[: number + 1])
        with _naming(entry.owner):
            output, answers = _typed(whole, entry.output, schemas)
            outputs.append(output)
            for (name, parsed), (_, typed) in zip(entry.output.branches, output.branches, strict=True):
                query = whole.query(name)
                reaction_s = (topology.batch_interval_us or 0) / 1e6 or REACTION_S
                chosen = choose(whole, query, typed, reaction_s=reaction_s)
                site = entry.site or whole.query_site(query)
                selects[name] = PlannedQuery(query, parsed, typed, chosen, answers, site)
        if output.target.is_stream:
            schemas[output.target.name] = answers
    return PlannedQueries(with_outputs(topology, asked), tuple(outputs), selects)


def _typed(topology: Topology, output: Output, schemas: dict[str, pa.Schema]) -> tuple[Output, pa.Schema]:
    """An output with the types of its keys, and the types of its answers."""
    for name in sorted(output.streams - schemas.keys()):
        stream = topology.stream(name)
        check_source(stream)
        schemas[name] = schema_of(stream)
    found = [_evaluated(query, schemas) for _, query in output.branches]
    typed = typed_output(output, schemas, topology.event_times)
    return typed, found[0] if len(found) == 1 else answer_schema(typed.branches[0][1], schemas)


def _evaluated(parsed: JoinQuery, schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """The types of a query's answers, if DuckDB can evaluate its expressions and both sides of each equality agree."""
    flat = no_rows(parsed, schemas)
    is_plain = parsed.grouping is None and parsed.outer is None and parsed.into is None
    try:
        if parsed.filters or parsed.residuals:
            judge("", [*parsed.filters, *parsed.residuals], flat)
        answers = project(parsed, flat).schema if is_plain else answer_schema(parsed, schemas)
        sides = [
            query_rows(f"SELECT {to_duckdb(e.left)} AS l, {to_duckdb(e.right)} AS r FROM flat", flat=flat).schema.types
            for e in parsed.equalities
        ]
    except InputError:
        raise
    except Exception as error:  # DuckDB's own, which is known to a few modules only
        reason = str(error).splitlines()[0]
        raise InputError(f"the simulator evaluates expressions by DuckDB, which says: {reason}") from None
    for equality, (left, right) in zip(parsed.equalities, sides, strict=True):
        if left != right and not (pa.types.is_integer(left) and pa.types.is_integer(right)):
            raise TypeMismatch(
                f"{equality.left.sql} is {left} and {equality.right.sql} is {right}: the simulator compares values of "
                "one type only; declare both alike, or cast one of them"
            )
    return answers


@contextmanager
def _naming(query: Query) -> Iterator[None]:
    """Prefix input errors with the name of the query."""
    try:
        yield
    except InputError as error:
        if str(error).startswith(("query ", "stream ", "table ", "view ", "views ")):
            raise
        raise type(error)(f"query {query.name!r}: {error}") from None
