"""Running an experiment, here one point after the other, or by whoever runs points in parallel."""

from collections.abc import Callable, Sequence
from typing import Any

from watersmeet.errors import RunError
from watersmeet.reproduce.experiment import Experiment, Row

Progress = Callable[[int, int], object]  # points done, points in all
Parallel = Callable[[Callable[[Any], Row], Sequence[Any], Progress], list[Row]]


def run_all(
    experiment: Experiment,
    points: Sequence[Any],
    parallel: Parallel | None = None,
    progress: Progress = lambda done, total: None,
) -> list[Row]:
    """The rows of all points, in their order."""
    if parallel is not None:
        return parallel(experiment.run, points, progress)
    rows = []
    progress(0, len(points))
    for point in points:
        try:
            rows.append(experiment.run(point))
        except Exception as error:
            raise RunError(f"{experiment.name} failed at {point}: {error or type(error).__name__}") from error
        progress(len(rows), len(points))
    return rows
