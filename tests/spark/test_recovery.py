"""A run that crashes before any step of a micro-batch that leaves a trace on disk goes on to exactly its answers.

The crash is a failure in this process after which no thread gets any further; `test_kills.py` kills real ones.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from processes import give_up
from scenes import Scene, wait_for
from seeds import FreshSeeds, scaled
from spark.recovery import APART, PLAN, QUERIES, all_answers, make_scene

from watersmeet.errors import WatersmeetError
from watersmeet.program.site.engine import SiteEngine
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.spark.checkpoint import Checkpoint
from watersmeet.spark.deliver.delivery import Delivery, LateRows
from watersmeet.spark.deliver.evaluate import SparkEvaluator
from watersmeet.spark.deliver.storage import LocalStorage
from watersmeet.spark.files import FileShelf
from watersmeet.spark.jobs import TaskRunner
from watersmeet.spark.links.directory import DirectoryLinks
from watersmeet.spark.site.job import SiteJob


class Crash(WatersmeetError):
    """Stands for the end of the process."""


Step = tuple[str, str]  # at which site (none where it cannot be told), and what is about to be done

# What a micro-batch does that leaves a trace, in order: a crash before each of them is one in the gap before it.
INGEST_COMMIT, WATERMARKS, SPARKS_COMMIT, JOIN, JOIN_COMMIT, PUBLISH, ACKNOWLEDGE, DELIVER, DELIVERED_COMMIT = (
    "ingest commit",
    "watermarks",
    "Spark's own commit",
    "join",
    "join commit",
    "publish",
    "acknowledge",
    "deliver",
    "delivered commit",
)
INGESTED, LATE, EVALUATE, DELETE = "ingested files", "late rows", "evaluate", "delete"
START_COMMIT = "start commit"
SLOW_DELIVERY = "deliver, when a later commit has been made"


class Tripwire:
    """Counts the steps of micro-batches that leave a trace on disk, from one on; a chosen one is the end of all.

    From then on no thread gets beyond its next step either, and nothing is tidied up, as in a process that is killed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first_batch: int) -> None:
        self._first_batch = first_batch
        self._lock = threading.Lock()
        self._patch = monkeypatch
        self.steps: Counter[Step] = Counter()
        self.disarm()
        self._hook(SiteEngine, "ingest", lambda engine, *_: (engine.program.site, INGESTED))
        self._hook(SiteEngine, "run", lambda engine, *_: (engine.program.site, JOIN))
        self._hook(Checkpoint, "commit", lambda held, ledger: (held.directory.name, _kind(held.ledger, ledger)))
        self._hook(Checkpoint, "write_watermarks", lambda held, *_: (held.directory.name, WATERMARKS))
        self._hook(FileShelf, "keep_only", lambda shelf, *_: (Path(shelf.directory).parent.name, DELETE))
        self._hook(TaskRunner, "__call__", lambda runner, task, *_: ("", type(task).__name__))
        self._hook(SparkEvaluator, "__call__", lambda *_: ("", EVALUATE))
        self._hook(LateRows, "keep", lambda *_, **__: ("", LATE))
        self._hook(Delivery, "_write", lambda *_: ("", DELIVER))
        self._hook(Delivery, "_write", self._after_a_commit)
        for name in ("make", "move", "remove"):
            self._hook(LocalStorage, name, lambda *_, name=name, **__: ("", f"{name} in a sink"))
        for name in (PUBLISH, ACKNOWLEDGE, "forget_acknowledged"):
            self._hook(DirectoryLinks, name, lambda links, *_, name=name: (links.site, name))
        self._patch.setattr(SiteJob, "open", self._around_open(SiteJob.open))
        self._patch.setattr(SiteJob, "run_batch", self._around_batch(SiteJob.run_batch))
        self._patch.setattr(SiteJob, "close", self._around_close(SiteJob.close))

    def arm(self, step: Step | None, number: int = 1) -> None:
        """Crash before the first or a later step of this kind."""
        self.steps.clear()
        self._chosen, self._is_counting, self.is_dead = (step, number), False, False
        self._commits = 0

    def disarm(self) -> None:
        """Let all go well."""
        self.arm(None)

    def _hook(self, owner: type, name: str, step_of: Callable[..., Step]) -> None:
        function = getattr(owner, name)

        @wraps(function)
        def step(*arguments: Any, **named: Any) -> Any:
            self._count(step_of(*arguments, **named))
            result = function(*arguments, **named)
            self._commits += name == "commit"
            return result

        self._patch.setattr(owner, name, step)

    def _after_a_commit(self, *_: object) -> Step:
        """Let a sink be slow where a crash is to find it so: others go on meanwhile."""
        slow, before = ("", SLOW_DELIVERY), self._commits
        if self._is_counting and self._chosen[0] == slow:
            wait_for(lambda: self._commits > before or self.is_dead, "no commit is made while a sink is slow")
        return slow

    def _count(self, step: Step) -> None:
        with self._lock:
            if not self._is_counting:
                return
            self.steps[step] += 1
            self.is_dead = self.is_dead or (step, self.steps[step]) == self._chosen
            if self.is_dead:
                raise Crash(" ".join(step))

    def _around_open(self, function: Callable[..., None]) -> Callable[..., None]:
        def around(job: SiteJob, failed: Any) -> None:
            self._is_counting = self._is_counting or job.ledger.ingested_batch >= self._first_batch
            function(job, failed)

        return around

    def _around_batch(self, function: Callable[..., None]) -> Callable[..., None]:
        def around(job: SiteJob, frame: Any, batch: int) -> None:
            self._is_counting = self._is_counting or batch >= self._first_batch
            function(job, frame, batch)
            self._count((job.site, SPARKS_COMMIT))

        return around

    def _around_close(self, function: Callable[..., None]) -> Callable[..., None]:
        def around(job: SiteJob, **how: bool) -> None:
            if self.is_dead:
                give_up(job)
            else:
                function(job, **how)

        return around


