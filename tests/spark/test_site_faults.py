"""Sites as processes of their own that die, freeze and lose their links: the answers are those of a quiet day.

Each site is a run of the command line over one directory of links. Whoever reads the sink with DuckDB afterwards finds
exactly the answers of the reference semantics, and meanwhile nothing but answers.
"""

import contextlib
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pytest
from processes import CommandProcess
from scenes import Scene, Steps, by_duckdb, ledger_of, make_batches, wait_for, write_batch
from seeds import FreshSeeds, scaled

HOMES = {"a": "ams", "b": "fra", "c": "nyc"}
SITES = tuple(HOMES.values())
QUERIES = {
    "q": """SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id, b.s, a.v + c.v AS v
        FROM a [RANGE 3 SECONDS], b [TUMBLE 4 SECONDS], c [RANGE 3 SECONDS] WHERE a.k = b.k AND b.k = c.k""",
    "different": """SELECT DISTINCT a.id AS a_id, b.m
        FROM a [RANGE 3 SECONDS], b [RANGE 2 SECONDS], c [RANGE 3 SECONDS] WHERE a.k = b.k AND b.k = c.k""",
}
# Every method has a part in it.
PLAN: Steps = {
    "a": [{"join": "b", "method": "SM-D1", "bloom": True}, {"join": "c", "method": "SP-D"}],
    "b": [{"join": "c", "method": "SM-S1"}, {"join": "a", "method": "SM-D2"}],
    "c": [{"join": "b", "method": "SM-S2"}, {"join": "a", "method": "SP-S"}],
}
FILES = {"recursiveFileLookup": "true"}
BROKEN = ("fra", "nyc")  # the link that is taken away
TROUBLES = tuple(
    f"watersmeet: warning: link {BROKEN[0]} -> {BROKEN[1]} cannot be {what}: " for what in ("written", "read")
)
LATE_ROWS = re.compile(r"watersmeet: warning: stream '[abc]': \d+% of its rows \([\d,]+ of [\d,]+\) are late ")


