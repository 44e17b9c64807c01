"""Trees whose inputs are reduced by semijoins before they travel: the semijoin paper's methods, in PMJoin's trees."""

from dataclasses import dataclass, replace

from watersmeet.cost.estimates import HeadRows, announced, asked, overlapping, wanted
from watersmeet.cost.formulas import false_positives
from watersmeet.cost.workload import Workload
from watersmeet.plan.nodes import Input, JoinNode, Leaf, Reduction, Tree, leaves_of
from watersmeet.planners.problem import Problem
from watersmeet.planners.sizes import FlowSizes
from watersmeet.planners.trees import Shipping, site_of

TOO_MUCH = 1e15  # what a byte counts for on a link that is barred


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
        self._workload, self._batch_interval_s = problem.workload, problem.batch_interval_s

    def weight(self, origin: str, to: str) -> float:
        """What a byte from one site to another is worth."""
        if not self._problem.allows(origin, to):
            return TOO_MUCH
        return self._problem.byte_weight[origin, to]

    def shipping(self) -> Shipping:
        """The same for planners that ship everything whole."""

        def row(workload: Workload, mask: int) -> float:
            return self._plain_of(workload, mask)[0] / max(workload.combination_rate(mask), 1e-300)

        return Shipping(row, self.weight)

    def _plain_of(self, workload: Workload, mask: int) -> tuple[float, float]:
        interval_s = self._batch_interval_s
        return workload.once(("whole", mask, interval_s), lambda: _whole(workload, mask, interval_s))

    def _plain(self, mask: int) -> tuple[float, float]:
        return self._plain_of(self._workload, mask)

    def deliver(self, site: str) -> float:
        """What it is worth to bring all answers from a site to where they are wanted."""
        wanted_at = self._problem.site
        if wanted_at is None or wanted_at == site:
            return 0.0
        size, messages = self._plain((1 << len(self._problem.aliases)) - 1)
        return size * self._problem.byte_weight[site, wanted_at] + self._trip(messages, site, wanted_at)

    def carry(self, mask: int, origin: str, to: str, partner: int) -> Carriage:
        """The cheapest reduction to bring combinations to a site where others are that they are to meet."""
        if origin == to:
            return Carriage(0.0)
        size, messages = self._plain(mask)
        best = Carriage(size * self.weight(origin, to) + self._trip(messages, origin, to))
        if not self._workload.shared(mask, partner) or not self._problem.allows(to, origin):
            return best
        if (mask | partner) & self._problem.counting:
            return best
        slot = ("carried", mask, partner, self._batch_interval_s)
        for reduction, bloom, out, back in self._workload.once(slot, lambda: self._sizes_of(mask, partner)):
            value = sum(size * self.weight(origin, to) + self._trip(many, origin, to) for size, many in out)
            value += sum(size * self.weight(to, origin) + self._trip(many, to, origin) for size, many in back)
            if value < best.value:
                best = Carriage(value, reduction, bloom)
        return best

    def _trip(self, messages: float, origin: str, to: str) -> float:
        return messages * self._problem.trip_weight[origin, to] + self._problem.delay_weight[origin, to]

    def _sizes_of(
        self, mask: int, partner: int
    ) -> list[tuple[Reduction, bool, list[tuple[float, float]], list[tuple[float, float]]]]:
        """For every reduction: bytes and messages there, and back."""
        workload = self._workload
        key = workload.shared(mask, partner)
        rows = HeadRows(mask, workload.combination_rate(mask))
        window_s = min(
            float(workload.window_s[alias]) for alias in range(len(workload.aliases)) if partner >> alias & 1
        )
        false = false_positives(window_s, self._batch_interval_s)
        share, loose = (
            overlapping(workload, mask, partner, 0.0),
            overlapping(workload, mask, partner, false, self._batch_interval_s),
        )
        keys, asks = announced(workload, partner, key), asked(workload, rows, partner, self._batch_interval_s)
        found = wanted(workload, partner, rows)
        sizes, rate = FlowSizes(workload, self._batch_interval_s), workload.combination_rate(mask)
        exact, rough = (sizes.rows(mask, rate * part, times=_times(mask)) for part in (share, loose))
        return [
            (Reduction.ONE_STEP, False, [exact], [sizes.keys(key, keys)]),
            (Reduction.ONE_STEP, True, [rough], [sizes.filters(keys)]),
            (Reduction.TWO_STEP, False, [exact, sizes.keys(key, asks)], [sizes.keys(key, found)]),
            (Reduction.TWO_STEP, True, [rough, sizes.filters(asks)], [sizes.filters(found)]),
        ]


def _whole(workload: Workload, mask: int, batch_interval_s: float) -> tuple[float, float]:
    """Bytes and messages a second of all combinations of a set of aliases."""
    sizes, rate = FlowSizes(workload, batch_interval_s), workload.combination_rate(mask)
    is_answer = mask == (1 << len(workload.aliases)) - 1
    return sizes.answers(rate) if is_answer else sizes.rows(mask, rate, times=_times(mask))


def _times(mask: int) -> int:
    """A row has its time, a combination from when to when it lasts."""
    return 1 if mask & (mask - 1) == 0 else 2


def reduced(problem: Problem, root: JoinNode) -> JoinNode:
    """The same tree with each input that travels reduced in the cheapest way."""
    carrier, workload = Carrier(problem), problem.workload

    def visit(node: Tree) -> Tree:
        if isinstance(node, Leaf):
            return node
        inputs = _in_order(problem, node)
        before = workload.mask(leaves_of(inputs[0].node))
        found = [Input(visit(inputs[0].node))]
        for item in inputs[1:]:
            mask = workload.mask(leaves_of(item.node))
            how = carrier.carry(mask, site_of(item.node, workload), node.at, before)
            found.append(Input(visit(item.node), how.reduction, how.bloom))
            before |= mask
        return replace(node, inputs=tuple(found))

    changed = visit(root)
    assert isinstance(changed, JoinNode)
    return changed


def _in_order(problem: Problem, node: JoinNode) -> list[Input]:
    """Inputs so that what they come to stays small: the first stays, then what is tied and makes the fewest."""
    workload = problem.workload
    rest = list(node.inputs[1:])
    found, mask = [node.inputs[0]], workload.mask(leaves_of(node.inputs[0].node))
    while rest:

        def rank(item: Input, mask: int = mask) -> tuple[bool, float]:
            more = workload.mask(leaves_of(item.node))
            return not workload.shared(mask, more), workload.combination_rate(mask | more)

        item = min(rest, key=rank)
        rest.remove(item)
        found.append(item)
        mask |= workload.mask(leaves_of(item.node))
    return found
