"""The adaptive paper's prototype (section 5) on virtual time: tuples, operators, messages, a synchronised switch.

One stream a node, one join attribute, windows over time, nested-loop joins. Every interval each node ships, updates and
probes as its operators say, over tuples with random key values; costs are eqs. 1 to 3 for what is really there. A
change of plan goes message by message: every message takes T(x), windows are copied, both plans ship and update until
all nodes are global-ready.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from watersmeet.adapt.centralised import update_centrally
from watersmeet.adapt.distributed import (
    Letter,
    Node,
    WindowRequest,
    affected_groups,
    changed,
    handle,
    nodes_of,
    plan_of,
)
from watersmeet.adapt.messages import MessageKind, Modification, Phase, Sent, WindowMove, over_links
from watersmeet.adapt.sequences import (
    ExecutionPlan,
    Setting,
    StreamFigures,
    StreamPlan,
    TransferTime,
    UnitCosts,
    best_step_costs,
    clique,
    generate,
)
from watersmeet.adapt.synchronise import point_to_point
from watersmeet.adapt.trigger import largest_change
from watersmeet.reproduce.adaptive.switching import ElectedSwitch, NodeCrash
from watersmeet.sim.kernel import Kernel

F64 = NDArray[np.float64]
SYSTEMS = ("non-adaptive", "CNU", "DNU")
OFFSET_MS = 100  # intervals begin here, so that rates change where one ends
CONTROL_BYTES, OPERATORS_BYTES = 100.0, 400.0  # of a message, with operators or without; the paper does not say


@dataclass(frozen=True, slots=True)
class PrototypeSetup:
    """Section 5.2 with its default settings; what comes from `probe_s` on is not stated there."""

    ways: int = 4
    low: float = 50.0
    high: float = 200.0
    rate: float = 100.0
    row_bytes: float = 150.0
    values: int = 100  # a selectivity factor of 0.01
    window_ms: int = 500
    interval_ms: int = 200
    first_change_ms: int = 1_500
    period_ms: int = 2_000
    end_ms: int = 9_300
    latency_s: float = 0.005
    bytes_per_s: float = 128_000.0
    probe_s: float = 1e-6
    update_s: float = 1e-6
    threshold: float = 0.2
    changing: int = 1  # the stream whose rate changes
    by_coordinator: bool = False  # the switch: by an elected coordinator, or point to point
    crashes: tuple[NodeCrash, ...] = ()  # of nodes while they switch by a coordinator

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"s{number + 1}" for number in range(self.ways))

    @property
    def setting(self) -> Setting:
        names = self.names
        units, link = UnitCosts(self.probe_s, self.update_s), TransferTime(self.latency_s, self.bytes_per_s)
        return Setting({name: name for name in names}, clique(names), units, link, keeps_ties=True)

    def rate_at(self, stream: str, ms: float) -> float:
        """The rate of a stream at a time: one of them is low, then high, then low again."""
        if stream != self.names[self.changing]:
            return self.rate
        phase = int((ms - self.first_change_ms) // self.period_ms) if ms >= self.first_change_ms else 1
        return self.low if phase % 2 else self.high

    def figures(self, rates: Mapping[str, float]) -> dict[str, StreamFigures]:
        window_s = self.window_ms / 1e3
        return {
            name: StreamFigures(rate, 1 / self.values, self.row_bytes, rate * window_s) for name, rate in rates.items()
        }

    def figures_at(self, ms: float) -> dict[str, StreamFigures]:
        return self.figures({name: self.rate_at(name, ms) for name in self.names})


@dataclass(frozen=True)
class RunRows:
    """All tuples of a run: when each comes, and its key value."""

    times_ms: Mapping[str, F64]
    keys: Mapping[str, NDArray[np.int64]]
    values: int

    def histogram(self, stream: str, after_ms: float, until_ms: float) -> F64:
        """How many tuples of each key value came after a time and until another."""
        first, last = np.searchsorted(self.times_ms[stream], [after_ms, until_ms], side="right")
        found: F64 = np.bincount(self.keys[stream][first:last], minlength=self.values).astype(float)
        return found


def draw_rows(experiment: PrototypeSetup, seed: int) -> RunRows:
    """Tuples at even distances, as the paper's generator stamps them, with uniform random values."""
    random = np.random.default_rng(seed)
    times, keys = {}, {}
    edges = [0.0, *range(experiment.first_change_ms, experiment.end_ms, experiment.period_ms), experiment.end_ms]
    for name in experiment.names:
        parts = [
            np.arange(low + random.uniform(0, 1e3 / rate), high, 1e3 / rate)
            for low, high in pairwise(edges)
            if (rate := experiment.rate_at(name, low)) > 0
        ]
        times[name] = np.concatenate(parts)
        keys[name] = random.integers(0, experiment.values, len(times[name]))
    return RunRows(times, keys, experiment.values)


