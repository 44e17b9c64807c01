#!/usr/bin/env python
"""The long tests, class by class, each a process with a budget of time: `make soak`.

Without options it takes about two hours on two cores: 10,000 simulated trials, 200 SIGKILLs, 72 power cuts, a million
mutated parcels and a long flat run, and a share of every other class; `--scale 10` takes ten times as many of each.
It begins with its plan and ends with a table. A class that fails or takes too long does not end the others; the table
says which, and below it are where its output is and how a seed that failed is run again. A class with cases that were
skipped, or never came to be run, has not passed. Below the table is what tests have counted as done, beside what was
promised of it. A test in which nothing moves for long fails, with the stacks of all its processes in a file
(`tests/hangs.py`).
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import hangs  # noqa: E402
import seeds  # noqa: E402

REPEAT = re.compile(r"^\s*\S*WATERSMEET_SEED=.*|^FAILED .*|^ERROR .*", re.MULTILINE)
SEEDS = re.compile(r": ([\d,]+) seeds passed: ")
PASSED = "passed"
MARK = re.compile(r"@pytest\.mark\.(soak|few)\b")
MIN_MINUTES = 20  # to start Spark takes as long in a short run
REPORT_S = 300  # how often it is said what is still running
HANG_S = 1_800  # longer than a wait in a test, which fails by itself
PROMISED = {  # of a whole run of scale 1, by what tests count
    "simulated trials": 10_000,
    "SIGKILLs": 200,
    "power cuts": 50,
    "mutated parcels and packed rows": 1_000_000,
    "seconds of steady runs at 3 sites": 600,
}


@dataclass(frozen=True)
class Class:
    """Long tests of one kind."""

    name: str
    minutes: int  # that it may take beside another class on two cores: at least twice what it does take
    paths: tuple[str, ...]
    share: float = 1.0  # of its cases, in a run of scale 1
    alone: bool = False  # it measures memory and pace

    def budget_s(self, scale: float, patience: float) -> float:
        return 60 * max(self.minutes * scale, MIN_MINUTES) * patience

    @property
    def file_name(self) -> str:
        return self.name.replace(" ", "-").replace(",", "")


@dataclass(frozen=True)
class Settings:
    """How a run was asked for."""

    scale: float
    patience: float
    hang_s: float
    logs: Path


@dataclass(frozen=True)
class Result:
    """How a class went."""

    name: str
    asked: int
    ended: int
    seeds: int  # that passed in cases that ended
    failed: int
    seconds: float
    how: str
    counts: Counter[str] = field(default_factory=Counter)  # what its tests say that they have done


CLASSES = (  # what was promised in numbers first, each in full; of the others as much as two hours leave room for
    Class("simulated trials", 90, ("tests/sim/sites/test_trial.py",)),
    Class("SIGKILLs of runs", 60, ("tests/spark/test_kills.py",)),
    Class("sites that die, freeze and lose links", 60, ("tests/spark/test_site_faults.py",)),
    Class("power cuts on Spark", 20, ("tests/spark/test_power_cuts.py",)),
    Class("damaged files", 30, ("tests/sim/sites/test_faulty_disks.py", "tests/spark/test_damage.py"), share=0.3),
    Class("mutated parcels", 20, ("tests/program/storage",)),
    Class("mutated files and queries", 20, ("tests/query/test_hostile_text.py",), share=0.1),
    Class("simulated shapes", 20, ("tests/sim/sites/test_sites.py", "tests/sim/sites/test_tables.py"), share=0.2),
    Class(
        "simulated changes of plans",
        30,
        ("tests/sim/sites/test_changes.py", "tests/sim/sites/test_nearest.py"),
        share=0.2,
    ),
    Class("simulated equivalence", 30, ("tests/equivalence/test_simulated.py",), share=0.1),
    Class("RJoin and PIER trials", 30, ("tests/sim/rjoin", "tests/sim/pier"), share=0.2),
    Class("random joins and plans", 20, ("tests/program/join", "tests/planners"), share=0.2),
    Class("equivalence on Spark", 20, ("tests/equivalence/test_spark.py", "tests/spark/test_answers.py"), share=0.1),
    Class("crashes on Spark", 30, ("tests/spark/test_recovery.py", "tests/spark/test_apply_crashes.py"), share=0.1),
    Class(
        "starts and errors",
        20,
        (
            "tests/cli",
            "tests/spark/test_class_archive.py",
            "tests/spark/test_errors.py",
            "tests/spark/test_first_hour.py",
        ),
        share=0.2,
    ),
    Class("Kafka", 20, ("tests/spark/links/test_kafka.py", "tests/spark/test_kafka.py"), share=0.2),
    Class("object stores and clusters", 20, ("tests/spark/store", "tests/spark/test_cluster.py"), share=0.2),
    Class("kills of drivers, workers and executors", 20, ("tests/spark/test_cluster_kills.py",), share=0.1),
    Class("Spark Connect", 20, ("tests/spark/test_connect.py",), share=0.2),
    Class("steady runs", 40, ("tests/spark/test_soak.py",), alone=True),
)


def others() -> Class:
    """Long tests that are in no class above."""
    places = [ROOT / path for one in CLASSES for path in one.paths]
    long = [path for path in (ROOT / "tests").rglob("test_*.py") if MARK.search(path.read_text("utf-8"))]
    rest = [path for path in long if not any(path.is_relative_to(place) for place in places)]
    return Class("all others", 40, tuple(str(path.relative_to(ROOT)) for path in sorted(rest)), share=0.1)


def long_cases(paths: Sequence[str]) -> list[str]:
    """The long cases in some files and directories, in a run of scale 1."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-m", "soak", *paths]
    environment = {**os.environ, seeds.SOAK_VARIABLE: "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 5):  # 5: there are none
        raise SystemExit(f"the tests cannot be collected:\n{done.stdout}{done.stderr}")
    return [line for line in done.stdout.splitlines() if "::" in line]


def cases_asked(one: Class, known: Sequence[str], scale: float) -> int:
    """How many cases a class has of those that are known."""
    own = [name for name in known if any(Path(name.split("::")[0]).is_relative_to(path) for path in one.paths)]
    return seeds.share_of_cases(own, scale * one.share)


def run(one: Class, asked: int, settings: Settings) -> Result:
    """Run a class to its end or the end of its budget, and say how it went."""
    log, cases, stacks = (settings.logs / f"{one.file_name}{end}" for end in (".log", ".cases.jsonl", ".stacks.txt"))
    for path in (cases, stacks):
        path.unlink(missing_ok=True)
    budget_s = one.budget_s(settings.scale, settings.patience)
    print(f"{one.name}: started, {asked} cases, at most {budget_s / 60:.0f} min", flush=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "hangs", "-m", "soak", "-s", "-v"]
    paths = (str(ROOT / "tests"), str(hangs.LISTENERS), os.environ.get("PYTHONPATH", ""))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        seeds.SOAK_VARIABLE: f"{settings.scale * one.share:g}",
        hangs.HANG_VARIABLE: f"{settings.hang_s:g}",
        hangs.STACKS_VARIABLE: str(stacks),
        hangs.CASES_VARIABLE: str(cases),
    }
    began = time.monotonic()
    with open(log, "wb") as file:
        process = subprocess.Popen([*command, *one.paths], cwd=ROOT, env=environment, stdout=file, stderr=file)
        code = wait(process, one, began, budget_s, cases, stacks)
    seconds = time.monotonic() - began
    text = log.read_text(encoding="utf-8", errors="replace")
    outcomes = ends(cases)
    how, failed = verdict(code, asked, outcomes), failures(outcomes)
    result = Result(one.name, asked, len(outcomes), passed_seeds(text), failed, seconds, how, counts(cases))
    print(f"{one.name}: {how} after {seconds / 60:.1f} min ({log.relative_to(ROOT)})", flush=True)
    for line in dict.fromkeys(REPEAT.findall(text)) if code else ():
        print(f"    {line.strip()}", flush=True)
    if stacks.exists() and not stacks.stat().st_size:
        stacks.unlink()
    elif stacks.exists():
        print(f"    stacks of processes that did not move: {stacks.relative_to(ROOT)}", flush=True)
    return result


