"""What is the same row travels once on a link: a last pass over the operators of a plan (docs/design/0025).

Rows of a stream that a site gets whole are not sent there again for a semijoin. Semijoins by the same key that each
send rows of one stream to one site become one Gather; each keeps a watermark of its own, so none waits for another.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from watersmeet.plan.nodes import JoinPlan
from watersmeet.program.operators import (
    Copy,
    Flow,
    Form,
    Gather,
    Join,
    Operator,
    Pair,
    Purpose,
    Semijoin,
    Ship,
    rows_of,
)
from watersmeet.program.storage.segments import class_column
from watersmeet.query.model import Expression
from watersmeet.query.restate import restated
from watersmeet.query.windows import counted

Operators = dict[str, dict[Operator, set[int]]]  # by site, each with its sub-plans
Ships = dict[str, dict[Ship, set[int]]]


@dataclass(frozen=True)
class _Seen:
    """What an alias reads of its stream."""

    stream: str
    is_counted: bool
    filters: frozenset[Expression]
    keys: Mapping[int, tuple[Expression, bool]]  # by key class
    columns: Mapping[str, Expression]  # by name in the join

    @property
    def selection(self) -> tuple[object, ...]:
        """Two aliases with the same one take the same rows."""
        return self.filters, frozenset(self.keys.values())

    def takes_all_of(self, other: "_Seen") -> bool:
        """Whether its rows have all rows of another alias, with all columns that it reads."""
        return (
            self.stream == other.stream
            and self.is_counted == other.is_counted
            and self.filters <= other.filters
            and set(self.keys.values()) <= set(other.keys.values())
            and self.has_columns_of(other)
        )

    def has_columns_of(self, other: "_Seen") -> bool:
        return set(other.keys.values()) <= set(self.keys.values()) and set(other.columns.values()) <= set(
            self.columns.values()
        )

    def renamed(self, other: "_Seen") -> tuple[tuple[str, str], ...]:
        """The columns of another alias, by the names that they have here."""
        own = {expression: name for name, expression in self.columns.items()}
        classes = {key: number for number, key in self.keys.items()}
        return (
            *((class_column(number), class_column(classes[key])) for number, key in other.keys.items()),
            *((name, own[expression]) for name, expression in other.columns.items()),
        )


def _seen(join: JoinPlan, alias: str) -> _Seen:
    scan = join.scan(alias)

    def of_stream(expression: Expression) -> Expression:
        return restated(expression, alias, scan.stream)

    members = ((key_class, key_class.member(alias)) for key_class in join.classes)
    return _Seen(
        scan.stream,
        counted(scan.window) is not None,
        frozenset(map(of_stream, scan.filters)),
        {key_class.number: (of_stream(member), key_class.exact) for key_class, member in members if member is not None},
        {kept.name: of_stream(kept.expression) for kept in scan.kept},
    )


def is_among(join: JoinPlan, alias: str, other: str) -> bool:
    """Whether all rows of an alias are rows of another one of the same stream, the first of equal ones excepted."""
    own, others = _seen(join, alias), _seen(join, other)
    if alias == other or (own.stream, own.is_counted) != (others.stream, others.is_counted):
        return False
    if own.filters == others.filters:
        return join.position(other) < join.position(alias)
    return others.filters < own.filters


def ship_once(join: JoinPlan, operators: Operators, ships: Ships) -> tuple[Operators, Ships]:
    """The same operators and shipments without rows that would travel twice."""
    work = _Work(join, operators, ships)
    work.use_whole_streams()
    work.gather()
    return work.operators, work.ships


class _Work:
    def __init__(self, join: JoinPlan, operators: Operators, ships: Ships) -> None:
        self._join = join
        self._seen = {scan.alias: _seen(join, scan.alias) for scan in join.scans}
        self.operators: Operators = {site: dict(own) for site, own in operators.items()}
        self.ships: Ships = {site: dict(own) for site, own in ships.items()}

    def _reducing(self) -> Iterator[tuple[str, Semijoin, Ship, set[int]]]:
        """Semijoins of a stream's rows whose results go to one other site: where, which, how, for which sub-plans."""
        for site, own in self.operators.items():
            for operator, sub_plans in own.items():
                if not isinstance(operator, Semijoin) or operator.subject.name not in self._seen:
                    continue
                if operator.has_rows:  # of another window, with an axis of its own
                    continue
                sent = [ship for ship in self.ships.get(site, ()) if ship.flow == operator.out]
                readers = [o for o in own if operator.out in o.inputs]
                if len(sent) == 1 and not readers and self.ships[site][sent[0]] == sub_plans:
                    yield site, operator, sent[0], sub_plans

    def use_whole_streams(self) -> None:
        """Where rows come whole, nobody needs to ask for some of them."""
        is_less = False
        for site, operator, ship, sub_plans in list(self._reducing()):
            alias = operator.subject.name
            whole = [
                one
                for one, others in self.ships[site].items()
                if one.to == ship.to
                and one.flow.form is Form.ROW
                and one.flow.name in self._seen
                and sub_plans <= others
                and (one.flow.name == alias or self._serves(one.flow.name, alias))
            ]
            if not whole:
                continue
            self._read_instead(ship.to, {operator.out: rows_of(alias)})
            del self.ships[site][ship]
            self.ships[site].setdefault(Ship(rows_of(alias), ship.to, rows_of(alias)), set()).update(sub_plans)
            is_less = True
        if is_less:
            self._prune()

    def _serves(self, alias: str, other: str) -> bool:
        """Whether rows that come whole for an alias are those of another; parts of a key space may be of either."""
        return self._join.partition is None and self._seen[alias].takes_all_of(self._seen[other])

    def gather(self) -> None:
        """One flow for semijoins that send rows of one stream to one site by the same key."""
        groups: dict[tuple[str, str, tuple[object, ...], frozenset[int]], list[tuple[Semijoin, Ship]]] = {}
        for site, operator, ship, sub_plans in self._reducing():
            if self._is_timed(operator) and all(
                isinstance(one, Join | Pair) for one in self.operators.get(ship.to, ()) if operator.out in one.inputs
            ):
                slot = (site, ship.to, self._family(operator), frozenset(sub_plans))
                groups.setdefault(slot, []).append((operator, ship))
        taken: set[str] = set()
        for (site, to, _, _), found in groups.items():
            for some in self._together(found):
                aliases = dict.fromkeys(semijoin.subject.name for semijoin, _ in some)
                name = f"gathered({' '.join(aliases)},{to})"
                while name in taken:
                    name += "'"
                taken.add(name)
                self._gather(site, to, name, some)

    def _is_timed(self, operator: Semijoin) -> bool:
        """Whether all windows that it is about are on one axis: its subject's, and that of the keys its rows meet."""
        is_window = operator.out.form is Form.ROW
        return is_window or not (self._seen[operator.alias].is_counted or self._seen[operator.subject.name].is_counted)

    def _family(self, operator: Semijoin) -> tuple[object, ...]:
        """What semijoins must have in common to be done together."""
        alias = operator.subject.name
        seen = self._seen[alias]
        own: object = alias if seen.is_counted or self._join.partition is not None else seen.stream
        return own, operator.key, tuple(seen.keys[number] for number in operator.key)

    def _together(self, found: Iterable[tuple[Semijoin, Ship]]) -> Iterator[list[tuple[Semijoin, Ship]]]:
        """Those of a family that share: one of them has the columns of all."""
        left = sorted(found, key=lambda one: -len(self._seen[one[0].subject.name].columns))
        while left:
            lead = self._seen[left[0][0].subject.name]
            some = [entry for entry in left if lead.has_columns_of(self._seen[entry[0].subject.name])]
            left = [entry for entry in left if entry not in some]
            if len(some) > 1:
                yield some

    def _gather(self, site: str, to: str, name: str, some: list[tuple[Semijoin, Ship]]) -> None:
        aliases = tuple(dict.fromkeys(semijoin.subject.name for semijoin, _ in some))
        lead, differ = self._seen[aliases[0]], len({self._seen[alias].selection for alias in aliases}) > 1
        names = {alias: name if len(aliases) == 1 else f"{name} as {alias}" for alias in aliases}
        copies = tuple(
            Copy(names[alias], lead.renamed(self._seen[alias]), number if differ else None)
            for number, alias in enumerate(aliases)
        )
        semijoins, reached, instead = [], [], {}
        for semijoin, ship in some:
            mark = Flow(f"reached({semijoin.out.name},{to})", Form.REACHED, Purpose.WATERMARKS)
            reader = Flow(names[semijoin.subject.name], Form.ROW, Purpose.TUPLES, mark=mark.name)
            semijoins.append(replace(semijoin, out=reader))
            reached.append(mark)
            instead[semijoin.out] = reader
            sub_plans = self.operators[site].pop(semijoin)
            del self.ships[site][ship]
            self.ships[site][Ship(mark, to, mark)] = set(sub_plans)
        out = Flow(name, Form.ROW, Purpose.TUPLES)
        made = Gather(tuple(semijoins), tuple(reached), out, copies if len(aliases) > 1 else ())
        self.operators[site][made] = set(sub_plans)
        self.ships[site][Ship(out, to, out)] = set(sub_plans)
        self._read_instead(to, instead)

    def _read_instead(self, site: str, flows: Mapping[Flow, Flow]) -> None:
        """Let the joins of a site read other flows."""
        own = self.operators.get(site, {})
        self.operators[site] = {_reading(operator, flows): sub_plans for operator, sub_plans in own.items()}

    def _prune(self) -> None:
        """Leave out what is made or sent for nobody; row clocks and paces are next to nothing."""
        while True:
            read = {site: {flow for ship in own for flow in ship.inputs} for site, own in self.operators.items()}
            ships = {
                site: {
                    operator: sub_plans
                    for operator, sub_plans in own.items()
                    if operator.flow.form not in (Form.SPAN, Form.ASK)
                    or operator.arrives_as in read.get(operator.to, ())
                }
                for site, own in self.ships.items()
            }
            sent = {site: {ship.flow for ship in own} for site, own in ships.items()}
            operators = {
                site: {
                    operator: sub_plans
                    for operator, sub_plans in own.items()
                    if operator.out.form not in (Form.SPAN, Form.ASK, Form.POINT, Form.ROW)
                    or operator.out in sent.get(site, ())
                    or any(operator.out in other.inputs for other in own)
                }
                for site, own in self.operators.items()
            }
            if (operators, ships) == (self.operators, self.ships):
                return
            self.operators, self.ships = operators, ships


def _reading(operator: Operator, flows: Mapping[Flow, Flow]) -> Operator:
    match operator:
        case Join(left=left, right=right):
            return replace(operator, left=flows.get(left, left), right=flows.get(right, right))
        case Pair(left=left, right=right):
            return replace(operator, left=flows.get(left, left), right=flows.get(right, right))
        case _:
            return operator
