"""An eddy orders operators while they run (Avnur and Hellerstein 2000).

Each tuple visits every module once, in an order that is chosen as it goes, and leaves when it has seen all. A module
may be a symmetric hash join of what flows through the eddy: a tuple waits in the first join that it is sent to, and
pairs go on from there. It can be sent to those of which it has one side, and has passed those of which it has both; so
the graph of joins must have no cycle. Selections wait until their columns are there.

Modules are operators that name the eddy among their sources; an operator `put` by Eddy behind each brings back what a
module lets pass. By lottery a module gets a ticket for each tuple that it takes and loses one for each that it returns:
those that drop most win most. By back-pressure a tuple goes where the fewest tuples wait.
"""

from enum import Enum
from typing import NamedTuple

from watersmeet.program.pier.graph import Operator, fields_of
from watersmeet.program.pier.operators.basic import SelectTuples
from watersmeet.program.pier.operators.join import SymmetricHashJoin
from watersmeet.program.pier.runtime import Context, Implementation, Plan, RunningOperator, Tag, no_settings
from watersmeet.program.pier.settings import SettingsReader
from watersmeet.program.pier.tuples import Batch, Schema

LOTTERY, PRESSURE = "lottery", "backpressure"
CHUNK_ROWS = 16  # tuples that are routed together
_REMEMBERED = 100_000  # routings: what has not come back by then was dropped
_DECAY = 0.9  # of tickets at each routing, so that what has changed shows


class EddySettings(NamedTuple):
    """The modules in the order of their numbers, and how one is chosen."""

    modules: tuple[str, ...]
    policy: str
    chunk: int


def _eddy(reader: SettingsReader, operator: Operator) -> EddySettings:
    no_settings(reader, operator)
    found = EddySettings(
        reader.texts("modules"),
        reader.choice("policy", (LOTTERY, PRESSURE, "fixed"), LOTTERY),
        reader.whole("chunk", CHUNK_ROWS) or CHUNK_ROWS,
    )
    if not found.modules:
        raise reader.fail("it needs modules[] = operators that take tuples from it")
    return found


class _Routed(NamedTuple):
    """Tuples in a module: whose answer they are, and which modules they have seen."""

    tag: Tag
    seen: frozenset[str]
    module: str


class _Fit(Enum):
    """What a module can do with tuples of a kind."""

    OPEN = "open"
    PASSED = "passed"  # a join of which the tuple has both sides
    LACKS = "lacks"  # columns that the module needs are not there


def _fit_of(module: RunningOperator, schema: Schema) -> _Fit:
    match module:
        case SymmetricHashJoin() if len(module.sources) == 1:
            return (_Fit.LACKS, _Fit.OPEN, _Fit.PASSED)[len(module.plan.settings.sides(schema))]
        case SelectTuples() if not fields_of(module.plan.settings) <= set(schema.names):
            return _Fit.LACKS
        case _:
            return _Fit.OPEN


class Eddy(RunningOperator):
    """Routes tuples through its modules."""

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        modules = plan.settings.modules
        self.routed = dict.fromkeys(modules, 0)  # tuples that each has got
        self._tickets = dict.fromkeys(modules, 1.0)
        self._waiting = dict.fromkeys(modules, 0)
        self._inside: dict[Tag, _Routed] = {}
        self._draws = 0

    def start(self) -> None:
        names = [target.plan.operator.name for target, _ in self.targets]
        self._modules = {name: self.targets[names.index(name)][0] for name in self.plan.settings.modules}

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        self._route(batch, tag, frozenset())

    def returned(self, batch: Batch, tag: Tag) -> None:
        """A module has let tuples pass."""
        inside = self._inside.get(tag)
        if inside is None:
            return
        self._tickets[inside.module] = max(0.0, self._tickets[inside.module] - len(batch.rows))
        self._route(batch, inside.tag, inside.seen)

    def _route(self, batch: Batch, tag: Tag, seen: frozenset[str]) -> None:
        settings: EddySettings = self.plan.settings
        fit = self.compiled("modules", batch.schema, self._fit)
        left = [module for module in settings.modules if module not in seen and fit[module] is _Fit.OPEN]
        if not left:
            waits = [module for module in settings.modules if module not in seen and fit[module] is _Fit.LACKS]
            if waits:
                self.malformed(len(batch.rows), f"{batch.schema.table} has not what {waits[0]} needs")
                return
            self.gave(batch)
            for target, port in self.targets:
                if target.plan.operator.name not in settings.modules:
                    target.push(batch, tag, port)
            return
        for first in range(0, len(batch.rows), settings.chunk):
            rows = batch.rows[first : first + settings.chunk]
            self._enter(self._choose(left), Batch(batch.schema, rows), tag, seen)

    def _fit(self, schema: Schema) -> dict[str, "_Fit"]:
        """What each module can do with tuples of a kind."""
        return {name: _fit_of(module, schema) for name, module in self._modules.items()}

    def _enter(self, module: str, batch: Batch, tag: Tag, seen: frozenset[str]) -> None:
        own = self.context.new_tag()
        self._inside.pop(own - _REMEMBERED, None)
        self._inside[own] = _Routed(tag, seen | {module}, module)
        self.routed[module] += len(batch.rows)
        for name in self._tickets:
            self._tickets[name] *= _DECAY
        self._tickets[module] += len(batch.rows)
        self._waiting[module] += len(batch.rows)
        for target, port in self.targets:
            if target.plan.operator.name == module:
                target.push(batch, own, port)
        self._waiting[module] -= len(batch.rows)

    def _choose(self, left: list[str]) -> str:
        policy = self.plan.settings.policy
        if len(left) == 1 or policy == "fixed":
            return left[0]
        if policy == PRESSURE:
            # A module that drops little sends its tuples on at once, and they weigh on it until they have left.
            return min(left, key=lambda module: (self._waiting[module], -self._tickets[module]))
        # A lottery without chance: a point that walks evenly over the tickets, one of twelve draws for everybody alike.
        self._draws += 1
        if self._draws % 12 == 0:
            return left[self._draws // 12 % len(left)]
        weights = [self._tickets[module] + 0.01 for module in left]
        point = (self._draws * 0.6180339887498949) % 1.0 * sum(weights)
        for module, weight in zip(left, weights, strict=True):
            point -= weight
            if point < 0:
                return module
        return left[-1]


class EddyPut(RunningOperator):
    """Brings tuples back to an eddy."""

    eddy: Eddy | None = None

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        assert self.eddy is not None
        if batch.rows:
            self.eddy.returned(batch, tag)

    def end(self, tag: Tag, port: int) -> None:
        pass


def _back(reader: SettingsReader, operator: Operator) -> str:
    no_settings(reader, operator)
    return reader.text("eddy")


EDDY = {"basic": Implementation(_eddy, Eddy, most_sources=None)}
EDDY_PUT = {"eddy": Implementation(_back, EddyPut)}
