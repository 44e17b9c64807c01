"""Equi-joins: the pipelining symmetric hash join, and the index join that is the local part of Fetch Matches (4.3.1).

Tuples of both sides come from two sources, or from one in which table names tell them apart. Tuples whose key has a
NULL join nothing. The columns of a pair are those of the left and then those of the right tuple.
"""

from collections import deque
from collections.abc import Callable, Sequence
from decimal import Decimal
from math import isfinite
from typing import Any, NamedTuple

from watersmeet.program.pier.expressions import Malformed, compiled_condition, compiled_row
from watersmeet.program.pier.graph import Expression, Operator, fields_of
from watersmeet.program.pier.runtime import Context, DataProbe, Implementation, Plan, ProbeKind, RunningOperator, Tag
from watersmeet.program.pier.settings import SettingsReader
from watersmeet.program.pier.tuples import Batch, Row, Schema
from watersmeet.program.pier.values import DECIMAL, DOUBLE

LEFT, RIGHT = 0, 1
VISITED_SEPARATOR = ","


class JoinSettings(NamedTuple):
    """The keys of both sides, and what a pair must satisfy."""

    keys: tuple[tuple[Expression, ...], tuple[Expression, ...]]
    tables: tuple[str | None, str | None]
    table: str
    condition: Expression | None
    lifetime_us: int | None
    visited: str | None

    def sides(self, schema: Schema) -> tuple[int, ...]:
        """The sides of the join that tuples of one source can take: by table, or by the columns of the keys."""
        if None not in self.tables:
            return tuple(side for side in (LEFT, RIGHT) if schema.table == self.tables[side])
        wanted = [frozenset().union(*map(fields_of, keys)) for keys in self.keys]
        return tuple(side for side in (LEFT, RIGHT) if wanted[side] <= set(schema.names))


def _join_settings(reader: SettingsReader, operator: Operator) -> JoinSettings:
    left, right = reader.expressions("left"), reader.expressions("right")
    if len(left) != len(right):
        raise reader.fail(f"left has {len(left)} keys and right {len(right)}; give as many of both")
    return JoinSettings(
        (left, right),
        (reader.optional("lefttable"), reader.optional("righttable")),
        reader.text("table", "joined"),
        reader.condition(operator),
        reader.duration_us("lifetime", None),
        reader.optional("visited"),
    )


def _symmetric(reader: SettingsReader, operator: Operator) -> JoinSettings:
    found = _join_settings(reader, operator)
    sources = reader.texts("sources")
    if len(sources) == 1 and None in found.tables and (found.tables != (None, None) or not found.keys[LEFT]):
        raise reader.fail("a join with one source needs lefttable and righttable, or keys that tell both sides apart")
    if len(sources) == 1 and found.tables[LEFT] == found.tables[RIGHT] is not None:
        raise reader.fail("lefttable and righttable are the same; rename one of them by a projection")
    return found


def _index(reader: SettingsReader, operator: Operator) -> JoinSettings:
    found = _join_settings(reader, operator)
    if not found.keys[LEFT]:
        raise reader.fail("an index join needs a key: left[] = expression and right[] = field")
    if found.visited is not None or found.lifetime_us is not None:
        raise reader.fail("visited and lifetime belong to a symmetric hash join")
    return found


def _canonical(value: Any) -> Any:
    """One value for all that SQL finds equal."""
    if isinstance(value, float):
        if value != value:
            return "nan"
        return int(value) if isfinite(value) and value.is_integer() else value
    if isinstance(value, Decimal):
        return int(value) if value == int(value) else float(value)
    return value


class _Keyed(NamedTuple):
    """How the key of a kind of tuples is found."""

    kernel: Callable[[Row], Row]
    has_fractions: bool


class _Pairs(NamedTuple):
    """How two kinds of tuples are put together."""

    schema: Schema
    condition: Callable[[Row], Any] | None


