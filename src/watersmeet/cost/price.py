"""What a plan costs in the steady state: one model for every plan, since it prices the compiled site programs.

For each flow it knows what the rows are, and so how many come a second and how large they are; each shipment of a flow
is then bytes and messages on a link, each operator time at a site, each kept input state, and the longest way from a
new row to an answer is the delay. With `seen(x) = 1 - exp(-x)` the chance that anything is there where x is expected:

    SP-S   rows of the stream                     SP-D   partial combinations
    SM-S1  distinct keys of a turn, then rows that any of them sees in their time
    SM-S2  announcements, those of them that are wanted, then their rows
    SM-D1  announcements, then partial combinations whose key is there
    SM-D2  distinct keys of a turn, announcements found by them, then as SM-D1

Keys of several classes are taken cell by cell in the first, and on average in the others.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from math import inf

import numpy as np
import pyarrow as pa

from watersmeet.cost.workload import F64, TIMESTAMP_SIZES, Workload, members_of, size_at
from watersmeet.plan.nodes import JoinPlan
from watersmeet.program.operators import (
    Announce,
    Flow,
    Form,
    Join,
    Operator,
    Pair,
    Project,
    Purpose,
    Semijoin,
    Ship,
    SiteProgram,
    SubPlans,
    compile_sites,
)
from watersmeet.program.site.filing import HIGH, LOW
from watersmeet.program.storage.bloom import BITS, BITS_PER_KEY, HASHES
from watersmeet.program.storage.packing import pack_rows
from watersmeet.program.storage.wire import MESSAGE_BYTES, PARCEL_BYTES, overhead_bytes
from watersmeet.topology.model import Topology

TURN_S = 1.0  # the interval between batches of a site's own streams, if nobody says
REACTION_S = 0.3  # how soon a site takes what has come over a link, if that is before its next batch
_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Units:
    """What the steps of a turn take on a machine, in seconds; `watersmeet calibrate` measures them."""

    turn_s: float = 1.1e-3  # a turn in which anything happens
    operator_s: float = 1.3e-3  # an operator that has something to do
    row_s: float = 2.5e-7  # a row that is filed under a key
    probe_s: float = 2e-8  # a row that looks something up
    match_s: float = 5e-8  # a pair that is found
    pack_s: float = 4e-8  # a row that is packed or unpacked

    def __post_init__(self) -> None:
        for item in fields(self):
            if not 0 <= getattr(self, item.name) < inf:
                raise ValueError(f"{item.name} must be 0 or more")


DEFAULT_UNITS = Units()


@dataclass(frozen=True, slots=True)
class FlowCost:
    """One flow on one link."""

    origin: str
    to: str
    flow: str
    purpose: Purpose
    rows_s: float
    bytes_s: float
    messages_s: float


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """One operator at one site."""

    site: str
    flow: str  # what it makes
    rows_s: float
    cpu: float  # seconds a second


@dataclass(frozen=True)
class Cost:
    """What a plan takes, a second."""

    flows: tuple[FlowCost, ...]
    operators: tuple[OperatorCost, ...]
    overhead: Mapping[tuple[str, str], tuple[float, float]]  # bytes and parcels beside the flows' rows, by link
    state_rows: Mapping[str, float]  # by site
    prices: Mapping[tuple[str, str], float] = field(default_factory=dict)  # a byte, by link
    delay_s: float = 0.0
    turns: Mapping[str, float] = field(default_factory=dict)  # seconds a second that turns take, by site
    busiest: tuple[str, str, float] = ("", "", 0.0)  # the link with the least room, and the share of it in use

    @cached_property
    def link_bytes(self) -> dict[tuple[str, str], float]:
        """Bytes a second on each link."""
        found = {pair: more for pair, (more, _) in self.overhead.items()}
        for one in self.flows:
            found[one.origin, one.to] = found.get((one.origin, one.to), 0.0) + one.bytes_s
        return dict(sorted(found.items()))

    @cached_property
    def cpu(self) -> dict[str, float]:
        """The share of a core that each site needs."""
        found = dict(self.turns)
        for one in self.operators:
            found[one.site] = found.get(one.site, 0.0) + one.cpu
        return dict(sorted(found.items()))

    @property
    def bytes_s(self) -> float:
        return sum(self.link_bytes.values())

    @property
    def messages_s(self) -> float:
        """Parcels a second."""
        return sum(parcels for _, parcels in self.overhead.values())

    @property
    def tuples_s(self) -> float:
        """Rows and combinations a second on all links; keys and filters not counted."""
        return sum(one.rows_s for one in self.flows if one.purpose in (Purpose.TUPLES, Purpose.RESULTS))

    @property
    def money_s(self) -> float:
        return sum(self.prices.get(pair, 0.0) * size for pair, size in self.link_bytes.items())

    def seconds_on_links(self, topology: Topology) -> float:
        """Seconds a second that parcels spend on links: the semijoin paper's transmission time."""
        total = 0.0
        for pair, size in self.link_bytes.items():
            link = topology.link(*pair)
            total += self.overhead[pair][1] * link.latency_us / 1e6
            total += size * 8 / link.bandwidth_bps if link.bandwidth_bps else 0.0
        return total


