"""The page in a real browser: every panel shows what the events say, at every width, for everyone."""

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from event_lines import of_kind, totals
from scenes import PATIENCE_S

from watersmeet.dashboard.server import Server
from watersmeet.sim.scenario.trace import Trace

Lines = list[dict[str, Any]]
Serve = Callable[..., Server]
OpenPage = Callable[..., Any]

AXE = Path(__file__).parent / "axe.min.js"
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
SIGN_OF_LIFE = {"event": "site_status", "is_held_back": False, "backlog_bytes": {}, "undelivered": {}, "latency_s": {}}
IS_ZOOMED = "(c) => !c.plot || Math.abs(c.plot.scales.x.min - watersmeet.range.shown.from) < 0.01"
IS_DRAWING = bool(os.environ.get("WATERSMEET_SCREENSHOTS"))  # then the pictures of README and guide are made anew


def append(path: Path, lines: Lines) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def picture(page: Any, name: str) -> None:
    if IS_DRAWING:
        wait(page, "watersmeet.panel.charts.every((chart) => chart.node.hidden || chart.plot)")
        page.wait_for_timeout(500)
        page.screenshot(path=IMAGES / f"dashboard-{name}.png")


@pytest.fixture
def events(recorded: Lines, tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    append(path, recorded)
    return path


def seconds_text(seconds: float) -> str:
    """A time as the page writes it."""
    value, unit = (seconds * 1e3, "ms") if seconds < 0.9995 else (seconds, "s")
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"


def write_trace(path: Path, count: int, seconds: int = 30) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A trace of peers, of which few have much to do; the loads at its end."""
    chance = np.random.default_rng(1)
    load, ranks = np.zeros(count, np.int64), chance.permutation(count)
    with path.open("w", encoding="utf-8") as file:
        trace = Trace(file)
        places = np.sort(chance.integers(0, 2**63, count).astype(np.uint64) * np.uint64(2))
        trace.start({"network": {"seed": 1, "nodes": count, "overlay": "chord"}}, places, 1_000_000, 0)
        for second in range(1, seconds + 1):
            load[ranks[np.minimum(chance.zipf(1.3, count // 5), count) - 1]] += 1
            spread = {"total": int(load.sum()), "highest": int(load.max()), "mean": float(load.mean()), "nodes": 0}
            spread["nodes"] = int((load > 0).sum())
            figures = {"tuples": second, "answers": 7 * second, "load": spread}
            figures["messages"] = {"tuples": 50 * second, "upkeep": 20 * second}
            came = [second - 3] if second > 3 else []  # each peer that goes is away for three seconds
            figures |= {"up": count - min(second, 3), "went": [second], "came": came}
            trace.look(second * 1_000_000, figures, load)
    return load


def wait(page: Any, condition: str) -> None:
    """Wait until an expression is true; the page's own policy forbids Playwright to evaluate it there repeatedly."""
    deadline = time.monotonic() + PATIENCE_S
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(30)


def figure(page: Any, name: str) -> str:
    return str(page.inner_text(f'[data-figure="{name}"] dd'))


def test_the_map(events: Path, recorded: Lines, serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(events).url, "map")
    rows, answers, size = totals(recorded)
    assert figure(page, "rows in") == f"{rows:,}" and figure(page, "answers") == f"{answers:,}"
    assert figure(page, "shipped") == f"{size / 1e3:.0f} kB"
    assert sorted(page.locator("#map .site .name").all_text_contents()) == ["ams", "fra", "nyc", "office"]
    last = max(of_kind(recorded, "micro_batch_completed"), key=lambda line: (line["site"] == "nyc", line["at"]))
    page.locator('#map .site[data-id="nyc"]').press("Enter")
    details = page.locator("aside")
    details.get_by_role("heading", name="Site nyc").wait_for()
    read = sum(line["rows_in"].get("nyc", 0) for line in of_kind(recorded, "micro_batch_completed"))
    assert f"{last['state_rows']:,}" in details.inner_text() and f"{read:,}" in details.inner_text()
    program = [line for line in of_kind(recorded, "site_program_in_force") if line["site"] == "nyc"][-1]
    assert details.locator("pre").inner_text().splitlines() == program["operators"]
    watermark = datetime.fromtimestamp(last["watermarks"]["nyc"] / 1e6, UTC)
    assert f"{watermark:%Y-%m-%d %H:%M:%S}" in details.get_by_role("table", name="Streams").inner_text()
    page.locator('#map .site[data-id="nyc"]').press("Enter")
    sent = {(line["site"], line["to"], line["purpose"]): line for line in of_kind(recorded, "link_traffic")}
    most = max(sent.values(), key=lambda line: line["bytes"])
    details.get_by_role("button", name=f"{most['site']} → {most['to']}").click()
    text = details.inner_text()
    for (origin, to, purpose), line in sent.items():
        if (origin, to) == (most["site"], most["to"]):
            assert purpose in text and f"{line['tuples']:,}" in text
    details.get_by_role("button", name="Back to all links").click()
    statuses = {line["site"]: line for line in of_kind(recorded, "site_status")}
    latency = seconds_text(statuses[most["site"]]["latency_s"][most["to"]])
    row = details.get_by_role("row").filter(has=page.get_by_role("button", name=f"{most['site']} → {most['to']}"))
    assert row.locator("td").nth(4).inner_text() == latency
    tag = page.locator(f'#map .link[role=button][data-id="{most["site"]} → {most["to"]}"] .tag')
    assert latency in tag.text_content()
    picture(page, "map")


def test_queries(events: Path, recorded: Lines, serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(events).url, "queries")
    rows, answers, _ = totals(recorded)
    line = page.locator('tr[data-query="everywhere"]').inner_text()
    assert f"{rows:,}" in line and f"{answers:,}" in line
    batches = of_kind(recorded, "micro_batch_completed")
    for kind in ("late", "malformed"):
        count = sum(sum(one[kind].values()) for one in batches)
        cell = page.locator(f'tr[data-query="everywhere"] td[data-name="{kind}"]')
        assert cell.inner_text() == f"{count:,}" and count > 0
    sinks = of_kind(recorded, "answers_delivered")
    delivered = np.repeat([one["seconds"] for one in sinks], [one["rows"] for one in sinks])
    for name, share in (("delay, median", 50), ("99 %", 99)):
        number, unit = page.inner_text(f'tr[data-query="everywhere"] td[data-name="{name}"]').split()
        shown_s = float(number) / (1e3 if unit == "ms" else 1)
        assert shown_s == pytest.approx(np.percentile(delivered, share, method="inverted_cdf"), rel=0.07), name
    plans = of_kind(recorded, "plan_in_force")
    assert page.locator("pre.plan").inner_text().strip() == plans[-1]["plan_text"].strip()
    assert "[RANGE 10 SECONDS]" in page.locator("pre.sql").inner_text()
    flows = page.locator("#query-details table[aria-label=Flows] tbody tr").all_inner_texts()
    assert any("results" in flow and "office" in flow for flow in flows)
    expected = of_kind(recorded, "shipping_expected")[-1]["flows"]
    rates = {size for _, _, purpose, _, size in expected if purpose not in ("watermarks", "agreement")}
    assert all(any(f"{size:.0f} B/s" in flow for flow in flows) for size in rates), "bytes a second, as expected"
    last = {line["site"]: line for line in of_kind(recorded, "micro_batch_completed")}
    states = ", ".join(
        f"{site} {last[site]['state_bytes'] / 1e3:.{0 if last[site]['state_bytes'] > 1e5 else 1}f} kB"
        for site in ("ams", "fra", "nyc")
    )
    facts = page.locator("#query-details .facts").inner_text()
    assert states in facts
    central = sum(sum(one["central_bytes"].values()) for one in batches)
    assert f"{central / 1e3:.0f} kB, price 0.0000" in facts, "what central would ship, in bytes and money"
    page.wait_for_selector('#panel-queries [data-chart="delay"] canvas')
    picture(page, "queries")


def test_the_time_line_and_zooming(events: Path, recorded: Lines, serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(events).url, "timeline")
    page.wait_for_selector('#panel-timeline [data-chart="bytes"] canvas')
    titles = page.locator("#notes .title").all_inner_texts()
    for version in {line["version"] for line in of_kind(recorded, "plan_in_force")}:
        assert f"everywhere: plan version {version} in force" in titles, "a migration appears"
    picture(page, "timeline")
    accepted = [line for line in of_kind(recorded, "plan_decision") if line["accepted"]]
    assert titles.count("everywhere: another plan taken") == len(accepted) > 0
    box = page.locator("#brush").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 20, steps=4)
    page.mouse.up()
    shown = page.evaluate("watersmeet.range.shown")
    first, last = recorded[0]["at"], recorded[-1]["at"]
    assert shown["from"] == pytest.approx(first + 0.5 * (last - first), abs=0.02 * (last - first) + 1.5)
    wait(page, f"watersmeet.panel.charts.every({IS_ZOOMED})")
    assert page.locator("#notes .title").count() < len(titles)
    page.keyboard.press("Escape")
    wait(page, "document.querySelectorAll('#notes .title').length === " + str(len(titles)))
    versions = len(of_kind(recorded, "plan_in_force"))
    wait(page, f"watersmeet.panel.charts.every((c) => !c.plot || c.marked === {versions} + 2)")  # and start and end
    page.get_by_label("plan", exact=True).uncheck()
    assert page.locator('#notes [data-lane="plan"]').count() == 0
    wait(page, "watersmeet.panel.charts.every((c) => !c.plot || c.marked === 2)")


