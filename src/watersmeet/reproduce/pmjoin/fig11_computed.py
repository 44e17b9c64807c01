"""PMJoin, figure 11 (section 4.3), computed: all 200 queries, every pick partitioned by its own attribute.

Rows are drawn independently from distributions that the planner knows, so the rates that the cost model computes are
the expected values of what is counted when plans run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from watersmeet.planners.partition import Parts, Pick, PickMethod, find_partition, parts_of, saving_of
from watersmeet.planners.trees import cost_of, stream_join_opt
from watersmeet.reproduce import plots
from watersmeet.reproduce.experiment import Experiment, Row, averaged, finding
from watersmeet.reproduce.pmjoin import fig11
from watersmeet.reproduce.pmjoin.fig11 import CHOICES, PARTS, SEED, SERIES
from watersmeet.reproduce.workloads import workload_of_sources

QUERIES = 200
FIGURES = (*CHOICES, "attributes")


@dataclass(frozen=True, slots=True)
class Point:
    """The highest key value, and the number of the query."""

    values: int
    draw: int


def _points(quick: bool) -> tuple[Point, ...]:
    ranges, draws = ((1_000, 10_000), 3) if quick else ((1_000, 3_000, 10_000, 30_000), QUERIES)
    return tuple(Point(values, draw) for values in ranges for draw in range(draws))


def _run(point: Point) -> Row:
    workload = workload_of_sources(fig11.sources_of(fig11.Point(point.values, point.draw)))
    tree = stream_join_opt(workload)
    whole = cost_of(tree, workload)

    @cache
    def parts(key_class: int) -> Parts:
        return parts_of(workload, key_class, "rate", PARTS, SEED)

    @cache
    def saving(picked: Pick) -> float:
        return saving_of(picked, tree, workload, parts(picked.key_class))

    def cost(pick: PickMethod) -> float:
        return whole - sum(saving(picked) for picked in find_partition(tree, workload, pick, SEED + point.draw))

    return {
        "values": point.values,
        "draw": point.draw,
        "none": whole,
        "alternative": cost("alternative"),
        "random": cost("random"),
        "heuristic": cost("heuristic"),
        "attributes": len({picked.key_class for picked in find_partition(tree, workload)}),
    }


def _plot(rows: Sequence[Row], path: Path) -> None:
    relative = [row | {choice: row[choice] / row["none"] for choice in CHOICES} for row in rows]
    plots.lines(
        relative,
        path,
        x="values",
        series=SERIES,
        xlabel="highest key value",
        ylabel="tuples/s, as a share of no partitions",
        logx=True,
        low=0.8,
    )


def _verdict(rows: Sequence[Row]) -> list[str]:
    means = averaged(rows, ["values"], FIGURES)
    gains = [1 - row["heuristic"] / row["none"] for row in means]
    return [
        finding(
            all(row["none"] >= max(row[choice] for choice in CHOICES) for row in means),
            "the plan without partitions ships the most",
        ),
        finding(
            gains[-1] >= gains[0],
            "the heuristic saves "
            + ", ".join(f"{gain:.1%} with {row['values']:,} values" for gain, row in zip(gains, means, strict=True)),
        ),
        finding(
            all(row["heuristic"] <= min(row["random"], row["alternative"]) for row in means),
            "the heuristic is the best choice: "
            + ", ".join(
                f"{row['heuristic']:,.0f} against {row['random']:,.0f} and {row['alternative']:,.0f}" for row in means
            ),
        ),
    ]


EXPERIMENT = Experiment(
    name="pmjoin-fig11-computed",
    title="Which joins to partition, each by its own attribute, computed",
    paper="PMJoin, figure 11",
    keys=("values",),
    figures=FIGURES,
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=fig11.EXPERIMENT.published,
    notes=(
        f"As published: 20 streams at 10 nodes, {QUERIES} queries of 3 to 7 attributes, and every pick is partitioned "
        f"by its own attribute; {PARTS} rate-based parts, a number that the paper does not give. Nothing is run: rates "
        "are those of the cost model, for the very distributions that rows would be drawn from.",
        f"'attributes' is by how many different ones the heuristic partitions; queries from seed {SEED} on.",
    ),
)
