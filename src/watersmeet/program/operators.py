"""The node operator set of each site, built from a plan (adaptive paper, 4.1), with the semijoin paper's six methods.

Everything a site does is one of five operators over flows of rows, and shipping a flow to another site:

    Join      pairs of a left row and a right row whose intervals meet, each exactly once
    Pair      the same for results of a tree, which are intervals themselves: until the first of their rows expires
    Semijoin  a subject row, as soon as a first witness meets it: the reduction step of all semijoins
    Announce  the distinct keys of a window as intervals of presence: V2 of the paper, kept in step by event time
    Project   the distinct keys of new rows, with the time range they are asked for: K1 of the paper

With N1 the site of the partial combinations and N2 the home of the stream they are joined with:

    SP-S   N2 ships its rows; join at N1
    SP-D   N1 ships its partial combinations; join at N2
    SM-S1  N1 projects and ships keys; N2 semijoins its window by them and ships the hits; join at N1
    SM-S2  N2 announces keys; N1 semijoins them by its rows, ships those wanted; N2 ships their rows; join at N1
    SM-D1  N2 announces keys; N1 semijoins its rows by them and ships the hits; join at N2
    SM-D2  N1 projects and ships keys; N2 semijoins its announcements by them, ships those found; N1 as in SM-D1

A tree (tree ordering; PMJoin's MJoins) has one join for both directions: an input comes whole, or reduced by the keys
that its partner announces (one step) or is asked about (two steps).

A plan with several ways is the union of their programs: what two ways share is there once, and where they differ an
operator or a shipment is for the rows of its own ways only, which their value of the partition's key tells.

Every operator has a horizon, the lowest progress of its inputs; its output has come as far as that, and a row is
kept until its interval lies before the horizon of every operator that reads it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from math import inf

from watersmeet.plan.nodes import HeadPlan, Hop, JoinNode, JoinPlan, Key, Leaf, Linear, Method, Reduction, Tree
from watersmeet.query.windows import Range, Rows, Tumble, Window

SubPlans = tuple[int, ...] | None  # the ways of a plan that something is for; None is all of them


class Purpose(StrEnum):
    """What the bytes on a link are for."""

    TUPLES = "full tuples"
    KEYS = "keys"
    FILTERS = "filters"
    SYNC = "window sync"
    RESULTS = "results"
    WATERMARKS = "watermarks"


class Form(StrEnum):
    """What the rows of a flow are, and so which interval a row stands for (see program.axis)."""

    POINT = "point"  # a partial combination, at the time of its head
    ROW = "row"  # a row of a window, as long as it is visible
    PIECE = "piece"  # a combination that a tree has made, as long as all its rows are visible
    SPAN = "span"  # a key, as long as it is present
    ASK = "ask"  # a key, for the time range it is asked for
    CLOCK = "clock"  # the timestamps of a stream's rows, in order
    PACE = "pace"  # no rows: only how far those who ask for a window's keys have got
    RESULT = "result"  # a finished combination


@dataclass(frozen=True, slots=True)
class Flow:
    """A named stream of batches, the same at every site it reaches."""

    name: str
    form: Form
    purpose: Purpose
    bloom: bool = False  # its batches travel, and are kept, as Bloom filters of their keys
    alias: str = ""  # of a pace, whose keys are asked for; of a piece, the alias with the shortest window

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Join:
    """Partial combinations of a head with the window of an alias."""

    head: str
    alias: str
    left: Flow
    right: Flow
    key: Key
    checks: tuple[int, ...]  # classes to compare on a hit
    bound: tuple[str, ...]  # aliases of the left rows
    carried: tuple[int, ...]  # classes that later joins of this head need
    out: Flow
    sub_plans: SubPlans = None

    @property
    def inputs(self) -> tuple[Flow, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two inputs of a tree joined, whichever side is later; each is about the window of an alias."""

    left: Flow
    right: Flow
    left_alias: str
    right_alias: str
    key: Key
    checks: tuple[int, ...]
    left_bound: tuple[str, ...]
    right_bound: tuple[str, ...]
    carried: tuple[int, ...]
    out: Flow
    sub_plans: SubPlans = None

    @property
    def inputs(self) -> tuple[Flow, ...]:
        return (self.left, self.right)

    @property
    def alias(self) -> str:
        return self.left_alias


@dataclass(frozen=True, slots=True)
class Semijoin:
    """Rows of the subject that have met a witness, each once; about the window of an alias, for a head if any."""

    head: str
    alias: str
    subject: Flow
    witness: Flow
    key: Key
    out: Flow
    sub_plans: SubPlans = None

    @property
    def inputs(self) -> tuple[Flow, ...]:
        return (self.subject, self.witness)


