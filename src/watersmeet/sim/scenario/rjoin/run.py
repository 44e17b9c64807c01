"""A simulation of RJoin under way: time passes, tuples come, the trace is written, and at the end it is summed up."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.program.rjoin.arrays import FOREVER, Longs
from watersmeet.program.rjoin.tables import Known
from watersmeet.query.model import JoinQuery
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.rjoin.answers import ReceivedAnswers
from watersmeet.sim.scenario.model import Scenario
from watersmeet.sim.scenario.outcome import DynamicFigures, SimulationOutcome, Spread, Summary
from watersmeet.sim.scenario.trace import Trace

SECOND_US = 1_000_000
MOST_LOOKS = 1_000  # in a trace, while tuples are published


class RJoinRun(ABC):
    """A network of peers on which queries are asked and tuples are published; it is static or dynamic."""

    def __init__(
        self,
        scenario: Scenario,
        known: Known,
        kernel: Kernel,
        answers: ReceivedAnswers | None,
        trace: Trace | None,
        epoch_us: int,
    ) -> None:
        self.scenario, self.known, self.kernel, self.answers, self.trace = scenario, known, kernel, answers, trace
        self.tuples = 0
        self._epoch_us = epoch_us
        self._every_us, self._next_look_us = SECOND_US, int(FOREVER)
        self._began_us = 0

    @property
    def now_us(self) -> int:
        return self._epoch_us + self.kernel.now_us

    def begin(self, span_us: int) -> None:
        """Count from now on; tuples will come for so long."""
        self.forget_counts()
        self.tuples = 0
        self._began_us = self.kernel.now_us
        if self.trace is not None:
            self._every_us = -(-max(SECOND_US, span_us // MOST_LOOKS) // SECOND_US) * SECOND_US
            self._next_look_us = self._began_us + self._every_us
            self.trace.start(self.scenario.parameters, self.identifiers, self._every_us, self.now_us)

    def publish(self, at_us: int, node: int, stream: str, rows: pa.Table) -> None:
        """Advance to a time, and insert tuples at a node then."""
        self.advance(at_us)
        self.publish_now(node, stream, rows)
        self.tuples += rows.num_rows

    def advance(self, until_us: int) -> None:
        """Run the simulation up to a time, with the lines of the trace that are due by then."""
        while self._next_look_us <= until_us:
            self.kernel.run(self._next_look_us)
            self._look()
        self.kernel.run(until_us)

    def finish(self, names: Mapping[str, int]) -> SimulationOutcome:
        """Wait until all is quiet, and sum up."""
        self.settle()
        network = self.scenario.network
        load, storage, held = self.load(), *self.storage()
        summary = Summary(
            nodes=network.nodes,
            overlay=network.overlay.value,
            latency=network.latency.value,
            strategy=self.scenario.rjoin.strategy.value,
            seed=network.seed,
            tuples=self.tuples,
            queries=len(self.known.queries),
            answers=self.answers_total(),
            answers_by_query={
                name: self.answers.count(number) for name, number in names.items() if self.answers is not None
            },
            messages=self.messages(),
            load=Spread.of(load),
            storage=Spread.of(storage),
            held=held,
            virtual_us=self.kernel.now_us - self._began_us,
            dynamic=self.dynamic_figures(),
        )
        if self.trace is not None:
            self._look()  # what came after the last one that was due
            self.trace.end(self.now_us, summary.data)
        return SimulationOutcome(summary, load, storage, self.answers, names, self.received_bytes())

    def answers_total(self) -> int:
        """How many answers have come to those who asked."""
        assert self.answers is not None
        return sum(self.answers.count(number) for number in range(len(self.known.queries)))

    def dynamic_figures(self) -> DynamicFigures | None:
        """Figures of a dynamic network; None on a static one."""
        return None

    def received_bytes(self) -> Longs | None:
        """The bytes that each node has received, from the very beginning; None on a static network."""
        return None

    def _look(self) -> None:
        assert self.trace is not None
        past_us = self.kernel.now_us - self._began_us
        self._next_look_us = self._began_us + (past_us // self._every_us + 1) * self._every_us
        load = self.load()
        figures = {
            "tuples": self.tuples,
            "answers": self.answers_total(),
            "messages": self.messages(),
            "load": asdict(Spread.of(load)),
            "storage": asdict(Spread.of(self.storage()[0])),
            **self.more_figures(),
        }
        self.trace.look(self.now_us, figures, load)

    def more_figures(self) -> dict[str, int]:
        """Further fields of a line of the trace."""
        return {}

    @property
    @abstractmethod
    def identifiers(self) -> NDArray[np.uint64]:
        """Where the peers are on the circle, by number, at the beginning."""

    @abstractmethod
    def submit(self, queries: Sequence[JoinQuery], homes: Sequence[int]) -> list[int]:
        """Submit queries at nodes now; returns their numbers."""

    @abstractmethod
    def ask_once(self, query: JoinQuery, home: int) -> int:
        """Ask at a node about the tuples published up to now; returns the query's number."""

    @abstractmethod
    def publish_now(self, node: int, stream: str, rows: pa.Table) -> None:
        """Insert tuples at a node."""

    @abstractmethod
    def wait(self) -> None:
        """Run until nothing is under way, and no longer, with or without a trace."""

    @abstractmethod
    def settle(self) -> None:
        """Run until no more answers can come."""

    @abstractmethod
    def forget_counts(self) -> None:
        """Count messages and load from now on."""

    @abstractmethod
    def load(self) -> Longs:
        """The query processing load of each node."""

    @abstractmethod
    def storage(self) -> tuple[Longs, int]:
        """The storage load of each node, and how many tuples are kept at the attribute level in all."""

    @abstractmethod
    def messages(self) -> dict[str, int]:
        """How many messages RJoin has sent, by purpose; each hop is one."""
