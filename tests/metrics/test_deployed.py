"""The table of metrics, the Grafana dashboard and the alerts name what the exporter has."""

import json
import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from watersmeet.metrics.bus import EventBus
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