def verdict(code: int | None, asked: int, outcomes: Mapping[str, str]) -> str:
    """How a class went, by its exit code, how many cases it was to have, and how these have ended."""
    if code is None:
        return "took too long, ended"
    if code:
        return f"FAILED (exit code {code})"
    skipped = sum(outcome == "skipped" for outcome in outcomes.values())
    if skipped or len(outcomes) < asked:
        return f"INCOMPLETE: {skipped} cases skipped, {max(0, asked - len(outcomes))} not run"
    return PASSED


def lines_of(cases: Path) -> Iterator[dict[str, Any]]:
    """What the plugin `hangs` has noted of a class."""
    text = cases.read_text(encoding="utf-8") if cases.exists() else ""
    whole = text[: text.rfind("\n") + 1]  # a process that was ended may have been writing
    yield from map(json.loads, whole.splitlines())


def ends(cases: Path) -> dict[str, str]:
    """The cases that have ended, and how."""
    found: dict[str, str] = {}
    for line in lines_of(cases):
        if "outcome" in line and found.get(line["test"]) != "failed":
            found[line["test"]] = line["outcome"]
    return found


def counts(cases: Path) -> Counter[str]:
    """What tests say that they have done."""
    found = Counter[str]()
    for line in lines_of(cases):
        if "count" in line:
            found[line["count"]] += line["number"]
    return found


def failures(outcomes: Mapping[str, str]) -> int:
    """How many cases have failed."""
    return sum(outcome == "failed" for outcome in outcomes.values())


