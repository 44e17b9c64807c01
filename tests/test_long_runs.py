"""What `make soak` relies on: shares of cases and seeds, and a watchdog that says where a test hangs."""

import os
import runpy
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import hangs
import pytest
from hangs import watched
from seeds import cases_of, divided, share_of_cases

ROOT = Path(__file__).resolve().parents[1]
CONFTEST = """
from seeds import fresh_seeds, keep_a_fraction, pytest_runtest_makereport, pytest_runtest_setup

def pytest_collection_modifyitems(config, items):
    keep_a_fraction(config, items)
"""
COUNTING = """
import pytest
from seeds import scaled

@pytest.mark.soak
@pytest.mark.parametrize("case", range(20))
def test_cases_and_seeds(case, fresh_seeds):
    for _ in fresh_seeds.take(10):
        print("cases and seeds")

@pytest.mark.soak
@pytest.mark.parametrize("case", range(2))
def test_seeds_and_parts(case, fresh_seeds):
    for _ in fresh_seeds.take(4):
        for _ in range(scaled(15)):
            print("seeds and parts")
    for _ in fresh_seeds.take(5):
        print("again")

@pytest.mark.soak
def test_one(fresh_seeds):
    for _ in fresh_seeds.take(1):
        for _ in range(scaled(100)):
            print("one")

def test_that_is_short():
    print("short")
"""
HANGING = """
import time

def test_that_hangs():
    time.sleep(600)

def test_that_does_not():
    pass
"""
JAVA = """
public class Still {
    public static void main(String[] arguments) throws Exception {
        System.out.println("ready");
        standStill();
    }

    static void standStill() throws Exception {
        Thread.sleep(600_000);
    }
}
"""
STARTER = """
import subprocess

def wait_for_java():
    subprocess.run(["java", "Still.java"])

wait_for_java()
"""


def run_pytest(directory: Path, test: str, *options: str, **variables: str) -> str:
    (directory / "pytest.ini").write_text("[pytest]\nmarkers = soak\n")
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_inner.py").write_text(test)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("WATERSMEET_", "PYTEST_"))}
    environment = clean | {"PYTHONPATH": str(ROOT / "tests")} | variables
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *options, "test_inner.py"]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300).stdout


@pytest.mark.parametrize(("share", "counts"), [("0.2", (40, 24, 2, 20)), ("3", (600, 360, 30, 300))])
def test_a_share_of_a_test_is_that_share_of_what_it_does(
    tmp_path: Path, share: str, counts: tuple[int, int, int, int]
) -> None:
    said = run_pytest(tmp_path, COUNTING, WATERSMEET_SOAK=share)
    names = ("cases and seeds", "seeds and parts", "again", "one")
    assert tuple(said.splitlines().count(name) for name in names) == counts, said
    assert said.splitlines().count("short") == 1


@pytest.mark.parametrize("share", [0.01, 0.1, 0.2, 1.0, 10.0])
@pytest.mark.parametrize("cases", [1, 2, 3, 7, 50])
def test_cases_and_seeds_together_are_the_share(share: float, cases: int) -> None:
    number, rest = cases_of(share, cases)
    assert 1 <= number <= cases
    assert number * rest == pytest.approx(share * cases), "what cases do not leave out is left to the seeds"
    seeds, rest = divided(rest, 1_000)
    assert abs(number * seeds - share * cases * 1_000) <= number, "but for rounding"
    assert share_of_cases([f"tests/test_x.py::test_y[{case}]" for case in range(cases)], share) == number


def test_the_plan_has_the_cases_that_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "soak.py"))
    known = [f"tests/sim/sites/test_trial.py::test_y[{case}]" for case in range(50)]
    known += ["tests/sim/sites/test_trial.py::test_z", "tests/sim/sites/test_trials.py::test_y"]
    one = script["Class"]("trials", 90, ("tests/sim/sites/test_trial.py",), share=0.2)
    assert script["cases_asked"](one, known, 1.0) == 11
    assert script["cases_asked"](one, known, 5.0) == 51
    settings = script["Settings"](1.0, 2.0, 60.0, Path("logs"))
    head, line = script["plan"]([one], {"trials": 11}, settings)
    assert head.split() == ["class", "cases", "share", "min", "at", "most"]
    assert line.split() == ["trials", "11", "0.2", "45", "180"]


