"""The figures of a query from the statistics of its streams: which values keys have, what is missing or assumed."""

from collections.abc import Iterator, Mapping, Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from watersmeet.cost.comparing import KnownColumn, share_left
from watersmeet.cost.records import records_of
from watersmeet.cost.sizes import HASH_SIZES, TIMESTAMP_SIZES, size_at
from watersmeet.cost.workload import Domain, Workload
from watersmeet.errors import InputError
from watersmeet.plan.nodes import KeyClass, Scan
from watersmeet.query.comparisons import Condition
from watersmeet.query.model import JoinQuery
from watersmeet.query.windows import AsOf, Range, Rows, Tumble, Unbounded, Window, counted
from watersmeet.stats.model import BATCH_ROWS, BytesByBatch, ColumnStats, Histogram, Stats

UNBOUNDED_S = 3_600.0  # an unbounded window is priced as if it held this long
TABLE_S = 86_400.0  # what it takes to ship a table is spread over so long: a day
DEFAULTS = {"rate": 100.0, "number of rows": 10_000.0, "distinct values": 1_000.0, "bytes a value": 8.0}


class MissingStatistic(InputError):
    """A planner needs a figure that nobody gave."""


def workload_of(
    scans: Sequence[Scan],
    classes: Sequence[KeyClass],
    output: Sequence[str],
    homes: Sequence[str],
    site: str | None,
    stats: Stats,
    *,
    conditions: Sequence[Condition] = (),
    defaults: bool = False,
    query: JoinQuery | None = None,
    event_times: Mapping[str, str] | None = None,
) -> Workload:
    """The figures of a query; a figure that nobody gave is an error, or a stated default if those are asked for.

    `event_times` has the event-time column of streams by name.
    """
    gather = _Gather(stats, defaults)
    rates, windows, arrivals = [], [], []
    for scan in scans:
        rate = gather.rate(scan)
        arrivals.append(rate)
        for filtered in scan.filters:
            rate *= gather.share_passed(filtered.sql)
        windows.append(_window_s(scan.window, arrivals[-1]))
        rates.append(rate * _share_with_keys(scan, classes, gather))
    domains = tuple(_domain(key_class, scans, gather) for key_class in classes)
    sizes, in_order = (
        tuple(_travelling_sizes(scan, classes, gather, in_order=is_in_order) for scan in scans)
        for is_in_order in (False, True)
    )
    answer = tuple(
        gather.sizes(scan, kept.expression.columns[0].name)
        for scan in scans
        for kept in scan.kept
        if kept.name in output
    )
    owners = tuple(number for number, scan in enumerate(scans) for kept in scan.kept if kept.name in output)
    by_alias = {scan.alias: scan for scan in scans}
    records = None
    if query is not None:
        records = records_of(
            query,
            lambda column: gather.distinct_or_default(by_alias[column.alias], column.name),
            lambda column: float(size_at(gather.sizes(by_alias[column.alias], column.name), 100.0)),
            lambda alias, within_s: _rows_within(alias, within_s, scans, rates, windows),
        )
    return Workload(
        tuple(scan.alias for scan in scans),
        tuple(homes),
        site,
        np.array(rates, float),
        np.array(windows, float),
        domains,
        sizes,
        answer,
        tuple(counted(scan.window) is not None for scan in scans),
        tuple(gather.used),
        _left(scans, conditions, windows, gather),
        owners,
        tuple(_key_sizes(key_class, scans, gather) for key_class in classes),
        tuple(tuple(number for number in scan.classes if _is_hidden(scan, classes[number])) for scan in scans),
        in_order,
        records,
        np.array(arrivals, float),
        tuple(stats.stream(scan.stream).busy for scan in scans),
        tuple(_dropped(scans, output, conditions, gather)),
        tuple(gather.time_sizes(scan, (event_times or {}).get(scan.stream, "")) for scan in scans),
        tuple(gather.unmeasured),
    )


def _share_with_keys(scan: Scan, classes: Sequence[KeyClass], gather: "_Gather") -> float:
    """The share of a stream's rows that have none of its keys NULL: others meet nothing and are not stored."""
    share = 1.0
    for number in scan.classes:
        member = classes[number].member(scan.alias)
        if member is not None and member.is_plain:
            share *= 1 - (gather.column(scan, member.columns[0].name).nulls or 0.0)
    return share


def _left(
    scans: Sequence[Scan], conditions: Sequence[Condition], windows: Sequence[float], gather: "_Gather"
) -> tuple[tuple[int, float], ...]:
    """For each set of aliases that comparisons are about, the share of its combinations that they leave."""
    numbers = {scan.alias: number for number, scan in enumerate(scans)}
    columns = {column.flat: column for condition in conditions for column in condition.expression.columns}

    def known(name: str) -> KnownColumn:
        number = numbers[columns[name].alias]
        return KnownColumn(windows[number] * 1e6, gather.histogram(scans[number], columns[name].name))

    by_set: dict[int, list[Condition]] = {}
    for condition in conditions:
        by_set.setdefault(sum(1 << numbers[alias] for alias in condition.aliases), []).append(condition)
    left = []
    for which, some in sorted(by_set.items()):
        share = share_left([condition for condition in some if not gather.knows(condition.expression.sql)], known)
        given = [gather.selectivity(condition.expression.sql) for condition in some]
        left.append((which, share * float(np.prod(given))))
    return tuple(left)


