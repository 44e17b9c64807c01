"""A plan as a picture: sites and what crosses their links above, the ways in which combinations come about below.

Everything is laid out in inches on one sheet, and only then painted, so that SVG and PNG are the same picture and the
same plan is always the same bytes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import cos, floor, log10, pi, sin, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from watersmeet.cost.price import Cost
from watersmeet.errors import InputError, RunError
from watersmeet.plan.explain import partition_text
from watersmeet.plan.nodes import (
    HashParts,
    HeadPlan,
    JoinNode,
    JoinPlan,
    Leaf,
    Linear,
    Method,
    Partition,
    RangeParts,
    Reduction,
    SubPlan,
    Tree,
    ValueParts,
    leaves_of,
)
from watersmeet.program.operators import (
    Announce,
    Flow,
    Form,
    Join,
    Operator,
    Pair,
    Project,
    Purpose,
    Semijoin,
    SiteProgram,
    compile_sites,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".svg", ".png")
MOST_PANELS = 6
NO_OVERLAP_SITES = 6  # up to so many sites the sheet grows until no label lies on another
COLOURS = {
    Purpose.TUPLES: "#0072b2",
    Purpose.KEYS: "#d98200",
    Purpose.FILTERS: "#b2528a",
    Purpose.SYNC: "#00875f",
    Purpose.RESULTS: "#c8400a",
    Purpose.WATERMARKS: "#7d848c",
}
_INK, _SOFT, _LINE, _PAPER = "#1d2733", "#5a6673", "#b7c0ca", "#ffffff"
_SITE_FILL, _QUERY_FILL, _PANEL_FILL = "#f3f6fa", "#fff4e8", "#fafbfc"
_NAME, _TEXT, _SMALL = 11.0, 8.5, 7.5  # points
_MARGIN = 0.35
_WIDEST = 17.0
_SHORTEST_ARROW = 0.75
_LONGEST_LINE = 2.3  # inches of text in the box of a site
_UNITS = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))

F64 = NDArray[np.float64]


def draw(
    plan: JoinPlan,
    cost: Cost | None,
    path: Path,
    *,
    measured: Mapping[tuple[str, str], float] | None = None,
    title: str = "",
    shares: Sequence[float] | None = None,
) -> None:
    """Write a plan as SVG or PNG, with estimated and measured bytes a second on every link.

    `shares` are the parts of all combinations that take each way, where somebody knows them.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"a drawing is an SVG or a PNG file: let the name {path.name!r} end in .svg or .png")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    sheet = sheet_of(plan, cost, dict(measured or {}), title, shares)
    is_svg = path.suffix.lower() == ".svg"
    with matplotlib.rc_context({"svg.hashsalt": "watersmeet", "svg.fonttype": "none", "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(sheet.width, sheet.height), facecolor=_PAPER)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, sheet.width)
        axes.set_ylim(sheet.height, 0)
        for mark in sheet.marks:
            mark.paint(axes)
        try:
            if is_svg:
                about: dict[str, str | None] = {"Date": None, "Creator": "watersmeet", "Title": title or "plan"}
                FigureCanvasSVG(figure).print_svg(path, metadata=about)  # type: ignore[no-untyped-call]
            else:
                software = {"Software": "watersmeet"}
                figure.set_dpi(150)
                FigureCanvasAgg(figure).print_png(path, metadata=software)  # type: ignore[no-untyped-call]
        except OSError as error:
            raise RunError(f"the drawing cannot be written to {path}: {error.strerror or error}") from error


def bytes_text(bytes_s: float, measured: float | None = None) -> str:
    """Bytes a second as people read them, with what was measured in the same unit.

    >>> bytes_text(12_100, 11_800)
    '12.1 kB/s (measured 11.8)'
    """
    scale, unit = next((one for one in _UNITS if max(bytes_s, 1.0) >= one[0] * 0.9995), _UNITS[-1])
    shown = f"{_digits(bytes_s / scale)} {unit}"
    return shown if measured is None else f"{shown} (measured {_digits(measured / scale)})"


def count_text(count: float) -> str:
    """A number of things as people read it.

    >>> count_text(15_234)
    '15.2 k'
    """
    for scale, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= scale * 0.9995:
            return f"{_digits(count / scale)}{unit}"
    return f"{count:.0f}"


def _digits(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 0.05 else f"{value:.2g}"


# What can be painted, in inches from the top left


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle by its corners."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def centre(self) -> tuple[float, float]:
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def moved(self, x: float, y: float) -> "Rect":
        return Rect(self.left + x, self.top + y, self.right + x, self.bottom + y)

    def grown(self, x: float, y: float) -> "Rect":
        return Rect(self.left - x, self.top - y, self.right + x, self.bottom + y)

    def common(self, other: "Rect") -> float:
        """The area that two rectangles share."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.bottom, other.bottom) - max(self.top, other.top)
        return wide * high if wide > 0 and high > 0 else 0.0

    def holds(self, points: F64) -> NDArray[np.bool_]:
        """Which points lie inside."""
        x, y = points[:, 0], points[:, 1]
        inside: NDArray[np.bool_] = (x > self.left) & (x < self.right) & (y > self.top) & (y < self.bottom)
        return inside


def _around(x: float, y: float, width: float, height: float) -> Rect:
    return Rect(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


@dataclass(frozen=True, slots=True)
class Words:
    """A line of text, by the middle of its height and its left end, its middle or its right end."""

    x: float
    y: float
    text: str
    size: float = _TEXT
    colour: str = _INK
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
    line: str = _LINE
    width: float = 0.8
    round: float = 0.08
    level: float = 3

    def paint(self, axes: "Axes") -> None:
        from matplotlib.patches import FancyBboxPatch

        rect, corner = self.rect.grown(-self.round, -self.round), self.round
        axes.add_patch(
            FancyBboxPatch(
                (rect.left, rect.top),
                rect.right - rect.left,
                rect.bottom - rect.top,
                boxstyle=f"round,pad={corner},rounding_size={corner}",
                facecolor=self.fill,
                edgecolor=self.line,
                linewidth=self.width,
                zorder=self.level,
            )
        )


@dataclass(frozen=True, slots=True)
class Curve:
    """A quadratic curve, with a head at its end if it is an arrow."""

    points: tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
    colour: str = _LINE
    width: float = 1.0  # points
    head: bool = False
    level: float = 1

    def paint(self, axes: "Axes") -> None:
        from matplotlib.patches import PathPatch, Polygon
        from matplotlib.path import Path as Outline

        points = np.array(self.points)
        if self.head:
            length = 0.1 + 0.028 * self.width
            total = float(np.hypot(*(points[2] - points[0])))
            tip = points[2].copy()
            stop = max(0.3, 1 - length / max(total, 1e-6))
            points = _part_of(points, 0.0, 1 - (1 - stop) * 0.8)
            along = tip - _at(np.array(self.points), stop)
            along = along / max(float(np.hypot(*along)), 1e-9)
            across = np.array([-along[1], along[0]]) * length * 0.42
            base = tip - along * length
            corners = np.array([tip, base + across, base - across])
            axes.add_patch(Polygon(corners, closed=True, facecolor=self.colour, linewidth=0, zorder=self.level))
        axes.add_patch(
            PathPatch(
                Outline(points, [Outline.MOVETO, Outline.CURVE3, Outline.CURVE3]),
                facecolor="none",
                edgecolor=self.colour,
                linewidth=self.width,
                capstyle="butt",
                zorder=self.level,
            )
        )


Mark = Words | Box | Curve


@dataclass(frozen=True, slots=True)
class Sheet:
    """All that is painted."""

    width: float
    height: float
    marks: tuple[Mark, ...]


@cache
def _wide(text: str, size: float, bold: bool = False) -> float:
    """Inches that a text takes."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font = FontProperties(family="DejaVu Sans", size=size, weight="bold" if bold else "normal")
    width, _, _ = TextToPath().get_text_width_height_descent(text, font, ismath=False)
    return float(width) / 72


def _high(size: float) -> float:
    return size * 1.45 / 72


def _wrapped(pieces: Iterable[str], most: float, size: float) -> list[str]:
    """Pieces in lines of at most so many inches, with a comma between them."""
    lines: list[str] = []
    for piece in pieces:
        joined = f"{lines[-1]}, {piece}" if lines else piece
        if lines and _wide(joined, size) > most:
            lines[-1] += ","
            lines.append(piece)
        elif lines:
            lines[-1] = joined
        else:
            lines.append(piece)
    return lines


def _at(points: F64, t: float) -> F64:
    place: F64 = (1 - t) ** 2 * points[0] + 2 * t * (1 - t) * points[1] + t * t * points[2]
    return place


def _along(points: F64, count: int) -> F64:
    """Places on a quadratic curve from its start to its end."""
    t = np.linspace(0, 1, count)[:, None]
    places: F64 = (1 - t) ** 2 * points[0] + 2 * t * (1 - t) * points[1] + t * t * points[2]
    return places


def _part_of(points: F64, start: float, stop: float) -> F64:
    """The piece of a quadratic curve between two of its places."""
    middle = (
        (1 - start) * (1 - stop) * points[0]
        + (start * (1 - stop) + stop * (1 - start)) * points[1]
        + start * stop * points[2]
    )
    return np.array([_at(points, start), middle, _at(points, stop)])


# What there is to say


@dataclass(frozen=True, slots=True)
class _Arrow:
    """What goes over a link."""

    origin: str
    to: str
    purpose: Purpose
    bytes_s: float | None
    label: str


def _arrows(
    programs: Mapping[str, SiteProgram], cost: Cost | None, measured: Mapping[tuple[str, str], float]
) -> list[_Arrow]:
    shipped: dict[tuple[str, str], dict[Purpose, float]] = {}
    for site, program in programs.items():
        for ship in program.ships:
            shipped.setdefault((site, ship.to), {}).setdefault(ship.arrives_as.purpose, 0.0)
    if cost is not None:
        for flow in cost.flows:
            sums = shipped.setdefault((flow.origin, flow.to), {})
            sums[flow.purpose] = sums.get(flow.purpose, 0.0) + flow.bytes_s
        for pair, (more, _) in cost.overhead.items():
            sums = shipped.setdefault(pair, {})
            sums[Purpose.WATERMARKS] = sums.get(Purpose.WATERMARKS, 0.0) + more
    for pair in measured:
        shipped.setdefault(pair, {Purpose.WATERMARKS: 0.0})
    order = list(Purpose)
    found = []
    for (origin, to), sums in sorted(shipped.items()):
        purpose = max(sums, key=lambda one: (sums[one], -order.index(one)))
        estimate, real = None if cost is None else cost.link_bytes.get((origin, to), 0.0), measured.get((origin, to))
        if estimate is not None:
            label = bytes_text(estimate, real)
        else:
            label = "" if real is None else f"{bytes_text(real)} measured"
        found.append(_Arrow(origin, to, purpose, real if estimate is None else estimate, label))
    return found


def _kept(program: SiteProgram) -> list[str]:
    """What a site keeps to find again: windows, results of meets, and keys of other windows."""
    windows: dict[str, None] = {}
    others: dict[str, None] = {}
    for operator in program.operators:
        for flow in _lasting(operator):
            match flow.form:
                case Form.ROW | Form.PIECE:
                    windows.setdefault(flow.name)
                case _ if flow.bloom:
                    others.setdefault(f"filters {flow.name.removeprefix('bloom ')}")
                case Form.SPAN:
                    others.setdefault(flow.name)
    return [*sorted(windows), *sorted(others)]


def _lasting(operator: Operator) -> tuple[Flow, ...]:
    match operator:
        case Join():
            return (operator.right,)
        case Pair() | Semijoin():
            return operator.inputs
        case Announce():
            return (operator.rows,)
        case Project():
            return ()


@dataclass(frozen=True, slots=True)
class _Card:
    """The box of a site: its lines of text, and how large it is."""

    site: str
    is_query: bool
    lines: tuple[tuple[str, str], ...]  # text, colour

    @property
    def badge(self) -> str:
        return "answers" if self.is_query else ""

    @property
    def width(self) -> float:
        name = _wide(self.site, _NAME, True) + (_wide(self.badge, _SMALL, True) + 0.35 if self.is_query else 0.0)
        return max(1.15, name, *(_wide(text, _SMALL) for text, _ in self.lines)) + 0.28

    @property
    def height(self) -> float:
        return _high(_NAME) + len(self.lines) * _high(_SMALL) + 0.2

    def marks(self, x: float, y: float) -> Iterator[Mark]:
        rect = _around(x, y, self.width, self.height)
        accent = COLOURS[Purpose.RESULTS]
        yield Box(
            rect,
            _QUERY_FILL if self.is_query else _SITE_FILL,
            accent if self.is_query else "#8d99a6",
            1.8 if self.is_query else 1.0,
            level=3,
        )
        left, line = rect.left + 0.14, rect.top + 0.1 + _high(_NAME) / 2
        yield Words(left, line, self.site, _NAME, bold=True)
        if self.is_query:
            wide = _wide(self.badge, _SMALL, True) + 0.16
            middle = rect.right - 0.1 - wide / 2
            yield Box(_around(middle, line, wide, 0.18), accent, accent, 0.0, 0.08, level=4)
            yield Words(middle, line, self.badge, _SMALL, _PAPER, bold=True, align="center")
        line += _high(_NAME) / 2 + _high(_SMALL) / 2
        for text, colour in self.lines:
            yield Words(left, line, text, _SMALL, colour)
            line += _high(_SMALL)


def _card(program: SiteProgram, cost: Cost | None, *, is_query: bool) -> _Card:
    lines = []
    for alias in program.local:
        scan = program.join.scan(alias)
        name = alias if alias == scan.stream else f"{alias}: {scan.stream}"
        lines.append((f"▸ {name} [{str(scan.window).lower()}]", _INK))
    kept = _wrapped(_kept(program), _LONGEST_LINE - 0.4, _SMALL)
    if len(kept) > 3:
        kept = [*kept[:2], "and more"]
    if kept:
        lines += [(f"keeps {kept[0]}", _SOFT), *((f"    {more}", _SOFT) for more in kept[1:])]
    if cost is not None and program.site in cost.cpu:
        rows = cost.state_rows.get(program.site, 0.0)
        share = cost.cpu[program.site]
        lines.append((f"{count_text(rows)} rows, {_digits(100 * share)} % of a core", _SOFT))
    return _Card(program.site, is_query, tuple(lines))


# The map of sites and links


@dataclass(frozen=True, slots=True)
class _Map:
    """Where sites, arrows and their labels lie."""

    places: Mapping[str, tuple[float, float]]
    curves: tuple[F64, ...]
    labels: tuple[Rect | None, ...]
    overlap: float


def _map(cards: Sequence[_Card], arrows: Sequence[_Arrow]) -> _Map:
    """The smallest map on which nothing overlaps, or the best that is not too large."""
    scale, best = 1.0, _placed(cards, arrows, 1.0)
    while best.overlap > 0:
        scale *= 1.08 if len(cards) <= NO_OVERLAP_SITES else 1.2
        larger = _placed(cards, arrows, scale)
        wide = max(x for x, _ in larger.places.values()) - min(x for x, _ in larger.places.values())
        if len(cards) > NO_OVERLAP_SITES and wide + 2.5 > _WIDEST:
            break
        if larger.overlap < best.overlap or larger.overlap == 0:
            best = larger
        if scale > 6:
            break
    return best


def _placed(cards: Sequence[_Card], arrows: Sequence[_Arrow], scale: float) -> _Map:
    places = _places(cards, arrows, scale)
    boxes = {card.site: _around(*places[card.site], card.width, card.height) for card in cards}
    pairs = {(arrow.origin, arrow.to) for arrow in arrows}
    curves = tuple(_curve(boxes, arrow, is_alone=(arrow.to, arrow.origin) not in pairs) for arrow in arrows)
    samples = [_along(curve, 33) for curve in curves]
    labels: list[Rect | None] = []
    solid = [box.grown(0.03, 0.03) for box in boxes.values()]
    solid += [_around(float(x), float(y), 0.24, 0.24) for x, y in (_at(curve, 0.97) for curve in curves)]  # their heads
    lengths = [float(np.hypot(*(curve[2] - curve[0]))) for curve in curves]
    overlap = sum(max(0.0, _SHORTEST_ARROW - length) for length in lengths)
    for number, (arrow, curve) in enumerate(zip(arrows, curves, strict=True)):
        if not arrow.label:
            labels.append(None)
            continue
        others = np.concatenate([np.empty((0, 2)), *samples[:number], *samples[number + 1 :]])
        taken = [*solid, *(one for one in labels if one is not None)]
        rect, common = _label(arrow.label, curve, taken, others)
        overlap += common
        labels.append(rect)
    return _Map(places, curves, tuple(labels), overlap)


def _label(text: str, curve: F64, taken: Sequence[Rect], others: F64) -> tuple[Rect, float]:
    """The best place for a label along its curve, or just outside its bend, and how much it covers that it should not.

    Other labels and sites must stay free, and most of its own arrow must be seen.
    """
    wide, high = _wide(text, _SMALL) + 0.1, _high(_SMALL) + 0.02
    outside = 1.0 if curve[1][0] > (curve[0][0] + curve[2][0]) / 2 else -1.0
    own = _along(curve, 33)
    choices = []
    for t in (0.5, 0.44, 0.56, 0.38, 0.62, 0.32, 0.68, 0.26, 0.74, 0.2, 0.8):
        for shift in (0.0, 0.2, 0.38, 0.46):
            x, y = _at(curve, t)
            rect = _around(float(x) + outside * shift * wide, float(y), wide, high)
            hidden = float(rect.holds(own).mean())
            common = sum(rect.grown(0.02, 0.02).common(other) for other in taken) + max(0.0, hidden - 0.55)
            crossed = int(rect.holds(others).sum())
            choices.append((100 * common + 0.15 * crossed + abs(t - 0.5) + 0.25 * shift, t, shift, rect, common))
    *_, rect, common = min(choices, key=lambda one: one[:3])
    return rect, common


def _places(cards: Sequence[_Card], arrows: Sequence[_Arrow], scale: float) -> dict[str, tuple[float, float]]:
    """The middle of every site: alone, in a row of two, or on an ellipse from its top, around the origin."""
    if len(cards) == 1:
        return {cards[0].site: (0.0, 0.0)}
    if len(cards) == 2:
        label = max((_wide(arrow.label, _SMALL) for arrow in arrows), default=0.0)
        apart = (sum(card.width for card in cards) / 2 + label + 1.3) * scale
        return {cards[0].site: (-apart / 2, 0.0), cards[1].site: (apart / 2, 0.0)}
    angles = [-pi / 2 + 2 * pi * number / len(cards) for number in range(len(cards))]
    radius = (1.2 + 0.05 * len(arrows)) * scale  # the more arrows, the more room between them
    while True:
        found = {
            card.site: (1.5 * radius * cos(angle), radius * sin(angle))
            for card, angle in zip(cards, angles, strict=True)
        }
        boxes = [_around(*found[card.site], card.width, card.height) for card in cards]
        if not any(one.grown(0.3 * scale, 0.25 * scale).common(other) for one, other in combinations(boxes, 2)):
            return found
        radius *= 1.06


def _curve(boxes: Mapping[str, Rect], arrow: _Arrow, *, is_alone: bool) -> F64:
    """A curve from the edge of one box to that of another; it bends to its right, or inwards if none comes back."""
    start, stop = np.array(boxes[arrow.origin].centre), np.array(boxes[arrow.to].centre)
    along = stop - start
    middle, bend = (start + stop) / 2, np.array([-along[1], along[0]]) * 0.16
    middle = middle - bend if is_alone and float(middle @ bend) > 1e-6 else middle + bend
    whole = np.array([start, middle, stop])
    steps = np.linspace(0, 1, 201)
    points = _along(whole, 201)
    out = np.flatnonzero(~boxes[arrow.origin].grown(0.02, 0.02).holds(points))
    before = np.flatnonzero(~boxes[arrow.to].grown(0.04, 0.04).holds(points))
    first, last = (float(steps[out[0]]), float(steps[before[-1]])) if len(out) and len(before) else (0.0, 1.0)
    return _part_of(whole, first, last) if first < last else whole


def _widths(arrows: Sequence[_Arrow]) -> tuple[float, list[float]]:
    """The most bytes a second on any link, and the thickness of each arrow: its area, not its width, deceives less."""
    most = max((arrow.bytes_s or 0.0 for arrow in arrows), default=0.0)
    return most, [_thickness(arrow.bytes_s, most) for arrow in arrows]


def _thickness(bytes_s: float | None, most: float) -> float:
    return 1.6 if bytes_s is None or most <= 0 else 0.9 + 5.1 * sqrt(max(bytes_s, 0.0) / most)


def _map_marks(cards: Sequence[_Card], arrows: Sequence[_Arrow], laid: _Map, x: float, y: float) -> Iterator[Mark]:
    _, widths = _widths(arrows)
    for arrow, curve, width, label in zip(arrows, laid.curves, widths, laid.labels, strict=True):
        colour = COLOURS[arrow.purpose]
        one, two, three = ((float(px) + x, float(py) + y) for px, py in curve)
        yield Curve((one, two, three), colour, width, head=True, level=1 + 0.5 / (1 + width))
        if label is not None:
            rect = label.moved(x, y)
            yield Box(rect, _PAPER, colour, 0.6, 0.05, level=4)
            yield Words(*rect.centre, arrow.label, _SMALL, _INK, align="center")
    for card in cards:
        px, py = laid.places[card.site]
        yield from card.marks(px + x, py + y)


def _legend(arrows: Sequence[_Arrow], y: float, width: float, *, is_estimated: bool) -> Iterator[Mark]:
    """What colours and thickness mean, in one line."""
    present = [purpose for purpose in Purpose if any(arrow.purpose is purpose for arrow in arrows)]
    most, _ = _widths(arrows)
    items: list[tuple[str, str, float]] = [
        (f"mostly {one.value}" if is_estimated else one.value, COLOURS[one], 3.0) for one in present
    ]
    if most > 0:
        top = _round_below(most)
        items += [
            (bytes_text(size).replace(".0 ", " "), _SOFT, _thickness(size, most)) for size in (top, top / 10, top / 100)
        ]
    total = sum(0.42 + _wide(text, _SMALL) + 0.25 for text, _, _ in items) - 0.25
    x = max(_MARGIN, (width - total) / 2)
    for text, colour, thick in items:
        yield Curve(((x, y), (x + 0.16, y), (x + 0.32, y)), colour, thick, level=2)
        yield Words(x + 0.4, y, text, _SMALL, _SOFT)
        x += 0.42 + _wide(text, _SMALL) + 0.25


def _round_below(value: float) -> float:
    """The largest of 1, 2, 5, 10, 20 and so on that is not above a value."""
    power = 10.0 ** floor(log10(value))
    return next(step * power for step in (5, 2, 1) if step * power <= value * (1 + 1e-9))


# The ways


@dataclass(frozen=True, slots=True)
class _Panel:
    """One way: a heading, and lines of text or a tree."""

    heading: str
    sub_plan: SubPlan
    join: JoinPlan

    def width(self) -> float:
        """Inches it would like to have."""
        if isinstance(self.sub_plan, JoinNode):
            return max(len(leaves_of(self.sub_plan)) * self._slot() + 0.5, _wide(self.heading, _TEXT, True) + 0.4)
        lines = [f"{plan.head}: " + ", ".join(_hop_texts(self.join, plan)) for plan in self.sub_plan.heads]
        return max(_wide(line, _TEXT) for line in [*lines, self.heading]) + 0.5

    def height(self, width: float) -> float:
        if isinstance(self.sub_plan, JoinNode):
            return 0.58 + 0.62 * _depth(self.sub_plan) + 0.28
        return 0.42 + sum(len(lines) for _, lines in self._lines(width)) * _high(_TEXT) + 0.12

    def _lines(self, width: float) -> list[tuple[str, list[str]]]:
        assert isinstance(self.sub_plan, Linear)
        room = width - 0.45 - self._indent()
        return [(plan.head, _wrapped(_hop_texts(self.join, plan), room, _TEXT)) for plan in self.sub_plan.heads]

    def _indent(self) -> float:
        return max(_wide(f"{scan.alias}:", _TEXT, True) for scan in self.join.scans) + 0.08

    def _slot(self) -> float:
        """Inches between the leaves of a tree."""
        names = [f"{scan.alias} at {home}" for scan, home in zip(self.join.scans, self.join.homes, strict=True)]
        return max(0.8, *(_wide(name, _SMALL) + 0.35 for name in names))

    def marks(self, rect: Rect) -> Iterator[Mark]:
        yield Box(rect, _PANEL_FILL, "#dde3e9", 0.8, 0.06, level=1)
        yield Words(rect.left + 0.16, rect.top + 0.2, self.heading, _TEXT, _SOFT, bold=True)
        if isinstance(self.sub_plan, JoinNode):
            slot = min(self._slot() * 1.5, (rect.right - rect.left - 0.3) / len(leaves_of(self.sub_plan)))
            left = (rect.left + rect.right - slot * len(leaves_of(self.sub_plan))) / 2
            yield from self._tree(self.sub_plan, left, rect.top + 0.58, slot)[1]
            return
        line = rect.top + 0.42 + _high(_TEXT) / 2
        for head, texts in self._lines(rect.right - rect.left):
            yield Words(rect.left + 0.16, line, f"{head}:", bold=True)
            for text in texts:
                yield Words(rect.left + 0.16 + self._indent(), line, text)
                line += _high(_TEXT)

    def _tree(self, node: Tree, left: float, y: float, slot: float) -> tuple[float, list[Mark]]:
        """Where the root of a tree is, and its marks; leaves take a slot each from the left."""
        if isinstance(node, Leaf):
            x = left + slot / 2
            return x, list(_node(x, y, f"{node.alias} at {self.join.home(node.alias)}", is_meet=False))
        marks: list[Mark] = []
        roots: list[float] = []
        for one in node.inputs:
            x, below = self._tree(one.node, left, y + 0.62, slot)
            roots.append(x)
            marks += below
            left += slot * len(leaves_of(one.node))
        x = (roots[0] + roots[-1]) / 2
        for one, root in zip(node.inputs, roots, strict=True):
            is_reduced = one.reduction is not Reduction.NONE
            colour = COLOURS[Purpose.FILTERS if one.bloom else Purpose.KEYS] if is_reduced else "#8d99a6"
            middle = ((x + root) / 2, y + 0.31)
            marks.append(Curve(((x, y), middle, (root, y + 0.62)), colour, 1.8 if is_reduced else 1.1, level=2))
            if is_reduced:
                text = {Reduction.ONE_STEP: "1 step", Reduction.TWO_STEP: "2 steps"}.get(one.reduction, "")
                text += ", Bloom" if one.bloom else ""
                spot = (x + 2 * root) / 3, y + 0.62 * 2 / 3 - 0.08
                marks.append(Box(_around(*spot, _wide(text, 6.5) + 0.1, 0.15), _PAPER, colour, 0.6, 0.05, level=4))
                marks.append(Words(*spot, text, 6.5, align="center"))
        marks += _node(x, y, f"meet at {node.at}", is_meet=True)
        return x, marks


def _node(x: float, y: float, text: str, *, is_meet: bool) -> Iterator[Mark]:
    wide = _wide(text, _SMALL, is_meet) + 0.2
    yield Box(_around(x, y, wide, 0.24), "#e3ebf4" if is_meet else _PAPER, "#8d99a6", 0.9, 0.1, level=3)
    yield Words(x, y, text, _SMALL, bold=is_meet, align="center")


def _depth(tree: Tree) -> int:
    return 0 if isinstance(tree, Leaf) else 1 + max(_depth(one.node) for one in tree.inputs)


def _hop_texts(join: JoinPlan, plan: HeadPlan) -> Iterator[str]:
    """Each one-way join with its method and the site where it ends; `from` where the rows move first."""
    site = join.home(plan.head)
    for hop in plan.hops:
        start, home = hop.at or site, join.home(hop.alias)
        stays = hop.method in (Method.SP_S, Method.SM_S1, Method.SM_S2)
        end = start if stays else home
        bloom = " with filters" if hop.bloom else ""
        moved = f" from {start}" if start != site and end != start else ""
        yield f"{hop.alias} by {hop.method.value}{bloom}{moved} at {end}"
        site = end


def _panels(join: JoinPlan, shares: Sequence[float] | None) -> list[_Panel]:
    if join.partition is None:
        (sub_plan,) = join.sub_plans
        heading = (
            "one tree for all streams" if isinstance(sub_plan, JoinNode) else "what new rows of each head go through"
        )
        return [_Panel(heading, sub_plan, join)]
    panels = []
    for number, sub_plan in enumerate(join.sub_plans[:MOST_PANELS]):
        part = part_text(join.partition, number)
        share = f", {_digits(100 * shares[number])} %" if shares is not None else ""
        panels.append(_Panel(f"way {number + 1}: {part}{share}", sub_plan, join))
    return panels


def part_text(partition: Partition, sub_plan: int) -> str:
    """Which part of the key values takes a way.

    >>> part_text(Partition(0, RangeParts((10, 20), (0, 1, 0))), 0)
    '2 of 3 ranges'
    """
    match partition.parts:
        case HashParts(sub_plans):
            count, total = sub_plans.count(sub_plan), len(sub_plans)
            return f"{count} of {total} buckets ({_digits(100 * count / total)} %)"
        case RangeParts(bounds, sub_plans):
            if sub_plans.count(sub_plan) != 1:
                return f"{sub_plans.count(sub_plan)} of {len(sub_plans)} ranges"
            place = sub_plans.index(sub_plan)
            if place == 0:
                return f"below {bounds[0]}" if bounds else "all values"
            last = f" to {bounds[place] - 1}" if place < len(bounds) else " and above"
            return f"{bounds[place - 1]}{last}"
        case ValueParts(values, sub_plans, others):
            own = [str(value) for value, one in zip(values, sub_plans, strict=True) if one == sub_plan]
            some = ", ".join(own) if len(own) <= 3 else f"{len(own)} values"
            if others != sub_plan:
                return some if len(own) > 3 else f"value{'s' if len(own) != 1 else ''} {some or 'none'}"
            return "all other values" if not own else f"{some} and all other values"


# The sheet


def sheet_of(
    join: JoinPlan,
    cost: Cost | None,
    measured: Mapping[tuple[str, str], float],
    title: str,
    shares: Sequence[float] | None,
) -> Sheet:
    """Everything that is to be painted, laid out."""
    programs = compile_sites(join)
    arrows = _arrows(programs, cost, measured)
    names = sorted(
        {*programs, *(site for pair in measured for site in pair)}, key=lambda site: (site != join.site, site)
    )
    if len(names) == 2:
        names.reverse()  # answers on the right
    cards = [_card(programs.get(site, SiteProgram(site, join)), cost, is_query=site == join.site) for site in names]
    laid = _map(cards, arrows)
    boxes = [_around(*laid.places[card.site], card.width, card.height) for card in cards]
    spots = np.concatenate([np.empty((0, 2)), *(_along(curve, 9) for curve in laid.curves)])
    everything = [*boxes, *(label for label in laid.labels if label is not None)]
    left = min([*(one.left for one in everything), *spots[:, 0]])
    right = max([*(one.right for one in everything), *spots[:, 0]])
    top = min([*(one.top for one in everything), *spots[:, 1]])
    bottom = max([*(one.bottom for one in everything), *spots[:, 1]])

    panels = _panels(join, shares)
    summary = _summary(join, cost)
    legend = sum(0.67 + _wide(f"mostly {one.value}", _SMALL) for one in {arrow.purpose for arrow in arrows}) + 3.6
    wanted = min(max(panel.width() for panel in panels), 11.0)
    needed = (right - left, _wide(title, 14, True), _wide(summary, _TEXT), legend if arrows else 0.0, wanted, 6.5)
    width = max(needed) + 2 * _MARGIN

    marks: list[Mark] = []
    y = _MARGIN
    if title:
        marks.append(Words(_MARGIN, y + 0.1, title, 14, bold=True))
        y += 0.36
    marks.append(Words(_MARGIN, y + 0.05, summary, _TEXT, _SOFT))
    y += 0.38
    marks += _map_marks(cards, arrows, laid, (width - left - right) / 2, y - top)
    y += bottom - top + 0.35
    if arrows:
        marks += _legend(arrows, y, width, is_estimated=cost is not None)
        y += 0.3
    if join.partition is not None:
        marks.append(Words(_MARGIN, y + 0.05, partition_text(join.partition, len(join.sub_plans)), _TEXT, bold=True))
        y += 0.25
    columns = max(1, min(len(panels), 3, int((width - 2 * _MARGIN + 0.15) / (min(wanted, width) + 0.15))))
    if columns == 3 and len(panels) == 4:
        columns = 2
    each = (width - 2 * _MARGIN - 0.15 * (columns - 1)) / columns
    for start in range(0, len(panels), columns):
        row = panels[start : start + columns]
        high = max(panel.height(each) for panel in row)
        for number, panel in enumerate(row):
            x = _MARGIN + number * (each + 0.15)
            marks += panel.marks(Rect(x, y, x + each, y + high))
        y += high + 0.15
    if len(join.sub_plans) > MOST_PANELS:
        more = len(join.sub_plans) - MOST_PANELS
        marks.append(Words(_MARGIN, y + 0.05, f"and {more} more way{'s' if more > 1 else ''}", _TEXT, _SOFT))
        y += 0.25
    return Sheet(width, y + _MARGIN - 0.15, tuple(marks))


def _summary(join: JoinPlan, cost: Cost | None) -> str:
    place = f"answers at {join.site}" if join.site is not None else "answers where they are made"
    sites = len({*join.homes, join.site} - {None})
    text = f"{len(join.scans)} streams at {sites} site{'s' if sites > 1 else ''}, {place}"
    if cost is None:
        return text
    delay = f"{_digits(cost.delay_s)} s from a row to its answers"
    return f"{text}; {bytes_text(cost.bytes_s)} on all links, {_digits(cost.messages_s)} parcels/s, {delay}"