@dataclass
class Sites:
    """All sites of a scene, each a process that is started again as often as it is killed."""

    scene: Scene
    chance: random.Random
    processes: dict[str, CommandProcess] = field(default_factory=dict)
    stage: int = 0
    also_told: tuple[str, ...] = ()  # beginnings of what processes may say
    _before: dict[str, int] = field(default_factory=dict)  # micro-batches of each site when it was last started

    def __post_init__(self) -> None:
        self._answers = {query: self.scene.expected(query) for query in self.scene.queries}

    def release(self) -> None:
        """Let the files of a stage come to the streams, all at once, so that there is work when something happens."""
        for name in HOMES:
            held = self.scene.directory / "held" / name / f"{self.stage:03d}"
            held.rename(self.scene.directory / "data" / name / f"{self.stage:03d}")
        self.stage += 1

    def start(self) -> None:
        self.release()
        for name in self.chance.sample(SITES, len(SITES)):
            self._before[name] = self.scene.ledger(name).number
            self.processes[name] = self.process(name, self.scene.checkpoint)

    def process(self, name: str, checkpoint: Path) -> CommandProcess:
        """A process that runs a site, on its checkpoint or a copy."""
        command = ["site", name, str(self.scene.topology_path), "--trigger", "200 milliseconds", "--quiet"]
        command += ["--checkpoint", str(checkpoint), "--master", "local[1]", "--conf", "spark.driver.memory=512m"]
        return CommandProcess(command, self.scene.directory / f"{name}-{checkpoint.name}.log")

    def wait_until_quiet(self) -> None:
        """Until all that has been released is joined: no site has anything to do for a while."""

        def numbers() -> list[int]:
            return [self.scene.ledger(name).number for name in SITES]

        def are_quiet() -> bool:
            before = numbers()
            time.sleep(3)
            return before == numbers()

        wait_for(are_quiet, "it does not come to rest", self.check)

    def wait_for_micro_batches(self, name: str, count: int, since: int | None = None) -> None:
        """Until a site has completed so many micro-batches, since it was started if nobody says."""
        goal = (self._before[name] if since is None else since) + count
        process = self.processes[name]
        wait_for(lambda: self.scene.ledger(name).number >= goal, f"{name} completes no micro-batch", process.check)

    def kill(self, name: str) -> None:
        """Let a site die with work before it, and start again at once: what it leaves may not be quite dead yet."""
        self.wait_for_micro_batches(name, 1)
        before = self.scene.ledger(name).number
        self.release()
        self.wait_for_micro_batches(name, self.chance.randint(1, 3), since=before)
        time.sleep(self.chance.uniform(0, 0.3))
        self.processes[name].kill()
        self.scene.check_what_readers_see_now(self._answers)
        self._before[name] = self.scene.ledger(name).number
        self.processes[name].start()

    def check(self) -> None:
        for process in self.processes.values():
            process.check()

    @contextlib.contextmanager
    def without_link(self) -> Iterator[None]:
        """A link's directory that cannot be written: to root everything is allowed, so a file is put in its place."""
        sender, reader = BROKEN
        way, away = self.scene.links / reader / sender, self.scene.directory / "away"
        for name in BROKEN:  # a site that starts now would find its link unwritable, and say so
            self.wait_for_micro_batches(name, 1)
        told = len(self.processes[sender].told)
        way.rename(away)
        way.write_text("not a directory")
        try:
            warning = f"watersmeet: warning: link {sender} -> {reader} cannot be written: Not a directory"
            wait_for(
                lambda: any(line.startswith(warning) for line in self.processes[sender].told[told:]),
                "no warning",
                self.check,
            )
            yield
        finally:
            way.unlink()
            away.rename(way)
        self._wait_until_written(way)

    def _wait_until_written(self, way: Path) -> None:
        """Until the sender has found that its link can be written: it does not warn again before it has.

        It writes anew what it says of itself where that is missing. Once this has happened twice, the first attempt to
        publish is over, with everything that follows it.
        """
        for _ in range(2):
            for path in way.glob("sender-*"):
                path.unlink()
            wait_for(lambda: any(way.glob("sender-*")), "the link is not written again", self.check)

    def finish(self) -> None:
        """Wait for all answers; then end all, and look at what is left."""
        wait_for(self._are_answers_there, "not all answers come", self.check)
        wait_for(self.scene.is_at_rest, "it does not come to rest", self.check)
        for name in self.chance.sample(SITES, len(SITES)):
            self.processes[name].stop()
        self.scene.check(least=500)  # no answers too many either: the ledgers say that all rows have been joined
        for process in self.processes.values():
            for line in process.told:
                is_known = line.startswith((*TROUBLES, *self.also_told, "stopping"))
                assert is_known or LATE_ROWS.match(line), line

    def _are_answers_there(self) -> bool:
        def count(query: str) -> int:
            with contextlib.suppress(duckdb.IOException):
                return by_duckdb(self.scene.sink(query)).total()
            return 0

        return all(count(query) >= answers.total() for query, answers in self._answers.items())


MakeSites = Callable[..., Sites]


@pytest.fixture
def make_sites(tmp_path: Path) -> Iterator[MakeSites]:
    made: list[Sites] = []

    def make(*, stages: int, seed: int, files: int = 4, rows: int = 60) -> Sites:
        place = tmp_path / str(seed)
        data = {
            name: make_batches(seed * 10 + number, stages * files, rows, texts=5) for number, name in enumerate(HOMES)
        }
        for name, batches in data.items():
            (place / "data" / name).mkdir(parents=True)
            for number, batch in enumerate(batches):
                write_batch(batch, place / "held" / name / f"{number // files:03d}" / f"{number:05d}.parquet", number)
        scene = Scene(place, data, QUERIES, HOMES, site="nyc", plan=PLAN, late=["a"], options=FILES)
        made.append(Sites(scene, random.Random(seed)))
        return made[-1]

    yield make
    for sites in made:
        for process in sites.processes.values():
            process.close()


