"""Tables at narrow terminals, in pipes, and what they say."""

import io
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from watersmeet.cli import live
from watersmeet.cli.tables import print_table, queries_table, summary_table
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import PlanChangeProposed, PlanInForce
from watersmeet.metrics.traffic import LinkRow, LinkTraffic
from watersmeet.metrics.usage import Usage
from watersmeet.program.site.ledger import Traffic
from watersmeet.topology.model import Query, Sink

USAGE = Usage(rows_in=42_000, rows_out=1_234_567, late=840, state_rows=7_806, state_bytes=300_000, bytes_shipped=99)
NAMES = ("purchases_by_upset_customers", "sessions_without_any_purchase")


def printed(table: Any, width: int, *, is_terminal: bool) -> list[str]:
    out = io.StringIO()
    print_table(table, Console(file=out, width=width, force_terminal=is_terminal, color_system=None, highlight=False))
    return out.getvalue().splitlines()


def test_a_table_that_does_not_fit_is_lines_with_every_figure() -> None:
    table = queries_table(dict.fromkeys(NAMES, USAGE), USAGE)
    lines = printed(table, 80, is_terminal=True)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for name in NAMES:
        assert f"- query       {name}\n" in text
    assert text.count("  answers     1,234,567\n") == 3 and text.count("  shipped     99 B") == 3
    assert "…" not in text


def test_a_table_in_a_pipe_is_as_wide_as_it_must_be() -> None:
    lines = printed(queries_table(dict.fromkeys(NAMES, USAGE), USAGE), 80, is_terminal=False)
    assert len([line for line in lines if "1,234,567" in line and "99 B" in line]) == 3
    assert "…" not in "".join(lines)


def test_a_table_that_fits_is_a_table() -> None:
    lines = printed(queries_table({"q": USAGE}, USAGE), 120, is_terminal=True)
    assert any(line.startswith("│ q ") and "1,234,567" in line for line in lines)


def test_a_summary_says_which_share_of_the_rows_is_late_and_is_never_cut() -> None:
    path = "/a/rather/long/path/of/a/sink/that/does/not/fit/into/eighty/columns/of/any/terminal/out"
    query = Query("q", "SELECT 1", sink=Sink("parquet", path))
    for is_terminal in (True, False):
        lines = printed(summary_table(query, USAGE, 3, 2.0, is_answered=True), 80, is_terminal=is_terminal)
        text = " ".join(" ".join(lines).replace("│", " ").split())
        assert "late rows, not joined 840 (2.0% of rows in)" in text
        assert path in text


def test_where_nobody_watches_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_LINE_S", 0.0)
    monkeypatch.setattr(live, "_progress_line", lambda run, began: "q: micro-batch 3  rows in 42")
    answers = iter([False, False, True])
    run = cast(Any, SimpleNamespace(awaitTermination=lambda timeout: next(answers)))
    out = io.StringIO()
    live.follow(run, threading.Event(), Console(file=out), 0.0, quiet=False)
    lines = out.getvalue().splitlines()
    assert len(lines) == 2 and all(line.endswith("Z  q: micro-batch 3  rows in 42") for line in lines)
    answers, out = iter([False, True]), io.StringIO()
    live.follow(run, threading.Event(), Console(file=out), 0.0, quiet=True)
    assert out.getvalue() == ""


def test_the_live_view_has_the_plans_in_force_and_messages_by_kind() -> None:
    clock = iter([1.0, 20.0, 25.0, 30.0, 35.0, 40.0])
    bus = EventBus(clock=lambda: next(clock))
    bus.publish(PlanInForce("q", "central", "join", None, 1))
    bus.publish(PlanChangeProposed(("q",), "nyc is ten times as busy", 0))
    bus.publish(PlanInForce("q", "auto", "join", None, 2))
    for name in ("removed", "r"):
        bus.publish(PlanInForce(name, "auto", "join", None, 1))
    bus.publish(PlanChangeProposed(("r",), "not in force yet", 0))
    kinds = {("ams", "fra", "results"): 9, ("ams", "nyc", "results"): 3_000, ("fra", "ams", "migration"): 2}
    rows = tuple(LinkRow(*link, Traffic(100, batches, 5), 0.0) for link, batches in kinds.items())
    traffic = LinkTraffic((*rows, LinkRow("nyc", "ams", "keys", Traffic(0, 0, 0), 0.0)), 0, 0.0)
    run: Any = SimpleNamespace(name="q", plans={"q": None, "r": None}, events=bus, traffic=traffic, last_batch=None)
    out = io.StringIO()
    Console(file=out, width=120, force_terminal=True, color_system=None).print(live._progress(run, 0.0))
    text = " ".join(out.getvalue().replace("│", " ").split())
    assert " q 2 auto 00:00:25 nyc is ten times as busy r 1 auto 00:00:35 └" in text and "removed" not in text
    assert text.endswith("messages by kind: results 3,009, migration 2")
