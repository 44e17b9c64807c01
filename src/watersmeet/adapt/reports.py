"""What sites report to whoever decides, and how many bytes that takes.

A site keeps averages and sketches of its own streams. It sends a report when one of its figures has moved, and is asked
for one when those of another site have: at every look at costs. Rates and the shares that pass filters are a few bytes
and sent always. Values are sent where whoever decides knows others: for the first time, after a drift, while few rows
were known, and every `STALE_HALF_LIVES` half-lives.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from watersmeet.adapt.monitor import LEAST_ROWS, MonitorState
from watersmeet.program.storage.packing import pack_rows
from watersmeet.stats.model import Origin, StreamStats
from watersmeet.stats.sketches import StreamSketch
from watersmeet.topology.model import Topology

STALE_HALF_LIVES = 60
_FEW_ROWS = 1_000  # as long as values come from fewer, they are sent again when there are some times as many
_TIMES_AS_MANY = 4
_OWN_BYTES = 24  # a report: what of, a rate, how many rows it comes from
_NUMBER_BYTES = 8  # a share, a size or a figure of a link
_SHARES = 10_000.0  # shares are sent as whole parts of it


@dataclass(frozen=True)
class Report:
    """What whoever decides knows of the values of a stream."""

    sketch: StreamSketch  # as it was at the site
    values: StreamStats
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
                values = whole.stats(Origin.OBSERVED, now_s)
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
        size += _NUMBER_BYTES * sum(1 if one is None else len(one) for one in (column.sizes, column.in_order))
        if column.histogram is not None:
            bins = column.histogram.bins
            low = np.array([one.low for one in bins], np.int64)
            table = pa.table(
                {
                    "low": np.diff(low, prepend=low[:1]),
                    "width": np.array([one.high - one.low for one in bins], np.int64),
                    "distinct": np.array([round(min(one.distinct, 2.0**53)) for one in bins], np.int64),
                    "share": np.array([round(one.share * _SHARES) for one in bins], np.int64),
                }
            )
            size += len(pack_rows(table))
    return size
