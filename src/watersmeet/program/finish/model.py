"""What becomes of a join's combinations: predicates that are left, output columns, and whether answers repeat."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from watersmeet.plan.nodes import Distinct, Plan, Project, Restrict, join_plan_of
from watersmeet.query.model import Expression, SelectItem


@dataclass(frozen=True)
class Finish:
    """The steps from combinations of a join to the answers of one query."""

    query: str
    columns: tuple[str, ...]  # of the combinations that it reads, by flat name
    predicates: tuple[Expression, ...]
    select: tuple[SelectItem, ...]
    distinct: bool
    errors: str = "fail"  # what becomes of combinations for which an expression fails

    @property
    def plain(self) -> tuple[tuple[str, str], ...] | None:
        """Column and output name of each answer column, where answers are columns of combinations and nothing else."""
        if self.predicates or self.distinct or not all(item.expression.is_plain for item in self.select):
            return None
        return tuple((item.expression.columns[0].flat, item.name) for item in self.select)

    @property
    def names(self) -> tuple[str, ...]:
        """The output columns."""
        return tuple(item.name for item in self.select)


def answer_column(number: int) -> str:
    """The name of an evaluated answer column until it is delivered: output names may repeat or be odd."""
    return f"c{number}"


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


def finish_of(query: str, plan: Plan, errors: str = "fail") -> Finish:
    """What stands above the join in the plan of a query."""
    distinct = isinstance(plan, Distinct)
    top = plan.child if isinstance(plan, Distinct) else plan
    assert isinstance(top, Project), "a plan projects its answers"
    predicates = top.child.predicates if isinstance(top.child, Restrict) else ()
    return Finish(query, join_plan_of(plan).output, predicates, top.select, distinct, errors)
