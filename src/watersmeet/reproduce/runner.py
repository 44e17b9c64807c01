"""Running an experiment, here one point after the other, or by whoever runs points in parallel."""

from collections.abc import Callable, Sequence
from typing import Any

from watersmeet.errors import RunError
from watersmeet.reproduce.experiment import Experiment, Row

Progress = Callable[[int, int], object]  # points done, points in all
Found = Row | list[Row]  # of one point
Parallel = Callable[[Callable[[Any], Found], Sequence[Any], Progress], list[Found]]


def run_all(
    experiment: Experiment,
    points: Sequence[Any],
    parallel: Parallel | None = None,
    progress: Progress = lambda done, total: None,
) -> list[Row]:
    """The rows of all points, in their order."""
    found = parallel(experiment.run, points, progress) if parallel else _run_here(experiment, points, progress)
    return [row for rows in found for row in (rows if isinstance(rows, list) else [rows])]


def _run_here(experiment: Experiment, points: Sequence[Any], progress: Progress) -> list[Found]:
    found: list[Found] = []
    progress(0, len(points))
    for point in points:
        try:
            found.append(experiment.run(point))
        except Exception as error:
            raise RunError(f"{experiment.name} failed at {point}: {error or type(error).__name__}") from error
        progress(len(found), len(points))
    return found
