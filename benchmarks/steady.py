"""The steady state of a run: when the answers of each micro-batch became visible, and where a micro-batch's time goes.

The first sixth of the micro-batches (ten of 60, two of 12) is left out: compilers and caches warm up there.
"""

import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from oracle import parquet_files
from ours import EVENTS, PROGRESS

_OURS = re.compile(r"part-.*-(\d{8})-\d{5}(?:-\d+)?\.")
_LOG_ENTRY = re.compile(r"(\d+)(\.compact)?")
SPARK_LOG = "_spark_metadata"

# Spark's own names of what it does in a micro-batch, in this order; the whole is `triggerExecution`.
SPARK_PHASES = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "commitBatch", "commitOffsets")
INTERVAL = "**from one micro-batch to the next**"
JOIN_THREAD = "**join thread, beside it**"
DELIVERY = "delivery: from joined to the answers' file, beside both"


def warm_up(batches: int) -> int:
    """How many micro-batches are left out.

    >>> warm_up(60), warm_up(12), warm_up(3)
    (10, 2, 1)
    """
    return max(1, batches // 6)


def answer_times(output: Path) -> dict[int, float]:
    """By micro-batch, when its answers became visible, in seconds since 1970.

    Watersmeet renames a complete file into place. Spark's file sink writes into the directory and then names the files
    of a micro-batch in its log, `_spark_metadata`: readers of the sink see them from then on.
    """
    times: dict[int, float] = {}
    for batch, file in _witnesses(output):
        times[batch] = max(times.get(batch, 0.0), file.stat().st_ctime)
    return dict(sorted(times.items()))


def visible_files(output: Path) -> dict[Path, Path]:
    """Each file of answers that readers can see, with the file whose appearance made it so."""
    found: dict[Path, Path] = {}
    for _, witness in sorted(_witnesses(output)):
        if witness.parent.name == SPARK_LOG:
            entries = [json.loads(line) for line in witness.read_text().splitlines()[1:]]  # the first is a version
            for entry in entries:
                found.setdefault(Path(unquote(urlparse(entry["path"]).path)), witness)
        else:
            found[witness] = witness
    return found


def _witnesses(output: Path) -> Iterator[tuple[int, Path]]:
    """The files whose appearance makes the answers of a micro-batch visible."""
    log = output / SPARK_LOG
    if log.is_dir():
        for file in log.iterdir():
            if match := _LOG_ENTRY.fullmatch(file.name):
                yield int(match[1]), file
    elif output.is_dir():
        for file in parquet_files(output):
            if match := _OURS.match(file.name):
                yield int(match[1]), file


def rows_per_second(answered_at: Mapping[int, float], batch_rows: float, skip: int) -> float | None:
    """Input rows a second from the answers of the micro-batch number `skip` to the last ones; None if that is nothing.

    >>> rows_per_second({1: 10.0, 2: 18.0, 3: 20.0, 4: 22.0}, batch_rows=100, skip=2)
    50.0
    """
    batches = sorted(answered_at)
    if len(batches) <= skip:
        return None
    first, last = batches[skip - 1], batches[-1]
    seconds = answered_at[last] - answered_at[first]
    return (last - first) * batch_rows / seconds if seconds > 0 else None


def breakdown_of(directory: Path, skip: int, answered_at: Mapping[int, float]) -> dict[str, float]:
    """The same from the files that a profiled run has left."""
    return breakdown(_json_lines(directory / PROGRESS), _json_lines(directory / EVENTS), answered_at, skip)


def breakdown(
    progress: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    answered_at: Mapping[int, float],
    skip: int,
) -> dict[str, float]:
    """Mean seconds of a micro-batch after the first `skip`, by what they are spent on.

    Up to the interval the lines add up: they are what Spark's thread does. The join and the delivery of a micro-batch
    run beside it, during the next ones. `progress` is Spark's, each with the seconds spent in our code as `ours_s`.
    """
    completed = _completed(events)
    if len(progress) != len(completed) or len(progress) < skip + 2:
        return {}
    steady, ours = list(progress)[skip:-1], completed[skip:-1]  # from the start of each to the start of the next
    begun = [datetime.fromisoformat(one["timestamp"]).timestamp() for one in (progress[skip], progress[-1])]
    interval = (begun[1] - begun[0]) / len(steady)
    named = {name for one in steady for name in one["durationMs"]}
    order = [*(name for name in SPARK_PHASES if name in named), *sorted(named.difference(SPARK_PHASES))]
    spark = {name: _mean(one["durationMs"].get(name, 0) / 1e3 for one in steady) for name in order}
    trigger, add_batch = spark.pop("triggerExecution"), spark.pop("addBatch")
    our_code = _mean(one["ours_s"] for one in steady)
    phases = phase_means(ours)
    ingest, waiting = phases.pop("ingest"), phases.pop("wait for the join before")
    # A micro-batch is committed when it is ingested and again when it is joined; the events have the sum.
    first_commit = max(0.0, our_code - ingest - waiting)
    phases["commit"] = max(0.0, phases["commit"] - first_commit)
    lines = {f"Spark: {name}": seconds for name, seconds in spark.items()}
    lines["Spark: addBatch beyond our code"] = max(0.0, add_batch - our_code)
    lines["ingest"] = ingest
    lines["wait for the join before"] = waiting
    lines["commit of what was ingested, and waiting for sinks"] = first_commit
    lines["Spark: the rest of the trigger"] = max(0.0, trigger - add_batch - sum(spark.values()))
    lines["Spark: between triggers"] = max(0.0, interval - trigger)
    lines[INTERVAL] = interval
    lines |= {f"join thread: {name}": seconds for name, seconds in phases.items()}
    lines[JOIN_THREAD] = sum(phases.values())
    lines[DELIVERY] = delivery_seconds(ours, answered_at)
    return lines


def phases_of(events: Path, skip: int, answered_at: Mapping[int, float]) -> dict[str, float]:
    """Mean seconds of our own phases after the first `skip` micro-batches, as the command line's events tell them."""
    steady = _completed(_json_lines(events))[skip:]
    return phase_means(steady) | {DELIVERY: delivery_seconds(steady, answered_at)} if steady else {}


def phase_means(completed: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean seconds of each phase over some micro-batches."""
    names = dict.fromkeys(name for event in completed for name in event["phases"])
    return {name: _mean(event["phases"].get(name, 0.0) for event in completed) for name in names}


def delivery_seconds(completed: Sequence[Mapping[str, Any]], answered_at: Mapping[int, float]) -> float:
    """Mean seconds from the report of a micro-batch, when its answers are joined and committed, to their file."""
    return _mean(max(0.0, answered_at[e["batch"]] - e["at"]) for e in completed if e["batch"] in answered_at)


def _completed(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [event for event in events if event["event"] == "micro_batch_completed"]


def breakdown_rows(breakdowns: Mapping[int, Mapping[str, float]]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the table of phases, one column for each number of micro-batches."""
    header = ["", *(f"{batches} micro-batches" for batches in breakdowns)]
    names = list(dict.fromkeys(name for breakdown in breakdowns.values() for name in breakdown))
    return header, [
        [name, *(f"{breakdown.get(name, 0.0) * 1e3:,.1f}" for breakdown in breakdowns.values())] for name in names
    ]


def median(values: Sequence[float | None], form: str) -> str:
    """The median of what is known, as text."""
    known = [value for value in values if value is not None]
    return format(statistics.median(known), form) if known else ""


def _mean(values: Any) -> float:
    known = list(values)
    return sum(known) / len(known) if known else 0.0


def _json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