def _dropped(
    scans: Sequence[Scan], output: Sequence[str], conditions: Sequence[Condition], gather: "_Gather"
) -> Iterator[tuple[int, int, BytesByBatch]]:
    """The values that only comparisons need, and the aliases that must have met for all of these to be applied."""
    numbers = {scan.alias: number for number, scan in enumerate(scans)}
    for number, scan in enumerate(scans):
        for kept in scan.kept:
            about = [condition.aliases for condition in conditions if kept.name in condition.columns]
            if about and kept.name not in output:
                needed = sum(1 << numbers[alias] for alias in {alias for aliases in about for alias in aliases})
                yield number, needed, gather.sizes(scan, kept.expression.columns[0].name)


def _rows_within(
    alias: str, within_s: float, scans: Sequence[Scan], rates: Sequence[float], windows: Sequence[float]
) -> float:
    """Rows of an alias that are in their window some time of a while."""
    number = next(number for number, scan in enumerate(scans) if scan.alias == alias)
    return rates[number] * (within_s + windows[number])


def _window_s(window: Window, rate: float) -> float:
    match window:
        case Range(window_us):
            return window_us / 1e6
        case Tumble(window_us):
            return window_us / 2e6  # on average, half of the interval is over
        case Rows(count):
            return count / rate if rate else 0.0
        case Unbounded():
            return UNBOUNDED_S
        case AsOf():
            return TABLE_S


class _Gather:
    """Looks figures up, and tells which are missing."""

    def __init__(self, stats: Stats, defaults: bool) -> None:
        self._stats, self._defaults = stats, defaults
        self.used: list[str] = []
        self.unmeasured: list[str] = []  # filters that are taken to let all rows pass

    def _missing(self, what: str, kind: str) -> float:
        if not self._defaults:
            raise MissingStatistic(
                f"no {kind} is known {what}; run `watersmeet stats`, give it under `stats:` in the topology, "
                f"or plan with --assume-defaults (which takes {DEFAULTS[kind]:g})"
            )
        note = f"{kind} {what}: {DEFAULTS[kind]:g}"
        if note not in self.used:
            self.used.append(note)
        return DEFAULTS[kind]

    def rate(self, scan: Scan) -> float:
        known = self._stats.stream(scan.stream).rate
        if isinstance(scan.window, AsOf):  # all its rows are there at first: as many come in a day as it has
            rows = self._stats.stream(scan.stream).rows
            return (rows.value if rows else self._missing(f"of table {scan.stream!r}", "number of rows")) / TABLE_S
        return known.value if known else self._missing(f"of stream {scan.stream!r}", "rate")

    def knows(self, sql: str) -> bool:
        """Whether somebody said what share a predicate leaves."""
        return sql in self._stats.selectivities

    def selectivity(self, sql: str) -> float:
        known = self._stats.selectivities.get(sql)
        return known.value if known else 1.0

    def share_passed(self, sql: str) -> float:
        """The share of a stream's rows that pass a filter."""
        if not self.knows(sql) and sql not in self.unmeasured:
            self.unmeasured.append(sql)
        return self.selectivity(sql)

    def column(self, scan: Scan, name: str) -> ColumnStats:
        columns = self._stats.stream(scan.stream).columns
        return next((column for key, column in columns.items() if key.casefold() == name.casefold()), ColumnStats())

    def distinct(self, scan: Scan, name: str) -> float:
        known = self.column(scan, name).distinct
        if known is None:
            return self._missing(f"of column {name!r} of stream {scan.stream!r}", "distinct values")
        return max(known.value, 1.0)

    def distinct_or_default(self, scan: Scan, name: str) -> float:
        """The number of values of a column that is no key of the join, so that nobody was asked for it."""
        known = self.column(scan, name).distinct
        return DEFAULTS["distinct values"] if known is None else known.value

    def histogram(self, scan: Scan, name: str) -> Histogram | None:
        return self.column(scan, name).histogram

    def time_sizes(self, scan: Scan, name: str) -> BytesByBatch:
        """Bytes of the event times of all rows in order; where nobody measured them, of rows that come at random."""
        return (self.column(scan, name).in_order if name else None) or TIMESTAMP_SIZES

    def sizes(self, scan: Scan, name: str, *, in_order: bool = False) -> BytesByBatch:
        column = self.column(scan, name)
        if column.sizes is not None:
            return column.in_order if in_order and column.in_order else column.sizes
        stream = self._stats.stream(scan.stream)
        kept = max(len(scan.kept), 1)
        if stream.row_bytes is not None:
            each = stream.row_bytes.value / kept
        else:
            each = self._missing(f"for column {name!r} of stream {scan.stream!r}", "bytes a value")
        return each, each, each, each, each


