"""A site's part of one join: names of its flows and relations among those of all joins, and what its operators read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from watersmeet.plan.nodes import JoinPlan, Key, Partition
from watersmeet.program.finish.model import Finish
from watersmeet.program.finish.shared import Member, RecordShape
from watersmeet.program.operators import Flow, Form, JoinProgram, Operator, Pair, SubPlans, sub_plans_name
from watersmeet.program.site.roles import axis_alias, role
from watersmeet.program.site.spans import ALL_TIMES, Span, first_visible
from watersmeet.program.site.streams import View, clock_flow
from watersmeet.program.storage.segments import ORDINAL, ordinal_column
from watersmeet.query.windows import AsOf, counted


@dataclass(frozen=True, slots=True)
class Route:
    """Which rows some sub-plans of a partitioned join are for, by a class column of the rows."""

    partition: Partition
    column: int
    sub_plans: tuple[int, ...]


@dataclass(frozen=True)
class JoinPart:
    """A site's part of one join, and the queries that are answered from it here."""

    name: str
    program: JoinProgram
    views: Mapping[str, View]
    queries: tuple[str, ...]  # all that ask for this join, wherever they are answered
    finishes: tuple[Finish, ...] = ()
    heads: Span = ALL_TIMES  # of the combinations that are its own, by their latest rows
    apart: Mapping[str, str] = field(default_factory=dict)  # relations of streams that it does not share, by that name
    is_fresh: bool = False  # of a query that began with it, so that no earlier row takes part
    partials: tuple[Finish, ...] = ()  # queries with groups that are answered elsewhere: records go there, not rows
    is_grouped: bool = False  # all its queries group their answers, so that sites send each other partial records
    shapes: Mapping[str, RecordShape] = field(
        default_factory=dict
    )  # by query: of records that it may share with others
    shared: frozenset[str] = frozenset()  # queries whose rows are recorded here, together with those of others
    members: Mapping[str, Member] = field(default_factory=dict)  # by query with a shape: what counts for it

    @property
    def is_recorded(self) -> bool:
        """Whether rows are recorded as they come for all its queries here, so that its operators need not run."""
        queries = {finish.query for finish in (*self.finishes, *self.partials)}
        return bool(queries) and queries <= self.shared

    def records(self, query: str, origin: str) -> str:
        """The flow of a query's partial records from a site."""
        return f"{self.name}:records of {query} from {origin}"

    @property
    def join(self) -> JoinPlan:
        return self.program.join

    @property
    def is_in_force(self) -> bool:
        """Whether no other version has been agreed on to follow this one."""
        return self.heads.until_us is None

    def span(self, operator: Operator, flow: Flow) -> Span:
        """When the rows of a stream are that an operator may need; a version of a table is in force from before it."""
        if flow.form is Form.ROW and flow.name in self.views and self._is_table(flow.name):
            return Span(None, self.heads.until_us)
        if self.heads.from_us is None or self.is_fresh:
            return Span(self.heads.from_us, self.heads.until_us)
        first: int | None = self.heads.from_us
        if role(operator, flow) is not Form.POINT:
            first = first_visible(self.join.scan(axis_alias(operator, flow)).window, self.heads.from_us)
        return Span(first, self.heads.until_us)

    def _is_table(self, alias: str) -> bool:
        return isinstance(self.join.scan(alias).window, AsOf)

    @cached_property
    def _clocks(self) -> dict[str, str]:
        return {f"clock({alias})": clock_flow(view.stream) for alias, view in self.views.items()}

    def view_of(self, flow: Flow) -> View | None:
        """The view through which a flow is read, if it is the rows of a stream."""
        return self.views.get(flow.name) if flow.form is Form.ROW else None

    def flow(self, flow: Flow) -> str:
        """The name of a flow of this join among all flows of the site."""
        view = self.view_of(flow)
        if view is not None:
            return view.flow
        return self._clocks[flow.name] if flow.form is Form.CLOCK else f"{self.name}:{flow.name}"

    def mark(self, flow: Flow) -> str:
        """The name of the flow whose watermark holds for a flow."""
        return f"{self.name}:{flow.mark}" if flow.mark else self.flow(flow)

    def clock(self, alias: str) -> str:
        """The name of an alias's row clock."""
        return clock_flow(self.views[alias].stream)

    def columns(self, flow: Flow, key: Key) -> Key:
        """The class columns of a flow's rows that are a key of the join."""
        view = self.view_of(flow)
        return key if view is None else tuple(view.keys[number] for number in key)

    def relation(self, flow: Flow, key: Key, sub_plans: SubPlans = None) -> str:
        """The name of a flow's rows sorted by a key, of some sub-plans if not all.

        Aliases of one stream may have the partition's key in different columns, or some not at all: then the rows of
        a sub-plan are others for each.
        """
        route = self.route(flow, sub_plans)
        own = "" if route is None else f"{sub_plans_name(sub_plans)}@{self.name}.{route.column}"
        name = f"{self.flow(flow)}/{'-'.join(map(str, self.columns(flow, key)))}{own}"
        return self.apart.get(name, name)

    def route(self, flow: Flow, sub_plans: SubPlans) -> Route | None:
        """Which rows of a flow some sub-plans are for; None where all are or their part is not known from the row."""
        partition = self.join.partition
        if sub_plans is None or partition is None:
            return None
        view = self.view_of(flow)
        if view is None:
            return Route(partition, partition.key_class, sub_plans)
        column = view.keys.get(partition.key_class)
        return None if column is None else Route(partition, column, sub_plans)


def counting_of(part: JoinPart, operator: Operator) -> tuple[str, ...]:
    """The aliases of a join of a tree whose windows count rows, and whose row clocks it reads."""
    if not isinstance(operator, Pair):
        return ()
    return tuple(alias for alias in operator.aliases if counted(part.join.scan(alias).window) is not None)


def ordinal_name(part: JoinPart, flow: Flow, alias: str) -> str:
    """The column of a flow that holds the ordinals of an alias; that which it is kept by is the plain one."""
    is_own = flow.form is not Form.INTERMEDIATE or flow.alias == alias
    return ORDINAL if is_own else ordinal_column(part.join.position(alias))


def needs_rows(part: JoinPart) -> bool:
    """Whether a join counts rows, so that rows are new only when all watermarks have passed them."""
    return any(counted(scan.window) is not None for scan in part.join.scans)
