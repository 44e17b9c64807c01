#!/usr/bin/env python
"""The long tests, class by class, each a process with a budget of time: `make soak`.

Without options it takes about two hours on two cores: 10,000 simulated trials, 200 SIGKILLs, 72 power cuts, a million
mutated parcels and a long flat run, and a share of every other class; `--scale 10` takes ten times as many of each.
It begins with its plan and ends with a table. A class that fails or takes too long does not end the others; the table
says which, and below it are where its output is and how a seed that failed is run again. A test in which nothing moves
for long fails, with the stacks of all its processes in a file (`tests/hangs.py`).
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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import hangs  # noqa: E402
import seeds  # noqa: E402

REPEAT = re.compile(r"^\s*\S*WATERSMEET_SEED=.*|^FAILED .*|^ERROR .*", re.MULTILINE)
SEEDS = re.compile(r": ([\d,]+) seeds passed: ")
MARK = re.compile(r"@pytest\.mark\.(soak|few)\b")
MIN_MINUTES = 20  # to start Spark takes as long in a short run
REPORT_S = 300  # how often it is said what is still running
HANG_S = 1_800  # longer than a wait in a test, which fails by itself


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


CLASSES = (  # what was promised in numbers first, each in full; of the others as much as two hours leave room for
    Class("simulated trials", 90, ("tests/sim/sites/test_trial.py",)),
    Class("SIGKILLs of runs", 60, ("tests/spark/test_kills.py",)),
    Class("sites that die, freeze and lose links", 60, ("tests/spark/test_site_faults.py",)),
    Class("power cuts on Spark", 20, ("tests/spark/test_power_cuts.py",)),
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
    how = {0: "passed", None: "took too long, ended"}.get(code, f"FAILED (exit code {code})")
    text = log.read_text(encoding="utf-8", errors="replace")
    outcomes = ends(cases)
    result = Result(one.name, asked, len(outcomes), passed_seeds(text), failures(outcomes), seconds, how)
    print(f"{one.name}: {how} after {seconds / 60:.1f} min ({log.relative_to(ROOT)})", flush=True)
    for line in dict.fromkeys(REPEAT.findall(text)) if code else ():
        print(f"    {line.strip()}", flush=True)
    if stacks.exists() and not stacks.stat().st_size:
        stacks.unlink()
    elif stacks.exists():
        print(f"    stacks of processes that did not move: {stacks.relative_to(ROOT)}", flush=True)
    return result


def ends(cases: Path) -> dict[str, str]:
    """The cases that have ended, and how."""
    lines = cases.read_text(encoding="utf-8").splitlines() if cases.exists() else []
    found: dict[str, str] = {}
    for line in map(json.loads, lines):
        if "outcome" in line and found.get(line["test"]) != "failed":
            found[line["test"]] = line["outcome"]
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
    passed = sum(one.how == "passed" for one in results)
    print(f"{passed} of {len(chosen)} classes passed in {(time.monotonic() - began) / 3600:.2f} h")
    return 0 if passed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
