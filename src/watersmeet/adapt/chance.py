"""What chance alone makes of a histogram is taken out of it, so that no plan is fitted to a sample.

Counts of values that are equally popular differ by about their square root. Values far off are popular, and stay as
they were counted. The others are moved towards their mean by the part of their variance that chance explains (James and
Stein): all the way where chance explains all of it, hardly where values really differ.
"""

from dataclasses import replace

import numpy as np

from watersmeet.stats.model import Histogram, StreamStats

_POPULAR_ERRORS = 4.0  # standard errors above the median from which on a value is popular by itself
_FEWEST = 4  # values whose variance says something


def without_chance(histogram: Histogram, rows: int) -> Histogram:
    """A histogram of so many rows, in which values that chance may have told apart are alike.

    >>> from watersmeet.stats.model import Bin
    >>> shares = [0.09, 0.11, 0.1, 0.08, 0.12, 0.5]
    >>> drawn = Histogram(tuple(Bin(value, value, 1.0, share) for value, share in enumerate(shares)))
    >>> [round(one.share, 3) for one in without_chance(drawn, 100).bins]
    [0.1, 0.1, 0.1, 0.1, 0.1, 0.5]
    """
    single = np.array([bin_.low == bin_.high for bin_ in histogram.bins], bool)
    if rows <= 0 or single.sum() < _FEWEST:
        return histogram
    counts = np.array([bin_.share for bin_ in histogram.bins]) * rows
    middle = float(np.median(counts[single]))
    alike = single & (counts <= middle + _POPULAR_ERRORS * np.sqrt(max(middle, 1.0)))
    if alike.sum() < _FEWEST:
        return histogram
    mean, variance = float(counts[alike].mean()), float(counts[alike].var(ddof=1))
    kept = max(1.0 - mean / variance, 0.0) if variance > 0 else 0.0
    shares = np.where(alike, mean + kept * (counts - mean), counts) / rows
    bins = tuple(replace(bin_, share=float(share)) for bin_, share in zip(histogram.bins, shares, strict=True))
    return replace(histogram, bins=bins)


def stream_without_chance(values: StreamStats, rows: int) -> StreamStats:
    """The figures of a stream, of whose values so many rows were seen."""
    columns = {
        name: column if column.histogram is None else replace(column, histogram=without_chance(column.histogram, rows))
        for name, column in values.columns.items()
    }
    return replace(values, columns=columns)
