"""The table of metrics, the Grafana dashboard and the alerts name what the exporter has, and use it as what it is."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import (
    AnswersDelivered,
    ChangeRefused,
    LinkCounts,
    MicroBatchCompleted,
    ParcelsRefused,
    PlanDecision,
    PlanInForce,
    RunStarted,
    RunWarning,
    SiteStatus,
)
from watersmeet.metrics.prometheus import _Links, _Metrics

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"watersmeet_\w+")


def exported() -> dict[str, str]:
    """The metrics by name, as Prometheus stores them, with their types."""
    registry = CollectorRegistry()
    _Metrics(registry)
    registry.register(_Links(EventBus()))
    suffixes = {"counter": "_total", "info": "_info"}
    return {one.name + suffixes.get(one.type, ""): one.type for one in registry.collect()}


def test_the_table_has_every_metric_with_its_type() -> None:
    text = (ROOT / "docs" / "guide" / "operations.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `watersmeet_")]
    assert {name: row[2].strip() for row in rows for name in NAME.findall(row[1])} == exported()


def test_the_dashboard_and_the_alerts_ask_for_metrics_that_there_are() -> None:
    known = exported()
    buckets = {f"{name}_bucket" for name, kind in known.items() if kind == "histogram"}
    board = (ROOT / "deploy" / "grafana" / "watersmeet.json").read_text(encoding="utf-8")
    asked = [target["expr"] for panel in json.loads(board)["panels"] for target in panel["targets"]]
    rules = (ROOT / "deploy" / "grafana" / "alerts.yaml").read_text(encoding="utf-8")
    asked += re.findall(r"expr: (.*)", rules)
    names = {name for expression in asked for name in NAME.findall(expression)}
    assert len(names) > 12 and names <= known.keys() | buckets


@dataclass(frozen=True)
class Metric:
    """A metric as a scrape names it; its labels are without `le`."""

    kind: str
    help: str
    labels: frozenset[str]


@pytest.fixture
def metrics(micro_batch: Callable[..., MicroBatchCompleted], link: Callable[..., LinkCounts]) -> dict[str, Metric]:
    """Everything that is exported, of a run in which all of it has happened."""
    registry, bus = CollectorRegistry(), EventBus()
    bus.subscribe(_Metrics(registry).read)
    registry.register(_Links(bus))
    for event in (
        RunStarted(("ams", "fra"), ("q",), "1.2"),
        PlanInForce("q", "auto", "join", 12.5, 3),
        PlanDecision("q", "planner", 4, True, "saves", "rate of a", 1.0, 2.0, 3.0, 2.0, 1.0),
        micro_batch(),
        link(),
        AnswersDelivered("ams", "q", 7, 0.2),
        SiteStatus("ams", {"fra": 10}, {"q": 1}, {"fra": 0.1}, False),
        ChangeRefused(("q",), "no"),
        ParcelsRefused("ams", "fra", 1),
        RunWarning("ams", None, "slow"),
    ):
        bus.publish(event)
    text = generate_latest(registry).decode()
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    found = {}
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        if not name.endswith("_created"):
            (labels, *_) = re.findall(rf"^{name}(?:_bucket)?(?:{{(.*)}})? \S+$", text, re.MULTILINE)
            found[name] = Metric(kind, helps[name], frozenset(re.findall(r'(\w+)="', labels)) - {"le"})
    assert {one.removesuffix("_info") for one in found} == {one.removesuffix("_info") for one in exported()}
    return found


def test_names_have_base_units_and_say_what_is_counted(metrics: dict[str, Metric]) -> None:
    """https://prometheus.io/docs/practices/naming/: base units as suffixes in the plural, _total for what adds up."""
    for name, metric in metrics.items():
        assert re.fullmatch(r"watersmeet(_[a-z]+)+", name), name
        bare = name.removesuffix("_total").removesuffix("_per_second")
        assert (metric.kind == "counter") == name.endswith("_total"), name
        assert (name.endswith("_info")) == (name == "watersmeet_build_info"), name
        assert not re.search(
            r"_(ms|us|ns|millis|milli\w+|micros|microseconds|minutes|hours|kb|mb|[kmg]i?bytes|percent)_?", name
        )
        for unit in ("seconds", "bytes"):
            assert unit not in bare or bare.endswith(f"_{unit}"), f"{name}: its unit is no suffix"
        assert not re.search(r"_(second|byte)$", bare), name
        assert metric.kind != "histogram" or name.endswith(("_seconds", "_bytes")), name
        assert "timestamp" not in name or (metric.kind, name.endswith("_timestamp_seconds")) == ("gauge", True), name
        assert metric.help.endswith(".") and metric.help[0].isupper() | metric.help[0].isdigit(), name
        assert all(re.fullmatch(r"[a-z][a-z_]*", label) for label in metric.labels), name
        assert not any(label in name.split("_") for label in metric.labels - {"phase", "query", "site"}), name


