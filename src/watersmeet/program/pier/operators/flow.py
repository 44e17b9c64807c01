"""Operators that decide when data flow and what is kept of them: flow control, cache, duplicate elimination, result."""

from collections import deque
from typing import Any, NamedTuple

from watersmeet.program.pier.expressions import Malformed, compiled_row
from watersmeet.program.pier.graph import Expression, Operator, TupleField
from watersmeet.program.pier.operators.scan import TupleScan
from watersmeet.program.pier.runtime import (
    Context,
    DataProbe,
    Implementation,
    Plan,
    ProbeKind,
    Receiver,
    RunningOperator,
    Tag,
    no_settings,
)
from watersmeet.program.pier.settings import SettingsReader
from watersmeet.program.pier.tuples import Batch, Row, Schema

_SECOND_US = 1_000_000


class FlowSettings(NamedTuple):
    """What is asked for, and on which occasions."""

    kind: ProbeKind
    at_start: bool
    period_us: int | None
    arrivals: int | None
    rate: float | None  # tuples a second
    condition: Expression | None  # of what is asked for


def _flow(reader: SettingsReader, operator: Operator) -> FlowSettings:
    kind = ProbeKind(reader.choice("probe", [kind.value for kind in ProbeKind], ProbeKind.BOTH.value))
    found = FlowSettings(
        kind,
        reader.flag("start", default=True),
        reader.duration_us("period", None),
        reader.whole("count", None),
        reader.number("rate"),
        reader.condition(operator),
    )
    if kind is not ProbeKind.SET and found.condition is not None:
        raise reader.fail("predicates limit a set; add probe = set, or put them into a selection")
    if kind is not ProbeKind.SET and (found.period_us or found.arrivals or found.rate):
        raise reader.fail("period, count and rate ask for a set again and again; add probe = set")
    if not (found.at_start or found.period_us or found.arrivals or found.rate):
        raise reader.fail("it never probes; leave out start = false, or give a period, a count or a rate")
    return found


class FlowControl(RunningOperator):
    """Issues probes: at the start, periodically, or when so many tuples have arrived, or so many a second, at a source.

    Probes from above end here: what flows is decided by this operator.
    """

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._arrived = 0
        self._arrivals: deque[tuple[int, int]] = deque()  # of the last second: when, and how many
        self._probed_us = -_SECOND_US

    def start(self) -> None:
        settings: FlowSettings = self.plan.settings
        if settings.arrivals or settings.rate:
            for scan in _scans_below(self):
                scan.watch(self._watch)
        if settings.at_start:
            self._issue()
        if settings.period_us is not None:
            self.context.after(settings.period_us, self._tick)

    def probe(self, probe: DataProbe, asker: RunningOperator | None = None) -> None:
        pass

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        self.emit(batch, tag)

    def _issue(self) -> None:
        tag = self.context.new_tag()
        settings: FlowSettings = self.plan.settings
        for source in self.sources:
            source.probe(DataProbe(settings.kind, tag, condition=settings.condition), self)

    def _tick(self) -> None:
        self._issue()
        self.context.after(self.plan.settings.period_us, self._tick)

    def _watch(self, tuples: int) -> None:
        settings: FlowSettings = self.plan.settings
        now_us = self.context.host.now_us
        if settings.arrivals is not None:
            self._arrived += tuples
            if self._arrived >= settings.arrivals:
                self._arrived = 0
                self.context.after(0, self._issue)
        if settings.rate is not None:
            self._arrivals.append((now_us, tuples))
            while self._arrivals[0][0] <= now_us - _SECOND_US:
                self._arrivals.popleft()
            is_fast = sum(count for _, count in self._arrivals) >= settings.rate
            if is_fast and now_us - self._probed_us >= _SECOND_US:
                self._probed_us = now_us
                self.context.after(0, self._issue)


def _scans_below(operator: RunningOperator) -> list[TupleScan]:
    found: list[TupleScan] = []
    seen: set[int] = set()
    waiting = [operator]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            waiting += each.sources
            if isinstance(each, TupleScan):
                found.append(each)
    return found


class CacheSettings(NamedTuple):
    """How long tuples are kept, and by which columns a newer one replaces an older one."""

    lifetime_us: int | None
    key: tuple[Expression, ...]


def _cache(reader: SettingsReader, operator: Operator) -> CacheSettings:
    no_settings(reader, operator)
    return CacheSettings(reader.duration_us("lifetime", None), ())


def _update_cache(reader: SettingsReader, operator: Operator) -> CacheSettings:
    no_settings(reader, operator)
    found = CacheSettings(reader.duration_us("lifetime", None), reader.expressions("key"))
    if not found.key:
        raise reader.fail("it needs a key by which tuples replace each other: key[] = field")
    return found


