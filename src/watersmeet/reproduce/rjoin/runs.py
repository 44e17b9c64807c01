"""What RJoin's experiments (section 8) have in common: a point is a run, a row what its nodes had done by a look."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from watersmeet.reproduce.experiment import Experiment, Row, averaged, finding
from watersmeet.sim.rjoin.measured import Measurement, RJoinExperiment, measure, ranked

TRAFFIC = ("traffic", "grouped traffic", "RIC traffic", "grouped RIC")
TOTALS = ("load", "storage")
FIGURES = (*TRAFFIC, *TOTALS, "highest load", "highest storage", "nodes", "answers")
QUERIES, FEW_QUERIES = 20_000, 2_000  # as published, and as many as ten seeds can be run with
RATES = 200  # tuples of a rate's window, and tuples after which it is asked for again
RANKS = (1, 2, 5, 10, 20, 50, 100, 250, 500, 750, 900)
RANK_COLUMNS = tuple(f"{kind} at {rank}" for kind in TOTALS for rank in RANKS)
ONE_RANKING, OWN_RANKINGS = "one", "own"
RANKINGS = {ONE_RANKING: "one ranking of values", OWN_RANKINGS: "rankings of their own"}
UNIT = "traffic: messages per node and tuple; loads: rewritten queries and tuples"
NOTES = (
    "Traffic is messages sent per node and tuple, routing and the indexing of input queries included. In 'traffic' "
    "every rewritten query is a message and asks for rates itself ('RIC traffic'); in 'grouped traffic' all mail from "
    "one node for one key at one moment is one message, and a node asks once for all ('grouped RIC').",
    "Load is rewritten queries and tuples received, storage those kept at the value level at the end; 'nodes' have a "
    "load. 200 tuples are published before the queries, so that nodes have rates to report; they are stored, not "
    "counted.",
    f"Rates are those of the last {RATES} tuples, and are asked for again when they are older than that; the paper "
    "names no length. A tuple is published when all that the one before it caused is done. 'draw' is the seed.",
)
RANKING_NOTE = "ranking one: the same value is the most frequent in every attribute; own: every attribute has its own."


@dataclass(frozen=True, slots=True)
class Point:
    """What tells a run from the others, and the run."""

    keys: tuple[tuple[str, Any], ...]
    run: RJoinExperiment
    draw: int = 1


@dataclass(frozen=True, slots=True)
class RankedExperiment(Experiment):
    """An experiment whose CSV also has the loads of nodes by rank, which are too many for a table."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a row."""
        return (*self.keys, "draw", *self.figures, *RANK_COLUMNS)


def figure_experiment(
    number: int,
    *,
    title: str,
    keys: tuple[str, ...],
    points: Callable[[bool], tuple[Point, ...]],
    plot: Callable[[Sequence[Row], Path], None],
    verdict: Callable[[Sequence[Row]], list[str]],
    published: tuple[str, ...],
    notes: tuple[str, ...],
    run: Callable[[Point], Row | list[Row]] | None = None,
    more_figures: tuple[str, ...] = (),
) -> RankedExperiment:
    """The experiment of one of the paper's figures, with the columns, the notes and the unit that all of them have."""
    return RankedExperiment(
        name=f"rjoin-fig{number}",
        title=title,
        paper=f"RJoin, figure {number}",
        keys=keys,
        figures=(*FIGURES, *more_figures),
        points=points,
        run=run or run_point,
        plot=plot,
        verdict=verdict,
        published=published,
        notes=(*notes, *NOTES),
        unit=UNIT,
    )


SEEDS = 10


def sized(points: Callable[[int], Sequence[Point]], quick: bool, quick_queries: int = 200) -> tuple[Point, ...]:
    """Points made for a number of queries: 2,000 with ten seeds and 20,000, as published, with one."""
    if quick:
        return draws(_with_queries(points(quick_queries), quick_queries), 1)
    few, many = (_with_queries(points(count), count) for count in (FEW_QUERIES, QUERIES))
    return (*draws(few, SEEDS), *draws(many, 1))


def _with_queries(points: Sequence[Point], count: int) -> list[Point]:
    return [replace(point, keys=(("queries", count), *point.keys)) for point in points]


def fewest(rows: Sequence[Row]) -> list[Row]:
    """The rows of the fewest queries, which have the most seeds."""
    return [row for row in rows if row["queries"] == min(row["queries"] for row in rows)]


def draws(points: Sequence[Point], count: int) -> tuple[Point, ...]:
    """The same points with so many seeds, from 1 on."""
    return tuple(
        replace(point, draw=seed, run=replace(point.run, seed=seed, workload=replace(point.run.workload, seed=seed)))
        for point in points
        for seed in range(1, count + 1)
    )


