"""Sites that die in each phase of a change of queries: it is finished or called off, and every answer is there once.

The crash is a failure in this process after which no thread gets any further, before or after the ledger of a site
has a phase.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import CommandProcess
from scenes import Bag, Scene, by_arrow, by_duckdb, wait_for
from seeds import FreshSeeds
from spark.test_apply import JOIN, OLD, due, fine, more, query
from spark.test_recovery import Tripwire
from spark.test_sites import jobs, small_scene

import watersmeet as wm
from watersmeet.program.site.agreement import Takeover, Versions
from watersmeet.program.site.engine import read_versions
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.spark.checkpoint import Checkpoint
from watersmeet.spark.definitions import read_definition
from watersmeet.spark.launch import Launch
from watersmeet.spark.resume import known_versions, latest
from watersmeet.spark.site.query import SiteQuery

PHASES = ("proposed", "promised", "decided", "adopted", "dropped")
PROPOSER, OTHERS = "ams", ("nyc", "tok")
When = tuple[str, str]  # at which site, and before or after which phase is in its ledger


def phases(site: str, before: Versions, after: Versions) -> list[str]:
    """What a ledger says of a change that the one before it did not."""
    found = []
    promised_before = {} if before.proposal is None else before.proposal.promises
    if after.proposal is not None and site in after.proposal.promises.keys() - promised_before.keys():
        found.append("proposed" if site == after.proposal.proposer else "promised")
    if after.is_decided and not before.is_decided:
        found.append("decided")
    if after.deployment.revision > before.deployment.revision:
        found.append("adopted")
    if set(after.gone) - set(before.gone):
        found.append("dropped")
    return found


def watch_phases(monkeypatch: pytest.MonkeyPatch, wire: Tripwire) -> None:
    """Let the wire count phases, before and after each is in the ledger."""
    commit: Callable[[Checkpoint, SiteLedger], None] = Checkpoint.commit

    def counting(held: Checkpoint, ledger: SiteLedger) -> None:
        site, found = held.directory.name, []
        if held.ledger.versions != ledger.versions and held.ledger.versions:
            found = phases(site, *(read_versions(held.shelf, one) for one in (held.ledger, ledger)))
        for phase in found:
            wire._count((site, f"before {phase}"))
        commit(held, ledger)
        for phase in found:
            wire._count((site, f"after {phase}"))

    monkeypatch.setattr(Checkpoint, "commit", counting)


def expected_by(scene: Scene, first: dict[str, str], log: Sequence[Takeover]) -> dict[str, Bag]:
    """The answers of all queries for the times that they had by what became of changes."""
    spans: dict[str, list[tuple[str, int | None, int | None]]] = {}
    spans |= {name: [(sql, None, None)] for name, sql in first.items()}
    for entry in log:
        if entry.refused:
            continue
        begun = {plan.query for plan in entry.change.plans if plan.is_fresh}  # another plan alone changes no answer
        for name in (*entry.change.removed, *begun):
            if name in spans and spans[name][-1][2] is None:
                sql, start_us, _ = spans[name][-1]
                spans[name][-1] = (sql, start_us, entry.at_us)
        for plan in entry.change.plans:
            if plan.is_fresh:
                sql = read_definition(plan.definition, str(scene.directory), {}).query.sql
                spans.setdefault(plan.query, []).append((sql, entry.at_us, None))
    return {
        name: sum((due(scene, sql, start_us=start, heads_before_us=end) for sql, start, end in some), Bag())
        for name, some in spans.items()
    }


class Changes:
    """Topologies that follow each other: queries are added, replaced and removed in turn."""

    def __init__(self, scene: Scene, number: int = 0) -> None:
        self.scene, self.number, self.topology = scene, number, scene.topology

    def next(self, phase: str = "") -> wm.Topology:
        """The next one; where a join is to be dropped, one that ends a query or replaces it."""
        now, number = self.topology, self.number
        self.number += 1
        if number % 3 == 0 and not phase.endswith("dropped"):
            added = query(self.scene, f"n{number}", f"SELECT a.id AS a_id, b.m AS m {JOIN} AND b.m <> {number % 6}")
            return replace(now, queries=(*now.queries, added))
        last = now.queries[-1]
        if number % 3 == 2 and last.name != "q":
            return replace(now, queries=now.queries[:-1])
        sql = f"{OLD} AND a.id % {3 + number} <> 1"
        return replace(now, queries=tuple(replace(q, sql=sql) if q.name == "q" else q for q in now.queries))


def crash_and_go_on(
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
    scene: Scene,
    crashes: Sequence[When],
    seed: int,
    first_change: int = 0,
    before_the_last: Callable[[], None] = lambda: None,
) -> None:
    """Crash in phases of changes, one change a crash; the next start finishes it and makes the next."""
    chance, changes = random.Random(seed), Changes(scene, first_change)
    wire = Tripwire(monkeypatch, first_batch=0)
    watch_phases(monkeypatch, wire)
    rows, start_with = 210, changes.topology
    for crash in crashes:
        with started(spark, scene, wire, start_with, rows) as handle:
            assert {one.name for one in handle.topology.queries} == {one.name for one in changes.topology.queries}
            target, made = changes.next(crash[1]), len(jobs(handle)[0].versions.log)
            wire.arm(crash)
            wire._is_counting = True
            is_asked = False
            with contextlib.suppress(wm.WatersmeetError):
                handle.apply(target)
                is_asked = True
            more(scene, rows + 140)
            wait_for(lambda: wire.is_dead, f"it does not come to {crash}")
        rows += 280
        versions = known_versions(scene.checkpoint, scene.sites)
        is_known = any(one.proposal or one.queue or len(one.log) > made for one in versions.values())
        assert is_known or not is_asked, "what was asked for is in a ledger"
        if not is_known:  # it crashed before: a join of the change before it may be dropped just then
            start_with = changes.topology
            continue
        known = latest(versions)
        assert known is not None
        is_made = len(known.log) > made
        start_with = target if is_made or chance.random() < 0.5 else changes.topology
        changes.topology = target
    before_the_last()
    with started(spark, scene, wire, start_with, rows) as handle:

        def expected_now() -> dict[str, Bag]:
            """By the changes that are agreed on by now: one may still be on its way as sites start."""
            return expected_by(scene, dict(scene.queries), jobs(handle)[0].versions.log)

        def are_there() -> bool:
            return all(by_arrow(scene.sink(name)) == some for name, some in expected_now().items())

        wait_for(are_there, "not all answers come", lambda: fine(handle))
        expected = expected_now()
        assert expected["q"] and (len(expected) == 1 or sum(map(bool, expected.values())) > 1)
    for name, some in expected.items():
        assert by_duckdb(scene.sink(name)) == some


@contextlib.contextmanager
def started(spark: Any, scene: Scene, wire: Tripwire, topology: wm.Topology, first: int) -> Iterator[wm.StreamingRun]:
    """A run with more rows that has finished all changes that were under way; stopped, unless it has crashed."""
    wire.disarm()
    handle = wm.start(topology, spark=spark, checkpoint=scene.checkpoint, warn=None)
    try:
        more(scene, first)
        assert handle.await_changes(), "a change is finished after a crash"
        yield handle
    finally:
        with contextlib.suppress(*([wm.WatersmeetError] if wire.is_dead else [])):
            handle.stop()


def at_three_sites(directory: Path) -> Scene:
    return small_scene(directory, site="tok").write()


def test_a_start_with_the_topology_before_a_change_goes_on_with_the_change(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sites finish it while they start: what a query asked for before is not asked for again as another plan of it."""
    ask = Launch._ask_for_new_plans

    def ask_late(launch: Launch, started: Sequence[SiteQuery]) -> None:
        wait_for(lambda: all(one.job.versions.log for one in started), "the change is finished")
        ask(launch, started)

    scene = at_three_sites(tmp_path)
    crash_and_go_on(
        *(spark, monkeypatch, scene, [("tok", "after promised")]),
        seed=2,  # the first start after the crash is with the topology before the change
        first_change=1,
        before_the_last=lambda: monkeypatch.setattr(Launch, "_ask_for_new_plans", ask_late),
    )


