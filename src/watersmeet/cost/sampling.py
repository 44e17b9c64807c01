"""Samples of streams as queries need them: what is to be sampled of each, and the rows as a query sees them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from watersmeet.cost.sampled import LEAST_ROWS, SampledJoins, SampledRows
from watersmeet.cost.workload import I64
from watersmeet.plan.nodes import KeyClass, Scan
from watersmeet.plan.shape import QueryShape
from watersmeet.query.comparisons import Condition
from watersmeet.query.model import Expression
from watersmeet.query.windows import Range, Rows, Tumble, Unbounded, Window
from watersmeet.stats.model import Sample, Stats
from watersmeet.stats.samples import FILTER, KEY, TIME, VALUE, table_of

MOST_STREAMS = 6
MOST_ROWS = 20_000  # of each stream, from the beginning
_WINDOWS = 2  # a sample is at least so many times as long as the longest window
_FOREVER = 1 << 60


@dataclass
class Compared:
    """What joins compare of a stream: filters by their text, columns that are keys, columns that comparisons read."""

    filters: dict[str, Expression] = field(default_factory=dict)
    keys: dict[str, None] = field(default_factory=dict)
    values: dict[str, None] = field(default_factory=dict)
    longest_us: int = 0  # of the windows of all streams that it is joined with


def compared_by(shapes: Iterable[QueryShape]) -> dict[str, Compared]:
    """What some joins compare of each stream."""
    found: dict[str, Compared] = {}
    for shape in shapes:
        streams = {scan.alias: scan.stream for scan in shape.scans}
        longest_us = _longest_us(shape.scans)
        for scan in shape.scans:
            own = found.setdefault(scan.stream, Compared())
            own.longest_us = max(own.longest_us, longest_us)
            own.filters |= {predicate.sql: predicate for predicate in scan.filters}
            own.keys |= dict.fromkeys(filter(None, _keys_of(scan, shape.classes)))
        for condition in shape.conditions:
            for column in condition.expression.columns:
                found[streams[column.alias]].values[column.name] = None
    return found


def _keys_of(scan: Scan, classes: Sequence[KeyClass]) -> list[str | None]:
    """The columns that the keys of an alias are, as they are or only cast; None for other expressions."""
    return [_column_of(classes[number].member(scan.alias)) for number in scan.classes]


def _column_of(key: Expression | None) -> str | None:
    if key is None or len(key.columns) != 1:
        return None
    is_cast = key.sql == f"CAST({key.columns[0].sql} AS {key.type})"
    return key.columns[0].name if key.is_plain or is_cast else None


def sampled_joins(
    scans: Sequence[Scan],
    classes: Sequence[KeyClass],
    conditions: Sequence[Condition],
    stats: Stats,
    interval_s: float,
) -> SampledJoins | None:
    """The sample that statistics have of the streams of a query, if it says enough about all of them."""
    if len(scans) > MOST_STREAMS:
        return None
    samples = [stats.stream(scan.stream).sample for scan in scans]
    if any(sample is None for sample in samples):
        return None
    tables = {scan.stream: table_of(sample) for scan, sample in zip(scans, samples, strict=True) if sample is not None}
    if not all(_has_what_it_takes(scan, classes, tables[scan.stream]) for scan in scans):
        return None
    begin, end, is_whole = _common_while([sample for sample in samples if sample is not None], list(tables.values()))
    numbers = {scan.alias: number for number, scan in enumerate(scans)}
    about = tuple((sum(1 << numbers[alias] for alias in condition.aliases), condition) for condition in conditions)
    compared = {column for condition in conditions for column in condition.expression.columns}
    if any(VALUE + column.name not in tables[scans[numbers[column.alias]].stream].column_names for column in compared):
        return None
    masks = tuple(sum(1 << numbers[scan.alias] for scan in scans if c.number in scan.classes) for c in classes)
    if end - begin < (1 if is_whole else _WINDOWS * _longest_us(scans) + 1):
        return None
    rows = tuple(_rows_of(scan, classes, about, tables[scan.stream], begin, end) for scan in scans)
    if sum(len(row.low) for row in rows) < LEAST_ROWS:
        return None
    return SampledJoins(rows, masks, 0, end - begin, interval_s, about)


def rows_wanted(times_us: I64, longest_us: int, least: int) -> int:
    """How many of the first rows a sample takes: so many at least, and as long a while as windows ask for.

    >>> rows_wanted(np.arange(0, 100, 10), 20, 2), rows_wanted(np.arange(0, 100, 10), 0, 2)
    (6, 2)
    """
    if not len(times_us) or not longest_us:
        return min(least, len(times_us))
    enough = int(np.searchsorted(times_us, times_us[0] + _WINDOWS * longest_us + 1)) + 1
    return min(max(enough, least), MOST_ROWS, len(times_us))


@dataclass(frozen=True, slots=True)
class TooShort:
    """Samples that cover less of a while than is needed to count joins in them."""

    covered_us: int
    needed_us: int
    is_bound: bool  # whether some have as many rows as samples may have


def too_short(scans: Sequence[Scan], stats: Stats) -> TooShort | None:
    """The samples of a query's streams, if all have one and they cover less than twice the longest window."""
    samples = [sample for scan in scans if (sample := stats.stream(scan.stream).sample) is not None]
    if len(samples) < len(scans) or len(scans) > MOST_STREAMS:
        return None
    tables = [table_of(sample) for sample in samples]
    begin, end, is_whole = _common_while(samples, tables)
    needed_us = _WINDOWS * _longest_us(scans) + 1
    if is_whole or end - begin >= needed_us:
        return None
    return TooShort(end - begin, needed_us, any(table.num_rows >= MOST_ROWS for table in tables))