@dataclass(frozen=True, slots=True)
class Announce:
    """When each key of an alias's window is present.

    A presence that goes on is announced again only when the watermark, or a tuple that may ask, gets to its end.
    """

    alias: str
    rows: Flow
    key: Key
    out: Flow
    sub_plans: SubPlans = None

    @property
    def inputs(self) -> tuple[Flow, ...]:
        return (self.rows,)


@dataclass(frozen=True, slots=True)
class Project:
    """The keys of new partial combinations; those of a tree's input with the intervals that it stands for."""

    rows: Flow
    key: Key
    out: Flow
    alias: str = ""  # whose window the rows of a tree's input are about
    sub_plans: SubPlans = None

    @property
    def inputs(self) -> tuple[Flow, ...]:
        return (self.rows,)


Operator = Join | Pair | Semijoin | Announce | Project


@dataclass(frozen=True, slots=True)
class Ship:
    """A flow that goes to another site, as it is or as Bloom filters."""

    flow: Flow
    to: str
    arrives_as: Flow
    sub_plans: SubPlans = None

    @property
    def payload(self) -> str:
        """The name under which its rows are packed."""
        return self.arrives_as.name + sub_plans_name(self.sub_plans)


@dataclass(frozen=True)
class SiteProgram:
    """What one site does for a query: pure data; `program.site` runs it."""

    site: str
    join: JoinPlan
    operators: tuple[Operator, ...] = ()
    ships: tuple[Ship, ...] = ()
    paces: tuple[tuple[Flow, Flow], ...] = ()  # pace told from here, flow whose rows set it
    inbound: tuple[tuple[str, Flow], ...] = ()  # sender, flow
    local: tuple[str, ...] = ()  # aliases whose streams arrive here

    @property
    def is_query_site(self) -> bool:
        return self.join.site in (None, self.site)

    @cached_property
    def indexes(self) -> dict[str, tuple[tuple[Key, SubPlans], ...]]:
        """For each flow that is read here, the keys it is sorted by, and for the rows of which ways."""
        keys: dict[str, set[tuple[Key, SubPlans]]] = {}
        for operator in self.operators:
            for flow in kept_inputs(operator) or operator.inputs:
                keys.setdefault(flow.name, set()).add((operator.key, operator.sub_plans))
        return {
            name: tuple(sorted(found, key=lambda one: (one[0], one[1] or ()))) for name, found in sorted(keys.items())
        }

    @cached_property
    def readers(self) -> dict[str, tuple[Operator, ...]]:
        """For each flow, the operators that read it."""
        found: dict[str, list[Operator]] = {}
        for operator in self.operators:
            for flow in dict.fromkeys(operator.inputs):
                found.setdefault(flow.name, []).append(operator)
        return {name: tuple(operators) for name, operators in found.items()}

    @cached_property
    def ships_of(self) -> dict[str, tuple[Ship, ...]]:
        """For each flow, where it goes."""
        found: dict[str, list[Ship]] = {}
        for ship in self.ships:
            found.setdefault(ship.flow.name, []).append(ship)
        return {name: tuple(ships) for name, ships in found.items()}

    @property
    def peers_out(self) -> tuple[str, ...]:
        return tuple(sorted({ship.to for ship in self.ships}))

    @property
    def peers_in(self) -> tuple[str, ...]:
        return tuple(sorted({sender for sender, _ in self.inbound}))

    def paces_of(self, alias: str) -> tuple[str, ...]:
        """The paces that those who ask for an alias's keys tell this site."""
        return tuple(flow.name for _, flow in self.inbound if flow.form is Form.PACE and flow.alias == alias)

    def rounds(self) -> list[list[Operator]]:
        """The operators in order, cut where rows must move to the bucket of another key."""
        made: dict[Flow, tuple[int, Key]] = {}
        rounds: list[list[Operator]] = []
        for operator in self.operators:
            number = 0
            for flow in operator.inputs:
                if flow in made:
                    before, key = made[flow]
                    number = max(number, before + (key != operator.key))
            made[operator.out] = (number, operator.key)
            while len(rounds) <= number:
                rounds.append([])
            rounds[number].append(operator)
        return rounds


def sub_plans_name(sub_plans: SubPlans) -> str:
    """What tells names of the same thing for different ways apart."""
    return "" if sub_plans is None else "~" + ".".join(map(str, sub_plans))


def axis_alias(operator: Operator, flow: Flow) -> str:
    """The alias whose window an input of an operator is about."""
    if isinstance(operator, Pair):
        return operator.left_alias if flow == operator.left else operator.right_alias
    return operator.alias


def kept_inputs(operator: Operator) -> tuple[Flow, ...]:
    """The flows an operator needs to find again later; an announcer also remembers what it announced."""
    match operator:
        case Announce():
            return (operator.rows, operator.out)
        case Project():
            return ()
        case _:
            return operator.inputs


