"""A real run in a real browser: two sites here, one that runs elsewhere, is killed and comes back."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from event_lines import of_kind, totals
from processes import CommandProcess
from scenes import by_arrow, wait_for, write_batch

import watersmeet as wm
from watersmeet.cli.watching import watched
from watersmeet.dashboard.server import Server
from watersmeet.metrics.jsonl import KEPT
from watersmeet.query.bags import bag_of
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query

SECOND = 1_000_000
TOPOLOGY = """\
sites: [ams, fra, nyc]
default_link: {latency: 1 ms, bandwidth: 50 kbps, price_per_gb: 0.05}
adapt: {mode: planner, min_interval: 1 hour}  # plans can be changed; one other may follow at once
durability: process
streams:
  a: &router
    site: ams
    schema: "ts timestamp, k long"
    event_time: ts
    source: {format: parquet, path: a}
    stats: {rate: 20, columns: {k: {distinct: 100}}}
  b: {<<: *router, site: fra, source: {format: parquet, path: b}}
  c: {<<: *router, site: nyc, source: {format: parquet, path: c}}
queries:
  q:
    site: ams
    planner: central
    sql: SELECT a.k FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND], c [RANGE 1 SECOND] WHERE a.k = b.k AND b.k = c.k
    assume_defaults: true
    sink: {format: parquet, path: out}
"""
SITE = "document.querySelector('#map .site[data-id={}]')?.classList.contains('{}')"


class Streams:
    """Two seconds of all streams at a time, a file each."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.chance = directory, np.random.default_rng(3)
        self.rows: dict[str, list[pa.Table]] = {name: [] for name in "abc"}

    def come(self) -> None:
        number = len(self.rows["a"])
        for name, rows in self.rows.items():
            ts = number * 2 * SECOND + np.arange(40) * SECOND // 20
            times = pa.array(ts).cast(pa.timestamp("us", "UTC"))
            rows.append(pa.table({"ts": times, "k": self.chance.integers(0, 100, 40)}))
            write_batch(rows[-1], self.directory / name / f"{number:05d}.parquet", number)

    def expected(self, sql: str, columns: Any) -> Any:
        tables = {name: pa.concat_tables(some) for name, some in self.rows.items()}
        return bag_of(answer(parse_query(sql, columns), tables, dict.fromkeys("abc", "ts")))


def test_a_live_run(spark: Any, tmp_path: Path, serve_watcher: Callable[..., Server], open_page: Any) -> None:
    path, far = tmp_path / "topology.yaml", tmp_path / "far"
    path.write_text(TOPOLOGY, encoding="utf-8")
    topology, streams = wm.load_topology(path), Streams(tmp_path)
    (sql,) = (query.sql for query in topology.queries)
    streams.come()
    command = ["site", "nyc", str(path), "--checkpoint", str(far), "--trigger", "500 milliseconds", "--quiet"]
    command += ["--master", "local[1]", "--conf", "spark.driver.memory=512m"]
    handles: dict[str, wm.StreamingRun] = {}
    here: dict[str, Any] = {"spark": spark, "trigger": "500 milliseconds", "warn": None}
    try:
        with (
            CommandProcess(command, tmp_path / "nyc.log") as elsewhere,
            watched(argparse.Namespace(paths=[str(path)], parameters=[])) as watcher,
        ):
            for site in ("ams", "fra"):
                handles[site] = wm.start_site(topology, site, **here)
            page = open_page(serve_watcher(watcher).url, "answers")

            def all_fine() -> None:
                assert not [error for handle in handles.values() if (error := handle.exception())]

            def until(condition: str, what: str, *, come: bool = True) -> None:
                """Let rows come until the page shows something."""
                since = len(streams.rows["a"])

                def is_so() -> bool:
                    if come and by_arrow(tmp_path / "out").total() and len(streams.rows["a"]) < since + 40:
                        streams.come()
                    page.wait_for_timeout(300)
                    return bool(page.evaluate(condition))

                wait_for(is_so, what, all_fine)

            streams.come()
            until("document.querySelectorAll('#answers tbody tr').length > 0", "the page shows answers")
            shown = page.locator("#answers tbody tr td:nth-child(2)").all_inner_texts()
            assert {(int(k),) for k in shown} <= set(streams.expected(sql, topology.columns))
            handles["ams"].change_plan("q", planner="tree", reason="it is tried")
            page.get_by_role("tab", name="Time line").click()
            until("document.querySelector('#notes').innerText.includes('q: plan version 2 in force')", "a migration")
            page.get_by_role("tab", name="Map").click()
            until(SITE.format("nyc", "running"), "a site elsewhere is there", come=False)
            elsewhere.kill()
            until(SITE.format("nyc", "silent"), "a killed site turns red", come=False)
            assert "site nyc: no sign of life" in page.inner_text("#message")
            handles["nyc"] = wm.start_site(topology, "nyc", checkpoint=far, **here)
            until(SITE.format("nyc", "running"), "and back")
            streams.come()
            expected = streams.expected(sql, topology.columns)
            wait_for(lambda: by_arrow(tmp_path / "out") == expected, "answers are right")
            plan = handles["ams"].plan.draw()._repr_html_()
            assert plan.startswith("<svg") and "nyc" in plan
            for handle in handles.values():
                handle.stop()
            until("document.querySelector('#state').innerText === 'ended'", "the end", come=False)
            places = [tmp_path / ".watersmeet/checkpoints/ams", tmp_path / ".watersmeet/checkpoints/fra", far / "nyc"]
            lines = [json.loads(line) for place in places for line in (place / KEPT).read_text().splitlines()]
            before = check_panels(page, lines, len(streams.rows["a"]) * 120, expected.total())
            page.reload()
            page.wait_for_selector("body[data-ready=true]")
            assert check_panels(page, lines, len(streams.rows["a"]) * 120, expected.total()) == before
    finally:
        for handle in handles.values():
            if handle.isActive:
                handle.stop()


