"""A first look at the sources of a run (`--first-look`), where nobody gave the statistics that plans need.

What was seen is kept beside the checkpoint, so that a restart plans by the same.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from watersmeet.errors import WatersmeetError
from watersmeet.query.sql import parse_query
from watersmeet.spark.statistics import estimate
from watersmeet.stats.model import Stats
from watersmeet.stats.yaml import filled, read_stats, write_stats
from watersmeet.topology.model import Query, Topology

ROWS, SECONDS = 20_000, 5.0  # of each stream
_FILE = "first-look-stats.yaml"


def is_wanted(topology: Topology, queries: Sequence[Query]) -> bool:
    """Whether plans are to be chosen over several sites, and the rate of a stream is not known."""
    chosen = [query for query in queries if query.plan is None and query.planner in (None, "auto")]
    if len(topology.sites) < 2 or not chosen or any(stream.frame is not None for stream in topology.streams):
        return False
    read: set[str] = set()
    for query in chosen:
        try:
            parsed = parse_query(query.sql, topology.columns, allow_cross=query.allow_cross)
        except WatersmeetError:  # over views, or one that planning refuses
            continue
        streams = {source.stream for source in parsed.sources}
        homes = {topology.stream(name).site for name in streams} | {topology.query_site(query)}
        if len(homes) > 1 and len(parsed.sources) > 1:
            read |= streams
    return any(topology.stats.stream(name).rate is None for name in read)


def with_first_look(spark: SparkSession, topology: Topology, queries: Sequence[Query], root: Path) -> Topology:
    """The topology with statistics of a first look: of an earlier start, else of now."""
    kept = root / _FILE
    if kept.exists():
        found = read_stats(kept, topology.columns)
    elif root.is_dir() and any(root.iterdir()):  # it has been planned without
        return topology
    else:
        found = _as_read_back(estimate(spark, topology, queries, rows=ROWS, seconds=SECONDS), topology)
    return replace(topology, stats=filled(topology.stats, found))


def _as_read_back(found: Stats, topology: Topology) -> Stats:
    """Statistics as a restart will read them: figures are rounded when they are written."""
    with tempfile.TemporaryDirectory(prefix="watersmeet-") as place:
        file = Path(place) / _FILE
        file.write_text(write_stats(found), encoding="utf-8")
        return read_stats(file, topology.columns)


def keep(topology: Topology, root: Path) -> bool:
    """Keep the statistics that a run was planned by; whether this is the first start with them."""
    kept = root / _FILE
    if not root.is_dir() or kept.exists():
        return False
    found = Stats(topology.stats.streams, topology.stats.selectivities)
    kept.write_text(write_stats(found), encoding="utf-8")
    return True
