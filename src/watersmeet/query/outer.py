"""Outer joins and EXISTS as inner joins whose rows are matched with each other afterwards.

A row of an outer join has a partner or lacks it, node by node: the aliases that it has a row of are its *pattern*. All
rows of a pattern are combinations of one inner join, its *branch*. Which of them are answers is said by *relations*:

    all        all combinations of the branch
    part       those whose part in another relation is a row of that one
    unmatched  rows of another relation that are no part of any row of some others (LEFT, FULL, NOT EXISTS)
    matched    rows of another relation that are (EXISTS)
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from watersmeet.errors import SqlError
from watersmeet.query.model import (
    Column,
    Equality,
    Expression,
    JoinKind,
    JoinQuery,
    JoinTree,
    OuterJoins,
    Predicate,
    SelectItem,
)
from watersmeet.query.nulls import rejects_null, with_nulls
from watersmeet.query.windows import AsOf, Rows, Unbounded, Window

MOST_BRANCHES = 24
ROW_ID, ROW_TIME, ROW_ORDINAL = (
    "#id",
    "#ts",
    "#ordinal",
)  # columns of an alias that tell its rows apart and when they are
OWN_COLUMNS = (ROW_ID, ROW_TIME, ROW_ORDINAL)
WHERE_HOLDS = "#where"  # whether WHERE holds for a row, where it is asked after the outer join


class RelationKind(StrEnum):
    """Which combinations of a branch are rows of a relation."""

    ALL = "all"
    PART = "part"
    UNMATCHED = "unmatched"
    MATCHED = "matched"


JUDGING = (RelationKind.UNMATCHED, RelationKind.MATCHED)  # rows wait until their partners are known


@dataclass(frozen=True, slots=True)
class Matcher:
    """A relation whose rows show which rows of another one have a partner."""

    relation: int
    is_raw: bool  # any combination of its branch does, whether or not it is a row of the relation


@dataclass(frozen=True, slots=True)
class OuterRelation:
    """Rows of an outer join with one pattern, at one node of FROM."""

    kind: RelationKind
    branch: int
    aliases: tuple[str, ...]
    of: int = -1  # the relation whose rows are judged, or which a part must be a row of
    by: tuple[Matcher, ...] = ()
    is_output: bool = False
    is_at_once: bool = False  # partners are rows of tables, which are known at the time of the row that is judged


@dataclass(frozen=True, slots=True)
class Branch:
    """An inner join; its select items are the answer columns, if its rows may be answers, and columns of ours."""

    query: JoinQuery
    answer_columns: int


@dataclass(frozen=True, slots=True)
class Branches:
    """The inner joins that an outer join is made of, and what becomes of their rows; relations come after their own."""

    branches: tuple[Branch, ...]
    relations: tuple[OuterRelation, ...]
    main: int  # the branch with the most aliases
    windows: tuple[tuple[str, Window], ...]  # by alias


@dataclass
class _Pattern:
    aliases: frozenset[str]
    predicates: tuple[Predicate, ...]
    relation: int
    is_plain: bool  # all combinations of its branch are rows


@dataclass
class _Made:
    kind: RelationKind
    aliases: frozenset[str]
    of: int = -1
    by: list[Matcher] = field(default_factory=list)
    is_output: bool = False


def branches_of(query: JoinQuery) -> Branches:
    """The inner joins of a query with outer joins or EXISTS."""
    assert query.outer is not None, "a query in which the order of joins matters"
    return _Expansion(query, query.outer).branches()


def aliases_of(node: JoinTree | str) -> frozenset[str]:
    """All aliases below a node."""
    return frozenset({node}) if isinstance(node, str) else aliases_of(node.left) | aliases_of(node.right)


def _visible(node: JoinTree | str) -> frozenset[str]:
    """The aliases whose columns the rows of a node have."""
    if isinstance(node, str):
        return frozenset({node})
    is_half = node.kind in (JoinKind.SEMI, JoinKind.ANTI)
    return _visible(node.left) | (frozenset() if is_half else _visible(node.right))


class _Expansion:
    def __init__(self, query: JoinQuery, outer: OuterJoins) -> None:
        self._query = query
        self._types = dict(outer.types)
        self._filters: dict[str, tuple[Predicate, ...]] = {}
        self._made: list[_Made] = []
        self._tables = {source.alias for source in query.sources if isinstance(source.window, AsOf)}
        self._joins: dict[frozenset[str], tuple[Predicate, ...]] = {}  # by pattern, the predicates of its branch
        rejected = frozenset[str]().union(*(rejects_null(predicate) for predicate in outer.where))
        self._tree = self._pushed_down(_simplified(outer.tree, rejected))
        self._where: list[Predicate] = []
        for predicate in outer.where:
            pushed = self._push(self._tree, predicate)
            if pushed is None:
                self._where.append(predicate)
            else:
                self._tree = pushed
        self._check_refreshed(outer.tree)

    # -- predicates to where they can be applied first

    def _pushed_down(self, node: JoinTree | str) -> JoinTree | str:
        """The tree with conditions of ON moved down into the sides that they are about alone."""
        if isinstance(node, str):
            return node
        node = replace(node, left=self._pushed_down(node.left), right=self._pushed_down(node.right))
        if node.kind is JoinKind.FULL:
            return node
        kept = []
        for predicate in node.on:
            named = set(predicate.aliases)
            left = right = None
            if node.kind is JoinKind.INNER and named <= aliases_of(node.left):
                left = self._push(node.left, predicate)
            elif named <= aliases_of(node.right):
                right = self._push(node.right, predicate)
            if left is None and right is None:
                kept.append(predicate)
            node = replace(node, left=left or node.left, right=right or node.right)
        return replace(node, on=tuple(kept))

    def _push(self, node: JoinTree | str, predicate: Predicate) -> JoinTree | str | None:
        """The node with a condition on its rows put as far down as it can be; None if it must stay above."""
        if not predicate.aliases:
            return None
        if isinstance(node, str):
            self._filters[node] = (*self._filters.get(node, ()), predicate)
            return node
        named = set(predicate.aliases)
        if node.kind is not JoinKind.FULL and named <= aliases_of(node.left):
            left = self._push(node.left, predicate)
            return None if left is None else replace(node, left=left)
        if node.kind is not JoinKind.INNER:
            return None
        if named <= aliases_of(node.right):
            right = self._push(node.right, predicate)
            return None if right is None else replace(node, right=right)
        return replace(node, on=(*node.on, predicate))

    # -- patterns and relations

    def branches(self) -> Branches:
        patterns = self._patterns(self._tree)
        everything = aliases_of(self._tree)
        for pattern in patterns:
            absent = everything - pattern.aliases
            if not any(rejects_null(predicate) & absent for predicate in self._where):
                self._made[pattern.relation].is_output = True
        needed = sorted(self._needed())
        self._check_kept_tables(needed)
        numbers = {old: new for new, old in enumerate(needed)}
        order = [source.alias for source in self._query.sources]
        places = sorted({self._made[old].aliases for old in needed}, key=lambda one: (-len(one), sorted(one)))
        if len(places) > MOST_BRANCHES:
            raise SqlError(
                f"the outer joins of this query need {len(places)} inner joins; {MOST_BRANCHES} is the limit: "
                "split the query, or tie each optional stream to the one before it"
            )
        relations = []
        for old in needed:
            made = self._made[old]
            relations.append(
                OuterRelation(
                    made.kind,
                    places.index(made.aliases),
                    tuple(alias for alias in order if alias in made.aliases),
                    numbers.get(made.of, -1),
                    tuple(replace(matcher, relation=numbers[matcher.relation]) for matcher in made.by),
                    made.is_output,
                    self._is_at_once(old) and not self._is_awaited(old, needed),
                )
            )
        self._check_bounded(relations)
        branches = tuple(self._branch(aliases, number, relations) for number, aliases in enumerate(places))
        windows = tuple((source.alias, source.window) for source in self._query.sources)
        return Branches(branches, tuple(relations), 0, windows)

    def _patterns(self, node: JoinTree | str) -> list[_Pattern]:
        if isinstance(node, str):
            return [self._plain(frozenset({node}), self._filters.get(node, ()))]
        left, right = self._patterns(node.left), self._patterns(node.right)
        if node.kind in (JoinKind.SEMI, JoinKind.ANTI):
            return self._halves(node, left, right)
        pairs = {(i, j): pair for i, pattern in enumerate(left) for j, two in enumerate(right)
                 if (pair := self._pair(node, pattern, two)) is not None}  # fmt: skip
        found = list(pairs.values())
        if node.kind is not JoinKind.INNER:
            found += [
                self._lacking(pattern, [pair for (i, _), pair in pairs.items() if i == number])
                for number, pattern in enumerate(left)
            ]
        if node.kind is JoinKind.FULL:
            found += [
                self._lacking(two, [pair for (_, j), pair in pairs.items() if j == number])
                for number, two in enumerate(right)
            ]
        return found

    def _plain(self, aliases: frozenset[str], predicates: Iterable[Predicate]) -> _Pattern:
        self._joins[aliases] = tuple(dict.fromkeys(predicates))
        self._made.append(_Made(RelationKind.ALL, aliases))
        return _Pattern(aliases, self._joins[aliases], len(self._made) - 1, is_plain=True)

    def _joined(self, node: JoinTree, left: _Pattern, right: _Pattern) -> _Pattern | None:
        """All combinations of two patterns that satisfy ON; None where it rejects the NULLs of one."""
        absent = aliases_of(node) - left.aliases - right.aliases
        if any(rejects_null(predicate) & absent for predicate in node.on):
            return None
        on = (self._without(predicate, absent) for predicate in node.on)
        return self._plain(left.aliases | right.aliases, (*left.predicates, *right.predicates, *on))

    def _pair(self, node: JoinTree, left: _Pattern, right: _Pattern) -> _Pattern | None:
        pattern = self._joined(node, left, right)
        if pattern is None or (left.is_plain and right.is_plain):
            return pattern
        parts = []
        for side in (left, right):
            if not side.is_plain:
                self._made.append(_Made(RelationKind.PART, pattern.aliases, side.relation))
                parts.append(_Pattern(pattern.aliases, pattern.predicates, len(self._made) - 1, is_plain=False))
        if len(parts) == 1:
            return parts[0]
        return self._judged(RelationKind.MATCHED, parts[0], [Matcher(parts[1].relation, is_raw=False)])

    def _lacking(self, pattern: _Pattern, pairs: list[_Pattern]) -> _Pattern:
        """The rows of a pattern that are in none of some pairs."""
        by = [Matcher(pair.relation, self._made[pair.relation].of in (-1, pattern.relation)) for pair in pairs]
        return self._judged(RelationKind.UNMATCHED, pattern, by) if by else pattern

    def _halves(self, node: JoinTree, left: list[_Pattern], right: list[_Pattern]) -> list[_Pattern]:
        """EXISTS or NOT EXISTS: the subquery has one pattern, since it has inner joins alone."""
        (inside,) = right
        found = []
        for pattern in left:
            pair = self._joined(node, pattern, inside)
            by = [] if pair is None else [Matcher(pair.relation, is_raw=True)]
            if node.kind is JoinKind.ANTI:
                found.append(self._judged(RelationKind.UNMATCHED, pattern, by) if by else pattern)
            elif by:
                found.append(self._judged(RelationKind.MATCHED, pattern, by))
        return found

    def _judged(self, kind: RelationKind, pattern: _Pattern, by: list[Matcher]) -> _Pattern:
        self._made.append(_Made(kind, pattern.aliases, pattern.relation, by))
        return _Pattern(pattern.aliases, pattern.predicates, len(self._made) - 1, is_plain=False)

    def _needed(self) -> Iterator[int]:
        waiting = [number for number, made in enumerate(self._made) if made.is_output]
        seen: set[int] = set()
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                yield number
                made = self._made[number]
                waiting += [matcher.relation for matcher in made.by]
                waiting += [made.of] if made.of >= 0 else []

    # -- tables

    def _is_at_once(self, number: int) -> bool:
        """Whether rows of a relation are judged by rows of tables alone, as are all relations that they were in."""
        made = self._made[number]
        if made.of >= 0 and not self._is_at_once(made.of):
            return False
        others = (self._made[matcher.relation].aliases - made.aliases for matcher in made.by)
        return all(aliases <= self._tables for aliases in others)

    def _is_awaited(self, number: int, needed: Iterable[int]) -> bool:
        """Whether combinations with rows of further streams come later, which must know then what was decided."""
        for other in (self._made[one] for one in needed):
            if other.kind is RelationKind.PART and other.aliases - self._made[number].aliases - self._tables:
                part = other.of
                while part >= 0 and part != number and self._made[part].kind in JUDGING:
                    part = self._made[part].of
                if part == number:
                    return True
        return False

    def _check_kept_tables(self, needed: Iterable[int]) -> None:
        for made in (self._made[number] for number in needed):
            if made.aliases <= self._tables:
                names = " and ".join(repr(alias) for alias in sorted(made.aliases))
                raise SqlError(
                    f"it is never known that a row of table {names} has no partner, since rows of streams come without "
                    "end; keep the rows of the stream instead, as in: stream LEFT JOIN table"
                )

    def _check_refreshed(self, node: JoinTree | str) -> None:
        """Refuse streams that are joined after a table whose versions change: a row would see two of them."""
        if isinstance(node, str):
            return
        for side, other in ((node.left, node.right), (node.right, node.left)):
            seen = _visible(side)
            refreshed = [name for name in seen if self._query.source(name).window == AsOf(is_refreshed=True)]
            if refreshed and seen - self._tables and _visible(other) - self._tables:
                raise SqlError(
                    f"streams are joined after table {min(refreshed)!r}, which is refreshed, in a query with outer "
                    "joins or EXISTS; join the table last, or join it in a view and read that here"
                )
            self._check_refreshed(side)

    def _check_bounded(self, relations: Iterable[OuterRelation]) -> None:
        for relation in relations:
            windows = [self._query.source(alias).window for alias in relation.aliases]
            if relation.kind not in JUDGING or relation.is_at_once:
                continue
            if not all(isinstance(window, Unbounded | AsOf) for window in windows):
                continue
            names = " and ".join(repr(alias) for alias in relation.aliases if alias not in self._tables)
            if relation.kind is RelationKind.UNMATCHED:
                raise SqlError(
                    f"it is never known that a row of {names} has no partner, since its window is UNBOUNDED; give it a "
                    "window that ends, e.g. [RANGE 1 HOUR]"
                )
            if self._query.grouping is not None or (self._query.into is not None and self._query.into.is_stream):
                what = "GROUP BY" if self._query.grouping is not None else "a view or subquery"
                raise SqlError(
                    f"{what} with EXISTS would wait without end, since the window of {names} is UNBOUNDED and a row of "
                    "it may find a partner at any time; give it a window that ends, e.g. [RANGE 1 HOUR]"
                )

    # -- branches

    def _branch(self, aliases: frozenset[str], number: int, relations: Iterable[OuterRelation]) -> Branch:
        query = self._query
        absent = frozenset(query.aliases) - aliases
        predicates = self._joins[aliases]
        expressions = [predicate for predicate in predicates if isinstance(predicate, Expression)]
        relations = tuple(relations)
        own = [relation for relation in relations if relation.branch == number]
        is_output = any(relation.is_output for relation in own)
        items = list(query.select) if is_output else []
        select = [replace(item, expression=with_nulls(item.expression, self._types, absent)) for item in items]
        if is_output and self._where:
            where = [self._without(predicate, absent) for predicate in self._where]
            columns = sorted({column for predicate in where for column in _columns(predicate)})
            condition = " AND ".join(f"({_sql(predicate)})" for predicate in where)
            select.append(
                SelectItem(WHERE_HOLDS, Expression(f"coalesce({condition}, false)", tuple(columns), "boolean"))
            )
        for alias in self._identified(number, relations):
            window = query.source(alias).window
            names = (ROW_ORDINAL if isinstance(window, Rows) else ROW_ID, ROW_TIME)
            for column in (Column(alias, name) for name in names):
                select.append(SelectItem(column.flat, Expression(column.sql, (column,), "bigint")))
        inner = replace(
            query,
            sources=tuple(source for source in query.sources if source.alias in aliases),
            equalities=tuple(predicate for predicate in predicates if isinstance(predicate, Equality)),
            filters=tuple(expression for expression in expressions if len(expression.aliases) == 1),
            residuals=tuple(expression for expression in expressions if len(expression.aliases) != 1),
            select=tuple(select),
            distinct=False,
            grouping=None,
            outer=None,
            into=None,
            also_kept=(),  # a restart asks for the same columns of every branch
        )
        return Branch(inner, len(items))

    def _identified(self, branch: int, relations: tuple[OuterRelation, ...]) -> list[str]:
        """The aliases of a branch whose rows are told apart."""
        found: set[str] = set()
        for relation in relations:
            judges = relation.kind in JUDGING
            if relation.branch == branch:
                found |= set(relation.aliases) if judges else set()
                if relation.kind is RelationKind.PART:
                    found |= set(relations[relation.of].aliases)
            if relation.kind is RelationKind.PART and relations[relation.of].branch == branch:
                found |= set(relations[relation.of].aliases)
            for matcher in relation.by:
                found |= set(relation.aliases) if relations[matcher.relation].branch == branch else set()
        return [alias for alias in self._query.aliases if alias in found]

    def _without(self, predicate: Predicate, absent: frozenset[str]) -> Predicate:
        if not absent & set(predicate.aliases):
            return predicate
        return with_nulls(_as_expression(predicate), self._types, absent)


def _simplified(node: JoinTree | str, rejected: frozenset[str]) -> JoinTree | str:
    """Outer joins whose NULLs are rejected above as joins without them."""
    if isinstance(node, str):
        return node
    left, right = aliases_of(node.left), aliases_of(node.right)
    by_on = frozenset[str]().union(*(rejects_null(predicate) for predicate in node.on))
    kind, sides = node.kind, (node.left, node.right)
    if kind is JoinKind.FULL:
        match bool(rejected & left), bool(rejected & right):
            case True, True:
                kind = JoinKind.INNER
            case True, False:
                kind = JoinKind.LEFT
            case False, True:
                kind, sides = JoinKind.LEFT, (node.right, node.left)
    elif kind is JoinKind.LEFT and rejected & right:
        kind = JoinKind.INNER
    match kind:
        case JoinKind.INNER:
            below = (rejected | by_on, rejected | by_on)
        case JoinKind.FULL:
            below = (frozenset[str](), frozenset[str]())
        case _:
            below = (rejected, by_on)
    return JoinTree(kind, _simplified(sides[0], below[0]), _simplified(sides[1], below[1]), node.on)


def _as_expression(predicate: Predicate) -> Expression:
    if isinstance(predicate, Expression):
        return predicate
    columns = tuple(sorted({*predicate.left.columns, *predicate.right.columns}))
    return Expression(f"({predicate.left.sql}) = ({predicate.right.sql})", columns, "boolean")


def _columns(predicate: Predicate) -> tuple[Column, ...]:
    return _as_expression(predicate).columns


def _sql(predicate: Predicate) -> str:
    return _as_expression(predicate).sql
