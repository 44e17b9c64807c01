"""Which children a node waits for, and for how long (PIER, section 4.2.2): decisions only, no clock, no network."""

from collections.abc import Iterator

from watersmeet.program.pier.algorithms import ChildList, WaitForKnown
from watersmeet.sim.overlays.router import Address

_DEVIATIONS = 4  # beyond the mean delay, as for timeouts of messages
_SLACK_US = 50_000


class KnownChildren:
    """The children of one node over the epochs: when each was heard last, and how late its records usually come.

    >>> children = KnownChildren(WaitForKnown(ChildList.ADAPTIVE, cleanup_us=5_000_000))
    >>> children.heard(7, now_us=400_000, delay_us=400_000)
    >>> children.heard(7, now_us=5_400_000, delay_us=400_000)
    >>> children.deadline_us, children.silent(now_us=11_000_000)
    (1050000, [7])
    """

    __slots__ = ("_delays", "_heard_us", "_settings")

    def __init__(self, settings: WaitForKnown) -> None:
        self._settings = settings
        self._heard_us: dict[Address, int] = {}
        self._delays: dict[Address, tuple[float, float]] = {}  # mean and mean deviation

    def __iter__(self) -> Iterator[Address]:
        return iter(self._heard_us)

    def __len__(self) -> int:
        return len(self._heard_us)

    def heard(self, child: Address, now_us: int, delay_us: int) -> None:
        """A record of a child has come, so long after its epoch began."""
        self._heard_us[child] = now_us
        if self._settings.children is not ChildList.ADAPTIVE:
            return
        known = self._delays.get(child)
        if known is None:
            self._delays[child] = (float(delay_us), delay_us / 2)
        else:
            mean_us, deviation_us = known
            deviation_us += (abs(delay_us - mean_us) - deviation_us) / 4
            self._delays[child] = (mean_us + (delay_us - mean_us) / 8, deviation_us)

    def forget(self, child: Address) -> None:
        """A child sends to another parent, or is silent."""
        self._heard_us.pop(child, None)
        self._delays.pop(child, None)

    def silent(self, now_us: int) -> list[Address]:
        """Those that have said nothing for too long; they are forgotten."""
        gone = [child for child, heard_us in self._heard_us.items() if now_us - heard_us > self._settings.cleanup_us]
        for child in gone:
            self.forget(child)
        return gone

    @property
    def deadline_us(self) -> int:
        """How long after the beginning of an epoch waiting ends though not all have sent."""
        most_us = self._settings.cleanup_us
        if self._settings.children is not ChildList.ADAPTIVE or not self._delays:
            return most_us
        latest_us = max(mean_us + _DEVIATIONS * deviation_us for mean_us, deviation_us in self._delays.values())
        return min(most_us, round(latest_us) + _SLACK_US)
