"""Watersmeet: continuous multi-way window joins over streams, exact and fast, on Apache Spark.

>>> import watersmeet as wm
>>> stream = wm.Stream("a", event_time="ts", schema="k long, ts timestamp", source=wm.Source("parquet", "data/a"))
"""

from typing import TYPE_CHECKING, Any

from watersmeet.errors import CheckpointDamaged, CheckpointMismatch, InputError, RunError, WatersmeetError
from watersmeet.stats.model import Bin, ColumnStats, Histogram, Number, Stats, StreamStats
from watersmeet.topology.load import load_topology
from watersmeet.topology.model import (
    Adapt,
    HeadSteps,
    Link,
    LinkTransport,
    PlanStep,
    Query,
    Sink,
    Site,
    Source,
    Stream,
    Table,
    Topology,
)

if TYPE_CHECKING:
    from watersmeet.spark.frames import JoinedStream, sql
    from watersmeet.spark.handle import QueryHandle, StreamingRun
    from watersmeet.spark.run import start, start_site
    from watersmeet.spark.session import start_session

__version__ = "0.1.0"

__all__ = [
    "Adapt",
    "Bin",
    "CheckpointDamaged",
    "CheckpointMismatch",
    "ColumnStats",
    "HeadSteps",
    "Histogram",
    "InputError",
    "JoinedStream",
    "Link",
    "LinkTransport",
    "Number",
    "PlanStep",
    "Query",
    "QueryHandle",
    "RunError",
    "Sink",
    "Site",
    "Source",
    "Stats",
    "Stream",
    "Table",
    "StreamStats",
    "StreamingRun",
    "Topology",
    "WatersmeetError",
    "__version__",
    "load_topology",
    "sql",
    "start",
    "start_session",
    "start_site",
]

_FROM_SPARK = {
    "JoinedStream": "frames",
    "sql": "frames",
    "QueryHandle": "handle",
    "StreamingRun": "handle",
    "start": "run",
    "start_session": "session",
    "start_site": "run",
}


def __getattr__(name: str) -> Any:
    """Import the Spark runtime only when it is used: tasks and tools that need none of it start fast."""
    if name not in _FROM_SPARK:
        raise AttributeError(f"module 'watersmeet' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"watersmeet.spark.{_FROM_SPARK[name]}"), name)
