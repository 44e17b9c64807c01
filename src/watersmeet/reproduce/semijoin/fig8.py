"""Semijoin paper, figure 8 (section 5.3.2): how often greedy plans take how much more than the best ones."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from watersmeet.reproduce import plots
from watersmeet.reproduce.experiment import Experiment, Row, averaged
from watersmeet.reproduce.semijoin import table3 as semijoin_table3
from watersmeet.reproduce.semijoin.table3 import EDGES, Point

BINS = ("up to 0.9", "1.0", "1.1", "1.2", "1.3", "1.4", "1.5", "1.6", "from 1.7")
SLACK = 3.0  # percent by which a frequency may be above the one before
_PERCENT = 100.0


def bin_of(ratio: float) -> str:
    """Where a ratio falls, rounded to one decimal.

    >>> bin_of(0.97), bin_of(0.7), bin_of(1.26), bin_of(2.4)
    ('1.0', 'up to 0.9', '1.3', 'from 1.7')
    """
    tenths = round(ratio * 10)
    return BINS[min(max(tenths - 9, 0), len(BINS) - 1)]


def _run(point: Point) -> Row:
    return row_of(semijoin_table3.run(point))


def row_of(compared: Row) -> Row:
    """A row of table 3 as one of this figure: all of its weight in one place, so that means are frequencies."""
    place = bin_of(compared["T_G / T_E"])
    weights = {name: _PERCENT if name == place else 0.0 for name in BINS}
    return {"topology": compared["topology"], "draw": compared["draw"], **weights}


def plot_frequencies(rows: Sequence[Row], path: Path) -> None:
    """A bar for each join graph in each bin."""
    means = {row["topology"]: row for row in averaged(rows, ["topology"], BINS)}
    bars = [{"ratio": name, **{topology: row[name] for topology, row in means.items()}} for name in BINS]
    plots.bars(
        bars,
        path,
        label="ratio",
        xlabel="T_G / T_E, rounded to one decimal",
        series={topology: topology for topology in EDGES if topology in means},
        ylabel="% of queries",
    )


def _verdict(rows: Sequence[Row]) -> list[str]:
    means = averaged(rows, ["topology"], BINS)
    return [
        f"not the paper's measure: {row['topology']}, heads share: 1.0 in {row['1.0']:.0f} % of the queries, 1.1 in "
        f"{row['1.1']:.0f} %, more in {sum(row[name] for name in BINS[3:]):.0f} %, and less than 0.95 in "
        f"{row[BINS[0]]:.0f} %; frequencies {'fall' if is_falling(row) else 'do not fall'} from 1.0 on"
        for row in means
    ]


def is_falling(row: Row) -> bool:
    """Whether frequencies fall from 1.0 on, and most queries are there."""
    return all(row[one] >= row[other] - SLACK for one, other in pairwise(BINS[1:])) and row["1.0"] > 50


EXPERIMENT = Experiment(
    name="semijoin-fig8",
    title="Frequencies of what greedy plans take against the best ones",
    paper="Semijoin paper, figure 8",
    keys=("topology",),
    figures=BINS,
    points=semijoin_table3.points,
    run=_run,
    plot=plot_frequencies,
    verdict=_verdict,
    published=("frequencies fall exponentially from 1.0 on; a few ratios are below 1.0, by noise in measured times",),
    notes=("The runs of table 3 once more; figures are shares of the queries in percent.", *semijoin_table3.NOTES),
    unit="%",
)