@dataclass
class Switch:
    """One change of plan: when it was triggered and done, its messages, and the time that nodes spent on it."""

    triggered_ms: float
    rate: float  # of the stream that has changed
    messages: list[Sent] = field(default_factory=list)
    moves: list[WindowMove] = field(default_factory=list)
    seconds: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(Phase, 0.0))
    done_ms: float | None = None

    def count(self, phase: Phase) -> int:
        return sum(message.kind.phase is phase for message in self.messages)


@dataclass
class PrototypeRun:
    """Seconds of work in each interval, by its end in milliseconds; answers; and the changes of plan."""

    cost_s: dict[int, float] = field(default_factory=dict)
    answers: dict[int, float] = field(default_factory=dict)
    switches: list[Switch] = field(default_factory=list)


class Prototype:
    """One system over the tuples of one run."""

    def __init__(self, experiment: PrototypeSetup, rows: RunRows, system: str) -> None:
        self.experiment, self.rows, self.system = experiment, rows, system
        self.setting = experiment.setting
        self.kernel = Kernel(seed=0)
        self.known = experiment.figures_at(0)
        self.plan = generate(self.setting, self.known)
        self.next_plan: ExecutionPlan | None = None
        self.is_changing = False
        self.extra_s = 0.0  # of the present interval: copies of windows
        self.outcome = PrototypeRun()

    def run(self) -> PrototypeRun:
        """Run to the end."""
        end_ms, step = self.experiment.end_ms, self.experiment.interval_ms
        for ms in range(OFFSET_MS + step, end_ms + 1, step):
            self.kernel.at(ms * 1_000, self._interval, ms)
        self.kernel.run()
        return self.outcome

    # One interval

    def _interval(self, ms: int) -> None:
        since = ms - self.experiment.interval_ms
        work = _Work(self.experiment, self.rows, since, ms)
        cost_s, answers = work.run(self.plan.sequences)
        if self.next_plan is not None:
            cost_s += work.parallel(self.plan, self.next_plan)
        self.outcome.cost_s[ms], self.outcome.answers[ms] = cost_s + self.extra_s, answers
        self.extra_s = 0.0
        if self.system != "non-adaptive" and not self.is_changing and since >= OFFSET_MS:
            self._watch(ms, work)

    def _watch(self, ms: int, work: "_Work") -> None:
        """The paper's trigger at the node of the stream that changes, by the tuples of this interval."""
        rate = float(work.fresh[self._changing].sum()) / (self.experiment.interval_ms / 1e3)
        seen = self.experiment.figures(
            {**{name: figures.rate for name, figures in self.known.items()}, self._changing: rate}
        )
        before, now = (
            {
                f"{sequence.head}.{stream}": cost
                for sequence in self.plan.sequences
                for stream, cost in best_step_costs(self.setting, figures, sequence).items()
                if self._changing in (sequence.head, stream)
            }
            for figures in (self.known, seen)
        )
        _, share = largest_change(before, now)
        if share > self.experiment.threshold:
            switch, self.is_changing = Switch(ms, rate), True
            self.outcome.switches.append(switch)
            (self._cnu if self.system == "CNU" else self._dnu)(switch, seen)

    @cached_property
    def _changing(self) -> str:
        return self.experiment.names[self.experiment.changing]

    # Changes of plan

    def _send(self, switch: Switch, message: Sent, then: Callable[[], None]) -> None:
        """Send a message: it takes the time of the link, which is what nodes spend on it."""
        if message.sender == message.to:
            self.kernel.after(0, then)
            return
        size = OPERATORS_BYTES if message.kind in (MessageKind.OPERATORS, MessageKind.SWAP) else CONTROL_BYTES
        seconds = self.setting.transfer_s(message.sender, message.to, size)
        switch.messages.append(message)
        switch.seconds[message.kind.phase] += seconds
        self.kernel.after(round(seconds * 1e6), then)

    def _cnu(self, switch: Switch, seen: dict[str, StreamFigures]) -> None:
        coordinator = next(name for name in self.experiment.names if name != self._changing)
        found = update_centrally(self.setting, seen, self.plan, changed=self._changing, coordinator=coordinator)
        report, *others = (message for message in found.messages if message.kind.phase is Phase.MODIFICATION)

        def spread() -> None:
            self._gather(switch, others, lambda: self._migrate(switch, seen, found))

        self._send(switch, report, spread)

    def _dnu(self, switch: Switch, seen: dict[str, StreamFigures]) -> None:
        nodes = nodes_of(self.setting, self.known, self.plan)
        waiting, moves = [0], []

        def deliver(letter: Letter) -> None:
            nodes[letter.to], more = handle(nodes[letter.to], self.setting, letter)
            post(more)
            waiting[0] -= 1
            if not waiting[0]:
                finished(nodes)

        def post(letters: Iterable[Letter]) -> None:
            for letter in letters:
                waiting[0] += 1
                if isinstance(letter.body, WindowRequest) and letter.to != letter.body.to:
                    moves.append(WindowMove(letter.body.stream, letter.to, letter.body.to))
                self._send(switch, Sent(letter.kind, letter.sender, letter.to), partial(deliver, letter))

        def finished(agreed: dict[str, Node]) -> None:
            plan, groups = plan_of(agreed), affected_groups(self.setting, agreed)
            self._migrate(switch, seen, Modification(plan, (), tuple(moves), groups))

        nodes[self._changing], letters = changed(nodes[self._changing], self.setting, seen[self._changing])
        post(letters)

    def _gather(self, switch: Switch, messages: Iterable[Sent], then: Callable[[], None]) -> None:
        """Send messages at once, and go on when the last has come."""
        left = list(messages)
        count = [len(left)]

        def arrived() -> None:
            count[0] -= 1
            if not count[0]:
                then()

        for message in left:
            self._send(switch, message, arrived)
        if not left:
            self.kernel.after(0, then)

    def _migrate(self, switch: Switch, seen: dict[str, StreamFigures], found: Modification) -> None:
        """Copy windows, then switch in two phases; meanwhile both plans ship and update."""
        self.next_plan, self.known = found.plan, seen
        switch.moves = list(found.moves)
        requests = over_links(message for message in found.messages if message.kind.phase is Phase.MIGRATION)
        ready = point_to_point(found.groups)
        half = len(ready) // 2

        def copied() -> None:
            if self.experiment.by_coordinator:
                send = partial(self._send, switch)
                timeout_ms = 8 * self.experiment.latency_s * 1e3
                ElectedSwitch(self.kernel, send, timeout_ms, switched).start(found.groups, self.experiment.crashes)
                return
            self._gather(switch, ready[:half], lambda: self._gather(switch, ready[half:], switched))

        def switched() -> None:
            assert self.next_plan is not None, "a plan to go over to"
            self.plan, self.next_plan, self.is_changing = self.next_plan, None, False
            switch.done_ms = self.kernel.now_us / 1e3

        def copy() -> None:
            now_ms, longest = self.kernel.now_us / 1e3, 0.0
            for move in dict.fromkeys(found.moves):
                rows = self.rows.histogram(move.stream, now_ms - self.experiment.window_ms, now_ms).sum()
                size = float(rows) * self.experiment.row_bytes
                seconds = self.setting.transfer_s(move.origin, move.to, size)
                switch.seconds[Phase.MIGRATION] += seconds
                self.extra_s += seconds
                longest = max(longest, seconds)
            self.kernel.after(round(longest * 1e6), copied)

        self._gather(switch, requests, copy)


