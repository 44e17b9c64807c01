"""From a plan to what each site does: one `JoinProgram` a site, built sub-plan by sub-plan."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, count
from math import inf

from watersmeet.plan.nodes import (
    HeadPlan,
    Hop,
    Input,
    JoinNode,
    JoinPlan,
    Key,
    Leaf,
    Linear,
    Method,
    Reduction,
    Symmetric,
    Tree,
)
from watersmeet.program.once import ship_once
from watersmeet.program.operators import (
    Announce,
    Flow,
    Form,
    Join,
    JoinProgram,
    Lookup,
    Operator,
    Pair,
    Probe,
    ProjectKeys,
    Purpose,
    Semijoin,
    Ship,
    SubPlans,
    clock_of,
    key_name,
    result_of,
    rows_of,
)
from watersmeet.query.windows import AsOf, Range, Tumble, Window, counted


def compile_sites(join: JoinPlan, sites: Iterable[str] = (), *, answers: bool = True) -> dict[str, JoinProgram]:
    """The program of every site of a plan.

    Without `answers` the last joins are left out: enough to see what links carry, where answers would be too many.
    """
    builder = _Builder(join, answers)
    for number, sub_plan in enumerate(join.sub_plans):
        builder.start(number)
        match sub_plan:
            case Linear():
                for plan in sub_plan.heads:
                    if not isinstance(join.scan(plan.head).window, AsOf):  # rows of tables are never the latest
                        builder.sequence(plan)
            case JoinNode():
                builder.tree(sub_plan)
            case Symmetric() if any(scan.window == AsOf(is_refreshed=True) for scan in join.scans):
                builder.head_by_head(sub_plan)
            case Symmetric():
                builder.symmetric(sub_plan)
    if not answers:
        builder.prune()
    if join.ships_once:
        builder.ship_once()
    names = {*sites, *join.homes, *builder.sites} | ({join.site} if join.site is not None else set())
    return {site: builder.program(site) for site in sorted(names)}


class _Builder:
    """Collects operators and shipments sequence by sequence; what two sequences or sub-plans share is there once."""

    def __init__(self, join: JoinPlan, answers: bool) -> None:
        self._join = join
        self._answers = answers
        self._sub_plan = 0
        self._operators: dict[str, dict[Operator, set[int]]] = {}
        self._ships: dict[str, dict[Ship, set[int]]] = {}
        self._paces: dict[str, dict[tuple[Flow, Flow], None]] = {}
        self._named: dict[tuple[str, tuple[object, ...]], str] = {}
        self._taken: set[str] = set()

    def start(self, sub_plan: int) -> None:
        """What follows is for another sub-plan."""
        self._sub_plan = sub_plan

    @property
    def sites(self) -> set[str]:
        """All sites that have something to do."""
        return {*self._operators, *self._ships, *(ship.to for ships in self._ships.values() for ship in ships)}

    def _sub_plans_of(self, found: set[int]) -> SubPlans:
        return None if len(found) == len(self._join.sub_plans) else tuple(sorted(found))

    def _name(self, name: str, *what: object) -> str:
        """A name for a flow; where sub-plans make it differently, each has its own."""
        if (name, what) not in self._named:
            # Two names may meet once they are numbered: that of the second x|y, and that of x and the second y.
            numbered = (f"{name}'{number}" for number in count(2))
            self._named[name, what] = next(own for own in chain((name,), numbered) if own not in self._taken)
            self._taken.add(self._named[name, what])
        return self._named[name, what]

    def program(self, site: str) -> JoinProgram:
        inbound = {
            (origin, ship.arrives_as): None
            for origin, ships in self._ships.items()
            for ship in ships
            if ship.to == site
        }
        return JoinProgram(
            site,
            self._join,
            tuple(
                replace(operator, sub_plans=self._sub_plans_of(sub_plans))
                for operator, sub_plans in self._operators.get(site, {}).items()
            ),
            tuple(
                replace(ship, sub_plans=self._sub_plans_of(sub_plans))
                for ship, sub_plans in self._ships.get(site, {}).items()
            ),
            tuple(self._paces.get(site, ())),
            tuple(sorted(inbound, key=lambda item: (item[0], item[1].name))),
            tuple(s.alias for s, home in zip(self._join.scans, self._join.homes, strict=True) if home == site),
        )

    def prune(self) -> None:
        """Leave out operators that make nothing for anyone."""
        while True:
            shipped = {ship.flow.name for ships in self._ships.values() for ship in ships}
            read = {
                flow.name
                for operators in self._operators.values()
                for operator in operators
                for flow in operator.inputs
                if not (isinstance(operator, Announce) and flow == operator.out)
            }
            needed = {
                site: {
                    operator: sub_plans
                    for operator, sub_plans in operators.items()
                    if operator.out.name in shipped | read
                }
                for site, operators in self._operators.items()
            }
            if needed == self._operators:
                return
            self._operators = needed

    def ship_once(self) -> None:
        """Let what is the same row travel once on a link."""
        self._operators, self._ships = ship_once(self._join, self._operators, self._ships)

    def _add(self, site: str, operator: Operator) -> None:
        if operator.out.form is Form.RESULT and not self._answers:
            return
        self._operators.setdefault(site, {}).setdefault(operator, set()).add(self._sub_plan)

    def _ship(self, origin: str, flow: Flow, to: str, *, bloom: bool = False) -> Flow:
        if origin == to:
            return flow
        arrives = Flow(f"bloom {flow.name}", flow.form, Purpose.FILTERS, bloom=True) if bloom else flow
        self._ships.setdefault(origin, {}).setdefault(Ship(flow, to, arrives), set()).add(self._sub_plan)
        return arrives

    def _deliver(self, site: str, flow: Flow) -> None:
        if self._join.site is not None and self._answers:
            self._ship(site, flow, self._join.site)

    def sequence(self, plan: HeadPlan) -> None:
        site, flow = self._join.home(plan.head), rows_of(plan.head)
        bound = [plan.head]
        for number, hop in enumerate(plan.hops):
            if hop.at is not None and hop.at != site:
                self._ship(site, flow, hop.at)
                site = hop.at
            site, flow = self._hop(plan, number, hop, tuple(bound), site, flow)
            bound.append(hop.alias)
        self._deliver(site, flow)

    def _hop(
        self, plan: HeadPlan, number: int, hop: Hop, bound: tuple[str, ...], site: str, left: Flow
    ) -> tuple[str, Flow]:
        head, alias, home = plan.head, hop.alias, self._join.home(hop.alias)
        key = self._shared(bound, alias)
        rows = rows_of(alias)
        method = Method.SP_D if site == home else hop.method
        if method in (Method.SP_S, Method.SM_S1, Method.SM_S2, Method.SM_D1, Method.SM_D2):
            needs_clock = method is not Method.SM_D2
            if needs_clock and counted(self._join.scan(alias).window) is not None:
                self._ship(home, clock_of(alias), site)
        match method:
            case Method.SP_S:
                right = self._ship(home, rows, site)
            case Method.SP_D:
                self._ship(site, left, home)
                site, right = home, rows
            case Method.SM_S1:
                asks = self._project(site, left, key, head, alias)
                asks = self._ship(site, asks, home, bloom=hop.bloom)
                right = self._fetch(head, alias, key, asks, home, site)
            case Method.SM_S2:
                keys = self._ship(home, self._announce(home, alias, key), site, bloom=hop.bloom)
                self._pace(site, left, alias, home)
                if hop.bloom:  # a filter cannot list what it holds: the rows that pass it are asked for
                    left = self._reduce(site, head, alias, key, left, keys)
                    wanted = self._project(site, left, key, head, alias)
                else:
                    name = self._name(f"wanted({left},{alias})", site, keys, left, key)
                    wanted = Flow(name, Form.SPAN, Purpose.KEYS)
                    self._add(site, Semijoin(head, alias, keys, left, key, wanted))
                wanted = self._ship(site, wanted, home)
                right = self._fetch(head, alias, key, wanted, home, site)
            case Method.SM_D1:
                keys = self._ship(home, self._announce(home, alias, key), site, bloom=hop.bloom)
                self._pace(site, left, alias, home)
                left = self._reduce(site, head, alias, key, left, keys)
                self._ship(site, left, home)
                site, right = home, rows
            case Method.SM_D2:
                asks = self._project(site, left, key, head, alias)
                asks = self._ship(site, asks, home, bloom=hop.bloom)
                self._pace(site, left, alias, home)
                announced = self._announce(home, alias, key)
                name = self._name(f"found({left},{alias})", home, announced, asks, key)
                found = Flow(name, Form.SPAN, Purpose.KEYS)
                self._add(home, Semijoin(head, alias, announced, asks, key, found))
                found = self._ship(home, found, site, bloom=hop.bloom)
                if counted(self._join.scan(alias).window) is not None:
                    self._ship(home, clock_of(alias), site)
                left = self._reduce(site, head, alias, key, left, found)
                self._ship(site, left, home)
                site, right = home, rows
        is_last = number == len(plan.hops) - 1
        out = result_of(head) if is_last else Flow(f"{alias}^{head}", Form.POINT, Purpose.TUPLES)
        out = replace(out, name=self._name(out.name, site, left, right, key))
        carried = self._carried((*bound, alias))
        self._add(site, Join(head, alias, left, right, key, _checks(key), bound, carried, out))
        return site, out

    def symmetric(self, plan: Symmetric) -> None:
        """The probes of every head at one site, to which all windows are shipped whole."""
        windows = tuple(rows_of(scan.alias) for scan in self._join.scans)
        for scan, home in zip(self._join.scans, self._join.homes, strict=True):
            self._ship(home, rows_of(scan.alias), plan.at)
            if counted(scan.window) is not None:
                self._ship(home, clock_of(scan.alias), plan.at)
        for sequence in plan.sequences:
            left = rows_of(sequence.head)
            bound: tuple[str, ...] = (sequence.head,)
            for number, stage in enumerate(sequence.stages):
                lookups = tuple(Lookup(probe.alias, rows_of(probe.alias), probe.checks) for probe in stage.probes)
                later = sequence.stages[number + 1 :]
                needed = {c for after in later for c in (*after.key, *(c for p in after.probes for c in p.checks))}
                out = result_of(sequence.head) if not later else Flow(f"{left}+", Form.DELTA, Purpose.TUPLES)
                out = replace(out, name=self._name(out.name, plan.at, left, stage.key, lookups))
                reached = (*bound, *(probe.alias for probe in stage.probes))
                carried = tuple(
                    c for c in sorted(needed) if any(self._join.classes[c].member(alias) for alias in reached)
                )
                probe = Probe(sequence.head, left, lookups, stage.key, bound, carried, windows, out)
                self._add(plan.at, probe)
                left, bound = out, reached
            self._deliver(plan.at, left)

    def head_by_head(self, plan: Symmetric) -> None:
        """The same answers by one-way joins at that site, for tables that are refreshed.

        A probe would take a row of a later version for the latest one of a combination; heads here are streams, and
        wait for the versions of tables only, not for all watermarks.
        """
        for sequence in plan.sequences:
            head = sequence.head
            if isinstance(self._join.scan(head).window, AsOf):
                continue
            order = [probe.alias for stage in sequence.stages for probe in stage.probes]
            self.sequence(HeadPlan(head, tuple(Hop(alias, Method.SP_S, at=plan.at) for alias in order)))

    def tree(self, root: JoinNode) -> None:
        """The operators of a tree, down from its root."""
        if any(isinstance(scan.window, AsOf) and counted(scan.window) is not None for scan in self._join.scans):
            raise ValueError("a tree cannot have tables that are refreshed")
        site, flow, _ = self._node(root, is_root=True)
        self._deliver(site, flow)

    def _node(self, node: Tree, *, is_root: bool = False) -> tuple[str, Flow, tuple[str, ...]]:
        """Where the rows of a node come about, their flow, and the aliases that they combine."""
        if isinstance(node, Leaf):
            return self._join.home(node.alias), rows_of(node.alias), (node.alias,)
        at = node.at
        origin, left, bound = self._input(node.inputs[0], at)
        self._ship(origin, left, at)
        for number, input_ in enumerate(node.inputs[1:], start=2):
            origin, right, more = self._input(input_, at)
            key = self._tying(bound, more)
            alias, other = self._shortest(bound), self._shortest(more)
            both = (*bound, *more)
            in_order = [alias for alias in both if counted(self._join.scan(alias).window) is not None]
            if in_order and input_.reduction is not Reduction.NONE:
                raise ValueError("inputs of a tree are not reduced where a ROWS window is among them")
            for counting in in_order:
                self._ship(self._join.home(counting), clock_of(counting), at)
            if origin != at and key and input_.reduction is not Reduction.NONE:
                keys = self._announce(at, alias, key, left)
                self._pace(origin, right, alias, at)
                if input_.reduction is Reduction.TWO_STEP:
                    name = self._name(f"asks({right},{left})", origin, right, key, Form.SPAN)
                    asks = Flow(name, Form.SPAN, Purpose.KEYS)
                    self._add(origin, ProjectKeys(right, key, asks, other))
                    asks = self._ship(origin, asks, at, bloom=input_.bloom)
                    found = Flow(self._name(f"found({right},{left})", at, keys, asks), Form.SPAN, Purpose.KEYS)
                    self._add(at, Semijoin("", alias, keys, asks, key, found))
                    keys = found
                keys = self._ship(at, keys, origin, bloom=input_.bloom)
                reduced = Flow(
                    self._name(f"{right}|{left}", origin, right, keys), right.form, Purpose.TUPLES, alias=other
                )
                self._add(origin, Semijoin("", other, right, keys, key, reduced))
                right = reduced
            self._ship(origin, right, at)
            is_last = is_root and number == len(node.inputs)
            if is_last:
                out = Flow("answers", Form.RESULT, Purpose.RESULTS)
            else:
                out = Flow(f"({' '.join(both)})", Form.INTERMEDIATE, Purpose.TUPLES, alias=self._shortest(both))
            out = replace(out, name=self._name(out.name, at, left, right, key))
            carried = self._carried(both)
            self._add(at, Pair(left, right, alias, other, key, _checks(key), bound, more, carried, out))
            left, bound = out, both
        return at, left, bound

    def _input(self, one: Input, at: str) -> tuple[str, Flow, tuple[str, ...]]:
        """An input of a join node, reduced where it comes about by the streams that it names, if it travels."""
        origin, rows, bound = self._node(one.node)
        for reducer in one.reducers if origin != at else ():
            alias, home, key = reducer.alias, self._join.home(reducer.alias), self._shared(bound, reducer.alias)
            if any(counted(self._join.scan(name).window) is not None for name in (*bound, alias)):
                raise ValueError("inputs of a tree are not reduced where a ROWS window is among them")
            if not key:
                raise ValueError(f"nothing ties {alias} to {', '.join(bound)}, which it is to reduce")
            witness = rows_of(alias)  # where it is here, its rows are as good as its keys
            if home != origin:
                keys = self._announce(home, alias, key)
                self._pace(origin, rows, alias, home)
                witness = self._ship(home, keys, origin, bloom=reducer.bloom)
            name = self._name(f"{rows}|{alias}", origin, rows, witness, key)
            reduced = Flow(name, rows.form, Purpose.TUPLES, alias=self._shortest(bound))
            self._add(origin, Semijoin("", reduced.alias, rows, witness, key, reduced))
            rows = reduced
        return origin, rows, bound

    def _shortest(self, aliases: tuple[str, ...]) -> str:
        """The alias whose window bounds for how long combinations last: over time if any is, else one that counts."""

        def rank(alias: str) -> tuple[float, bool, int]:
            window = self._join.scan(alias).window
            return _reach_us(window), counted(window) is None, aliases.index(alias)

        return min(aliases, key=rank)

    def _tying(self, some: Iterable[str], others: Iterable[str]) -> Key:
        others = tuple(others)
        return tuple(c for c in sorted({c for alias in others for c in self._shared(some, alias)}))

    def _shared(self, bound: Iterable[str], alias: str) -> Key:
        return tuple(
            c.number for c in self._join.classes if c.member(alias) and any(c.member(other) for other in bound)
        )

    def _carried(self, bound: tuple[str, ...]) -> tuple[int, ...]:
        """The classes that later joins need of a combination, and the one that decides its sub-plan."""
        rest = [scan.alias for scan in self._join.scans if scan.alias not in bound]
        kept = None if self._join.partition is None else self._join.partition.key_class
        return tuple(
            c.number
            for c in self._join.classes
            if any(c.member(alias) for alias in bound) and (c.number == kept or any(c.member(alias) for alias in rest))
        )

    def _announce(self, home: str, alias: str, key: Key, rows: Flow | None = None) -> Flow:
        rows = rows or rows_of(alias)
        keys = Flow(self._name(f"keys({rows},{key_name(key)})", home), Form.SPAN, Purpose.SYNC)
        self._add(home, Announce(alias, rows, key, keys))
        return keys

    def _pace(self, site: str, left: Flow, alias: str, home: str) -> None:
        name = self._name(f"pace({left},{alias})", site)  # sub-plans may join the same at different sites
        pace = Flow(name, Form.PACE, Purpose.WATERMARKS, alias=alias)
        self._ship(site, pace, home)
        self._paces.setdefault(site, {})[pace, left] = None

    def _project(self, site: str, left: Flow, key: Key, head: str, alias: str) -> Flow:
        name = self._name(f"asks({_of(left, head)},{alias})", site, left, key, Form.ASK)
        asks = Flow(name, Form.ASK, Purpose.KEYS)
        self._add(site, ProjectKeys(left, key, asks))
        return asks

    def _reduce(self, site: str, head: str, alias: str, key: Key, left: Flow, witness: Flow) -> Flow:
        name = self._name(f"{_of(left, head)}|{alias}", site, left, witness, key)
        reduced = Flow(name, Form.POINT, Purpose.TUPLES)
        self._add(site, Semijoin(head, alias, left, witness, key, reduced))
        return reduced

    def _fetch(self, head: str, alias: str, key: Key, asks: Flow, home: str, site: str) -> Flow:
        fetched = Flow(self._name(f"fetched({alias},{head})", home, asks, key), Form.ROW, Purpose.TUPLES)
        self._add(home, Semijoin(head, alias, rows_of(alias), asks, key, fetched))
        return self._ship(home, fetched, site)


def _checks(key: Key) -> tuple[int, ...]:
    """A key of one class is compared by the probe itself; a key of several is a hash of them."""
    return key if len(key) > 1 else ()


def _reach_us(window: Window) -> float:
    return window.window_us if isinstance(window, Range | Tumble) else inf


def _of(left: Flow, head: str) -> str:
    return left.name if left.form is not Form.ROW or left.name == head else f"{left.name}^{head}"
