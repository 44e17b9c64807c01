"""What one micro-batch does to the windows, step by step; how tasks are run is handed in, so Spark is not needed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from watersmeet.plan.nodes import MultiJoin
from watersmeet.program.join.stages import carried_classes
from watersmeet.program.site.ledger import (
    Ledger,
    Part,
    Segment,
    StreamState,
    choose_merges,
    expire,
    first_alive,
    index_name,
    lowest,
    merged_segment,
    watermark,
)
from watersmeet.program.storage.segments import TS
from watersmeet.query.windows import Rows, Unbounded
from watersmeet.spark.tasks import Batches, Merge, Release, Round

Report = dict[str, Any]  # what a task tells, see tasks.py
RunTasks = Callable[[Callable[[Batches], Batches], int], list[Report]]  # run a task once for each number below a count

_SEEN = "seen"  # the name under which remembered answers are merged


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a batch brings to the join: new segments by index, and for ROWS windows the order of the new rows."""

    segments: Mapping[str, tuple[Segment, ...]]
    order_files: Mapping[str, tuple[int, str | None]]  # alias -> rows before, file with the ts of the new ones


@dataclass(frozen=True)
class WindowEngine:
    """The steps of a batch: account, release, combine, tidy."""

    join: MultiJoin
    delays_us: Mapping[str, int]  # by stream
    state: str
    buckets: int
    run_tasks: RunTasks

    def speaker(self, stream: str) -> str:
        """The one alias that speaks for a stream where rows are counted or kept."""
        return next(scan.alias for scan in self.join.scans if scan.stream == stream)

    def watermarks(self, ledger: Ledger) -> dict[str, int | None]:
        """The watermark of every stream."""
        return {name: watermark(ledger.streams.get(name), delay) for name, delay in self.delays_us.items()}

    def counted(self, told: Sequence[Report]) -> list[Report]:
        """The reports in which each row of a stream appears once, however many aliases read it."""
        speakers = {self.speaker(stream) for stream in self.delays_us}
        return [row for row in told if row["alias"] in speakers]

    def account(self, ledger: Ledger, told: Sequence[Report]) -> Ledger:
        """Move the streams' marks and counters forward by what was ingested."""
        streams = {name: ledger.streams.get(name, StreamState()) for name in sorted(self.delays_us)}
        for row in self.counted(told):
            name = self.join.scan(row["alias"]).stream
            state = streams[name]
            streams[name] = StreamState(
                max((mark for mark in (state.max_ts, row["max_ts"]) if mark is not None), default=None),
                state.rows + row["rows"],
                state.late + row["late"],
                state.malformed + row["malformed"],
            )
        pending = dict(ledger.pending)
        for row in told:
            if "pending" in row:
                pending[row["alias"]] = (*pending.get(row["alias"], ()), segment_of(row["pending"]))
        return replace(ledger, streams=streams, pending=pending, null_keys=ledger.null_keys + total(told, "null_keys"))

    def arrive(self, ledger: Ledger, told: Sequence[Report]) -> tuple[Ledger, Arrived]:
        """The rows that join now: those just ingested or, where order counts, those all watermarks have passed."""
        if not self.join.ordered:
            return ledger, Arrived(_by_index(told), {})
        horizon = lowest(self.watermarks(ledger).values())
        before = {scan.alias: ledger.ordinals.get(scan.alias, 0) for scan in self.join.scans}
        released: dict[str, Report] = {}
        if horizon is not None and (ledger.released_to is None or horizon > ledger.released_to):
            task = Release(
                directory=self.state,
                scans=self.join.scans,
                carried=carried_classes(self.join),
                pending=ledger.pending,
                ordinals=before,
                released_from=ledger.released_to,
                released_to=horizon,
            )
            released = {row["alias"]: row for row in self.run_tasks(task, len(self.join.scans))}
            ledger = replace(
                ledger,
                released_to=horizon,
                ordinals={alias: count + released[alias]["released"] for alias, count in before.items()},
                pending={alias: expire(rows, TS, horizon) for alias, rows in ledger.pending.items()},
                null_keys=ledger.null_keys + total(list(released.values()), "null_keys"),
            )
        order_files = {
            scan.alias: (before[scan.alias], released.get(scan.alias, {}).get("order_file"))
            for scan in self.join.scans
            if isinstance(scan.window, Rows)
        }
        return ledger, Arrived(_by_index(list(released.values())), order_files)

    def combine(self, ledger: Ledger, arrived: Arrived) -> Round:
        """Run all rounds but the last, and return that one: it yields the new combinations, as often as it is run."""
        task = Round(
            directory=self.state,
            plan=self.join,
            number=0,
            buckets=self.buckets,
            old=ledger.windows,
            new=arrived.segments,
            order_files=arrived.order_files,
            moved={},
            finished={},
        )
        finished: dict[int, tuple[str, ...]] = {}
        while not task.is_last:
            moved: dict[str, tuple[str, ...]] = {}
            for row in self.run_tasks(task, self.buckets):
                if row["moves"]:
                    moved[row["head"]] = (*moved.get(row["head"], ()), row["path"])
                else:
                    finished[row["bucket"]] = (*finished.get(row["bucket"], ()), row["path"])
            task = replace(task, number=task.number + 1, moved=moved, finished=finished)
        return task

    def tidy(self, ledger: Ledger, arrived: Arrived) -> Ledger:
        """Put the new rows into the windows, give back what no head can reach any more, merge what has become many."""
        marks = self.watermarks(ledger)
        windows: dict[str, tuple[Segment, ...]] = {}
        groups: list[tuple[str, tuple[Segment, ...], str, int | None]] = []
        for scan in self.join.scans:
            axis, alive = first_alive(self.join, scan.alias, ledger, marks)
            for key in scan.stored:
                name = index_name(scan.alias, key)
                segments = (*ledger.windows.get(name, ()), *arrived.segments.get(name, ()))
                windows[name] = expire(segments, axis, alive)
                groups += [(name, g, axis, alive) for g in choose_merges(windows[name], scan.window, axis, alive)]
        windows[_SEEN] = ledger.seen
        groups += [(_SEEN, group, TS, None) for group in choose_merges(ledger.seen, Unbounded(), TS, None)]
        if groups:
            parts: dict[int, list[Part]] = {}
            for row in self.run_tasks(Merge(self.state, self.buckets, tuple(groups)), self.buckets):
                parts.setdefault(row["group"], []).append(Part(**row["part"]))
            for number, (name, group, axis, alive) in enumerate(groups):
                merged = merged_segment(group, parts.get(number, ()), axis, alive)
                rest = [segment for segment in windows[name] if segment not in group]
                windows[name] = tuple(rest) if merged is None else (merged, *rest)
        seen = windows.pop(_SEEN)
        return replace(ledger, windows=windows, seen=seen)


def segment_of(row: Report) -> Segment:
    """A segment as a task told of it."""
    return Segment(**row | {"parts": tuple(Part(**part) for part in row["parts"])})


def total(told: Sequence[Report], name: str) -> int:
    """The sum of a count over some reports."""
    return sum(row.get(name) or 0 for row in told)


def _by_index(told: Sequence[Report]) -> dict[str, tuple[Segment, ...]]:
    new: dict[str, tuple[Segment, ...]] = {}
    for row in told:
        for name, segment in row.get("segments", {}).items():
            new[name] = (*new.get(name, ()), segment_of(segment))
    return new