class _Join(RunningOperator):
    """What both joins have in common."""

    def keys_of(self, batch: Batch, side: int) -> tuple[list[Any], Sequence[Row]] | None:
        """The key of each row that has one, and the rows; keys with a NULL are None."""
        expressions = self.plan.settings.keys[side]

        def compile_keys(schema: Schema) -> _Keyed:
            kernel, types = compiled_row(expressions, schema)
            return _Keyed(kernel, DOUBLE in types or DECIMAL in types)

        keyed = self.compiled(f"key {side}", batch.schema, compile_keys)
        if isinstance(keyed, Malformed):
            self.malformed(len(batch.rows), str(keyed))
            return None
        keys, rows = self.evaluated(keyed.kernel, batch)
        if keyed.has_fractions:
            keys = [tuple(map(_canonical, key)) for key in keys]
        return [None if None in key else key for key in keys], rows

    def pairs_of(self, left: Schema, right: Schema) -> _Pairs | None:
        """How these kinds are put together; None if a condition cannot be evaluated for them."""

        def compile_pairs(_: Schema) -> _Pairs:
            columns = left.columns
            for name, kind in right.columns.items():
                columns[name if name not in columns else f"{right.table}.{name}"] = kind
            if len(columns) < len(left.names) + len(right.names):
                raise Malformed(f"{left.table} and {right.table} have columns of the same name; rename some")
            schema = Schema.of(self.plan.settings.table, columns)
            condition = self.plan.settings.condition
            return _Pairs(schema, None if condition is None else compiled_condition(condition, schema))

        found = self.plan.kernels.get((left, right))
        if found is None:
            try:
                found = compile_pairs(left)
            except Malformed as error:
                found = error
            self.plan.kernels[left, right] = found
        if isinstance(found, Malformed):
            self.malformed(1, str(found))
            return None
        assert isinstance(found, _Pairs)
        return found

    def emit_pairs(self, made: Sequence[tuple[Schema, Schema, Row]], tag: Tag) -> None:
        """Push pairs on, those with the same description together, if they satisfy the condition."""
        by_kind: dict[tuple[Schema, Schema], list[Row]] = {}
        for left, right, row in made:
            by_kind.setdefault((left, right), []).append(row)
        for (left, right), rows in by_kind.items():
            pairs = self.pairs_of(left, right)
            if pairs is None:
                continue
            batch = Batch(pairs.schema, rows)
            if pairs.condition is not None:
                verdicts, kept = self.evaluated(pairs.condition, batch)
                batch = Batch(pairs.schema, [row for row, good in zip(kept, verdicts, strict=True) if good])
            self.emit(batch, tag)


class SymmetricHashJoin(_Join):
    """Builds a hash table of each side and probes the other's with every tuple that comes.

    With `visited`, tuples carry the nodes on which they were joined before; a pair that has met already is left out, so
    that hierarchical joins (4.3.4) make each result once.
    """

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._tables: tuple[dict[Any, list[tuple[Schema, Row]]], ...] = ({}, {})
        self._expiries: tuple[deque[tuple[int, Any]], ...] = (deque(), deque())
        self._ended: dict[Tag, int] = {}
        self.stored_total = 0

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        settings: JoinSettings = self.plan.settings
        side = port
        if len(self.sources) == 1:
            sides = self.compiled("sides", batch.schema, settings.sides)
            if len(sides) != 1:
                what = "is neither side of the join" if not sides else "could be either side of the join"
                self.malformed(len(batch.rows), f"{batch.schema.table} {what}")
                return
            (side,) = sides
        if settings.lifetime_us is not None:
            self._expire(settings.lifetime_us)
        found = self.keys_of(batch, side)
        if found is None:
            return
        own, other = self._tables[side], self._tables[1 - side]
        schema, made = batch.schema, []
        for key, row in zip(*found, strict=True):
            if key is None:
                continue
            for partner, match in other.get(key, ()):
                if settings.visited is not None and _have_met(settings.visited, schema, row, partner, match):
                    continue
                made.append((schema, partner, row + match) if side == LEFT else (partner, schema, match + row))
            own.setdefault(key, []).append((schema, row))
            self.stored_total += 1
            if settings.lifetime_us is not None:
                self._expiries[side].append((self.context.host.now_us + settings.lifetime_us, key))
        if made:
            self.emit_pairs(made, tag)

    def end(self, tag: Tag, port: int) -> None:
        self._ended[tag] = self._ended.get(tag, 0) + 1
        if self._ended[tag] == len(self.sources):
            del self._ended[tag]
            self.emit_end(tag)

    def _expire(self, lifetime_us: int) -> None:
        """Forget what came too long ago; tuples of one key are kept in the order in which they came."""
        now_us = self.context.host.now_us
        for table, expiries in zip(self._tables, self._expiries, strict=True):
            while expiries and expiries[0][0] < now_us:
                _, key = expiries.popleft()
                bucket = table[key]
                del bucket[0]
                self.stored_total -= 1
                if not bucket:
                    del table[key]


