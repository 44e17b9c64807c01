"""When a sender takes a message for lost: round trips are estimated as TCP does (Jacobson; Karn for repeated ones).

A message that was sent twice measures nothing, since nobody knows which copy was acknowledged. But the timeout at which
it came through stays in force until one that was sent once is measured: else a receiver that is always slow would never
be known to be.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retransmission:
    """Timeouts of messages between hosts, and how often one is sent before it is given up.

    The round trip of a receiver is measured at each message that was sent once: from the call of `send`, so waiting on
    one's own uplink counts, to the acknowledgement.
    """

    first_timeout_us: int = 1_000_000  # to a receiver of which nothing is known
    timeout_min_us: int = 250_000
    timeout_max_us: int = 60_000_000
    tries: int = 6
    remembered: int = 256  # receivers, of each sender

    def __post_init__(self) -> None:
        for name in ("first_timeout_us", "timeout_min_us", "tries", "remembered"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: {getattr(self, name)}")
        if self.timeout_max_us < max(self.first_timeout_us, self.timeout_min_us):
            raise ValueError(f"timeout_max_us must not be below the other timeouts: {self.timeout_max_us}")


class RoundTrips:
    """What one sender knows of its receivers: mean and mean deviation of the round trip."""

    __slots__ = ("_backed_off_us", "_known", "_settings")

    def __init__(self, settings: Retransmission) -> None:
        self._settings = settings
        self._known: dict[int, tuple[float, float]] = {}  # the one measured last at the end
        self._backed_off_us: dict[int, int] = {}

    def measured(self, receiver: int, round_trip_us: int) -> None:
        """A message to this receiver was acknowledged after so long."""
        self._backed_off_us.pop(receiver, None)
        known = self._known.pop(receiver, None)
        if known is None:
            mean_us, deviation_us = float(round_trip_us), round_trip_us / 2
            if len(self._known) >= self._settings.remembered:
                del self._known[next(iter(self._known))]
        else:
            mean_us, deviation_us = known
            deviation_us += (abs(round_trip_us - mean_us) - deviation_us) / 4
            mean_us += (round_trip_us - mean_us) / 8
        self._known[receiver] = (mean_us, deviation_us)

    def backed_off(self, receiver: int, timeout_us: int) -> None:
        """A message that was sent several times was acknowledged, with this timeout at last."""
        self._backed_off_us[receiver] = timeout_us
        if len(self._backed_off_us) > self._settings.remembered:
            del self._backed_off_us[next(iter(self._backed_off_us))]

    def timeout_us(self, receiver: int) -> int:
        """How long to wait for this receiver's acknowledgement: the mean and four deviations.

        >>> trips = RoundTrips(Retransmission(timeout_min_us=1))
        >>> trips.measured(7, 100_000)
        >>> trips.timeout_us(7), trips.timeout_us(8)
        (300000, 1000000)
        """
        backed_off_us = self._backed_off_us.get(receiver)
        if backed_off_us is not None:
            return backed_off_us
        known = self._known.get(receiver)
        if known is None:
            return self._settings.first_timeout_us
        estimate_us = round(known[0] + 4 * known[1])
        return min(max(estimate_us, self._settings.timeout_min_us), self._settings.timeout_max_us)
