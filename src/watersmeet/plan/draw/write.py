"""A sheet painted by matplotlib into an SVG or PNG file; matplotlib is loaded only then."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from watersmeet.cost.costs import Cost
from watersmeet.errors import InputError, RunError
from watersmeet.plan.draw.marks import FONT, Sheet
from watersmeet.plan.draw.sheet import sheet_of
from watersmeet.plan.draw.style import PAPER
from watersmeet.plan.nodes import JoinPlan

SUFFIXES = (".svg", ".png")
PNG_DOTS_PER_INCH = 150


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

    `shares` are the parts of all combinations that take each sub-plan, where they are known.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"a drawing is an SVG or a PNG file: let the name {path.name!r} end in .svg or .png")
    sheet = sheet_of(plan, cost, dict(measured or {}), title, shares)
    _write(sheet, path, title or "plan")


def _write(sheet: Sheet, path: Path, title: str) -> None:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "watersmeet", "svg.fonttype": "none", "font.family": FONT}):
        figure = Figure(figsize=(sheet.width, sheet.height), facecolor=PAPER)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, sheet.width)
        axes.set_ylim(sheet.height, 0)
        for mark in sheet.marks:
            mark.paint(axes)
        try:
            if path.suffix.lower() == ".svg":
                about: dict[str, str | None] = {"Date": None, "Creator": "watersmeet", "Title": title}
                FigureCanvasSVG(figure).print_svg(path, metadata=about)  # type: ignore[no-untyped-call]
            else:
                software = {"Software": "watersmeet"}
                figure.set_dpi(PNG_DOTS_PER_INCH)
                FigureCanvasAgg(figure).print_png(path, metadata=software)  # type: ignore[no-untyped-call]
        except OSError as error:
            raise RunError(f"the drawing cannot be written to {path}: {error.strerror or error}") from error