def seen(expected: F64 | float) -> F64:
    """The chance that there is any where so many are expected."""
    found: F64 = -np.expm1(-np.asarray(expected, float))
    return found


def announcements(rate: F64, window_s: F64 | float) -> tuple[F64, F64]:
    """How often a key that comes at a rate is announced, and for how long each announcement holds on average.

    A span lasts one window from the row that begins it; if rows came meanwhile, the next goes on from its end.
    """
    rate = np.maximum(np.asarray(rate, float), 1e-12)
    window_s = np.maximum(window_s, 1e-9)
    load = np.minimum(rate * window_s, 700.0)
    goes_on = seen(load)
    gap = 1 / rate - window_s * np.exp(-load) / np.maximum(goes_on, 1e-12)  # since the last row before the end
    longer = np.clip(window_s - gap, 1e-9, window_s)
    again = seen(rate * longer)
    first = (1 - again) / np.maximum(goes_on + 1 - again, 1e-12)  # the share of spans that begin a presence
    length = first * window_s + (1 - first) * longer
    idle = (first * (1 - goes_on) + (1 - first) * (1 - again)) / rate
    return 1 / (length + idle), length


@dataclass(frozen=True)
class Tie:
    """How the rows of one side find those of another: by cells of the first key class that ties them.

    `share` and `others` are the shares of either side's rows over the cells; `agree` is the chance that the other
    key classes agree; `size` is the number of values in each cell.
    """

    size: F64
    share: F64
    others: F64
    agree: float


def tie(workload: Workload, left: int, right: int) -> Tie:
    """How two sets of aliases are tied."""
    key = workload.shared(left, right)
    if not key:
        return Tie(np.ones(1), np.ones(1), np.ones(1), 1.0)
    sides = []
    for mask in (left, right):
        cells = [workload.agreement(number, mask) for number in key]
        sides.append([one / max(one.sum(), 1e-300) for one in cells])
    agree = 1.0
    for number, one, other in zip(key[1:], sides[0][1:], sides[1][1:], strict=True):
        agree *= float((one * other / workload.domains[number].size).sum())
    return Tie(workload.domains[key[0]].size, sides[0][0], sides[1][0], agree)


@dataclass(frozen=True)
class Content:
    """What the rows of a flow are."""

    form: Form
    mask: int  # the aliases they combine
    rate: Callable[[Workload], float]
    head: int | None = None
    of: int = 0  # of keys: the aliases whose keys they are


