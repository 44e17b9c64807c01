"""The sheet from top to bottom: title, summary, map of sites, legend, panels of sub-plans."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from watersmeet.cost.costs import Cost
from watersmeet.plan.draw.geometry import Rect
from watersmeet.plan.draw.links import Arrow, arrows_of, legend_marks, legend_width
from watersmeet.plan.draw.marks import Mark, Sheet, Words, text_width
from watersmeet.plan.draw.panels import Panel, panels_of
from watersmeet.plan.draw.site_box import SiteBox, site_box
from watersmeet.plan.draw.site_map import SiteMap, site_map
from watersmeet.plan.draw.style import INK, SOFT_INK, TEXT_SIZE, TITLE_SIZE
from watersmeet.plan.draw.text import partition_text, plural, summary_text
from watersmeet.plan.nodes import JoinPlan
from watersmeet.program.compile import compile_sites
from watersmeet.program.operators import JoinProgram

MOST_PANELS, MOST_COLUMNS = 6, 3

# Inches
MARGIN = 0.35
MIN_WIDTH = 6.5  # between the margins
WIDEST_PANEL = 11.0  # for which the sheet is made wider
PANEL_GAP = 0.15
TITLE_HEIGHT, TITLE_MIDDLE = 0.36, 0.1
SUMMARY_HEIGHT, LINE_MIDDLE = 0.38, 0.05
MAP_GAP = 0.35
LEGEND_HEIGHT = 0.3
LINE_HEIGHT = 0.25


@dataclass(frozen=True, slots=True)
class Section:
    """A strip of the sheet: how high it is, and its marks below a given height."""

    height: float
    marks: Callable[[float], Iterable[Mark]]


def sheet_of(
    join: JoinPlan,
    cost: Cost | None,
    measured: Mapping[tuple[str, str], float],
    title: str,
    shares: Sequence[float] | None,
) -> Sheet:
    """Everything that is to be painted, laid out."""
    programs = compile_sites(join)
    arrows = arrows_of(programs, cost, measured)
    sites = site_map(_site_boxes(join, programs, cost, measured), arrows)
    panels = panels_of(join, shares, MOST_PANELS)
    summary = summary_text(join, cost)
    panel_width = min(max(panel.width() for panel in panels), WIDEST_PANEL)
    texts = text_width(title, TITLE_SIZE, True), text_width(summary, TEXT_SIZE)
    width = max(sites.extent.width, *texts, legend_width(arrows), panel_width, MIN_WIDTH) + 2 * MARGIN

    sections = [
        *_title_sections(title, summary),
        _map_section(sites, width),
        *_legend_sections(arrows, width, is_estimated=cost is not None),
        *_partition_sections(join),
        *_panel_sections(panels, width, panel_width),
        *_omitted_sections(len(join.sub_plans) - len(panels)),
    ]
    marks: list[Mark] = []
    y = MARGIN
    for section in sections:
        marks += section.marks(y)
        y += section.height
    return Sheet(width, y - PANEL_GAP + MARGIN, tuple(marks))


def _site_boxes(
    join: JoinPlan,
    programs: Mapping[str, JoinProgram],
    cost: Cost | None,
    measured: Mapping[tuple[str, str], float],
) -> list[SiteBox]:
    """A box for each site: the query's first, or on the right if there are two."""
    names = {*programs, *(site for link in measured for site in link)}
    ordered = sorted(names, key=lambda site: (site != join.site, site))
    if len(ordered) == 2:
        ordered.reverse()
    empty = {site: JoinProgram(site, join) for site in names - programs.keys()}
    every = {**programs, **empty}
    return [site_box(every[site], cost, is_query_site=site == join.site) for site in ordered]


def _title_sections(title: str, summary: str) -> Iterator[Section]:
    if title:
        yield Section(TITLE_HEIGHT, lambda y: [Words(MARGIN, y + TITLE_MIDDLE, title, TITLE_SIZE, bold=True)])
    yield _line(summary, height=SUMMARY_HEIGHT, colour=SOFT_INK)


def _map_section(sites: SiteMap, width: float) -> Section:
    extent = sites.extent
    x = width / 2 - extent.centre[0]
    return Section(extent.height + MAP_GAP, lambda y: sites.marks(x, y - extent.top))


def _legend_sections(arrows: Sequence[Arrow], width: float, *, is_estimated: bool) -> Iterator[Section]:
    if arrows:
        yield Section(LEGEND_HEIGHT, lambda y: legend_marks(arrows, y, width, MARGIN, is_estimated=is_estimated))


def _partition_sections(join: JoinPlan) -> Iterator[Section]:
    if join.partition is not None:
        yield _line(partition_text(join.partition, len(join.sub_plans)), bold=True)


def _panel_sections(panels: Sequence[Panel], width: float, panel_width: float) -> Iterator[Section]:
    """Panels in rows; those of a row are equally wide and high."""
    columns = _columns(len(panels), width, panel_width)
    each = (width - 2 * MARGIN - PANEL_GAP * (columns - 1)) / columns
    for start in range(0, len(panels), columns):
        yield _panel_row(panels[start : start + columns], each)


def _columns(panels: int, width: float, panel_width: float) -> int:
    """How many panels lie side by side: as many as have the width they like, four as two and two."""
    room = width - 2 * MARGIN
    fitting = int((room + PANEL_GAP) / (min(panel_width, width) + PANEL_GAP))
    columns = max(1, min(panels, MOST_COLUMNS, fitting))
    return 2 if columns == 3 and panels == 4 else columns


def _panel_row(row: Sequence[Panel], each: float) -> Section:
    height = max(panel.height(each) for panel in row)

    def marks(y: float) -> Iterator[Mark]:
        for number, panel in enumerate(row):
            x = MARGIN + number * (each + PANEL_GAP)
            yield from panel.marks(Rect(x, y, x + each, y + height))

    return Section(height + PANEL_GAP, marks)


def _omitted_sections(count: int) -> Iterator[Section]:
    if count > 0:
        yield _line(f"and {plural(count, 'more sub-plan')}", colour=SOFT_INK)


def _line(text: str, *, height: float = LINE_HEIGHT, colour: str = INK, bold: bool = False) -> Section:
    return Section(height, lambda y: [Words(MARGIN, y + LINE_MIDDLE, text, TEXT_SIZE, colour, bold)])
