"""A plan as a picture: sites and the traffic on their links above, the sub-plans below.

Everything is laid out in inches on one sheet, and only then painted, so that SVG and PNG are the same picture and the
same plan is always the same bytes.
"""

from watersmeet.plan.draw.geometry import Rect
from watersmeet.plan.draw.marks import Box, Curve, Mark, Sheet, Words
from watersmeet.plan.draw.sheet import MOST_PANELS, sheet_of
from watersmeet.plan.draw.site_map import NO_OVERLAP_SITES
from watersmeet.plan.draw.style import COLOURS
from watersmeet.plan.draw.text import bytes_text, count_text
from watersmeet.plan.draw.write import SUFFIXES, draw

__all__ = [
    "COLOURS",
    "MOST_PANELS",
    "NO_OVERLAP_SITES",
    "SUFFIXES",
    "Box",
    "Curve",
    "Mark",
    "Rect",
    "Sheet",
    "Words",
    "bytes_text",
    "count_text",
    "draw",
    "sheet_of",
]
