"""How a query is answered: a frozen tree of a closed union of nodes, with the multi-way join as ONE node.

A join runs as one sequence for each head stream (the MJoin of the papers): new tuples of the head probe the windows of
the other streams one after the other. Consecutive probes by the same key form a stage; between stages the partial
combinations move to the bucket of the next key.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from watersmeet.query.comparisons import Condition
from watersmeet.query.model import Expression, Grouping, SelectItem, Target
from watersmeet.query.outer import OuterRelation
from watersmeet.query.windows import Window

# Spark types whose values fit 64 bits one to one: as keys they need no second comparison after a hit.
EXACT_KEY_TYPES = frozenset({"bigint", "int", "smallint", "tinyint", "boolean", "date", "timestamp", "timestamp_ntz"})

Key = tuple[int, ...]  # the key classes, in ascending order, that rows are partitioned and sorted by


@dataclass(frozen=True, slots=True)
class KeyClass:
    """Expressions that every answer makes equal, directly or through others; one for each alias that has any."""

    number: int
    members: tuple[Expression, ...]

    @property
    def exact(self) -> bool:
        """Whether 64 bits hold the value itself rather than a hash of it."""
        return all(member.type in EXACT_KEY_TYPES for member in self.members)

    def member(self, alias: str) -> Expression | None:
        return next((member for member in self.members if member.aliases == (alias,)), None)


@dataclass(frozen=True, slots=True)
class Kept:
    """A value kept of every row in a window, under a flat name."""

    name: str
    expression: Expression


@dataclass(frozen=True, slots=True)
class Scan:
    """One alias of the query: its window, its filters, and what is kept of its stream's rows."""

    alias: str
    stream: str
    window: Window
    filters: tuple[Expression, ...]
    kept: tuple[Kept, ...]
    classes: tuple[int, ...]  # key classes this alias has a member of

    @property
    def columns(self) -> tuple[str, ...]:
        """Flat names of what is kept."""
        return tuple(kept.name for kept in self.kept)


@dataclass(frozen=True, slots=True)
class Probe:
    """Look up one alias by the stage's key; `checks` are the classes still to be compared on a hit."""

    alias: str
    checks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """Probes that run in one place, the bucket of one key."""

    key: Key
    probes: tuple[Probe, ...]


@dataclass(frozen=True, slots=True)
class Sequence:
    """What happens to new tuples of one head alias."""

    head: str
    stages: tuple[Stage, ...]


class Method(StrEnum):
    """The one-way joins of the semijoin paper: simple or by semijoins, at the source or at the destination."""

    SP_S = "SP-S"
    SP_D = "SP-D"
    SM_S1 = "SM-S1"
    SM_S2 = "SM-S2"
    SM_D1 = "SM-D1"
    SM_D2 = "SM-D2"


@dataclass(frozen=True, slots=True)
class Hop:
    """One one-way join of a head's sequence: to which alias, how, and at which site it starts if not where it is."""

    alias: str
    method: Method = Method.SP_D
    at: str | None = None
    bloom: bool = False  # a Bloom filter travels instead of a set of keys


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """The one-way joins that new tuples of one head go through."""

    head: str
    hops: tuple[Hop, ...]