def test_answers_and_their_filter(events: Path, recorded: Lines, serve: Serve, open_page: OpenPage) -> None:
    at = recorded[-1]["at"]
    rows = [[n, f"<b>{n}</b>" if n % 2 else None] for n in range(10)]
    append(events, [{"at": at, "event": "answer_sample", "query": "everywhere", "columns": ["dst", "x"], "rows": rows}])
    page = open_page(serve(events).url, "answers")
    page.wait_for_selector("#answers tbody tr")
    found = page.locator("#answers tbody tr").all_inner_texts()
    assert len(found) == 10 and "<b>9</b>" in found[0], "the latest first, and text is text"
    more = {"at": at, "event": "answer_sample", "query": "everywhere", "columns": ["dst", "x"], "rows": [[10, "new"]]}
    append(events, [more])
    wait(page, "document.querySelectorAll('#answers tbody tr').length === 11")
    assert "new" in page.locator("#answers tbody tr").first.inner_text(), "what comes later is added"
    page.get_by_label("filter").fill("<b>7")
    wait(page, "document.querySelectorAll('#answers tbody tr').length === 1")
    assert "7" in page.locator("#answers tbody tr").inner_text()


def test_a_killed_site_turns_red_and_back(
    events: Path, recorded: Lines, serve: Serve, open_page: OpenPage, tmp_path: Path
) -> None:
    """By a clock of its own, which goes on with the events: they are of tomorrow."""
    shift = time.time() + 86_400 - recorded[-1]["at"]
    live = tmp_path / "live.jsonl"
    append(live, [line | {"at": line["at"] + shift} for line in recorded if line["event"] != "run_ended"])
    url, clock = serve(live).url, recorded[-1]["at"] + shift
    sites = {"ams", "fra", "nyc", "office"}

    def until(page: Any, condition: str, alive: set[str], **waiting: int) -> None:
        """Until the page shows it; what ams has sent may wait for others."""
        nonlocal clock
        of_ams = {"backlog_bytes": waiting, "latency_s": dict.fromkeys(waiting, 0.25)}
        deadline = time.monotonic() + PATIENCE_S
        while not page.evaluate(condition):
            assert time.monotonic() < deadline, condition
            signs = {site: SIGN_OF_LIFE | (of_ams if site == "ams" else {}) for site in sorted(alive)}
            clock += 1.0
            append(live, [{"at": clock, "site": site, **sign} for site, sign in signs.items()])
            page.wait_for_timeout(200)

    page = open_page(url, "map")
    state = "document.querySelector('#map .site[data-id=nyc]').getAttribute('class').split(' ')[1] === '{}'"
    until(page, state.format("running"), sites)
    until(page, state.format("silent"), sites - {"nyc"}, nyc=5_000)
    assert "site nyc: no sign of life" in page.inner_text("#message")
    assert page.inner_text("#state") == "silent"
    stroke = page.evaluate("getComputedStyle(document.querySelector('#map .site.silent rect')).stroke")
    assert stroke == "rgb(179, 38, 30)"
    tag = "document.querySelector('#map .link[role=button][data-id=\"ams → {}\"] .tag')?.textContent.endsWith('{}')"
    until(page, tag.format("nyc", "250 ms, 5.00 kB wait"), sites - {"nyc"}, nyc=5_000)
    picture(page, "silent")
    again = {"event": "run_started", "sites": ["nyc"], "queries": ["everywhere"], "version": "1"}
    append(live, [{"at": clock, **again}])
    until(page, state.format("running"), sites)
    assert page.locator("#message").is_hidden()
    since = {"at": clock - 20, "site": "ams", **SIGN_OF_LIFE}  # as if it had waited for so long
    append(live, [since | {"backlog_bytes": {"nyc": 700}}])
    until(page, state.format("slow"), sites, nyc=700)
    stroke = page.evaluate("getComputedStyle(document.querySelector('#map .site.slow rect')).stroke")
    assert stroke == "rgb(143, 90, 0)", "slow is yellow"
    assert page.locator("#map .link.stuck[role=button]").get_attribute("data-id") == "ams → nyc"


