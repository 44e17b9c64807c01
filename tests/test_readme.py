"""The README runs: its topology, its commands with the output it shows, and its Python."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from watersmeet.cli.main import _parser, run_command

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def sessions() -> list[tuple[str, list[str]]]:
    """Each `$ watersmeet` command with the lines shown under it."""
    found: list[tuple[str, list[str]]] = []
    for block in blocks("console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found:
                found[-1][1].append(line)
    return [(command, lines) for command, lines in found if command.startswith("watersmeet ")]


def steady(line: str) -> str:
    """A line without what differs from run to run: rates, seconds, places, and the width of a table."""
    line = re.sub(r"\([\d,]+ a second\)| in [\d.]+ s\b|\S*out/\w+", "", line)
    return re.sub(r"[\s─┬┴]+", " ", line).strip()


def test_the_commands_give_what_the_readme_shows(
    spark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (topology,) = blocks("yaml")
    monkeypatch.chdir(tmp_path)
    Path("topology.yaml").write_text(topology, encoding="utf-8")
    commands = sessions()
    assert len(commands) == 3
    for command, expected in commands:
        assert run_command(command.split()[1:]) == 0, command
        shown = capsys.readouterr().out
        lines = {steady(line) for line in shown.splitlines()}
        for line in expected:
            assert steady(line) in lines or is_sample(line), f"{command} does not print {line!r} but\n{shown}"


def is_sample(line: str) -> bool:
    """A row of the sample: which answers are shown is Spark's choice."""
    return bool(re.match(r"│ \d+ +│ page-", line))


def others() -> list[str]:
    """The commands whose output is not shown."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [*lines, *(line.strip("`") for line in re.findall(r"^\| (`watersmeet [^`]+`) \|", README, re.MULTILINE))]


@pytest.mark.parametrize("line", others())
def test_the_other_commands_are_accepted_and_their_files_are_there(line: str) -> None:
    name, *arguments = shlex.split(line, comments=True)
    assert name == "watersmeet"
    options = _parser().parse_args(arguments)
    assert callable(options.command)
    for path in (word for word in arguments if word.startswith("examples/")):
        assert (ROOT / path).is_file()


def test_the_python_runs(spark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["run"].usage().rows_in > 0  # type: ignore[attr-defined]


def test_make_knows_the_two_commands() -> None:
    for target in ("demo", "test", "setup", "check", "soak", "bench"):
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\((?!http)([^)#]+)", README))))
def test_links_lead_somewhere(path: str) -> None:
    assert (ROOT / path).exists()
