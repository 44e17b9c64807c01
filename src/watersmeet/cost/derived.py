"""What to expect of the rows of derived streams (views, subqueries, UNION ALL), from what is known of what they read.

A join gives R(A) rows a second for all its aliases A (see cost.workload). GROUP BY gives a row for each group that a
window has, DISTINCT one for each combination of values in an hour. Rows of outer joins that have no partner are those
to which no combination falls, where these fall at random. Columns have the values of the columns that they are made of.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import expm1, inf, prod

import numpy as np

from watersmeet.cost.from_statistics import DEFAULTS, UNBOUNDED_S, MissingStatistic, aligned, workload_of
from watersmeet.cost.workload import F64, Domain, Workload
from watersmeet.plan.shape import QueryShape, shape_of
from watersmeet.query.model import EVENT_TIME, GROUP, Column, Grouping, JoinQuery, Output, SelectItem, key_of_group
from watersmeet.query.outer import RelationKind, branches_of
from watersmeet.query.windows import AsOf
from watersmeet.stats.model import Bin, BytesByBatch, ColumnStats, Histogram, Number, Origin, Stats, StreamStats
from watersmeet.stats.yaml import filled

_ASSUMED = 0.5  # the confidence of what rests on defaults
_SAME_IN_BATCH: BytesByBatch = (7.0, 0.8, 0.3, 0.3, 0.3)  # of a window's ends and of constants
_RESULT: BytesByBatch = (8.0, 5.0, 4.0, 4.0, 4.0)  # of an aggregate


def derived_stats(outputs: Iterable[Output], stats: Stats, columns: Mapping[str, Sequence[str]]) -> Stats:
    """The statistics with those of derived streams, as far as the rates of all that they read are known.

    `outputs` are in the order in which they depend on each other; figures that are given for a view stay.
    """
    for output in outputs:
        name = output.target.name
        if not output.target.is_stream or stats.stream(name).rate is not None:
            continue
        branches = [_branch(query, stats, columns) for _, query in output.branches]
        known = [branch for branch in branches if branch is not None]
        if len(known) == len(branches):
            stats = filled(stats, Stats({name: _united(output.columns, known)}))
    return stats


@dataclass(frozen=True)
class _Rows:
    """The rows of a SELECT: how many a second, and their columns in order."""

    rate: float
    confidence: float
    columns: tuple[ColumnStats, ...]
    batch_interval: Number | None
    busy: Mapping[float, float]


def _branch(query: JoinQuery, stats: Stats, columns: Mapping[str, Sequence[str]]) -> _Rows | None:
    sources = [source for source in query.sources if not isinstance(source.window, AsOf)]
    rates = [stats.stream(source.stream).rate for source in sources]
    if any(rate is None for rate in rates):
        return None
    confidence = min((rate.confidence for rate in rates if rate is not None), default=1.0)
    figures = _Figures(query, stats, columns)
    rate = figures.rate(query) if query.outer is None else _outer_rate(query, figures)
    confidence = min(confidence, _ASSUMED) if figures.is_assumed else confidence
    intervals = [number for source in sources if (number := stats.stream(source.stream).batch_interval) is not None]
    interval = min(intervals, key=lambda interval: interval.value, default=None)
    items = [item for item in query.output if item.name != EVENT_TIME]
    if query.grouping is None:
        found = tuple(figures.column(item) for item in items)
        if query.distinct:
            different = prod(
                column.distinct.value if column.distinct else DEFAULTS["distinct values"] for column in found
            )
            rate = _hit(max(different, 1.0), rate * UNBOUNDED_S) / UNBOUNDED_S
        return _Rows(rate, confidence, found, interval, {})
    window = query.grouping.output_window
    slide_s, answers = window.slide_us / 1e6, rate * window.length_us / 1e6
    records = figures.main.records
    assert records is not None, "a query with groups has records"
    drawn, spread = min(answers, records.key_rows), figures.key_spread(query.grouping)
    groups = _hit(records.groups, drawn) if spread is None else sum(_hits(spread, drawn))
    for having in query.grouping.having:
        groups *= figures.selectivity(having.sql)
    groups = min(groups, query.grouping.limit or inf)
    found = tuple(figures.group_column(query.grouping, item, answers, slide_s) for item in items)
    return _Rows(groups / slide_s, confidence, found, interval, {slide_s: -expm1(-groups)})


def _hits(histogram: Histogram, drawn: float) -> list[float]:
    """How many values of each bin are among so many that are drawn."""
    return [_hit(max(bin_.distinct, 1e-9), drawn * bin_.share) for bin_ in histogram.bins]


def _hit(many: float, drawn: float) -> float:
    """How many of some values are drawn at least once."""
    return many * -expm1(-drawn / many)


class _Figures:
    """The joins of a SELECT in figures."""

    def __init__(self, query: JoinQuery, stats: Stats, columns: Mapping[str, Sequence[str]]) -> None:
        self._query, self._stats, self._columns = query, stats, columns
        self.is_assumed = False
        self.shape = shape_of(query, columns)
        self.main = self._workload(query, self.shape)

    def _workload(self, query: JoinQuery, shape: QueryShape) -> Workload:
        def made(defaults: bool) -> Workload:
            return workload_of(
                *(shape.scans, shape.classes, shape.output, ("",) * len(shape.scans), None, self._stats),
                conditions=shape.conditions,
                defaults=defaults,
                query=query,
            )

        try:
            return made(False)
        except MissingStatistic:
            self.is_assumed = True
            return made(True)

    def selectivity(self, sql: str) -> float:
        known = self._stats.selectivities.get(sql)
        return 1.0 if known is None else known.value

    def rate(self, query: JoinQuery) -> float:
        """Combinations a second of an inner join that its predicates leave."""
        is_main = query is self._query
        shape = self.shape if is_main else shape_of(query, self._columns)
        workload = self.main if is_main else self._workload(query, shape)
        applied = {condition.expression for condition in shape.conditions}
        left = prod(self.selectivity(predicate.sql) for predicate in query.residuals if predicate not in applied)
        heads = [number for number, scan in enumerate(shape.scans) if not isinstance(scan.window, AsOf)]
        everything = (1 << len(shape.scans)) - 1
        return left * sum(workload.head_rate(head, everything) for head in heads)

    def column(self, item: SelectItem) -> ColumnStats:
        """An output column of a join."""
        own = item.expression.columns
        if not own:
            return ColumnStats(_number(1.0), None, _SAME_IN_BATCH)
        known = [self._source(column) for column in own]
        if item.expression.is_plain:
            return self._joined(own[0]) or known[0]
        counts = [column.distinct.value for column in known if column.distinct is not None]
        distinct = _number(prod(counts)) if len(counts) == len(known) else None
        return ColumnStats(distinct, None, known[0].sizes)

    def group_column(self, grouping: Grouping, item: SelectItem, answers: float, slide_s: float) -> ColumnStats:
        """An output column of groups, of which a window has so many answers."""
        own = item.expression.columns
        if not own:
            return ColumnStats(_number(1.0), None, _SAME_IN_BATCH)
        keys = {key_of_group(number): number for number in range(grouping.keys)}
        if any(column not in keys for column in own):
            is_window = all(column.alias == GROUP and column in grouping.own_columns for column in own)
            windows = _number(max(UNBOUNDED_S / slide_s, 1.0))
            return ColumnStats(windows, None, _SAME_IN_BATCH) if is_window else ColumnStats(None, None, _RESULT)
        found, spread = self.column(self._query.select[keys[own[0]]]), self.key_spread(grouping)
        if not item.expression.is_plain or spread is None:
            return ColumnStats(found.distinct, None, found.sizes)
        return ColumnStats(found.distinct, _once_a_window(spread, answers), found.sizes)

    def key_spread(self, grouping: Grouping) -> Histogram | None:
        """How answers spread over the values of the key of groups, if there is just one and that is known."""
        return self.column(self._query.select[0]).histogram if grouping.keys == 1 else None

    def without_partner(self, some: Sequence[str], rate: float, together: Sequence[str], partners: float) -> float:
        """The share of combinations of some aliases that are in none of those of more, by cells of a key of both."""
        if rate <= 0 or partners <= 0:
            return 1.0
        one, both = self.main.mask(some), self.main.mask(together)
        tied = self.main.shared(one, both & ~one)
        own, other = (self.main.cell_shares(tied[0], mask) if tied else np.ones(1) for mask in (one, both))
        used = own > 0
        return float((own[used] * np.exp(-(partners * other[used]) / (rate * own[used]))).sum())

    def _source(self, column: Column) -> ColumnStats:
        if column.alias not in self._query.aliases:
            return ColumnStats()
        known = self._stats.stream(self._query.source(column.alias).stream).columns
        return next((stats for key, stats in known.items() if key.casefold() == column.name.casefold()), ColumnStats())

    def _joined(self, column: Column) -> ColumnStats | None:
        """A column that is a key of the join: its values are those that all members of the key have."""
        if self._query.outer is not None:
            return None
        for key_class in self.shape.classes:
            member = key_class.member(column.alias)
            if member is not None and member.is_plain and member.columns[0] == column:
                domain = self.main.domains[key_class.number]
                shares = self.main.cell_shares(key_class.number, (1 << len(self.shape.scans)) - 1)
                own = self._source(column)
                different = float(domain.size[shares > 0].sum())
                histogram = _histogram(domain, shares) if domain.is_known and own.histogram is not None else None
                return ColumnStats(_number(max(different, 1.0)), histogram, own.sizes)
        return None


def _outer_rate(query: JoinQuery, figures: _Figures) -> float:
    """Rows a second of a query with outer joins, EXISTS or NOT EXISTS."""
    expanded = branches_of(query)
    branches = [figures.rate(branch.query) for branch in expanded.branches]
    rates: list[float] = []
    for relation in expanded.relations:
        of = rates[relation.of] if relation.of >= 0 else 0.0
        lonely = 1.0
        for matcher in relation.by:
            other = expanded.relations[matcher.relation]
            lonely *= figures.without_partner(relation.aliases, of, other.aliases, branches[other.branch])
        match relation.kind:
            case RelationKind.ALL:
                rates.append(branches[relation.branch])
            case RelationKind.PART:
                whole = branches[expanded.relations[relation.of].branch]
                rates.append(branches[relation.branch] * (of / whole if whole > 0 else 0.0))
            case RelationKind.UNMATCHED:
                rates.append(of * lonely)
            case RelationKind.MATCHED:
                rates.append(of * (1 - lonely))
    return sum(rate for rate, relation in zip(rates, expanded.relations, strict=True) if relation.is_output)


def _once_a_window(histogram: Histogram, drawn: float) -> Histogram:
    """How rows spread where a value comes at most once of so many that are drawn."""
    found = _hits(histogram, drawn)
    total = sum(found)
    if total <= 0:
        return histogram
    bins = (
        Bin(bin_.low, bin_.high, bin_.distinct, count / total)
        for bin_, count in zip(histogram.bins, found, strict=True)
    )
    return Histogram(tuple(bins), Origin.ESTIMATED, histogram.confidence, histogram.taken_at)


def _histogram(domain: Domain, shares: F64) -> Histogram | None:
    used = np.flatnonzero(shares > 0)
    if not len(used):
        return None
    total = float(shares.sum())
    bins = (
        Bin(int(domain.low[cell]), int(domain.high[cell]), float(domain.size[cell]), float(shares[cell]) / total)
        for cell in used
    )
    return Histogram(tuple(bins), Origin.ESTIMATED)


def _number(value: float) -> Number:
    return Number(value, Origin.ESTIMATED)


def _united(names: Sequence[str], branches: Sequence[_Rows]) -> StreamStats:
    """The rows of all branches of a UNION ALL."""
    rate = sum(branch.rate for branch in branches)
    confidence = min(branch.confidence for branch in branches)
    weights = np.array([branch.rate / rate if rate > 0 else 1 / len(branches) for branch in branches])
    columns = {
        name: _mixed([branch.columns[number] for branch in branches], weights) for number, name in enumerate(names)
    }
    intervals = [branch.batch_interval for branch in branches if branch.batch_interval is not None]
    return StreamStats(
        rate=Number(rate, Origin.ESTIMATED, confidence),
        columns=columns,
        batch_interval=min(intervals, key=lambda interval: interval.value, default=None),
        busy=branches[0].busy if len(branches) == 1 else {},
    )


def _mixed(columns: Sequence[ColumnStats], weights: F64) -> ColumnStats:
    """A column whose rows are of several columns in turn, the values of a smaller set among those of a larger one."""
    if len(columns) == 1:
        return columns[0]
    counts = [column.distinct.value for column in columns if column.distinct is not None]
    distinct = _number(max(counts)) if len(counts) == len(columns) else None
    histograms = {number: column.histogram for number, column in enumerate(columns) if column.histogram is not None}
    histogram = None
    if len(histograms) == len(columns):
        domain = aligned(histograms, {}, np.ones(len(columns), bool))
        histogram = _histogram(domain, weights @ domain.shares)
    sizes = [column.sizes for column in columns if column.sizes is not None]
    if len(sizes) < len(columns):
        return ColumnStats(distinct, histogram)
    small, ten, hundred, thousand, large = (weights @ np.array(sizes)).tolist()
    return ColumnStats(distinct, histogram, (small, ten, hundred, thousand, large))