def _travelling_sizes(
    scan: Scan, classes: Sequence[KeyClass], gather: _Gather, *, in_order: bool
) -> tuple[BytesByBatch, ...]:
    """BytesByBatch of what travels of a row beside its time: what is kept of it, and keys that are not among that."""
    sizes = [gather.sizes(scan, kept.expression.columns[0].name, in_order=in_order) for kept in scan.kept]
    for number in scan.classes:
        if _is_hidden(scan, classes[number]):
            key_class = classes[number]
            if key_class.exact:
                sizes.append(_key_sizes(key_class, (scan,), gather))
            else:
                sizes.append(_hash_sizes(key_class, scan, gather, in_order=in_order))
    return tuple(sizes)


def _hash_sizes(key_class: KeyClass, scan: Scan, gather: _Gather, *, in_order: bool) -> BytesByBatch:
    """Bytes of a hashed key beside what is kept of a row: eight the first time in a batch, then a mark."""
    member = key_class.member(scan.alias)
    if member is None or not member.is_plain:
        return HASH_SIZES
    known = gather.column(scan, member.columns[0].name)
    if known.distinct is None or known.sizes is None:
        return HASH_SIZES
    distinct = max(known.distinct.value, 1.0)
    one, ten, hundred, thousand, most = (
        min(8.0, 8.0 * distinct / rows * -float(np.expm1(-rows / distinct)) + min(each, log(distinct + 1) / log(2) / 8))
        for rows, each in zip(BATCH_ROWS, (known.in_order if in_order else None) or known.sizes, strict=True)
    )
    return one, ten, hundred, thousand, most


def _is_hidden(scan: Scan, key_class: KeyClass) -> bool:
    """Whether the key of a row is not among what is kept of it."""
    member = key_class.member(scan.alias)
    assert member is not None
    return not (key_class.exact and member.is_plain and member.columns[0].flat in {kept.name for kept in scan.kept})


def _key_sizes(key_class: KeyClass, scans: Sequence[Scan], gather: _Gather) -> BytesByBatch:
    """Bytes of a key on a link: of the first member, or of a hash."""
    if not key_class.exact:
        return HASH_SIZES
    scan, member = next((scan, member) for scan in scans if (member := key_class.member(scan.alias)) is not None)
    return gather.sizes(scan, member.columns[0].name)


def _domain(key_class: KeyClass, scans: Sequence[Scan], gather: _Gather) -> Domain:
    """The common cells of all members of a key class."""
    members = np.array([key_class.member(scan.alias) is not None for scan in scans])
    histograms: dict[int, Histogram] = {}
    distinct: dict[int, float] = {}
    for number, scan in enumerate(scans):
        member = key_class.member(scan.alias)
        if member is None:
            continue
        name = member.columns[0].name
        found = gather.histogram(scan, name)
        if found is not None and found.bins:
            histograms[number] = found
        else:
            distinct[number] = gather.distinct(scan, name)
    if not histograms:
        return _nested(distinct, members)
    return aligned(histograms, distinct, members)


def _nested(distinct: Mapping[int, float], members: NDArray[np.bool_]) -> Domain:
    """Nothing is known but counts: the values of a smaller set are among those of a larger one, all equally often."""
    edges = sorted(set(distinct.values()))
    size = np.diff([0.0, *edges])
    shares = np.zeros((len(members), len(edges)))
    for number, count in distinct.items():
        inside = np.array(edges) <= count
        shares[number, inside] = size[inside] / count
    known = np.minimum(edges, 2.0**62)
    low = np.concatenate([[0.0], known[:-1]]).astype(np.int64) if edges else np.empty(0, np.int64)
    high = known.astype(np.int64) - 1
    return Domain(low, np.maximum(high, low), size, shares, members, is_known=False)


def aligned(histograms: Mapping[int, Histogram], distinct: Mapping[int, float], members: NDArray[np.bool_]) -> Domain:
    """Cells between all edges of all histograms; the rows of a bin spread evenly over it."""
    bins = [bin_ for histogram in histograms.values() for bin_ in histogram.bins]
    top = max(bin_.high for bin_ in bins)
    low = np.array(sorted({edge for bin_ in bins for edge in (bin_.low, bin_.high + 1) if edge <= top}), np.int64)
    high = np.append(low[1:] - 1, top)
    values = (high.view(np.uint64) - low.view(np.uint64)).astype(float) + 1.0  # up to 2^64 of them in a cell
    shares = np.zeros((len(members), len(low)))
    sizes = np.zeros((len(members), len(low)))
    for number, histogram in histograms.items():
        for bin_ in histogram.bins:
            first, last = np.searchsorted(low, bin_.low), np.searchsorted(high, bin_.high, "left")
            width = values[first : last + 1] / values[first : last + 1].sum()
            shares[number, first : last + 1] += bin_.share * width
            sizes[number, first : last + 1] += bin_.distinct * width
    size = np.maximum(sizes.max(axis=0), 1e-9)
    used = size > 1e-9
    for number, count in distinct.items():
        total = size[used].sum()
        shares[number, used] = size[used] / total * min(1.0, total / max(count, 1.0))
    size = np.where((high == low) & used, 1.0, size)
    return Domain(low[used], high[used], size[used], shares[:, used], members)
