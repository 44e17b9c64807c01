"""Trees whose inputs are reduced by semijoins before they travel: the semijoin paper's methods, in PMJoin's trees."""

from dataclasses import dataclass, replace
from functools import cache

from watersmeet.cost import Content, announced, asked, bloom_bytes, false_positives, overlapping, seen, wanted
from watersmeet.plan import Input, Leaf, Meet, Reduction, Tree, leaves_of
from watersmeet.planners.problem import Problem
from watersmeet.planners.trees import Shipping, site_of
from watersmeet.program.operators import Form
from watersmeet.program.wire import overhead_bytes
from watersmeet.workload import Workload

TOO_MUCH = 1e15  # what a byte counts for on a way that is barred


@dataclass(frozen=True, slots=True)
class Carriage:
    """How something gets to another site, and what that is worth."""

    value: float
    reduction: Reduction = Reduction.NONE
    bloom: bool = False


class Carrier:
    """Prices what the inputs of trees take on links, for a problem."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._workload, self._turn_s = problem.workload, problem.turn_s
        self._sizes = cache(self._sizes_of)
        self._plain = cache(self._whole)

    def weight(self, origin: str, to: str) -> float:
        """What a byte from one site to another is worth."""
        if not self._problem.allows(origin, to):
            return TOO_MUCH
        return self._problem.byte_weight[origin, to]

    def shipping(self) -> Shipping:
        """The same for planners that ship everything whole."""

        def row(workload: Workload, mask: int) -> float:
            return self._plain_of(workload, mask)[0] / max(workload.meet_rate(mask), 1e-300)

        return Shipping(row, self.weight)

    def _plain_of(self, workload: Workload, mask: int) -> tuple[float, float]:
        is_answer = mask == (1 << len(workload.aliases)) - 1
        rate = workload.meet_rate(mask)
        messages, batch = self._messages(rate)
        if is_answer:
            columns = max(1, len(workload.answer_sizes))
            return messages * overhead_bytes(columns) + rate * workload.row_bytes(0, batch, answers=True), messages
        times = 1 if mask & (mask - 1) == 0 else 2
        each = workload.row_bytes(mask, batch, times=times)
        return messages * overhead_bytes(workload.columns(mask, times=times)) + rate * each, messages

    def _whole(self, mask: int) -> tuple[float, float]:
        return self._plain_of(self._workload, mask)

    def deliver(self, site: str) -> float:
        """What it is worth to bring all answers from a site to where they are wanted."""
        wanted_at = self._problem.site
        if wanted_at is None or wanted_at == site:
            return 0.0
        size, messages = self._plain((1 << len(self._problem.aliases)) - 1)
        return size * self._problem.byte_weight[site, wanted_at] + self._trip(messages, site, wanted_at)

    def carry(self, mask: int, origin: str, to: str, partner: int) -> Carriage:
        """The cheapest way to bring combinations to a site where others are that they are to meet."""
        if origin == to:
            return Carriage(0.0)
        size, messages = self._plain(mask)
        best = Carriage(size * self.weight(origin, to) + self._trip(messages, origin, to))
        if not self._workload.shared(mask, partner) or not self._problem.allows(to, origin):
            return best
        for reduction, bloom, out, back in self._sizes(mask, partner):
            value = sum(one * self.weight(origin, to) + self._trip(many, origin, to) for one, many in out)
            value += sum(one * self.weight(to, origin) + self._trip(many, to, origin) for one, many in back)
            if value < best.value:
                best = Carriage(value, reduction, bloom)
        return best

    def _trip(self, messages: float, origin: str, to: str) -> float:
        return messages * self._problem.trip_weight[origin, to] + self._problem.delay_weight[origin, to]

    def _sizes_of(
        self, mask: int, partner: int
    ) -> list[tuple[Reduction, bool, list[tuple[float, float]], list[tuple[float, float]]]]:
        """For every way to reduce: bytes and messages there, and back."""
        workload = self._workload
        key = workload.shared(mask, partner)
        rows = Content(Form.PIECE, mask, lambda one: one.meet_rate(mask))
        window_s = min(float(workload.window_s[one]) for one in range(len(workload.aliases)) if partner >> one & 1)
        false = false_positives(window_s, self._turn_s)
        share, loose = (
            overlapping(workload, mask, partner, 0.0),
            overlapping(workload, mask, partner, false, self._turn_s),
        )
        keys, asks = announced(workload, partner, key), asked(workload, rows, partner, self._turn_s)
        found = wanted(workload, partner, rows)
        exact, rough = self._rows(mask, share), self._rows(mask, loose)
        return [
            (Reduction.ONE_STEP, False, [exact], [self._keys(key, keys)]),
            (Reduction.ONE_STEP, True, [rough], [self._filter(keys)]),
            (Reduction.TWO_STEP, False, [exact, self._keys(key, asks)], [self._keys(key, found)]),
            (Reduction.TWO_STEP, True, [rough, self._filter(asks)], [self._filter(found)]),
        ]

    def _messages(self, rate: float) -> tuple[float, float]:
        rows = rate * self._turn_s
        messages = float(seen(rows)) / self._turn_s
        return messages, rows / max(messages * self._turn_s, 1e-12)

    def _rows(self, mask: int, share: float) -> tuple[float, float]:
        rate = self._workload.meet_rate(mask) * share
        messages, batch = self._messages(rate)
        times = 1 if mask & (mask - 1) == 0 else 2
        columns = overhead_bytes(self._workload.columns(mask, times=times))
        return messages * columns + rate * self._workload.row_bytes(mask, batch, times=times), messages

    def _keys(self, key: tuple[int, ...], rate: float) -> tuple[float, float]:
        messages, batch = self._messages(rate)
        return messages * overhead_bytes(3) + rate * self._workload.keys_bytes(key, batch), messages

    def _filter(self, rate: float) -> tuple[float, float]:
        messages, batch = self._messages(rate)
        return messages * bloom_bytes(batch), messages


def reduced(problem: Problem, root: Meet) -> Meet:
    """The same tree with each input that travels reduced in the way that is the cheapest."""
    carrier, workload = Carrier(problem), problem.workload

    def visit(node: Tree) -> Tree:
        if isinstance(node, Leaf):
            return node
        inputs = _in_order(problem, node)
        before = workload.mask(leaves_of(inputs[0].node))
        found = [Input(visit(inputs[0].node))]
        for one in inputs[1:]:
            mask = workload.mask(leaves_of(one.node))
            how = carrier.carry(mask, site_of(one.node, workload), node.at, before)
            found.append(Input(visit(one.node), how.reduction, how.bloom))
            before |= mask
        return replace(node, inputs=tuple(found))

    changed = visit(root)
    assert isinstance(changed, Meet)
    return changed


def _in_order(problem: Problem, node: Meet) -> list[Input]:
    """Inputs so that what they come to stays small: the first stays, then what is tied and makes the fewest."""
    workload = problem.workload
    rest = list(node.inputs[1:])
    found, mask = [node.inputs[0]], workload.mask(leaves_of(node.inputs[0].node))
    while rest:

        def rank(one: Input, mask: int = mask) -> tuple[bool, float]:
            more = workload.mask(leaves_of(one.node))
            return not workload.shared(mask, more), workload.meet_rate(mask | more)

        one = min(rest, key=rank)
        rest.remove(one)
        found.append(one)
        mask |= workload.mask(leaves_of(one.node))
    return found