class _Pricing:
    """Prices the programs of a plan, flow by flow."""

    def __init__(
        self,
        join: JoinPlan,
        workload: Workload,
        topology: Topology,
        units: Units,
        turn_s: Mapping[str, float],
        reaction_s: float,
    ) -> None:
        self._reaction_s = reaction_s
        self._join, self._workload, self._topology, self._units = join, workload, topology, units
        self._programs = compile_sites(join)
        self._turn_s = {site: turn_s.get(site, TURN_S) for site in self._programs}
        self._contents: dict[str, Content] = {
            alias: Content(Form.ROW, 1 << number, _row_rate(number), number)
            for number, alias in enumerate(workload.aliases)
        }
        self._limited: dict[SubPlans, Workload] = {None: workload}
        self._made_at: dict[str, tuple[str, Operator]] = {
            operator.out.name: (site, operator)
            for site, program in self._programs.items()
            for operator in program.operators
        }
        self._ships = [(site, ship) for site, program in self._programs.items() for ship in program.ships]
        self._ready: dict[tuple[str, str], float] = {}
        self._made_when: dict[tuple[str, str], frozenset[float]] = {}

    def cost(self) -> Cost:
        flows, overhead = [], {}
        for (origin, to), ships in sorted(self._by_link().items()):
            costs = [self._ship(origin, ship) for ship in ships]
            flows += costs
            moments = {moment for ship in ships for moment in self._moments(ship.flow.name, origin)}
            turns = self._turns(moments, origin) / self._turn_s[origin]
            quiet = sum(max(turns - one.messages_s, 0.0) for one in costs)
            overhead[origin, to] = (turns * PARCEL_BYTES + quiet * MESSAGE_BYTES, turns)
        operators = [
            self._operator(site, operator) for site, program in self._programs.items() for operator in program.operators
        ]
        prices = {pair: self._topology.link(*pair).price_per_gb / _GIGA for pair in overhead}
        cost = Cost(
            tuple(flows),
            tuple(operators),
            overhead,
            {site: self._state(program) for site, program in self._programs.items()},
            prices,
            self._delay(),
            {site: self._turn(program) for site, program in self._programs.items()},
        )
        return replace(cost, busiest=self._busiest(cost))

    def _by_link(self) -> dict[tuple[str, str], list[Ship]]:
        found: dict[tuple[str, str], list[Ship]] = {}
        for site, ship in self._ships:
            found.setdefault((site, ship.to), []).append(ship)
        return found

    def _busiest(self, cost: Cost) -> tuple[str, str, float]:
        used = []
        for pair, size in cost.link_bytes.items():
            bandwidth = self._topology.link(*pair).bandwidth_bps
            used.append((*pair, size * 8 / bandwidth if bandwidth else 0.0))
        return max(used, key=lambda one: one[2], default=("", "", 0.0))

    def _of(self, sub_plans: SubPlans) -> Workload:
        """The workload of some ways of the plan."""
        if sub_plans not in self._limited:
            partition = self._join.partition
            assert partition is not None and sub_plans is not None
            cells = np.isin(self._workload.sub_plan_of_cells(partition), sub_plans)
            self._limited[sub_plans] = self._workload.limited(partition, cells)
        return self._limited[sub_plans]

    def content(self, flow: Flow) -> Content:
        """What the rows of a flow are."""
        name = flow.name.removeprefix("bloom ") if flow.bloom else flow.name
        if name not in self._contents:
            if flow.form is Form.CLOCK:
                number = self._workload.number(name.removeprefix("clock(").removesuffix(")"))
                self._contents[name] = Content(Form.CLOCK, 1 << number, _row_rate(number))
            elif flow.form is Form.PACE:
                self._contents[name] = Content(Form.PACE, 0, lambda workload: 0.0)
            else:
                site, operator = self._made_at[name]
                self._contents[name] = self._made(site, operator)
        return self._contents[name]

    def _made(self, site: str, operator: Operator) -> Content:
        match operator:
            case Join():
                head = self._workload.number(operator.head)
                mask = self._workload.mask((*operator.bound, operator.alias))
                return Content(operator.out.form, mask, lambda workload: workload.head_rate(head, mask), head)
            case Pair():
                mask = self._workload.mask((*operator.left_bound, *operator.right_bound))
                return Content(operator.out.form, mask, lambda workload: workload.meet_rate(mask))
            case Announce():
                rows = self.content(operator.rows)
                key = operator.key
                return Content(Form.SPAN, 0, lambda workload: announced(workload, rows.mask, key), of=rows.mask)
            case Project():
                rows = self.content(operator.rows)
                turn_s = self._turn_s[site]
                partner = self._partner(operator.out)
                form = operator.out.form
                return Content(form, 0, lambda workload: asked(workload, rows, partner, turn_s), of=rows.mask)
            case Semijoin():
                return self._reduced(operator)

    def _partner(self, asks: Flow) -> int:
        """The aliases that keys are asked about: those of the semijoin that reads them."""
        for program in self._programs.values():
            for operator in program.operators:
                if isinstance(operator, Semijoin) and _plain(operator.witness) == asks.name:
                    subject = self.content(operator.subject)
                    return subject.mask or subject.of
        return 0

    def _reduced(self, operator: Semijoin) -> Content:
        subject, witness = self.content(operator.subject), self.content(operator.witness)
        turn_s = max(self._turn_s.values())
        slack_s = turn_s if operator.witness.bloom else 0.0  # a filter stands for all the time of its keys
        false = (
            false_positives(float(self._workload.window_s[self._workload.number(operator.alias)]), turn_s)
            if operator.witness.bloom
            else 0.0
        )
        if subject.form is Form.SPAN:  # announcements that somebody wants, or that were found by keys
            left = witness if witness.mask else self._asking(witness)
            return Content(Form.SPAN, 0, lambda workload: wanted(workload, subject.of, left), of=subject.of)
        if operator.out.form is Form.POINT:  # partial combinations whose key is there
            other = witness.of
            return Content(
                Form.POINT,
                subject.mask,
                lambda w: subject.rate(w) * met(w, subject.mask, other, false, slack_s),
                subject.head,
            )
        if operator.head:  # rows that are asked for
            left = self._asking(witness)
            spans = witness.form is Form.SPAN
            return Content(
                Form.ROW,
                subject.mask,
                lambda w: subject.rate(w) * fetched(w, subject.mask, left, spans=spans, slack_s=slack_s),
            )
        other = witness.of if witness.of != subject.mask else 0
        return Content(
            subject.form, subject.mask, lambda w: subject.rate(w) * overlapping(w, subject.mask, other, false, slack_s)
        )

    def _asking(self, keys: Content) -> Content:
        """The rows whose keys these are."""
        for content in self._contents.values():
            if content.mask == keys.of and content.form in (Form.POINT, Form.ROW, Form.PIECE):
                return content
        return Content(Form.POINT, keys.of, lambda workload: workload.meet_rate(keys.of))

    def _ship(self, origin: str, ship: Ship) -> FlowCost:
        workload, content, turn_s = self._of(ship.sub_plans), self.content(ship.arrives_as), self._turn_s[origin]
        rate = content.rate(workload)
        rows = rate * turn_s
        if ship.arrives_as.form is Form.PACE:
            return FlowCost(origin, ship.to, ship.arrives_as.name, ship.arrives_as.purpose, 0.0, 0.0, 0.0)
        moments = self._turns(self._moments(ship.flow.name, origin), origin)
        messages = float(seen(rows / moments)) * moments / turn_s
        batch = rows / max(messages * turn_s, 1e-12)
        if ship.arrives_as.bloom:
            size = messages * bloom_bytes(batch)
        else:
            each, columns = self._row_bytes(workload, content, ship.arrives_as, batch)
            size = messages * overhead_bytes(columns) + rate * each
        return FlowCost(origin, ship.to, ship.arrives_as.name, ship.arrives_as.purpose, rate, size, messages)

    def _row_bytes(self, workload: Workload, content: Content, flow: Flow, batch: float) -> tuple[float, int]:
        match flow.form:
            case Form.CLOCK:
                return size_at(TIMESTAMP_SIZES, batch), 1
            case Form.SPAN | Form.ASK:
                return workload.keys_bytes(self._key_of(flow), batch, asked=flow.form is Form.ASK), 3
            case Form.RESULT:
                return workload.row_bytes(0, batch, answers=True), max(1, len(workload.answer_sizes))
            case Form.PIECE:
                own = workload.row_bytes(content.mask, batch, times=2)
                return own, workload.columns(content.mask, times=2)
            case _:
                return workload.row_bytes(content.mask, batch), workload.columns(content.mask)

    def _key_of(self, flow: Flow) -> tuple[int, ...]:
        return self._made_at[_plain(flow)][1].key

    def _operator(self, site: str, operator: Operator) -> OperatorCost:
        units, workload = self._units, self._of(operator.sub_plans)
        made = self.content(operator.out).rate(workload)
        taken = sum(self.content(flow).rate(workload) for flow in operator.inputs)
        busy = float(seen(taken * self._turn_s[site])) / self._turn_s[site]
        cpu = busy * units.operator_s + taken * (units.row_s + units.probe_s) + made * units.match_s
        return OperatorCost(site, operator.out.name, made, cpu)

    def _turn(self, program: SiteProgram) -> float:
        """What turns take beside operators: themselves, and packing and unpacking."""
        sent = sum(self.content(ship.arrives_as).rate(self._of(ship.sub_plans)) for ship in program.ships)
        taken = sum(
            self.content(ship.arrives_as).rate(self._of(ship.sub_plans))
            for _, ship in self._ships
            if ship.to == program.site
        )
        return self._units.turn_s / self._turn_s[program.site] + (sent + taken) * self._units.pack_s

    def _state(self, program: SiteProgram) -> float:
        """Rows kept at a site: each input of an operator, once for each key and for each set of ways."""
        kept = 0.0
        seen_before = set()
        for operator in program.operators:
            for flow in operator.inputs if not isinstance(operator, Project) else ():
                slot = (flow.name, operator.key, operator.sub_plans)
                if slot not in seen_before:
                    seen_before.add(slot)
                    kept += self._kept(flow, operator)
        return kept

    def _kept(self, flow: Flow, operator: Operator) -> float:
        workload, content = self._of(operator.sub_plans), self.content(flow)
        rate = content.rate(workload)
        if flow.form is Form.PIECE or (flow.form is Form.ROW and not _is_head(operator, flow)):
            full = workload.meet_rate(content.mask)
            return workload.count(content.mask) * (rate / full if full else 0.0)
        if flow.form in (Form.SPAN, Form.ASK):
            return rate * float(workload.window_s.max())
        return rate * 2 * max(self._turn_s.values())

    def _delay(self) -> float:
        """The longest way from a new row to an answer: turns and links, whatever has to be waited for."""
        delays = [0.0]
        for site, program in self._programs.items():
            for operator in program.operators:
                if operator.out.form is Form.RESULT:
                    made = self._when(operator.out.name, site)
                    wanted = self._join.site
                    delays.append(made if wanted in (None, site) else made + self._trip(site, wanted or ""))
        return max(delays)

    def _when(self, flow: str, site: str) -> float:
        """How long after a row has come what it leads to in a flow is at a site."""
        if (flow, site) in self._ready:
            return self._ready[flow, site]
        self._ready[flow, site] = inf  # nothing waits for itself
        plain = flow.removeprefix("bloom ")
        if plain in self._made_at and self._made_at[plain][0] == site and plain == flow:
            operator = self._made_at[plain][1]
            ready = max(self._when(one.name, site) for one in operator.inputs)
        else:
            origins = [one for one, ship in self._ships if ship.arrives_as.name == flow and ship.to == site]
            ready = max((self._when(plain, one) + self._trip(one, site) for one in origins), default=0.0)
            if not origins and plain in self._workload.aliases:
                ready = self._turn_s[site]
        self._ready[flow, site] = ready
        return ready

    def _turns(self, moments: Iterable[float], site: str) -> int:
        """In how many turns of an interval a site does what happens at some moments: what is close goes together."""
        interval_s = self._turn_s[site]
        last, turns = -inf, 0
        for moment in sorted(moment % interval_s for moment in moments):
            if moment > last + self._reaction_s:
                last, turns = moment, turns + 1
        return max(1, min(turns, int(interval_s / max(self._reaction_s, 1e-3))))

    def _moments(self, flow: str, site: str) -> frozenset[float]:
        """How long after the rows of an interval something is made in a flow at a site: each time is a message."""
        if (flow, site) in self._made_when:
            return self._made_when[flow, site]
        self._made_when[flow, site] = frozenset()
        plain = flow.removeprefix("bloom ")
        if plain == flow and flow in self._made_at and self._made_at[flow][0] == site:
            operator = self._made_at[flow][1]
            found = frozenset(one for name in _leading(operator) for one in self._moments(name, site))
        else:
            found = frozenset(
                moment + round(self._topology.link(origin, site).latency_us / 1e6 + self._reaction_s, 3)
                for origin, ship in self._ships
                if ship.arrives_as.name == flow and ship.to == site
                for moment in self._moments(plain, origin)
            ) or frozenset({0.0})
        self._made_when[flow, site] = found
        return found

    def _trip(self, origin: str, to: str) -> float:
        return self._topology.link(origin, to).latency_us / 1e6 + min(self._reaction_s, self._turn_s[to])


