"""A panel for each sub-plan: a tree of join nodes, or for each stream the order in which its new rows are joined."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from watersmeet.plan.draw.geometry import Rect
from watersmeet.plan.draw.marks import Box, Curve, Mark, Words, line_height, text_width, wrapped
from watersmeet.plan.draw.style import (
    COLOURS,
    JOIN_FILL,
    PANEL_FILL,
    PANEL_LINE,
    PAPER,
    SMALL_SIZE,
    SOFT_INK,
    STRONG_LINE,
    TEXT_SIZE,
    TINY_SIZE,
)
from watersmeet.plan.draw.text import hop_texts, number_text, reduction_text
from watersmeet.plan.nodes import (
    HeadPlan,
    Hop,
    Input,
    JoinNode,
    JoinPlan,
    Leaf,
    Linear,
    Method,
    SubPlan,
    Symmetric,
    Tree,
    leaves_of,
)
from watersmeet.plan.partition import part_text
from watersmeet.program.operators import Purpose

# Inches
PADDING, HEADING_MIDDLE, BORDER_ROUND = 0.16, 0.2, 0.06
TREE_TOP, TREE_BOTTOM, TREE_SIDES, LEVEL_HEIGHT = 0.58, 0.28, 0.5, 0.62
TREE_INNER_SIDES = 0.3
MIN_SLOT, SLOT_GAP, SLOT_STRETCH = 0.8, 0.35, 1.5  # of a leaf; it may be wider by this factor where there is room
NODE_PADDING, NODE_HEIGHT, NODE_ROUND = 0.1, 0.24, 0.1
REDUCTION_PADDING, REDUCTION_HEIGHT, REDUCTION_ROUND, REDUCTION_RISE = 0.05, 0.15, 0.05, 0.08
REDUCTION_GAP = 0.06
LINES_TOP, LINES_BOTTOM, LINES_SIDES, HEAD_TO_TEXT = 0.42, 0.12, 0.45, 0.08
HEADING_SIDES, WIDEST_LINE_SIDES = 0.4, 0.5
# Points
NODE_BORDER, EDGE, REDUCED_EDGE, REDUCTION_BORDER = 0.9, 1.1, 1.8, 0.6

REDUCTION_AT = 2 / 3  # along an edge, from the join node to its input


@dataclass(frozen=True, slots=True)
class TreePanel:
    """A tree of join nodes: leaves side by side, each join node above the middle of its inputs."""

    heading: str
    root: JoinNode
    join: JoinPlan

    def width(self) -> float:
        """Inches it would like to have."""
        heading = text_width(self.heading, TEXT_SIZE, True) + HEADING_SIDES
        return max(len(leaves_of(self.root)) * self._slot() + TREE_SIDES, heading)

    def height(self, width: float) -> float:
        """Inches it needs, however wide it is."""
        return TREE_TOP + LEVEL_HEIGHT * _depth(self.root) + TREE_BOTTOM

    def marks(self, rect: Rect) -> Iterator[Mark]:
        """The panel in a rectangle of the sheet."""
        yield from _frame(rect, self.heading)
        leaves = len(leaves_of(self.root))
        slot = min(self._slot() * SLOT_STRETCH, (rect.width - TREE_INNER_SIDES) / leaves)
        left = (rect.left + rect.right - slot * leaves) / 2
        yield from self._tree(self.root, left, rect.top + TREE_TOP, slot)[1]

    def _slot(self) -> float:
        """Inches between the leaves of a tree, so that neither they nor the labels of edges touch each other."""
        names = [f"{scan.alias} at {home}" for scan, home in zip(self.join.scans, self.join.homes, strict=True)]
        labels = [(_label_width(left) + _label_width(right)) / 2 for left, right in _reduced_neighbours(self.root)]
        return max(
            MIN_SLOT,
            *(text_width(name, SMALL_SIZE) + SLOT_GAP for name in names),
            *((width + REDUCTION_GAP) / REDUCTION_AT for width in labels),
        )

    def _tree(self, node: Tree, left: float, y: float, slot: float) -> tuple[float, list[Mark]]:
        """Where the root of a tree is, and its marks; leaves take a slot each from the left."""
        if isinstance(node, Leaf):
            x = left + slot / 2
            return x, list(_node(x, y, f"{node.alias} at {self.join.home(node.alias)}", is_join=False))
        marks: list[Mark] = []
        roots: list[float] = []
        for child in node.inputs:
            root, below = self._tree(child.node, left, y + LEVEL_HEIGHT, slot)
            roots.append(root)
            marks += below
            left += slot * len(leaves_of(child.node))
        x = (roots[0] + roots[-1]) / 2
        for child, root in zip(node.inputs, roots, strict=True):
            marks += _edge(child, (x, y), (root, y + LEVEL_HEIGHT))
        marks += _node(x, y, f"join at {node.at}", is_join=True)
        return x, marks


@dataclass(frozen=True, slots=True)
class LinearPanel:
    """A sequence of one-way joins for each head stream, as text."""

    heading: str
    linear: Linear
    join: JoinPlan

    def width(self) -> float:
        """Inches it would like to have."""
        lines = [f"{plan.head}: " + ", ".join(hop_texts(self.join, plan)) for plan in self.linear.heads]
        return max(text_width(line, TEXT_SIZE) for line in [*lines, self.heading]) + WIDEST_LINE_SIDES

    def height(self, width: float) -> float:
        """Inches it needs if it is so wide."""
        lines = sum(len(texts) for _, texts in self._lines(width))
        return LINES_TOP + lines * line_height(TEXT_SIZE) + LINES_BOTTOM

    def marks(self, rect: Rect) -> Iterator[Mark]:
        """The panel in a rectangle of the sheet."""
        yield from _frame(rect, self.heading)
        left, y = rect.left + PADDING, rect.top + LINES_TOP + line_height(TEXT_SIZE) / 2
        for head, texts in self._lines(rect.width):
            yield Words(left, y, f"{head}:", bold=True)
            for text in texts:
                yield Words(left + self._indent(), y, text)
                y += line_height(TEXT_SIZE)

    def _lines(self, width: float) -> list[tuple[str, list[str]]]:
        room = width - LINES_SIDES - self._indent()
        return [(plan.head, wrapped(hop_texts(self.join, plan), room, TEXT_SIZE)) for plan in self.linear.heads]

    def _indent(self) -> float:
        return max(text_width(f"{scan.alias}:", TEXT_SIZE, True) for scan in self.join.scans) + HEAD_TO_TEXT


Panel = TreePanel | LinearPanel


def panels_of(join: JoinPlan, shares: Sequence[float] | None, most: int) -> list[Panel]:
    """A panel for each of the first sub-plans; `shares` are the parts of all combinations that take each of them."""
    if join.partition is None:
        (sub_plan,) = join.sub_plans
        is_tree = isinstance(sub_plan, JoinNode)
        heading = "one join tree for all streams" if is_tree else "join order for new rows of each stream"
        return [_panel(heading, sub_plan, join)]
    panels = []
    for number, sub_plan in enumerate(join.sub_plans[:most]):
        share = f", {number_text(100 * shares[number])} %" if shares is not None else ""
        heading = f"sub-plan {number + 1}: {part_text(join.partition, number)}{share}"
        panels.append(_panel(heading, sub_plan, join))
    return panels


def _panel(heading: str, sub_plan: SubPlan, join: JoinPlan) -> Panel:
    match sub_plan:
        case JoinNode():
            return TreePanel(heading, sub_plan, join)
        case Linear():
            return LinearPanel(heading, sub_plan, join)
        case Symmetric():
            heads = []
            for sequence in sub_plan.sequences:
                aliases = (probe.alias for stage in sequence.stages for probe in stage.probes)
                heads.append(HeadPlan(sequence.head, tuple(Hop(alias, Method.SP_S, sub_plan.at) for alias in aliases)))
            return LinearPanel(heading, Linear(tuple(heads)), join)


def _frame(rect: Rect, heading: str) -> Iterator[Mark]:
    yield Box(rect, PANEL_FILL, PANEL_LINE, round=BORDER_ROUND, level=1)
    yield Words(rect.left + PADDING, rect.top + HEADING_MIDDLE, heading, TEXT_SIZE, SOFT_INK, bold=True)


def _node(x: float, y: float, text: str, *, is_join: bool) -> Iterator[Mark]:
    width = text_width(text, SMALL_SIZE, is_join) + 2 * NODE_PADDING
    fill = JOIN_FILL if is_join else PAPER
    yield Box(Rect.around(x, y, width, NODE_HEIGHT), fill, STRONG_LINE, NODE_BORDER, NODE_ROUND)
    yield Words(x, y, text, SMALL_SIZE, bold=is_join, align="center")


def _edge(child: Input, top: tuple[float, float], bottom: tuple[float, float]) -> Iterator[Mark]:
    """The line from a join node to one of its inputs, with a label if that is reduced by semijoins."""
    middle = (top[0] + bottom[0]) / 2, (top[1] + bottom[1]) / 2
    if not child.is_reduced:
        yield Curve((top, middle, bottom), STRONG_LINE, EDGE, level=2)
        return
    colour = COLOURS[Purpose.FILTERS if child.bloom else Purpose.KEYS]
    yield Curve((top, middle, bottom), colour, REDUCED_EDGE, level=2)
    x, y = (start + (stop - start) * REDUCTION_AT for start, stop in zip(top, bottom, strict=True))
    rect = Rect.around(x, y - REDUCTION_RISE, _label_width(child), REDUCTION_HEIGHT)
    yield Box(rect, PAPER, colour, REDUCTION_BORDER, REDUCTION_ROUND, level=4)
    yield Words(*rect.centre, reduction_text(child), TINY_SIZE, align="center")


def _label_width(child: Input) -> float:
    return text_width(reduction_text(child), TINY_SIZE) + 2 * REDUCTION_PADDING


def _reduced_neighbours(tree: Tree) -> Iterator[tuple[Input, Input]]:
    """Inputs side by side of which both edges have a label."""
    if isinstance(tree, Leaf):
        return
    for left, right in pairwise(tree.inputs):
        if left.is_reduced and right.is_reduced:
            yield left, right
    for child in tree.inputs:
        yield from _reduced_neighbours(child.node)


def _depth(tree: Tree) -> int:
    return 0 if isinstance(tree, Leaf) else 1 + max(_depth(child.node) for child in tree.inputs)
