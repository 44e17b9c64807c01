"""A simulation on a static overlay: mail in batches, a million nodes, nothing is ever lost."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.program.rjoin.arrays import FOREVER, Longs
from watersmeet.program.rjoin.tables import Known, SlotShape, reach_us
from watersmeet.query.model import JoinQuery
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.rjoin.answers import ReceivedAnswers
from watersmeet.sim.rjoin.static import StaticRJoin
from watersmeet.sim.scenario.model import Scenario
from watersmeet.sim.scenario.rjoin.run import SECOND_US, RJoinRun
from watersmeet.sim.scenario.rjoin.settings import delta_us, hops_of, overlay_of, settings_of
from watersmeet.sim.scenario.trace import Trace
from watersmeet.sim.scenario.workload import UserLoad


class StaticRun(RJoinRun):
    """RJoin on peers that neither come nor go; without `members` answers are counted and not made."""

    def __init__(
        self,
        scenario: Scenario,
        known: Known,
        queries: Sequence[tuple[JoinQuery, SlotShape]],
        trace: Trace | None,
        *,
        members: bool = True,
        epoch_us: int = 0,
    ) -> None:
        network = scenario.network
        kernel = Kernel(network.seed)
        are_kept = isinstance(scenario.load, UserLoad)
        answers = ReceivedAnswers(known, keeps=lambda query: are_kept) if members else None
        super().__init__(scenario, known, kernel, answers, trace, epoch_us)
        overlay = overlay_of(network)
        hops = hops_of(network, overlay)
        delay_us = delta_us(overlay, hops, known.widths)
        self.network = StaticRJoin(
            kernel,
            overlay,
            known,
            settings_of(
                scenario.rjoin,
                queries,
                members=members,
                delay_us=delay_us,
                seed=network.seed,
                keeps_all=scenario.asks_once,
            ),
            delays=hops.delays(network.seed),
            answered=answers.take if answers is not None else None,
            epoch_us=epoch_us,
        )
        finite = [reach for reach in (reach_us(query) for query, _ in queries) if reach != FOREVER]
        self._sweep_us = max(SECOND_US, (min(finite) + delay_us) // 2) if finite else None
        self._next_sweep_us = self._sweep_us

    @property
    def identifiers(self) -> NDArray[np.uint64]:
        return self.network.overlay.identifiers

    def submit(self, queries: Sequence[JoinQuery], homes: Sequence[int]) -> list[int]:
        return self.network.submit(queries, homes)

    def ask_once(self, query: JoinQuery, home: int) -> int:
        return self.network.ask_once(query, home)

    def publish_now(self, node: int, stream: str, rows: pa.Table) -> None:
        self.network.publish(node, stream, rows)

    def advance(self, until_us: int) -> None:
        super().advance(until_us)
        if self._sweep_us is not None and self._next_sweep_us is not None and until_us >= self._next_sweep_us:
            self.network.sweep()
            self._next_sweep_us = until_us + self._sweep_us

    def wait(self) -> None:
        if self.trace is None:
            self.kernel.run()
            return
        while self.kernel.run(max_events=1):
            if self.kernel.now_us >= self._next_look_us:
                self._look()

    def settle(self) -> None:
        self.wait()

    def forget_counts(self) -> None:
        self.network.forget_counts()

    def load(self) -> Longs:
        return self.network.shard.load.queries + self.network.shard.load.tuples

    def storage(self) -> tuple[Longs, int]:
        stored = self.network.shard.stored()
        return stored.queries + stored.tuples, int(stored.held.sum())

    def messages(self) -> dict[str, int]:
        traffic = self.network.traffic
        purposes = {
            "tuples": traffic.tuples,
            "queries": traffic.queries,
            "rates": traffic.rates,
            "answers": traffic.answers,
        }
        return {name: int(sent.sum()) for name, sent in purposes.items()}

    def answers_total(self) -> int:
        if self.answers is None:
            return int(self.network.shard.answers.sum())
        return super().answers_total()