def price(
    join: JoinPlan,
    workload: Workload,
    topology: Topology,
    units: Units = DEFAULT_UNITS,
    turn_s: float | Mapping[str, float] = TURN_S,
    reaction_s: float = REACTION_S,
) -> Cost:
    """The cost of a plan, for a batch of each site every so many seconds."""
    turns = turn_s if isinstance(turn_s, Mapping) else dict.fromkeys(topology.site_names, turn_s)
    return _Pricing(join, workload, topology, units, turns, reaction_s).cost()


def bloom_bytes(keys: float) -> float:
    """What a message with the filter of so many keys takes."""
    return _empty_filter_bytes() + max(8.0, keys * BITS_PER_KEY / 8)


@cache
def _empty_filter_bytes() -> int:
    one = {LOW: [2**52], HIGH: [2**52 + 2**23], BITS: [bytes(range(7, 15))]}
    return MESSAGE_BYTES + len(pack_rows(pa.table(one))) - 8


def _plain(flow: Flow) -> str:
    return flow.name.removeprefix("bloom ") if flow.bloom else flow.name


def _leading(operator: Operator) -> tuple[str, ...]:
    """The inputs whose rows make an operator make something: new ones of a head, or either side of a tree."""
    match operator:
        case Join():
            return (operator.left.name,)
        case Semijoin() if operator.head and operator.witness.form is Form.ASK:
            return (operator.witness.name,)
        case _:
            return tuple(flow.name for flow in operator.inputs)


