"""What RJoin's dynamic nodes do against loss, each optional: renewal and replication."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FaultTolerance:
    """Renewal and replication against loss, and how often a node looks after its state."""

    renew_us: int | None = None  # how often tuples and queries are sent again
    replicas: int = 0  # how many successors have copies
    rates_timeout_us: int = 5_000_000  # how long a node waits for rates before it chooses without
    check_us: int = 2_000_000  # how often a node sees whether its successors have changed
    sweep_us: int = 30_000_000  # how often a node forgets what is over

    @property
    def is_needed(self) -> bool:
        return self.renew_us is not None or self.replicas > 0
