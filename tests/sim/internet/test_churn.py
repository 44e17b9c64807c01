"""Churn: session times have their means and medians, the population stays, and a seed decides all."""

from collections import Counter
from collections.abc import Callable
from math import sqrt
from random import Random
from statistics import fmean, median
from typing import Any

import pytest

from watersmeet.sim.internet.churn import Churn, Exponential, LogNormal, Pareto, Sessions, Weibull
from watersmeet.sim.kernel import Kernel

MINUTE_US = 60_000_000
DRAWS = 20_000


def draws(distribution: Sessions, seed: int = 1) -> list[int]:
    random = Random(seed)
    return [distribution.draw(random) for _ in range(DRAWS)]


@pytest.mark.parametrize(
    ("distribution", "relative_deviation"),
    [
        (Exponential(MINUTE_US), 1.0),
        (Weibull(MINUTE_US, shape=1.0), 1.0),
        (Weibull(MINUTE_US, shape=2.0), 0.523),  # sqrt(Gamma(2) / Gamma(1.5)^2 - 1)
        (Weibull(MINUTE_US, shape=0.5), sqrt(5)),  # Gamma(5) / Gamma(3)^2 - 1 = 5
    ],
)
def test_means(distribution: Sessions, relative_deviation: float) -> None:
    # Four standard errors of the mean of so many draws.
    assert fmean(draws(distribution)) == pytest.approx(MINUTE_US, rel=4 * relative_deviation / sqrt(DRAWS))


@pytest.mark.parametrize(
    "distribution", [Pareto(MINUTE_US, shape=0.9), Pareto(MINUTE_US, shape=3.0), LogNormal(MINUTE_US, sigma=1.5)]
)
def test_medians(distribution: Sessions) -> None:
    # Half are below: four deviations of a share of one half.
    below = sum(duration_us < MINUTE_US for duration_us in draws(distribution)) / DRAWS
    assert below == pytest.approx(0.5, abs=4 * 0.5 / sqrt(DRAWS))


@pytest.mark.parametrize(
    ("distribution", "share_beyond_ten_times"),
    [
        (Exponential(MINUTE_US), 0.0000454),  # e^-10
        (Pareto(MINUTE_US, shape=1.0), 0.05),  # (10 * 2)^-1
        (LogNormal(MINUTE_US, sigma=1.0), 0.01065),  # 1 - Phi(ln 10)
        (Weibull(MINUTE_US, shape=0.5), 0.01142),  # e^-sqrt(10 * Gamma(3))
    ],
)
def test_tails(distribution: Sessions, share_beyond_ten_times: float) -> None:
    share = sum(duration_us > 10 * MINUTE_US for duration_us in draws(distribution)) / DRAWS
    deviation = sqrt(share_beyond_ten_times / DRAWS)
    assert share == pytest.approx(share_beyond_ten_times, abs=4 * deviation)


def test_durations_are_whole_and_positive() -> None:
    for distribution in (Exponential(0.1), Pareto(0.1), Weibull(0.1), LogNormal(0.1)):
        assert all(type(each) is int and each >= 1 for each in draws(distribution)[:100])


