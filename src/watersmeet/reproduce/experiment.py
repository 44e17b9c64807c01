"""An experiment of a paper as a value: its points, how one is run, and what the outcome says about the paper."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from statistics import stdev
from typing import Any

Row = dict[str, Any]  # by column; a figure that was not run is None


@dataclass(frozen=True, slots=True)
class Experiment:
    """Points to run, each to one row or several; functions are of modules, so that other processes can run them too."""

    name: str
    title: str
    paper: str
    keys: tuple[str, ...]  # columns that tell points apart, but for the draw
    figures: tuple[str, ...]  # columns that are measured or published
    points: Callable[[bool], tuple[Any, ...]]  # quick or in full
    run: Callable[[Any], Row | list[Row]]
    plot: Callable[[Sequence[Row], Path], None]
    verdict: Callable[[Sequence[Row]], list[str]]
    published: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unit: str = "tuples/s"
    with_data: Callable[[Path], "Experiment"] | None = None  # the same over a recording in a directory

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a row."""
        return (*self.keys, "draw", *self.figures)


def averaged(rows: Sequence[Row], keys: Sequence[str], figures: Sequence[str]) -> list[Row]:
    """One row for all draws with the same keys: the means over those in which every figure could be run.

    >>> averaged([{"x": 1, "y": 2.0}, {"x": 1, "y": 4.0}, {"x": 1, "y": None}], ["x"], ["y"])
    [{'x': 1, 'y': 3.0}]
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    found = []
    for group in groups.values():
        whole = [row for row in group if all(row[figure] is not None for figure in figures)]
        first = {key: group[0][key] for key in keys}
        found.append(first | {figure: mean(row[figure] for row in whole) for figure in figures})
    return found


def first_draws(points: Sequence[Any], count: int) -> tuple[Any, ...]:
    """The points of the first draws only; points without a number of a draw are of the first.

    >>> from types import SimpleNamespace as Point
    >>> [point.draw for point in first_draws([Point(draw=3), Point(draw=1), Point(draw=2)], 2)]
    [1, 2]
    """
    kept = sorted({getattr(point, "draw", 0) for point in points})[:count]
    return tuple(point for point in points if getattr(point, "draw", 0) in kept)


# Student's t for 95 % by degrees of freedom; the last is taken for more.
_STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_NORMAL = 1.96


def half_width(values: Sequence[float]) -> float | None:
    """Half the 95 % confidence interval of the mean of draws; None for one draw.

    >>> round(half_width([1.0, 2.0, 3.0]), 3), half_width([1.0])
    (2.484, None)
    """
    freedom = len(values) - 1
    if freedom < 1:
        return None
    factor = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else max(_NORMAL, 2.131 - 0.01 * (freedom - 15))
    return float(factor * stdev(values) / len(values) ** 0.5)


def mean(values: Iterable[Any]) -> Any:
    """The mean of numbers, None of nothing; what is no number must be the same throughout."""
    known = list(values)
    if not known:
        return None
    return known[0] if isinstance(known[0], str) else fsum(known) / len(known)


def finding(agrees: bool, sentence: str) -> str:
    """A sentence of a verdict, marked by whether the outcome agrees with the paper."""
    return f"{'agrees' if agrees else 'differs'}: {sentence}"