def run_point(point: Point) -> Row:
    """Run a point and tell what was seen at its end."""
    return _row(point, measure(point.run)[-1])


def level_figures(ways: int) -> tuple[str, ...]:
    """The columns of `run_levels`."""
    return (*(f"level {bound}" for bound in range(1, ways)), "searching")


def run_levels(point: Point) -> Row:
    """Run a point; beside what was seen at its end, which rewritten queries made the load."""
    seen = measure(point.run)[-1]
    ways = point.run.workload.ways
    found = (*(int(count) for count in seen.levels[1:ways]), seen.searching)
    return _row(point, seen) | dict(zip(level_figures(ways), found, strict=True))


def run_looks(point: Point) -> list[Row]:
    """Run a point and tell what was seen after each number of tuples."""
    return [_row(point, seen) | {"tuples": seen.tuples} for seen in measure(point.run)]


def _row(point: Point, seen: Measurement) -> Row:
    """What was seen, as a row; loads at ranks there are no nodes for are None."""
    nodes, loads = point.run.nodes, {"load": ranked(seen.load), "storage": ranked(seen.storage)}
    per_node_and_tuple = 1 / (nodes * seen.tuples)
    at_ranks = {
        f"{kind} at {rank}": int(of_nodes[rank - 1]) if rank <= nodes else None
        for kind, of_nodes in loads.items()
        for rank in RANKS
    }
    return {
        **dict(point.keys),
        "draw": point.draw,
        "traffic": seen.messages_apart * per_node_and_tuple,
        "grouped traffic": seen.messages * per_node_and_tuple,
        "RIC traffic": seen.messages_rates_apart * per_node_and_tuple,
        "grouped RIC": seen.messages_rates * per_node_and_tuple,
        "load": int(seen.load.sum()),
        "storage": int(seen.storage.sum()),
        "highest load": at_ranks["load at 1"],
        "highest storage": at_ranks["storage at 1"],
        "nodes": seen.taking_part,
        "answers": seen.answers,
        **at_ranks,
    }


def rows_by(rows: Sequence[Row], *keys: str) -> dict[Any, Row]:
    """Rows, averaged over draws, by their only key or by a tuple of keys."""
    numbers = [name for name in rows[0] if name not in keys and name != "draw" and rows[0][name] is not None]
    means = averaged(rows, keys, [name for name in numbers if not isinstance(rows[0][name], str)])
    return {row[keys[0]] if len(keys) == 1 else tuple(row[key] for key in keys): row for row in means}


def ratios(rows: Sequence[Row], others: Sequence[Row], figure: str) -> list[float]:
    """A figure of rows as multiples of the same figure of others."""
    return [row[figure] / other[figure] for row, other in zip(rows, others, strict=True)]


def is_rising(values: Sequence[float]) -> bool:
    """Whether each value is above the one before."""
    return all(low < high for low, high in pairwise(values))


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The lowest and the highest of values, in words.

    >>> spread([3.14, 1.0]), spread([2.0])
    ('1.0 to 3.1', '2.0')
    """
    low, high = (f"{value:,.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def shares(row: Row, kind: str, ranks: Sequence[int] = (10, 100, 500)) -> list[float]:
    """How the loads at some ranks compare with the mean over nodes that take part: the pattern of a distribution."""
    mean = row[kind] / row["nodes"]
    return [row[f"{kind} at {rank}"] / mean for rank in ranks if row.get(f"{kind} at {rank}") is not None]


def is_alike(patterns: Sequence[Sequence[float]], factor: float) -> bool:
    """Whether distributions have the same pattern: at every rank within a factor."""
    return all(max(at_rank) <= factor * min(at_rank) for at_rank in zip(*patterns, strict=True))


def pattern_text(pattern: Sequence[float]) -> str:
    """The pattern of a distribution in words.

    >>> pattern_text([3.0, 1.25, 0.5])
    '3.00, 1.25, 0.50'
    """
    return ", ".join(f"{share:.2f}" for share in pattern)


def rising_verdicts(rows: Sequence[Row], sentence: Callable[[str], str]) -> list[str]:
    """For traffic, load and storage, whether they rise from row to row; the sentence is made of the figure's name."""
    figures = ("traffic", "grouped traffic", *TOTALS)
    return [finding(is_rising([row[figure] for row in rows]), sentence(figure)) for figure in figures]


def pattern_verdicts(rows: Sequence[Row], factor: float, sentence: Callable[[str, Sequence[str]], str]) -> list[str]:
    """For load and storage, whether all rows have the same pattern; the sentence is made of its name and patterns."""
    verdicts = []
    for kind in TOTALS:
        patterns = [shares(row, kind) for row in rows]
        verdicts.append(
            finding(is_alike(patterns, factor), sentence(kind, [pattern_text(pattern) for pattern in patterns]))
        )
    return verdicts