def check_panels(page: Any, lines: list[dict[str, Any]], rows: int, answers: int) -> list[str]:
    """Compare all panels with events that change no more; returns the time line."""
    counted = totals(lines)
    assert counted[:2] == (rows, answers)

    def settled(selector: str, wanted: str) -> str:
        page.wait_for_selector(selector)
        wait_for(lambda: wanted in page.inner_text(selector) or page.wait_for_timeout(100), f"{wanted} in {selector}")
        return str(page.inner_text(selector))

    page.get_by_role("tab", name="Map").click()
    settled('[data-figure="rows in"]', f"{rows:,}")
    settled('[data-figure="answers"]', f"{answers:,}")
    batches = of_kind(lines, "micro_batch_completed")
    for site in ("ams", "fra", "nyc"):
        last = max((line for line in batches if line["site"] == site), key=lambda line: float(line["at"]))
        page.locator(f'#map .site[data-id="{site}"]').press("Enter")
        details = settled("aside", f"Site {site}")
        assert f"{last['state_rows']:,}" in details and f"{last['batch']:,}" in details
        page.locator(f'#map .site[data-id="{site}"]').press("Enter")
    sent = {(line["site"], line["to"], line["purpose"]): line for line in of_kind(lines, "link_traffic")}
    most = max(sent.values(), key=lambda line: int(line["bytes"]))
    page.locator("aside").get_by_role("button", name=f"{most['site']} → {most['to']}").click()
    details = settled("aside", f"Link {most['site']} → {most['to']}")
    for (origin, to, purpose), line in sent.items():
        if (origin, to) == (most["site"], most["to"]):
            assert purpose in details and f"{line['tuples']:,}" in details
            assert all(flow in details for flow in line["flows"] if flow != purpose)
    page.get_by_role("button", name="Back to all links").click()
    page.get_by_role("tab", name="Queries").click()
    shown = settled('tr[data-query="q"]', f"{rows:,}")
    delivered = of_kind(lines, "answers_delivered")
    assert f"{answers:,}" in shown and sum(line["rows"] for line in delivered) == answers
    flows = page.locator("#query-details table[aria-label=Flows] tbody tr").all_inner_texts()
    programs = {line["site"]: line for line in of_kind(lines, "site_program_in_force")}
    shipped = {flow for line in programs.values() for _, flow, _, _ in line["shipments"]} - {"b", "c"}
    estimated = {flow.split("\t")[2] for flow in flows if flow.rstrip().endswith("%")}
    assert shipped and estimated & shipped, f"estimates of the plan in force, no more of the first: {flows}"
    plans = sorted(of_kind(lines, "plan_in_force"), key=lambda line: (line["version"], line["at"]))
    assert page.locator("pre.plan").inner_text().strip() == plans[-1]["plan_text"].strip()
    page.get_by_role("tab", name="Time line").click()
    page.wait_for_selector('#panel-timeline [data-chart="bytes"] canvas')
    titles = [str(text) for text in page.locator("#notes .title").all_inner_texts()]
    assert "q: plan version 2 in force" in titles and titles.count("started nyc") == 2, "a migration and a restart"
    return titles