class MemCache(RunningOperator):
    """Keeps what flows through it; once its source has ended a set probe, later ones are answered from memory.

    Its source is asked for its set once and for its stream once, however many ask here, so each tuple is kept once.
    """

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._kept: list[tuple[int, Batch]] = []
        self._is_filled = False
        self._fill: Tag | None = None  # of the set probe that fills it
        self._waiting: list[Tag] = []  # for that set
        self._stream: Tag | None = None
        self._streams: list[Tag] = []  # of those who asked for what comes

    def probe(self, probe: DataProbe, asker: RunningOperator | None = None) -> None:
        if probe.is_limited and (probe.key is not None or not self._is_filled):
            super().probe(probe, asker)
            return
        if probe.kind is not ProbeKind.STREAM:
            self._ask_set(probe)
        if probe.kind is not ProbeKind.SET:
            self._streams.append(probe.tag)
            if self._stream is None:
                self._stream = self.context.new_tag()
                super().probe(DataProbe(ProbeKind.STREAM, self._stream), asker)

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        askers = self._waiting if tag == self._fill else self._streams if tag == self._stream else (tag,)
        if tag in (self._fill, self._stream):
            self._kept.append((self.context.host.now_us, batch))
        for own in tuple(askers):
            self.emit(batch, own)

    def end(self, tag: Tag, port: int) -> None:
        if tag != self._fill:
            self.emit_end(tag)
            return
        self._is_filled, waiting, self._waiting = True, self._waiting, []
        for own in waiting:
            self.emit_end(own)

    def _ask_set(self, probe: DataProbe) -> None:
        if self._is_filled:
            for batch in self._current():
                self.emit(self.satisfying(batch, probe.condition), probe.tag)
            self.emit_end(probe.tag)
            return
        self._waiting.append(probe.tag)
        if self._fill is None:
            self._fill = self.context.new_tag()
            super().probe(DataProbe(ProbeKind.SET, self._fill))

    def _current(self) -> list[Batch]:
        lifetime_us = self.plan.settings.lifetime_us
        if lifetime_us is not None:
            oldest_us = self.context.host.now_us - lifetime_us
            self._kept = [(kept_us, batch) for kept_us, batch in self._kept if kept_us >= oldest_us]
        return [batch for _, batch in self._kept]


class MemUpdateCache(RunningOperator):
    """Keeps the latest tuple of each key; a set probe gets them all, and a stream probe each as it comes."""

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._latest: dict[Row, tuple[int, Schema, Row]] = {}
        self._streams: list[Tag] = []

    def probe(self, probe: DataProbe, asker: RunningOperator | None = None) -> None:
        if probe.kind is not ProbeKind.STREAM:
            for schema, row in self._current():
                self.emit(self.satisfying(Batch(schema, (row,)), probe.condition), probe.tag)
            self.emit_end(probe.tag)
        if probe.kind is not ProbeKind.SET:
            self._streams.append(probe.tag)

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        key = self.plan.settings.key
        kernel = self.compiled("key", batch.schema, lambda schema: compiled_row(key, schema)[0])
        if isinstance(kernel, Malformed):
            self.malformed(len(batch.rows), str(kernel))
            return
        keys, rows = self.evaluated(kernel, batch)
        now_us = self.context.host.now_us
        for value, row in zip(keys, rows, strict=True):
            self._latest.pop(value, None)
            self._latest[value] = (now_us, batch.schema, row)
        for own in self._streams:
            self.emit(Batch(batch.schema, rows), own)

    def end(self, tag: Tag, port: int) -> None:
        pass

    def _current(self) -> list[tuple[Schema, Row]]:
        lifetime_us = self.plan.settings.lifetime_us
        if lifetime_us is not None:
            oldest_us = self.context.host.now_us - lifetime_us
            self._latest = {key: kept for key, kept in self._latest.items() if kept[0] >= oldest_us}
        return [(schema, row) for _, schema, row in self._latest.values()]


def _fields(reader: SettingsReader, operator: Operator) -> tuple[Expression, ...]:
    no_settings(reader, operator)
    return tuple(TupleField(name) for name in reader.texts("fields"))


class DuplicateElimination(RunningOperator):
    """Passes the first of equal tuples, or of those that agree in some fields."""

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._seen: set[Any] = set()

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        fields, keys, rows = self.plan.settings, batch.rows, batch.rows
        if fields:
            kernel = self.compiled("fields", batch.schema, lambda schema: compiled_row(fields, schema)[0])
            if isinstance(kernel, Malformed):
                self.malformed(len(batch.rows), str(kernel))
                return
            keys, rows = self.evaluated(kernel, batch)
        new, seen = [], self._seen
        for key, row in zip(keys, rows, strict=True):
            if key not in seen:
                seen.add(key)
                new.append(row)
        self.emit(Batch(batch.schema, new), tag)


class ResultSettings(NamedTuple):
    """By which columns an answer is known, and whose it is, where op-graphs answer queries of several nodes."""

    once: tuple[str, ...]
    receiver: Receiver | None


class NetSend(RunningOperator):
    """Sends tuples to the node that asked, which passes them to its client."""

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        settings: ResultSettings = self.plan.settings
        self.context.reply("result", self.plan.operator.name, batch, settings.receiver)

    def end(self, tag: Tag, port: int) -> None:
        pass


def _result(reader: SettingsReader, operator: Operator) -> ResultSettings:
    no_settings(reader, operator)
    asker, query = reader.whole("asker", None, least=0), reader.optional("query")
    if (asker is None) != (query is None):
        raise reader.fail("asker and query go together; give both, or neither for whoever asked")
    receiver = None if asker is None or query is None else Receiver(asker, query)
    return ResultSettings(reader.texts("once"), receiver)


FLOWCONTROL = {"basic": Implementation(_flow, FlowControl)}
CACHE = {"memcache": Implementation(_cache, MemCache), "memupdatecache": Implementation(_update_cache, MemUpdateCache)}
DUPELIM = {"basic": Implementation(_fields, DuplicateElimination)}
RESULT = {"netsend": Implementation(_result, NetSend)}