def _common_while(samples: Sequence[Sample], tables: Sequence[pa.Table]) -> tuple[int, int, bool]:
    """From when to when the samples of all streams have all of their rows, and whether that is all there are."""
    times = [table.column(TIME).to_numpy() for table in tables]
    begin = min((int(time[0]) for time in times if len(time)), default=0)
    cut = [int(time[min(len(time), MOST_ROWS) - 1]) for time in times if len(time) > MOST_ROWS]
    cut += [int(time[-1]) for time, sample in zip(times, samples, strict=False) if len(time) and not sample.is_whole]
    if cut:
        return begin, min(cut), False
    return begin, max((int(time[-1]) for time in times if len(time)), default=0) + 1, True


def _has_what_it_takes(scan: Scan, classes: Sequence[KeyClass], table: pa.Table) -> bool:
    keys = _keys_of(scan, classes)
    if not all(keys):
        return False
    needed = {f"{KEY}{name}" for name in keys}
    needed |= {FILTER + predicate.sql for predicate in scan.filters}
    return needed <= set(table.column_names) and isinstance(scan.window, Range | Tumble | Rows | Unbounded)


def has_what_is_compared(scan: Scan, classes: Sequence[KeyClass], stats: Stats) -> bool:
    """Whether the sample of a stream, if there is one, has the keys and filters of an alias."""
    sample = stats.stream(scan.stream).sample
    return sample is None or not all(_keys_of(scan, classes)) or _has_what_it_takes(scan, classes, table_of(sample))


def _length_us(window: Window) -> int:
    return window.window_us if isinstance(window, Range | Tumble) else 0


def _longest_us(scans: Iterable[Scan]) -> int:
    return max((_length_us(scan.window) for scan in scans), default=0)


def _rows_of(
    scan: Scan,
    classes: Sequence[KeyClass],
    about: Sequence[tuple[int, Condition]],
    table: pa.Table,
    begin: int,
    end: int,
) -> SampledRows:
    times = np.asarray(table.column(TIME).to_numpy(), np.int64)
    inside = int(np.searchsorted(times, end, side="right"))
    table, low = table.slice(0, inside), times[:inside] - begin
    high = np.minimum(_ends(scan.window, low, begin), end - begin)
    keep = np.ones(len(low), bool)
    for predicate in scan.filters:
        keep &= table.column(FILTER + predicate.sql).fill_null(False).to_numpy(zero_copy_only=False)
    keys = {}
    for number, name in zip(scan.classes, _keys_of(scan, classes), strict=True):
        column = table.column(f"{KEY}{name}")
        keep &= column.is_valid().to_numpy(zero_copy_only=False)
        keys[number] = np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    read = {column for _, condition in about for column in condition.expression.columns if column.alias == scan.alias}
    values = pa.table({column.flat: table.column(VALUE + column.name) for column in sorted(read, key=str)})
    if not read:
        values = pa.table({"#": np.zeros(len(low), np.int8)})
    return SampledRows(len(low), np.arange(len(low)), low, high, keys, values).only(keep)


def _ends(window: Window, low: I64, begin: int) -> I64:
    """Until when rows of a stream are visible, by its window; times are since `begin`."""
    match window:
        case Range(window_us):
            return low + window_us
        case Tumble(window_us):
            return (low + begin) // window_us * window_us + window_us - 1 - begin
        case Rows(count):
            later = np.full(len(low), _FOREVER)
            later[: max(len(low) - count, 0)] = low[count:] - 1
            return np.asarray(np.maximum(later, low))
        case _:
            return np.full(len(low), _FOREVER)
