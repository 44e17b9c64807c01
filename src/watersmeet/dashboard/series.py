"""Figures over time in bounded memory: each is kept by the second for an hour, and coarser for a month."""

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

TIERS = ((1, 3_600), (15, 5_760), (300, 8_640))  # seconds in a bucket, and how many buckets are kept
Kind: TypeAlias = Literal["sum", "last"]
Key: TypeAlias = tuple[str, ...]  # what is measured, and of what


@dataclass
class Series:
    """One figure: counts are added up in a bucket, levels are the last one in it."""

    kind: Kind
    total: float = 0.0  # of counts, since they are kept; of a level, the last one
    tiers: tuple[dict[int, float], ...] = field(default_factory=lambda: tuple({} for _ in TIERS))
    changed: set[tuple[int, int]] = field(default_factory=set)  # tier and bucket, since it was last stored

    def add(self, at: float, value: float) -> None:
        """Take a figure of an instant in seconds."""
        self.total = self.total + value if self.kind == "sum" else value
        for tier, ((step, most), buckets) in enumerate(zip(TIERS, self.tiers, strict=True)):
            bucket = int(at // step)
            buckets[bucket] = buckets.get(bucket, 0.0) + value if self.kind == "sum" else value
            self.changed.add((tier, bucket))
            if len(buckets) > most:
                oldest = next(iter(buckets))
                del buckets[oldest]
                self.changed.discard((tier, oldest))

    def rate(self, now: float, seconds: int) -> float:
        """Counts a second over the last whole seconds."""
        last = int(now)
        buckets = self.tiers[0]
        return sum(buckets.get(second, 0.0) for second in range(last - seconds, last)) / seconds

    def between(self, start: float, end: float) -> float:
        """What was counted in a time, as exactly as it is still known."""
        tier = tier_for(start, end, end)
        step, _ = TIERS[tier]
        first, last = int(start // step), math.ceil(end / step)
        buckets = self.tiers[tier]
        if last - first > len(buckets):
            return sum(value for bucket, value in buckets.items() if first <= bucket < last)
        return sum(buckets.get(bucket, 0.0) for bucket in range(first, last))

    def level(self, at: float) -> float | None:
        """The last level at a time; where that is not known any more, the first one after it."""
        for (step, _), buckets in zip(TIERS, self.tiers, strict=True):
            known = list(buckets)
            if known and known[0] * step <= at:
                return buckets[known[bisect_right(known, at // step) - 1]]
        return next((buckets[next(iter(buckets))] for buckets in self.tiers if buckets), None)

    def points(self, grid: "Grid") -> list[float | None]:
        """The figure on a grid of times: counts a second, or levels where there are any."""
        found: list[float | None] = [0.0 if self.kind == "sum" else None] * grid.count
        step, _ = TIERS[grid.tier]
        buckets = self.tiers[grid.tier]
        shown = range(math.ceil(grid.start / step), math.ceil((grid.start + grid.count * grid.step) / step))
        for bucket in shown if len(shown) < len(buckets) else list(buckets):
            value = buckets.get(bucket)
            place = (bucket * step - grid.start) // grid.step
            if value is not None and 0 <= place < grid.count:
                if self.kind == "sum":
                    found[place] = (found[place] or 0.0) + value / grid.step
                else:
                    found[place] = value
        return found


@dataclass(frozen=True, slots=True)
class Grid:
    """Instants at the same distance, in whole seconds, over buckets of a tier."""

    start: int
    step: int
    count: int
    tier: int

    @property
    def times(self) -> list[int]:
        return [self.start + place * self.step for place in range(self.count)]


def tier_for(start: float, end: float, latest: float) -> int:
    """The finest tier that still has the start of a time."""
    for tier, (step, most) in enumerate(TIERS):
        if latest - start <= step * most and (end - start) / step <= most:
            return tier
    return len(TIERS) - 1


def grid_over(start: float, end: float, latest: float, points: int) -> Grid:
    """A grid of at most so many points over a time.

    >>> grid_over(1000, 1600, 1600, 300)
    Grid(start=1000, step=2, count=300, tier=0)
    """
    tier = tier_for(start, end, latest)
    unit, _ = TIERS[tier]
    step = max(1, math.ceil((end - start) / points / unit)) * unit
    first = int(start // step) * step
    return Grid(first, step, max(1, math.ceil((end - first) / step)), tier)