@dataclass(frozen=True, slots=True)
class Linear:
    """A sequence of its own for each head stream (linear ordering)."""

    heads: tuple[HeadPlan, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """The stream of an alias, at its home."""

    alias: str


class Reduction(StrEnum):
    """How an input of a join node is reduced before it travels: not at all, or by a semijoin in one step or in two.

    In one step the join node announces the keys it has; in two it is asked about those that the input has.
    """

    NONE = "none"
    ONE_STEP = "one-step"
    TWO_STEP = "two-step"


@dataclass(frozen=True, slots=True)
class Reducer:
    """A stream that an input of a join node is reduced by, wherever it is joined: its home announces its keys."""

    alias: str
    bloom: bool = False


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a join node; it is reduced, if at all, by what the inputs before it come to.

    Before that, and before it travels for the first time, it is reduced by streams of other inputs (a semijoin
    program): what has no partner in one of them is in no answer.
    """

    node: "Tree"
    reduction: Reduction = Reduction.NONE
    bloom: bool = False
    reducers: tuple[Reducer, ...] = ()

    def __post_init__(self) -> None:
        own = leaves_of(self.node)
        if any(one.alias in own for one in self.reducers):
            raise ValueError("an input of a join node is not reduced by a stream of its own")

    @property
    def is_reduced(self) -> bool:
        """Whether anything is left out of what travels."""
        return self.reduction is not Reduction.NONE or bool(self.reducers)


@dataclass(frozen=True, slots=True)
class JoinNode:
    """Streams and intermediate results joined at one site, in the order given (tree ordering; PMJoin's MJoin)."""

    at: str
    inputs: tuple[Input, ...]

    def __post_init__(self) -> None:
        if len(self.inputs) < 2:
            raise ValueError("a join node has two inputs or more")
        if self.inputs[0].reduction is not Reduction.NONE:
            raise ValueError("the first input of a join node has nothing to be reduced by")


Tree = Leaf | JoinNode


@dataclass(frozen=True, slots=True)
class Symmetric:
    """All windows at one site: new rows of each head probe the windows of the others (symmetric multi-way join)."""

    at: str
    sequences: tuple[Sequence, ...]


SubPlan = Linear | JoinNode | Symmetric  # how the combinations of one part of the key space are computed


def leaves_of(tree: Tree) -> tuple[str, ...]:
    """The aliases of a tree, from the left."""
    if isinstance(tree, Leaf):
        return (tree.alias,)
    return tuple(alias for item in tree.inputs for alias in leaves_of(item.node))


@dataclass(frozen=True, slots=True)
class HashParts:
    """Key values by a hash of them: the sub-plan of each bucket."""

    sub_plans: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RangeParts:
    """Key values by ranges: `sub_plans[i]` is for values below `bounds[i]`, the last one for all others."""

    bounds: tuple[int, ...]
    sub_plans: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ValueParts:
    """Key values one by one, ascending, each with its sub-plan; and the sub-plan of all others."""

    values: tuple[int, ...]
    sub_plans: tuple[int, ...]
    others: int


@dataclass(frozen=True, slots=True)
class Partition:
    """Which of a plan's sub-plans makes a combination, by its value of one key class."""

    key_class: int
    parts: HashParts | RangeParts | ValueParts


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """The n-ary window join of streams at one or more sites.

    Every combination comes from exactly one of the sub-plans: the only one, or that of its part of the key space.
    """

    classes: tuple[KeyClass, ...]
    scans: tuple[Scan, ...]
    homes: tuple[str, ...]  # the site of each scan's stream
    sub_plans: tuple[SubPlan, ...]
    site: str | None  # where answers are wanted; None leaves them where they are made
    verify: tuple[tuple[str, str], ...]
    output: tuple[str, ...]
    partition: Partition | None = None
    conditions: tuple[Condition, ...] = ()  # comparisons that are applied as soon as their aliases have met
    ships_once: bool = True  # rows of a stream that several joins need at a site travel there once

    def __post_init__(self) -> None:
        aliases = [scan.alias for scan in self.scans]
        if not self.sub_plans or (len(self.sub_plans) > 1) != (self.partition is not None):
            raise ValueError("a plan has one sub-plan, or a partition and several")
        for sub_plan in self.sub_plans:
            if isinstance(sub_plan, JoinNode):
                if sorted(leaves_of(sub_plan)) != sorted(aliases):
                    raise ValueError("a tree must reach every alias exactly once")
                continue
            orders = _orders(sub_plan)
            if [head for head, _ in orders] != aliases:
                raise ValueError("there must be one sequence for each alias, in the order of the query")
            for head, reached in orders:
                if sorted([head, *reached]) != sorted(aliases):
                    raise ValueError(f"the sequence of head {head!r} must reach every other alias exactly once")

    @property
    def heads(self) -> tuple[HeadPlan, ...]:
        """The sequences of a plan that is one linear sub-plan."""
        (sub_plan,) = self.sub_plans
        assert isinstance(sub_plan, Linear), "one linear sub-plan"
        return sub_plan.heads

    def scan(self, alias: str) -> Scan:
        return next(scan for scan in self.scans if scan.alias == alias)

    def home(self, alias: str) -> str:
        return next(home for scan, home in zip(self.scans, self.homes, strict=True) if scan.alias == alias)

    def kept_of(self, aliases: Collection[str]) -> tuple[str, ...]:
        """What is kept of a combination of some aliases: not what only comparisons need that have been applied."""
        scans = [scan for scan in self.scans if scan.alias in aliases]
        if len(scans) == 1:
            return scans[0].columns
        asked = {*self.output, *(name for pair in self.verify for name in pair)}
        asked.update(
            name
            for condition in self.conditions
            if not set(condition.aliases) <= set(aliases)
            for name in condition.columns
        )
        return tuple(name for scan in scans for name in scan.columns if name in asked)

    def position(self, alias: str) -> int:
        """The alias's place in the query: ties in time are resolved by it."""
        return next(number for number, scan in enumerate(self.scans) if scan.alias == alias)


def _orders(sub_plan: Linear | Symmetric) -> list[tuple[str, list[str]]]:
    """Each head and the aliases that its new rows are joined with, in order."""
    if isinstance(sub_plan, Linear):
        return [(plan.head, [hop.alias for hop in plan.hops]) for plan in sub_plan.heads]
    return [(s.head, [probe.alias for stage in s.stages for probe in stage.probes]) for s in sub_plan.sequences]


@dataclass(frozen=True, slots=True)
class Restrict:
    """Keep the combinations that satisfy every predicate."""

    child: "Plan"
    predicates: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Project:
    """Compute the output columns."""

    child: "Plan"
    select: tuple[SelectItem, ...]


@dataclass(frozen=True, slots=True)
class Distinct:
    """Let each different row through once, ever."""

    child: "Plan"


@dataclass(frozen=True, slots=True)
class Group:
    """Aggregate the rows below by their keys and output windows, and compute the output columns of groups."""

    child: "Plan"
    grouping: Grouping


@dataclass(frozen=True, slots=True)
class Into:
    """Give the answers to a target that is not the query's own sink."""

    child: "Plan"
    target: Target


@dataclass(frozen=True, slots=True)
class Matching:
    """Which combinations of several inner joins are the rows of an outer join (see query.outer)."""

    relations: tuple[OuterRelation, ...]
    windows: tuple[tuple[str, Window], ...]  # by alias
    answer_columns: tuple[int, ...]  # by branch: how many of its first items are answers
    names: tuple[str, ...]  # of the answer columns
    is_distinct: bool = False  # equal answers are one


@dataclass(frozen=True, slots=True)
class OuterJoin:
    """Outer joins and EXISTS: inner joins, each with items of its own, whose rows are matched with each other."""

    branches: tuple["Plan", ...]  # the one with the most aliases is the first
    matching: Matching
    grouping: Grouping | None = None

    @property
    def child(self) -> "Plan":
        """The inner join of all streams."""
        return self.branches[0]


Plan = JoinPlan | Restrict | Project | Distinct | Group | OuterJoin | Into


def join_plan_of(plan: Plan) -> JoinPlan:
    """The join at the bottom of a plan."""
    while not isinstance(plan, JoinPlan):
        plan = plan.child
    return plan


def join_plans_of(plan: Plan) -> tuple[JoinPlan, ...]:
    """All joins at the bottom of a plan: an outer join has several, none of which need have all streams."""
    while not isinstance(plan, JoinPlan | OuterJoin):
        plan = plan.child
    return (plan,) if isinstance(plan, JoinPlan) else tuple(map(join_plan_of, plan.branches))


def has_groups(plan: Plan) -> bool:
    """Whether a plan aggregates its answers."""
    while not isinstance(plan, JoinPlan | Group):
        plan = plan.child
    return isinstance(plan, Group)


def is_outer(plan: Plan) -> bool:
    """Whether a plan is made of several inner joins whose rows are matched with each other."""
    return isinstance(plan.child if isinstance(plan, Into) else plan, OuterJoin)


def with_join(plan: Plan, join: JoinPlan) -> Plan:
    """The same plan over another join."""
    if isinstance(plan, OuterJoin):
        return replace(plan, branches=(with_join(plan.child, join), *plan.branches[1:]))
    return join if isinstance(plan, JoinPlan) else replace(plan, child=with_join(plan.child, join))