class _Work:
    """What nodes do for the tuples of one interval."""

    def __init__(self, experiment: PrototypeSetup, rows: RunRows, since_ms: float, ms: float) -> None:
        self.experiment, self.setting = experiment, experiment.setting
        self.fresh = {name: rows.histogram(name, since_ms, ms) for name in experiment.names}
        window = experiment.window_ms
        # New tuples meet the window as it is at the end of the interval, those of streams behind them at its begin.
        self.before = {name: rows.histogram(name, since_ms - window, since_ms) for name in experiment.names}
        self.after = {name: rows.histogram(name, ms - window, ms) for name in experiment.names}

    def run(self, sequences: Iterable[StreamPlan]) -> tuple[float, float]:
        """The seconds of all sequences, and how many answers they give."""
        seconds, answers = 0.0, 0.0
        for plan in sequences:
            rows, at, size = self.fresh[plan.head], plan.head, self.experiment.row_bytes
            for stream, at_destination in zip(plan.order, plan.at_destination, strict=True):
                window = self.window(plan.head, stream)
                if at_destination:
                    seconds += self.ship(at, stream, float(rows.sum()) * size)
                    at = stream
                else:
                    seconds += self.ship(stream, at, float(self.fresh[stream].sum()) * self.experiment.row_bytes)
                seconds += float(self.fresh[stream].sum()) * self.experiment.update_s
                seconds += float(rows.sum()) * float(window.sum()) * self.experiment.probe_s
                rows, size = rows * window, size + self.experiment.row_bytes
            answers += float(rows.sum())
        return seconds, answers

    def parallel(self, old: ExecutionPlan, new: ExecutionPlan) -> float:
        """What a new plan takes before its joins begin: streams that are shipped to, and kept at, new places."""
        seconds = 0.0
        for stream, at in sorted(_kept(new) - _kept(old)):
            count = float(self.fresh[stream].sum())
            seconds += self.ship(stream, at, count * self.experiment.row_bytes) + count * self.experiment.update_s
        return seconds

    def window(self, head: str, stream: str) -> F64:
        names = self.experiment.names
        return (self.after if names.index(stream) < names.index(head) else self.before)[stream]

    def ship(self, origin: str, to: str, size: float) -> float:
        return self.setting.transfer_s(origin, to, size) if size else 0.0


def _kept(plan: ExecutionPlan) -> set[tuple[str, str]]:
    """Which window is kept where."""
    found = set()
    for sequence in plan.sequences:
        at = sequence.head
        for stream, at_destination in zip(sequence.order, sequence.at_destination, strict=True):
            at = stream if at_destination else at
            found.add((stream, at))
    return found


def run(experiment: PrototypeSetup, system: str, seed: int) -> PrototypeRun:
    """One run of one system."""
    return Prototype(experiment, draw_rows(experiment, seed), system).run()
