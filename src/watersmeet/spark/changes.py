"""What a site on Spark has to say about a change of queries: whether it can go over to it, and what became of it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from watersmeet.errors import InputError
from watersmeet.metrics.events import ChangeRefused, Event, PlanInForce, QueryAdded, QueryRemoved
from watersmeet.plan.explain import explain_text
from watersmeet.plan.nodes import join_plan_of, join_plans_of
from watersmeet.program.finish.model import Finish
from watersmeet.program.site.agreement import Takeover, Versions
from watersmeet.program.site.changes import Change
from watersmeet.program.site.deployment import Deployment
from watersmeet.program.site.ledger import FORMAT
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.storage.wire import VERSION
from watersmeet.query.model import TIME, Column, JoinQuery, Target
from watersmeet.query.sql import canonical_sql
from watersmeet.spark.binding import Bound
from watersmeet.spark.catalogue import Catalogue
from watersmeet.spark.checkpoint import KEPT, SELECT
from watersmeet.spark.deliver.sinks import check_sink
from watersmeet.spark.ingest.new_files import listing_of
from watersmeet.spark.ingest.sources import check_source
from watersmeet.spark.ingest.tables import open_table
from watersmeet.topology.model import Query, Stream, Table


def identity_of(site: str, finishes: Iterable[Finish], catalogue: Catalogue) -> dict[str, Any]:
    """What must be the same for the checkpoint of a site to be resumed, with some queries in force."""
    queries, schemas = dict[str, Any](), dict[str, StructType]()
    known = list(finishes)
    for finish in known:
        query, bound = catalogue.query(finish.definition), catalogue.bounds[finish.definition]
        select = [[item.name, item.expression.sql, item.expression.type] for item in bound.query.select]
        queries[finish.query] = {
            "sql": canonical_sql(bound.query if bound.query.grouping else without_select(bound.query)),
            "start": query.start,
            KEPT: list(finish.columns),
            SELECT: select,
        }
        schemas |= bound.schemas
    streams = {
        name: {
            "schema": schema.simpleString(),
            "event_time": catalogue.topology.stream(name).event_time_column,
            "watermark": catalogue.topology.stream(name).watermark_us,
        }
        for name, schema in sorted(schemas.items())
        if name not in catalogue.topology.table_windows
    }
    tables = _identity_of_tables([catalogue.bounds[finish.definition].query for finish in known], schemas, catalogue)
    whole = {"format": FORMAT, "site": site, "queries": queries, "streams": streams}
    return whole | ({"tables": tables} if tables else {}) | {"form of parcels": VERSION}


def _identity_of_tables(
    queries: Iterable[JoinQuery], schemas: Mapping[str, StructType], catalogue: Catalogue
) -> dict[str, Any]:
    """What queries read of tables, and whether those are refreshed; a source may get other columns meanwhile."""
    read = {(query.source(c.alias).stream, c.name) for query in queries for c in _columns_of(query)}
    return {
        name: {
            "schema": StructType([field for field in schemas[name] if (name, field.name) in read]).simpleString(),
            "refreshed": window.is_refreshed,
        }
        for name, window in sorted(catalogue.topology.table_windows.items())
        if name in schemas
    }


def _columns_of(query: JoinQuery) -> set[Column]:
    """The columns of streams that a query reads."""
    sides = [side for equality in query.equalities for side in (equality.left, equality.right)]
    every = [*sides, *query.filters, *query.residuals, *(item.expression for item in query.select)]
    return {column for expression in every for column in expression.columns} - {TIME}


def check_here(
    program: SiteProgram, change: Change, catalogue: Catalogue, spark: SparkSession, is_read_by_spark: bool
) -> None:
    """Refuse a change that a site cannot go over to while it runs."""
    begun = catalogue.learn(change)
    local = {scan.stream for scan in program.streams}
    for plan in change.plans if begun else ():
        if not plan.is_fresh:
            continue
        definition, bound = begun[plan.query]
        query, target = definition.query, bound.query.into or Target(plan.query)
        for finish in {finish.definition: finish for _, finish in program.finishes}.values():
            if finish.target == target and not target.is_stream:
                _check_sink_goes_on(
                    catalogue.query(finish.definition), catalogue.bounds[finish.definition], query, bound
                )
        joins = join_plans_of(plan.plan)
        homes = {scan.stream: home for join in joins for scan, home in zip(join.scans, join.homes, strict=True)}
        for name, home in homes.items():
            if home == program.site and name not in local:
                stream = catalogue.topology.stream(name)
                if isinstance(stream, Table):
                    _check_table_begins(stream, catalogue, bound, spark)
                elif not stream.is_derived:
                    _check_stream_begins(stream, bound, program.site, is_read_by_spark)
        if not target.is_stream and catalogue.topology.query_site(query) == program.site:
            check_sink(spark, query)


def _check_table_begins(table: Table, catalogue: Catalogue, bound: Bound, spark: SparkSession) -> None:
    """Refuse a table that cannot be read; when it is to be read, nothing can be refused any more."""
    check_source(table, bound.schemas[table.name], once=False)
    open_table(spark, table, bound.schemas[table.name])


def _check_sink_goes_on(old: Query, old_bound: Bound, new: Query, new_bound: Bound) -> None:
    """Refuse a query whose sink has answers of another query of its name, unless they look the same."""
    if (old.sink, old.failed, old.foreach_batch) != (new.sink, new.failed, new.foreach_batch):
        raise InputError(
            f"query {new.name!r}: one of its name still gives answers to another sink; wait until that one has ended, "
            "or give this one another name"
        )
    before, now = answer_columns(old_bound.query), answer_columns(new_bound.query)
    if before != now:
        raise InputError(
            f"query {new.name!r}: its answers have the columns {_listed(before)} and would have {_listed(now)}, in the "
            "same sink; give them the same names and types, as with AS and CAST, or add it as a query of another name"
        )


def _check_stream_begins(stream: Stream, bound: Bound, site: str, is_read_by_spark: bool) -> None:
    check_source(stream, bound.schemas[stream.name], once=False)
    if is_read_by_spark or listing_of(stream) is None:
        raise InputError(
            f"stream {stream.name!r}: Spark reads the streams of site {site}, or would have to, and its query there "
            "cannot get another source while its checkpoint lasts; give the stream a site of its own and begin anew, "
            "or let its rows come as files on this machine where all streams of the site do"
        )


def answer_columns(query: JoinQuery) -> list[tuple[str, str | None]]:
    """The names and types of a query's answers."""
    items = query.select if query.grouping is None else query.grouping.select
    return [(item.name, item.expression.type) for item in items]


