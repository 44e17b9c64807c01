"""Access methods: scans of the DHT, of messages that pass or come, of tables of this node, of files and databases."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from watersmeet.errors import RunError
from watersmeet.program.pier.graph import Operator
from watersmeet.program.pier.operators.join import VISITED_SEPARATOR
from watersmeet.program.pier.runtime import (
    Cancel,
    Context,
    DataProbe,
    Implementation,
    Plan,
    ProbeKind,
    RunningOperator,
    Tag,
    Take,
    no_settings,
)
from watersmeet.program.pier.settings import SettingsReader
from watersmeet.program.pier.tuples import Batch, Row
from watersmeet.program.pier.values import TYPES, key_text


class TupleScan(RunningOperator):
    """A source: what is there for a set probe, what comes for a stream probe, and how much for flow controls."""

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._streams: list[Tag] = []
        self._watchers: list[Callable[[int], None]] = []
        self._is_subscribed = False

    def present(self) -> Sequence[Batch]:
        """What is there now."""
        return ()

    def subscribe(self, take: Take) -> Cancel | None:
        """Call back with what comes; None if nothing ever does."""
        return None

    def fetch(self, key: Row, found: Callable[[Sequence[Batch]], None]) -> None:
        """Find the tuples of a key; sources that cannot give all they have."""
        found(self.present())

    def read(self, read: Callable[[], Sequence[Batch]]) -> Sequence[Batch]:
        """Read something outside; where it is not to be had the node has no tuples, and says so if asked to."""
        try:
            return read()
        except RunError as error:
            self.malformed(0, str(error))
            return ()

    def watch(self, arrived: Callable[[int], None]) -> None:
        """Tell how many tuples arrive, whether somebody asks for them or not."""
        self._watchers.append(arrived)
        self._listen()

    def probe(self, probe: DataProbe, asker: RunningOperator | None = None) -> None:
        if probe.key is not None:
            self.fetch(probe.key, lambda found: self.give(found, probe))
            return
        if probe.kind is not ProbeKind.SET:
            self._streams.append(probe.tag)
            self._listen()
        if probe.kind is not ProbeKind.STREAM:
            self.give(self.present(), probe)

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        raise AssertionError("a scan has no sources")

    def arrived(self, batch: Batch) -> None:
        """Tuples have come."""
        for tag in self._streams:
            self.emit(batch, tag)
        for watcher in self._watchers:
            watcher(len(batch.rows))

    def give(self, found: Sequence[Batch], probe: DataProbe) -> None:
        """Push what a set probe asks for, and its end."""
        for batch in found:
            self.emit(self.satisfying(batch, probe.condition), probe.tag)
        self.emit_end(probe.tag)

    def _listen(self) -> None:
        if not self._is_subscribed:
            self._is_subscribed = True
            cancel = self.subscribe(self.arrived)
            if cancel is not None:
                self.context.cancels.append(cancel)


class DhtScan(TupleScan):
    """Tuples of a namespace that this node owns; with a key, those of the key wherever they are."""

    def present(self) -> Sequence[Batch]:
        return self.context.host.stored(self.plan.settings)

    def subscribe(self, take: Take) -> Cancel | None:
        return self.context.host.on_stored(self.plan.settings, take)

    def fetch(self, key: Row, found: Callable[[Sequence[Batch]], None]) -> None:
        text = key_text(key)
        if text is None:
            found(())
        else:
            self.context.host.get(self.plan.settings, text, found)


class MessageSettings(NamedTuple):
    """A namespace of messages, and the column in which tuples collect the nodes they pass."""

    namespace: str
    annotate: str | None


class DhtMessageScan(TupleScan):
    """Tuples that are sent through this node, a copy of each, and those that end here."""

    def present(self) -> Sequence[Batch]:
        return self.context.host.stored(self.plan.settings.namespace)

    def subscribe(self, take: Take) -> Cancel | None:
        settings: MessageSettings = self.plan.settings
        host = self.context.host

        def passing(batch: Batch) -> Batch:
            take(batch)
            return batch if settings.annotate is None else annotated(batch, settings.annotate, host.address)

        ended = host.on_stored(settings.namespace, take)
        passed = host.on_passing(settings.namespace, passing)

        def cancel() -> None:
            ended()
            passed()

        return cancel


def annotated(batch: Batch, column: str, address: int) -> Batch:
    """Tuples with a node more in the column of those they have passed."""
    place = batch.schema.place(column)
    if place is None:
        return batch
    rows = []
    for row in batch.rows:
        visited = f"{row[place]}{VISITED_SEPARATOR}{address}" if row[place] else str(address)
        rows.append((*row[:place], visited, *row[place + 1 :]))
    return Batch(batch.schema, rows)


class RangeSettings(NamedTuple):
    """An index, and the keys that are wanted of it."""

    name: str
    low: int
    high: int


class RangeScan(TupleScan):
    """Tuples of a range index, wherever they are; only those that are there now."""

    def probe(self, probe: DataProbe, asker: RunningOperator | None = None) -> None:
        if probe.key is None and probe.kind is not ProbeKind.STREAM:
            name, low, high = self.plan.settings
            self.context.host.look_up(name, low, high, lambda found: self.give(found, probe))
        else:
            super().probe(probe, asker)

    def fetch(self, key: Row, found: Callable[[Sequence[Batch]], None]) -> None:
        name, low, high = self.plan.settings
        if len(key) == 1 and type(key[0]) is int and low <= key[0] <= high:
            self.context.host.look_up(name, key[0], key[0], found)
        else:
            found(())


class IpScan(TupleScan):
    """Tuples that are sent straight to a port of this node; those that came before the query are kept for it."""

    def subscribe(self, take: Take) -> Cancel | None:
        return self.context.host.listen(self.plan.settings, take)


class LocalSettings(NamedTuple):
    """A table of this node; `address` and `column` say how a tuple of another node is named."""

    table: str
    column: str | None


class LocalScan(TupleScan):
    """Tuples that applications of this node publish; with a key (node, value), those of another node."""

    def present(self) -> Sequence[Batch]:
        return self.context.host.table(self.plan.settings.table)

    def subscribe(self, take: Take) -> Cancel | None:
        return self.context.host.on_inserted(self.plan.settings.table, take)

    def fetch(self, key: Row, found: Callable[[Sequence[Batch]], None]) -> None:
        settings: LocalSettings = self.plan.settings
        if settings.column is None:
            found(self.present())
            return
        if len(key) != 2 or not isinstance(key[0], int):
            self.malformed(1, "a table of another node is asked for by its address and the value of one column")
            found(())
            return
        self.context.host.fetch(key[0], settings.table, settings.column, key[1], found)


class CsvSettings(NamedTuple):
    """A file, and the types of its columns."""

    path: str
    table: str
    types: tuple[tuple[str, str], ...]


class CsvScan(TupleScan):
    """The lines of a file."""

    def present(self) -> Sequence[Batch]:
        settings: CsvSettings = self.plan.settings
        host = self.context.host
        return self.read(lambda: host.read_csv(settings.path, settings.table, dict(settings.types)))


class DatabaseSettings(NamedTuple):
    """A statement and the database that answers it."""

    url: str
    sql: str
    table: str


class DatabaseScan(TupleScan):
    """The rows of an embedded database."""

    def present(self) -> Sequence[Batch]:
        settings: DatabaseSettings = self.plan.settings
        return self.read(lambda: self.context.host.query_database(settings.url, settings.sql, settings.table))


def _of(read: Callable[[SettingsReader], Any]) -> Callable[[SettingsReader, Operator], Any]:
    def configure(reader: SettingsReader, operator: Operator) -> Any:
        no_settings(reader, operator)
        return read(reader)

    return configure


def _range(reader: SettingsReader) -> RangeSettings:
    return RangeSettings(reader.text("ns"), *(reader.bounds() or (-(1 << 63), (1 << 63) - 1)))


def _csv(reader: SettingsReader) -> CsvSettings:
    types = tuple((name, kind.casefold()) for name, kind in reader.named_texts("types"))
    for name, kind in types:
        if kind not in TYPES:
            raise reader.fail(f"types[{name}] is {kind!r}; known: {', '.join(TYPES)}")
    return CsvSettings(reader.text("file"), reader.text("table"), types)


SCAN = {
    "dht": Implementation(_of(lambda reader: reader.text("ns")), DhtScan, 0, 0),
    "dhtmessage": Implementation(
        _of(lambda reader: MessageSettings(reader.text("ns"), reader.optional("annotate"))), DhtMessageScan, 0, 0
    ),
    "pht": Implementation(_of(_range), RangeScan, 0, 0),
    "ip": Implementation(_of(lambda reader: reader.text("port")), IpScan, 0, 0),
    "local": Implementation(
        _of(lambda reader: LocalSettings(reader.text("table"), reader.optional("column"))), LocalScan, 0, 0
    ),
    "csv": Implementation(_of(_csv), CsvScan, 0, 0),
    "jdbc": Implementation(
        _of(lambda reader: DatabaseSettings(reader.text("url"), reader.text("sql"), reader.text("table"))),
        DatabaseScan,
        0,
        0,
    ),
}
