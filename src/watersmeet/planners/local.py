"""The plan for streams at one place: every head probes the rest greedily, staying at its key as long as it can."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watersmeet.plan import Distinct, Kept, Key, KeyClass, MultiJoin, Plan, Probe, Project, Restrict, Scan, Stage
from watersmeet.plan import Sequence as HeadSequence
from watersmeet.query.model import Column, Expression, JoinQuery


def local(query: JoinQuery, columns: Mapping[str, Sequence[str]]) -> Plan:
    """Plan a query whose streams all arrive here; `columns` gives each stream's columns in schema order."""
    classes, class_of, implied = key_classes(query)
    sequences = tuple(_sequence(query.aliases, head, classes) for head in query.aliases)
    hashed = [e for e in query.equalities if not classes[class_of[e.left]].exact]
    asked = {
        column
        for expression in (*query.residuals, *(item.expression for item in query.select))
        for column in expression.columns
    }
    scans = []
    for source in query.sources:
        stored = {
            stage.key
            for sequence in sequences
            for stage in sequence.stages
            for probe in stage.probes
            if probe.alias == source.alias
        }
        entry = {sequence.stages[0].key for sequence in sequences if sequence.head == source.alias}
        own = [Column(source.alias, name) for name in columns[source.stream]]
        sides = [side for e in hashed for side in (e.left, e.right) if side.aliases == (source.alias,)]
        kept = {column.flat: Kept(column.flat, Expression(column.sql, (column,))) for column in own if column in asked}
        kept |= {_key_value(side): Kept(_key_value(side), side) for side in sides}
        scans.append(
            Scan(
                alias=source.alias,
                stream=source.stream,
                window=source.window,
                filters=tuple(f for f in (*query.filters, *implied) if f.aliases == (source.alias,)),
                kept=tuple(kept.values()),
                classes=tuple(c.number for c in classes if c.member(source.alias)),
                stored=tuple(sorted(stored)),
                routed=tuple(sorted(entry - stored)),
            )
        )
    plan: Plan = MultiJoin(
        classes,
        tuple(scans),
        sequences,
        verify=tuple((_key_value(e.left), _key_value(e.right)) for e in hashed),
        output=tuple(name for scan in scans for name in scan.columns if name in {column.flat for column in asked}),
    )
    predicates = query.residuals
    if predicates:
        plan = Restrict(plan, predicates)
    plan = Project(plan, query.select)
    return Distinct(plan) if query.distinct else plan


def key_classes(
    query: JoinQuery,
) -> tuple[tuple[KeyClass, ...], dict[Expression, int], tuple[Expression, ...]]:
    """Close the equalities under transitivity: the classes, the class of each side, and what they imply.

    Two expressions of one alias in the same class imply a filter of that alias.
    """
    groups: list[set[Expression]] = []
    for equality in query.equalities:
        joined = {equality.left, equality.right}
        joined = joined.union(*(group for group in groups if group & joined))
        groups = [group for group in groups if not group & joined] + [joined]
    classes, class_of, implied = [], {}, []
    for number, group in enumerate(sorted(groups, key=lambda group: min(member.sql for member in group))):
        members: dict[str, Expression] = {}
        for member in sorted(group, key=lambda member: member.sql):
            class_of[member] = number
            (alias,) = member.aliases
            first = members.setdefault(alias, member)
            if first != member:
                implied.append(_equal(first, member))
        classes.append(KeyClass(number, tuple(members.values())))
    return tuple(classes), class_of, tuple(implied)


@dataclass(frozen=True, slots=True)
class _Move:
    """A possible next probe."""

    alias: str
    shared: Key
    key: Key
    stays: bool

    def rank(self, order: Sequence[str]) -> tuple[bool, int, int]:
        return (not self.stays, -len(self.shared), order.index(self.alias))


def _sequence(aliases: tuple[str, ...], head: str, classes: Sequence[KeyClass]) -> HeadSequence:
    bound = {head}
    stages: list[Stage] = []
    while len(bound) < len(aliases):
        current = stages[-1].key if stages else None
        moves = []
        for alias in aliases:
            if alias in bound:
                continue
            shared = tuple(c.number for c in classes if c.member(alias) and any(c.member(other) for other in bound))
            stays = bool(current) and set(current or ()) <= set(shared)
            moves.append(_Move(alias, shared, current if stays and current else shared, stays))
        move = min(moves, key=lambda move: move.rank(aliases))
        # A key of one class is compared by the probe itself; a key of several is a hash of them.
        checks = tuple(c for c in move.shared if len(move.key) > 1 or c not in move.key)
        probe = Probe(move.alias, checks)
        if move.stays or (stages and current == move.key):
            stages[-1] = Stage(move.key, (*stages[-1].probes, probe))
        else:
            stages.append(Stage(move.key, (probe,)))
        bound.add(move.alias)
    return HeadSequence(head, tuple(stages))


def _key_value(side: Expression) -> str:
    """The name under which a key's value is kept: a column's own, or the alias and the text of the expression."""
    (alias,) = side.aliases
    return side.columns[0].flat if side.is_plain else f"{alias}.={side.sql}"


def _equal(left: Expression, right: Expression) -> Expression:
    return Expression(f"({left.sql}) = ({right.sql})", tuple(sorted({*left.columns, *right.columns})), "boolean")
