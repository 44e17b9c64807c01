"""Queries of a topology are checked against their streams and planned; nothing is read or written."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from watersmeet.adapt.decisions import Decisions, decisions_of
from watersmeet.plan.nodes import with_join
from watersmeet.planners.choose import Chosen, choose
from watersmeet.planners.early import with_early_groups
from watersmeet.program.site.deployment import Deployment, deployed, overlay, shared_joins
from watersmeet.program.site.program import SiteProgram
from watersmeet.query.model import Column
from watersmeet.spark.binding import Bound
from watersmeet.spark.deliver.sinks import check_sink
from watersmeet.spark.failures import refusal
from watersmeet.spark.ingest.sources import check_source
from watersmeet.spark.ingest.tables import with_table_schemas
from watersmeet.spark.outputs import bind_outputs
from watersmeet.topology.model import Query, Topology
from watersmeet.topology.views import Asked

_LEAST_DECIDING_US = 1_000_000  # of event time between two looks at whether another plan is better


def plan_query(
    spark: SparkSession, topology: Topology, query: Query, *, every: bool = False, kept: Sequence[str] = ()
) -> tuple[Bound, Chosen]:
    """Check a query against its streams and plan it, by every planner if asked for; nothing is read or written.

    Of a UNION ALL it is the first SELECT. `kept` are columns that its windows keep in any case, by flat name.
    """
    found = plan_queries(spark, topology, [query], every=every, kept={query.name: kept})
    return found.bounds[query.name], found.plans[query.name]


@dataclass(frozen=True)
class Planned:
    """Queries, and the views that they read, with their plans."""

    topology: Topology  # with derived streams, and a query for each branch
    asked: tuple[Asked, ...]
    bounds: Mapping[str, Bound]  # by branch, in the order in which they depend on each other
    plans: Mapping[str, Chosen]


def plan_queries(
    spark: SparkSession,
    topology: Topology,
    queries: Sequence[Query],
    *,
    every: bool = False,
    kept: Mapping[str, Sequence[str]] | None = None,
) -> Planned:
    """Check queries and the views that they read against their streams, and plan them."""
    topology = with_choices(spark, replace(with_table_schemas(spark, topology), queries=tuple(queries)))
    bound_outputs = bind_outputs(spark, topology, topology.queries)
    topology, bounds, plans = bound_outputs.topology, {}, {}
    for name, bound in bound_outputs.bounds.items():
        columns = (Column(s.alias, column) for s in bound.query.sources for column in topology.columns[s.stream])
        also_kept = tuple(column for column in columns if column.flat in (kept or {}).get(name, ()))
        bounds[name] = replace(bound, query=replace(bound.query, also_kept=also_kept))
        plans[name] = choose(topology, topology.query(name), bounds[name].query, every=every)
    return Planned(topology, bound_outputs.asked, bounds, plans)


def with_choices(spark: SparkSession, topology: Topology) -> Topology:
    """The topology whose queries and views say whether their rows are grouped below the join."""
    return with_early_groups(topology, lambda topology, query: plan_queries(spark, topology, [query]).plans)


def check_query(
    spark: SparkSession,
    topology: Topology,
    query: Query,
    *,
    once: bool = False,
    site: str | None = None,
    kept: Mapping[str, Sequence[str]] | None = None,
) -> Planned:
    """Everything that can be found wrong with a query, or with its part at one site, before it runs."""
    return _check_queries(spark, topology, [query], once=once, site=site, kept=kept)


def _check_queries(
    spark: SparkSession,
    topology: Topology,
    queries: Sequence[Query],
    *,
    once: bool,
    site: str | None,
    kept: Mapping[str, Sequence[str]] | None,
) -> Planned:
    found = plan_queries(spark, topology, queries, kept=kept)
    schemas = {name: schema for bound in found.bounds.values() for name, schema in bound.schemas.items()}
    for name, schema in schemas.items():
        stream = found.topology.stream(name)
        if not stream.is_derived and site in (None, stream.site):
            check_source(stream, schema, once=once)
    for query in queries:
        if site is None or site == topology.query_site(query):
            check_sink(spark, query)
    return found


def check_queries(
    spark: SparkSession,
    topology: Topology,
    queries: Sequence[Query],
    *,
    once: bool,
    site: str | None,
    kept: Mapping[str, Sequence[str]],
) -> Planned:
    """Plan all queries of a run at once; one by one only to find out which of them is wrong."""
    try:
        with refusing([query.name for query in queries]):
            return _check_queries(spark, topology, queries, once=once, site=site, kept=kept)
    except Exception:
        for query in queries if len(queries) > 1 else ():
            with refusing([query.name]):
                check_query(spark, topology, query, once=once, site=site, kept=kept)
        raise


def site_programs(plans: Mapping[str, Chosen], topology: Topology) -> dict[str, SiteProgram]:
    """What every site does for some planned queries."""
    names = sorted(plans)  # stored rows depend on the order, and a restart may name the same queries in another one
    starts = {name: topology.query(name).start_us for name in names}
    errors = {name: topology.query(name).errors for name in names}
    return overlay(shared_joins({name: plans[name].plan for name in names}, starts, errors))


def deployment_of(plans: Mapping[str, Chosen], topology: Topology, *, plans_change: bool = False) -> Deployment:
    """The first deployment of some planned queries; where plans are to change, every site takes part from the start."""
    names = sorted(plans)
    starts = {name: topology.query(name).start_us for name in names}
    errors = {name: topology.query(name).errors for name in names}
    joins = shared_joins({name: plans[name].plan for name in names}, starts, errors)
    return deployed(joins, topology.site_names if plans_change else (), history=plans_change)


def adapting(
    topology: Topology, bounds: Mapping[str, Bound], plans: Mapping[str, Chosen], trigger_us: int = 0
) -> tuple[Decisions | None, dict[str, Chosen]]:
    """What decides on other plans, of queries that have `adapt`; and all plans, with those that it begins with."""
    planned = {name: (topology.query(name), bounds[name].query, chosen.plan) for name, chosen in plans.items()}
    decisions = decisions_of(topology, planned, max(trigger_us, _LEAST_DECIDING_US))
    first = dict(plans)
    for name, join in decisions.joins.items() if decisions is not None else ():
        first[name] = replace(first[name], plan=with_join(first[name].plan, join))
    return decisions, first


@contextmanager
def refusing(queries: Sequence[str]) -> Iterator[None]:
    """Say in a sentence what keeps a query from starting."""
    try:
        yield
    except Exception as error:
        refused = refusal(error, *queries)
        if refused is error:
            raise
        raise refused from error
