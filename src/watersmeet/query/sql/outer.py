"""FROM and WHERE as a tree, where the order of joins matters: outer joins, EXISTS, NOT EXISTS, IN and NOT IN."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType as T

from watersmeet.errors import SqlError
from watersmeet.query.model import Equality, Expression, JoinKind, JoinTree, OuterJoins, Predicate, StreamRef
from watersmeet.query.sql.expressions import column_references, make_expression
from watersmeet.query.sql.functions import AGGREGATES, is_call, refuse_functions
from watersmeet.query.sql.grammar import Statement, unaliased
from watersmeet.query.sql.scope import Scope, make_scope
from watersmeet.query.sql.select_list import read_item
from watersmeet.query.sql.sources import joins_of, kind_of, read_sources
from watersmeet.query.sql.where import conjuncts_of, read_conjunct
from watersmeet.query.windows import MOST_STREAMS, AsOf, Unbounded, Window

_SUBQUERY_PARTS = {"expressions", "from_", "joins", "where", "distinct"}


@dataclass
class _Group:
    """What stands between two commas of FROM: a chain of joins, each of which may see all before it."""

    tree: JoinTree | str
    aliases: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Conditions:
    """FROM and WHERE: all predicates in order, all streams, and the tree where the order of joins matters."""

    predicates: tuple[Predicate, ...]
    sources: tuple[StreamRef, ...]
    outer: OuterJoins | None


def read_conditions(
    statement: Statement,
    scope: Scope,
    sources: tuple[StreamRef, ...],
    united: Mapping[int, Sequence[Equality]],
    columns: Mapping[str, Sequence[str]],
    tables: Mapping[str, Window],
) -> Conditions:
    """The predicates of ON, USING and WHERE, and the streams of subqueries in WHERE behind those of FROM."""
    predicates: list[Predicate] = []
    groups = [_Group(sources[0].alias, [sources[0].alias])]
    for number, join in enumerate(joins_of(statement), start=1):
        alias, kind = sources[number].alias, kind_of(join)
        on: list[Predicate] = list(united.get(number, ()))
        if condition := join.args.get("on"):
            on += [read_conjunct(statement, scope, node) for node in conjuncts_of(condition)]
        predicates += on
        if join.args.get("kind") is None:  # a comma
            groups.append(_Group(alias, [alias]))
            continue
        group = groups[-1]
        if kind != "INNER":
            _check_outer(statement, join, on, {*group.aliases, alias})
        elif any(set(predicate.aliases) - {*group.aliases, alias} for predicate in on):
            # ON of an inner join may name streams before a comma: they are joined first.
            group = _merged(groups)
        match kind:
            case "RIGHT":
                group.tree = JoinTree(JoinKind.LEFT, alias, group.tree, tuple(on))
            case _:
                group.tree = JoinTree(JoinKind(kind.lower()), group.tree, alias, tuple(on))
        group.aliases.append(alias)
    tree = _merged(groups).tree
    where: list[Predicate] = []
    every = list(sources)
    hidden = hidden_aliases(statement, sources)
    seen = {name: alias for name, alias in scope.aliases.items() if alias[0] not in hidden}
    if clause := statement.tree.args.get("where"):
        for conjunct in conjuncts_of(clause.this):
            found = _subquery_of(conjunct)
            if found is None:
                where.append(read_conjunct(statement, replace(scope, nearest=frozenset(seen)), conjunct))
                continue
            outside = replace(scope, aliases=seen)
            right, on, more = _read_subquery(statement, outside, every, columns, tables, conjunct, *found)
            tree = JoinTree(found[0], tree, right, tuple(on))
            every += more
            predicates += on
    predicates += where
    if len(every) > MOST_STREAMS:
        raise SqlError(f"the query has {len(every)} streams; {MOST_STREAMS} is the limit of one query")
    is_outer = isinstance(tree, JoinTree) and any(node.kind is not JoinKind.INNER for node in _nodes(tree))
    outer = OuterJoins(tree, tuple(dict.fromkeys(where))) if is_outer and isinstance(tree, JoinTree) else None
    return Conditions(tuple(dict.fromkeys(predicates)), tuple(every), outer)


def hidden_aliases(statement: Statement, sources: Sequence[StreamRef]) -> frozenset[str]:
    """The aliases of FROM that only semi- and anti-joins read: nothing after FROM sees them."""
    joins = enumerate(joins_of(statement), start=1)
    return frozenset(sources[number].alias for number, join in joins if kind_of(join) in ("SEMI", "ANTI"))


def _merged(groups: list[_Group]) -> _Group:
    """All groups as one, joined in order."""
    first, *others = groups
    for other in others:
        first.tree = JoinTree(JoinKind.INNER, first.tree, other.tree, ())
        first.aliases += other.aliases
    groups[:] = [first]
    return first


def _nodes(tree: JoinTree | str) -> Iterator[JoinTree]:
    if isinstance(tree, JoinTree):
        yield tree
        yield from _nodes(tree.left)
        yield from _nodes(tree.right)


def _check_outer(statement: Statement, join: exp.Join, on: Sequence[Predicate], known: set[str]) -> None:
    begin, written = join.meta["begin"], f"{' '.join((join.args.get('kind') or '').split())} JOIN"
    if join.meta.get("nested"):
        raise statement.text.error(begin, f"a {written} needs its ON right behind its stream; write them in turn")
    if not on:
        raise statement.text.error(begin, f"a {written} has no condition; add ON with an equality")
    for predicate in on:
        if others := sorted(set(predicate.aliases) - known):
            message = f"ON of a {written} names {others[0]!r}, which is joined elsewhere; join it before with JOIN"
            raise statement.text.error(begin, message)


def _subquery_of(node: exp.Expr) -> tuple[JoinKind, exp.Select, exp.In | None] | None:
    """What EXISTS or IN with a subquery asks for; None if a conjunct is neither."""
    inner = node
    is_not = False
    while isinstance(inner, exp.Paren | exp.Not):
        is_not ^= isinstance(inner, exp.Not)
        inner = inner.this
    kind = JoinKind.ANTI if is_not else JoinKind.SEMI
    if isinstance(inner, exp.Exists) and isinstance(inner.this, exp.Select):
        return kind, inner.this, None
    if isinstance(inner, exp.In) and (query := inner.args.get("query")) is not None:
        select = query.this if isinstance(query, exp.Subquery) else query
        if isinstance(select, exp.Select):
            return kind, select, inner
    return None


def _read_subquery(
    statement: Statement,
    scope: Scope,
    known: Sequence[StreamRef],
    columns: Mapping[str, Sequence[str]],
    tables: Mapping[str, Window],
    conjunct: exp.Expr,
    kind: JoinKind,
    select: exp.Select,
    compared: exp.In | None,
) -> tuple[JoinTree | str, list[Predicate], list[StreamRef]]:
    """The streams of a subquery as a tree of inner joins, what joins them to the rows outside, and their names."""
    text, tokens = statement.text, statement.tokens_of(conjunct)
    clause = "IN" if compared is not None else "EXISTS"
    for name, value in select.args.items():
        if value and name not in _SUBQUERY_PARTS:
            word = {"group": "GROUP BY", "order": "ORDER BY"}.get(name, name.strip("_").upper())
            raise text.error(tokens[0], f"{word} in the subquery of {clause} is not supported; leave it out")
    if emit := select.meta.get("emit"):
        raise text.error(emit, f"EMIT CHANGES in the subquery of {clause} is not supported; leave it out")
    if any("tokens" not in node.meta for node in map(unaliased, select.expressions)):
        raise text.error(tokens[0], f"the subquery of {clause} has no SELECT; write SELECT 1 FROM ...")
    if select.args.get("from_") is None:
        raise text.error(tokens[0], f"the subquery of {clause} has no FROM; name a stream there")
    inside = Statement(text, statement.tokens, select)
    joins = list(joins_of(inside))
    if any(kind_of(join) != "INNER" or join.args.get("using") for join in joins):
        message = f"only inner joins with ON are supported in the subquery of {clause}; write one EXISTS for each"
        raise text.error(tokens[0], message)
    written = read_sources(inside, columns, tables, subquery_of=clause)
    sources = []
    taken = {source.alias.casefold() for source in known}
    for source in written:
        alias, number = source.alias, 2
        while alias.casefold() in taken:
            alias, number = f"{source.alias}_{number}", number + 1
        taken.add(alias.casefold())
        sources.append(replace(source, alias=alias))
    own = make_scope(text, sources, columns)
    named = {old.alias.casefold(): own.aliases[new.alias.casefold()] for old, new in zip(written, sources, strict=True)}
    both = replace(scope, aliases={**scope.aliases, **named}, nearest=frozenset(named))
    _check_select(inside, replace(own, aliases=named), both, clause)
    conditions = [join.args["on"] for join in joins if join.args.get("on")]
    if where := select.args.get("where"):
        conditions.append(where.this)
    on: list[Predicate] = []
    for condition in conditions:
        for expr in conjuncts_of(condition):
            if _subquery_of(expr) is not None:
                raise text.error(tokens[0], "a subquery within a subquery is not supported; join its streams instead")
            on.append(read_conjunct(inside, both, expr))
    if compared is not None:
        on.append(_membership(statement, scope, both, compared, select, kind))
    aliases = {source.alias for source in sources}
    tree: JoinTree | str = sources[0].alias
    for number, source in enumerate(sources[1:], start=2):
        here = {source.alias for source in sources[:number]}
        ready = tuple(
            predicate for predicate in on if set(predicate.aliases) <= here and source.alias in predicate.aliases
        )
        tree = JoinTree(JoinKind.INNER, tree, source.alias, ready)
    inner = {predicate for node in _nodes(tree) for predicate in node.on}
    reads_tables = all(isinstance(source.window, AsOf) for source in sources)
    ends = any(not isinstance(source.window, Unbounded | AsOf) for source in known)
    if kind is JoinKind.ANTI and not ends and not reads_tables:
        waiting = next((source for source in known if isinstance(source.window, Unbounded)), known[0])
        message = f"NOT {clause} is never decided where no window outside ends"
        raise text.error(tokens[0], f"{message}; write one, such as {waiting.stream} [RANGE 10 MINUTES]")
    rest = [predicate for predicate in on if predicate not in inner]
    if (
        compared is not None
        and kind is JoinKind.ANTI
        and not any(isinstance(predicate, Equality) for predicate in rest)
    ):
        message = "NOT IN must compare a row with all of the subquery, since a NULL among them decides; "
        cure = "write NOT EXISTS with an equality, which passes over NULLs, or add an equality to the subquery"
        raise text.error(tokens[0], message + cure)
    if not any(set(predicate.aliases) - aliases for predicate in rest):
        message = f"the subquery of {clause} is not tied to the rows outside; add an equality with one of their columns"
        raise text.error(tokens[0], message)
    return tree, [*rest, *(predicate for predicate in on if predicate in inner)], sources


def _check_select(inside: Statement, own: Scope, both: Scope, clause: str) -> None:
    """Refuse a select list that Spark would refuse, and aggregates, which have one row however many there are."""
    for node in inside.tree.expressions:
        tokens = inside.tokens_of(unaliased(node))
        if call := next((tokens[i] for i in range(len(tokens)) if is_call(tokens, i, AGGREGATES)), None):
            always = ", where a subquery without GROUP BY always has a row" if clause == "EXISTS" else ""
            cure = "make a view of the groups and read it there"
            message = f"the aggregate {call.name.casefold()} cannot be in the subquery of {clause}{always}; {cure}"
            raise inside.text.error(call, message)
        is_star = tokens[-1].kind is T.STAR and (len(tokens) == 1 or tokens[-2].kind is T.DOT)
        read_item(inside, own if is_star else both, node, is_named=False)


def _membership(
    statement: Statement, outside: Scope, inside: Scope, compared: exp.In, select: exp.Select, kind: JoinKind
) -> Predicate:
    """That a value outside is the one that the subquery selects; for NOT IN, that it may be: a NULL may be anything."""
    text, value_tokens = statement.text, statement.tokens_of(compared.this)
    if len(select.expressions) != 1 or isinstance(select.expressions[0], exp.Star):
        raise text.error(value_tokens[0], "the subquery of IN must select one column; name it")
    node = unaliased(select.expressions[0])
    chosen_tokens = statement.tokens_of(node)
    refuse_functions(text, value_tokens, [compared.this], "WHERE or ON")
    refuse_functions(text, chosen_tokens, [node], "WHERE or ON")
    left = make_expression(value_tokens, column_references(outside, value_tokens, [compared.this]))
    right = make_expression(chosen_tokens, column_references(inside, chosen_tokens, [node]))
    if kind is JoinKind.ANTI:
        every = tuple(sorted({*left.columns, *right.columns}))
        return Expression(f"coalesce(({left.sql}) = ({right.sql}), true)", every)
    if len(left.aliases) == len(right.aliases) == 1 and left.aliases != right.aliases:
        return Equality(left, right)
    return Expression(f"({left.sql}) = ({right.sql})", tuple(sorted({*left.columns, *right.columns})))
