"""The map of sites and links: sites on an ellipse, arrows between them, labels where they hide least."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import cos, pi, sin

import numpy as np

from watersmeet.plan.draw.geometry import F64, Rect, chord_length, curve_point, curve_points, sampled, sub_curve
from watersmeet.plan.draw.links import Arrow, most_bytes, thickness
from watersmeet.plan.draw.marks import Box, Curve, Mark, Words, line_height, text_width
from watersmeet.plan.draw.site_box import SiteBox
from watersmeet.plan.draw.style import COLOURS, PAPER, SMALL_SIZE

NO_OVERLAP_SITES = 6  # up to so many sites the map grows until no label lies on another

# How the map grows while something overlaps
GROWTH, GROWTH_OF_MANY_SITES, MAX_SCALE = 1.08, 1.2, 6.0
MAX_WIDTH, OUTER_BOXES_WIDTH = 17.0, 2.5  # inches, of the map of many sites and of its outer boxes

# Where sites lie, in inches
TWO_SITES_GAP = 1.3  # besides the label of their arrows
RADIUS, RADIUS_PER_ARROW, RADIUS_GROWTH = 1.2, 0.05, 1.06  # the more arrows, the more room between them
ELLIPSE = 1.5  # its width as a multiple of its height
SITE_GAP_X, SITE_GAP_Y = 0.3, 0.25

# Arrows, in inches
BEND = 0.16  # of their length
ARROW_START_GAP, ARROW_END_GAP = 0.02, 0.04
SHORTEST_ARROW = 0.75
HEAD_AT, HEAD_ROOM = 0.97, 0.24
CLIP_STEPS, SAMPLES, OUTLINE_SAMPLES = 201, 33, 9

# Labels, in inches
LABEL_PADDING_X, LABEL_PADDING_Y, LABEL_GAP, SITE_TO_LABEL = 0.1, 0.02, 0.02, 0.03
LABEL_BORDER, LABEL_ROUND = 0.6, 0.05
LABEL_PLACES = (0.5, 0.44, 0.56, 0.38, 0.62, 0.32, 0.68, 0.26, 0.74, 0.2, 0.8)  # along the arrow
LABEL_SHIFTS = (0.0, 0.2, 0.38, 0.46)  # of its width, out of the arrow's bend
MOST_HIDDEN = 0.55  # of its own arrow

# What makes the place of a label worse
COVERED_COST, CROSSED_COST, SHIFT_COST = 100, 0.15, 0.25


@dataclass(frozen=True, slots=True)
class SiteMap:
    """Where sites, arrows and their labels lie around the origin."""

    boxes: tuple[SiteBox, ...]
    arrows: tuple[Arrow, ...]
    places: Mapping[str, tuple[float, float]]
    curves: tuple[F64, ...]
    labels: tuple[Rect | None, ...]
    overlap: float

    @property
    def extent(self) -> Rect:
        """The room that all of it takes."""
        boxes = [box.rect(*self.places[box.site]) for box in self.boxes]
        labels = [label for label in self.labels if label is not None]
        points = np.concatenate([np.empty((0, 2)), *(sampled(curve, OUTLINE_SAMPLES) for curve in self.curves)])
        return Rect.covering([*boxes, *labels], points)

    def marks(self, x: float, y: float) -> Iterator[Mark]:
        """The map with its origin at a place on the sheet."""
        most = most_bytes(self.arrows)
        for arrow, curve, label in zip(self.arrows, self.curves, self.labels, strict=True):
            colour, width = COLOURS[arrow.purpose], thickness(arrow.bytes_s, most)
            start, control, stop = ((float(px) + x, float(py) + y) for px, py in curve)
            thin_above_thick = 1 + 0.5 / (1 + width)
            yield Curve((start, control, stop), colour, width, head=True, level=thin_above_thick)
            if label is not None:
                rect = label.moved(x, y)
                yield Box(rect, PAPER, colour, LABEL_BORDER, LABEL_ROUND, level=4)
                yield Words(*rect.centre, arrow.label, SMALL_SIZE, align="center")
        for box in self.boxes:
            px, py = self.places[box.site]
            yield from box.marks(px + x, py + y)


def site_map(boxes: Sequence[SiteBox], arrows: Sequence[Arrow]) -> SiteMap:
    """The smallest map on which nothing overlaps, or the best that is not too large."""
    are_many = len(boxes) > NO_OVERLAP_SITES
    scale, best = 1.0, _scaled_map(boxes, arrows, 1.0)
    while best.overlap > 0 and scale <= MAX_SCALE:
        scale *= GROWTH_OF_MANY_SITES if are_many else GROWTH
        larger = _scaled_map(boxes, arrows, scale)
        xs = [x for x, _ in larger.places.values()]
        if are_many and max(xs) - min(xs) + OUTER_BOXES_WIDTH > MAX_WIDTH:
            break
        if larger.overlap < best.overlap or larger.overlap == 0:
            best = larger
    return best


def _scaled_map(boxes: Sequence[SiteBox], arrows: Sequence[Arrow], scale: float) -> SiteMap:
    places = _places(boxes, arrows, scale)
    rects = {box.site: box.rect(*places[box.site]) for box in boxes}
    links = {(arrow.origin, arrow.to) for arrow in arrows}
    curves = tuple(
        _curve(rects[arrow.origin], rects[arrow.to], is_alone=(arrow.to, arrow.origin) not in links) for arrow in arrows
    )
    labels, covered = _labels(arrows, curves, list(rects.values()))
    too_short = sum(max(0.0, SHORTEST_ARROW - chord_length(curve)) for curve in curves)
    return SiteMap(tuple(boxes), tuple(arrows), places, curves, labels, too_short + covered)


def _places(boxes: Sequence[SiteBox], arrows: Sequence[Arrow], scale: float) -> dict[str, tuple[float, float]]:
    """The middle of every site: alone, in a row of two, or on an ellipse from its top, around the origin."""
    if len(boxes) == 1:
        return {boxes[0].site: (0.0, 0.0)}
    if len(boxes) == 2:
        label = max((text_width(arrow.label, SMALL_SIZE) for arrow in arrows), default=0.0)
        distance = (sum(box.width for box in boxes) / 2 + label + TWO_SITES_GAP) * scale
        return {boxes[0].site: (-distance / 2, 0.0), boxes[1].site: (distance / 2, 0.0)}
    angles = [-pi / 2 + 2 * pi * number / len(boxes) for number in range(len(boxes))]
    radius = (RADIUS + RADIUS_PER_ARROW * len(arrows)) * scale
    while True:
        places = {
            box.site: (ELLIPSE * radius * cos(angle), radius * sin(angle))
            for box, angle in zip(boxes, angles, strict=True)
        }
        rects = [box.rect(*places[box.site]) for box in boxes]
        pairs = combinations(rects, 2)
        if not any(rect.grown(SITE_GAP_X * scale, SITE_GAP_Y * scale).common(other) for rect, other in pairs):
            return places
        radius *= RADIUS_GROWTH


def _curve(origin: Rect, to: Rect, *, is_alone: bool) -> F64:
    """A curve from the edge of one box to that of another; it bends to its right, or inwards if none comes back."""
    start, stop = np.array(origin.centre), np.array(to.centre)
    along = stop - start
    middle, bend = (start + stop) / 2, np.array([-along[1], along[0]]) * BEND
    control = middle - bend if is_alone and float(middle @ bend) > 1e-6 else middle + bend
    whole = np.array([start, control, stop])
    steps = np.linspace(0, 1, CLIP_STEPS)
    points = curve_points(whole, steps)
    after_start = np.flatnonzero(~origin.grown(ARROW_START_GAP, ARROW_START_GAP).holds(points))
    before_end = np.flatnonzero(~to.grown(ARROW_END_GAP, ARROW_END_GAP).holds(points))
    if not len(after_start) or not len(before_end):
        return whole
    first, last = float(steps[after_start[0]]), float(steps[before_end[-1]])
    return sub_curve(whole, first, last) if first < last else whole


def _labels(
    arrows: Sequence[Arrow], curves: Sequence[F64], sites: Sequence[Rect]
) -> tuple[tuple[Rect | None, ...], float]:
    """A place for each label in turn, and the area that they cover although they should not."""
    heads = [curve_point(curve, HEAD_AT) for curve in curves]
    taken = [site.grown(SITE_TO_LABEL, SITE_TO_LABEL) for site in sites]
    taken += [Rect.around(float(x), float(y), HEAD_ROOM, HEAD_ROOM) for x, y in heads]
    samples = [sampled(curve, SAMPLES) for curve in curves]
    labels: list[Rect | None] = []
    covered = 0.0
    for number, (arrow, curve) in enumerate(zip(arrows, curves, strict=True)):
        if not arrow.label:
            labels.append(None)
            continue
        others = np.concatenate([np.empty((0, 2)), *samples[:number], *samples[number + 1 :]])
        rect, common = _label(arrow.label, curve, taken, others)
        covered += common
        taken.append(rect)
        labels.append(rect)
    return tuple(labels), covered


def _label(text: str, curve: F64, taken: Sequence[Rect], others: F64) -> tuple[Rect, float]:
    """The best place for a label along its curve, or just outside its bend, and how much it covers that it should not.

    Other labels and sites must stay free, and most of its own arrow must be seen.
    """
    width, height = text_width(text, SMALL_SIZE) + LABEL_PADDING_X, line_height(SMALL_SIZE) + LABEL_PADDING_Y
    outside = 1.0 if curve[1][0] > (curve[0][0] + curve[2][0]) / 2 else -1.0
    own = sampled(curve, SAMPLES)
    choices = []
    for t in LABEL_PLACES:
        x, y = curve_point(curve, t)
        for shift in LABEL_SHIFTS:
            rect = Rect.around(float(x) + outside * shift * width, float(y), width, height)
            hidden = max(0.0, float(rect.holds(own).mean()) - MOST_HIDDEN)
            covered = sum(rect.grown(LABEL_GAP, LABEL_GAP).common(other) for other in taken) + hidden
            crossed = int(rect.holds(others).sum())
            cost = COVERED_COST * covered + CROSSED_COST * crossed + abs(t - 0.5) + SHIFT_COST * shift
            choices.append((cost, t, shift, rect, covered))
    *_, rect, covered = min(choices, key=lambda choice: choice[:3])
    return rect, covered
