"""What the page shows is what the events say, however they come."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from watersmeet.dashboard import view
from watersmeet.dashboard.model import MOST_NOTES, RunModel
from watersmeet.dashboard.redact import redacted, redacted_plan, redacted_sql
from watersmeet.dashboard.series import TIERS, Series, grid_over
from watersmeet.dashboard.store import DashboardStore
from watersmeet.dashboard.tail import Position, Tail
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import (
    AnswersDelivered,
    LinkCounts,
    MicroBatchCompleted,
    PlanDecision,
    PlanInForce,
    RunEnded,
    RunStarted,
    RunWarning,
    ShippingExpected,
    SiteProgramInForce,
    SiteStatus,
    TopologyInForce,
    from_json,
    to_json,
)
from watersmeet.metrics.jsonl import KEPT, KEPT_BEFORE, keep_events

Lines = list[dict[str, Any]]


def read(lines: Lines, model: RunModel | None = None, source: str = "run") -> RunModel:
    model = RunModel() if model is None else model
    for line in lines:
        model.read(source, *from_json(json.dumps(line)))
    return model


def batch(number: int, rows: int = 10, site: str = "ams", **more: Any) -> MicroBatchCompleted:
    fields: dict[str, Any] = {key: {} for key in ("late", "malformed", "failed", "answers", "watermarks", "phases")}
    fields |= more
    return MicroBatchCompleted(
        site, number, 0.5, rows_in={"s": rows}, null_keys=0, state_rows=1, state_bytes=2, segments=3, **fields
    )


def status(site: str, backlog: int = 0, *, to: str = "fra", held: bool = False) -> SiteStatus:
    return SiteStatus(site, {to: backlog}, {}, {to: 0.1}, held)


def test_totals_are_those_of_the_events(recorded: Lines) -> None:
    shown = view.snapshot(read(recorded), recorded[-1]["at"])
    rows: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    sent: dict[tuple[str, str, str], int] = {}
    for line in recorded:
        if line["event"] == "micro_batch_completed":
            rows.update(line["rows_in"])
            answers.update(line["answers"])
        elif line["event"] == "link_traffic":
            sent[line["site"], line["to"], line["purpose"]] = line["bytes"]
    assert shown["totals"]["rows"] == rows.total() > 20_000
    assert shown["totals"]["answers"] == answers.total() > 1_000
    assert shown["totals"]["bytes"] == sum(sent.values()) > 0
    (query,) = shown["queries"]
    assert (query["rows"], query["answers"]) == (rows.total(), answers.total())
    assert query["version"] > 1 and "join" in query["plan"] and query["sql"].startswith("SELECT")
    assert 0 < query["delay_median_s"] <= query["delay_p99_s"]
    assert sent == {
        (link["from"], link["to"], name): one["bytes"]
        for link in shown["links"]
        for name, one in link["purposes"].items()
    }
    for link in shown["links"]:
        assert link["bytes"] == sum(one["bytes"] for one in link["purposes"].values())
        assert 0.9 * link["bytes"] <= sum(flow["bytes"] for flow in link["flows"]) <= link["bytes"]
    assert any(flow["expected_s"] for link in shown["links"] for flow in link["flows"])


def test_what_is_expected_is_beside_what_was_shipped_since_the_plan_is_in_force() -> None:
    model = RunModel()
    program = SiteProgramInForce("ams", (), (("nyc", "a", "full tuples", "q"),))

    def ship(at: float, number: int, size: int) -> None:
        model.read("run", at, batch(number, watermarks={"s": number * 20_000_000}))
        model.read("run", at, LinkCounts("ams", "nyc", "full tuples", size, 1, 1, flows={"a": size}))

    model.read("run", 0.0, TopologyInForce(("ams", "nyc"), (("ams", "nyc", 0.0, 0.0),), {"a": "ams"}))
    model.read("run", 0.0, program)
    model.read("run", 0.0, ShippingExpected(10.0, (("ams", "nyc", "full tuples", "a", 50.0),)))
    ship(5.0, 1, 500)
    model.read("run", 20.0, ShippingExpected(10.0, (("ams", "nyc", "full tuples", "a", 20.0),)))
    ship(25.0, 2, 500 + 410)
    (flow,) = next(link for link in view.snapshot(model, 26.0)["links"] if link["to"] == "nyc")["flows"]
    assert (flow["bytes"], flow["since_plan"]) == (910, 410)
    assert (flow["measured_s"], flow["expected_s"]) == (410 / 20, 20.0)


def test_counts_of_central_and_their_price(recorded: Lines) -> None:
    priced = [
        {**line, "links": [[a, b, ms, 2.0] for a, b, ms, _ in line["links"]]}
        if line["event"] == "topology_in_force"
        else line
        for line in recorded
    ]
    totals = view.snapshot(read(priced), recorded[-1]["at"])["totals"]
    central = sum(sum(line.get("central_bytes", {}).values()) for line in recorded)
    assert totals["central"] == central > 0
    assert totals["central_price"] == pytest.approx(central * 2e-9)
    assert totals["price"] == pytest.approx(totals["bytes"] * 2e-9)


def test_plans_and_decisions_are_on_the_time_line(recorded: Lines) -> None:
    model = read(recorded)
    notes = view.timeline(model)
    versions = [note["version"] for note in notes if note["version"] is not None]
    in_force = [line["version"] for line in recorded if line["event"] == "plan_in_force"]
    assert versions == in_force and len(versions) >= 2
    decided = [line for line in recorded if line["event"] == "plan_decision" and line["accepted"]]
    taken = [note for note in notes if note["title"].endswith("another plan taken")]
    assert len(taken) == len(decided) and all(decided[n]["reason"] in taken[n]["detail"] for n in range(len(decided)))


def test_effect_of_a_plan() -> None:
    model = RunModel()
    model.read("run", 1000.0, RunStarted(("a", "b"), ("q",), "1"))
    sent = 0
    for second in range(60):
        if second == 30:
            model.read("run", 1030.0, PlanInForce("q", "auto", "other", None, 2))
        sent += 1_000 if second < 30 else 250
        model.read("run", 1000.5 + second, LinkCounts("a", "b", "keys", sent, 1, 1))
    (note,) = [note for note in model.notes if note.version == 2]
    effect = model.effect(note)
    assert effect is not None
    assert effect["before"] == pytest.approx(1_000, rel=0.05)
    assert effect["after"] == pytest.approx(250, rel=0.05)


def test_a_site_that_falls_silent_and_comes_back() -> None:
    model = RunModel()
    model.read("run", 100.0, RunStarted(("ams", "fra"), ("q",), "1"))
    for site in ("ams", "fra"):
        model.read("run", 101.0, status(site))
    assert model.site_state("fra", 105.0) == ("running", "")
    model.read("run", 112.0, status("ams"))
    assert model.site_state("fra", 113.0) == ("silent", "no sign of life for 12 s")
    assert model.site_state("ams", 113.0)[0] == "running"
    model.read("other", 114.0, RunStarted(("fra",), ("q",), "1"))
    assert model.site_state("fra", 114.5)[0] == "running"
    model.read("other", 115.0, RunEnded("failed", "no space in /var/lib/x"))
    assert model.site_state("fra", 116.0)[0] == "failed"
    assert view.snapshot(model, 116.0)["message"] == "no space in …/x"


def test_a_site_that_others_wait_for_is_slow() -> None:
    model = RunModel()
    model.read("run", 100.0, RunStarted(("ams", "fra"), ("q",), "1"))
    for second in range(0, 16, 2):
        model.read("run", 101.0 + second, status("ams", backlog=500))
        model.read("run", 101.0 + second, status("fra", to="ams"))
    assert model.site_state("fra", 116.0) == ("slow", "what ams sent waits for 14 s")
    model.read("run", 117.0, status("ams", backlog=0, held=True))
    assert model.site_state("fra", 118.0)[0] == "running"
    assert model.site_state("ams", 118.0)[0] == "slow"
    model.read("run", 119.0, status("ams"))
    assert [note.title for note in model.notes if note.lane == "pressure"] == [
        "ams: back-pressure, new rows wait",
        "ams: back-pressure over",
    ]


def test_traffic_before_the_first_event_is_not_counted() -> None:
    model = RunModel()
    model.read("run", 10.0, batch(50))
    model.read("run", 10.0, LinkCounts("ams", "fra", "keys", 1_000, 1, 1))
    model.read("run", 11.0, batch(51))
    model.read("run", 11.0, LinkCounts("ams", "fra", "keys", 1_200, 1, 1))
    model.read("run", 11.0, LinkCounts("ams", "fra", "migration", 70, 1, 1))
    assert model.total("link", "ams", "fra", "keys") == 200
    assert model.total("link", "ams", "fra", "migration") == 70
    model.read("run", 12.0, LinkCounts("ams", "fra", "keys", 30, 1, 1))  # begun anew
    assert model.total("link", "ams", "fra", "keys") == 230


def test_delays_are_weighed_by_rows() -> None:
    model = RunModel()
    for seconds, rows in ((0.05, 900), (0.2, 95), (9.0, 5)):
        model.read("run", 10.0, AnswersDelivered("ams", "q", rows, seconds))
    median, p99 = model.delays("q")
    assert median == pytest.approx(0.05, rel=0.07)
    assert p99 == pytest.approx(0.2, rel=0.07)
    found = model.history(0, 20, 20)["series"]["delay"]
    assert [one["labels"] for one in found] == [["q", "median"], ["q", "99 %"]]
    assert found[0]["values"][9] is None and found[0]["values"][10] == pytest.approx(0.05, rel=0.07)


def test_a_series_is_bounded_and_adds_up() -> None:
    series = Series("sum")
    for second in range(3 * 3_600):
        series.add(1e9 + second, 2)
    assert [len(buckets) for buckets in series.tiers] == [3_600, 721, 37]
    assert series.total == series.between(1e9 - 300, 1e9 + 3 * 3_600) == 6 * 3_600
    assert series.rate(1e9 + 3 * 3_600, 10) == 2
    for start, end in ((1e9, 1e9 + 10_800), (1e9 + 10_000, 1e9 + 10_600)):
        values = series.points(grid_over(start, end, 1e9 + 10_800, 100))
        assert values[2:-2] == pytest.approx([2.0] * (len(values) - 4))
    assert len(series.changed) <= sum(most for _, most in TIERS)


def test_the_time_line_is_bounded() -> None:
    model = RunModel()
    for number in range(MOST_NOTES + 10):
        model.read("run", float(number), RunWarning("ams", None, f"warning {number}"))
    assert len(model.notes) == MOST_NOTES and model.notes[-1].title == f"warning {MOST_NOTES + 9}"


def test_a_store_gives_everything_back(recorded: Lines, tmp_path: Path) -> None:
    half = len(recorded) // 2
    model = read(recorded[:half])
    store = DashboardStore(tmp_path / "history.sqlite")
    store.save(model, {"run": Position(7, 99)})
    read(recorded[half:], model)
    store.save(model, {"run": Position(7, 1234)})
    store.close()
    again = RunModel()
    assert DashboardStore(tmp_path / "history.sqlite").load(again) == {"run": Position(7, 1234)}
    now = recorded[-1]["at"]
    assert view.snapshot(again, now) == view.snapshot(model, now)
    assert view.timeline(again) == view.timeline(model)
    assert again.history(now - 60, now) == model.history(now - 60, now)
    read([{"at": now + 1, "event": "warning", "site": None, "query": None, "text": "more"}], again)
    assert view.timeline(again)[-1]["title"] == "more"


def test_a_tail_reads_on_over_a_new_file(tmp_path: Path) -> None:
    clock = iter(range(10_000)).__next__
    bus = EventBus(clock=lambda: float(clock()))
    end = keep_events(bus, tmp_path, max_bytes=20_000)
    tail, numbers = Tail(tmp_path / KEPT), []
    bus.publish(RunStarted(("ams",), ("q",), "1"))
    for number in range(200):
        bus.publish(batch(number))
        if number % 7 == 0:
            numbers += [event.batch for _, event in tail.read() if isinstance(event, MicroBatchCompleted)]
    bus.publish(RunEnded("stopped"))
    rest = [event for _, event in tail.read()]
    numbers += [event.batch for event in rest if isinstance(event, MicroBatchCompleted)]
    assert numbers == list(range(200)), "every one, once, in order"
    assert isinstance(rest[-1], RunEnded)
    bus.publish(batch(200))
    assert list(tail.read()) == []  # nothing is kept of what follows the end
    end()
    assert (tmp_path / KEPT_BEFORE).stat().st_size < 21_000
    first = (tmp_path / KEPT).read_text(encoding="utf-8").splitlines()[0]
    assert isinstance(from_json(first)[1], RunStarted), "a new file says what runs"


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path, line = tmp_path / "events.jsonl", to_json(RunEnded("stopped"), 5.0)
    path.write_text(line[:20], encoding="utf-8")
    tail = Tail(path)
    assert list(tail.read()) == []
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line[20:]}\nno event\n")
    assert list(tail.read()) == [(5.0, RunEnded("stopped"))]
    assert tail.damaged == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/me/secret-project/part-1.parquet cannot be read", "…/part-1.parquet cannot be read"),
        ("link a -> b: 3 / 4 of it", "link a -> b: 3 / 4 of it"),
        ("kafka.sasl.password=abc and api_key: xyz", "kafka.sasl.password=… and api_key: …"),
        ("jdbc://me:pw@host/db", "jdbc://…@host/db"),
        ("jdbc:postgresql://me:p@ss@host:5432/db", "jdbc:postgresql://…@host:5432/db"),
        ("file:///var/lib/x.parquet, file:/in/y.json", "…/x.parquet, …/y.json"),
        ("cannot read '/home/me/my dir/x.json'", "cannot read '…/x.json'"),
        ("~/.aws/credentials is missing", "…/credentials is missing"),
        ("s3://bucket/some/where/x.parquet: denied", "s3://bucket/…/x.parquet: denied"),
        ('{"password": "two words", "k": 1}', '{"password": …, "k": 1}'),
        ('Module required username="u" password="p;w";', 'Module required username="u" password=…;'),
        ("fs.s3a.secret.key=a/b+c fs.s3a.access.key=d", "fs.s3a.secret.key=… fs.s3a.access.key=…"),
        ("AKIAIOSFODNN7EXAMPLE may not write", "… may not write"),
        ("https://host/x?sv=1&sig=a%2Fb&X-Amz-Signature=c", "https://host/x?sv=1&sig=…&X-Amz-Signature=…"),
        ("header Bearer abcdef.123456 was refused", "header Bearer … was refused"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\nis none", "…\nis none"),
    ],
)
def test_texts_have_no_paths_and_secrets(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a.token = b.token AND a.tokens > b.tokens / 2", None),
        ("SELECT token, a.x / b.y AS share FROM a WHERE name = 'x'", None),
        ("password = 'it''s two'", "password = '…'"),
        ("a.user_password <> 'x' OR 'y' = b.secret", "a.user_password <> '…' OR '…' = b.secret"),
        ("api_key IN ('a', 'b') AND x IN ('c')", "api_key IN ('…') AND x IN ('c')"),
        ("token LIKE 'x%' AND pwd = 1234", "token LIKE '…' AND pwd = '…'"),
        ("OPTIONS (password 'x', 'fs.s3a.secret.key'='y')", "OPTIONS (password '…', 'fs.s3a.secret.key'='…')"),
        ("u = 'https://me:pw@h/x' -- password: abc\nAND k = 1", "u = 'https://…@h/x' -- password: …\nAND k = 1"),
        ("FROM parquet.`/data/in/x`", "FROM parquet.`…/x`"),
        ("path = '/home/me/x.json'", "path = '…/x.json'"),
    ],
)
def test_sql_keeps_its_conditions_but_no_secret(text: str, shown: str | None) -> None:
    assert redacted_sql(text) == (shown or text) == redacted_plan(text)


def test_a_decision_says_what_was_expected() -> None:
    model = RunModel()
    decision = PlanDecision("q", "planner", 2, True, "saves 40%", "stream s", 10, 100, 2_000, 1_200, 500)
    model.read("run", 1.0, decision)
    assert "2,000 → 1,200 bytes (-40 %), migration 500 bytes" in model.notes[-1].detail
