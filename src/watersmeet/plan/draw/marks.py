"""What can be painted: lines of text, boxes and curves; and how much room a text takes."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from watersmeet.plan.draw.geometry import F64, Rect, chord_length, curve_point, sub_curve
from watersmeet.plan.draw.style import INK, LINE, TEXT_SIZE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FONT = "DejaVu Sans"
POINTS_PER_INCH = 72
LINE_SPACING = 1.45

# The head of an arrow: inches, and multiples of its length
HEAD_LENGTH, HEAD_LENGTH_PER_POINT = 0.1, 0.028
HEAD_HALF_WIDTH = 0.42
HEAD_OVERLAP = 0.2  # how far the line reaches into the head, so that no gap is seen
HEAD_EARLIEST_START = 0.3  # of a short curve


@dataclass(frozen=True, slots=True)
class Words:
    """A line of text, by the middle of its height and its left end, its middle or its right end."""

    x: float
    y: float
    text: str
    size: float = TEXT_SIZE
    colour: str = INK
    bold: bool = False
    align: str = "left"
    level: float = 5

    def paint(self, axes: "Axes") -> None:
        axes.text(
            self.x,
            self.y,
            self.text,
            fontsize=self.size,
            color=self.colour,
            fontweight="bold" if self.bold else "normal",
            ha=self.align,
            va="center_baseline",
            zorder=self.level,
            parse_math=False,
        )


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with round corners."""

    rect: Rect
    fill: str
    line: str = LINE
    width: float = 0.8  # points
    round: float = 0.08
    level: float = 3

    def paint(self, axes: "Axes") -> None:
        from matplotlib.patches import FancyBboxPatch

        rect, corner = self.rect.grown(-self.round, -self.round), self.round
        axes.add_patch(
            FancyBboxPatch(
                (rect.left, rect.top),
                rect.width,
                rect.height,
                boxstyle=f"round,pad={corner},rounding_size={corner}",
                facecolor=self.fill,
                edgecolor=self.line,
                linewidth=self.width,
                zorder=self.level,
            )
        )


@dataclass(frozen=True, slots=True)
class Curve:
    """A quadratic Bézier curve, with a head at its end if it is an arrow."""

    points: tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
    colour: str = LINE
    width: float = 1.0  # points
    head: bool = False
    level: float = 1

    def paint(self, axes: "Axes") -> None:
        from matplotlib.patches import PathPatch, Polygon
        from matplotlib.path import Path as Outline

        line = np.array(self.points)
        if self.head:
            line, head = self._line_and_head()
            axes.add_patch(Polygon(head, closed=True, facecolor=self.colour, linewidth=0, zorder=self.level))
        axes.add_patch(
            PathPatch(
                Outline(line, [Outline.MOVETO, Outline.CURVE3, Outline.CURVE3]),
                facecolor="none",
                edgecolor=self.colour,
                linewidth=self.width,
                capstyle="butt",
                zorder=self.level,
            )
        )

    def _line_and_head(self) -> tuple[F64, F64]:
        """The curve up to its head, and the corners of the head."""
        curve = np.array(self.points)
        length = HEAD_LENGTH + HEAD_LENGTH_PER_POINT * self.width
        head_start = max(HEAD_EARLIEST_START, 1 - length / max(chord_length(curve), 1e-6))
        line = sub_curve(curve, 0.0, 1 - (1 - head_start) * (1 - HEAD_OVERLAP))
        tip = curve[2]
        along = tip - curve_point(curve, head_start)
        along = along / max(float(np.hypot(*along)), 1e-9)
        across = np.array([-along[1], along[0]]) * length * HEAD_HALF_WIDTH
        base = tip - along * length
        return line, np.array([tip, base + across, base - across])


Mark = Words | Box | Curve


@dataclass(frozen=True, slots=True)
class Sheet:
    """All marks, and the size of the paper."""

    width: float
    height: float
    marks: tuple[Mark, ...]


@cache
def text_width(text: str, size: float, bold: bool = False) -> float:
    """Inches that a text takes."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font = FontProperties(family=FONT, size=size, weight="bold" if bold else "normal")
    width, _, _ = TextToPath().get_text_width_height_descent(text, font, ismath=False)
    return float(width) / POINTS_PER_INCH


def line_height(size: float) -> float:
    """Inches from one line of text to the next."""
    return size * LINE_SPACING / POINTS_PER_INCH


def wrapped(items: Iterable[str], max_width: float, size: float) -> list[str]:
    """Items with commas between them, in lines of at most so many inches."""
    lines: list[str] = []
    for item in items:
        joined = f"{lines[-1]}, {item}" if lines else item
        if lines and text_width(joined, size) > max_width:
            lines[-1] += ","
            lines.append(item)
        elif lines:
            lines[-1] = joined
        else:
            lines.append(item)
    return lines
