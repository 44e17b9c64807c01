"""Runs a scenario by RJoin: queries are asked and tuples published at their times, on a static or a dynamic network."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from watersmeet.program.rjoin.tables import Catalog, Known, Widths
from watersmeet.sim.rjoin.expressions import judge
from watersmeet.sim.scenario.model import Scenario
from watersmeet.sim.scenario.outcome import SimulationOutcome
from watersmeet.sim.scenario.rjoin.dynamic import DynamicRun
from watersmeet.sim.scenario.rjoin.feed import FeedJudge, UserFeed, checked_query, checked_streams
from watersmeet.sim.scenario.rjoin.run import SECOND_US, RJoinRun
from watersmeet.sim.scenario.rjoin.static import StaticRun
from watersmeet.sim.scenario.trace import Trace
from watersmeet.sim.scenario.workload import SubmittedQuery, UserLoad, ZipfLoad

Progress = Callable[[int, int], object]  # tuples published, of how many


def no_progress(done: int, total: int) -> None:
    """Report nothing."""


def simulate_rjoin(
    scenario: Scenario, *, progress: Progress = no_progress, trace: Trace | None = None, upkeep: bool = True
) -> SimulationOutcome:
    """Run a scenario to its end; without `upkeep` a dynamic overlay sends no messages of its own."""
    match scenario.load:
        case ZipfLoad() as load:
            return _simulate_zipf(scenario, load, progress, trace)
        case UserLoad() as load:
            return _simulate_user(scenario, load, progress, trace, upkeep)


def _simulate_zipf(scenario: Scenario, load: ZipfLoad, progress: Progress, trace: Trace | None) -> SimulationOutcome:
    seed, users = scenario.network.seed, scenario.users
    chance = np.random.default_rng([seed, 4])
    workload = load.workload(seed)
    queries = workload.queries(load.queries)
    catalog = Catalog(workload.schemas, workload.event_times)
    known = Known(catalog, Widths(load.ways, 2 * (load.ways - 1), load.ways - 1), judge)
    kinds = [(queries[0], catalog.shape(queries[0]))]  # all have the same windows
    run: RJoinRun
    if scenario.dynamic is not None:
        run = DynamicRun(scenario, known, kinds, trace)
    else:
        run = StaticRun(scenario, known, kinds, trace, members=load.window_us is not None)
    kernel, gap_us = run.kernel, round(SECOND_US / load.rate)
    feeds = list(workload.tables(load.warm_up + load.tuples))
    for stream, row in feeds[: load.warm_up]:
        run.publish_now(_drawn(chance, users), stream, row)
        kernel.run(kernel.now_us + gap_us)
    run.wait()
    run.begin(load.tuples * gap_us)
    run.submit(queries, [users[place] for place in chance.integers(0, len(users), len(queries)).tolist()])
    run.wait()
    first_us = kernel.now_us
    for number, (stream, row) in enumerate(feeds[load.warm_up :]):
        run.publish(first_us + number * gap_us, _drawn(chance, users), stream, row)
        progress(number + 1, load.tuples)
    return run.finish({})


def _simulate_user(
    scenario: Scenario, load: UserLoad, progress: Progress, trace: Trace | None, upkeep: bool
) -> SimulationOutcome:
    schemas, event_times = checked_streams(load)
    catalog = Catalog(schemas, event_times)
    queries = [
        checked_query(asked.query.name, asked.query.sql, asked.query.allow_cross, load, schemas)
        for asked in load.queries
    ]
    shapes = [catalog.shape(query) for query in queries]
    feed = UserFeed.of(load, event_times)
    chance, users = np.random.default_rng([scenario.network.seed, 5]), scenario.users
    homes = [_drawn(chance, users) if asked.home is None else asked.home for asked in load.queries]
    published_at = [_drawn(chance, users) if published.home is None else published.home for published in load.streams]
    epoch_us = feed.first_us - SECOND_US
    known = Known(catalog, Widths.of(shapes), FeedJudge(feed))
    kinds = list(zip(queries, shapes, strict=True))
    run: RJoinRun
    if scenario.dynamic is None:
        run = StaticRun(scenario, known, kinds, trace, epoch_us=epoch_us)
    else:
        run = DynamicRun(scenario, known, kinds, trace, epoch_us=epoch_us, upkeep=upkeep)
    run.begin(feed.last_us - epoch_us)
    numbers: dict[str, int] = {}  # in the order of asking: queries that start later are asked later

    def submit(place: int) -> None:
        name, query, home = load.queries[place].query.name, queries[place], homes[place]
        numbers[name] = run.ask_once(query, home) if load.queries[place].is_once else run.submit([query], [home])[0]

    asked_at_us = [_asked_at_us(asked, epoch_us, feed.last_us) for asked in load.queries]
    for place, at_us in enumerate(asked_at_us):
        run.kernel.at(at_us, submit, place, priority=-1)
    for stream, ts_us, rows in feed.parts():
        published = load.streams[stream]
        for row in range(rows.num_rows) if published.is_scattered else (None,):
            node = published_at[stream] if row is None else _drawn(chance, users)
            run.publish(ts_us - epoch_us, node, published.stream.name, rows if row is None else rows.slice(row, 1))
        progress(run.tuples, feed.tuples)
    if len(numbers) < len(queries):  # some are asked after the last tuple
        run.advance(max(asked_at_us))
    outcome = run.finish({asked.query.name: numbers[asked.query.name] for asked in load.queries})
    for asked in load.queries:
        if asked.query.sink.path is not None:
            outcome.write(asked.query.name, Path(asked.query.sink.path))
    return outcome


def _asked_at_us(asked: SubmittedQuery, epoch_us: int, last_us: int) -> int:
    """When a query is asked: at its start, else before the first tuple or, if it is asked once, after the last."""
    start_us = asked.query.start_us
    if start_us is None:
        return last_us + 1 - epoch_us if asked.is_once else 0
    return max(0, start_us - epoch_us)


def _drawn(chance: np.random.Generator, users: Sequence[int]) -> int:
    return users[int(chance.integers(len(users)))]
