"""Who may ask the server, and what it says."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scenes import PATIENCE_S

from watersmeet.cli.main import run_command
from watersmeet.dashboard import view
from watersmeet.dashboard import watcher as watcher_module
from watersmeet.dashboard.server import Server
from watersmeet.dashboard.watcher import Watcher

Lines = list[dict[str, Any]]
Serve = Callable[..., Server]


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **more: Any) -> None:
        return None


def ask(url: str, **headers: str) -> tuple[int, dict[str, str], str]:
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.build_opener(_Stay()).open(request, timeout=PATIENCE_S) as got:
            return got.status, dict(got.headers), got.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read().decode()


def write(path: Path, lines: Lines) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def rows_of(lines: Lines) -> int:
    return sum(sum(line.get("rows_in", {}).values()) for line in lines)


@pytest.fixture
def events(recorded: Lines, tmp_path: Path) -> Path:
    return write(tmp_path / "run.jsonl", recorded)


def test_figures_over_http(events: Path, recorded: Lines, serve: Serve) -> None:
    url = serve(events).url
    code, headers, text = ask(f"{url}api/now")
    assert code == 200 and json.loads(text)["totals"]["rows"] == rows_of(recorded)
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    first, last = recorded[0]["at"], recorded[-1]["at"]
    history = json.loads(ask(f"{url}api/history?from={first}&to={last + 1}&points=50")[2])
    rows = sum(sum(one["values"]) for one in history["series"]["rows"]) * history["step"]
    assert rows == pytest.approx(rows_of(recorded), rel=1e-3)
    assert len(json.loads(ask(f"{url}api/timeline")[2])) > 3
    some = json.loads(ask(f"{url}api/history?from={first}&to={last + 1}&points=50&kinds=rows,delay")[2])
    assert some["series"] == {kind: history["series"][kind] for kind in ("rows", "delay")}


def test_nothing_is_read_while_nobody_looks(recorded: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, half = write(tmp_path / "run.jsonl", recorded[: len(recorded) // 2]), recorded[len(recorded) // 2 :]
    watcher = Watcher([path], idle_after_s=0.0)
    watcher.start()
    assert not watcher.is_due
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in half)
    assert not watcher.is_due
    monkeypatch.setattr(watcher_module, "_MOST_UNREAD", 10_000)
    assert watcher.is_due, "a run keeps only so much"
    totals = watcher.look(view.snapshot)["totals"]
    assert totals["rows"] == rows_of(recorded), "who looks sees everything at once"
    watcher.stop()


def test_answers_that_are_new(recorded: Lines, tmp_path: Path, serve: Serve) -> None:
    sample = {"at": recorded[-1]["at"], "event": "answer_sample", "query": "everywhere", "columns": ["n"]}
    url = serve(write(tmp_path / "run.jsonl", [*recorded, *(sample | {"rows": [[n], [n]]} for n in range(3))])).url

    def values(after: str) -> list[int]:
        answer = json.loads(ask(f"{url}api/answers?after={after}")[2])
        assert answer["samples"] == 3
        return [row["values"][0] for row in answer["queries"][0]["rows"]]

    assert (values("0"), values("2"), values("3")) == ([2, 2, 1, 1, 0, 0], [2, 2], [])
    assert ask(f"{url}api/answers?after=x")[0] == 400


@pytest.mark.parametrize("query", ["", "?from=1", "?from=2&to=1", "?from=1&to=2&points=99999", "?from=x&to=2"])
def test_a_time_that_is_none_is_refused(query: str, events: Path, serve: Serve) -> None:
    assert ask(f"{serve(events).url}api/history{query}")[0] == 400


def test_a_page_of_another_name_cannot_ask(events: Path, serve: Serve) -> None:
    server = serve(events)
    assert ask(f"{server.url}api/now", Host="evil.example")[0] == 421
    assert ask(f"{server.url}api/now", Host=f"localhost:{server.port}")[0] == 200
    assert ask(f"{server.url}static/../server.py")[0] == 404
    assert ask(f"{server.url}static/%2e%2e/server.py")[0] == 404


def test_elsewhere_than_on_loopback_a_token_is_needed(events: Path, serve: Serve) -> None:
    server = serve(events, host="0.0.0.0")
    here, token = f"http://127.0.0.1:{server.port}/", server.url.partition("?token=")[2]
    assert len(token) >= 32
    for path in ("", "api/now", "static/main.js", "?token=wrong", "api/events"):
        assert ask(f"{here}{path}")[0] == 401
    code, headers, _ = ask(f"{here}?token={token}")
    assert code == 303 and headers["location"] == "/", "the token does not stay in the address"
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert ask(f"{here}api/now", Cookie=cookie.partition(";")[0])[0] == 200


def test_no_path_is_shown(recorded: Lines, tmp_path: Path, serve: Serve) -> None:
    text = f"events are not written to {tmp_path}/deep/er/x.jsonl any more"
    warning = {"at": recorded[-1]["at"], "event": "warning", "site": "ams", "query": None, "text": text}
    url = serve(write(tmp_path / "run.jsonl", [*recorded, warning])).url
    shown = "".join(ask(f"{url}api/{what}")[2] for what in ("now", "timeline", "answers", "peers"))
    assert "…/x.jsonl" in json.loads(ask(f"{url}api/timeline")[2])[-1]["title"]
    assert str(tmp_path) not in shown and "/deep" not in shown


def test_no_secret_is_shown(recorded: Lines, tmp_path: Path, serve: Serve) -> None:
    """Neither of queries, plans and operators, nor of what is said of them; also not in the stream of the page."""
    secrets = "x = 'https://me:hunter2@host/y' AND a.token = 'hunter2' AND b.api_key IN ('hunter2', 'hunter2 too')"
    text = f"option kafka.sasl.password=hunter2, fs.s3a.secret.key: hunter2; https://h/p?sig=hunter2; {secrets}"
    lines = []
    for line in recorded:
        match line["event"]:
            case "query_described":
                line = line | {"sql": f"{line['sql']} AND {secrets} -- token=hunter2"}
            case "plan_in_force":
                line = line | {"plan_text": f"{line['plan_text']}\n  where {secrets}, of /data/hunter2/in/x.json"}
            case "site_program_in_force":
                line = line | {"operators": [*line["operators"], f"probe where {secrets}"]}
            case "plan_decision":
                line = line | {"reason": text}
            case "run_ended":
                line = line | {"reason": "failed", "message": text}
        lines.append(line)
    about = {"at": recorded[-1]["at"], "query": None, "site": "ams"}
    lines.append(about | {"event": "warning", "text": text})
    lines.append(about | {"event": "change_refused", "queries": ["everywhere"], "cause": text})
    lines.append(about | {"event": "plan_change_proposed", "queries": [], "reason": text, "changes_before": 0})
    url = serve(write(tmp_path / "run.jsonl", lines)).url
    shown = {what: ask(f"{url}api/{what}")[2] for what in ("now", "timeline", "answers", "peers")}
    with urllib.request.urlopen(f"{url}api/events", timeout=PATIENCE_S) as stream:
        shown["events"] = stream.readline().decode()
    assert not [what for what, said in shown.items() if "hunter2" in said]
    now = json.loads(shown["now"])
    assert "AND a.token = '…'" in now["queries"][0]["sql"] and "AND a.token = '…'" in now["queries"][0]["plan"]
    assert any("a.token = '…'" in operator for site in now["sites"] for operator in site["operators"])
    assert now["message"].startswith("option kafka.sasl.password=…, fs.s3a.secret.key: …; https://h/p?sig=…")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing.jsonl"], "there is no such file or directory"),
        (["."], "neither a checkpoint nor a directory with events.jsonl"),
        ([".", "--port", "70000"], "a port is from 0"),
    ],
)
def test_what_cannot_be_shown(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["dashboard", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_port_that_is_taken(events: Path, serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = serve(events).port
    assert run_command(["dashboard", str(events), "--port", str(port)]) == 2
    assert "cannot be opened: Address already in use" in capsys.readouterr().err
