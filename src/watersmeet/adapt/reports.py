"""What sites report to whoever decides, and how many bytes that takes.

A site keeps averages and sketches of its own streams. It sends a report when one of its figures has moved, and is asked
for one when those of another site have: at every look at costs. Rates and the shares that pass filters are a few bytes
and sent always. Values are sent where whoever decides knows others: for the first time, after a drift, while few rows
were known, and every `STALE_HALF_LIVES` half-lives.
"""

import base64
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace

import numpy as np
import pyarrow as pa

from watersmeet.adapt.chance import stream_without_chance
from watersmeet.adapt.monitor import LEAST_ROWS, FittedLink, MonitorState, fitted_links, statistics, with_fitted
from watersmeet.program.storage.codec import fits, from_json, to_json
from watersmeet.program.storage.packing import pack_rows, unpack_rows
from watersmeet.stats.model import Bin, Histogram, Number, Origin, Stats, StreamStats
from watersmeet.stats.sketches import StreamSketch
from watersmeet.stats.yaml import filled
from watersmeet.topology.model import Topology

STALE_HALF_LIVES = 60
_FEW_ROWS = 1_000  # as long as values come from fewer, they are sent again when there are some times as many
_TIMES_AS_MANY = 4
_MOST_BYTES = 1 << 24  # of a report when it is unpacked
_OWN_BYTES = 24  # a report: what of, a rate, how many rows it comes from
_NUMBER_BYTES = 8  # a share, a size or a figure of a link
_SHARES = 1_000_000.0  # shares are sent as whole parts of it
_DISTINCT = 10.0  # and different values as tenths
_BINS = pa.schema([(name, pa.int64()) for name in ("low", "width", "distinct", "share")])


@dataclass(frozen=True)
class Report:
    """What whoever decides knows of the values of a stream."""

    sketch: StreamSketch  # as it was at the site
    values: StreamStats  # without what chance explains
    drifts: int
    at_s: float


def gathered(
    monitor: MonitorState, known: Mapping[str, Report], topology: Topology, now_s: float
) -> tuple[dict[str, Report], dict[str, int]]:
    """All reports after a look at costs, and the bytes that each site has sent for it."""
    reports, sizes = dict(known), dict[str, int]()
    for stream in monitor.rates:
        site = topology.stream(stream).site or ""
        size = _OWN_BYTES
        if (sketches := monitor.sketches.get(stream)) is not None and sketches.whole_rows >= LEAST_ROWS:
            whole = sketches.whole
            size += _NUMBER_BYTES * len(whole.selectivities(Origin.OBSERVED))
            before = known.get(stream)
            if before is None or _are_others(before, whole, sketches.drifts, now_s - before.at_s, monitor.half_life_s):
                values = stream_without_chance(whole.stats(Origin.OBSERVED, now_s), whole.sketched)
                reports[stream] = Report(whole, values, sketches.drifts, now_s)
                size += packed_size(values)
        sizes[site] = sizes.get(site, 0) + size
    for pair, transfers in monitor.transfers.items():
        if transfers.fitted(topology.link(*sorted(pair))) is not None:
            sizes[min(pair)] = sizes.get(min(pair), 0) + _OWN_BYTES
    return reports, sizes


def _are_others(before: Report, whole: StreamSketch, drifts: int, age_s: float, half_life_s: float) -> bool:
    few = before.sketch.sketched < _FEW_ROWS and whole.sketched >= _TIMES_AS_MANY * before.sketch.sketched
    return (
        few or drifts != before.drifts or age_s >= STALE_HALF_LIVES * half_life_s or whole.drifted_from(before.sketch)
    )


def packed_size(values: StreamStats) -> int:
    """What the values of a stream take on a link, packed as rows are: bins as whole numbers, and the sizes of columns.

    >>> packed_size(StreamStats())
    0
    """
    size = 0
    for column in values.columns.values():
        size += _NUMBER_BYTES * sum(1 if entry is None else len(entry) for entry in (column.sizes, column.in_order))
        if column.histogram is not None:
            size += len(_packed_bins(column.histogram))
    return size


def _packed_bins(histogram: Histogram) -> bytes:
    bins = histogram.bins
    low = np.array([bin_.low for bin_ in bins], np.int64)
    columns = [
        np.diff(low, prepend=low[:1]),
        np.array([bin_.high - bin_.low for bin_ in bins], np.int64),
        np.array([round(_DISTINCT * min(bin_.distinct, 2.0**53)) for bin_ in bins], np.int64),
        np.array([round(bin_.share * _SHARES) for bin_ in bins], np.int64),
    ]
    return pack_rows(pa.table(columns, schema=_BINS))


def _unpacked_bins(packed: bytes, first: int, count: int) -> tuple[Bin, ...]:
    table = unpack_rows(packed, _BINS, count)
    away, widths, distinct, shares = (table.column(name).to_numpy() for name in _BINS.names)
    lows, whole = first + np.cumsum(away), max(int(shares.sum()), 1)
    found = zip(lows.tolist(), widths.tolist(), distinct.tolist(), shares.tolist(), strict=True)
    return tuple(Bin(low, low + width, many / _DISTINCT, share / whole) for low, width, many, share in found)


