"""What a plan costs in the steady state: one model for every plan, since it prices the compiled site programs.

For each flow it knows what the rows are, and so how many come a second and how large they are; each shipment of a flow
is then bytes and messages on a link, each operator time at a site, each kept input state, and the longest path from a
new row to an answer is the delay. The formulas are those of `cost.formulas`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from watersmeet.cost.contents import (
    Announced,
    AskedKeys,
    Content,
    Fetched,
    Gathered,
    Met,
    Nothing,
    OfHead,
    OfStream,
    OfTree,
    Overlapping,
    Wanted,
    rate_of,
)
from watersmeet.cost.costs import DEFAULT_UNITS, Cost, FlowCost, OperatorCost, Units
from watersmeet.cost.formulas import (
    advances,
    any_of,
    bloom_bytes,
    false_positives,
    flow_bytes,
    has_rows,
    messages_per_s,
    rows_per_message,
)
from watersmeet.cost.sizes import size_at
from watersmeet.cost.timing import Timing
from watersmeet.cost.workload import Workload
from watersmeet.plan.nodes import JoinPlan
from watersmeet.program.compile import compile_sites
from watersmeet.program.once import is_among
from watersmeet.program.operators import (
    ROWLESS,
    Announce,
    Flow,
    Form,
    Gather,
    Join,
    JoinProgram,
    Operator,
    Pair,
    Probe,
    ProjectKeys,
    Purpose,
    Semijoin,
    Ship,
    SubPlans,
)
from watersmeet.program.storage.wire import MESSAGE_BYTES, PARCEL_BYTES
from watersmeet.query.windows import AsOf
from watersmeet.topology.model import Topology

BATCH_INTERVAL_S = 1.0  # between micro-batches of a site's own streams, if nobody says
REACTION_S = 0.3  # how soon a site takes what has come over a link, if that is before its next batch
_GIGA = 1e9


class _Pricing:
    """Prices the programs of a plan, flow by flow."""

    def __init__(
        self,
        join: JoinPlan,
        workload: Workload,
        topology: Topology,
        units: Units,
        batch_interval_s: Mapping[str, float],
        reaction_s: float,
    ) -> None:
        self._join, self._workload, self._topology, self._units = join, workload, topology, units
        self._programs = compile_sites(join)
        self._batch_interval_s = {site: batch_interval_s.get(site, BATCH_INTERVAL_S) for site in self._programs}
        self._contents: dict[str, Content] = {
            alias: Content(Form.ROW, 1 << number, OfStream(number), number)
            for number, alias in enumerate(workload.aliases)
        }
        self._limited: dict[SubPlans, Workload] = {None: workload}
        self._made_at: dict[str, tuple[str, Operator]] = {
            operator.out.name: (site, operator)
            for site, program in self._programs.items()
            for operator in program.operators
        }
        for site, gather in list(self._made_at.values()):
            if isinstance(gather, Gather):
                self._made_at |= {member.out.name: (site, gather) for member in gather.members}
        self._ships = [(site, ship) for site, program in self._programs.items() for ship in program.ships]
        self._timing = Timing(
            *(join.site, workload.aliases, topology, self._programs, self._made_at, self._ships),
            *(self._batch_interval_s, reaction_s),
        )
        self._tables = {scan.alias for scan in join.scans if isinstance(scan.window, AsOf)}
        self._behind: dict[tuple[str, str], frozenset[int]] = {}

    def cost(self) -> Cost:
        flows, overhead = [], {}
        for (origin, to), ships in sorted(self._by_link().items()):
            costs = self._as_records([self._ship(origin, ship) for ship in ships])
            flows += costs
            parcels, quiet = self._parcels(origin, ships, costs)
            overhead[origin, to] = (parcels * PARCEL_BYTES + quiet * MESSAGE_BYTES, parcels)
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
            self._timing.delay_s(),
            {site: self._batch_cpu(program) for site, program in self._programs.items()},
        )
        return replace(cost, busiest=self._busiest(cost))

    def _parcels(self, origin: str, ships: Sequence[Ship], costs: Sequence[FlowCost]) -> tuple[float, float]:
        """Parcels a second on a link, and messages in them that only tell how far a flow has come.

        A parcel goes where any of its flows has rows or a watermark that advances, and both only where rows came of the
        streams that it is made of.
        """
        interval_s = self._batch_interval_s[origin]
        batches = [self._timing.made_in(ship.flow.name, origin) for ship in ships]
        parcels = quiet = 0.0
        for batch in sorted({one for some in batches for one in some}):
            sources: set[int] = set()
            advancing: dict[frozenset[int], float] = {}
            rows = []
            for ship, cost, some in zip(ships, costs, batches, strict=True):
                if batch in some:
                    behind = self._sources(ship.flow.name, origin)
                    comes = self._comes(behind, interval_s)
                    sources |= behind
                    some_rows = cost.messages_s * interval_s / len(some)
                    if behind not in advancing:
                        advancing[behind] = self._advances(behind, interval_s) / len(some)
                    rows.append(some_rows)
                    quiet += max(advancing[behind] - advancing[behind] * some_rows / max(comes, 1e-300), 0.0)
            parcels += any_of([*rows, *advancing.values()], self._comes(frozenset(sources), interval_s))
        return parcels / interval_s, quiet / interval_s

    def _comes(self, aliases: frozenset[int], interval_s: float) -> float:
        """The chance that a batch has rows of any of some streams."""
        return 1 - float(np.prod(1 - self._workload.busy(interval_s)[sorted(aliases)]))

    def _advances(self, aliases: frozenset[int], interval_s: float) -> float:
        some = sorted(aliases)
        return advances(self._workload.arrivals[some], self._workload.busy(interval_s)[some])

    def _sources(self, flow: str, site: str) -> frozenset[int]:
        """The streams that a flow's watermark follows."""
        if (flow, site) in self._behind:
            return self._behind[flow, site]
        self._behind[flow, site] = frozenset()
        plain = flow.removeprefix("bloom ")
        found: frozenset[int]
        if plain in self._workload.aliases:
            found = frozenset() if plain in self._tables else frozenset({self._workload.number(plain)})
        elif plain in self._made_at:
            made_at, operator = self._made_at[plain]
            found = frozenset().union(*(self._sources(input_.name, made_at) for input_ in operator.inputs))
        elif flow.startswith("clock("):
            found = frozenset({self._workload.number(flow.removeprefix("clock(").removesuffix(")"))})
        else:
            found = frozenset(range(len(self._workload.aliases)))
        self._behind[flow, site] = found
        return found

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
        return max(used, key=lambda link: link[2], default=("", "", 0.0))

    def _of(self, sub_plans: SubPlans) -> Workload:
        """The workload of some sub-plans."""
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
                self._contents[name] = Content(Form.CLOCK, 1 << number, OfStream(number))
            elif flow.form in ROWLESS:
                self._contents[name] = Content(flow.form, 0, Nothing())
            else:
                site, operator = self._made_at[name]
                self._contents[name] = self._made(site, operator)
        return self._contents[name]

    def _made(self, site: str, operator: Operator) -> Content:
        match operator:
            case Probe():
                head = self._workload.number(operator.head)
                mask = self._workload.mask((*operator.bound, *(lookup.alias for lookup in operator.lookups)))
                return Content(operator.out.form, mask, OfHead(head, mask), head)
            case Join():
                head = self._workload.number(operator.head)
                mask = self._workload.mask((*operator.bound, operator.alias))
                return Content(operator.out.form, mask, OfHead(head, mask), head)
            case Pair():
                mask = self._workload.mask((*operator.left_bound, *operator.right_bound))
                return Content(operator.out.form, mask, OfTree(mask))
            case Announce():
                rows = self.content(operator.rows)
                return Content(Form.SPAN, 0, Announced(rows.mask, operator.key), of=rows.mask)
            case ProjectKeys():
                rows = self.content(operator.rows)
                rate = AskedKeys(rows, self._partner(operator.out), self._batch_interval_s[site])
                return Content(operator.out.form, 0, rate, of=rows.mask)
            case Semijoin():
                return self._reduced(operator)
            case Gather():
                return self._gathered(operator)

    def _partner(self, asks: Flow) -> int:
        """The aliases that keys are asked about: those of the semijoin that reads them."""
        for program in self._programs.values():
            for operator in program.operators:
                own = operator.members if isinstance(operator, Gather) else (operator,)
                for one in own:
                    if isinstance(one, Semijoin) and _plain(one.witness) == asks.name:
                        subject = self.content(one.subject)
                        return subject.mask or subject.of
        return 0

    def _reduced(self, operator: Semijoin) -> Content:
        subject, witness = self.content(operator.subject), self.content(operator.witness)
        false, slack_s = 0.0, 0.0
        if operator.witness.bloom:  # a filter stands for all the time of its keys
            slack_s = max(self._batch_interval_s.values())
            false = false_positives(float(self._workload.window_s[self._workload.number(operator.alias)]), slack_s)
        if subject.form is Form.SPAN:  # announcements that somebody wants, or that were found by keys
            by = witness if witness.mask else self._asking(witness)
            return Content(Form.SPAN, 0, Wanted(subject.of, by), of=subject.of)
        if operator.out.form is Form.POINT:  # partial combinations whose key is there
            return Content(Form.POINT, subject.mask, Met(subject, witness.of, false, slack_s), subject.head)
        if operator.head:  # rows that are asked for
            rate = Fetched(subject, self._asking(witness), witness.form is Form.SPAN, slack_s)
            return Content(Form.ROW, subject.mask, rate)
        met = witness.of or witness.mask
        other = met if met != subject.mask else 0
        return Content(subject.form, subject.mask, Overlapping(subject, other, false, slack_s))

    def _gathered(self, operator: Gather) -> Content:
        """Rows that any of several semijoins finds; in a tree, those by more streams are among those by fewer."""
        rates = [self._reduced(member).rate for member in operator.members]
        found = [rate for rate in rates if isinstance(rate, Fetched | Met | Overlapping)]
        others = [content.other for content in found if isinstance(content, Overlapping)]
        found = [
            content
            for content in found
            if not (
                isinstance(content, Overlapping) and any(o != content.other and o & content.other == o for o in others)
            )
        ]
        lead = self.content(operator.members[0].subject)
        return Content(Form.ROW, lead.mask, Gathered(lead, tuple(dict.fromkeys(found))))

    def _asking(self, keys: Content) -> Content:
        """The rows whose keys these are."""
        for content in self._contents.values():
            if content.mask == keys.of and content.form in (Form.POINT, Form.ROW, Form.INTERMEDIATE):
                return content
        return Content(Form.POINT, keys.of, OfTree(keys.of))

    def _ship(self, origin: str, ship: Ship) -> FlowCost:
        flow = ship.arrives_as
        if flow.form in ROWLESS or self._is_sent_anyway(origin, ship):
            return FlowCost(origin, ship.to, flow.name, flow.purpose, 0.0, 0.0, 0.0)
        workload, content = self._of(ship.sub_plans), self.content(flow)
        rate = rate_of(content, workload)
        batches = self._timing.batches(ship.flow.name, origin)
        interval_s = self._batch_interval_s[origin]
        comes = self._comes(self._sources(ship.flow.name, origin), interval_s)
        if isinstance(content.rate, OfStream) and rate >= 0.999 * self._workload.arrivals[content.rate.alias]:
            messages = comes / interval_s
        elif (often := self._counted_batches(workload, content)) is not None:
            messages = often * batches
        else:
            messages = has_rows(rate / batches, interval_s, comes) * batches / interval_s
        rows = float(rows_per_message(rate, messages))
        if flow.bloom:
            size = messages * bloom_bytes(rows)
        else:
            each, columns = self._row_bytes(workload, content, flow, rows, rate)
            size = float(flow_bytes(rate, each, messages, columns))
        purpose = Purpose.TABLES if flow.name in self._tables else flow.purpose
        return FlowCost(origin, ship.to, flow.name, purpose, rate, size, messages)

    def _counted_batches(self, workload: Workload, content: Content) -> float | None:
        """Micro-batches a second with combinations, as they were counted in a sample: they come many at once."""
        if workload.sampled is None or not isinstance(content.rate, OfHead | OfTree):
            return None
        if not workload.is_counted(content.mask) or not workload.sampled.count(content.mask):
            return None
        return workload.sampled.batches(content.mask, content.head)

    def _is_sent_anyway(self, origin: str, ship: Ship) -> bool:
        """Whether the rows of an alias are among those of another of the same stream that go the same way."""
        if ship.flow.form is not Form.ROW or ship.flow.name not in self._workload.aliases:
            return False
        aliases = [
            one.flow.name
            for site, one in self._ships
            if (site, one.to, one.sub_plans) == (origin, ship.to, ship.sub_plans)
            and one.flow.form is Form.ROW
            and one.flow.name in self._workload.aliases
        ]
        return any(is_among(self._join, ship.flow.name, other) for other in aliases)

    def _as_records(self, costs: Sequence[FlowCost]) -> list[FlowCost]:
        """The flows of a link with records for the answers of a query that has groups, all of a site together."""
        records = self._workload.records
        answers = sum(cost.rows_s for cost in costs if cost.purpose is Purpose.RESULTS)
        if records is None or not answers:
            return list(costs)
        found = []
        for cost in costs:
            if cost.purpose is Purpose.RESULTS:
                rate = float(records.rate(answers)) * cost.rows_s / answers
                messages = float(records.messages(cost.messages_s)) * cost.rows_s / answers
                size = float(flow_bytes(rate, records.row_bytes, messages, records.columns))
                made = FlowCost(cost.origin, cost.to, cost.flow, Purpose.RECORDS, rate, size, messages)
                cost = replace(made, answers_s=cost.rows_s, answers_bytes_s=cost.bytes_s)
            found.append(cost)
        return found

    def _row_bytes(
        self, workload: Workload, content: Content, flow: Flow, batch: float, rate: float
    ) -> tuple[float, int]:
        match flow.form:
            case Form.CLOCK:
                return float(size_at(workload.stamps[content.mask.bit_length() - 1], batch)), 1
            case Form.SPAN | Form.ASK:
                return workload.keys_bytes(self._key_of(flow), batch, asked=flow.form is Form.ASK), 3
            case Form.RESULT:
                own = workload.row_bytes(0, batch, answers=True, head=content.head)
                return own, max(1, len(workload.answer_sizes))
            case Form.INTERMEDIATE:
                own = workload.row_bytes(content.mask, batch, times=2)
                return own, workload.columns(content.mask, times=2)
            case _:
                own = workload.row_bytes(content.mask, batch, head=content.head, rate=rate)
                return own, workload.columns(content.mask)

    def _key_of(self, flow: Flow) -> tuple[int, ...]:
        return self._made_at[_plain(flow)][1].key

    def _operator(self, site: str, operator: Operator) -> OperatorCost:
        units, workload = self._units, self._of(operator.sub_plans)
        made = rate_of(self.content(operator.out), workload)
        taken = sum(rate_of(self.content(flow), workload) for flow in operator.inputs)
        busy = float(messages_per_s(taken, self._batch_interval_s[site]))
        cpu = busy * units.operator_s + taken * (units.row_s + units.probe_s) + made * units.match_s
        return OperatorCost(site, operator.out.name, made, cpu)

    def _batch_cpu(self, program: JoinProgram) -> float:
        """What micro-batches take beside operators: themselves, and packing and unpacking."""
        ships = [*program.ships, *(ship for _, ship in self._ships if ship.to == program.site)]
        packed = sum(rate_of(self.content(ship.arrives_as), self._of(ship.sub_plans)) for ship in ships)
        return self._units.micro_batch_s / self._batch_interval_s[program.site] + packed * self._units.pack_s

    def _state(self, program: JoinProgram) -> float:
        """Rows kept at a site: each input of an operator, once for each key and for each set of sub-plans."""
        kept = 0.0
        seen_before = set()
        for operator in program.operators:
            for flow in operator.inputs if not isinstance(operator, ProjectKeys) else ():
                slot = (flow.name, operator.key, operator.sub_plans)
                if slot not in seen_before:
                    seen_before.add(slot)
                    kept += self._kept(flow, operator)
        return kept

    def _kept(self, flow: Flow, operator: Operator) -> float:
        workload, content = self._of(operator.sub_plans), self.content(flow)
        rate = rate_of(content, workload)
        if flow.form is Form.INTERMEDIATE or (flow.form is Form.ROW and not _is_head(operator, flow)):
            full = workload.combination_rate(content.mask)
            return workload.count(content.mask) * (rate / full if full else 0.0)
        if flow.form in (Form.SPAN, Form.ASK):
            return rate * float(workload.window_s.max())
        return rate * 2 * max(self._batch_interval_s.values())


def price(
    join: JoinPlan,
    workload: Workload,
    topology: Topology,
    units: Units = DEFAULT_UNITS,
    batch_interval_s: float | Mapping[str, float] = BATCH_INTERVAL_S,
    reaction_s: float = REACTION_S,
) -> Cost:
    """The cost of a plan, for a micro-batch of each site every so many seconds."""
    if not isinstance(batch_interval_s, Mapping):
        batch_interval_s = dict.fromkeys(topology.site_names, batch_interval_s)
    return _Pricing(join, workload, topology, units, batch_interval_s, reaction_s).cost()


def _plain(flow: Flow) -> str:
    return flow.name.removeprefix("bloom ") if flow.bloom else flow.name


def _is_head(operator: Operator, flow: Flow) -> bool:
    return (isinstance(operator, Join | Probe) and flow == operator.left) or (
        isinstance(operator, Semijoin) and flow.name == operator.head
    )
