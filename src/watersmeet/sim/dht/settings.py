"""What all nodes of a DHT agree on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DhtSettings:
    """Lifetimes of objects, timeouts of requests, and the number of replicas."""

    lifetime_max_us: int = 3_600_000_000
    timeout_us: int = 5_000_000  # of one attempt, both phases together
    tries: int = 4
    replicas: int = 0  # copies besides the owner's
    repair_us: int = 5_000_000  # how often an owner refreshes its replicas and misplaced objects are offered again

    def __post_init__(self) -> None:
        for name in ("lifetime_max_us", "timeout_us", "tries", "repair_us"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: {getattr(self, name)}")
        if self.replicas < 0:
            raise ValueError(f"replicas must not be negative: {self.replicas}")
