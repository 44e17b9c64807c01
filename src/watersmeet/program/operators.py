"""The node operator set of each site, built from a plan (adaptive paper, 4.1), with the semijoin paper's six methods.

Everything a site does is one of four operators over flows of rows, and shipping a flow to another site:

    Join      pairs of a left row and a right row whose intervals meet, each exactly once
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

Every operator has a horizon, the lowest progress of its inputs; its output has come as far as that, and a row is
kept until its interval lies before the horizon of every operator that reads it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from watersmeet.plan import HeadPlan, Hop, Key, Method, SitedJoin
from watersmeet.query.windows import Rows


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
    alias: str = ""  # of a pace, whose keys are asked for

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

    @property
    def inputs(self) -> tuple[Flow, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Semijoin:
    """Rows of the subject that have met a witness, each once; about the window of an alias, for a head."""

    head: str
    alias: str
    subject: Flow
    witness: Flow
    key: Key
    out: Flow

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

    @property
    def inputs(self) -> tuple[Flow, ...]:
        return (self.rows,)


@dataclass(frozen=True, slots=True)
class Project:
    """The keys of new partial combinations."""

    rows: Flow
    key: Key
    out: Flow

    @property
    def inputs(self) -> tuple[Flow, ...]:
        return (self.rows,)


Operator = Join | Semijoin | Announce | Project


@dataclass(frozen=True, slots=True)
class Ship:
    """A flow that goes to another site, as it is or as Bloom filters."""

    flow: Flow
    to: str
    arrives_as: Flow


@dataclass(frozen=True)
class SiteProgram:
    """What one site does for a query: pure data; `program.site` runs it."""

    site: str
    join: SitedJoin
    operators: tuple[Operator, ...] = ()
    ships: tuple[Ship, ...] = ()
    paces: tuple[tuple[Flow, Flow], ...] = ()  # pace told from here, flow whose rows set it
    inbound: tuple[tuple[str, Flow], ...] = ()  # sender, flow
    local: tuple[str, ...] = ()  # aliases whose streams arrive here

    @property
    def is_query_site(self) -> bool:
        return self.site == self.join.site

    @cached_property
    def indexes(self) -> dict[str, tuple[Key, ...]]:
        """For each flow that is kept here, the keys it is kept by."""
        keys: dict[str, set[Key]] = {}
        for operator in self.operators:
            for flow in kept_inputs(operator):
                keys.setdefault(flow.name, set()).add(operator.key)
        return {name: tuple(sorted(found)) for name, found in sorted(keys.items())}

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


def compile_sites(join: SitedJoin, sites: Iterable[str] = ()) -> dict[str, SiteProgram]:
    """The program of every site of a plan."""
    builder = _Builder(join)
    for plan in join.heads:
        builder.sequence(plan)
    placed = {hop.at for plan in join.heads for hop in plan.hops if hop.at is not None}
    names = sorted({*sites, *join.homes, join.site, *placed})
    return {site: builder.program(site) for site in names}


class _Builder:
    """Collects operators and shipments sequence by sequence; what two sequences share is there once."""

    def __init__(self, join: SitedJoin) -> None:
        self._join = join
        self._operators: dict[str, dict[Operator, None]] = {}
        self._ships: dict[str, dict[Ship, None]] = {}
        self._paces: dict[str, dict[tuple[Flow, Flow], None]] = {}

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
            tuple(self._operators.get(site, ())),
            tuple(self._ships.get(site, ())),
            tuple(self._paces.get(site, ())),
            tuple(sorted(inbound, key=lambda item: (item[0], item[1].name))),
            tuple(s.alias for s, home in zip(self._join.scans, self._join.homes, strict=True) if home == site),
        )

    def _add(self, site: str, operator: Operator) -> None:
        self._operators.setdefault(site, {})[operator] = None

    def _ship(self, origin: str, flow: Flow, to: str, *, bloom: bool = False) -> Flow:
        if origin == to:
            return flow
        arrives = Flow(f"bloom {flow.name}", flow.form, Purpose.FILTERS, bloom=True) if bloom else flow
        self._ships.setdefault(origin, {})[Ship(flow, to, arrives)] = None
        return arrives

    def sequence(self, plan: HeadPlan) -> None:
        site, flow = self._join.home(plan.head), rows_of(plan.head)
        bound = [plan.head]
        for number, hop in enumerate(plan.hops):
            if hop.at is not None and hop.at != site:
                self._ship(site, flow, hop.at)
                site = hop.at
            site, flow = self._hop(plan, number, hop, tuple(bound), site, flow)
            bound.append(hop.alias)
        self._ship(site, flow, self._join.site)

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
                    wanted = Flow(f"wanted({left},{alias})", Form.SPAN, Purpose.KEYS)
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
                found = Flow(f"found({left},{alias})", Form.SPAN, Purpose.KEYS)
                self._add(home, Semijoin(head, alias, self._announce(home, alias, key), asks, key, found))
                found = self._ship(home, found, site, bloom=hop.bloom)
                if isinstance(self._join.scan(alias).window, Rows):
                    self._ship(home, clock_of(alias), site)
                left = self._reduce(site, head, alias, key, left, found)
                self._ship(site, left, home)
                site, right = home, rows
        is_last = number == len(plan.hops) - 1
        out = result_of(head) if is_last else Flow(f"{alias}^{head}", Form.POINT, Purpose.TUPLES)
        checks = key if len(key) > 1 else ()
        carried = self._carried(plan, number, (*bound, alias))
        self._add(site, Join(head, alias, left, right, key, checks, bound, carried, out))
        return site, out

    def _shared(self, bound: Iterable[str], alias: str) -> Key:
        return tuple(
            c.number for c in self._join.classes if c.member(alias) and any(c.member(other) for other in bound)
        )

    def _carried(self, plan: HeadPlan, number: int, bound: tuple[str, ...]) -> tuple[int, ...]:
        have = {c.number for c in self._join.classes if any(c.member(alias) for alias in bound)}
        needed: set[int] = set()
        for hop in plan.hops[number + 1 :]:
            needed |= set(self._shared(bound, hop.alias))
            bound = (*bound, hop.alias)
        return tuple(sorted(needed & have))

    def _announce(self, home: str, alias: str, key: Key) -> Flow:
        keys = Flow(f"keys({alias},{key_name(key)})", Form.SPAN, Purpose.SYNC)
        self._add(home, Announce(alias, rows_of(alias), key, keys))
        return keys

    def _pace(self, site: str, left: Flow, alias: str, home: str) -> None:
        pace = Flow(f"pace({left},{alias})", Form.PACE, Purpose.WATERMARKS, alias=alias)
        self._ship(site, pace, home)
        self._paces.setdefault(site, {})[pace, left] = None

    def _project(self, site: str, left: Flow, key: Key, head: str, alias: str) -> Flow:
        asks = Flow(f"asks({_of(left, head)},{alias})", Form.ASK, Purpose.KEYS)
        self._add(site, Project(left, key, asks))
        return asks

    def _reduce(self, site: str, head: str, alias: str, key: Key, left: Flow, witness: Flow) -> Flow:
        reduced = Flow(f"{_of(left, head)}|{alias}", Form.POINT, Purpose.TUPLES)
        self._add(site, Semijoin(head, alias, left, witness, key, reduced))
        return reduced

    def _fetch(self, head: str, alias: str, key: Key, asks: Flow, home: str, site: str) -> Flow:
        fetched = Flow(f"fetched({alias},{head})", Form.ROW, Purpose.TUPLES)
        self._add(home, Semijoin(head, alias, rows_of(alias), asks, key, fetched))
        return self._ship(home, fetched, site)


def _of(left: Flow, head: str) -> str:
    return left.name if left.form is not Form.ROW or left.name == head else f"{left.name}^{head}"


def node_operators(program: SiteProgram) -> Iterator[str]:
    """The node operator set in the paper's notation: join(what, window), update(window), ship(flow, site)."""
    updated: set[str] = set()
    for operator in program.operators:
        match operator:
            case Join():
                yield f"join({operator.left}, {operator.alias})"
                if operator.right.name not in updated:
                    updated.add(operator.right.name)
                    yield f"update({operator.right})"
            case Semijoin():
                yield f"semijoin({operator.subject}, {operator.witness}) -> {operator.out}"
            case Announce():
                yield f"announce({operator.alias}) -> {operator.out}"
            case Project():
                yield f"project({operator.rows}) -> {operator.out}"
    for ship in program.ships:
        if ship.flow.form is not Form.PACE:  # like a watermark, it is not worth a line
            yield f"ship({ship.arrives_as}, {ship.to})"