def rows_of(alias: str) -> Flow:
    """The rows of an alias, as they come at its home and wherever they are shipped."""
    return Flow(alias, Form.ROW, Purpose.TUPLES)


def clock_of(alias: str) -> Flow:
    """The row clock of an alias with a ROWS window."""
    return Flow(f"clock({alias})", Form.CLOCK, Purpose.SYNC)


def result_of(head: str) -> Flow:
    """The finished combinations of a head."""
    return Flow(f"answers({head})", Form.RESULT, Purpose.RESULTS)


def key_name(key: Key) -> str:
    """A key as it is shown."""
    return "+".join(f"K{number + 1}" for number in key) or "nothing"


def compile_sites(join: JoinPlan, sites: Iterable[str] = (), *, answers: bool = True) -> dict[str, SiteProgram]:
    """The program of every site of a plan.

    Without `answers` the last joins are left out: enough to see what links carry, where answers would be too many.
    """
    builder = _Builder(join, answers)
    for number, sub_plan in enumerate(join.sub_plans):
        builder.start(number)
        if isinstance(sub_plan, Linear):
            for plan in sub_plan.heads:
                builder.sequence(plan)
        else:
            builder.tree(sub_plan)
    if not answers:
        builder.prune()
    names = {*sites, *join.homes, *builder.sites} | ({join.site} if join.site is not None else set())
    return {site: builder.program(site) for site in sorted(names)}