def _row_rate(number: int) -> Callable[[Workload], float]:
    return lambda workload: float(workload.rate[number])


def _is_head(operator: Operator, flow: Flow) -> bool:
    return (isinstance(operator, Join) and flow == operator.left) or (
        isinstance(operator, Semijoin) and flow.name == operator.head
    )


def announced(workload: Workload, mask: int, key: tuple[int, ...]) -> float:
    """Announcements a second of the keys that a window, or what trees have made, holds."""
    _, per_value, size = presence(workload, mask, key)
    often, _ = announcements(per_value, workload.lifetime_s(mask))
    return float((often * size * (per_value > 1e-9)).sum())


def together(rate: F64, window_s: F64, time_s: F64 | float = 0.0) -> F64:
    """The chance that all of some streams have a row of a value in their windows, at once, some time of a while.

    `rate[i, b]` is that of one value of cell b in stream i. All have one with the product of each one's chance; that
    begins anew whenever the only one without it gets one.
    """
    load = rate * window_s[:, None]
    there = np.maximum(seen(load), 1e-300)
    every = there.prod(axis=0)
    begins = every * (rate * np.exp(-load) / there).sum(axis=0)
    missing = np.maximum(1 - every, 1e-12)
    found: F64 = 1 - missing * np.exp(-begins * time_s / missing)
    return found


