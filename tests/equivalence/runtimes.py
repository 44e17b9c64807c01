"""How the runtimes are driven: the only module of the suite that knows the engine.

`run_spark` and `run_simulated` deploy all queries of a scene at once and give their answers by name.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from equivalence.model import Bag, NetworkBehaviour, Scene, SceneStream
from equivalence.reference import bag, expected_table

import watersmeet as wm
from watersmeet.plan.nodes import Plan
from watersmeet.planners.choose import choose
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites

SECOND_US = 1_000_000
_MAX_EVENTS = 300_000


def expected(scene: Scene) -> dict[str, Bag]:
    """What every query of a scene has to answer, by name.

    With ROWS windows the symmetric join of a query at one site lets all rows wait for the watermarks of all its
    streams; plans over several sites only wait for those of the streams whose rows are counted.
    """
    return {
        query.name: bag(expected_table(scene, query, waits_for_all=scene.is_at_one_site(query)))
        for query in scene.queries
    }


def topology_of(scene: Scene, directory: Path) -> wm.Topology:
    """The scene as a user would write it; streams are read from, and answers go to, a directory."""
    return wm.Topology(
        tuple(
            wm.Stream(
                stream.name,
                event_time=stream.event_time,
                schema=stream.ddl,
                watermark=stream.watermark,
                site=stream.home,
                source=wm.Source("parquet", str(directory / "data" / stream.name), {"maxFilesPerTrigger": "1"}),
            )
            for stream in scene.streams
        ),
        tuple(
            wm.Query(
                query.name,
                query.sql,
                sink=wm.Sink("parquet", str(directory / "out" / query.name)),
                allow_cross=query.allow_cross,
                start=query.start,
                site=query.site,
                plan=query.plan,
                planner=query.planner,
                partition=query.partition,
                assume_defaults=True,
            )
            for query in scene.queries
        ),
        tuple(wm.Site(name) for name in scene.sites),
        str(directory),
        default_link=wm.Link(latency_us=25_000, bandwidth_bps=1e8),
        link_transport=wm.LinkTransport(path=str(directory / "links")),
        stats=wm.Stats({stream.name: _stats(stream) for stream in scene.streams} if scene.has_stats else {}),
    )


def _stats(stream: SceneStream) -> wm.StreamStats:
    """What a sample of a stream would tell; rates differ, so that plans do."""
    table = pa.concat_tables(stream.batches)
    columns = {}
    for name in ("k", "m"):
        whole = table.column(name).drop_null().to_numpy()
        values, counts = np.unique(whole, return_counts=True)
        bins = [
            wm.Bin(int(value), int(value), 1.0, float(count / counts.sum()))
            for value, count in zip(values, counts, strict=True)
        ]
        columns[name] = wm.ColumnStats(wm.Number(float(len(values))), wm.Histogram(tuple(bins)))
    return wm.StreamStats(wm.Number(float(table.num_rows)), wm.Number(64.0), columns)


# Spark ----------------------------------------------------------------------------------------------------------------


def run_spark(spark: Any, scene: Scene, directory: Path) -> dict[str, Bag]:
    """Run all queries on Spark, with one file of each stream a micro-batch, until all rows are processed."""
    write_streams(scene, directory)
    topology = topology_of(scene, directory)
    handle = wm.start(topology, spark=spark, once=True, checkpoint=directory / "checkpoint")
    handle.awaitTermination()
    return {query.name: read_answers(directory, query.name) for query in scene.queries}


def write_streams(scene: Scene, directory: Path) -> None:
    """The streams of a scene as files."""
    for stream in scene.streams:
        _write(stream, directory / "data" / stream.name)


def read_answers(directory: Path, query: str) -> Bag:
    """The answers of a query that its sink has."""
    return _read(directory / "out" / query)


def _write(stream: SceneStream, directory: Path) -> None:
    """The micro-batches of a stream as files, in an order that Spark's file source keeps."""
    directory.mkdir(parents=True)
    for number, batch in enumerate(stream.batches):
        path = directory / f"{number:05d}.parquet"
        pq.write_table(batch, path)
        os.utime(path, (1_700_000_000 + 10 * number,) * 2)


def _read(directory: Path) -> Bag:
    if not any(directory.glob("*.parquet")):
        return Bag()
    return bag(ds.dataset(directory, format="parquet").to_table())


# Simulated sites ------------------------------------------------------------------------------------------------------


def run_simulated(scene: Scene, network: NetworkBehaviour, seed: int) -> dict[str, Bag]:
    """Run all queries on simulated sites, over links that behave as told, until nothing is left to do."""
    sites = simulated(scene, plans_of(scene), network, Random(seed))
    return {query.name: sum((bag(table) for table in sites.answers(query.name)), Bag()) for query in scene.queries}


def simulated(scene: Scene, plans: dict[str, Plan], network: NetworkBehaviour, random: Random) -> SimulatedSites:
    """Sites that have run some plans to the end."""
    sites = _sites(scene, plans, network, random)
    _schedule_batches(scene, sites, random)
    _schedule_crashes(sites, network, random)
    sites.run(_MAX_EVENTS)
    assert not sites.kernel.pending, f"no end after {_MAX_EVENTS} events"
    return sites


def plans_of(scene: Scene) -> dict[str, Plan]:
    """The plan of every query, by name."""
    topology = topology_of(scene, Path("unused"))
    schemas = {stream.name: stream.schema for stream in scene.streams}
    return {
        query.name: choose(topology, topology.query(query.name), typed(scene.parsed(query), schemas)).plan
        for query in scene.queries
    }


def _sites(scene: Scene, plans: dict[str, Plan], network: NetworkBehaviour, random: Random) -> SimulatedSites:
    link = LinkModel(
        latency_us=random.choice([0, 25_000, 500_000]),
        jitter_us=network.jitter_us,
        loss=network.loss,
        duplicate=network.duplicate,
        damage=network.damage,
    )
    return SimulatedSites(
        plans,
        {stream.name: stream.event_time for stream in scene.streams},
        seed=random.randrange(2**32),
        model_of=lambda sender, receiver: link,
        delays_us={stream.name: stream.delay_us for stream in scene.streams},
        interval_us={site: random.choice([1_000, 100_000, 700_000]) for site in scene.sites},
        buckets=random.choice([1, 1, 2, 3]),
        start_us={query.name: query.start_us for query in scene.queries},
    )


def _schedule_batches(scene: Scene, sites: SimulatedSites, random: Random) -> None:
    """Offer every site its streams' batches, the next only once the last is committed: late is decided by them."""

    def offer(name: str, queues: Mapping[str, list[pa.Table]]) -> None:
        site = sites.sites[name]
        waiting = [stream for stream, queue in queues.items() if queue]
        if waiting and site.ledger.batch == len(site.batches) - 1:
            chosen = [stream for stream in waiting if random.random() < 0.7] or waiting[:1]
            site.feed({stream: queues[stream].pop(0) for stream in chosen})
        if waiting:
            sites.kernel.after(random.choice([10_000, 300_000, 2 * SECOND_US]), offer, name, queues)

    for name in sorted(set(sites.homes.values())):
        at_home = [stream for stream in sites.homes if sites.homes[stream] == name]
        sites.kernel.at(0, offer, name, {stream: list(scene.stream(stream).batches) for stream in at_home})


def _schedule_crashes(sites: SimulatedSites, network: NetworkBehaviour, random: Random) -> None:
    for _ in range(network.crashes):
        site = random.choice(sorted(sites.sites))
        sites.crash(site, random.randrange(8 * SECOND_US), random.choice([100, 300_000, 3 * SECOND_US, 60 * SECOND_US]))
