"""What the experiments on shared aggregates have in common: matrices, algorithms by name, and how they are timed."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import log2

import numpy as np

from watersmeet.reproduce.experiment import Row
from watersmeet.sharing.basic import decomposed_rows
from watersmeet.sharing.bits import Bools
from watersmeet.sharing.compose import STRATEGIES, add_composition, basic_composition
from watersmeet.sharing.cover import rectangle_cover
from watersmeet.sharing.factors import factorise
from watersmeet.sharing.gains import effectiveness
from watersmeet.sharing.linear import exact_linear
from watersmeet.sharing.workloads import duplicate_insensitive, duplicate_sensitive

Algorithm = Callable[[Bools], int]  # a matrix to the size of A'

DRAWS, QUICK_DRAWS = 10, 1
FIGURES = ("A' size", "effective %", "ms")
EXACT, COVER, DECOMPOSITION = "exact", "rectangle cover", "Basic Decomposition"
STRICT_LU = 1e-15  # a tolerance so close to the rounding of doubles that dependent rows seem independent


def _size_of_factors(method: str, tolerance: float | None, matrix: Bools) -> int:
    return factorise(matrix, method, tolerance).size  # type: ignore[arg-type]


LINEAR: Mapping[str, Algorithm] = {
    "LU, tolerance 1e-15": partial(_size_of_factors, "LU", STRICT_LU),
    "LU": partial(_size_of_factors, "LU", None),
    "LU echelon": partial(_size_of_factors, "LU echelon", None),
    "QR": partial(_size_of_factors, "QR", None),
    "SVD": partial(_size_of_factors, "SVD", None),
    EXACT: lambda matrix: exact_linear(matrix).size,
    DECOMPOSITION: lambda matrix: decomposed_rows(matrix).size,
}


def _add(strategy: str, matrix: Bools) -> int:
    return add_composition(matrix, strategy).size


def _basic(strategy: str, matrix: Bools) -> int:
    return basic_composition(matrix, strategy).size


BASIC_STRATEGIES = ("M/A/W", "O/A", "O/R")
COMPOSITIONS: Mapping[str, Algorithm] = {
    **{f"Basic-{strategy}": partial(_basic, strategy) for strategy in BASIC_STRATEGIES},
    **{f"Add-{strategy}": partial(_add, strategy) for strategy in STRATEGIES},
    COVER: lambda matrix: rectangle_cover(matrix).size,
    DECOMPOSITION: lambda matrix: decomposed_rows(matrix).size,
}


@dataclass(frozen=True, slots=True)
class Point:
    """One random matrix: its size, its number of basis rows, and the number of the draw."""

    fragments: int
    queries: int
    basis: int
    draw: int
    algorithms: tuple[str, ...]

    @property
    def size(self) -> str:
        """As the tables of the paper name it."""
        return f"{self.fragments}x{self.queries}"


def points_of(
    shapes: Mapping[int, Sequence[int]], queries: int, algorithms: Iterable[str], draws: int, *, quick: bool
) -> tuple[Point, ...]:
    """The draws of a table: for each number of fragments, its numbers of basis rows; quick: every fourth of them."""
    names = tuple(algorithms)
    return tuple(
        Point(fragments, queries, basis, draw, names)
        for fragments, bases in shapes.items()
        for basis in (bases[::4] if quick else bases)
        for draw in range(draws)
    )


def square_points(sizes: Sequence[int], algorithms: tuple[str, ...], draws: int) -> tuple[Point, ...]:
    """Square matrices of some sizes with half as many basis rows as queries."""
    return tuple(Point(size, size, size // 2, draw, algorithms) for size in sizes for draw in range(draws))


def power_of_growth(rows: Sequence[Row]) -> tuple[float, int, float]:
    """The time at the largest size in ms, that size, and the power of it with which time grows from the one before."""
    before, last = sorted({row["queries"] for row in rows})[-2:]
    times = [mean_of([row for row in rows if row["queries"] == size], "ms") for size in (before, last)]
    return times[1], last, log2(times[1] / times[0]) / log2(last / before)


def run_linear(point: Point) -> list[Row]:
    """All algorithms of a point on a matrix for sums."""
    matrix = duplicate_sensitive(point.fragments, point.queries, point.basis, point.draw)
    return _rows(point, matrix, LINEAR)


def run_compositions(point: Point) -> list[Row]:
    """All algorithms of a point on a matrix for MAX and the like."""
    matrix = duplicate_insensitive(point.fragments, point.queries, point.basis, point.draw)
    return _rows(point, matrix, COMPOSITIONS)


def _rows(point: Point, matrix: Bools, algorithms: Mapping[str, Algorithm]) -> list[Row]:
    rows = []
    for name in point.algorithms:
        algorithm = algorithms[name]
        _prime(name, algorithm)
        begin = time.process_time()
        size = algorithm(matrix)
        spent = time.process_time() - begin
        rows.append(
            {
                "F size": point.size,
                "queries": point.queries,
                "basis rows": point.basis,
                "algorithm": name,
                "draw": point.draw,
                "A' size": size,
                "effective %": 100 * effectiveness(point.queries, size, point.basis),
                "ms": 1000 * spent,
            }
        )
    return rows


_SMALL = 12


@cache
def _prime(name: str, algorithm: Algorithm) -> None:
    """Load and compile before anything is timed, as the paper does."""
    algorithm(np.tri(_SMALL, dtype=np.bool_))


def summary(rows: Sequence[Row], figure: str) -> tuple[float, float]:
    """Mean and standard deviation of a figure."""
    values = np.array([row[figure] for row in rows], np.float64)
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0


def by_algorithm(rows: Sequence[Row], size: str | None = None) -> dict[str, list[Row]]:
    """The rows of each algorithm, in order of appearance."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if size is None or row["F size"] == size:
            found.setdefault(row["algorithm"], []).append(row)
    return found


def mean_of(rows: Sequence[Row], figure: str) -> float:
    """The mean of a figure."""
    return summary(rows, figure)[0]
