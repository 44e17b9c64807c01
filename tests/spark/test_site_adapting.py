"""Plans that change by themselves where every site runs by itself: one of three routers becomes ten times as busy.

The first site decides by what the others tell it over the links; it may die, and comes back.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from processes import CommandProcess
from scenes import by_arrow, by_duckdb, ledger_of, wait_for, write_batch
from spark.test_adapting import TOPOLOGY

import watersmeet as wm
from watersmeet.metrics.events import PlanDecision, PlanInForce
from watersmeet.program.operators import Purpose
from watersmeet.program.site.agreement import Versions
from watersmeet.program.site.changes import QueryPlan
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.spark.resume import known_versions
from watersmeet.spark.versions_text import running_text
from watersmeet.topology.load import load_topology

SECOND = 1_000_000
SITES = ("ams", "fra", "nyc")
TRIGGER = "200 milliseconds"


@dataclass
class Routers:
    """Three streams as files that come, the last of which may be busy."""

    place: Path
    mode: str
    rows: dict[str, list[pa.Table]] = field(default_factory=lambda: {name: [] for name in "abc"})
    seconds: int = 0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(1)
        self.path = self.place / "topology.yaml"
        self.path.write_text(TOPOLOGY.replace("MODE", self.mode))
        self.topology = load_topology(self.path)

    @property
    def checkpoint(self) -> Path:
        return self.place / "cp"

    def come(self, seconds: int, busy: int = 20) -> None:
        """Some seconds of all streams arrive, as a file each."""
        number = len(self.rows["a"])
        for name in "abc":
            rate = busy if name == "c" else 20
            ts = self.seconds * SECOND + np.arange(seconds * rate) * SECOND // rate
            times = pa.array(ts).cast(pa.timestamp("us", "UTC"))
            self.rows[name].append(pa.table({"ts": times, "k": self.random.integers(0, 100, len(ts))}))
            write_batch(self.rows[name][-1], self.place / name / f"{number:05d}.parquet", number)
        self.seconds += seconds

    def expected(self, sql: str = "", start_us: int | None = None) -> Bag:
        """The answers of the query, or of another one that began later."""
        tables = {name: pa.concat_tables(some) for name, some in self.rows.items()}
        parsed = parse_query(sql or self.topology.query("q").sql, self.topology.columns)
        return bag_of(answer(parsed, tables, dict.fromkeys("abc", "ts"), start_us=start_us))

    def await_answers(self, read: Callable[[Path], Bag], check: Callable[[], object]) -> None:
        expected = self.expected()
        wait_for(lambda: read(self.place / "out") == expected, "answers are right", check)

    @property
    def versions(self) -> dict[str, Versions]:
        return known_versions(self.checkpoint, SITES)


@pytest.mark.few(1)
@pytest.mark.parametrize("mode", ["planner", "cnu", "dnu"])
def test_sites_that_run_by_themselves_decide_together(mode: str, spark: Any, tmp_path: Path) -> None:
    routers = Routers(tmp_path, mode)
    routers.come(20)
    handles = {
        site: wm.start_site(routers.topology, site, spark=spark, checkpoint=routers.checkpoint, trigger=TRIGGER)
        for site in SITES
    }

    def fine() -> None:
        for handle in handles.values():
            if (failure := handle.exception()) is not None:
                raise failure

    def revisions(site: str) -> set[int]:
        return {event.version for _, event in handles[site].events.recent(PlanInForce)}

    try:
        for _ in range(90):
            routers.come(2, 20 if len(routers.rows["a"]) < 6 else 200)
            routers.await_answers(by_arrow, fine)
            if all(revisions(site) - {1} for site in SITES):
                break
        routers.come(4, 200)
        routers.await_answers(by_arrow, fine)
        told = {
            (site, row.to): row.traffic.bytes
            for site, handle in handles.items()
            for row in handle.traffic.rows
            if row.purpose == Purpose.OBSERVATIONS
        }
    finally:
        for handle in handles.values():
            handle.stop()
    fine()
    assert all(revisions(site) - {1} for site in SITES)
    accepted = {site: [e for _, e in handles[site].events.recent(PlanDecision) if e.accepted] for site in SITES}
    assert accepted["ams"] and not accepted["fra"] and not accepted["nyc"], "the first site decides"
    assert told["fra", "ams"] > 100 and told["nyc", "ams"] > 100, "sites told what they observe, and it is counted"
    text = running_text(routers.checkpoint)
    assert "the cost of" in text and "saves" in text


@pytest.mark.soak
def test_the_plan_of_a_query_that_is_added_changes_too(spark: Any, tmp_path: Path) -> None:
    """It is added at the last site, and the first one decides on it."""
    routers = Routers(tmp_path, "planner")
    routers.come(20)
    handles = {
        site: wm.start_site(routers.topology, site, spark=spark, checkpoint=routers.checkpoint, trigger=TRIGGER)
        for site in SITES
    }
    sql = routers.topology.query("q").sql.replace("SELECT a.k", "SELECT b.k").replace("1 SECOND", "2 SECONDS")
    added = wm.Query("late", sql, site="ams", sink=wm.Sink("parquet", str(tmp_path / "late")), assume_defaults=True)

    def fine() -> None:
        for handle in handles.values():
            if (failure := handle.exception()) is not None:
                raise failure

    def late_plans() -> list[QueryPlan]:
        log = routers.versions["ams"].log
        return [plan for entry in log if not entry.refused for plan in entry.change.plans if plan.query == "late"]

    try:
        routers.await_answers(by_arrow, fine)
        handles["nyc"].add(added)
        wait_for(lambda: bool(late_plans()), "it begins", fine)
        for _ in range(90):
            routers.come(2, 20 if len(routers.rows["a"]) < 12 else 200)
            routers.await_answers(by_arrow, fine)
            if len(late_plans()) > 1:
                break
        routers.come(4, 200)
        routers.await_answers(by_arrow, fine)
        begun_us = next(entry.at_us for entry in routers.versions["ams"].log if entry.change.plans[0].is_fresh)
        expected = routers.expected(sql, start_us=begun_us)
        wait_for(lambda: by_arrow(tmp_path / "late") == expected, "its answers are right", fine)
    finally:
        for handle in handles.values():
            handle.stop()
    fine()
    assert [plan.is_fresh for plan in late_plans()][:2] == [True, False] and expected
    assert all(plan.expected is not None for plan in late_plans()[1:]), "it was decided on"


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["planner", "cnu", "dnu"])
@pytest.mark.parametrize("when", ["before", "asked", "decided"])
def test_whoever_decides_is_killed(mode: str, when: str, tmp_path: Path) -> None:
    """Real processes; SIGKILL before rates change, when a change is asked for, or when all sites have agreed on it."""
    routers = Routers(tmp_path, mode)
    routers.come(20)
    command = [str(routers.path), "--quiet", "--trigger", TRIGGER, "--checkpoint", str(routers.checkpoint)]
    command += ["--master", "local[1]", "--conf", "spark.driver.memory=512m"]
    with contextlib.ExitStack() as processes:
        sites = {
            site: processes.enter_context(CommandProcess(["site", site, *command], tmp_path / f"{site}.log"))
            for site in SITES
        }
        is_down = False

        def check() -> None:
            for site, process in sites.items():
                if site != "ams" or not is_down:
                    process.check()

        routers.await_answers(by_duckdb, check)
        for _ in range(4):
            routers.come(2)
            routers.await_answers(by_duckdb, check)
        reached: dict[str, Callable[[Versions], bool]] = {
            "asked": lambda one: bool(one.proposal or one.queue) or one.deployment.revision > 1,
            "decided": lambda one: one.is_decided or one.deployment.revision > 1,
        }
        if when == "before":
            sites["ams"].kill()
            is_down = True
            for _ in range(20):
                routers.come(2, 200)
            wait_for(lambda: _has_asked(routers, "fra", "nyc"), "another site decides", check)
            sites["ams"].start()
            is_down = False
        else:
            while not reached[when](routers.versions["ams"]):
                check()
                assert routers.seconds < 300, f"no change is {when}"
                routers.come(2, 200)
                time.sleep(1)
            sites["ams"].kill()
            sites["ams"].start()
        for _ in range(60):
            routers.come(2, 200)
            routers.await_answers(by_duckdb, check)
            if all(one.deployment.revision > 1 for one in routers.versions.values()):
                break
        assert all(one.deployment.revision > 1 for one in routers.versions.values())
        routers.come(4, 200)
        routers.await_answers(by_duckdb, check)
        for process in sites.values():
            process.stop()
        assert by_duckdb(tmp_path / "out") == routers.expected()
    assert "the cost of" in running_text(routers.checkpoint)


def _has_asked(routers: Routers, site: str, other: str) -> bool:
    """Whether a site has said anything to another one about what is observed, by its ledger."""
    traffic = ledger_of(routers.checkpoint / site).links[other].traffic
    return Purpose.OBSERVATIONS.value in traffic
