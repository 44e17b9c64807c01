"""`watersmeet top` has everything that matters on a small terminal, and is read by programs where there is none."""

import contextlib
import fcntl
import gzip
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from rich.console import Console
from scenes import PATIENCE_S

from watersmeet.cli import top
from watersmeet.cli.main import run_command
from watersmeet.dashboard import view
from watersmeet.dashboard.model import RunModel
from watersmeet.metrics.events import from_json

RECORDED = Path(__file__).parents[1] / "dashboard" / "recorded.jsonl.gz"  # a run of four sites and twelve links


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 30), (160, 50)])
def test_it_fits_the_terminal(width: int, height: int) -> None:
    model = RunModel()
    with gzip.open(RECORDED, "rt", encoding="utf-8") as file:
        for line in file:
            model.read("run", *from_json(line))
    now, notes = view.snapshot(model, model.last_at), view.timeline(model)
    console = Console(width=width, height=height)
    with console.capture() as captured:
        console.print(top._screen(now, notes, height))
    lines = captured.get().splitlines()
    assert len(lines) <= height and max(map(len, lines)) <= width
    text = "\n".join(lines)
    for site in now["sites"]:
        assert f"\n{site['name']} " in text
    assert "everywhere" in text and f"{now['queries'][0]['answers']:,.0f}" in text and ", sent " in lines[0]
    assert notes[-1]["title"] in lines[-1], "the latest is always there"
    used = [link for link in now["links"] if link["bytes"]]
    most = max(used, key=lambda link: link["bytes"])
    assert f"{most['from']} -> {most['to']}" in text
    named = sum(f"{link['from']} -> {link['to']} " in text for link in used)
    assert f"\n{len(used) - named} more " in text if named < len(used) else "\n0 more" not in text


def test_without_a_terminal_it_is_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    path = tmp_path / "run.jsonl"
    path.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    assert run_command(["top", str(path)]) == 0
    shown = capsys.readouterr()
    assert shown.err == "" and "\x1b" not in shown.out, "no colours and no screen of its own"
    model = RunModel()
    for line in path.read_text(encoding="utf-8").splitlines():
        model.read("run", *from_json(line))
    now = view.snapshot(model, model.last_at)
    assert shown.out.startswith(f" {now['state']}  rows {now['totals']['rows']:,.0f} ")
    assert shown.out.count(" -> ") >= sum(link["bytes"] > 0 for link in now["links"])
    (query,) = now["queries"]
    line = next(line for line in shown.out.splitlines() if line.startswith("everywhere "))
    figures = query["planner"], str(query["version"]), f"{query['rows']:,.0f}", f"{query['answers']:,.0f}"
    assert line.split()[:5] == ["everywhere", *figures]


def test_at_a_terminal_it_follows_the_run_until_ctrl_c(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    ours, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "watersmeet", "top", str(path)]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    seen = b""

    def until(wanted: bytes) -> None:
        nonlocal seen
        deadline = time.monotonic() + PATIENCE_S
        while wanted not in seen:
            assert time.monotonic() < deadline, f"{wanted!r} is not in {seen!r}"
            if select.select([ours], [], [], 0.5)[0]:
                with contextlib.suppress(OSError):  # the other end was closed
                    seen += os.read(ours, 1 << 16)

    try:
        until(b"everywhere")
        assert b"\x1b[?1049h" in seen, "it has a screen of its own"
        more = {"at": time.time(), "event": "warning", "site": None, "query": None, "text": "something is new"}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(more) + "\n")
        until(b"something is new")
        process.send_signal(signal.SIGINT)
        until(b"\x1b[?1049l")
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
