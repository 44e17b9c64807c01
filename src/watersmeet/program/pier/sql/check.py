"""Which queries of SQL can be run among peers, by their streams and settings."""

from collections.abc import Mapping

from watersmeet.errors import SqlError, TypeMismatch
from watersmeet.program.pier.expressions import Malformed, compiled, compiled_condition
from watersmeet.program.pier.graph import Call
from watersmeet.program.pier.sql.expressions import ufl_expression
from watersmeet.program.pier.sql.groups import NODES_COLUMN, group_types
from watersmeet.program.pier.sql.settings import JoinMethod, PlanSettings, StreamTypes, Transport
from watersmeet.program.pier.tuples import Schema
from watersmeet.query.model import Column, JoinQuery, StreamRef
from watersmeet.query.windows import Changes, Rows


def check_query(query: JoinQuery, streams: Mapping[str, StreamTypes], settings: PlanSettings) -> None:
    """Refuse what cannot be run, in one sentence, before anything is."""
    for source in query.sources:
        if isinstance(source.window, Rows):
            raise SqlError(
                f"{source.alias} has a ROWS window, which PIER cannot count: no node sees the whole stream; "
                "use RANGE or TUMBLE, or system rjoin, which counts them"
            )
    if query.grouping is not None and isinstance(query.grouping.window, Changes):
        raise SqlError("PIER answers groups of output windows, without EMIT CHANGES; use TUMBLE(...) in GROUP BY")
    counts_nodes = query.grouping is not None and settings.aggregation is not None
    if counts_nodes and any(item.name == NODES_COLUMN for item in query.output):
        raise SqlError(f"answers get a column {NODES_COLUMN}; give yours another name by AS")
    if settings.computation_nodes is not None and settings.transport is not Transport.IP:
        raise SqlError("tuples are sent to computation nodes by their addresses; take transport ip")
    names = [item.name for item in query.output]
    if len(set(names)) < len(names):
        raise SqlError("two columns of the select list have the same name; give one of them another by AS")
    if settings.method is not JoinMethod.SYMMETRIC_HASH and settings.method is not JoinMethod.HIERARCHICAL:
        order = order_of(query)
        for stage in range(1, len(order)):
            joined = {source.alias for source in order[:stage]}
            pairs = [{each.left.aliases[0], each.right.aliases[0]} for each in query.equalities]
            if not any(order[stage].alias in pair and pair & joined for pair in pairs):
                raise SqlError(
                    f"{order[stage].alias} has no equality with the streams before it, which {settings.method.value} "
                    "needs; take symmetric_hash"
                )
    schema = flat_schema(query, streams)
    try:
        for equality in query.equalities:
            sides = (ufl_expression(equality.left), ufl_expression(equality.right))
            compiled_condition(Call("equals", sides), schema)
        for condition in (*query.filters, *query.residuals):
            compiled_condition(ufl_expression(condition), schema)
        if query.grouping is not None:
            group_types(query, query.grouping, schema)
        for item in query.select if query.grouping is None else ():
            compiled(ufl_expression(item.expression), schema)
    except Malformed as error:
        raise TypeMismatch(f"PIER cannot evaluate an expression of the query: {error}; cast one side") from None


def flat_schema(query: JoinQuery, streams: Mapping[str, StreamTypes]) -> Schema:
    """The columns of all aliases, by flat name."""
    columns = {
        Column(source.alias, name).flat: kind
        for source in query.sources
        for name, kind in streams[source.stream].columns.items()
    }
    return Schema.of("all", columns)


def order_of(query: JoinQuery) -> list[StreamRef]:
    """A left-deep order: the first stream of FROM, then always the first that an equality connects, if there is one."""
    left = list(query.sources)
    order = [left.pop(0)]
    pairs = [{equality.left.aliases[0], equality.right.aliases[0]} for equality in query.equalities]
    while left:
        joined = {source.alias for source in order}
        connected = [source for source in left if any(source.alias in pair and pair & joined for pair in pairs)]
        order.append((connected or left)[0])
        left.remove(order[-1])
    return order