def test_a_class_that_takes_too_long_is_ended_and_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "soak.py"))
    script["run"].__globals__["ROOT"] = tmp_path
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = soak\n")
    (tmp_path / "test_inner.py").write_text(
        HANGING.replace("def ", "@pytest.mark.soak\ndef ").replace("ort time", "ort time, pytest")
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    one = script["Class"]("slow ones", 1, ("test_inner.py",))
    settings = script["Settings"](1.0, 0.004, 600.0, tmp_path)  # of twenty minutes
    result = script["run"](one, 2, settings)
    _, line = script["summary"]([result])
    assert line.split()[:6] == ["slow", "ones", "2", "0", "0", "0"] and line.endswith("took too long, ended")
    said = capsys.readouterr().out
    assert "slow ones: took too long, ended after 0.1 min" in said and "slow-ones.stacks.txt" in said
    assert "test_that_hangs" in (tmp_path / "slow-ones.log").read_text(), "and its stacks are shown"


SKIPPING = """
import hangs
import pytest

@pytest.mark.soak
def test_that_is_done():
    hangs.count("SIGKILLs", 3)
    hangs.count("SIGKILLs")

@pytest.mark.soak
def test_that_is_skipped():
    pytest.skip("no broker here")
"""


def test_a_class_has_not_passed_where_cases_are_skipped_or_missing_or_less_is_done_than_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "soak.py"))
    script["run"].__globals__["ROOT"] = tmp_path
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = soak\n")
    (tmp_path / "test_inner.py").write_text(SKIPPING)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    one = script["Class"]("some", 1, ("test_inner.py",))
    result = script["run"](one, 2, script["Settings"](1.0, 1.0, 600.0, tmp_path))
    assert (result.ended, result.failed, result.how) == (2, 0, "INCOMPLETE: 1 cases skipped, 0 not run")
    assert script["verdict"](0, 3, {"a": "passed"}) == "INCOMPLETE: 0 cases skipped, 2 not run"
    assert script["verdict"](0, 1, {"a": "passed"}) == "passed"
    lines, is_enough = script["done"]([result], 0.02)
    assert "SIGKILLs 4 4" in [" ".join(line.split()) for line in lines] and not is_enough, "no trials, no power cuts"
    _, is_enough = script["done"](
        [result, replace(result, counts=Counter(dict.fromkeys(script["PROMISED"], 10**6)))], 1
    )
    assert is_enough


def test_a_test_that_hangs_fails_with_the_name_of_a_file_of_stacks(tmp_path: Path) -> None:
    stacks, cases = tmp_path / "stacks.txt", tmp_path / "cases.jsonl"
    variables = {"WATERSMEET_HANG_S": "1", "WATERSMEET_STACKS": str(stacks), "WATERSMEET_CASES": str(cases)}
    said = run_pytest(tmp_path, HANGING, "-p", "hangs", **variables)
    assert f"nothing moved for 1 s; the stacks of all its processes are in {stacks}" in said
    assert "1 failed, 1 passed" in said
    assert "test_inner.py::test_that_hangs" in stacks.read_text() and "in test_that_hangs" in stacks.read_text()
    assert "nothing moved for 1 s" in cases.read_text(), "why it failed is known before all cases have ended"
    script = runpy.run_path(str(ROOT / "scripts" / "soak.py"))
    outcomes: dict[str, str] = script["ends"](cases)
    assert outcomes == {"test_inner.py::test_that_hangs": "failed", "test_inner.py::test_that_does_not": "passed"}
    assert script["failures"](outcomes) == 1


def test_stacks_of_a_python_and_a_java_that_hang_are_in_the_file(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks.txt"
    (tmp_path / "Still.java").write_text(JAVA)
    environment: dict[str, Any] = {
        **os.environ,
        "PYTHONPATH": str(hangs.LISTENERS),
        "WATERSMEET_STACKS": str(stacks),
    }
    command = [sys.executable, "-c", STARTER]
    over = threading.Event()
    for _ in range(120):  # younger than the main thread, and more than Python's own fault handler shows
        threading.Thread(target=over.wait, daemon=True).start()
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            with pytest.raises(pytest.fail.Exception, match=str(stacks)), watched(0.2, stacks, "a run"):
                process.wait(300)
        finally:
            over.set()
            os.killpg(process.pid, 9)
    text = stacks.read_text()
    assert "in test_stacks_of_a_python_and_a_java_that_hang_are_in_the_file" in text, "this process"
    assert "in wait_for_java" in text, "the Python that it started"
    assert "Still.standStill" in text and '"main"' in text, "the Java that this one started"


def test_what_moves_is_left_alone(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks.txt"
    with watched(30, stacks, "a run"):
        hangs.beat()
    assert not stacks.exists()
