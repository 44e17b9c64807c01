"""What every plan of a query has in common: key classes, what is kept of each alias, and what stands above the join."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watersmeet.plan.nodes import (
    Distinct,
    Group,
    Into,
    JoinPlan,
    Kept,
    KeyClass,
    Matching,
    Partition,
    Plan,
    Project,
    Restrict,
    Scan,
    SubPlan,
)
from watersmeet.query.classes import equal_sides
from watersmeet.query.comparisons import Condition, conditions_of
from watersmeet.query.model import TIME, Column, Expression, JoinQuery
from watersmeet.query.outer import OWN_COLUMNS, Branches


@dataclass(frozen=True, slots=True)
class QueryShape:
    """The parts of a join that no planner decides."""

    classes: tuple[KeyClass, ...]
    scans: tuple[Scan, ...]
    verify: tuple[tuple[str, str], ...]
    output: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()

    def join(
        self,
        homes: tuple[str, ...],
        sub_plans: tuple[SubPlan, ...],
        site: str | None,
        partition: Partition | None = None,
    ) -> JoinPlan:
        """The join that has these sub-plans."""
        return JoinPlan(
            *(self.classes, self.scans, homes, sub_plans, site, self.verify, self.output, partition, self.conditions)
        )


def shape_of(query: JoinQuery, columns: Mapping[str, Sequence[str]]) -> QueryShape:
    """The shape of a query; `columns` gives each stream's columns in schema order."""
    classes, class_of, implied = key_classes(query)
    hashed = [e for e in query.equalities if not classes[class_of[e.left]].exact]
    conditions = conditions_of(query)
    asked = {
        column
        for expression in (*_left_above(query), *(item.expression for item in query.select))
        for column in expression.columns
    } | set(query.also_kept)
    compared = {column for condition in conditions for column in condition.expression.columns}
    scans = []
    for source in query.sources:
        own = [Column(source.alias, name) for name in (*columns[source.stream], *OWN_COLUMNS)]
        sides = [side for e in hashed for side in (e.left, e.right) if side.aliases == (source.alias,)]
        kept = {column.flat: Kept(column.flat, _column(column)) for column in own if column in asked | compared}
        kept |= {_key_value(side): Kept(_key_value(side), side) for side in sides}
        scans.append(
            Scan(
                alias=source.alias,
                stream=source.stream,
                window=source.window,
                filters=tuple(f for f in (*query.filters, *implied) if f.aliases == (source.alias,)),
                kept=tuple(kept.values()),
                classes=tuple(c.number for c in classes if c.member(source.alias)),
            )
        )
    return QueryShape(
        classes,
        tuple(scans),
        verify=tuple((_key_value(e.left), _key_value(e.right)) for e in hashed),
        output=(
            *(name for scan in scans for name in scan.columns if name in {column.flat for column in asked}),
            *((TIME.flat,) if TIME in asked else ()),
        ),
        conditions=conditions,
    )


def _left_above(query: JoinQuery) -> tuple[Expression, ...]:
    """The residual predicates that stand above the join: all but comparisons that the join applies and cannot fail."""
    applied = {condition.expression for condition in conditions_of(query) if not condition.can_fail}
    return tuple(residual for residual in query.residuals if residual not in applied)


def _column(column: Column) -> Expression:
    return Expression(column.sql, (column,), "bigint" if column.name in OWN_COLUMNS else "")


def above(query: JoinQuery, join: JoinPlan) -> Plan:
    """A join with the query's remaining predicates, its output columns and DISTINCT on top."""
    left = _left_above(query)
    plan: Plan = Restrict(join, left) if left else join
    plan = Project(plan, query.select)
    if query.grouping is not None:
        plan = Group(plan, query.grouping)
    elif query.distinct:
        plan = Distinct(plan)
    return plan if query.into is None else Into(plan, query.into)


def matching_of(query: JoinQuery, expanded: Branches) -> Matching:
    """What is made of the combinations of an outer join's branches."""
    counts = tuple(branch.answer_columns for branch in expanded.branches)
    names = tuple(item.name for item in query.select)
    return Matching(expanded.relations, expanded.windows, counts, names, query.distinct)


def key_classes(
    query: JoinQuery,
) -> tuple[tuple[KeyClass, ...], dict[Expression, int], tuple[Expression, ...]]:
    """Close the equalities under transitivity: the classes, the class of each side, and what they imply.

    Two expressions of one alias in the same class imply a filter of that alias.
    """
    classes, class_of, implied = [], {}, []
    for number, group in enumerate(equal_sides(query)):
        members: dict[str, Expression] = {}
        for member in group:
            class_of[member] = number
            (alias,) = member.aliases
            first = members.setdefault(alias, member)
            if first != member:
                implied.append(_equal(first, member))
        classes.append(KeyClass(number, tuple(members.values())))
    return tuple(classes), class_of, tuple(implied)


def _key_value(side: Expression) -> str:
    """The name under which a key's value is kept: a column's own, or the alias and the text of the expression."""
    (alias,) = side.aliases
    return side.columns[0].flat if side.is_plain else f"{alias}.={side.sql}"


def _equal(left: Expression, right: Expression) -> Expression:
    return Expression(f"({left.sql}) = ({right.sql})", tuple(sorted({*left.columns, *right.columns})), "boolean")
