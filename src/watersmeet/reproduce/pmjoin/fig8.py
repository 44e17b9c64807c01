"""PMJoin, figure 8 (section 4.2): a tree for each of 1 to 1,000 parts of the key values, by three ways to part them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from watersmeet.planners.partition import PartMethod, SubPlans, pmjoin_plan
from watersmeet.reproduce import plots
from watersmeet.reproduce.experiment import Experiment, Row, averaged, finding
from watersmeet.reproduce.workloads import Source, different_shares, ship_rates, similar_shares, workload_of_sources

STREAMS = 10
VALUES = 1_000
SITUATIONS = ("CHS SD", "CHS DD", "RHS SD", "RHS DD")
METHODS: tuple[PartMethod, ...] = ("hash", "range", "rate")
SECONDS = 5.0
SEED = 8


@dataclass(frozen=True, slots=True)
class Point:
    """A situation, the number of parts, and the number of the draw."""

    situation: str
    parts: int
    draw: int


def hot_spot_sources(situation: str, streams: int, draw: int) -> list[Source]:
    """Streams at sites of their own; where hot spots are spread, values change places, the same in all streams."""
    spot, kind = situation.split()
    rng = np.random.default_rng((SEED, draw))
    places = rng.permutation(VALUES) if spot == "RHS" else np.arange(VALUES)
    rng = np.random.default_rng((SEED, draw, 1))
    shares_of = similar_shares if kind == "SD" else different_shares
    return [
        Source(f"n{i}", rng.uniform(10, 1000), rng.uniform(10, 100), {0: shares_of(rng, VALUES)[places]})
        for i in range(streams)
    ]


def _points(quick: bool) -> tuple[Point, ...]:
    parts, draws = ((1, 10, 1_000), 1) if quick else ((1, 2, 5, 10, 50, 100, 500, 1_000), 6)
    return tuple(Point(situation, count, draw) for situation in SITUATIONS for count in parts for draw in range(draws))


def _run(point: Point) -> Row:
    sources = hot_spot_sources(point.situation, STREAMS, point.draw)
    workload = workload_of_sources(sources)
    plans: dict[str, SubPlans] = {method: pmjoin_plan(workload, method, point.parts, seed=SEED) for method in METHODS}
    return {
        "situation": point.situation,
        "parts": point.parts,
        "draw": point.draw,
        **ship_rates(sources, plans, SECONDS, SEED + point.draw),
    }


def _plot(rows: Sequence[Row], path: Path) -> None:
    series: dict[str, str] = {method: method for method in METHODS}
    plots.lines(rows, path, panel="situation", x="parts", series=series, xlabel="parts", logx=True)


def _verdict(rows: Sequence[Row]) -> list[str]:
    means = averaged(rows, ["situation", "parts"], METHODS)
    by_point = {(row["situation"], row["parts"]): row for row in means}
    parts = sorted({row["parts"] for row in means})
    whole = {situation: by_point[situation, 1]["rate"] for situation in SITUATIONS}
    finest = {situation: by_point[situation, parts[-1]]["rate"] / whole[situation] for situation in SITUATIONS}
    middle = [count for count in parts if 2 <= count < VALUES]
    gain = {
        kind: {situation: 1 - finest[situation] for situation in SITUATIONS if kind in situation}
        for kind in ("SD", "DD")
    }
    found = [
        finding(
            max(gain["SD"].values()) < min(gain["DD"].values()),
            "partitions gain less where distributions are similar than where they are different: "
            + ", ".join(f"{saved:.1%} ({situation})" for own in gain.values() for situation, saved in own.items()),
        ),
    ]
    for situation in SITUATIONS:
        own = {count: by_point[situation, count] for count in middle}
        best = {count: min(METHODS, key=lambda method: own[count][method]) for count in middle}
        expected = "range" if situation == "CHS SD" else "rate"
        hits = sum(own[count][expected] <= 1.005 * own[count][best[count]] for count in middle)
        found.append(
            finding(
                hits > len(middle) / 2,
                f"{situation}: {expected} is the best, or as good within 0.5 %, for {hits} of {len(middle)} numbers of "
                "parts" + "".join(f"; {best[count]} is with {count}" for count in middle),
            )
        )
    random = [by_point["RHS DD", count] for count in middle]
    worse = sum(row["range"] > 1.005 * row["hash"] for row in random)
    better = sum(row["hash"] > 1.005 * row["range"] for row in random)
    found.append(
        finding(
            worse > len(random) / 2,
            f"RHS DD: range is worse than hash by more than 0.5 % for {worse}, and better for {better}, "
            f"of {len(random)} numbers of parts",
        )
    )
    return found


EXPERIMENT = Experiment(
    name="pmjoin-fig8",
    title="Partitioned plans against the number of parts",
    paper="PMJoin, figure 8",
    keys=("situation", "parts"),
    figures=METHODS,
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=(
        "similar distributions: a moderate gain; different ones: a large gain from two parts on, and more with more",
        "range is best for contiguous hot spots with similar distributions, rate in the other three situations",
        "range is worse than hash where hot spots are spread at random",
    ),
    notes=(
        "As published: 10 streams, 1,000 values, rates from 10 to 1000 a second, windows from 10 to 100 s.",
        "Where hot spots are random (RHS), one permutation of the values is used for all streams of a draw; the paper "
        "does not say whether each stream has its own.",
        "Rate-based parts keep values with the same ranks together, so that there can be fewer parts than asked for.",
        f"Counted over {SECONDS:g} s after the windows have filled; 6 draws from seed {SEED} on.",
    ),
)
