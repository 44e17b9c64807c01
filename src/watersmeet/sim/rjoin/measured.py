"""RJoin's experiments (section 8): a static ring, queries asked at once, then tuples one by one; what each node did.

A tuple is published when all that the one before it has caused is done, at times that are a fixed distance apart. So
the network can be looked at after any tuple, and looking changes nothing. Before the queries come some tuples pass by,
so that nodes have rates to tell; they are not counted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from watersmeet.errors import RunError
from watersmeet.program.rjoin.arrays import FOREVER, Longs
from watersmeet.program.rjoin.settings import NodeSettings, Strategy
from watersmeet.program.rjoin.tables import Catalog, Known, Widths
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.balance import balance
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.rjoin.expressions import judge
from watersmeet.sim.rjoin.static import StaticRJoin
from watersmeet.sim.rjoin.workload import ZipfWorkload

_SINCE_START_US = 1 << 60  # so long that no run ends its first window
ROUND_US = 10_000  # what a message takes, however many hops it makes: mail goes by rounds
DRAWN = 2_500  # tuples that are drawn at once, since the generator makes others if it makes more
GAP_US = 1_000_000  # between tuples: longer than all that one of them causes takes


@dataclass(frozen=True, slots=True)
class RJoinExperiment:
    """The parameters of an experiment."""

    workload: ZipfWorkload = field(default_factory=ZipfWorkload)
    strategy: Strategy = Strategy.RJOIN
    nodes: int = 1_000
    queries: int = 20_000
    tuples: tuple[int, ...] = (400,)  # look at the network after so many
    warm_up: int = 200
    pairs: bool = True
    members: bool = False  # windows need members told apart
    window_us: int | None = None  # of every stream; to drop what is over
    move_every: int | None = None  # tuples between two rounds of id movement
    rate_window: int | None = 200  # tuples over which a node counts when it is asked for a rate; None: all so far
    rate_age: int | None = 200  # tuples after which a rate is asked for again; None: never
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Measurement:
    """What every node has done by some tuple, the highest first where it is ranked."""

    tuples: int
    messages: int  # in all, mail for one key from one node at one moment being one message
    messages_apart: int  # the same if every rewritten query travelled alone
    messages_rates: int  # for RIC, of `messages`: a node asks in one tour for all its queries of a moment
    messages_rates_apart: int  # for RIC, of `messages_apart`: every query asks for itself
    load: Longs  # query processing load of each node: rewritten queries and tuples received
    storage: Longs  # storage load of each node: rewritten queries and tuples kept at the value level
    held: int  # tuples kept at the attribute level, which the paper does not count
    rows: int  # rewritten queries received, alike ones as one
    answers: int
    searching: int  # nodes that got a rewritten query, or a tuple at a key where queries waited
    levels: Longs  # rewritten queries received, by how many of their relations were bound

    @property
    def taking_part(self) -> int:
        """How many nodes have had to process anything."""
        return int(np.count_nonzero(self.load))


def measure(experiment: RJoinExperiment, progress: Callable[[int], object] = lambda done: None) -> list[Measurement]:
    """Run an experiment; what was seen after each number of tuples."""
    chance = np.random.default_rng([experiment.seed, 4])
    most = max(experiment.tuples)
    queries = experiment.workload.queries(experiment.queries)
    catalog = Catalog(experiment.workload.schemas, experiment.workload.event_times)
    ways = experiment.workload.ways
    known = Known(catalog, Widths(ways, 2 * (ways - 1), ways - 1), judge)
    settings = NodeSettings(
        strategy=experiment.strategy,
        pairs=experiment.pairs,
        members=experiment.members,
        rate_window_us=_SINCE_START_US if experiment.rate_window is None else experiment.rate_window * GAP_US,
        rate_age_us=int(FOREVER) if experiment.rate_age is None else experiment.rate_age * GAP_US,
        keep_us=int(FOREVER) if experiment.window_us is None else experiment.window_us,
        hold_us=int(FOREVER) if experiment.window_us is None else experiment.window_us,
        seed=experiment.seed,
    )
    kernel = Kernel(experiment.seed)
    network = StaticRJoin(kernel, Ring.random(experiment.nodes, experiment.seed), known, settings, delays=_one_round)
    drawn = experiment.workload.tables(experiment.warm_up + max(most, DRAWN))  # the same whenever a run ends
    feeds = list(islice(drawn, experiment.warm_up + most))
    for stream, row in feeds[: experiment.warm_up]:
        network.publish(int(chance.integers(experiment.nodes)), stream, row)
        _settle(kernel)
    network.forget_counts()
    network.submit(queries, chance.integers(0, experiment.nodes, len(queries)).tolist())
    _settle(kernel)
    seen = []
    for number, (stream, row) in enumerate(feeds[experiment.warm_up :], start=1):
        network.publish(int(chance.integers(experiment.nodes)), stream, row)
        _settle(kernel)
        if number in experiment.tuples:
            seen.append(_look(network, number))
        if experiment.move_every and number % experiment.move_every == 0:
            _move(network, experiment.seed + number)
        if experiment.window_us is not None and number % 20 == 0:
            network.sweep()
        progress(number)
    return seen


def _one_round(hops: Longs) -> Longs:
    return np.full_like(hops, ROUND_US)


def _settle(kernel: Kernel) -> None:
    """Let all happen that is to happen, and the time of the next tuple come."""
    due_us = kernel.now_us + GAP_US
    kernel.run()
    if kernel.now_us > due_us:
        raise RunError(f"what one tuple caused took longer than {GAP_US // 1_000_000:,} s: let GAP_US be longer")
    kernel.run(due_us)


def ranked(loads: Longs) -> Longs:
    """Loads from the highest down."""
    return np.sort(loads)[::-1]


def _look(network: StaticRJoin, number: int) -> Measurement:
    traffic, load, stored = network.traffic, network.shard.load, network.shard.stored()
    others, rates = int((traffic.tuples + traffic.answers).sum()), int(traffic.rates.sum())
    return Measurement(
        tuples=number,
        messages=others + rates + int(traffic.queries.sum()),
        messages_apart=others + traffic.rates_apart + traffic.members,
        messages_rates=rates,
        messages_rates_apart=traffic.rates_apart,
        load=load.queries + load.tuples,
        storage=stored.queries + stored.tuples,
        held=int(stored.held.sum()),
        rows=int(load.rows.sum()),
        answers=int(network.shard.answers.sum()),
        searching=int(np.count_nonzero(load.queries + load.searches)),
        levels=load.levels.copy(),
    )


def _move(network: StaticRJoin, seed: int) -> None:
    """One round of id movement by what nodes keep; a node keeps its number wherever it is."""
    places = network.places()
    moved = balance(places, network.points, network.shard.weights(), rounds=1, seed=seed)
    order = np.argsort(moved.identifiers)
    network.move(Ring(moved.identifiers[order]), order)
