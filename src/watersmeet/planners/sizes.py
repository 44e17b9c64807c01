"""What flows take on a link with one message a turn: the sizes that planners weigh steps by."""

from dataclasses import dataclass

from watersmeet.cost.price import bloom_bytes, seen
from watersmeet.cost.workload import Workload
from watersmeet.program.storage.wire import overhead_bytes


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes and messages a second of flows, for a workload and the time between batches."""

    workload: Workload
    turn_s: float

    def rows(self, mask: int, rate: float, *, times: int = 1) -> tuple[float, float]:
        """Rows or combinations of a set of aliases, with so many times in each."""
        messages, batch = self._messages(rate)
        overhead = overhead_bytes(self.workload.columns(mask, times=times))
        return messages * overhead + rate * self.workload.row_bytes(mask, batch, times=times), messages

    def answers(self, rate: float) -> tuple[float, float]:
        """Finished combinations."""
        messages, batch = self._messages(rate)
        overhead = overhead_bytes(max(1, len(self.workload.answer_sizes)))
        return messages * overhead + rate * self.workload.row_bytes(0, batch, answers=True), messages

    def keys(self, key: tuple[int, ...], rate: float) -> tuple[float, float]:
        """Keys with the times they stand for."""
        messages, batch = self._messages(rate)
        return messages * overhead_bytes(3) + rate * self.workload.keys_bytes(key, batch), messages

    def filters(self, rate: float) -> tuple[float, float]:
        """Bloom filters of so many keys a second."""
        messages, batch = self._messages(rate)
        return messages * bloom_bytes(batch), messages

    def _messages(self, rate: float) -> tuple[float, float]:
        """Messages a second of a flow, and rows in each."""
        rows = rate * self.turn_s
        messages = float(seen(rows)) / self.turn_s
        return messages, rows / max(messages * self.turn_s, 1e-12)
