"""What a notebook shows of a run, by events that were recorded."""

import gzip
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from event_lines import totals
from scenes import PATIENCE_S, wait_for

from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.jsonl import KEPT
from watersmeet.spark.notebook import LiveView, RunEvents

RECORDED = Path(__file__).resolve().parents[1] / "dashboard" / "recorded.jsonl.gz"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / KEPT).write_bytes(gzip.decompress(RECORDED.read_bytes()))
    return tmp_path


def title() -> str:
    """What the figures of the whole run begin with, by its events alone."""
    rows, answers, _ = totals([json.loads(line) for line in gzip.decompress(RECORDED.read_bytes()).splitlines()])
    return f"{rows:,} rows in, {answers:,} answers"


class Notebook:
    """IPython as far as it is used: what is displayed, and what it is replaced by."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: list[str] = []
        display = types.ModuleType("IPython.display")
        ipython = types.ModuleType("IPython")
        vars(display).update(HTML=str, display=self.display)
        vars(ipython).update(get_ipython=lambda: self, display=display)
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def display(self, html: str, *, display_id: bool) -> "Notebook":
        assert display_id
        self.shown.append(html)
        return self

    def update(self, html: str) -> None:
        self.shown.append(html)


def test_a_run_is_kept_up_to_date_until_it_ends(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, path = Notebook(monkeypatch), checkpoint / KEPT
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:100]))
    active = [True]
    view = LiveView(checkpoint, lambda: active[0])
    assert view.html() == "" and "<b>everywhere</b>" in notebook.shown[0] and ">ended<" not in notebook.shown[0]
    with path.open("ab") as file:
        file.write(b"".join(lines[100:]))
    wait_for(lambda: ">ended<" in notebook.shown[-1], "the end is shown")
    active[0] = False
    assert view._thread is not None
    view._thread.join(PATIENCE_S)
    assert title() in notebook.shown[-1]
    assert all(name in notebook.shown[-1] for name in ("<caption>Sites", "<caption>Links", "low watermark"))
    assert "<caption>Flows" in LiveView(checkpoint, lambda: False)._now("everywhere")


CELLS = """
import threading
from pathlib import Path
from watersmeet.metrics.jsonl import KEPT
from watersmeet.spark.notebook import LiveView
path = Path(r"{path}")
lines = path.read_bytes().splitlines(keepends=True)
path.write_bytes(b"".join(lines[:100]))
active = [True]
class Run:
    view = LiveView(path.parent, lambda: active[0])
    def _repr_html_(self):
        return self.view.html()
---
Run()
---
with path.open("ab") as file:
    file.write(b"".join(lines[100:]))
active[0] = False
Run.view._thread.join()
"""


def test_in_jupyter(checkpoint: Path) -> None:
    """A real kernel: what a cell shows is replaced there by what comes later."""
    for module in ("nbclient", "ipykernel"):
        pytest.importorskip(module, reason="no Jupyter: pip install nbclient ipykernel")
    from nbclient import NotebookClient
    from nbformat import v4

    cells = [v4.new_code_cell(text) for text in CELLS.format(path=checkpoint / KEPT).split("---")]
    done = NotebookClient(v4.new_notebook(cells=cells), timeout=PATIENCE_S, kernel_name="python3").execute()
    (shown,) = (html for one in done.cells[1].outputs if (html := one["data"]["text/html"]))  # the other is empty
    assert title() in shown and ">ended<" in shown


def test_events_as_a_table(checkpoint: Path) -> None:
    events: Any = RunEvents(EventBus(), checkpoint)
    everything = events()
    assert len(everything) == len((checkpoint / KEPT).read_bytes().splitlines())
    assert everything["at"].is_monotonic_increasing
    batches = events("micro_batch_completed", site="nyc")
    assert set(batches["site"]) == {"nyc"} and batches["rows_in.nyc"].sum() > 1_000
    assert set(events("plan_in_force", query="everywhere")["version"]) > {1}
    assert events("plan_in_force", query="another").empty
