"""Which queries a start goes on with: those that the checkpoint has, where a change of them is not finished yet."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from watersmeet.errors import CheckpointDamaged, CheckpointMismatch, InputError
from watersmeet.program.site.agreement import Takeover, Versions, proposer_of
from watersmeet.program.site.changes import Change
from watersmeet.program.site.engine import read_versions
from watersmeet.spark.checkpoint import LEDGER, Checkpoint, check_files, read_ledger
from watersmeet.spark.definitions import (
    Definition,
    read_definition,
    read_stream,
    read_topology,
    topology_text,
)
from watersmeet.spark.durable import UNFLUSHED, lock
from watersmeet.spark.requests import requests_in
from watersmeet.spark.store.mirror import origin_of, shelf_of
from watersmeet.spark.verify import site_checkpoints
from watersmeet.topology.difference import differences
from watersmeet.topology.model import BatchFunction, Query, Table, Topology

_TOPOLOGY = "topology.json"  # what a site was asked to run
_ATTEMPTS = 50


def known_versions(root: Path, sites: Iterable[str], *, at_start: bool = False) -> dict[str, Versions]:
    """By site, the versions that checkpoints have; nothing is locked or written.

    A start goes on with them: then half a checkpoint is refused, and no file is trusted that was verified before.
    """
    found = {}
    for site in sites:
        if (root / site / LEDGER).exists() and (versions := _read(root / site, at_start=at_start)) is not None:
            found[site] = versions
    return found


def _read(checkpoint: Path, *, at_start: bool) -> Versions | None:
    shelf = shelf_of(checkpoint)
    if at_start:
        shelf.verify_again()
    for attempt in range(_ATTEMPTS):
        ledger = read_ledger(checkpoint)
        try:
            if at_start and origin_of(checkpoint) is None:  # else once it is held: it may be run elsewhere
                check_files(checkpoint, ledger)
            return read_versions(shelf, ledger) if ledger.versions else None
        except CheckpointDamaged:
            if attempt == _ATTEMPTS - 1 or read_ledger(checkpoint) == ledger:
                raise
            # A process that runs it has committed another ledger meanwhile, and removed what it no longer names.
    return None


def latest(known: Mapping[str, Versions]) -> Versions | None:
    """The versions of a site that has gone furthest."""
    return max(known.values(), key=lambda versions: versions.deployment.revision, default=None)


def current_definitions(known: Mapping[str, Versions]) -> dict[str, str]:
    """By query that is in force, the name of what it asks for (see `Finish.definition`)."""
    versions = latest(known)
    if versions is None:
        return {}
    return {finish.query: finish.definition for joined in versions.deployment.in_force for finish in joined.finishes}


def resumed(topology: Topology, known: Mapping[str, Versions], root: Path) -> Topology:
    """The topology to start with: with the queries that are deployed, if it is what a change is to lead to."""
    versions, names = latest(known), current_definitions(known)
    if versions is None or not all(versions.queries.get(name) for name in names.values()):
        return topology
    deployed = {query: versions.queries[name] for query, name in names.items()}
    for goal in _goals(topology, known, deployed, root):
        if differences(goal, with_settled(topology, goal)).is_same_queries:
            return _with_queries(topology, known, deployed)
    return with_settled(topology, _with_queries(topology, known, deployed))


def _goals(
    topology: Topology, known: Mapping[str, Versions], deployed: Mapping[str, str], root: Path
) -> Iterator[Topology]:
    """What the changes lead to that are under way, queued or asked for."""
    for versions in known.values():
        under_way = () if versions.proposal is None else (versions.proposal.change,)
        queries, streams = dict(deployed), dict[str, str]()
        for change in (*under_way, *versions.queue):
            queries, streams = _after(queries, change), {**streams, **change.streams}
            yield _with_queries(topology, known, queries, streams)
    for site in known:
        for request in requests_in(root / site):
            yield replace(read_topology(request.topology), tables=topology.tables)  # with the schemas that they have


def _after(queries: Mapping[str, str], change: Change) -> dict[str, str]:
    left = {name: text for name, text in queries.items() if name not in change.removed}
    return left | {plan.query: plan.definition for plan in change.plans if plan.is_fresh and plan.definition}


def _with_queries(
    topology: Topology,
    known: Mapping[str, Versions],
    selects: Mapping[str, str],
    streams: Mapping[str, str] | None = None,
    functions: Mapping[str, BatchFunction] | None = None,
) -> Topology:
    """A topology with queries and views as they are defined in checkpoints, and streams that it lacks from there.

    `selects` are definitions by SELECT.
    """
    if functions is None:
        functions = {query.name: query.foreach_batch for query in topology.queries if query.foreach_batch is not None}
    texts = {name: text for versions in known.values() for name, text in versions.streams.items()}
    there = {stream.name for stream in topology.sources}
    found = (
        read_stream(text, topology.directory)
        for name, text in {**texts, **(streams or {})}.items()
        if name not in there
    )
    others = [stream for stream in found if stream is not None and not stream.is_derived]
    tables = [table for table in others if isinstance(table, Table) and not table.read_of]
    definitions = [read_definition(text, topology.directory, functions) for _, text in sorted(selects.items())]
    return with_defined(
        replace(
            topology,
            streams=(*topology.streams, *(stream for stream in others if not isinstance(stream, Table))),
            tables=(*topology.tables, *tables),
        ),
        definitions,
    )


def with_defined(topology: Topology, definitions: Iterable[Definition]) -> Topology:
    """A topology with the queries and views of some definitions; views of its own that these do not have stay."""
    every = list(definitions)
    queries = {definition.query.name: definition.query for definition in every if not definition.is_view}
    views = {view.name: view for view in topology.views}
    views |= {view.name: view for definition in every for view in definition.views}
    views |= {definition.query.name: definition.query for definition in every if definition.is_view}
    return replace(
        topology,
        queries=tuple(queries[name] for name in sorted(queries)),
        views=tuple(view for name, view in views.items() if name not in queries),
    )


def with_settled(asked: Topology, deployed: Topology) -> Topology:
    """A topology with what was settled when its queries and views began.

    That is under which names they read tables, and whether their rows are grouped below the join.
    """

    def settled(queries: Sequence[Query], known: Sequence[Query]) -> tuple[Query, ...]:
        before = {query.name: query for query in known}
        return tuple(_settled(query, before.get(query.name)) for query in queries)

    return replace(asked, queries=settled(asked.queries, deployed.queries), views=settled(asked.views, deployed.views))


def _settled(query: Query, before: Query | None) -> Query:
    if before is None:
        return replace(query, read_as=())
    is_open = query.group_early is None and query.sql.split() == before.sql.split()
    return replace(query, read_as=before.read_as, group_early=before.group_early if is_open else query.group_early)


@dataclass(frozen=True)
class Deployed:
    """A deployment as its checkpoints on this machine say."""

    topology: Topology
    versions: Versions
    checkpoints: tuple[Path, ...]  # of its sites
    asked_at: Path  # of them, where requests go: to the site that proposes changes, if it is here

    @property
    def is_running(self) -> bool:
        """Whether a process runs the site that requests go to."""
        try:
            lock(self.asked_at).close()
        except CheckpointMismatch:
            return True
        return False


def read_deployed(root: Path, asked: Topology) -> Deployed:
    """The deployment of a checkpoint; links and settings that it does not tell are those of what is asked for."""
    if (store := origin_of(root / "any")) is not None:
        raise InputError(
            f"checkpoint {store.url.rpartition('/')[0]} is in an object store, through which changes cannot be asked "
            "for; use StreamingRun.apply in the process that runs it"
        )
    places = {place.name: place for place in site_checkpoints(root)}
    known = known_versions(root, places)
    versions = latest(known)
    if versions is None:
        raise InputError(f"checkpoint {root}: no queries run by it yet; start it with the topology instead")
    names = current_definitions(known)
    if missing := sorted(query for query, name in names.items() if not versions.queries.get(name)):
        raise InputError(
            f"checkpoint {root} does not say what {', '.join(missing)} asks for: an earlier version made it; start it "
            "once with this version and the topology that it was made for"
        )
    proposer = proposer_of(versions.deployment)
    place = places.get(proposer, next(iter(places.values())))
    noted = noted_topology(place)
    base = asked if noted is None else noted
    queries = {query: versions.queries[name] for query, name in names.items()}
    topology = _with_queries(base, known, queries, functions=_AnyFunction())
    return Deployed(topology, versions, tuple(places[name] for name in sorted(known)), place)


def with_known_tables(asked: Topology, deployed: Topology) -> Topology:
    """A topology whose tables have the schemas that were found at the start, where it does not give any."""
    known = {table.name: table for table in deployed.tables}
    tables = tuple(
        table if table.has_schema or table.name not in known else replace(table, schema=known[table.name].schema)
        for table in asked.tables
    )
    return replace(asked, tables=tables)


class _AnyFunction(dict[str, BatchFunction]):
    """Stands for functions that only the running process has."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> BatchFunction:
        return _no_function


def _no_function(rows: object, batch: int) -> None:
    """Stands for a function that only the running process has."""


def note_topology(checkpoint: Checkpoint, topology: Topology) -> None:
    """Write down what topology a site was asked to run, for whoever wants to change it."""
    with contextlib.suppress(InputError, TypeError, OSError):  # functions and DataFrames cannot be written
        UNFLUSHED.replace(checkpoint.directory / _TOPOLOGY, topology_text(topology))
        checkpoint.written_beside(_TOPOLOGY)


def noted_topology(checkpoint: Path) -> Topology | None:
    """What `note_topology` wrote, if it did."""
    try:
        return read_topology((checkpoint / _TOPOLOGY).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, KeyError, InputError):
        return None


def became_of(checkpoints: Iterable[Path], request: str) -> dict[Path, Takeover]:
    """By site that has settled a request, what became of it."""
    found = {}
    for place in checkpoints:
        for versions in known_versions(place.parent, [place.name]).values():
            for entry in versions.log:
                if entry.change.request == request:
                    found[place] = entry
    return found
