"""PMJoin, figure 11 (section 4.3): which joins to partition where joins are on several attributes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from watersmeet.planners.partition import PickMethod, SubPlans, plans_by_class
from watersmeet.planners.trees import stream_join_opt
from watersmeet.reproduce import plots
from watersmeet.reproduce.experiment import Experiment, Row, averaged, finding
from watersmeet.reproduce.workloads import (
    WorkloadSource,
    different_shares,
    ship_rates,
    unpartitioned,
    workload_of_sources,
)

STREAMS = 20
NODES = 10
PARTS = 100
CHOICES = ("none", "alternative", "random", "heuristic")
SERIES = {"none": "no partitions", "alternative": "Alternative", "random": "Random", "heuristic": "heuristic"}
SECONDS = 2.0
SEED = 11
QUERIES = 200


@dataclass(frozen=True, slots=True)
class Point:
    """The highest key value, and the number of the query."""

    values: int
    draw: int


def sources_of(point: Point) -> list[WorkloadSource]:
    """Twenty streams at random nodes and a random query over all of them.

    It has 3 to 7 attributes: each stream has one of them, and one stream has each further one beside its own.
    """
    rng = np.random.default_rng((SEED, point.draw))
    attributes = int(rng.integers(3, 8))
    own = rng.permutation([*range(attributes), *rng.integers(attributes, size=STREAMS - attributes)])
    having = [{int(attribute)} for attribute in own]
    for attribute in range(1, attributes):
        before = [i for i in range(STREAMS) if own[i] < attribute]
        having[int(rng.choice(before))].add(attribute)
    figures = [(f"n{rng.integers(NODES)}", rng.uniform(100, 1000), rng.uniform(10, 100)) for _ in range(STREAMS)]
    return [
        WorkloadSource(home, rate, window_s, {key: different_shares(rng, point.values) for key in sorted(having[i])})
        for i, (home, rate, window_s) in enumerate(figures)
    ]


def _points(quick: bool) -> tuple[Point, ...]:
    ranges, draws = ((1_000, 10_000), 2) if quick else ((1_000, 3_000, 10_000, 30_000), QUERIES)
    return tuple(Point(values, draw) for values in ranges for draw in range(draws))


def _run(point: Point) -> Row:
    sources = sources_of(point)
    workload = workload_of_sources(sources)
    tree = stream_join_opt(workload)
    seeds: dict[PickMethod, int] = {"alternative": SEED, "random": SEED + point.draw, "heuristic": SEED}
    plans: dict[str, SubPlans] = {"none": unpartitioned(tree)}
    for pick, seed in seeds.items():
        by_class = plans_by_class(tree, workload, "rate", PARTS, pick=pick, seed=seed)
        plans |= {f"{pick} {number}": plan for number, plan in enumerate(by_class)}
    shipped = ship_rates(sources, plans, SECONDS, SEED + point.draw)
    return {
        "values": point.values,
        "draw": point.draw,
        "none": shipped["none"],
        **{pick: with_all_partitioned(shipped, pick) for pick in seeds},
        "attributes": sum(name.startswith("heuristic ") for name in plans),
    }


def with_all_partitioned(shipped: Mapping[str, float | None], pick: str) -> float | None:
    """What is shipped with the picks on every attribute partitioned: less, by what each attribute's plan ships less.

    That is exact: no pick is fed by another, so what a plan ships beside its own picks is what all of them ship.
    """
    rates = [rate for name, rate in shipped.items() if name == "none" or name.startswith(f"{pick} ")]
    if any(rate is None for rate in rates):
        return None
    whole, *parted = (float(rate) for rate in rates if rate is not None)
    return whole - sum(whole - rate for rate in parted)


def _plot(rows: Sequence[Row], path: Path) -> None:
    known = [row for row in rows if all(row[choice] is not None for choice in CHOICES)]
    plots.lines(
        [row | {choice: row[choice] / row["none"] for choice in CHOICES} for row in known],
        path,
        x="values",
        series=SERIES,
        xlabel="highest key value",
        ylabel="tuples/s, as a share of no partitions",
        logx=True,
        low=0.8,
    )


def _verdict(rows: Sequence[Row]) -> list[str]:
    means = [row for row in averaged(rows, ["values"], CHOICES) if row["none"] is not None]
    gains = [1 - row["heuristic"] / row["none"] for row in means]
    best = sum(row["heuristic"] <= 1.005 * min(row["random"], row["alternative"]) for row in means)
    not_run = sum(any(row[choice] is None for choice in CHOICES) for row in rows)
    return [
        finding(
            all(row["none"] >= 0.995 * max(row[choice] for choice in CHOICES) for row in means),
            "the plan without partitions ships the most, or as much within 0.5 %",
        ),
        finding(
            gains[-1] >= gains[0],
            "the heuristic saves "
            + ", ".join(f"{gain:.1%} with {row['values']:,} values" for gain, row in zip(gains, means, strict=True)),
        ),
        finding(
            best == len(means),
            f"the heuristic is the best choice, within 0.5 %, for {best} of {len(means)} ranges of values",
        ),
        f"beyond the paper: {not_run} of {len(rows)} queries were not run, for their joins explode",
    ]


EXPERIMENT = Experiment(
    name="pmjoin-fig11",
    title="Which joins to partition in queries on several attributes",
    paper="PMJoin, figure 11",
    keys=("values",),
    figures=(*CHOICES, "attributes"),
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=(
        "no partitions is the worst for every range; partitions gain more with larger ranges",
        "the heuristic is better than Random and Alternative",
    ),
    notes=(
        "As published: 20 streams at 10 nodes, rates from 100 to 1000 a second, windows from 10 to 100 s and 3 to 7 "
        f"attributes, {QUERIES} queries; each is over all streams, and there are {PARTS} rate-based parts.",
        "As published, every pick is partitioned by its own attribute: the picks on each attribute are run as a plan "
        "of their own, and what these plans save is added up, which is exact, since no pick is fed by another. "
        "'attributes' is by how many different ones the heuristic partitions.",
        f"Counted over {SECONDS:g} s after the windows have filled; queries from seed {SEED} on.",
    ),
)
