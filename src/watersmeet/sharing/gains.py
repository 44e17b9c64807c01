"""What sharing is worth: total and fragment gain (5.7), relative effectiveness (5.8.2), and break-even (5.6.1)."""

from dataclasses import dataclass
from math import inf, log2


def total_gain(aggregates: int, queries: int) -> float:
    """The share of the queries' aggregates that need not be computed.

    >>> total_gain(25, 100)
    0.75
    """
    return 1 - aggregates / queries if queries else 0.0


def effectiveness(queries: int, aggregates: int, least: int) -> float:
    """How much of the possible improvement was attained: 1 is the least possible number of aggregates, 0 no sharing.

    >>> effectiveness(100, 60, 50)
    0.8
    """
    return (queries - aggregates) / (queries - least) if queries > least else 1.0


@dataclass(frozen=True, slots=True)
class SharingFigures:
    """What decides whether sharing pays: nodes that aggregate, queries, and the bits of a partial state record."""

    nodes: int
    queries: int
    record_bits: int

    def saved_bits_per_epoch(self, gain: float) -> float:
        """What sharing saves each epoch."""
        return gain * self.queries * self.nodes * self.record_bits

    def synchronisation_bits(self, rows: int, everywhere: bool = True) -> float:
        """What it costs to tell all nodes of new rows of F, which all leaves have seen, or only one."""
        once = self.nodes * self.queries
        return rows * (2 * once if everywhere else once + log2(max(self.nodes, 2)) * self.queries)

    def break_even_epochs(self, gain: float, rows: int = 1, everywhere: bool = True) -> float:
        """For how many epochs F must stay as it is until sharing has paid; for one row everywhere 2 / (gain x bits).

        >>> SharingFigures(1024, 100, 64).break_even_epochs(0.5)
        0.0625
        """
        saved = self.saved_bits_per_epoch(gain)
        return self.synchronisation_bits(rows, everywhere) / saved if saved > 0 else inf

    def pays(self, gain: float, rows_per_epoch: float, overhead_bits: float = 0.0) -> bool:
        """Whether sharing ships less than it costs while so many rows of F are new each epoch.

        overhead_bits: what an epoch costs besides, such as collecting A' and sending answers to those who asked.
        """
        cost = rows_per_epoch * self.synchronisation_bits(1) + overhead_bits
        return self.saved_bits_per_epoch(gain) > cost