def test_a_reload_and_a_restart_keep_history(
    recorded: Lines, serve: Serve, open_page: OpenPage, tmp_path: Path
) -> None:
    log = tmp_path / "events.jsonl"
    append(log, recorded)
    (tmp_path / "ams").mkdir()
    (tmp_path / "ams" / "ledger.json").write_text("{}", encoding="utf-8")
    server = serve(tmp_path)
    page = open_page(server.url, "timeline")
    before = shown(page)
    page.reload()
    page.wait_for_selector("body[data-ready=true]")
    assert shown(page) == before
    page.close()
    server.stop()
    assert server.ended.wait(PATIENCE_S)
    log.unlink()  # as if it had been replaced by newer ones often enough
    log.write_text("", encoding="utf-8")
    page = open_page(serve(tmp_path).url, "timeline")
    assert shown(page) == before
    page.wait_for_selector('#panel-timeline [data-chart="rows"] canvas')


def shown(page: Any) -> tuple[str, list[str]]:
    """Totals and notes, once the page has the end of the run and changes no more."""
    page.wait_for_selector("#state:has-text('ended')")
    found = None
    while found != (now := (page.inner_text("#totals"), page.locator("#notes .title").all_inner_texts())):
        found = now
        page.wait_for_timeout(300)
    return now