@pytest.mark.soak
def test_a_crash_in_phases_of_a_change_changes_nothing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few of them; all are tried in the soak test."""
    crashes = [("nyc", "after promised"), ("tok", "before adopted"), ("ams", "after adopted")]
    crash_and_go_on(spark, monkeypatch, at_three_sites(tmp_path), crashes, seed=1)


@pytest.mark.soak
def test_a_crash_in_any_phase_of_a_change_changes_nothing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_seeds: FreshSeeds
) -> None:
    crashes = [
        (site, f"{when} {phase}")
        for site in (PROPOSER, *OTHERS)
        for phase in PHASES
        for when in ("before", "after")
        if (phase == "proposed") <= (site == PROPOSER) and (phase == "promised") <= (site != PROPOSER)
    ]
    for seed in fresh_seeds.take(1):
        random.Random(seed).shuffle(crashes)
        (tmp_path / str(seed)).mkdir()
        crash_and_go_on(spark, monkeypatch, at_three_sites(tmp_path / str(seed)), crashes, seed)


def with_kept_rows(topology: Path) -> Path:
    """A file whose sites keep rows for plans that are still to come."""
    topology.write_text("adapt: {mode: planner}\n" + topology.read_text())
    return topology


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["ams", "nyc"])
@pytest.mark.parametrize("phase", ["promised", "decided", "adopted", "dropped"])
@pytest.mark.parametrize("what", ["query", "plan"])
def test_a_site_is_killed_when_its_ledger_has_a_phase(tmp_path: Path, victim: str, phase: str, what: str) -> None:
    """Real processes: two sites, a query added or a plan changed by the command, SIGKILL when the ledger has the phase.

    With another plan rows of windows move.
    """
    scene = small_scene(tmp_path, way=("SM-S1", False) if what == "plan" else None).write()
    new = {"new": f"SELECT a.id AS a_id, b.m AS m {JOIN} AND b.m > 1"} if what == "query" else {}
    changed = replace(scene, plan=None, queries={**scene.queries, **new})
    first = with_kept_rows(scene.topology_path).rename(tmp_path / "first.yaml")
    later = with_kept_rows(changed.topology_path).rename(tmp_path / "later.yaml")

    def command(*words: str) -> list[str]:
        return [*words, "--checkpoint", str(scene.checkpoint), "--master", "local[1]"]

    def versions() -> dict[str, Versions]:
        return known_versions(scene.checkpoint, scene.sites)

    with contextlib.ExitStack() as processes:
        sites = {
            site: processes.enter_context(
                CommandProcess(command("site", site, str(first), "--quiet"), tmp_path / f"{site}.log")
            )
            for site in scene.sites
        }

        def all_run() -> None:
            for process in sites.values():
                process.check()

        wait_for(lambda: by_arrow(scene.sink()).total() > 0, "the sites start", all_run)
        asking = processes.enter_context(
            CommandProcess(command("apply", str(later), "--yes", "--no-wait"), tmp_path / "apply.log")
        )
        before = versions()[victim]

        def is_there() -> bool:
            now = versions()[victim]
            promised = now.proposal is not None and victim in now.proposal.promises
            has_gone_over = now.deployment.revision == 2
            reached = {
                "promised": promised or has_gone_over,
                "decided": now.is_decided or has_gone_over,
                "adopted": has_gone_over,
                # Nothing of a query that is added is dropped: when rows come after it.
                "dropped": has_gone_over and (bool(now.gone) or what == "query"),
            }
            return now != before and reached[phase]

        if phase == "dropped" and what == "plan":
            wait_for(lambda: versions()[victim].deployment.revision == 2, "it does not go over", all_run)
            more(scene, 210)
        wait_for(is_there, f"it does not come to {phase}", all_run)
        if phase == "dropped" and what == "query":
            more(scene, 210)
        sites[victim].kill()
        asking.finish()
        words = command("site", victim, str(later), "--quiet")
        sites[victim] = processes.enter_context(CommandProcess(words, tmp_path / f"{victim}-again.log"))
        wait_for(lambda: {one.deployment.revision for one in versions().values()} == {2}, "both go over", all_run)
        more(scene, 350)
        (entry,) = versions()["nyc"].log
        expected = {"q": scene.expected()}
        expected |= {name: due(scene, sql, start_us=entry.at_us) for name, sql in new.items()}

        def are_there() -> bool:
            return all(by_arrow(scene.sink(name)) == some for name, some in expected.items())

        wait_for(are_there, "not all answers come", all_run)
        for process in sites.values():
            process.stop()