def test_the_table_has_the_labels_of_every_metric(metrics: dict[str, Metric]) -> None:
    text = (ROOT / "docs" / "guide" / "operations.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `watersmeet_")]
    told = {name: frozenset(re.findall(r"`(\w+)`", row[3])) for row in rows for name in NAME.findall(row[1])}
    assert told == {name: metric.labels for name, metric in metrics.items()}


FUNCTIONS = {"rate": "counter", "increase": "counter", "changes": "gauge", "deriv": "gauge"}  # of what they are taken
WORDS = {"sum", "by", "and", "on", "time", "histogram_quantile", *FUNCTIONS}
OF_PROMETHEUS = {"job", "instance", "le"}
UNITS = {"cps", "Bps", "s", "bytes", "none"}
TOKEN = re.compile(r"\[\d+[smhd]\]|[a-zA-Z_]\w*|\d[\d.]*(?:e\d+)?|==|>|\*|-|[(),]|\s+")


def check_expression(expression: str, metrics: dict[str, Metric]) -> set[str]:
    """What is wrong would be an error or nothing at all in Prometheus; returns the labels that the result may have."""
    tokens = [token for token in TOKEN.findall(expression) if not token.isspace()]
    assert "".join(tokens) == re.sub(r"\s", "", expression), f"not understood: {expression}"
    depth = 0
    for token in tokens:
        depth += (token == "(") - (token == ")")
        assert depth >= 0, expression
    assert depth == 0, expression
    by_name = metrics | {f"{name}_bucket": one for name, one in metrics.items() if one.kind == "histogram"}
    names = [token for token in tokens if token in by_name]
    labels = {label for name in names for label in by_name[name].labels} | OF_PROMETHEUS
    words = [token for token in tokens if re.match(r"[a-zA-Z_]", token)]
    assert not [word for word in words if word not in by_name and word not in WORDS | labels], expression
    for function, name, what in re.findall(r"(\w+)\((watersmeet_\w+)(\[\d+[smhd]\])?", expression):
        if function in FUNCTIONS:
            kind = "counter" if name.endswith("_bucket") else by_name[name].kind
            assert what and kind == FUNCTIONS[function], f"{function} of a {kind}: {expression}"
    grouped = re.findall(r"by \(([^)]*)\)", expression)
    return {one.strip() for group in grouped for one in group.split(",")} if grouped else labels


def test_panels_ask_what_prometheus_understands(metrics: dict[str, Metric]) -> None:
    board = json.loads((ROOT / "deploy" / "grafana" / "watersmeet.json").read_text(encoding="utf-8"))
    panels: list[dict[str, Any]] = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 10
    for panel in panels:
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS and panel["targets"], panel["title"]
        for target in panel["targets"]:
            labels = check_expression(target["expr"], metrics)
            assert set(re.findall(r"{{\s*(\w+)\s*}}", target.get("legendFormat", ""))) <= labels, panel["title"]


def test_alerts_can_be_loaded_and_name_labels_that_there_are(metrics: dict[str, Metric]) -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "grafana" / "alerts.yaml").read_text(encoding="utf-8"))
    alerts = {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"]}
    wanted = {"WatermarkStandsStill", "BacklogGrows", "LateRows", "MigrationFailed"}
    assert {f"Watersmeet{name}" for name in wanted} <= alerts.keys()
    for rule in alerts.values():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smhd]", rule.get("for", "0s")), rule
        labels = check_expression(rule["expr"], metrics)
        assert set(re.findall(r"{{\s*\$labels\.(\w+)\s*}}", rule["annotations"]["summary"])) <= labels, rule


@pytest.mark.parametrize(
    "wrong",
    [
        "rate(watersmeet_state_bytes[5m])",
        "rate(watersmeet_late_rows_total)",
        "sum by (stream) (rate(watersmeet_answers_total[5m]))",
        "deriv(watersmeet_link_backlog_bytes[15m]",
        "watersmeet_state_byte > 3",
        "avg_over_tme(watersmeet_state_bytes[5m])",
    ],
)
def test_a_wrong_expression_is_found(wrong: str, metrics: dict[str, Metric]) -> None:
    with pytest.raises(AssertionError):
        check_expression(wrong, metrics)
