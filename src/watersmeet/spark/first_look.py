"""A first look at the sources of a run over several sites, where nobody gave the statistics that plans need.

What was seen is kept with the checkpoint, so that a restart plans by the same.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

from watersmeet.errors import CheckpointDamaged, InputError, WatersmeetError
from watersmeet.spark.checkpoint import IDENTITY
from watersmeet.spark.durable import Disk
from watersmeet.spark.ingest import generator
from watersmeet.spark.ingest.new_files import FILE_FORMATS
from watersmeet.spark.ingest.tables import with_table_schemas
from watersmeet.spark.outputs import BoundOutputs, bind_outputs
from watersmeet.spark.statistics import estimate
from watersmeet.spark.store.mirror import store_of
from watersmeet.stats.model import Stats
from watersmeet.stats.yaml import filled, read_stats, write_stats
from watersmeet.topology.model import Query, Stream, Table, Topology

ROWS, SECONDS = 20_000, 5.0  # of each stream
_FILE = "first-look-stats.yaml"
_CURE = "run `watersmeet stats` and name its file as stats_file"


@dataclass(frozen=True)
class FirstLook:
    """A topology with what was seen of its sources, and what is to be said of it."""

    topology: Topology
    text: str = ""  # of the statistics, to be kept; empty if nothing was looked at now
    sentence: str = ""


def first_look(
    spark: SparkSession, topology: Topology, queries: Sequence[Query], root: Path | None = None
) -> FirstLook:
    """Look at the streams whose rates plans need and nobody gave.

    A restart with the checkpoint at `root` goes by what was seen at first, or plans without, as it did then.
    """
    if root is not None and _has_begun(root):
        kept = _kept(root)
        try:
            return FirstLook(topology if kept is None else _with(topology, kept))
        except InputError:
            raise CheckpointDamaged(
                f"checkpoint {root}: {_FILE}, by which plans were chosen, is damaged; restore it from a copy or remove "
                "it, and plans are chosen without it"
            ) from None
    wanted, unseen = _unknown(spark, topology, queries)
    rows = dict.fromkeys(wanted, 0)
    sentences, text = [], ""
    if wanted:
        try:
            text = write_stats(
                estimate(spark, topology, queries, only=wanted, rows=ROWS, seconds=SECONDS, tell=rows.__setitem__)
            )
        except WatersmeetError as error:
            sentences = [f"the sources could not be looked at before the start: {error}"]
        else:
            seen = ", ".join(f"{rows[name]:,} rows of {name}" if rows[name] else f"none of {name}" for name in wanted)
            sentences = [f"no statistics are given: planned by a first look at the sources ({seen}); {_CURE} for more"]
    if unseen:
        sentences.append(f"{_come_with_time(unseen)}; {_CURE}")
    return FirstLook(_with(topology, text) if text else topology, text, "; ".join(sentences))


def without_a_look(spark: SparkSession, topology: Topology, queries: Sequence[Query]) -> str:
    """What is to be said where a site plans by itself and statistics are missing; empty if none are."""
    wanted, unseen = _unknown(spark, topology, queries)
    if not wanted and not unseen:
        return ""
    names = ", ".join(sorted({*wanted, *(stream.name for stream in unseen)}))
    return (
        f"no statistics are given of {names}, and sites that run by themselves plan by the file alone, so all rows go "
        f"to the query's site; {_CURE}"
    )


def keep(look: FirstLook, root: Path) -> None:
    """Keep the statistics that a run is planned by."""
    if not look.text:
        return
    disk = Disk(look.topology.survives_power_cuts)
    disk.make(root)
    disk.replace(root / _FILE, look.text)
    if (store := store_of(root)) is not None:
        store.put(_FILE, look.text.encode())


def _kept(root: Path) -> str | None:
    """The statistics of the first start with a checkpoint, if it looked."""
    if (root / _FILE).exists():
        return (root / _FILE).read_text(encoding="utf-8", errors="replace")
    store = store_of(root)
    stored = None if store is None else store.get(_FILE)
    return None if stored is None else stored.data.decode()


def _has_begun(root: Path) -> bool:
    return any(root.glob(f"*/{IDENTITY}"))


def _with(topology: Topology, text: str) -> Topology:
    """The topology with statistics as a restart will read them: figures are rounded when they are written."""
    with tempfile.TemporaryDirectory(prefix="watersmeet-") as place:
        file = Path(place) / _FILE
        file.write_text(text, encoding="utf-8")
        return replace(topology, stats=filled(topology.stats, read_stats(file, topology.columns)))


def _unknown(
    spark: SparkSession, topology: Topology, queries: Sequence[Query]
) -> tuple[tuple[str, ...], tuple[Stream, ...]]:
    """The streams to be looked at, and those that plans would need too and whose rows only come with time."""
    if len(topology.site_names) < 2 or all(_is_known(stream, topology.stats) for stream in topology.sources):
        return (), ()
    try:
        read = list(_read_by_plans(bind_outputs(spark, with_table_schemas(spark, topology), queries)))
    except WatersmeetError:  # which the start will tell
        return (), ()
    wanted: set[str] = set()
    unseen: dict[str, Stream] = {}
    for names in read:
        unknown = [topology.stream(name) for name in sorted(names)]
        unknown = [stream for stream in unknown if not _is_known(stream, topology.stats)]
        if later := [stream for stream in unknown if not _can_be_seen(stream)]:
            unseen |= {stream.name: stream for stream in later}  # without them the others help no plan
        else:
            wanted |= {stream.name for stream in unknown}
    return tuple(sorted(wanted)), tuple(unseen.values())


def _read_by_plans(bound: BoundOutputs) -> Iterator[frozenset[str]]:
    """For each SELECT that a planner plans over several sites, what it reads, below views too."""
    below: dict[str, frozenset[str]] = {}
    homes = bound.topology.homes
    for asked in bound.asked:
        sources = {name: below.get(name, frozenset([name])) for name in asked.output.streams}
        below[asked.output.target.name] = frozenset().union(*sources.values())
        for name, parsed in asked.output.branches:
            query = bound.topology.query(name)
            streams = {source.stream for source in parsed.sources}
            if query.plan is not None or query.planner == "central" or len(parsed.sources) < 2:
                continue
            if {homes[stream] for stream in streams} != {bound.topology.query_site(query)}:
                yield frozenset().union(*(sources[stream] for stream in streams))


def _is_known(stream: Stream, stats: Stats) -> bool:
    known = stats.stream(stream.name)
    return (known.rows if isinstance(stream, Table) else known.rate) is not None


def _can_be_seen(stream: Stream) -> bool:
    """Whether its rows are there before the run, or can be made."""
    if stream.source is None:
        return False
    return isinstance(stream, Table) or stream.source.format in (*FILE_FORMATS, generator.FORMAT)


def _come_with_time(unseen: Sequence[Stream]) -> str:
    named = ", ".join(
        f"{stream.name} ({'a frame' if stream.source is None else stream.source.format})" for stream in unseen
    )
    return f"rows of {named} only come with time and cannot be looked at before, so all rows go to the query's site"
