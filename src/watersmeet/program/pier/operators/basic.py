"""Operators that see each tuple once and keep none: selection, projection, tee, union, queue and null."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from watersmeet.program.pier.expressions import Malformed, compiled_row
from watersmeet.program.pier.graph import Expression, Operator, TupleField
from watersmeet.program.pier.runtime import (
    Context,
    DataProbe,
    Implementation,
    Plan,
    ProbeKind,
    RunningOperator,
    Tag,
    no_settings,
)
from watersmeet.program.pier.settings import SettingsReader
from watersmeet.program.pier.tuples import Batch, Row, Schema


def _condition(reader: SettingsReader, operator: Operator) -> Expression:
    condition = reader.condition(operator)
    if condition is None:
        raise reader.fail("a selection needs a predicate")
    return condition


class SelectTuples(RunningOperator):
    """Passes the tuples for which its predicates are true."""

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        self.emit(self.satisfying(batch, self.plan.settings), tag)


class _Kept(NamedTuple):
    """What a Basic projection keeps, under which names."""

    fields: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    table: str | None


def _kept(reader: SettingsReader, operator: Operator) -> _Kept:
    no_settings(reader, operator)
    found = _Kept(reader.texts("fields"), reader.named_texts("rename"), reader.optional("table"))
    if not any(found):
        raise reader.fail("a projection needs fields, rename or table")
    return found


class _Made(NamedTuple):
    """What a Generate projection makes."""

    columns: tuple[tuple[str, Expression], ...]
    table: str | None
    keeps: bool


def _made(reader: SettingsReader, operator: Operator) -> _Made:
    no_settings(reader, operator)
    found = _Made(reader.named_expressions("columns"), reader.optional("table"), reader.flag("keep", default=False))
    if not found.columns:
        raise reader.fail("a projection by Generate needs columns[name] = expression")
    return found


class Projection(RunningOperator):
    """Makes other tuples of tuples: some of their columns, under other names, or values of expressions."""

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        made = self.compiled("projection", batch.schema, self._compile)
        if isinstance(made, Malformed):
            self.malformed(len(batch.rows), str(made))
            return
        kernel, schema = made
        rows, _ = self.evaluated(kernel, batch)
        self.emit(Batch(schema, rows), tag)

    def _compile(self, schema: Schema) -> tuple[Callable[[Row], Row], Schema]:
        match self.plan.settings:
            case _Kept(fields, renamed, table):
                names = dict(renamed)
                columns: list[tuple[str, Expression]] = [
                    (names.get(name, name), TupleField(name)) for name in fields or schema.names
                ]
            case _Made(made, table, keeps):
                own = {name for name, _ in made}
                columns = [(name, TupleField(name)) for name in schema.names if keeps and name not in own]
                columns += made
        kernel, types = compiled_row(tuple(expression for _, expression in columns), schema)
        names_made = [name for name, _ in columns]
        if len(set(names_made)) < len(names_made):
            raise Malformed("a projection gives two columns the same name")
        return kernel, Schema.of(table or schema.table, dict(zip(names_made, types, strict=True)))


class Tee(RunningOperator):
    """Lets several operators read one source: who asks for a set gets it, and who asks for a stream gets that.

    Those who ask at one instant are as one: the source is asked once, or what keeps state below would see tuples twice.
    """

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._asking: list[tuple[RunningOperator, DataProbe]] = []
        self._sets: dict[Tag, list[tuple[RunningOperator, Tag]]] = {}  # who asked under which tags, by the tag below
        self._streams: list[tuple[RunningOperator, Tag]] = []
        self._stream_tag: Tag | None = None

    def probe(self, probe: DataProbe, asker: RunningOperator | None = None) -> None:
        if asker is None:
            return
        if probe.is_limited:
            self._ask_set([(asker, probe.tag)], probe)
            return
        if not self._asking:
            self.context.after(0, self._ask)
        self._asking.append((asker, probe))

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        askers = tuple(self._streams) if tag == self._stream_tag else self._sets.get(tag, ())
        self.gave(batch)
        for asker, own in askers:
            for target, number in self.targets:
                if target is asker:
                    target.push(batch, own, number)

    def end(self, tag: Tag, port: int) -> None:
        for asker, own in self._sets.pop(tag, ()):
            for target, number in self.targets:
                if target is asker:
                    target.end(own, number)

    def _ask(self) -> None:
        asking, self._asking = self._asking, []
        sets = [(asker, probe.tag) for asker, probe in asking if probe.kind is not ProbeKind.STREAM]
        streams = [(asker, probe.tag) for asker, probe in asking if probe.kind is not ProbeKind.SET]
        if sets:
            self._ask_set(sets, DataProbe(ProbeKind.SET, 0))
        self._streams += streams
        if streams and self._stream_tag is None:
            self._stream_tag = self.context.new_tag()
            self.sources[0].probe(DataProbe(ProbeKind.STREAM, self._stream_tag), self)

    def _ask_set(self, askers: list[tuple[RunningOperator, Tag]], probe: DataProbe) -> None:
        tag = self.context.new_tag()
        self._sets[tag] = askers
        self.sources[0].probe(replace(probe, tag=tag), self)


class Union(RunningOperator):
    """Makes one flow of several; it ends when all of them have ended."""

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._ended: dict[Tag, int] = {}
        self._probed: set[Tag] = set()

    def probe(self, probe: DataProbe, asker: RunningOperator | None = None) -> None:
        if probe.tag not in self._probed:  # else it has come round a cycle
            self._probed.add(probe.tag)
            super().probe(probe, asker)

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        self.emit(batch, tag)

    def end(self, tag: Tag, port: int) -> None:
        self._ended[tag] = self._ended.get(tag, 0) + 1
        if self._ended[tag] == len(self.sources):
            del self._ended[tag]
            self.emit_end(tag)


class Queue(RunningOperator):
    """Holds tuples until the node has done whatever else is due now, so that no flow keeps others waiting.

    A cycle of operators needs one: the stack unwinds at each turn.
    """

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._waiting: list[tuple[Batch | None, Tag]] = []

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        self._wait(batch, tag)

    def end(self, tag: Tag, port: int) -> None:
        self._wait(None, tag)

    def _wait(self, batch: Batch | None, tag: Tag) -> None:
        if not self._waiting:
            self.context.after(0, self._flush)
        self._waiting.append((batch, tag))

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for batch, tag in waiting:
            if batch is None:
                self.emit_end(tag)
            else:
                self.emit(batch, tag)


class Null(RunningOperator):
    """Passes everything on."""

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        self.emit(batch, tag)


class NullSource(RunningOperator):
    """A source without tuples."""

    def probe(self, probe: DataProbe, asker: RunningOperator | None = None) -> None:
        if probe.kind is not ProbeKind.STREAM:
            self.emit_end(probe.tag)

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        raise AssertionError("a source without sources gets nothing")


class NullSink(RunningOperator):
    """A sink that drops whatever comes."""

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        pass


SELECTION = {"basic": Implementation(_condition, SelectTuples)}
PROJECTION = {"basic": Implementation(_kept, Projection), "generate": Implementation(_made, Projection)}
TEE = {"basic": Implementation(no_settings, Tee)}
UNION = {"basic": Implementation(no_settings, Union, most_sources=None)}
QUEUE = {"basic": Implementation(no_settings, Queue)}
NULL = {
    "null": Implementation(no_settings, Null),
    "nullsource": Implementation(no_settings, NullSource, 0, 0),
    "nullsink": Implementation(no_settings, NullSink),
}
