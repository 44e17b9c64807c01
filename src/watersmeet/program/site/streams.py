"""What is read and stored of a stream for all queries of a site, and how an alias of a query sees it.

A stream is read, parsed and filed once, however many aliases of however many queries read it. Stored rows have the
columns that any of them needs; a key expression of several aliases is one key column. Where aliases differ in their
filters, each different set of conditions is a selection, a bit of the row: a row that fulfils none is not stored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from watersmeet.plan.nodes import JoinPlan, Kept, Scan
from watersmeet.program.storage.segments import ORDINAL, TS
from watersmeet.query.model import Expression
from watersmeet.query.outer import ROW_ID, ROW_ORDINAL, ROW_TIME
from watersmeet.query.restate import restated
from watersmeet.query.windows import AsOf, counted

_STORED_ANYWAY = {ROW_TIME: TS, ROW_ORDINAL: ORDINAL}  # what rows have without being asked


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A key expression of a stream as 64 bits: the value itself where it fits, else its hash."""

    expression: Expression
    exact: bool


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows that an alias takes: those that pass its filters, have all its keys, and are not before its start."""

    filters: tuple[Expression, ...]
    keys: tuple[int, ...]  # key columns that must not be NULL
    start_us: int | None
    count: int | None = None  # of a ROWS window: only rows that no n others of the same timestamp follow are ever in it

    @property
    def condition(self) -> str:
        """Its filters as one condition of SQL; empty if there are none."""
        return " AND ".join(f"({expression.sql})" for expression in self.filters)


@dataclass(frozen=True)
class StreamScan:
    """All that is read of a stream; expressions name its columns by the stream, as in `orders.amount`."""

    stream: str
    keys: tuple[KeyColumn, ...] = ()
    selections: tuple[Selection, ...] = ()
    kept: tuple[Kept, ...] = ()
    users: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # kept value or key -> selections that need it
    is_table: bool = False  # its rows are all there at first

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(kept.name for kept in self.kept)

    @property
    def read(self) -> tuple[Kept, ...]:
        """The values that are computed from the source's columns."""
        return tuple(kept for kept in self.kept if kept.name != self.id_column)

    @property
    def id_column(self) -> str:
        """The column of numbers that tell rows apart, where it is among those that are kept."""
        return f"{self.stream}.{ROW_ID}"


@dataclass(frozen=True, slots=True)
class View:
    """How an alias sees the stored rows of its stream."""

    alias: str
    stream: str
    ordered: bool  # whether it needs ordinals, which rows get behind the watermark
    keys: Mapping[int, int]  # key class of the join -> key column of the stream
    selection: int  # of the stream scan
    columns: tuple[tuple[str, str], ...]  # name in the join, name in the store

    @property
    def flow(self) -> str:
        """The name of the stored rows."""
        return ordered_flow(self.stream) if self.ordered else self.stream


def ordered_flow(stream: str) -> str:
    """The rows of a stream with their ordinals."""
    return f"{stream} in order"


def clock_flow(stream: str) -> str:
    """The timestamps of a stream's rows in order, by which times become ordinals."""
    return f"clock of {stream}"


class StreamTable:
    """Collects what the aliases of all joins need of one stream."""

    def __init__(self, stream: str, known: StreamScan | None = None) -> None:
        known = known or StreamScan(stream)
        self.stream = stream
        self._keys: dict[KeyColumn, int] = {key: number for number, key in enumerate(known.keys)}
        self._selections: dict[Selection, int] = {
            selection: number for number, selection in enumerate(known.selections)
        }
        self._kept: dict[str, Kept] = {kept.name: kept for kept in known.kept}
        self._users: dict[str, set[int]] = {name: set(numbers) for name, numbers in known.users.items()}
        self._is_table = known.is_table

    def view(self, join: JoinPlan, scan: Scan, start_us: int | None) -> View:
        """Add what an alias needs; how it will see it."""
        keys = {number: self._key(join, number, scan) for number in scan.classes}
        filters = tuple(
            sorted(
                {self._restated(predicate, scan) for predicate in scan.filters}, key=lambda expression: expression.sql
            )
        )
        count = counted(scan.window)
        if isinstance(scan.window, AsOf):  # rows of tables have no time of their own
            self._is_table, start_us = True, None
        wanted = Selection(filters, tuple(sorted(set(keys.values()))), start_us, count)
        selection = self._selections.setdefault(wanted, len(self._selections))
        columns = tuple((kept.name, self._keep(kept, scan)) for kept in scan.kept)
        for name in (*(name for _, name in columns), *(f"#{number}" for number in keys.values())):
            self._users.setdefault(name, set()).add(selection)
        return View(scan.alias, self.stream, count is not None, keys, selection, columns)

    def _key(self, join: JoinPlan, number: int, scan: Scan) -> int:
        member = join.classes[number].member(scan.alias)
        assert member is not None, "a scan lists the classes it has a member of"
        column = KeyColumn(self._restated(member, scan), join.classes[number].exact)
        return self._keys.setdefault(column, len(self._keys))

    def _keep(self, kept: Kept, scan: Scan) -> str:
        if kept.expression.columns and (own := _STORED_ANYWAY.get(kept.expression.columns[0].name)):
            return own
        expression = self._restated(kept.expression, scan)
        name = expression.columns[0].flat if expression.is_plain else f"{self.stream}.={expression.sql}"
        self._kept.setdefault(name, Kept(name, expression))
        return name

    def _restated(self, expression: Expression, scan: Scan) -> Expression:
        return restated(expression, scan.alias, self.stream)

    @property
    def scan(self) -> StreamScan:
        users = {name: tuple(sorted(numbers)) for name, numbers in self._users.items()}
        keys, selections = tuple(self._keys), tuple(self._selections)
        return StreamScan(self.stream, keys, selections, tuple(self._kept.values()), users, self._is_table)


def stream_tables(
    joins: Iterable[tuple[str, JoinPlan, int | None]], known: Iterable[StreamScan] = ()
) -> tuple[dict[str, StreamScan], dict[tuple[str, str], View]]:
    """What is read of each stream for all joins (name, plan, start), and the view of each (join, alias).

    What is known already keeps its numbers: stored rows have columns and bits by them.
    """
    tables = {scan.stream: StreamTable(scan.stream, scan) for scan in known}
    views: dict[tuple[str, str], View] = {}
    for name, join, start_us in joins:
        for scan in join.scans:
            table = tables.setdefault(scan.stream, StreamTable(scan.stream))
            views[name, scan.alias] = table.view(join, scan, start_us)
    return {name: table.scan for name, table in tables.items()}, views
