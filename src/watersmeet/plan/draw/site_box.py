"""The box of a site: its streams, the state that it keeps, and its load."""

from collections.abc import Iterator
from dataclasses import dataclass

from watersmeet.cost.costs import Cost
from watersmeet.plan.draw.geometry import Rect
from watersmeet.plan.draw.marks import Box, Mark, Words, line_height, text_width, wrapped
from watersmeet.plan.draw.style import (
    COLOURS,
    INK,
    NAME_SIZE,
    PAPER,
    QUERY_SITE_FILL,
    SITE_FILL,
    SMALL_SIZE,
    SOFT_INK,
    STRONG_LINE,
)
from watersmeet.plan.draw.text import count_text, number_text
from watersmeet.program.operators import (
    Announce,
    Flow,
    Form,
    Gather,
    Join,
    JoinProgram,
    Operator,
    Pair,
    Probe,
    ProjectKeys,
    Purpose,
    Semijoin,
)

# Inches
SIDE_PADDING, TOP_PADDING = 0.14, 0.1
MIN_TEXT_WIDTH = 1.15
STATE_LINE_WIDTH = 1.9
BADGE_GAP, BADGE_PADDING, BADGE_HEIGHT, BADGE_ROUND = 0.35, 0.08, 0.18, 0.08
BADGE_TO_EDGE = 0.1
# Points
BORDER, QUERY_SITE_BORDER = 1.0, 1.8

MOST_STATE_LINES = 3
BADGE = "answers"


@dataclass(frozen=True, slots=True)
class SiteBox:
    """What the box of a site says, and how large it is."""

    site: str
    is_query_site: bool
    lines: tuple[tuple[str, str], ...]  # text, colour

    @property
    def width(self) -> float:
        name = text_width(self.site, NAME_SIZE, True)
        if self.is_query_site:
            name += text_width(BADGE, SMALL_SIZE, True) + BADGE_GAP
        return max(MIN_TEXT_WIDTH, name, *(text_width(text, SMALL_SIZE) for text, _ in self.lines)) + 2 * SIDE_PADDING

    @property
    def height(self) -> float:
        return line_height(NAME_SIZE) + len(self.lines) * line_height(SMALL_SIZE) + 2 * TOP_PADDING

    def rect(self, x: float, y: float) -> Rect:
        """The box around its centre."""
        return Rect.around(x, y, self.width, self.height)

    def marks(self, x: float, y: float) -> Iterator[Mark]:
        """The box and its text around a centre."""
        rect = self.rect(x, y)
        left, line = rect.left + SIDE_PADDING, rect.top + TOP_PADDING + line_height(NAME_SIZE) / 2
        if self.is_query_site:
            yield Box(rect, QUERY_SITE_FILL, COLOURS[Purpose.RESULTS], QUERY_SITE_BORDER)
        else:
            yield Box(rect, SITE_FILL, STRONG_LINE, BORDER)
        yield Words(left, line, self.site, NAME_SIZE, bold=True)
        if self.is_query_site:
            yield from _badge(rect.right - BADGE_TO_EDGE, line)
        line += line_height(NAME_SIZE) / 2 + line_height(SMALL_SIZE) / 2
        for text, colour in self.lines:
            yield Words(left, line, text, SMALL_SIZE, colour)
            line += line_height(SMALL_SIZE)


def _badge(right: float, y: float) -> Iterator[Mark]:
    """A mark at the site that delivers the answers."""
    width, colour = text_width(BADGE, SMALL_SIZE, True) + 2 * BADGE_PADDING, COLOURS[Purpose.RESULTS]
    x = right - width / 2
    yield Box(Rect.around(x, y, width, BADGE_HEIGHT), colour, colour, 0.0, BADGE_ROUND, level=4)
    yield Words(x, y, BADGE, SMALL_SIZE, PAPER, bold=True, align="center")


def site_box(program: JoinProgram, cost: Cost | None, *, is_query_site: bool) -> SiteBox:
    """The box of the site that runs a program."""
    lines = []
    for alias in program.local:
        scan = program.join.scan(alias)
        name = alias if alias == scan.stream else f"{alias}: {scan.stream}"
        lines.append((f"▸ {name} [{str(scan.window).lower()}]", INK))
    lines += [(text, SOFT_INK) for text in _state_lines(program)]
    if cost is not None and program.site in cost.cpu:
        rows, cores = cost.state_rows.get(program.site, 0.0), cost.cpu[program.site]
        lines.append((f"{count_text(rows)} rows of state, {number_text(100 * cores)} % of a core", SOFT_INK))
    return SiteBox(program.site, is_query_site, tuple(lines))


def _state_lines(program: JoinProgram) -> Iterator[str]:
    """The state of a site in a few lines."""
    lines = wrapped(_state(program), STATE_LINE_WIDTH, SMALL_SIZE)
    if len(lines) > MOST_STATE_LINES:
        lines = [*lines[: MOST_STATE_LINES - 1], f"{lines[MOST_STATE_LINES - 1]} and more"]
    for number, line in enumerate(lines):
        yield f"    {line}" if number else f"state: {line}"


def _state(program: JoinProgram) -> list[str]:
    """What a site keeps to probe later: windows, intermediate results, and keys of other windows."""
    windows: dict[str, None] = {}
    others: dict[str, None] = {}
    for operator in program.operators:
        for flow in _kept_flows(operator):
            match flow.form:
                case Form.ROW | Form.INTERMEDIATE:
                    windows.setdefault(flow.name)
                case _ if flow.bloom:
                    others.setdefault(f"Bloom filter of {flow.name.removeprefix('bloom ')}")
                case Form.SPAN:
                    others.setdefault(flow.name)
    return [*sorted(windows), *sorted(others)]


def _kept_flows(operator: Operator) -> tuple[Flow, ...]:
    match operator:
        case Probe():
            return tuple(lookup.rows for lookup in operator.lookups)
        case Join():
            return (operator.right,)
        case Pair() | Semijoin() | Gather():
            return operator.inputs
        case Announce():
            return (operator.rows,)
        case ProjectKeys():
            return ()