def passed_seeds(text: str) -> int:
    """How many fresh seeds have passed, by the output of a class."""
    return sum(int(found.replace(",", "")) for found in SEEDS.findall(text))


def wait(
    process: "subprocess.Popen[bytes]", one: Class, began: float, budget_s: float, cases: Path, stacks: Path
) -> int | None:
    """The exit code, or None if it had to be ended: with its stacks in files, and all that it has started."""
    while (left_s := began + budget_s - time.monotonic()) > 0:
        try:
            return process.wait(min(left_s, REPORT_S))
        except subprocess.TimeoutExpired:
            if left_s > REPORT_S:
                minutes, outcomes = (time.monotonic() - began) / 60, ends(cases)
                text = f"{len(outcomes)} cases ended, {failures(outcomes)} of them failed"
                print(f"{one.name}: still running after {minutes:.0f} min: {text}", flush=True)
    family = psutil.Process(process.pid).children(recursive=True)  # Java is in a process group of its own
    hangs.write_stacks(process.pid, stacks, f"{one.name} took too long")
    process.send_signal(signal.SIGABRT)  # Python's fault handler, which pytest has switched on, shows where it is
    process.wait()
    for started in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            started.kill()
    return None


def plan(chosen: Sequence[Class], asked: Mapping[str, int], settings: Settings) -> Iterator[str]:
    """What is going to be run, as lines."""
    yield f"{'class':<42} {'cases':>6} {'share':>6} {'min':>5} {'at most':>8}"
    for one in chosen:
        most = one.budget_s(settings.scale, settings.patience) / 60
        expected = one.minutes * settings.scale / 2  # or less: see `Class.minutes`
        share = settings.scale * one.share
        yield f"{one.name:<42} {asked[one.name]:>6,} {share:>6g} {expected:>5.0f} {most:>8.0f}"


def summary(results: Sequence[Result]) -> Iterator[str]:
    """How it went, as lines."""
    yield f"{'class':<42} {'asked':>6} {'ended':>6} {'seeds':>8} {'failed':>6} {'s':>7}  end"
    for one in results:
        yield (
            f"{one.name:<42} {one.asked:>6,} {one.ended:>6,} {one.seeds:>8,} {one.failed:>6} {one.seconds:>7,.0f}  "
            f"{one.how}"
        )


def done(results: Sequence[Result], scale: float | None) -> tuple[list[str], bool]:
    """What tests have counted, as lines, and whether it is as much as was promised of a whole run of some scale."""
    total = Counter[str]()
    for one in results:
        total += one.counts
    promised = {} if scale is None else {what: round(number * scale) for what, number in PROMISED.items()}
    lines = [f"{'what was done, and right':<42} {'number':>9} {'promised':>9}"]
    for what in sorted({*total, *promised}):
        lines.append(f"{what:<42} {total[what]:>9,} {promised.get(what, ''):>9}")
    return lines, all(total[what] >= number for what, number in promised.items())


def main() -> int:
    """Run all classes, or those asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="how much of each class to run (default: 1)")
    parser.add_argument("--jobs", type=int, default=2, help="how many classes run at the same time (default: 2)")
    parser.add_argument(
        "--patience",
        type=float,
        default=1.0,
        help="how many times its budget a class may take, on a busy machine (default: 1)",
    )
    parser.add_argument(
        "--hang", type=float, default=HANG_S, metavar="S", help="after how long without progress a test fails"
    )
    parser.add_argument("--only", action="append", metavar="TEXT", help="classes whose name has this in it")
    options = parser.parse_args()
    known = (*CLASSES, others())
    chosen = [
        one for one in known if one.paths and (not options.only or any(text in one.name for text in options.only))
    ]
    logs = ROOT / "out" / "soak"
    logs.mkdir(parents=True, exist_ok=True)
    settings = Settings(options.scale, options.patience, options.hang, logs)
    found = long_cases([path for one in chosen for path in one.paths])
    asked = {one.name: cases_asked(one, found, options.scale) for one in chosen}
    print("\n".join(plan(chosen, asked, settings)), flush=True)
    hours = sum(one.budget_s(options.scale, options.patience) for one in chosen) / 3600
    print(f"{len(chosen)} classes, at most {hours:.1f} h one after the other, {options.jobs} at a time", flush=True)
    began = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        together = [one for one in chosen if not one.alone]
        results = list(pool.map(lambda one: run(one, asked[one.name], settings), together))
    results += [run(one, asked[one.name], settings) for one in chosen if one.alone]
    print("\n".join(summary(results)))
    lines, is_enough = done(results, None if options.only else options.scale)
    print("\n".join(lines))
    passed = sum(one.how == PASSED for one in results)
    print(f"{passed} of {len(chosen)} classes passed in {(time.monotonic() - began) / 3600:.2f} h")
    if not is_enough:
        print("less was done than promised")
    return 0 if passed == len(chosen) and is_enough else 1


if __name__ == "__main__":
    sys.exit(main())
