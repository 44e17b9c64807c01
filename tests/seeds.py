"""Fresh seeds for random tests: others on every run, and for one that fails the command that repeats it.

A test asks for the fixture `fresh_seeds` and loops over `fresh_seeds.take(count)`. `WATERSMEET_SEED=...` makes every
such test run with this seed only. `WATERSMEET_SOAK=1` is a long run, `WATERSMEET_SOAK=0.01` a hundredth of one.
"""

import os
import shlex
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import pytest

SEED_VARIABLE = "WATERSMEET_SEED"
SOAK_VARIABLE = "WATERSMEET_SOAK"


@dataclass(slots=True)
class FreshSeeds:
    """Seeds for one test; remembers the one in use."""

    node_id: str
    current: int | None = None
    passed: list[int] = field(default_factory=list)

    def take(self, count: int) -> Iterator[int]:
        """So many random seeds one after the other, or the one that the environment asks for."""
        asked = os.environ.get(SEED_VARIABLE)
        seeds = (int(asked),) if asked else (random_seed() for _ in range(scaled(count)))
        for seed in seeds:
            self.current = seed
            yield seed
            self.passed.append(seed)
        self.current = None  # all of them passed

    @property
    def command(self) -> str:
        """What repeats the test with the current seed."""
        scale = os.environ.get(SOAK_VARIABLE)
        soak = f"{SOAK_VARIABLE}={scale} " if scale else ""
        return f"{SEED_VARIABLE}={self.current} {soak}.venv/bin/python -m pytest {shlex.quote(self.node_id)}"


def scaled(count: int) -> int:
    """How many of so many a long run takes that is a fraction of the whole one."""
    return max(1, round(count * float(os.environ.get(SOAK_VARIABLE) or 1)))


def evenly_spread(count: int, of: int) -> set[int]:
    """So many of the numbers below `of`, the first and the last among them.

    >>> sorted(evenly_spread(3, 9)), sorted(evenly_spread(1, 9)), sorted(evenly_spread(5, 2))
    ([0, 4, 8], [0], [0, 1])
    """
    return {round(number * (of - 1) / max(count - 1, 1)) for number in range(count)}


def random_seed() -> int:
    """A seed of 31 bits from the operating system."""
    return int.from_bytes(os.urandom(4)) >> 1


_MOST_SHOWN = 20  # seeds of a soak test that passed
_KEY = pytest.StashKey[FreshSeeds]()


@pytest.fixture
def fresh_seeds(request: pytest.FixtureRequest) -> Iterator[FreshSeeds]:
    """Seeds that are drawn anew for each run of a test; a soak test says which."""
    seeds = FreshSeeds(request.node.nodeid)
    request.node.stash[_KEY] = seeds
    yield seeds
    if os.environ.get(SOAK_VARIABLE):
        shown = " ".join(map(str, seeds.passed[:_MOST_SHOWN])) + (" ..." if len(seeds.passed) > _MOST_SHOWN else "")
        print(f"\n{seeds.node_id}: {len(seeds.passed):,} seeds passed: {shown}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say in the report of a failure which seed it was and how to run it again."""
    report = yield
    seeds = item.stash.get(_KEY, None)
    if report.failed and seeds is not None and seeds.current is not None:
        report.sections.append(("fresh seed", f"seed {seeds.current} failed; repeat it by\n  {seeds.command}"))
    return report
