"""Random trials of RJoin: a query, its streams and a network whose messages take any time, from one seed.

`python -m watersmeet.sim.rjoin.trial SEED [STOP]` replays seeds and ends with 1 if answers are not those of the oracle.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.program.rjoin.arrays import FOREVER, Ints, Longs
from watersmeet.program.rjoin.settings import NodeSettings, Strategy
from watersmeet.program.rjoin.tables import Catalog, Known, Widths, needs_pairs, reach_us, table_of
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.rjoin.expressions import judge, project
from watersmeet.sim.rjoin.static import Overlay, StaticRJoin
from watersmeet.sim.sites.trial import EVENT_TIME, SCHEMA, draw

_SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The answers of a trial, and those of the oracle."""

    seed: int
    sql: str
    settings: NodeSettings
    answers: Bag
    expected: Bag

    @property
    def is_right(self) -> bool:
        return self.answers == self.expected

    @property
    def verdict(self) -> str:
        """One line that says whether it went well, and how to see it again if it did not."""
        if self.is_right:
            return f"seed {self.seed}: {self.expected.total()} answers, as they should be"
        lost, many = (self.expected - self.answers).total(), (self.answers - self.expected).total()
        found = f"{lost} missing and {many} too many of {self.expected.total()} answers"
        return f"seed {self.seed}: {found}; replay: python -m watersmeet.sim.rjoin.trial {self.seed}"


def run(seed: int) -> TrialOutcome:
    """Run a trial to its end and ask the oracle."""
    trial, random = draw(seed), Random(seed + 1_000_000)
    asked = trial.queries[0]
    schemas, event_times = dict.fromkeys(trial.tables, SCHEMA), dict.fromkeys(trial.tables, EVENT_TIME)
    query = parse_query(asked.sql, dict.fromkeys(trial.tables, SCHEMA.names), allow_cross=True)
    catalog = Catalog(schemas, event_times)
    slowest_us = random.choice([1, 1_000, 300_000, 5 * _SECOND])
    pairs = random.random() < 0.5
    settings = NodeSettings(
        strategy=random.choice(list(Strategy)),
        pairs=pairs,
        rate_window_us=random.choice([_SECOND, 60 * _SECOND]),
        rate_age_us=random.choice([_SECOND, int(FOREVER)]),
        keep_us=reach_us(query),
        hold_us=reach_us(query) if pairs or needs_pairs(query, catalog.shape(query)) else 0,
        delay_us=slowest_us * (4 * len(query.sources) + 4),
        seed=seed,
    )
    chance = np.random.default_rng(seed)

    def delays(hops: Longs) -> Longs:
        return chance.integers(1, slowest_us + 1, len(hops))

    feeds = sorted(
        (feed for stream, table in sorted(trial.tables.items()) for feed in _published(stream, table)),
        key=lambda feed: feed[0],
    )
    epoch_us = min((ts for ts, _, _ in feeds), default=0) - _SECOND
    start_us = epoch_us if asked.start_us is None else max(epoch_us, asked.start_us)
    kernel, nodes = Kernel(seed), random.randint(1, 40)
    known = Known(catalog, Widths.of([catalog.shape(query)]), judge)
    given: list[Ints] = []
    overlay: Overlay = Ring.random(nodes, seed) if random.random() < 0.5 else Prefixes.random(nodes, seed)
    network = StaticRJoin(
        kernel,
        overlay,
        known,
        settings,
        delays=delays,
        answered=lambda _, rows: given.append(rows),
        epoch_us=epoch_us,
    )
    kernel.at(start_us - epoch_us, network.submit, [query], [random.randrange(nodes)], priority=-1)
    for ts, stream, row in feeds:
        kernel.at(ts - epoch_us, network.publish, random.randrange(nodes), stream, row)
        if random.random() < 0.2:
            kernel.at(ts - epoch_us + random.randint(0, 10 * _SECOND), network.sweep)
    kernel.run()
    expected = answer(query, trial.tables, event_times, start_us=start_us)
    answers = expected.schema.empty_table()
    if given:
        answers = project(query, table_of(known, np.concatenate(given), 0))
    return TrialOutcome(seed, asked.sql, settings, bag_of(answers), bag_of(expected))


def _published(stream: str, table: pa.Table) -> list[tuple[int, str, pa.Table]]:
    """Tuples with their times, in the order in which they come; ties as they stand."""
    table = table.filter(pc.is_valid(table.column(EVENT_TIME)))
    stamps = table.column(EVENT_TIME).cast(pa.int64()).to_pylist()
    order = sorted(range(len(stamps)), key=lambda row: stamps[row])
    return [(stamps[row], stream, table.slice(row, 1)) for row in order]


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay seeds; 1 if one of them went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("stop", type=int, nargs="?")
    chosen = parser.parse_args(arguments)
    wrong = 0
    for seed in range(chosen.seed, chosen.seed + 1 if chosen.stop is None else chosen.stop):
        outcome = run(seed)
        wrong += not outcome.is_right
        if chosen.stop is None or not outcome.is_right:
            print(outcome.sql, outcome.settings, outcome.verdict, sep="\n")
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
