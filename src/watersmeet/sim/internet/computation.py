"""Computation events (PIER, sections 3.1.2 and 3.1.4): work that takes time on a simulated host.

The work is done at once, and its result is handed over when the host would have had it: after the time that it took
here, or is said to take, times a factor for hosts with slower or busier processors. It is for what users build on the
simulator: the paper's experiments ignore what processors take (section 4.1), and so do ours.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from time import perf_counter_ns
from typing import TypeVar

from watersmeet.sim.kernel import Kernel

ResultT = TypeVar("ResultT")


def wall_clock_us() -> float:
    """The clock of the machine that runs the simulation."""
    return perf_counter_ns() / 1_000


class Processor:
    """One host's processor. With `cores` at most so many computations run at a time, the others wait in order.

    A run that measures its work by the machine's clock is not the same twice. `cost_us` says what work costs and keeps
    a run a function of its seed.

    >>> kernel = Kernel(seed=1)
    >>> slow = Processor(kernel, cpu_factor=3.0)
    >>> slow.compute(lambda: 6 * 7, lambda result: print(f"{result} at {kernel.now_us} us"), cost_us=100)
    >>> kernel.run()
    42 at 300 us
    1
    """

    __slots__ = ("_clock_us", "_free_us", "_kernel", "_life", "busy_us", "cores", "cpu_factor")

    def __init__(
        self,
        kernel: Kernel,
        cpu_factor: float = 1.0,
        *,
        cores: int | None = None,
        clock_us: Callable[[], float] = wall_clock_us,
    ) -> None:
        if not cpu_factor >= 0:
            raise ValueError(f"cpu_factor must not be negative: {cpu_factor}")
        if cores is not None and cores < 1:
            raise ValueError(f"cores must be at least 1, or None for as many as are needed: {cores}")
        self._kernel, self._clock_us = kernel, clock_us
        self.cpu_factor, self.cores = cpu_factor, cores
        self.busy_us = 0  # all computations together
        self._free_us: list[int] = []  # when each core that is in use will be free
        self._life = 0

    def compute(
        self, work: Callable[[], ResultT], done: Callable[[ResultT], None], *, cost_us: float | None = None
    ) -> None:
        """Do work; `done` gets its result later. What it raises comes out of this call."""
        if cost_us is not None and cost_us < 0:
            raise ValueError(f"cost_us must not be negative: {cost_us}")
        begin_us = self._clock_us()
        result = work()
        took_us = self._clock_us() - begin_us if cost_us is None else cost_us
        duration_us = max(0, round(took_us * self.cpu_factor))
        self.busy_us += duration_us
        end_us = self._start_us(duration_us) + duration_us
        self._kernel.at(end_us, self._end, self._life, done, result)

    def stop(self) -> None:
        """The host has crashed: nothing that is under way will be done."""
        self._life += 1
        self._free_us.clear()

    def _start_us(self, duration_us: int) -> int:
        """When a core is free for it."""
        now_us = self._kernel.now_us
        if self.cores is None:
            return now_us
        start_us = now_us
        if len(self._free_us) == self.cores:
            start_us = max(now_us, heappop(self._free_us))
        heappush(self._free_us, start_us + duration_us)
        return start_us

    def _end(self, life: int, done: Callable[[ResultT], None], result: ResultT) -> None:
        if life == self._life:
            done(result)
