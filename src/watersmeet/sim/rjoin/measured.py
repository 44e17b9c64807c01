"""RJoin's experiments (section 8): a static ring, queries asked at once, then tuples one by one; what each node did.

Before the queries come some tuples pass by, so that nodes have rates to tell; they are not counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from watersmeet.program.rjoin.compiled import FOREVER, Longs
from watersmeet.program.rjoin.shard import Settings, Strategy
from watersmeet.program.rjoin.tables import Catalog, Known, Widths
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.balance import balance
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.rjoin.expressions import judge
from watersmeet.sim.rjoin.static import StaticRJoin
from watersmeet.sim.rjoin.workload import ZipfWorkload

HOP_US = 50_000
GAP_US = 1_000_000  # between tuples


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
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Measurement:
    """What every node has done by some tuple, the highest first where it is ranked."""

    tuples: int
    messages: int  # in all, mail for one key from one node at one moment being one message
    messages_apart: int  # the same if every rewritten query travelled alone
    messages_rates: int  # of either, those for RIC
    load: Longs  # query processing load of each node: rewritten queries and tuples received
    storage: Longs  # storage load of each node: rewritten queries and tuples kept at the value level
    held: int  # tuples kept at the attribute level, which the paper does not count
    rows: int  # rewritten queries received, alike ones as one
    answers: int

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
    settings = Settings(
        strategy=experiment.strategy,
        pairs=experiment.pairs,
        members=experiment.members,
        rate_window_us=10**12,  # rates are what has been seen so far
        keep_us=int(FOREVER) if experiment.window_us is None else experiment.window_us,
        hold_us=int(FOREVER) if experiment.window_us is None else experiment.window_us,
        seed=experiment.seed,
    )
    kernel = Kernel(experiment.seed)
    network = StaticRJoin(kernel, Ring.random(experiment.nodes, experiment.seed), known, settings)
    feeds = list(experiment.workload.tables(experiment.warm_up + most))
    for stream, row in feeds[: experiment.warm_up]:
        network.publish(int(chance.integers(experiment.nodes)), stream, row)
        kernel.run(kernel.now_us + GAP_US)
    kernel.run()
    network.forget_counts()
    network.submit(queries, chance.integers(0, experiment.nodes, len(queries)).tolist())
    kernel.run()
    seen = []
    for number, (stream, row) in enumerate(feeds[experiment.warm_up :], start=1):
        network.publish(int(chance.integers(experiment.nodes)), stream, row)
        if number in experiment.tuples:
            kernel.run()  # look when all is quiet
            seen.append(_look(network, number))
        else:
            kernel.run(kernel.now_us + GAP_US)
        if experiment.move_every and number % experiment.move_every == 0:
            _move(network, experiment.seed + number)
        if experiment.window_us is not None and number % 20 == 0:
            network.sweep()
        progress(number)
    return seen


def ranked(loads: Longs) -> Longs:
    """Loads from the highest down."""
    return np.sort(loads)[::-1]


def at_ranks(loads: Longs, ranks: Sequence[int]) -> list[int]:
    """The loads at some ranks, from 1 on."""
    return [int(ranked(loads)[rank - 1]) for rank in ranks]


def _look(network: StaticRJoin, number: int) -> Measurement:
    traffic, load, stored = network.traffic, network.shard.load, network.shard.stored()
    others = int((traffic.tuples + traffic.rates + traffic.answers).sum())
    return Measurement(
        tuples=number,
        messages=others + int(traffic.queries.sum()),
        messages_apart=others + traffic.members,
        messages_rates=int(traffic.rates.sum()),
        load=load.queries + load.tuples,
        storage=stored.queries + stored.tuples,
        held=int(stored.held.sum()),
        rows=int(load.rows.sum()),
        answers=int(network.shard.answers.sum()),
    )


def _move(network: StaticRJoin, seed: int) -> None:
    """One round of id movement by what nodes keep; a node keeps its number wherever it is."""
    places = network.places()
    moved = balance(places, network.points, network.shard.weights(), rounds=1, seed=seed)
    order = np.argsort(moved.identifiers)
    network.move(Ring(moved.identifiers[order]), order)