@dataclass(frozen=True)
class ObservedFigures:
    """What a site has observed, as it tells whoever decides: rates always, values where that one knows others."""

    at_s: float
    streams: Mapping[str, StreamStats]
    shares: Mapping[str, Number]  # of rows that pass conditions on its streams
    links: tuple[tuple[str, str, float, float | None], ...] = ()  # that are not as given: latency and bandwidth


def figures_of_site(
    monitor: MonitorState, known: Mapping[str, Report], topology: Topology, now_s: float
) -> tuple[ObservedFigures, dict[str, Report]]:
    """What a site tells somebody who knows some reports, and what that one knows then."""
    reports, _ = gathered(monitor, known, topology, now_s)
    values = {stream: StreamStats() for stream in monitor.sketches}
    new = {stream: report.values for stream, report in reports.items() if report is not known.get(stream)}
    found = statistics(monitor, Stats(), now_s, {**values, **new})
    links = tuple((min(pair), max(pair), *fitted_link) for pair, fitted_link in fitted_links(monitor, topology).items())
    return ObservedFigures(now_s, found.streams, found.selectivities, links), reports


def pack_figures(figures: ObservedFigures) -> str:
    """Figures as text: histograms packed as rows on links are, the rest as JSON, compressed."""
    packed: list[bytes] = []
    places: list[tuple[str, str, int, int, int]] = []  # stream, column, first value, bins, bytes
    streams: dict[str, StreamStats] = {}
    for stream, stats in figures.streams.items():
        columns = dict(stats.columns)
        for name, column in stats.columns.items():
            if column.histogram is not None and column.histogram.bins:
                bins = column.histogram.bins
                packed.append(_packed_bins(column.histogram))
                places.append((stream, name, bins[0].low, len(bins), len(packed[-1])))
                columns[name] = replace(column, histogram=replace(column.histogram, bins=()))
        streams[stream] = replace(stats, columns=columns)
    head = to_json(_Packed(replace(figures, streams=streams), tuple(places))).encode()
    return base64.b85encode(zlib.compress(len(head).to_bytes(4, "little") + head + b"".join(packed))).decode()


def unpack_figures(text: str) -> ObservedFigures:
    """The figures that `pack_figures` wrote; ValueError where they are damaged."""
    try:
        data = zlib.decompressobj().decompress(base64.b85decode(text), _MOST_BYTES)
        end = 4 + int.from_bytes(data[:4], "little")
        found = from_json(_Packed, data[4:end].decode())
        streams = dict(found.figures.streams)
        for stream, name, first, count, size in found.places:
            columns = dict(streams[stream].columns)
            histogram = columns[name].histogram
            assert histogram is not None
            bins = _unpacked_bins(data[end : end + size], first, count)
            columns[name] = replace(columns[name], histogram=replace(histogram, bins=bins))
            streams[stream] = replace(streams[stream], columns=columns)
            end += size
        for stream, stats in streams.items():
            streams[stream] = replace(stats, busy={float(length): share for length, share in stats.busy.items()})
        figures = replace(found.figures, streams=streams)
    except (zlib.error, TypeError, KeyError, AttributeError, AssertionError, OverflowError, RecursionError) as error:
        raise ValueError(f"a report of a site is damaged: {error}") from None
    if not fits(ObservedFigures, figures) or not _is_finite(figures):
        raise ValueError("a report of a site is damaged: it has a figure that is none")
    return figures


def _is_finite(value: object) -> bool:
    """Whether all figures in a value are finite, and none that is counted or measured is negative."""
    match value:
        case float():
            return math.isfinite(value)
        case Number(value=number):
            return math.isfinite(number) and number >= 0
        case Mapping():
            return all(map(_is_finite, value.values()))
        case tuple():
            return all(map(_is_finite, value))
    return not is_dataclass(value) or all(_is_finite(getattr(value, field_.name)) for field_ in fields(value))


@dataclass(frozen=True)
class _Packed:
    """Figures without bins, and where those are."""

    figures: ObservedFigures
    places: tuple[tuple[str, str, int, int, int], ...]


@dataclass(frozen=True)
class Heard:
    """What whoever decides has heard from sites."""

    streams: Mapping[str, StreamStats] = field(default_factory=dict)
    shares: Mapping[str, Number] = field(default_factory=dict)
    links: Mapping[str, tuple[tuple[str, str, float, float | None], ...]] = field(default_factory=dict)  # by site

    def with_figures(self, site: str, figures: ObservedFigures) -> "Heard":
        """With what a site tells; what it has left out is as it was."""
        streams = dict(self.streams)
        for stream, stats in figures.streams.items():
            before = streams.get(stream, StreamStats())
            streams[stream] = stats if stats.columns else replace(before, rate=stats.rate)
        return Heard(streams, {**self.shares, **figures.shares}, {**self.links, site: figures.links})

    def stats(self, given: Stats) -> Stats:
        """Statistics for planners: what is known, and where nothing is, what was given."""
        return filled(Stats(self.streams, self.shares), given)

    def topology(self, given: Topology) -> Topology:
        """The topology with links as sites see them; where two differ, the slower way counts."""
        fitted: dict[frozenset[str], FittedLink] = {}
        for _, links in sorted(self.links.items()):
            for first, second, latency_s, bits in links:
                pair, known = frozenset((first, second)), fitted.get(frozenset((first, second)))
                if known is None or known[0] < latency_s:
                    fitted[pair] = (latency_s, bits)
        return with_fitted(given, fitted)
