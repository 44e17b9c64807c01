"""PMJoin, figure 8 (section 4.2): a tree for each of 1 to 1,000 parts of the key values, by three ways to part them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from watersmeet.cost.workload import Workload
from watersmeet.plan.nodes import JoinNode
from watersmeet.planners.partition import PartMethod, SubPlans, partitioned, parts_of
from watersmeet.planners.trees import stream_join_opt
from watersmeet.reproduce import plots
from watersmeet.reproduce.experiment import Experiment, Row, averaged, finding
from watersmeet.reproduce.workloads import (
    WorkloadSource,
    different_shares,
    ship_rates,
    similar_shares,
    workload_of_sources,
)

STREAMS = 10
VALUES = 1_000
SITUATIONS = ("CHS SD", "CHS DD", "RHS SD", "RHS DD")
OWN_SPOTS = ("RHS SD own", "RHS DD own")  # each stream has a permutation of its own
METHODS: tuple[PartMethod, ...] = ("hash", "range", "rate")
SECONDS = 5.0
SEED = 8


@dataclass(frozen=True, slots=True)
class Point:
    """A situation, the numbers of parts, and the number of the draw."""

    situation: str
    parts: tuple[int, ...]
    draw: int


def hot_spot_sources(situation: str, streams: int, draw: int) -> list[WorkloadSource]:
    """Streams at sites of their own; where hot spots are spread, values change places, in all streams or in each."""
    spot, kind, *own = situation.split()
    chance = np.random.default_rng((SEED, draw))
    common = chance.permutation(VALUES) if spot == "RHS" else np.arange(VALUES)
    rng = np.random.default_rng((SEED, draw, 1))
    shares_of = similar_shares if kind == "SD" else different_shares
    return [
        WorkloadSource(
            f"n{i}",
            rng.uniform(10, 1000),
            rng.uniform(10, 100),
            {0: shares_of(rng, VALUES)[chance.permutation(VALUES) if own else common]},
        )
        for i in range(streams)
    ]


def _points(quick: bool) -> tuple[Point, ...]:
    parts, draws = ((1, 10, 1_000), 1) if quick else ((1, 2, 5, 10, 50, 100, 500, 1_000), 10)
    return tuple(Point(situation, parts, draw) for situation in (*SITUATIONS, *OWN_SPOTS) for draw in range(draws))


def _run(point: Point) -> list[Row]:
    sources = hot_spot_sources(point.situation, STREAMS, point.draw)
    plan = Planning(workload_of_sources(sources))
    plans = {f"{method} {parts}": plan(method, parts) for method in METHODS for parts in point.parts}
    found = ship_rates(sources, plans, SECONDS, SEED + point.draw)
    return [
        {
            "situation": point.situation,
            "parts": parts,
            "draw": point.draw,
            **{method: found[f"{method} {parts}"] for method in METHODS},
        }
        for parts in point.parts
    ]


class Planning:
    """`pmjoin_plan` for one workload on one key, with the tree of each set of values planned once."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._known: dict[bytes, JoinNode] = {}

    def __call__(self, method: PartMethod, parts: int) -> SubPlans:
        return partitioned(self._workload, 0, parts_of(self._workload, 0, method, parts, SEED), self._planned)

    def _planned(self, part: Workload) -> JoinNode:
        cells = part.domains[0].low.tobytes()
        if cells not in self._known:
            self._known[cells] = stream_join_opt(part)
        return self._known[cells]


def _plot(rows: Sequence[Row], path: Path) -> None:
    series: dict[str, str] = {method: method for method in METHODS}
    plots.lines(rows, path, panel="situation", x="parts", series=series, xlabel="parts", logx=True)


def _verdict(rows: Sequence[Row]) -> list[str]:
    means = averaged(rows, ["situation", "parts"], METHODS)
    by_point = {(row["situation"], row["parts"]): row for row in means}
    parts = sorted({row["parts"] for row in means})
    situations = tuple(dict.fromkeys(row["situation"] for row in rows))
    whole = {situation: by_point[situation, 1]["rate"] for situation in situations}
    finest = {situation: by_point[situation, parts[-1]]["rate"] / whole[situation] for situation in situations}
    middle = [count for count in parts if 2 <= count < VALUES]
    gain = {
        kind: {situation: 1 - finest[situation] for situation in situations if kind in situation}
        for kind in ("SD", "DD")
    }
    found = [
        finding(
            max(gain["SD"].values()) < min(gain["DD"].values()),
            "partitions gain less where distributions are similar than where they are different: "
            + ", ".join(f"{saved:.1%} ({situation})" for own in gain.values() for situation, saved in own.items()),
        ),
    ]
    for situation in situations:
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
    for situation in situations:
        if situation.startswith("RHS DD"):
            random = [by_point[situation, count] for count in middle]
            worse = sum(row["range"] > 1.005 * row["hash"] for row in random)
            better = sum(row["hash"] > 1.005 * row["range"] for row in random)
            found.append(
                finding(
                    worse > len(random) / 2,
                    f"{situation}: range is worse than hash by more than 0.5 % for {worse}, and better for {better}, "
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
        "Where hot spots are random (RHS), one permutation of the values is used for all streams of a draw, or ('own') "
        "one for each stream; the paper does not say which.",
        "Rate-based parts keep values with the same ranks together, so that there can be fewer parts than asked for.",
        f"Counted over {SECONDS:g} s after the windows have filled; 10 draws from seed {SEED} on.",
    ),
)
