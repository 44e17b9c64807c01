"""The first tuples of each group in an order (ours): at once of each batch, or of all that has come after a wait."""

from typing import Any, NamedTuple

from watersmeet.program.pier.expressions import Malformed, compiled_row
from watersmeet.program.pier.graph import Expression, Operator
from watersmeet.program.pier.runtime import Context, Implementation, Plan, RunningOperator, Tag, no_settings
from watersmeet.program.pier.settings import SettingsReader
from watersmeet.program.pier.tuples import Batch, Row, Schema
from watersmeet.program.pier.values import NULL, OBJECT, common_type

_DIRECTIONS = tuple(f"{way} nulls {place}" for way in ("asc", "desc") for place in ("first", "last"))


class TopSettings(NamedTuple):
    """What tuples are sorted by, within which groups, how many pass, and how long one waits for more."""

    order: tuple[Expression, ...]
    directions: tuple[str, ...]
    groups: tuple[Expression, ...]
    most: int  # tuples of a group
    wait_us: int | None


def _settings(reader: SettingsReader, operator: Operator) -> TopSettings:
    no_settings(reader, operator)
    order, directions = reader.expressions("order"), reader.texts("direction")
    if not order or len(order) != len(directions):
        raise reader.fail("it needs order[] = expression and a direction[] for each")
    for direction in directions:
        if direction not in _DIRECTIONS:
            raise reader.fail(f"direction {direction!r} is unknown; known: {', '.join(_DIRECTIONS)}")
    count = reader.whole("count", None)
    if count is None:
        raise reader.fail("it needs how many tuples pass: count = 10")
    return TopSettings(order, directions, reader.expressions("group"), count, reader.duration_us("wait", None))


class Top(RunningOperator):
    """Passes the first tuples of each group; with a wait, once, that long after the last tuple of the group came."""

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._kept: dict[Row, list[tuple[Row, Schema, Row]]] = {}  # sort keys, and tuples, by group
        self._due_us: dict[Row, int] = {}
        self._given: set[Row] = set()
        self._types: tuple[str, ...] | None = None  # of groups and sort keys
        self._tag: Tag = 0

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        settings: TopSettings = self.plan.settings
        parts = (*settings.groups, *settings.order)
        found = self.compiled("keys", batch.schema, lambda schema: compiled_row(parts, schema))
        if isinstance(found, Malformed):
            self.malformed(len(batch.rows), str(found))
            return
        kernel, types = found
        if self._types is not None:
            types = tuple(map(common_type, zip(self._types, types, strict=True)))
        if {None, OBJECT} & set(types[len(settings.groups) :]):
            self.malformed(len(batch.rows), "tuples cannot be ordered by objects, or together with those before them")
            return
        self._types = tuple(kind or NULL for kind in types)
        values, rows = self.evaluated(kernel, batch)
        self._tag, size = tag, len(settings.groups)
        touched: dict[Row, None] = {}
        for value, row in zip(values, rows, strict=True):
            group = value[:size]
            if group in self._given:
                self.context.counters.late += 1
                continue
            self._kept.setdefault(group, []).append((value[size:], batch.schema, row))
            touched[group] = None
        for group in touched:
            self._kept[group] = self._first(self._kept[group])
            if settings.wait_us is None:
                self._give(group)
            else:
                self._wait(group, settings.wait_us)

    def end(self, tag: Tag, port: int) -> None:
        if self.plan.settings.wait_us is None:
            self.emit_end(tag)

    def _wait(self, group: Row, wait_us: int) -> None:
        is_new = group not in self._due_us
        self._due_us[group] = self.context.host.now_us + wait_us
        if is_new:
            self.context.after(wait_us, lambda: self._check(group))

    def _check(self, group: Row) -> None:
        left_us = self._due_us[group] - self.context.host.now_us
        if left_us > 0:
            self.context.after(left_us, lambda: self._check(group))
            return
        del self._due_us[group]
        self._given.add(group)
        self._give(group)

    def _give(self, group: Row) -> None:
        for _, schema, row in self._kept.pop(group):
            self.emit(Batch(schema, (row,)), self._tag)

    def _first(self, kept: list[tuple[Row, Schema, Row]]) -> list[tuple[Row, Schema, Row]]:
        settings: TopSettings = self.plan.settings
        for place in range(len(settings.order) - 1, -1, -1):  # stable sorts, the least important first
            direction = settings.directions[place]
            is_descending, nulls_first = direction.startswith("desc"), direction.endswith("first")

            def rank(
                entry: tuple[Row, Schema, Row],
                place: int = place,
                null: int = -1 if nulls_first is not is_descending else 1,
            ) -> tuple[int, bool, Any]:
                value = entry[0][place]
                is_nan = value != value
                return (null, False, 0) if value is None else (0, is_nan, 0 if is_nan else value)

            kept = sorted(kept, key=rank, reverse=is_descending)
        return kept[: settings.most]


TOP = {"basic": Implementation(_settings, Top)}
