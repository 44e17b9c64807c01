"""Rectangles and quadratic Bézier curves, in inches from the top left."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle by its corners."""

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def around(cls, x: float, y: float, width: float, height: float) -> "Rect":
        """A rectangle by its centre and size."""
        return cls(x - width / 2, y - height / 2, x + width / 2, y + height / 2)

    @classmethod
    def covering(cls, rects: Iterable["Rect"], points: F64) -> "Rect":
        """The smallest rectangle that has all of the given rectangles and points in it."""
        corners = [(x, y) for rect in rects for x, y in ((rect.left, rect.top), (rect.right, rect.bottom))]
        every = np.concatenate([np.array(corners).reshape(-1, 2), points])
        left, top = every.min(axis=0)
        right, bottom = every.max(axis=0)
        return cls(float(left), float(top), float(right), float(bottom))

    @property
    def centre(self) -> tuple[float, float]:
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.bottom - self.top

    def moved(self, x: float, y: float) -> "Rect":
        return Rect(self.left + x, self.top + y, self.right + x, self.bottom + y)

    def grown(self, x: float, y: float) -> "Rect":
        return Rect(self.left - x, self.top - y, self.right + x, self.bottom + y)

    def common(self, other: "Rect") -> float:
        """The area that two rectangles share."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return width * height if width > 0 and height > 0 else 0.0

    def holds(self, points: F64) -> NDArray[np.bool_]:
        """Which points lie inside."""
        x, y = points[:, 0], points[:, 1]
        inside: NDArray[np.bool_] = (x > self.left) & (x < self.right) & (y > self.top) & (y < self.bottom)
        return inside


def curve_points(curve: F64, at: F64) -> F64:
    """Points of a curve at parameters from 0, its start, to 1, its end."""
    t = at[:, None]
    points: F64 = (1 - t) ** 2 * curve[0] + 2 * t * (1 - t) * curve[1] + t * t * curve[2]
    return points


def curve_point(curve: F64, t: float) -> F64:
    """The point of a curve at a parameter from 0 to 1."""
    point: F64 = curve_points(curve, np.array([t]))[0]
    return point


def sampled(curve: F64, count: int) -> F64:
    """Points along a curve from its start to its end."""
    return curve_points(curve, np.linspace(0, 1, count))


def sub_curve(curve: F64, start: float, stop: float) -> F64:
    """The part of a curve between two parameters, as a curve."""
    control = (
        (1 - start) * (1 - stop) * curve[0]
        + (start * (1 - stop) + stop * (1 - start)) * curve[1]
        + start * stop * curve[2]
    )
    return np.array([curve_point(curve, start), control, curve_point(curve, stop)])


def chord_length(curve: F64) -> float:
    """The distance between both ends of a curve."""
    return float(np.hypot(*(curve[2] - curve[0])))