@pytest.mark.parametrize(
    "make", [lambda: Exponential(0), lambda: Pareto(-1), lambda: Weibull(1, 0), lambda: Pareto(1, 0)]
)
def test_what_is_not_positive_is_an_error(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        make()


class Population:
    """Checks that hosts come and go in turn, and keeps the trace."""

    def __init__(self, hosts: int, seed: int, session: Sessions, **settings: Any) -> None:
        self.kernel, self.up = Kernel(seed), set(range(hosts))
        self.trace: list[tuple[Any, ...]] = []
        self.churn = Churn(self.kernel, session, join=self.join, fail=self.fail, leave=self.leave, **settings)
        self.churn.start(self.up)

    def join(self, address: int) -> None:
        assert address not in self.up
        self.up.add(address)
        self.trace.append((self.kernel.now_us, "join", address))

    def fail(self, address: int) -> None:
        self.up.remove(address)
        self.trace.append((self.kernel.now_us, "fail", address))

    def leave(self, address: int) -> None:
        self.up.remove(address)
        self.trace.append((self.kernel.now_us, "leave", address))


def test_a_fresh_host_replaces_each_that_goes() -> None:
    world = Population(100, 1, Exponential(MINUTE_US), until_us=20 * MINUTE_US)
    world.kernel.run()
    assert world.kernel.now_us <= 20 * MINUTE_US
    assert len(world.up) == 100
    kinds = Counter(kind for _, kind, _ in world.trace)
    # 100 hosts for 20 mean sessions: a Poisson number of 2,000.
    assert kinds["fail"] == pytest.approx(2_000, abs=4 * sqrt(2_000))
    assert kinds["leave"] == 0
    joined = [address for _, kind, address in world.trace if kind == "join"]
    assert joined == list(range(100, 100 + kinds["fail"]))
    assert (world.churn.joins, world.churn.failures, world.churn.leaves) == (kinds["join"], kinds["fail"], 0)


def test_with_downtime_the_same_hosts_return_and_the_share_up_is_as_it_must_be() -> None:
    world = Population(400, 2, Exponential(3 * MINUTE_US), downtime=Exponential(MINUTE_US), until_us=60 * MINUTE_US)
    shares = []
    for minute in range(20, 61, 4):  # past the start, when all were up; far enough apart to be nearly independent
        world.kernel.run(until_us=minute * MINUTE_US)
        shares.append(len(world.up) / 400)
    assert fmean(shares) == pytest.approx(0.75, abs=4 * sqrt(0.75 * 0.25 / 400 / len(shares)))
    assert {address for _, _, address in world.trace} <= set(range(400))


def test_a_share_leaves_gracefully() -> None:
    world = Population(100, 3, Weibull(MINUTE_US), graceful_fraction=0.3, until_us=20 * MINUTE_US)
    world.kernel.run()
    gone = world.churn.leaves + world.churn.failures
    assert gone > 1_000
    assert world.churn.leaves / gone == pytest.approx(0.3, abs=4 * sqrt(0.3 * 0.7 / gone))


def test_stop_lets_everyone_stay() -> None:
    world = Population(50, 4, Exponential(MINUTE_US))
    world.kernel.run(until_us=5 * MINUTE_US)
    before = len(world.trace)
    world.churn.stop()
    assert world.kernel.run() == 0
    assert len(world.trace) == before > 0
    assert len(world.up) == 50


def test_same_seed_same_trace() -> None:
    def trace(seed: int) -> Any:
        world = Population(
            30, seed, LogNormal(MINUTE_US), downtime=Pareto(MINUTE_US), graceful_fraction=0.5, until_us=9 * MINUTE_US
        )
        world.kernel.run()
        return world.trace

    assert trace(5) == trace(5)
    assert trace(5) != trace(6)


def test_median_session_seen_by_the_driver() -> None:
    world = Population(200, 6, Pareto(MINUTE_US, shape=2.0), until_us=1_000 * MINUTE_US)
    world.kernel.run(until_us=30 * MINUTE_US)
    began = dict.fromkeys(range(200), 0)
    sessions = []
    for time_us, kind, address in world.trace:
        if kind == "join":
            began[address] = time_us
        elif began[address] < 5 * MINUTE_US:  # long sessions that began late are not over: they would be missing
            sessions.append(time_us - began[address])
    # The deviation of a median is 1 / (2 f sqrt(n)), where the density there is f = shape / (2 * median).
    assert median(sessions) == pytest.approx(MINUTE_US, rel=4 * 0.5 / sqrt(len(sessions)))


def test_bad_shares_are_errors() -> None:
    with pytest.raises(ValueError, match="graceful_fraction"):
        Population(1, 1, Exponential(1), graceful_fraction=1.5)
    with pytest.raises(ValueError, match="needs a leave callback"):
        Churn(Kernel(1), Exponential(1), join=print, fail=print, graceful_fraction=0.5)
