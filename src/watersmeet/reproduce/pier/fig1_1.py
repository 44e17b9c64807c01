"""PIER, figure 1.1: time to the first answer of keyword searches by PIER, by flooding, and by a hybrid of both."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from watersmeet.reproduce.experiment import Experiment, Row, finding, mean
from watersmeet.reproduce.plots import LINE_WIDTH, MARKER_SIZE, legend_below, new_figure, save, show_grid
from watersmeet.sim.pier.file_sharing import Library, Searched, hybrid, is_rare, search_by_flooding, search_by_pier

WITHIN_S = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, 30.0)
RARE_REPLICAS, RARE_POSTINGS = 5, 40
CLASSES = ("all", "rare", "popular")
PUBLISHED_FEWER = 0.18


@dataclass(frozen=True, slots=True)
class Point:
    """A library, and how much is searched for in it."""

    library: Library
    searches: int
    draw: int


def _points(quick: bool) -> tuple[Point, ...]:
    if quick:
        return (Point(Library(nodes=60, files=400, words=400), 40, 0),)
    return tuple(Point(Library(nodes=500, files=5_000, words=5_000, seed=draw + 1), 300, draw) for draw in range(3))


def _run(point: Point) -> list[Row]:
    library = point.library
    searches = library.searches(point.searches)
    pier, flooding = search_by_pier(library, searches), search_by_flooding(library, searches)
    both = hybrid(library, searches, pier, flooding, RARE_POSTINGS)
    found = {"PIER": pier.searched, "flooding": flooding.searched, "hybrid": both}
    count = len(searches)
    costs = {
        name: (each.messages / count, each.bytes / 1e3 / count)
        for name, each in (("PIER", pier), ("flooding", flooding))
    }
    looked_up = sum(is_rare(library, search, RARE_POSTINGS) for search in searches) / count
    messages, kilobytes = (
        looked_up * by_pier + (1 - looked_up) * flooded
        for by_pier, flooded in zip(costs["PIER"], costs["flooding"], strict=True)
    )
    costs["hybrid"] = (messages, kilobytes)  # by what searches cost on average
    rows = []
    for system, searched in found.items():
        for name in CLASSES:
            some = [
                each
                for each, search in zip(searched, searches, strict=True)
                if name == "all" or (search.replicas > 0 and (search.replicas <= RARE_REPLICAS) == (name == "rare"))
            ]
            for within in WITHIN_S:
                rows.append(
                    {
                        "system": system,
                        "searches": name,
                        "within s": within,
                        "draw": point.draw,
                        "answered %": 100 * _answered(some, within),
                        "messages": costs[system][0],
                        "KB": costs[system][1],
                    }
                )
    return rows


def _answered(searched: Sequence[Searched], within_s: float) -> float:
    count = sum(found.first_us is not None and found.first_us <= within_s * 1e6 for found in searched)
    return count / max(1, len(searched))


def _shares(rows: Sequence[Row], system: str, name: str) -> list[float]:
    return [
        mean(
            row["answered %"] for row in rows if (row["system"], row["searches"], row["within s"]) == (system, name, at)
        )
        for at in WITHIN_S
    ]


def _plot(rows: Sequence[Row], path: Path) -> None:
    figure, axes = new_figure(1, len(CLASSES), (10.5, 3.2))
    for axis, name in zip(axes.flat, CLASSES, strict=True):
        for system in ("PIER", "flooding", "hybrid"):
            axis.plot(WITHIN_S, _shares(rows, system, name), "o-", ms=MARKER_SIZE, lw=LINE_WIDTH, label=system)
        axis.set(xlabel="seconds", ylabel="% with an answer", xscale="log", title=f"{name} searches", ylim=(0, 102))
        show_grid(axis)
    legend_below(axes.flat[0])
    save(figure, path)


def _verdict(rows: Sequence[Row]) -> list[str]:
    without = {system: 100 - _shares(rows, system, "all")[-1] for system in ("PIER", "flooding", "hybrid")}
    fewer = 1 - without["hybrid"] / without["flooding"] if without["flooding"] else 0.0
    rare = {system: _shares(rows, system, "rare")[-1] for system in ("PIER", "flooding")}
    return [
        finding(
            fewer > 0,
            f"searches without an answer: flooding {without['flooding']:.1f} %, hybrid {without['hybrid']:.1f} %, "
            f"{100 * fewer:.0f} % fewer (published: {100 * PUBLISHED_FEWER:.0f} %)",
        ),
        finding(
            rare["PIER"] > rare["flooding"],
            f"of rare searches PIER answers {rare['PIER']:.0f} %, flooding {rare['flooding']:.0f} %",
        ),
    ]


EXPERIMENT = Experiment(
    name="pier-fig1.1",
    title="Keyword searches by PIER, by flooding and by both",
    paper="PIER, figure 1.1 and section 1.2.1",
    keys=("system", "searches", "within s"),
    figures=("answered %", "messages", "KB"),
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=(
        "PIER answers rare queries sooner than Gnutella, on 50 nodes",
        "the hybrid has 18 % fewer queries without results",
    ),
    notes=(
        "Generated: 500 nodes, 5,000 files of three words each, popularity of files and words by Zipf's law, three "
        "replicas of a file on average, at least one; 300 searches of two words of a file that is drawn by its "
        "replicas, a fifth of them for what nobody has; three draws (quick: 60 nodes, 40 searches); King-like.",
        "Flooding: four neighbours on average, four hops. PIER: the owner of the rarer word fetches the list of the "
        "other. Hybrid: words with at most 40 postings by PIER, the others flooded. Rare: at most five replicas.",
        "Not as in the paper: its data and queries are real, its Gnutella is far larger than its 50 nodes, and slow "
        "for other reasons than hops. How many fewer searches are without an answer depends on how many hops a flood "
        "has, and on how many searches are for what nobody has.",
    ),
    unit="messages and KB: of a search",
)