def test_sites_that_die_freeze_and_lose_a_link_leave_exactly_the_answers(make_sites: MakeSites) -> None:
    sites = make_sites(stages=3, seed=1)
    sites.start()
    with sites.without_link():
        sites.release()
    with sites.processes["fra"].frozen(5):
        sites.kill("nyc")
    sites.finish()


@pytest.mark.soak
def test_dozens_of_kills(make_sites: MakeSites, fresh_seeds: FreshSeeds) -> None:
    for seed in fresh_seeds.take(5):
        rounds = scaled(8)
        sites = make_sites(stages=1 + rounds * len(SITES), seed=seed)
        sites.start()
        for _ in range(rounds):
            for name in sites.chance.sample(SITES, len(SITES)):
                sites.kill(name)
        sites.finish()


@pytest.mark.soak
def test_a_link_that_is_away_time_and_again(make_sites: MakeSites, fresh_seeds: FreshSeeds) -> None:
    for seed in fresh_seeds.take(1):
        outages = max(2, scaled(8))
        sites = make_sites(stages=1 + outages, seed=seed)
        sites.start()
        for _ in range(outages):
            with sites.without_link():
                sites.release()
                time.sleep(sites.chance.uniform(0, 10))
            time.sleep(sites.chance.uniform(0, 3))
        sites.finish()


@pytest.mark.soak
def test_of_two_processes_of_one_site_one_goes_on(make_sites: MakeSites, fresh_seeds: FreshSeeds) -> None:
    for seed in fresh_seeds.take(1):
        start_twice(make_sites(stages=4, seed=seed))


def start_twice(sites: Sites) -> None:
    """Start a site on a copy that is behind, then on one that is not: the first is refused, the second takes over."""
    scene, older, newer = sites.scene, sites.scene.directory / "older", sites.scene.directory / "newer"
    sites.start()
    for name in SITES:
        sites.wait_for_micro_batches(name, 1)
    sites.wait_until_quiet()
    shutil.copytree(scene.checkpoint / "nyc", older / "nyc")
    before = scene.ledger("nyc").number
    sites.release()
    sites.wait_for_micro_batches("nyc", 3, since=before)
    with sites.process("nyc", older) as behind:
        behind.finish(code=2)
        assert "an older copy" in behind.told[-1]
    sites.check()
    sites.wait_until_quiet()
    shutil.copytree(scene.checkpoint / "nyc", newer / "nyc")
    before, first = scene.ledger("nyc").number, sites.processes["nyc"]
    with sites.process("nyc", newer) as taking_over:
        first.finish(code=1)
        assert "another process runs nyc on a copy of its checkpoint" in first.told[-1]
        sites.release()
        wait_for(lambda: ledger_of(newer / "nyc").number > before + 3, "it does not go on", taking_over.check)
        first.start()  # what was fenced is refused while the other one runs
        first.finish(code=2)
        taking_over.stop()
    sites.also_told = ("watersmeet: link ",)
    shutil.rmtree(scene.checkpoint / "nyc")
    shutil.move(newer / "nyc", scene.checkpoint / "nyc")
    first.start()
    sites.release()
    sites.finish()


@pytest.mark.soak
@pytest.mark.parametrize("name", SITES)
def test_a_site_that_stands_still_for_a_minute(make_sites: MakeSites, fresh_seeds: FreshSeeds, name: str) -> None:
    for seed in fresh_seeds.take(1):
        sites = make_sites(stages=3, seed=seed)
        sites.start()
        for site in SITES:
            sites.wait_for_micro_batches(site, 1)
        with sites.processes[name].frozen(60):
            sites.release()
        sites.release()
        sites.finish()
