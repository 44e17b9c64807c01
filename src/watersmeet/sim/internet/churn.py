"""Churn: hosts come for a session and go, by crash or gracefully, while about as many stay.

A host that goes is replaced at once by a new one under a fresh address, or comes back itself after a drawn downtime;
then session / (session + downtime) of the hosts, by their means, are up in the long run.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import exp, gamma, log
from random import Random
from typing import Protocol

from watersmeet.sim.kernel import Event, Kernel


class Sessions(Protocol):
    """A distribution of durations: how long a host stays, or stays away."""

    def draw(self, random: Random) -> int:
        """One duration in microseconds, at least 1."""


@dataclass(frozen=True, slots=True)
class Exponential:
    """Memoryless: how long a host has been there says nothing about how long it will stay."""

    mean_us: float

    def __post_init__(self) -> None:
        _check_positive("mean_us", self.mean_us)

    def draw(self, random: Random) -> int:
        """One duration in microseconds, at least 1."""
        return _whole(-self.mean_us * log(1.0 - random.random()))


@dataclass(frozen=True, slots=True)
class Pareto:
    """Heavy tail, P(longer than t) ~ t^-shape: who has stayed long stays longer. The mean is infinite up to shape 1."""

    median_us: float
    shape: float = 1.5

    def __post_init__(self) -> None:
        _check_positive("median_us", self.median_us)
        _check_positive("shape", self.shape)

    def draw(self, random: Random) -> int:
        """One duration in microseconds, at least 1."""
        return _whole(self.median_us * (2.0 * (1.0 - random.random())) ** (-1.0 / self.shape))


@dataclass(frozen=True, slots=True)
class Weibull:
    """Below shape 1 the young go first, above it the old; shape 1 is exponential."""

    mean_us: float
    shape: float = 0.6

    def __post_init__(self) -> None:
        _check_positive("mean_us", self.mean_us)
        _check_positive("shape", self.shape)

    def draw(self, random: Random) -> int:
        """One duration in microseconds, at least 1."""
        scale_us = self.mean_us / gamma(1.0 + 1.0 / self.shape)
        return _whole(scale_us * (-log(1.0 - random.random())) ** (1.0 / self.shape))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """The logarithm is normal with deviation `sigma` around that of the median."""

    median_us: float
    sigma: float = 1.0

    def __post_init__(self) -> None:
        _check_positive("median_us", self.median_us)
        if not self.sigma >= 0:
            raise ValueError(f"sigma must not be negative: {self.sigma}")

    def draw(self, random: Random) -> int:
        """One duration in microseconds, at least 1."""
        return _whole(self.median_us * exp(self.sigma * random.normalvariate(0.0, 1.0)))


class Churn:
    """Drives joins and departures through callbacks until a time; all chance is the kernel's.

    `join(address)` must put the host up; `fail(address)` must crash it, `leave(address)` let it leave gracefully. The
    first sessions are drawn as if all hosts had just come.

    >>> kernel = Kernel(seed=3)
    >>> report = lambda what: lambda address: print(f"{kernel.now_us} us: {address} {what}")
    >>> churn = Churn(kernel, Exponential(10e6), join=report("joins"), fail=report("fails"), until_us=700_000)
    >>> churn.start(range(8))
    >>> kernel.run()
    132555 us: 6 fails
    132555 us: 8 joins
    677745 us: 5 fails
    677745 us: 9 joins
    4
    """

    def __init__(
        self,
        kernel: Kernel,
        session: Sessions,
        *,
        join: Callable[[int], object],
        fail: Callable[[int], object],
        leave: Callable[[int], object] | None = None,
        graceful_fraction: float = 0.0,
        downtime: Sessions | None = None,
        until_us: int | None = None,
    ) -> None:
        if not 0 <= graceful_fraction <= 1:
            raise ValueError(f"graceful_fraction must be in [0, 1]: {graceful_fraction}")
        if graceful_fraction and leave is None:
            raise ValueError("a graceful_fraction needs a leave callback")
        self._kernel, self._session, self._downtime = kernel, session, downtime
        self._join, self._fail, self._leave = join, fail, leave or fail
        self._graceful_fraction, self._until_us = graceful_fraction, until_us
        self._next_address = 0
        self._timers: dict[int, Event] = {}
        self.joins = self.failures = self.leaves = 0

    def start(self, addresses: Iterable[int], next_address: int | None = None) -> None:
        """Let the sessions of these hosts, which are up, begin now; new ones get addresses from `next_address` on."""
        hosts = sorted(addresses)
        fresh = max(hosts, default=-1) + 1 if next_address is None else next_address
        self._next_address = max(self._next_address, fresh)
        for address in hosts:
            self._begin(address)

    def stop(self) -> None:
        """End churn: hosts that are up stay up, others stay down."""
        for event in self._timers.values():
            self._kernel.cancel(event)
        self._timers.clear()

    def _begin(self, address: int) -> None:
        self._later(self._session.draw(self._kernel.random), self._end, address)

    def _end(self, address: int) -> None:
        del self._timers[address]
        is_graceful = self._graceful_fraction > 0 and self._kernel.random.random() < self._graceful_fraction
        if self._downtime is None:
            successor = self._next_address
            self._next_address += 1
            self._later(0, self._return, successor)
        else:
            self._later(self._downtime.draw(self._kernel.random), self._return, address)
        if is_graceful:
            self.leaves += 1
            self._leave(address)
        else:
            self.failures += 1
            self._fail(address)

    def _return(self, address: int) -> None:
        del self._timers[address]
        self.joins += 1
        self._begin(address)
        self._join(address)

    def _later(self, delay_us: int, action: Callable[[int], None], address: int) -> None:
        """Schedule unless it would be after the end."""
        if self._until_us is None or self._kernel.now_us + delay_us <= self._until_us:
            self._timers[address] = self._kernel.after(delay_us, action, address)


def _whole(duration_us: float) -> int:
    return max(1, round(duration_us))


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be positive: {value}")
