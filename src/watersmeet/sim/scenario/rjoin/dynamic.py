"""A simulation on dynamic nodes: they come and go, messages queue and are lost, and so answers may be missing.

Nothing ends by itself here, since nodes look after their overlay for ever. So after the last tuple churn stops, time
passes for the overlay to mend and for two renewals, and then until no mail of RJoin has been sent for a while.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.program.rjoin.arrays import Longs
from watersmeet.program.rjoin.tables import Known, SlotShape
from watersmeet.query.model import JoinQuery
from watersmeet.sim.internet.hosts import Congestion
from watersmeet.sim.internet.latency import ConstantLatency
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.rjoin.answers import ReceivedAnswers
from watersmeet.sim.rjoin.dynamic_network import DynamicNetwork
from watersmeet.sim.rjoin.fault_tolerance import FaultTolerance
from watersmeet.sim.rjoin.mail import MailPurpose
from watersmeet.sim.rjoin.oracle_check import verdict_on
from watersmeet.sim.rjoin.peer import HERE
from watersmeet.sim.scenario.model import Scenario
from watersmeet.sim.scenario.outcome import DynamicFigures
from watersmeet.sim.scenario.rjoin.run import SECOND_US, RJoinRun
from watersmeet.sim.scenario.rjoin.settings import delta_us, hops_of, latency_of, overlay_of, settings_of
from watersmeet.sim.scenario.trace import Trace
from watersmeet.sim.scenario.workload import ZipfLoad

MOST_CHECKED = 50  # generated queries that the oracle is asked about
QUIET_US = 10 * SECOND_US  # so long without mail of RJoin's, nothing is under way
REPAIR_US = 60 * SECOND_US  # a dead neighbour is noticed, its keys are taken over, and what met there meets again


class DynamicRun(RJoinRun):
    """RJoin on peers that join and leave, over links that lose messages and have queues."""

    def __init__(
        self,
        scenario: Scenario,
        known: Known,
        queries: Sequence[tuple[JoinQuery, SlotShape]],
        trace: Trace | None,
        *,
        epoch_us: int = 0,
        upkeep: bool = True,
    ) -> None:
        """Without `upkeep` the overlay sends no messages of its own, and nobody may go."""
        network, rjoin, dynamic = scenario.network, scenario.rjoin, scenario.dynamic
        assert dynamic is not None, "the scenario has a dynamic network"
        kernel = Kernel(network.seed)
        self._checked = _sample(scenario)
        keeps = self._checked
        answers = ReceivedAnswers(
            known, keeps=lambda query: keeps is None or query in keeps, clock=lambda: epoch_us + kernel.now_us
        )
        super().__init__(scenario, known, kernel, answers, trace, epoch_us)
        self._dynamic = dynamic
        overlay = overlay_of(network)
        hops = hops_of(network, overlay)
        fault_tolerance = FaultTolerance(renew_us=rjoin.renew_us, replicas=rjoin.replicas)
        is_rough = dynamic.churn is not None or dynamic.congestion is not Congestion.NONE
        self._repair_us = (REPAIR_US if dynamic.churn is not None else 0) + 2 * (rjoin.renew_us or 0)
        delay_us = delta_us(overlay, hops, known.widths) + known.widths.aliases * fault_tolerance.rates_timeout_us
        delay_us += (REPAIR_US if is_rough else 0) + 2 * (rjoin.renew_us or 0)
        settings = settings_of(
            rjoin, queries, members=True, delay_us=delay_us, seed=network.seed, keeps_all=scenario.asks_once
        )
        self._identifiers = overlay.identifiers
        self.network = DynamicNetwork(
            kernel,
            latency_of(network) or ConstantLatency(int(hops.pairs_us[0])),
            overlay,
            known,
            replace(settings, is_guarded=True),
            fault_tolerance,
            answers.take,
            epoch_us=epoch_us,
            access_bps=dynamic.access_bps,
            congestion=dynamic.congestion,
            loss=dynamic.loss,
            upkeep=upkeep,
        )

    @property
    def identifiers(self) -> NDArray[np.uint64]:
        return self._identifiers

    def begin(self, span_us: int) -> None:
        super().begin(span_us)
        churn = self._dynamic.churn
        if churn is not None:
            self.network.start_churn(churn.distribution, set(self.scenario.users), churn.graceful_fraction)

    def submit(self, queries: Sequence[JoinQuery], homes: Sequence[int]) -> list[int]:
        return [self.network.rjoin.submit(query, home) for query, home in zip(queries, homes, strict=True)]

    def ask_once(self, query: JoinQuery, home: int) -> int:
        return self.network.rjoin.ask_once(query, home)

    def publish_now(self, node: int, stream: str, rows: pa.Table) -> None:
        self.network.rjoin.publish(node, stream, rows)

    def wait(self) -> None:
        """Where tuples and queries are said or moved again it is never quiet, so there is an end to waiting."""
        self._wait(REPAIR_US)

    def _wait(self, most_us: int) -> None:
        latest_us = self.kernel.now_us + most_us
        while self.kernel.now_us < latest_us and not self._is_quiet():
            self.advance(self.kernel.now_us + SECOND_US)

    def settle(self) -> None:
        if self.network.churn is not None:
            self.network.churn.stop()
        self.advance(self.kernel.now_us + self._repair_us)
        self._wait(REPAIR_US + self.network.rjoin.settings.delay_us)  # rows of ROWS windows wait for so long

    def forget_counts(self) -> None:
        self.network.forget_counts()

    def load(self) -> Longs:
        """The load of every node that was ever up, by address."""
        rjoin = self.network.rjoin
        counts = np.zeros(1 + max([*rjoin.peers, *rjoin.loads]), np.int64)
        for address, count in rjoin.loads.items():
            counts[address] = count
        for address, peer in rjoin.peers.items():
            counts[address] = rjoin.load_of(peer)
        return counts

    def storage(self) -> tuple[Longs, int]:
        """As in the base class; copies of what other nodes keep are not counted."""
        rjoin = self.network.rjoin
        counts, held = np.zeros(1 + max([*rjoin.peers, *rjoin.loads]), np.int64), 0
        for address, peer in rjoin.peers.items():
            stored = peer.shard.stored()
            counts[address] = stored.queries[HERE] + stored.tuples[HERE]
            held += int(stored.held[HERE])
        return counts, held

    def received_bytes(self) -> Longs:
        return np.array(self.network.net.bytes_received, np.int64)

    def messages(self) -> dict[str, int]:
        return {purpose.value: self.network.net.messages_for[purpose] for purpose in MailPurpose}

    def more_figures(self) -> dict[str, int]:
        return {"upkeep": self.network.net.upkeep_messages, "up": len(self.network.rjoin.peers)}

    def dynamic_figures(self) -> DynamicFigures:
        assert self.answers is not None
        net, churn = self.network.net, self.network.churn
        checked = range(len(self.known.queries)) if self._checked is None else sorted(self._checked)
        verdict = verdict_on(self.known, self.answers, checked)
        return DynamicFigures(
            bytes={purpose.value: net.bytes_for[purpose] for purpose in MailPurpose},
            upkeep_messages=net.upkeep_messages,
            upkeep_bytes=net.upkeep_bytes,
            lost=net.lost_total,
            joins=churn.joins if churn else 0,
            failures=churn.failures if churn else 0,
            leaves=churn.leaves if churn else 0,
            checked=len(checked),
            expected=verdict.expected,
            right=verdict.right,
            surplus=verdict.surplus,
        )

    def _is_quiet(self) -> bool:
        return self.kernel.now_us - self.network.net.last_us >= QUIET_US and self.network.is_quiet


def _sample(scenario: Scenario) -> frozenset[int] | None:
    """The numbers of generated queries to be checked; None for all queries."""
    load = scenario.load
    if not isinstance(load, ZipfLoad) or load.queries <= MOST_CHECKED:
        return None
    chance = np.random.default_rng([scenario.network.seed, 9])
    return frozenset(chance.choice(load.queries, MOST_CHECKED, replace=False).tolist())