def _kind(before: SiteLedger, after: SiteLedger) -> str:
    if after.writer != before.writer:
        return START_COMMIT
    if after.ingested_batch > before.ingested_batch:
        return INGEST_COMMIT
    return JOIN_COMMIT if after.number > before.number else DELIVERED_COMMIT


AT_ANY_SITE = {INGESTED, INGEST_COMMIT, WATERMARKS, SPARKS_COMMIT, JOIN, JOIN_COMMIT, DELETE}
SOMEWHERE = {
    LATE,
    DELIVER,
    SLOW_DELIVERY,
    "Round",
    "Merge",
    *(f"{name} in a sink" for name in ("make", "move", "remove")),
}
ONE_SITE = {("here", name) for name in AT_ANY_SITE} | {("", name) for name in SOMEWHERE} | {("here", DELIVERED_COMMIT)}
TWO_SITES = (
    {(site, name) for site in ("ams", "nyc") for name in (*AT_ANY_SITE, PUBLISH, ACKNOWLEDGE, "forget_acknowledged")}
    | {("", name) for name in (*SOMEWHERE, "Unpack")}
    | {("nyc", DELIVERED_COMMIT)}
)
AT_EITHER_SITE = TWO_SITES - {  # what a site does, at one of the two only
    *(("ams", name) for name in (INGESTED, WATERMARKS, JOIN, PUBLISH, "forget_acknowledged")),
    *(("nyc", name) for name in (INGEST_COMMIT, SPARKS_COMMIT, JOIN_COMMIT, ACKNOWLEDGE, DELETE)),
}


def crash_before_every_step(
    spark: Any, monkeypatch: pytest.MonkeyPatch, scene: Scene, steps: set[Step], times: Sequence[int], seed: int
) -> None:
    """Crash before every kind of step, the first one and later ones, always going on from what the last crash left."""
    wire = Tripwire(monkeypatch, first_batch=2)  # the next one is the first to merge segments
    answers = all_answers(scene)
    crashes = sorted((step, number) for step in steps if step[1] != DELIVERED_COMMIT for number in times)
    random.Random(seed).shuffle(crashes)
    del crashes[scaled(len(crashes)) :]
    last = sorted((step, 1) for step in steps if step[1] == DELIVERED_COMMIT)  # all rows have been processed then
    for step, number in [*crashes, *last]:
        wire.arm(step, number)
        with pytest.raises(WatersmeetError):  # a site that crashes as another one starts has a sentence of its own
            scene.run(spark)
        assert wire.is_dead, f"it did not crash before {step}"
        scene.check_what_readers_see_now(answers)
    wire.disarm()
    scene.run(spark)
    scene.check()


def test_a_crash_before_a_step_at_one_site_changes_nothing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those that are not the same at two sites, where all are tried."""
    scene = make_scene(tmp_path, ["plain", "counted"], batches=16, rows=60, seed=7)
    commits = {("here", name) for name in (INGEST_COMMIT, SPARKS_COMMIT, JOIN_COMMIT, DELIVERED_COMMIT)}
    crash_before_every_step(spark, monkeypatch, scene, commits | {("", "Release"), ("", SLOW_DELIVERY)}, (1,), seed=7)


@pytest.mark.soak
def test_a_crash_before_any_step_at_one_site_changes_nothing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = make_scene(tmp_path, tuple(QUERIES), batches=max(16, scaled(72)), rows=60, seed=7)
    steps = ONE_SITE | {("", "Release"), ("", EVALUATE), ("", "KeepUnseen")}
    crash_before_every_step(spark, monkeypatch, scene, steps, (1, 2), seed=7)


@pytest.mark.parametrize(
    ("queries", "steps", "times", "batches"),
    [
        (("plain",), AT_EITHER_SITE, (1,), 44),
        pytest.param(
            ("plain", "residual", "counted", "different"),
            TWO_SITES,
            (1, 2),
            max(16, scaled(256)),
            marks=pytest.mark.soak,
        ),
    ],
    ids=["each at one of them", "each at both"],
)
def test_a_crash_before_any_step_at_two_sites_changes_nothing(
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    queries: tuple[str, ...],
    steps: set[Step],
    times: tuple[int, ...],
    batches: int,
) -> None:
    where = {"homes": APART, "site": "nyc", "plan": PLAN}
    scene = make_scene(tmp_path, queries, batches=batches, rows=60, seed=8, **where)
    crash_before_every_step(spark, monkeypatch, scene, steps, times, seed=8)


@pytest.mark.soak
def test_crashes_in_other_orders_change_nothing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_seeds: FreshSeeds
) -> None:
    for seed in fresh_seeds.take(2):
        for name, where, steps in (
            ("one", {}, ONE_SITE),
            ("two", {"homes": APART, "site": "nyc", "plan": PLAN}, TWO_SITES),
        ):
            (tmp_path / f"{seed}-{name}").mkdir()
            scene = make_scene(
                tmp_path / f"{seed}-{name}",
                ["plain", "different"],
                batches=max(16, scaled(64)),
                rows=60,
                seed=seed,
                **where,
            )
            with monkeypatch.context() as context:
                crash_before_every_step(spark, context, scene, steps, (1,), seed)
