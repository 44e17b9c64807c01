"""Beginning anew: what earlier runs of some queries have left is moved aside, never deleted.

A run is known by its checkpoint. Without it the answers that a sink holds would be given a second time: a new run
is refused such a sink, unless it is asked to begin anew.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from watersmeet.errors import CheckpointMismatch, InputError
from watersmeet.spark.checkpoint import IDENTITY, LEDGER, SPARK
from watersmeet.spark.deliver.storage import open_storage
from watersmeet.spark.durable import FLUSHED, lock
from watersmeet.spark.ingest.new_files import FILE_FORMATS
from watersmeet.spark.store.mirror import origin_of
from watersmeet.topology.model import Query, Sink, Topology


@dataclass(frozen=True)
class Move:
    """Something of earlier runs, and where it goes: a directory, or some files of one."""

    what: str
    source: str
    target: str
    names: tuple[str, ...] = ()  # of files; none for the directory as a whole

    def __str__(self) -> str:
        count = f"{_visible(self.names):,} files of " if self.names else ""
        return f"{self.what}: {count}{self.source} -> {self.target}"


def refuse_answered_sink(spark: SparkSession, query: Query, checkpoint: Path) -> None:
    """Refuse a new checkpoint for a sink that holds answers: they would all be given again."""
    is_used = any((checkpoint / name).exists() for name in (IDENTITY, LEDGER, SPARK))  # half of one is damaged, not new
    if is_used or query.foreach_batch is not None:
        return
    answered = _files_of(spark, query.sink, query.name)
    if answered is not None:
        raise CheckpointMismatch(
            f"query {query.name!r}: {query.sink.path} holds {_visible(answered[1]):,} files of answers of an earlier "
            f"run, and checkpoint {checkpoint} is new, so the same answers would be added again; go on with the "
            "checkpoint of that run, begin anew with --fresh (in Python fresh=True), which moves them aside, or give "
            "the query another sink"
        )


def moves(spark: SparkSession, topology: Topology, root: Path, links: Path, now: datetime | None = None) -> list[Move]:
    """What is in the way of beginning anew, and where each thing would go."""
    if (store := origin_of(root / "any")) is not None:
        raise InputError(
            f"checkpoint {store.url.rpartition('/')[0]} cannot be moved aside in its store; give --checkpoint another "
            "place and the queries other sinks, or remove it and the answers"
        )
    stamp = f"{now or datetime.now(UTC):%Y%m%d-%H%M%S}"
    found = [
        Move(what, str(place), f"{place}.before-{stamp}")
        for what, place in (("checkpoint", root), ("links", links))
        if place.is_dir() and any(place.iterdir())
    ]
    for what, sink, owner in _sinks(topology):
        if (held := _files_of(spark, sink, owner)) is not None:
            directory, names = held
            found.append(Move(what, directory, f"{directory}.before-{stamp}", tuple(names)))
    return found


def move_aside(spark: SparkSession, some: Sequence[Move]) -> None:
    """Move what earlier runs have left; refused while one of them is still at it."""
    for move in some:
        if move.what == "checkpoint":
            for site in sorted(path.parent for path in Path(move.source).glob(f"*/{IDENTITY}")):
                lock(site).close()
    for move in some:
        storage, target = open_storage(spark, move.target, FLUSHED)
        if not move.names:
            storage.move(move.source, target)
        for number, name in enumerate(move.names):
            if not number:
                storage.make(target, lasting=True)
            storage.move(f"{move.source}/{name}", f"{target}/{name}")


def _sinks(topology: Topology) -> Iterator[tuple[str, Sink, str]]:
    """Where the queries of a topology write, and by which name their files are known."""
    for query in topology.queries:
        if query.foreach_batch is None:
            yield f"answers of {query.name}", query.sink, query.name
        if query.failed is not None:
            yield f"failed rows of {query.name}", query.failed, query.name
    for stream in topology.streams:
        if stream.late is not None:
            yield f"late rows of {stream.name}", stream.late, stream.name


def _visible(names: Sequence[str]) -> int:
    """How many files readers see: claims of writers are hidden."""
    return sum(not name.startswith(".") for name in names)


def _files_of(spark: SparkSession, sink: Sink, owner: str) -> tuple[str, list[str]] | None:
    """The directory of a sink, the files there that runs have published for an owner, and claims; None if none."""
    if sink.format not in FILE_FORMATS or not sink.path:
        return None
    run = rf"{re.escape(owner)}-(\w+-)?[0-9a-f]{{8}}"
    published, claimed = re.compile(rf"part-{run}-\d{{8,}}-\d{{5}}"), re.compile(rf"\.writer-{run}-\d{{8,}}")
    storage, directory = open_storage(spark, sink.path, FLUSHED)
    there = storage.names(directory)
    names = [name for name in there if published.match(name)]
    return (directory, names + [name for name in there if claimed.fullmatch(name)]) if names else None
