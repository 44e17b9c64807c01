"""A random test that fails says which seed it was, and the command it prints runs that seed again."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from seeds import FreshSeeds

TEST = """
from seeds import FreshSeeds

def test_even(fresh_seeds: FreshSeeds) -> None:
    seeds = []
    for seed in fresh_seeds.take(100):
        seeds.append(seed)
        print(f"{len(seeds)} taken")
        assert seed % 2 == 0
"""


def run_pytest(directory: Path, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WATERSMEET_", "PYTEST_"))}
    environment |= {"PYTHONPATH": str(Path(__file__).parent)} | variables
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_random.py"]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300)
    return done.stdout


def test_a_failing_seed_is_printed_with_the_command_that_repeats_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from seeds import fresh_seeds, pytest_runtest_makereport\n")
    (tmp_path / "test_random.py").write_text(TEST)
    first = run_pytest(tmp_path)
    found = re.search(r"seed (\d+) failed; repeat it by\n +(\S.*)\n", first)
    assert found is not None, first
    seed, command = found.groups()
    assert int(seed) % 2 == 1
    variable, _, *rest = shlex.split(command)
    assert rest == ["-m", "pytest", "test_random.py::test_even"]
    name, _, value = variable.partition("=")
    again = run_pytest(tmp_path, **{name: value})
    assert f"seed {seed} failed" in again and "1 taken" in again and "2 taken" not in again
    assert "1 passed" in run_pytest(tmp_path, **{name: "2"})


def test_seeds_differ_unless_one_is_asked_for(fresh_seeds: FreshSeeds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATERSMEET_SEED", raising=False)
    assert len(set(fresh_seeds.take(100))) > 90
    monkeypatch.setenv("WATERSMEET_SEED", "7")
    assert list(fresh_seeds.take(100)) == [7]


def test_the_command_asks_for_a_long_run_if_this_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = FreshSeeds("tests/test_x.py::test_y[a b]", 5)
    monkeypatch.setenv("WATERSMEET_SOAK", "1")
    assert seeds.command == (
        "WATERSMEET_SEED=5 WATERSMEET_SOAK=1 .venv/bin/python -m pytest 'tests/test_x.py::test_y[a b]'"
    )
