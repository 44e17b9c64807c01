"""Many independent points as one Spark job, a task for each."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from pyspark.sql import SparkSession

from watersmeet.errors import RunError, first_line

Result = TypeVar("Result")

_POLL_S = 0.2


def sweep(
    spark: SparkSession,
    function: Callable[[Any], Result],
    points: Sequence[Any],
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> list[Result]:
    """`function(point)` for every point, in the order of the points; `progress` hears how many are done."""
    if not points:
        return []
    group = f"watersmeet-sweep-{uuid4().hex}"
    outcome: dict[str, Any] = {}
    job = threading.Thread(target=_run_job, args=(spark, group, function, points, outcome), daemon=True)
    progress(0, len(points))
    job.start()
    reported = 0
    try:
        while job.is_alive():
            job.join(_POLL_S)
            done = _done(spark, group)
            if reported < done < len(points):
                reported = done
                progress(done, len(points))
    except BaseException:
        spark.sparkContext.cancelJobGroup(group)
        raise
    if "error" in outcome:
        raise RunError(f"Spark did not finish the points: {first_line(outcome['error'])}") from outcome["error"]
    results: list[Result] = []
    for point, (result, problem) in zip(points, outcome["found"], strict=True):
        if problem is not None:
            raise RunError(f"{point} failed: {problem}")
        results.append(result)
    progress(len(points), len(points))
    return results


def _run_job(
    spark: SparkSession, group: str, function: Callable[[Any], Any], points: Sequence[Any], outcome: dict[str, Any]
) -> None:
    context = spark.sparkContext
    try:
        context.setJobGroup(group, "watersmeet sweep", interruptOnCancel=True)  # of this thread
        outcome["found"] = context.parallelize(points, len(points)).map(partial(_attempt, function)).collect()
    except Exception as error:
        outcome["error"] = error


def _attempt(function: Callable[[Any], Any], point: Any) -> tuple[Any, str | None]:
    """The result of a point, or what went wrong: a task that fails would take the others with it."""
    try:
        return function(point), None
    except Exception as error:
        return None, f"{type(error).__name__}: {first_line(error)}"


def _done(spark: SparkSession, group: str) -> int:
    tracker = spark.sparkContext.statusTracker()
    stages = [
        stage
        for job in tracker.getJobIdsForGroup(group)
        if (info := tracker.getJobInfo(job)) is not None
        for stage in info.stageIds
    ]
    found = (tracker.getStageInfo(stage) for stage in stages)
    return sum(stage.numCompletedTasks for stage in found if stage is not None)