def _have_met(column: str, schema: Schema, row: Row, partner: Schema, match: Row) -> bool:
    place, other = schema.place(column), partner.place(column)
    if place is None or other is None:
        return False
    mine, theirs = row[place] or "", match[other] or ""
    if not mine or not theirs:
        return False
    return not set(mine.split(VISITED_SEPARATOR)).isdisjoint(theirs.split(VISITED_SEPARATOR))


class _Waiting(NamedTuple):
    """Outer tuples whose matches are being fetched."""

    schema: Schema
    rows: list[Row]
    key: Row
    tag: Tag


class IndexJoin(_Join):
    """Asks its second source for the matches of each tuple of its first one, by a probe with the key.

    A source that cannot look a key up gives more than the matches, so keys are compared here.
    """

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._waiting: dict[Tag, _Waiting] = {}
        self._open: dict[Tag, int] = {}  # fetches by the tag of the outer probe
        self._ended: set[Tag] = set()

    def probe(self, probe: DataProbe, asker: RunningOperator | None = None) -> None:
        self.sources[0].probe(probe, self)

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        if port == LEFT:
            self._fetch(batch, tag)
        elif tag in self._waiting:
            waiting, found = self._waiting[tag], self.keys_of(batch, RIGHT)
            if found is None:
                return
            matches = [match for key, match in zip(*found, strict=True) if key == waiting.key]
            made = [(waiting.schema, batch.schema, row + match) for row in waiting.rows for match in matches]
            self.emit_pairs(made, waiting.tag)

    def end(self, tag: Tag, port: int) -> None:
        if port == LEFT:
            self._ended.add(tag)
            self._finish(tag)
            return
        waiting = self._waiting.pop(tag, None)
        if waiting is not None:
            self._open[waiting.tag] -= 1
            self._finish(waiting.tag)

    def _fetch(self, batch: Batch, tag: Tag) -> None:
        found = self.keys_of(batch, LEFT)
        if found is None:
            return
        by_key: dict[Any, list[Row]] = {}
        for key, row in zip(*found, strict=True):
            if key is not None:
                by_key.setdefault(key, []).append(row)
        self._open[tag] = self._open.get(tag, 0) + len(by_key)
        for key, rows in by_key.items():
            own = self.context.new_tag()
            self._waiting[own] = _Waiting(batch.schema, rows, key, tag)
            self.sources[1].probe(DataProbe(ProbeKind.SET, own, key), self)

    def _finish(self, tag: Tag) -> None:
        if tag in self._ended and not self._open.get(tag):
            self._ended.discard(tag)
            self._open.pop(tag, None)
            self.emit_end(tag)


JOIN = {
    "symmetrichash": Implementation(_symmetric, SymmetricHashJoin, 1, 2),
    "index": Implementation(_index, IndexJoin, 2, 2),
}
