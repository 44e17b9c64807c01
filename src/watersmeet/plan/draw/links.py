"""Arrows between sites: what crosses each link, how thick an arrow is, and the legend."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10, sqrt

from watersmeet.cost.costs import Cost
from watersmeet.plan.draw.marks import Curve, Mark, Words, text_width
from watersmeet.plan.draw.style import COLOURS, SMALL_SIZE, SOFT_INK
from watersmeet.plan.draw.text import bytes_text
from watersmeet.program.operators import JoinProgram, Purpose

# Points: the thickness of an arrow without a figure, of the thinnest, and what the thickest has more
PLAIN_ARROW, THINNEST_ARROW, THICKER_ARROW = 1.6, 0.9, 5.1

# Inches and points: the legend's samples of lines, each before its text
SAMPLE_LENGTH, SAMPLE_THICKNESS = 0.32, 3.0
SAMPLE_TO_TEXT, SAMPLE_ROOM = 0.4, 0.42
LEGEND_GAP = 0.25
THICKNESS_SAMPLES_WIDTH = 3.6
SAMPLE_STEPS = (1, 10, 100)  # thickness is shown for the largest round figure and these fractions of it


@dataclass(frozen=True, slots=True)
class Arrow:
    """The traffic from one site to another: mostly of one purpose."""

    origin: str
    to: str
    purpose: Purpose
    bytes_s: float | None
    label: str


def arrows_of(
    programs: Mapping[str, JoinProgram], cost: Cost | None, measured: Mapping[tuple[str, str], float]
) -> list[Arrow]:
    """An arrow for each pair of sites with traffic: planned, estimated or measured."""
    order = list(Purpose)
    arrows = []
    for (origin, to), sums in sorted(_bytes_by_purpose(programs, cost, measured).items()):
        purpose = max(sums, key=lambda purpose: (sums[purpose], -order.index(purpose)))
        estimate = None if cost is None else cost.link_bytes.get((origin, to), 0.0)
        real = measured.get((origin, to))
        if estimate is not None:
            label = bytes_text(estimate, real)
        else:
            label = "" if real is None else f"{bytes_text(real)} measured"
        arrows.append(Arrow(origin, to, purpose, real if estimate is None else estimate, label))
    return arrows


def _bytes_by_purpose(
    programs: Mapping[str, JoinProgram], cost: Cost | None, measured: Mapping[tuple[str, str], float]
) -> dict[tuple[str, str], dict[Purpose, float]]:
    """Estimated bytes a second of each link; 0 for a shipment of which no cost is known."""
    shipped: dict[tuple[str, str], dict[Purpose, float]] = {}

    def add(link: tuple[str, str], purpose: Purpose, bytes_s: float) -> None:
        sums = shipped.setdefault(link, {})
        sums[purpose] = sums.get(purpose, 0.0) + bytes_s

    for site, program in programs.items():
        for ship in program.ships:
            add((site, ship.to), ship.arrives_as.purpose, 0.0)
    if cost is not None:
        for flow in cost.flows:
            add((flow.origin, flow.to), flow.purpose, flow.bytes_s)
        for link, (bytes_s, _) in cost.overhead.items():
            add(link, Purpose.WATERMARKS, bytes_s)
    for link in measured:
        shipped.setdefault(link, {Purpose.WATERMARKS: 0.0})
    return shipped


def most_bytes(arrows: Sequence[Arrow]) -> float:
    """The bytes a second of the busiest link."""
    return max((arrow.bytes_s or 0.0 for arrow in arrows), default=0.0)


def thickness(bytes_s: float | None, most: float) -> float:
    """Points of an arrow's thickness: it grows with the root, for the eye compares areas."""
    if bytes_s is None or most <= 0:
        return PLAIN_ARROW
    return THINNEST_ARROW + THICKER_ARROW * sqrt(max(bytes_s, 0.0) / most)


def legend_marks(
    arrows: Sequence[Arrow], y: float, width: float, margin: float, *, is_estimated: bool
) -> Iterator[Mark]:
    """What colours and thickness mean, in one line in the middle of a sheet."""
    items = list(_legend_items(arrows, is_estimated=is_estimated))
    total = sum(_item_width(text) for text, _, _ in items) - LEGEND_GAP
    x = max(margin, (width - total) / 2)
    for text, colour, points in items:
        yield Curve(((x, y), (x + SAMPLE_LENGTH / 2, y), (x + SAMPLE_LENGTH, y)), colour, points, level=2)
        yield Words(x + SAMPLE_TO_TEXT, y, text, SMALL_SIZE, SOFT_INK)
        x += _item_width(text)


def legend_width(arrows: Sequence[Arrow]) -> float:
    """Inches to keep for the legend."""
    if not arrows:
        return 0.0
    purposes = {arrow.purpose for arrow in arrows}
    return sum(_item_width(f"mostly {purpose.value}") for purpose in purposes) + THICKNESS_SAMPLES_WIDTH


def _legend_items(arrows: Sequence[Arrow], *, is_estimated: bool) -> Iterator[tuple[str, str, float]]:
    """Text, colour and thickness."""
    for purpose in Purpose:
        if any(arrow.purpose is purpose for arrow in arrows):
            text = f"mostly {purpose.value}" if is_estimated else purpose.value
            yield text, COLOURS[purpose], SAMPLE_THICKNESS
    most = most_bytes(arrows)
    if most > 0:
        for step in SAMPLE_STEPS:
            bytes_s = _round_below(most) / step
            yield bytes_text(bytes_s).replace(".0 ", " "), SOFT_INK, thickness(bytes_s, most)


def _item_width(text: str) -> float:
    return SAMPLE_ROOM + text_width(text, SMALL_SIZE) + LEGEND_GAP


def _round_below(value: float) -> float:
    """The largest of 1, 2, 5, 10, 20 and so on that is not above a value.

    >>> _round_below(4.9), _round_below(1000), _round_below(0.07)
    (2.0, 1000.0, 0.05)
    """
    power = 10.0 ** floor(log10(value))
    return next(step * power for step in (5, 2, 1) if step * power <= value * (1 + 1e-9))