@pytest.mark.few(2)
@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (1280, "light"), (390, "dark"), (390, "light")])
def test_for_everyone(
    width: int, scheme: str, events: Path, recorded: Lines, serve: Serve, open_page: OpenPage, tmp_path: Path
) -> None:
    """No serious violation that axe finds, nothing wider than the window, and all of it by keyboard; with data."""
    rows = [[n, "some text" if n % 2 else None] for n in range(10)]
    sample = {"at": recorded[-1]["at"], "event": "answer_sample", "query": "everywhere", "columns": ["dst", "x"]}
    append(events, [sample | {"rows": rows}])
    write_trace(tmp_path / "peers.jsonl", 200, 5)
    page = open_page(serve(events, tmp_path / "peers.jsonl").url, "map", width=width, scheme=scheme)
    axe = AXE.read_text(encoding="utf-8")

    def check(what: str) -> None:
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, what
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations)")
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert not serious, f"{what}: {json.dumps(serious, indent=1)[:3000]}"

    shown = {
        "map": "#map .link[role=button]",
        "queries": "#query-details .plan",
        "timeline": "#notes .title",
        "answers": "#answers tbody tr",
        "peers": "#peer-facts dl",
    }
    for panel, data in shown.items():
        assert page.locator(f"#tab-{panel}").get_attribute("aria-selected") == "true"
        page.wait_for_selector(data)
        wait(page, "watersmeet.panel.charts.every((chart) => chart.node.hidden || chart.plot)")
        check(panel)
        if panel == "map":
            if (width, scheme) in ((1280, "dark"), (390, "light")):
                picture(page, f"{width}-{scheme}")
            for chosen in ('#map .site[data-id="nyc"]', "#map .link[role=button]"):
                page.locator(chosen).first.press("Enter")
                page.wait_for_selector("aside .facts")
                check(chosen)
        page.locator(f"#tab-{panel}").press("ArrowRight")


