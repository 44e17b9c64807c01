"""Fresh seeds for random tests: others on every run, and for one that fails the command that repeats it.

A test asks for the fixture `fresh_seeds` and loops over `fresh_seeds.take(count)`. `WATERSMEET_SEED=...` makes every
such test run with this seed only. `WATERSMEET_SOAK=1` is a long run, `WATERSMEET_SOAK=0.01` a hundredth of one: a test
with 40 cases of 100 seeds each has 40 seeds then. What its cases leave out, its seeds do not leave out once more
(`divided`).
"""

import os
import shlex
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import hangs
import pytest

SEED_VARIABLE = "WATERSMEET_SEED"
SOAK_VARIABLE = "WATERSMEET_SOAK"


@dataclass(slots=True)
class FreshSeeds:
    """Seeds for one test; remembers the one in use."""

    node_id: str
    current: int | None = None
    share: float = 1.0  # of what the whole test does
    passed: list[int] = field(default_factory=list)

    def take(self, count: int) -> Iterator[int]:
        """So many random seeds one after the other, or the one that the environment asks for."""
        asked = os.environ.get(SEED_VARIABLE)
        number, rest = divided(_share(), count)
        before, _left[:] = [*_left], [rest]
        for seed in (int(asked),) if asked else (random_seed() for _ in range(number)):
            self.current = seed
            hangs.beat()
            yield seed
            self.passed.append(seed)
        self.current = None  # all of them passed
        _left[:] = before

    @property
    def command(self) -> str:
        """What repeats the test with the current seed."""
        soak = f"{SOAK_VARIABLE}={self.share:g} " if os.environ.get(SOAK_VARIABLE) else ""
        return f"{SEED_VARIABLE}={self.current} {soak}.venv/bin/python -m pytest {shlex.quote(self.node_id)}"


def scale() -> float:
    """What part of a whole long run this one is."""
    return float(os.environ.get(SOAK_VARIABLE) or 1)


def divided(share: float, count: int, least: int = 1) -> tuple[int, float]:
    """How many of so many are done for a share of them, and the share of each that makes it exactly that share of all.

    >>> divided(0.25, 40), divided(0.25, 2), divided(10, 3)
    ((10, 1.0), (1, 0.5), (30, 1.0))
    """
    number = max(least, round(share * count))
    return number, share * count / number


def cases_of(share: float, cases: int) -> tuple[int, float]:
    """The same of a test's cases, which are there once: a few of them at least, and at most all.

    >>> cases_of(0.25, 40), cases_of(0.25, 4), cases_of(10, 4)
    ((10, 1.0), (3, 0.3333333333333333), (4, 10.0))
    """
    number = min(cases, divided(share, cases, _MIN_CASES)[0])
    return number, share * cases / number


_MIN_CASES = 3  # of each test in a long run that is shortened
_left: list[float] = []  # the share of the test that runs that its cases and seeds have not used up


def scaled(count: int) -> int:
    """How many of so many are done for the share that is left of a test; of the whole run where none runs yet."""
    return divided(_share(), count)[0]


def _share() -> float:
    return _left[-1] if _left else scale()


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
_SHARE = pytest.StashKey[float]()


def keep_a_fraction(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the long cases of a test, as many as the run is to be long, and say how much of each is left to do."""
    left_out = set()
    long = [item for item in items if item.get_closest_marker("soak")]
    for _, some in groupby(long, key=_test_of):
        cases = list(some)
        number, rest = cases_of(scale(), len(cases))
        left_out |= {*cases[number:]}
        for item in cases[:number]:
            item.stash[_SHARE] = rest
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _test_of(item: pytest.Item) -> str:
    return name_of_test(item.nodeid)


def name_of_test(node_id: str) -> str:
    """The test that something is a case of."""
    return node_id.split("[")[0]


def share_of_cases(items: Sequence[str], share: float) -> int:
    """How many of some long cases, by their names, a run of a share has."""
    return sum(cases_of(share, len(list(some)))[0] for _, some in groupby(items, key=name_of_test))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a test do the share that is left of it."""
    _left[:] = [item.stash.get(_SHARE, scale())]


@pytest.fixture
def fresh_seeds(request: pytest.FixtureRequest) -> Iterator[FreshSeeds]:
    """Seeds that are drawn anew for each run of a test; a soak test says which."""
    seeds = FreshSeeds(request.node.nodeid, share=request.node.stash.get(_SHARE, scale()))
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
