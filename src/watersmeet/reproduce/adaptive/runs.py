"""What the adaptive paper's experiments have in common: their points, their notes, and means with their spread."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from watersmeet.reproduce.adaptive.prototype import PrototypeSetup
from watersmeet.reproduce.experiment import Row

RUNS, QUICK_RUNS = 10, 1
WAYS = (4, 8)
NOTES = (
    "As published: one stream a node, all joined on one attribute, 150 bytes, 100 tuples/s but for one stream, which "
    "has 50 and 200 in turn from 1.5 s on, every 2 s; selectivity factor 0.01, windows of 500 ms, intervals of 200 ms, "
    "1024 kbps, 5 ms. The prototype is simulated tuple by tuple and message by message; the draw decides the values "
    "and whose rate changes.",
    "Not stated in the paper: c_p and c_u (1 us), the threshold (20%), the size of messages (100 bytes; 400 with "
    "operators). adaptive-sensitivity varies the first three.",
)


@dataclass(frozen=True, slots=True)
class Point:
    """One run: its settings and its draw, which is the seed and decides whose rate changes."""

    settings: PrototypeSetup
    draw: int


def points_of(make: Callable[[int], PrototypeSetup], quick: bool) -> tuple[Point, ...]:
    """All runs of a setting for each number of streams."""
    runs = QUICK_RUNS if quick else RUNS
    return tuple(Point(make(ways), draw) for ways in WAYS for draw in range(runs))


def spread(values: Sequence[float]) -> str:
    """A mean with its standard error.

    >>> spread([1.0, 3.0])
    '2 +- 1'
    """
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{fmean(values):.3g} +- {error:.2g}"


def column(rows: Sequence[Row], name: str, **keys: object) -> list[float]:
    """The known values of a column in rows with some keys."""
    return [row[name] for row in rows if row[name] is not None and all(row[key] == keys[key] for key in keys)]
