"""Runs a scenario: queries are asked and tuples published at their times, on a settled network or a live one."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from watersmeet.program.rjoin.tables import Catalog, Known, Widths
from watersmeet.sim.rjoin.expressions import judge
from watersmeet.sim.scenario.dynamic_run import LiveRun
from watersmeet.sim.scenario.feed import Feed, FeedJudge, checked_query, checked_streams
from watersmeet.sim.scenario.model import Scenario, UserLoad, ZipfLoad
from watersmeet.sim.scenario.outcome import Outcome
from watersmeet.sim.scenario.run import SECOND_US, Run
from watersmeet.sim.scenario.static_run import SettledRun
from watersmeet.sim.scenario.trace import Trace

Tell = Callable[[int, int], object]  # tuples published, of how many


def simulate(scenario: Scenario, *, tell: Tell = lambda done, total: None, trace: Trace | None = None) -> Outcome:
    """Run a scenario to its end."""
    match scenario.load:
        case ZipfLoad() as load:
            return _simulate_zipf(scenario, load, tell, trace)
        case UserLoad() as load:
            return _simulate_user(scenario, load, tell, trace)


def _simulate_zipf(scenario: Scenario, load: ZipfLoad, tell: Tell, trace: Trace | None) -> Outcome:
    seed, users = scenario.network.seed, scenario.users
    chance = np.random.default_rng([seed, 4])
    workload = load.workload(seed)
    queries = workload.queries(load.queries)
    catalog = Catalog(workload.schemas, workload.event_times)
    known = Known(catalog, Widths(load.ways, 2 * (load.ways - 1), load.ways - 1), judge)
    kinds = [(queries[0], catalog.shape(queries[0]))]  # all have the same windows
    run: Run
    if scenario.live is not None:
        run = LiveRun(scenario, known, kinds, trace)
    else:
        run = SettledRun(scenario, known, kinds, trace, members=load.window_us is not None)
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
        tell(number + 1, load.tuples)
    return run.finish({})


def _simulate_user(scenario: Scenario, load: UserLoad, tell: Tell, trace: Trace | None) -> Outcome:
    schemas, event_times = checked_streams(load)
    catalog = Catalog(schemas, event_times)
    queries = [
        checked_query(one.query.name, one.query.sql, one.query.allow_cross, load, schemas) for one in load.queries
    ]
    shapes = [catalog.shape(query) for query in queries]
    feed = Feed.of(load, event_times)
    chance, users = np.random.default_rng([scenario.network.seed, 5]), scenario.users
    homes = [_drawn(chance, users) if one.home is None else one.home for one in load.queries]
    published_at = [_drawn(chance, users) if one.home is None else one.home for one in load.streams]
    epoch_us = feed.first_us - SECOND_US
    known = Known(catalog, Widths.of(shapes), FeedJudge(feed))
    kind = SettledRun if scenario.live is None else LiveRun
    run: Run = kind(scenario, known, list(zip(queries, shapes, strict=True)), trace, epoch_us=epoch_us)
    run.begin(feed.last_us - epoch_us)
    numbers: dict[str, int] = {}  # in the order of asking: queries that start later are asked later

    def submit(place: int) -> None:
        numbers[load.queries[place].query.name] = run.submit([queries[place]], [homes[place]])[0]

    for place, asked in enumerate(load.queries):
        start_us = asked.query.start_us
        at_us = 0 if start_us is None else max(0, start_us - epoch_us)
        run.kernel.at(at_us, submit, place, priority=-1)
    for stream, ts_us, rows in feed.parts():
        one = load.streams[stream]
        for row in range(rows.num_rows) if one.is_scattered else (None,):
            node = published_at[stream] if row is None else _drawn(chance, users)
            run.publish(ts_us - epoch_us, node, one.stream.name, rows if row is None else rows.slice(row, 1))
        tell(run.tuples, feed.tuples)
    if len(numbers) < len(queries):  # some start after the last tuple
        run.advance(max(asked.query.start_us or 0 for asked in load.queries) - epoch_us)
    outcome = run.finish({asked.query.name: numbers[asked.query.name] for asked in load.queries})
    for asked in load.queries:
        if asked.query.sink.path is not None:
            outcome.write(asked.query.name, Path(asked.query.sink.path))
    return outcome


def _drawn(chance: np.random.Generator, users: Sequence[int]) -> int:
    return users[int(chance.integers(len(users)))]