def _together(workload: Workload, mask: int, number: int, time_s: F64 | float = 0.0) -> F64:
    """The same for one value of each cell of a key class, of those of some aliases that have the key."""
    domain = workload.domains[number]
    members = [one for one in members_of(mask) if domain.members[one]]
    rate = workload.rate[members, None] * domain.shares[members] / np.maximum(domain.size, 1e-300)
    return together(rate, workload.window_s[members], time_s)


def presence(workload: Workload, mask: int, key: tuple[int, ...]) -> tuple[F64, F64, F64]:
    """Live rows and rows a second for each value of a key, and how many values there are, by cells.

    For a key of several classes, values are pairs: those of the other classes are spread as evenly as they may be.
    """
    cells = workload.agreement(key[0], mask) if key else np.ones(1)
    share = cells / max(cells.sum(), 1e-300)
    size = workload.domains[key[0]].size if key else np.ones(1)
    more = 1.0
    for number in key[1:]:
        other = workload.agreement(number, mask)
        other = other / max(other.sum(), 1e-300)
        more *= 1 / max(float((other**2 / workload.domains[number].size).sum()), 1e-300)
    each = share / np.maximum(size, 1e-300) / more
    live, rate = workload.count(mask) * each, workload.meet_rate(mask) * each
    if key and mask & (mask - 1):  # combinations come in clumps: as a stream counts what is there as often as they are
        often = -np.log1p(-np.minimum(_together(workload, mask, key[0]), 1 - 1e-12))
        live = np.minimum(live, often)
        rate = np.minimum(rate, often / max(workload.lifetime_s(mask), 1e-300))
    return live, rate, size * more


