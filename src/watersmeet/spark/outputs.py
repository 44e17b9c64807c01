"""Queries and what they read of views: each output bound to the schemas of the streams before it, in order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from watersmeet.errors import InputError, TypeMismatch
from watersmeet.query.model import EVENT_TIME, cast_output
from watersmeet.spark.analyser import Analyser, readable, type_of
from watersmeet.spark.binding import Bound, bind_parsed, expect_queries
from watersmeet.spark.session import empty_frame
from watersmeet.topology.model import Query, Topology
from watersmeet.topology.views import Asked, outputs_of, with_outputs


@dataclass(frozen=True)
class BoundOutputs:
    """All branches of some queries and of the views that they read."""

    topology: Topology  # with derived streams, and a query for each branch
    asked: tuple[Asked, ...]
    bounds: Mapping[str, Bound]  # by branch

    @property
    def branches(self) -> list[Query]:
        """A query for each branch, in the order in which they depend on each other."""
        return [self.topology.query(name) for name in self.bounds]

    def schema(self, query: str) -> StructType:
        """The row type of a query's answers."""
        asked = next(asked for asked in self.asked if asked.output.target.name == query)
        return answer_type(self.bounds[asked.output.branches[0][0]])


def bind_outputs(
    spark: SparkSession, topology: Topology, queries: Iterable[Query], views: Iterable[Query] = ()
) -> BoundOutputs:
    """Bind queries, and before them the views that they read; `views` are bound in any case."""
    analyser = Analyser(spark)
    asked = outputs_of(topology, queries, views)
    schemas: dict[str, str] = {}
    bounds: dict[str, Bound] = {}
    known = with_outputs(topology, ())
    expect_queries(analyser, known, (branch for entry in asked for _, branch in entry.output.branches))
    for number, entry in enumerate(asked):
        if number == 0 or asked[number - 1].output.target.is_stream:
            known = with_outputs(topology, asked[:number], schemas)
        output = entry.output
        found = {name: _bind(analyser, known, entry, name) for name, _ in output.branches}
        bounds |= _of_one_type(spark, found) if len(found) > 1 else found
        if output.target.is_stream:
            fields = answer_type(bounds[output.branches[0][0]]).fields
            schemas[output.target.name] = ", ".join(_ddl(field) for field in fields)
    return BoundOutputs(with_outputs(topology, asked, schemas), asked, bounds)


def _bind(analyser: Analyser, topology: Topology, asked: Asked, name: str) -> Bound:
    try:
        return bind_parsed(analyser, topology, dict(asked.output.branches)[name])
    except InputError as error:
        if asked.output.target.is_stream and not str(error).startswith(("view ", "stream ")):
            raise type(error)(f"view {asked.output.target.name!r}: {error}") from None
        raise


def answer_type(bound: Bound) -> StructType:
    """The row type of a query's answers, without the time that rows of derived streams have."""
    items = [item for item in bound.query.output if item.name != EVENT_TIME]
    return StructType([StructField(item.name, type_of(item.expression.type)) for item in items])


def _ddl(field: StructField) -> str:
    return f"`{field.name.replace('`', '``')}` {field.dataType.simpleString()}"


def _of_one_type(spark: SparkSession, bounds: Mapping[str, Bound]) -> dict[str, Bound]:
    """The branches of a UNION ALL with the types that Spark's own has."""
    types = [answer_type(bound) for bound in bounds.values()]
    frames = [empty_frame(spark, _numbered(kind.fields)) for kind in types]
    whole = frames[0]
    for frame in frames[1:]:
        try:
            whole = whole.union(frame)
            common = [field.dataType.simpleString() for field in whole.schema.fields]
        except Exception as error:
            raise TypeMismatch(f"UNION ALL: {readable(error)}") from None
    found = {}
    for (name, bound), own in zip(bounds.items(), types, strict=True):
        kinds = [
            None if field.dataType.simpleString() == kind else kind for field, kind in zip(own, common, strict=True)
        ]
        found[name] = Bound(cast_output(bound.query, kinds), bound.schemas)
    return found


def _numbered(fields: Sequence[StructField]) -> StructType:
    return StructType([StructField(f"c{number}", field.dataType) for number, field in enumerate(fields)])
