#!/usr/bin/env python
"""The long tests, class by class, each a process with a budget of time: `make soak`.

Without options it takes about two hours on two cores: 10,000 simulated trials, 200 SIGKILLs, 72 power cuts, a million
mutated parcels and a long flat run, and a share of every other class; `--scale 10` takes ten times as many of each.
A class that fails or takes too long does not end the others; the summary says which, where its output is, and how a
seed that failed is run again.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
REPEAT = re.compile(r"^\s*\S*WATERSMEET_SEED=.*|^FAILED .*|^ERROR .*", re.MULTILINE)
MARK = re.compile(r"@pytest\.mark\.(soak|few)\b")
MIN_MINUTES = 20  # to start Spark takes as long in a short run
REPORT_S = 300  # how often it is said what is still running


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


CLASSES = (  # what was promised in numbers first, each in full; of the others as much as two hours leave room for
    Class("simulated trials", 90, ("tests/sim/sites/test_trial.py",)),
    Class("SIGKILLs of runs", 60, ("tests/spark/test_kills.py",)),
    Class("sites that die, freeze and lose links", 60, ("tests/spark/test_site_faults.py",)),
    Class("power cuts on Spark", 20, ("tests/spark/test_power_cuts.py",)),
    Class("mutated parcels", 20, ("tests/program/storage",)),
    Class("mutated files and queries", 20, ("tests/query/test_hostile_text.py",), share=0.1),
    Class("simulated shapes", 20, ("tests/sim/sites/test_sites.py", "tests/sim/sites/test_tables.py"), share=0.2),
    Class("simulated changes of plans", 30, ("tests/sim/sites/test_changes.py",), share=0.2),
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


def run(one: Class, scale: float, patience: float, logs: Path) -> bool:
    """Run a class to its end or the end of its budget, and say how it went; whether it went well."""
    log, budget_s = logs / f"{one.name.replace(' ', '-').replace(',', '')}.log", one.budget_s(scale, patience)
    print(f"{one.name}: started, at most {budget_s / 60:.0f} min", flush=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "soak", "-s", "-v", *one.paths]
    began = time.monotonic()
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "WATERSMEET_SOAK": f"{scale * one.share:g}"},
            stdout=file,
            stderr=file,
        )
        code = wait(process, one, began, budget_s)
    minutes = (time.monotonic() - began) / 60
    how = {0: "passed", None: "took too long, and was ended,"}.get(code, f"FAILED (exit code {code})")
    text = log.read_text(encoding="utf-8", errors="replace")
    counts = (re.findall(r"^=*\s*(\d+ (?:passed|failed).*?)=*$", text, re.MULTILINE) or [""])[-1].strip()
    print(f"{one.name}: {how} after {minutes:.1f} min: {counts} ({log.relative_to(ROOT)})", flush=True)
    for line in dict.fromkeys(REPEAT.findall(text)) if code else ():
        print(f"    {line.strip()}", flush=True)
    return code == 0


def wait(process: "subprocess.Popen[bytes]", one: Class, began: float, budget_s: float) -> int | None:
    """The exit code, or None if it had to be ended: with its stacks in the log, and all that it has started."""
    while (left_s := began + budget_s - time.monotonic()) > 0:
        try:
            return process.wait(min(left_s, REPORT_S))
        except subprocess.TimeoutExpired:
            if left_s > REPORT_S:
                print(f"{one.name}: still running after {(time.monotonic() - began) / 60:.0f} min", flush=True)
    family = psutil.Process(process.pid).children(recursive=True)  # Java is in a process group of its own
    process.send_signal(signal.SIGABRT)  # Python's fault handler, which pytest has switched on, shows where it is
    process.wait()
    for started in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            started.kill()
    return None


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
    parser.add_argument("--only", action="append", metavar="TEXT", help="classes whose name has this in it")
    options = parser.parse_args()
    known = (*CLASSES, others())
    chosen = [
        one for one in known if one.paths and (not options.only or any(text in one.name for text in options.only))
    ]
    logs = ROOT / "out" / "soak"
    logs.mkdir(parents=True, exist_ok=True)
    hours = sum(one.budget_s(options.scale, options.patience) for one in chosen) / 3600
    print(f"{len(chosen)} classes, at most {hours:.1f} h one after the other, {options.jobs} at a time", flush=True)
    began = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        together = [one for one in chosen if not one.alone]
        went_well = list(pool.map(lambda one: run(one, options.scale, options.patience, logs), together))
    went_well += [run(one, options.scale, options.patience, logs) for one in chosen if one.alone]
    print(f"{sum(went_well)} of {len(chosen)} classes passed in {(time.monotonic() - began) / 3600:.2f} h")
    return 0 if all(went_well) else 1


if __name__ == "__main__":
    sys.exit(main())