class _Builder:
    """Collects operators and shipments sequence by sequence; what two sequences or ways share is there once."""

    def __init__(self, join: JoinPlan, answers: bool) -> None:
        self._join = join
        self._answers = answers
        self._way = 0
        self._operators: dict[str, dict[Operator, set[int]]] = {}
        self._ships: dict[str, dict[Ship, set[int]]] = {}
        self._paces: dict[str, dict[tuple[Flow, Flow], None]] = {}
        self._named: dict[str, list[object]] = {}

    def start(self, sub_plan: int) -> None:
        """What follows is for another way of the plan."""
        self._way = sub_plan

    @property
    def sites(self) -> set[str]:
        """All sites that have something to do."""
        return {*self._operators, *self._ships, *(ship.to for ships in self._ships.values() for ship in ships)}

    def _ways(self, found: set[int]) -> SubPlans:
        return None if len(found) == len(self._join.sub_plans) else tuple(sorted(found))

    def _name(self, name: str, *what: object) -> str:
        """A name for a flow; where ways come to it differently, each has its own."""
        known = self._named.setdefault(name, [])
        if what not in known:
            known.append(what)
        number = known.index(what)
        return name if number == 0 else f"{name}'{number + 1}"

    def program(self, site: str) -> SiteProgram:
        inbound = {
            (origin, ship.arrives_as): None
            for origin, ships in self._ships.items()
            for ship in ships
            if ship.to == site
        }
        return SiteProgram(
            site,
            self._join,
            tuple(
                replace(one, sub_plans=self._ways(sub_plans))
                for one, sub_plans in self._operators.get(site, {}).items()
            ),
            tuple(
                replace(one, sub_plans=self._ways(sub_plans)) for one, sub_plans in self._ships.get(site, {}).items()
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
                for one in operators
                for flow in one.inputs
                if not (isinstance(one, Announce) and flow == one.out)
            }
            needed = {
                site: {one: sub_plans for one, sub_plans in operators.items() if one.out.name in shipped | read}
                for site, operators in self._operators.items()
            }
            if needed == self._operators:
                return
            self._operators = needed

    def _add(self, site: str, operator: Operator) -> None:
        if operator.out.form is Form.RESULT and not self._answers:
            return
        self._operators.setdefault(site, {}).setdefault(operator, set()).add(self._way)

    def _ship(self, origin: str, flow: Flow, to: str, *, bloom: bool = False) -> Flow:
        if origin == to:
            return flow
        arrives = Flow(f"bloom {flow.name}", flow.form, Purpose.FILTERS, bloom=True) if bloom else flow
        self._ships.setdefault(origin, {}).setdefault(Ship(flow, to, arrives), set()).add(self._way)
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
            if needs_clock and isinstance(self._join.scan(alias).window, Rows):
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
                if isinstance(self._join.scan(alias).window, Rows):
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

    def tree(self, root: JoinNode) -> None:
        """The operators of a tree, down from its root."""
        if any(isinstance(scan.window, Rows) for scan in self._join.scans):
            raise ValueError("a tree needs windows over time, not ROWS")
        site, flow, _ = self._node(root, is_root=True)
        self._deliver(site, flow)

    def _node(self, node: Tree, *, is_root: bool = False) -> tuple[str, Flow, tuple[str, ...]]:
        """Where the rows of a node come about, their flow, and the aliases that they combine."""
        if isinstance(node, Leaf):
            return self._join.home(node.alias), rows_of(node.alias), (node.alias,)
        at = node.at
        origin, left, bound = self._node(node.inputs[0].node)
        self._ship(origin, left, at)
        for number, one in enumerate(node.inputs[1:], start=2):
            origin, right, more = self._node(one.node)
            key = self._tying(bound, more)
            alias, other = self._shortest(bound), self._shortest(more)
            if origin != at and key and one.reduction is not Reduction.NONE:
                keys = self._announce(at, alias, key, left)
                self._pace(origin, right, alias, at)
                if one.reduction is Reduction.TWO_STEP:
                    name = self._name(f"asks({right},{left})", origin, right, key, Form.SPAN)
                    asks = Flow(name, Form.SPAN, Purpose.KEYS)
                    self._add(origin, Project(right, key, asks, other))
                    asks = self._ship(origin, asks, at, bloom=one.bloom)
                    found = Flow(self._name(f"found({right},{left})", at, keys, asks), Form.SPAN, Purpose.KEYS)
                    self._add(at, Semijoin("", alias, keys, asks, key, found))
                    keys = found
                keys = self._ship(at, keys, origin, bloom=one.bloom)
                reduced = Flow(
                    self._name(f"{right}|{left}", origin, right, keys), right.form, Purpose.TUPLES, alias=other
                )
                self._add(origin, Semijoin("", other, right, keys, key, reduced))
                right = reduced
            self._ship(origin, right, at)
            both = (*bound, *more)
            is_last = is_root and number == len(node.inputs)
            if is_last:
                out = Flow("answers", Form.RESULT, Purpose.RESULTS)
            else:
                out = Flow(f"({' '.join(both)})", Form.PIECE, Purpose.TUPLES, alias=self._shortest(both))
            out = replace(out, name=self._name(out.name, at, left, right, key))
            carried = self._carried(both)
            self._add(at, Pair(left, right, alias, other, key, _checks(key), bound, more, carried, out))
            left, bound = out, both
        return at, left, bound

    def _shortest(self, aliases: tuple[str, ...]) -> str:
        """The alias whose window bounds for how long combinations last."""
        return min(aliases, key=lambda alias: (_reach_us(self._join.scan(alias).window), aliases.index(alias)))

    def _tying(self, some: Iterable[str], others: Iterable[str]) -> Key:
        others = tuple(others)
        return tuple(c for c in sorted({c for alias in others for c in self._shared(some, alias)}))

    def _shared(self, bound: Iterable[str], alias: str) -> Key:
        return tuple(
            c.number for c in self._join.classes if c.member(alias) and any(c.member(other) for other in bound)
        )

    def _carried(self, bound: tuple[str, ...]) -> tuple[int, ...]:
        """The classes that later joins need of a combination, and those that tell its way."""
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
        pace = Flow(f"pace({left},{alias})", Form.PACE, Purpose.WATERMARKS, alias=alias)
        self._ship(site, pace, home)
        self._paces.setdefault(site, {})[pace, left] = None

    def _project(self, site: str, left: Flow, key: Key, head: str, alias: str) -> Flow:
        name = self._name(f"asks({_of(left, head)},{alias})", site, left, key, Form.ASK)
        asks = Flow(name, Form.ASK, Purpose.KEYS)
        self._add(site, Project(left, key, asks))
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


def node_operators(program: SiteProgram) -> Iterator[str]:
    """The node operator set in the paper's notation: join(what, window), update(window), ship(flow, site)."""
    updated: set[str] = set()
    for operator in program.operators:
        match operator:
            case Join():
                yield f"join({operator.left}, {operator.alias}){_for(operator.sub_plans)}"
                if operator.right.name not in updated:
                    updated.add(operator.right.name)
                    yield f"update({operator.right})"
            case Pair():
                yield f"join({operator.left}, {operator.right}){_for(operator.sub_plans)}"
                for flow in (operator.left, operator.right):
                    if flow.name not in updated:
                        updated.add(flow.name)
                        yield f"update({flow})"
            case Semijoin():
                yield f"semijoin({operator.subject}, {operator.witness}) -> {operator.out}{_for(operator.sub_plans)}"
            case Announce():
                yield f"announce({operator.rows}) -> {operator.out}{_for(operator.sub_plans)}"
            case Project():
                yield f"project({operator.rows}) -> {operator.out}{_for(operator.sub_plans)}"
    for ship in program.ships:
        if ship.flow.form is not Form.PACE:  # like a watermark, it is not worth a line
            yield f"ship({ship.arrives_as}, {ship.to}){_for(ship.sub_plans)}"


def _for(sub_plans: SubPlans) -> str:
    if sub_plans is None:
        return ""
    return f" for way{'s' if len(sub_plans) > 1 else ''} {', '.join(str(sub_plan + 1) for sub_plan in sub_plans)}"