def visits(workload: Workload, rows: Content, bound: Tie) -> F64:
    """How often a second a value is visited by partial combinations: those of one head row count once."""
    size = np.maximum(bound.size, 1e-300)
    rate = rows.rate(workload)
    if rows.head is None or rows.mask == 1 << rows.head:
        return rate * bound.share / size
    alone = workload.head_rate(rows.head, 1 << rows.head)
    fan_out = rate / max(alone, 1e-300)
    clump = max(fan_out, 1e-12) / float(seen(max(fan_out, 1e-12)))
    return rate / clump * bound.share / size


def met(workload: Workload, mask: int, other: int, false: float, slack_s: float = 0.0) -> float:
    """The share of partial combinations whose key is in a window, or was within the slack of a filter's time."""
    bound = tie(workload, mask, other)
    expected = workload.count(other) + workload.meet_rate(other) * slack_s
    there = seen(expected * bound.others / np.maximum(bound.size, 1e-300) * bound.agree)
    share = float((bound.share * there).sum())
    return share + (1 - share) * false


def overlapping(workload: Workload, mask: int, other: int, false: float, slack_s: float = 0.0) -> float:
    """The share of a tree's rows that meet a row of the other side while they live."""
    bound = tie(workload, mask, other)
    time = workload.lifetime_s(mask) + slack_s
    expected = workload.count(other) + workload.meet_rate(other) * time
    there = seen(expected * bound.others / np.maximum(bound.size, 1e-300) * bound.agree)
    key = workload.shared(mask, other)
    if key:  # combinations come in clumps: there are none unless all of their streams have the value
        there = np.minimum(there, _together(workload, other, key[0], time))
    share = float((bound.share * there).sum())
    return share + (1 - share) * false


def fetched(workload: Workload, mask: int, left: Content, *, spans: bool, slack_s: float = 0.0) -> float:
    """The share of a window's rows that are asked for while they are seen."""
    bound = tie(workload, left.mask, mask)
    asked = visits(workload, left, bound) * bound.agree
    time = workload.lifetime_s(mask) + slack_s
    if spans:  # a whole span is wanted, and every row that touches it comes
        _, per_value, _ = presence(workload, mask, workload.shared(left.mask, mask)[:1])
        _, length = announcements(per_value, workload.lifetime_s(mask))
        return float((bound.others * seen(asked * (time + length))).sum())
    return float((bound.others * seen(asked * time)).sum())


def wanted(workload: Workload, mask: int, left: Content) -> float:
    """Announcements a second that partial combinations ask for."""
    key = workload.shared(left.mask, mask)
    _, per_value, size = presence(workload, mask, key)
    often, length = announcements(per_value, workload.lifetime_s(mask))
    bound = tie(workload, left.mask, mask)
    asked = seen(visits(workload, left, bound) * bound.agree * length)
    if left.mask & (left.mask - 1) and left.head is None:
        asked = np.minimum(asked, _together(workload, left.mask, key[0], length))
    return float((often * size * asked * (per_value > 1e-9)).sum())


def asked(workload: Workload, rows: Content, partner: int, turn_s: float) -> float:
    """Distinct keys a second that rows ask for, turn by turn."""
    bound = tie(workload, rows.mask, partner)
    per_turn = rows.rate(workload) * turn_s * bound.share / np.maximum(bound.size, 1e-300)
    many = _other_values(workload, rows.mask, partner)
    there = seen(per_turn / many)
    if rows.mask & (rows.mask - 1) and rows.head is None:
        there = np.minimum(there, _together(workload, rows.mask, workload.shared(rows.mask, partner)[0], turn_s))
    return float((bound.size * many * there).sum()) / turn_s


def _other_values(workload: Workload, mask: int, partner: int) -> float:
    """How many values the further classes of a key have."""
    many = 1.0
    for number in workload.shared(mask, partner)[1:]:
        cells = workload.agreement(number, mask)
        cells = cells / max(cells.sum(), 1e-300)
        many *= 1 / max(float((cells**2 / workload.domains[number].size).sum()), 1e-300)
    return many


def false_positives(window_s: float, turn_s: float) -> float:
    """The chance that any of the filters of a window claims a key that it does not hold."""
    one = (1 - float(np.exp(-HASHES / BITS_PER_KEY))) ** HASHES
    return float(1 - (1 - one) ** max(window_s / turn_s, 1.0))