# Draws each look of a trace, one a frame, for two seconds.
FRAMES = """new Promise((done) => {
    const panel = watersmeet.panel, took = [], began = performance.now();
    const frame = (clock) => {
        const before = performance.now();
        panel.seek(took.length % panel.trace.looks.length);
        took.push(performance.now() - before);
        if (performance.now() - began < 2000) requestAnimationFrame(frame);
        else done({ perSecond: took.length / (performance.now() - began) * 1000, took });
    };
    requestAnimationFrame(frame);
})"""


def test_peers(serve: Serve, open_page: OpenPage, tmp_path: Path) -> None:
    """Ten thousand peers of a trace, played."""
    path = tmp_path / "peers.jsonl"
    load = write_trace(path, 10_000)
    page = open_page(serve(path).url, "")
    page.wait_for_selector("#peer-facts dl")
    assert page.inner_text("#state") == "trace" and page.locator("#totals").is_hidden(), "no run without figures"
    assert f"{load.max():,}" in page.inner_text("#peer-facts") and "210" in page.inner_text("#peer-facts")
    assert page.evaluate("Array.from(watersmeet.panel.loads)") == load.tolist(), "looks add up to the last loads"
    facts = page.inner_text("#peer-facts")
    assert "9,997 up" in facts and f"{70 * 30:,}" in facts, "who has gone, and all messages"
    assert page.evaluate("watersmeet.panel.up.reduce((a, b) => a + b)") == 9_997
    (messages,) = page.locator("#panel-peers figure").filter(has_text="Messages by kind").all_inner_texts()
    assert "tuples" in messages and "upkeep" in messages
    page.get_by_label("Speed").select_option("4")
    assert page.evaluate("watersmeet.panel.speed") == 4
    page.get_by_label("Speed").select_option("1")
    page.get_by_role("button", name="Play").click()
    wait(page, "watersmeet.panel.place > 5")
    page.get_by_role("button", name="Pause").click()
    at = page.evaluate("watersmeet.panel.place")
    assert 5 < at < 30
    picture(page, "peers")


@pytest.mark.soak
def test_peers_are_drawn_fluently(serve: Serve, open_page: OpenPage, tmp_path: Path) -> None:
    """On a machine that has nothing else to do: ten thousand of them."""
    path = tmp_path / "peers.jsonl"
    write_trace(path, 10_000)
    page = open_page(serve(path).url, "")
    page.wait_for_selector("#peer-facts dl")
    frames = page.evaluate(FRAMES)
    figures = f"{frames['perSecond']:.1f} frames a second, drawn in {np.median(frames['took']):.1f} ms (median)"
    print(figures)
    assert frames["perSecond"] > 4, f"not fluent, even for a machine without a GPU: {figures}"
