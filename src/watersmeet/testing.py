"""A test kit: run a query's windows in this process, without Spark, and compare bags of rows.

The very tasks that Spark runs are called one after the other here; DuckDB stands in for Spark's expressions, so that
hundreds of random queries can be tried in seconds.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from watersmeet.plan.nodes import MultiJoin, Plan, Scan, join_of
from watersmeet.planners.local import local
from watersmeet.program.join.stages import carried_classes
from watersmeet.program.site.ledger import Ledger
from watersmeet.query.model import JoinQuery
from watersmeet.sim.sites.rows import HASH, finish, lay_out, typed
from watersmeet.spark.engine import Report, WindowEngine
from watersmeet.spark.files import remove_all_but
from watersmeet.spark.tasks import Batches, FileWindows, Ingest


def bag(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """The rows of a table with their counts; NaN equals NaN."""
    columns = [table.column(name).to_pylist() for name in table.column_names]
    return Counter(tuple(map(_comparable, row)) for row in zip(*columns, strict=True))


def _comparable(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    return tuple(sorted(value.items())) if isinstance(value, dict) else value


class InProcess:
    """A query fed batch by batch in this process."""

    def __init__(
        self,
        query: JoinQuery,
        schemas: Mapping[str, pa.Schema],
        event_times: Mapping[str, str],
        directory: Path,
        *,
        delays_us: Mapping[str, int] | None = None,
        buckets: int = 2,
        start_us: int | None = None,
        hash_sql: str = HASH,
    ) -> None:
        self._event_times = event_times
        self._schemas = schemas
        self._start_us = start_us
        self._hash_sql = hash_sql
        self._directory = directory
        self._state = str(directory / "state")
        os.makedirs(self._state)
        self.plan: Plan = local(typed(query, schemas), {name: schema.names for name, schema in schemas.items()})
        self.join: MultiJoin = join_of(self.plan)
        delays = {scan.stream: (delays_us or {}).get(scan.stream, 0) for scan in self.join.scans}
        self.engine = WindowEngine(self.join, delays, self._state, buckets, run_tasks)
        self.ledger = Ledger()

    def batch(self, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Feed new rows of some streams; returns the new answers."""
        told = [row for scan in self.join.scans if scan.stream in tables for row in self._ingest(scan, tables)]
        ledger = self.engine.account(replace(self.ledger, batch=self.ledger.batch + 1), told)
        ledger, arrived = self.engine.arrive(ledger, told)
        batches: list[pa.RecordBatch] = []
        if arrived.segments:
            task = self.engine.combine(self.ledger, arrived)
            batches = [batch for n in range(self.engine.buckets) for batch in task(_number(n)) if batch.num_rows]
        self.ledger = Ledger.from_json(self.engine.tidy(ledger, arrived).to_json())
        (self._directory / "ledger.json").write_text(self.ledger.to_json(), encoding="utf-8")
        remove_all_but(self._state, self.ledger.paths)
        return finish(self.plan, [pa.Table.from_batches(batches)] if batches else [], self._schemas)

    def _ingest(self, scan: Scan, tables: Mapping[str, pa.Table]) -> list[Report]:
        task = Ingest(
            directory=self._state,
            ledger_path=str(self._directory / "ledger.json"),
            scan=scan,
            file=FileWindows(self._state, scan, carried_classes(self.join), self.join.ordered),
            delay_us=self.engine.delays_us[scan.stream],
            start_us=self._start_us,
            raw_columns=(),
            spare_columns=(),
        )
        rows = lay_out(scan, self.join.classes, tables[scan.stream], self._event_times[scan.stream], self._hash_sql)
        return told_by(task, iter(rows.to_batches()))


def run_tasks(task: Callable[[Batches], Batches], count: int) -> list[Report]:
    """Run a task for each number, here and now."""
    return [row for number in range(count) for row in told_by(task, _number(number))]


def told_by(task: Callable[[Batches], Batches], batches: Batches) -> list[Report]:
    """What a task reports about some batches."""
    return [json.loads(row) for batch in task(batches) for row in batch.column(0).to_pylist()]


def _number(number: int) -> Batches:
    return iter([pa.RecordBatch.from_pydict({"id": [number]})])


def split(table: pa.Table, cuts: Iterable[int]) -> list[pa.Table]:
    """A table in consecutive pieces."""
    edges = [0, *sorted(cuts), table.num_rows]
    return [table.slice(low, high - low) for low, high in pairwise(edges)]
