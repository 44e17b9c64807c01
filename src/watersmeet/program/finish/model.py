"""What becomes of a join's combinations: predicates that are left, output columns, and whether answers repeat."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from watersmeet.plan.nodes import Distinct, Group, Into, Matching, OuterJoin, Plan, Project, Restrict, join_plan_of
from watersmeet.query.model import (
    EVENT_TIME,
    PLACE,
    WINDOW_START,
    Column,
    Expression,
    Grouping,
    SelectItem,
    Target,
    key_of_group,
)
from watersmeet.query.windows import Changes


@dataclass(frozen=True)
class Finish:
    """The steps from combinations of a join to the answers of one query."""

    query: str
    columns: tuple[str, ...]  # of the combinations that it reads, by flat name
    predicates: tuple[Expression, ...]
    select: tuple[SelectItem, ...]
    distinct: bool
    errors: str = "fail"  # what becomes of combinations for which an expression fails
    grouping: Grouping | None = None  # what is made of the rows that were selected
    since: int = 1  # the revision of the deployment with which the query began, or was last replaced
    into: Target | None = None  # what gets the answers, if not the query's own sink
    matching: Matching | None = None  # of an outer join: what is made of its branches' combinations
    branch: int = 0  # which of them this is

    @property
    def definition(self) -> str:
        """The name of what the query asks for: one that was replaced asks for something else from then on."""
        return definition_name(self.query, self.since)

    @property
    def target(self) -> Target:
        """What gets the answers."""
        return self.into or Target(self.query)

    @property
    def plain(self) -> tuple[tuple[str, str], ...] | None:
        """Column and output name of each answer column, where answers are columns of combinations and nothing else."""
        if self.predicates or self.distinct or not all(item.expression.is_plain for item in self.select):
            return None
        return tuple((item.expression.columns[0].flat, item.name) for item in self.select)

    @property
    def evaluated_columns(self) -> tuple[tuple[str, str], ...]:
        """Column and output name of each answer column, where expressions are evaluated."""
        return tuple((answer_column(number), item.name) for number, item in enumerate(self.select))

    @property
    def time_column(self) -> str | None:
        """The evaluated column of answers' times, where DISTINCT leaves it out; None where it does not have to."""
        if not self.distinct or self.select[-1].name != EVENT_TIME:
            return None
        return answer_column(len(self.select) - 1)

    @property
    def names(self) -> tuple[str, ...]:
        """The output columns."""
        if self.matching is not None and self.grouping is None:
            return self.matching.names
        return tuple(item.name for item in (self.select if self.grouping is None else self.grouping.select))

    @property
    def answers(self) -> tuple[SelectItem, ...]:
        """The items that are answers; those behind them say which rows of an outer join a combination is made of."""
        return self.select if self.matching is None else self.select[: self.matching.answer_columns[self.branch]]

    @property
    def of_matched(self) -> "Finish":
        """The step from rows of an outer join to its answers, each once."""
        assert self.matching is not None, "an outer join"
        columns = [matched_column(number) for number in range(len(self.matching.names))]
        items = zip(self.matching.names, columns, strict=True)
        select = tuple(SelectItem(name, Expression(column.sql, (column,))) for name, column in items)
        flat = tuple(column.flat for column in columns)
        return Finish(self.query, flat, (), select, True, self.errors, since=self.since, into=self.into)

    @property
    def of_groups(self) -> "Finish":
        """The steps from groups to answers, which have what they are sorted by behind the output columns."""
        assert self.grouping is not None, "a query with groups"
        grouping, hidden = self.grouping, []
        if grouping.limit is not None:
            keys = (key_of_group(number) for number in range(grouping.keys))
            hidden = [key.expression for key in grouping.order]
            hidden += [Expression(column.sql, (column,)) for column in (*keys, WINDOW_START)]
        elif isinstance(grouping.window, Changes):
            hidden = [Expression(PLACE.sql, (PLACE,))]
        select = (*grouping.select, *(SelectItem(f"#{number}", expression) for number, expression in enumerate(hidden)))
        columns = tuple(column.flat for column in grouping.columns)
        return Finish(self.query, columns, grouping.having, select, False, self.errors, since=self.since)


def definition_name(query: str, since: int) -> str:
    """The name of what a query asks for since a revision of the deployment."""
    return query if since == 1 else f"{query}~{since}"


def answer_column(number: int) -> str:
    """The name of an evaluated answer column until it is delivered: output names may repeat or be odd."""
    return f"c{number}"


def matched_column(number: int) -> Column:
    """An answer column of an outer join, as the rows have it that are to be told apart."""
    return Column("", answer_column(number))


@dataclass(frozen=True)
class Evaluated:
    """What expressions come to over some combinations."""

    paths: tuple[str, ...]  # of the results
    failed: int = 0  # combinations for which an expression fails; they have no results
    failed_paths: tuple[str, ...] = ()  # which they are and why (see program.finish.failed)
    cause: str = ""  # what was said of one of them


class Evaluator(Protocol):
    """Evaluates expressions over combinations: Spark does on Spark, DuckDB in the simulator."""

    def __call__(self, finish: Finish, paths: Sequence[str], rows: int) -> Evaluated:
        """Apply predicates and select to the combinations at some paths, `rows` in all; where the results are.

        Results have the columns `answer_column(0)`, ...; with DISTINCT they are free of duplicates among themselves
        and have a 64-bit hash of the row, by which equal answers are found, as class column 0.
        """


def finishes_of(query: str, plan: Plan, errors: str = "fail") -> list[tuple[Plan, Finish]]:
    """What stands above each join in the plan of a query, and the plan of that join: an outer join has several."""
    outer = plan.child if isinstance(plan, Into) else plan
    if not isinstance(outer, OuterJoin):
        return [(plan, finish_of(query, plan, errors))]
    into = plan.target if isinstance(plan, Into) else None
    found = []
    for number, branch in enumerate(outer.branches):
        finish = replace(finish_of(query, branch, errors), grouping=outer.grouping, into=into)
        found.append((branch, replace(finish, matching=outer.matching, branch=number)))
    return found


def finish_of(query: str, plan: Plan, errors: str = "fail") -> Finish:
    """What stands above the join in the plan of a query with one."""
    into = plan.target if isinstance(plan, Into) else None
    plan = plan.child if isinstance(plan, Into) else plan
    distinct = isinstance(plan, Distinct)
    top = plan.child if isinstance(plan, Distinct | Group) else plan
    assert isinstance(top, Project), "a plan projects its answers"
    predicates = top.child.predicates if isinstance(top.child, Restrict) else ()
    grouping = plan.grouping if isinstance(plan, Group) else None
    return Finish(query, join_plan_of(plan).output, predicates, top.select, distinct, errors, grouping, into=into)
