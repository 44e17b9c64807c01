"""`watersmeet dashboard` and `run --dashboard`: where they listen, what they print, and when they end."""

import gzip
import json
import re
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from event_lines import totals
from scenes import PATIENCE_S

from watersmeet.cli.dashboard import beside
from watersmeet.cli.main import run_command
from watersmeet.dashboard.server import Server
from watersmeet.metrics.jsonl import KEPT

RECORDED = Path(__file__).parents[1] / "dashboard" / "recorded.jsonl.gz"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """What a run of four sites has kept."""
    (tmp_path / KEPT).write_bytes(gzip.decompress(RECORDED.read_bytes()))
    return tmp_path


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", r"http://127\.0\.0\.1:\d+/"), ("0.0.0.0", r"http://0\.0\.0\.0:\d+/\?token=.{32}")],
)
def test_the_address_is_printed_with_a_token_where_others_can_reach_it(
    host: str, address: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Server, "run", lambda server: server._socket.close())
    assert run_command(["dashboard", str(checkpoint), "--host", host, "--port", "0"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "" and re.fullmatch(rf"watersmeet: dashboard at {address}\n", shown.err)


def test_a_dashboard_beside_a_run_ends_with_it(checkpoint: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = ""
    with beside(checkpoint, 0):
        deadline = time.monotonic() + PATIENCE_S
        while "\n" not in said:
            assert time.monotonic() < deadline, said
            time.sleep(0.1)
            said += capfd.readouterr().err
        url = re.fullmatch(r"watersmeet: dashboard at (http://127\.0\.0\.1:\d+/)\n", said)
        assert url is not None, said
        with urllib.request.urlopen(f"{url[1]}api/now", timeout=PATIENCE_S) as answer:
            shown = json.loads(answer.read())["totals"]
        lines = [json.loads(line) for line in (checkpoint / KEPT).read_text(encoding="utf-8").splitlines()]
        assert (shown["rows"], shown["answers"], shown["bytes"]) == totals(lines)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url[1], timeout=PATIENCE_S)