def without_select(query: JoinQuery) -> JoinQuery:
    """A query without its select list, which may be corrected between two starts."""
    return replace(query, select=())


def _listed(columns: Iterable[tuple[str, str | None]]) -> str:
    return ", ".join(f"{name} {kind}" if kind else name for name, kind in columns)


def plans_in_force(versions: Versions) -> dict[str, PlanInForce]:
    """By query whose plan has changed since its checkpoint began: the plan that it goes on with."""
    events = (event for entry in versions.log for event in change_events(entry, versions.deployment))
    return {event.query: event for event in events if isinstance(event, PlanInForce)}


def change_events(entry: Takeover, deployment: Deployment) -> Iterator[Event]:
    """What became of a change, query by query."""
    if entry.refused:
        yield ChangeRefused(entry.change.queries, entry.refused)
        return
    earlier = {
        finish.query for joined in deployment.joins if joined.since < entry.revision for finish in joined.finishes
    }
    for plan in entry.change.plans:
        if plan.is_fresh:
            yield QueryAdded(plan.query, entry.at_us, entry.revision, plan.query in earlier)
        text = explain_text(join_plan_of(plan.plan))
        yield PlanInForce(plan.query, plan.planner, text, None, entry.revision)
    for query in entry.change.removed:
        yield QueryRemoved(query, entry.at_us, entry.revision)
