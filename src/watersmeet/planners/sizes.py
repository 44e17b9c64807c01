"""What flows take on a link with one message a batch: the sizes that planners weigh steps by."""

from dataclasses import dataclass

from watersmeet.cost.formulas import bloom_bytes, flow_bytes, key_flow_bytes, messages_per_s, rows_per_message
from watersmeet.cost.workload import Workload


@dataclass(frozen=True, slots=True)
class FlowSizes:
    """Bytes and messages a second of flows, for a workload and the interval between batches."""

    workload: Workload
    batch_interval_s: float

    def rows(self, mask: int, rate: float, *, times: int = 1) -> tuple[float, float]:
        """Rows or combinations of a set of aliases, with so many times in each."""
        messages, batch = self._messages(rate)
        row_bytes = self.workload.row_bytes(mask, batch, times=times, rate=rate)
        columns = self.workload.columns(mask, times=times)
        return float(flow_bytes(rate, row_bytes, messages, columns)), messages

    def answers(self, rate: float) -> tuple[float, float]:
        """Finished combinations, or the records that are made of them."""
        messages, batch = self._messages(rate)
        if (records := self.workload.records) is not None:
            messages = float(records.messages(messages))
            return float(flow_bytes(records.rate(rate), records.row_bytes, messages, records.columns)), messages
        columns = max(1, len(self.workload.answer_sizes))
        return float(flow_bytes(rate, self.workload.row_bytes(0, batch, answers=True), messages, columns)), messages

    def keys(self, key: tuple[int, ...], rate: float) -> tuple[float, float]:
        """Keys with the times they stand for."""
        messages, batch = self._messages(rate)
        return float(key_flow_bytes(rate, self.workload.keys_bytes(key, batch), messages)), messages

    def filters(self, rate: float) -> tuple[float, float]:
        """Bloom filters of so many keys a second."""
        messages, batch = self._messages(rate)
        return messages * bloom_bytes(batch), messages

    def _messages(self, rate: float) -> tuple[float, float]:
        """Messages a second of a flow, and rows in each."""
        messages = float(messages_per_s(rate, self.batch_interval_s))
        return messages, float(rows_per_message(rate, messages))
