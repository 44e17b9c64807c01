"""The exporter, scraped over HTTP on the loopback address."""

import re
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from scenes import PATIENCE_S

from watersmeet.errors import InputError
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import (
    LinkCounts,
    MicroBatchCompleted,
    PlanInForce,
    RunEnded,
    RunStarted,
    RunWarning,
    ShippingExpected,
)
from watersmeet.metrics.prometheus import Exporter, serve


@pytest.fixture
def bus() -> EventBus:
    return EventBus(clock=lambda: 5.0)


@pytest.fixture
def exporter(bus: EventBus) -> Iterator[Exporter]:
    made = serve(bus, 0)
    yield made
    made.stop()


def scrape(exporter: Exporter) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(exporter.url, timeout=PATIENCE_S) as response:
        assert response.status == 200
        return str(response.read().decode())


def samples(text: str) -> dict[str, float]:
    """The value of every sample, by its name with labels."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_all_figures_of_a_run(
    bus: EventBus,
    exporter: Exporter,
    micro_batch: Callable[..., MicroBatchCompleted],
    link: Callable[..., LinkCounts],
) -> None:
    for event in (
        RunStarted(("ams", "fra"), ("q",), "1.2"),
        PlanInForce("q", "auto", "join", 12.5, 3),
        micro_batch("ams", 0),
        micro_batch("ams", 1),
        micro_batch("fra", 0),
        link(size=10),
        link(size=30),
        RunWarning("ams", None, "slow"),
    ):
        bus.publish(event)
    found = samples(scrape(exporter))
    expected = {
        'watersmeet_build_info{version="1.2"}': 1,
        "watersmeet_run_active": 1,
        'watersmeet_warnings_total{query="",site="ams"}': 1,
        'watersmeet_plan_version{query="q"}': 3,
        'watersmeet_plan_expected_bytes_per_second{query="q"}': 12.5,
        'watersmeet_micro_batch_duration_seconds_count{site="ams"}': 2,
        'watersmeet_micro_batch_duration_seconds_sum{site="ams"}': 1.5,
        'watersmeet_micro_batch_duration_seconds_bucket{le="0.5",site="ams"}': 0,
        'watersmeet_micro_batch_duration_seconds_bucket{le="1.0",site="ams"}': 2,
        'watersmeet_last_micro_batch_timestamp_seconds{site="ams"}': 5,
        'watersmeet_micro_batch_phase_seconds_total{phase="ingest",site="ams"}': 1,
        'watersmeet_micro_batch_phase_seconds_total{phase="probe",site="ams"}': 0.5,
        'watersmeet_input_rows_total{site="ams",stream="a"}': 200,
        'watersmeet_input_rows_total{site="ams",stream="b"}': 100,
        'watersmeet_input_rows_total{site="fra",stream="a"}': 100,
        'watersmeet_late_rows_total{site="ams",stream="a"}': 4,
        'watersmeet_malformed_rows_total{site="ams",stream="b"}': 2,
        'watersmeet_null_key_rows_total{site="ams"}': 6,
        'watersmeet_failed_rows_total{query="q",site="ams"}': 8,
        'watersmeet_answers_total{query="q",site="ams"}': 14,
        'watersmeet_watermark_timestamp_seconds{site="ams",stream="a"}': 1.5,
        'watersmeet_state_rows{site="ams"}': 40,
        'watersmeet_state_bytes{site="ams"}': 4_000,
        'watersmeet_state_segments{site="ams"}': 5,
        'watersmeet_link_bytes_total{from="ams",purpose="keys",to="fra"}': 30,  # totals are not added up
        'watersmeet_link_batches_total{from="ams",purpose="keys",to="fra"}': 2,
        'watersmeet_link_tuples_total{from="ams",purpose="keys",to="fra"}': 3,
    }
    assert {name: found[name] for name in expected} == expected
    # What is not known is not there.
    assert not [name for name in found if "uncounted" in name or ('stream="b"' in name and "watermark" in name)]

    bus.publish(PlanInForce("q", "central", "join", None, 4))
    bus.publish(RunEnded("completed"))
    found = samples(scrape(exporter))
    assert found["watersmeet_run_active"] == 0
    assert found['watersmeet_plan_version{query="q"}'] == 4
    assert 'watersmeet_plan_expected_bytes_per_second{query="q"}' not in found
    bus.publish(ShippingExpected(10.0, (), {"q": 7.5}))
    assert samples(scrape(exporter))['watersmeet_plan_expected_bytes_per_second{query="q"}'] == 7.5, "of a later plan"


def test_names_follow_the_conventions(exporter: Exporter) -> None:
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", scrape(exporter), re.MULTILINE))
    own = {name: kind for name, kind in types.items() if not name.endswith("_created")}
    assert len(own) >= 19
    for name, kind in own.items():
        assert re.fullmatch(r"watersmeet_[a-z_]+", name)
        assert (kind == "counter") == name.endswith("_total"), name
    assert not [name for name in own if re.search(r"_(ms|us|milliseconds|kb|mb|megabytes)(_|$)", name)]


def test_an_exporter_that_starts_late_has_the_current_state(
    bus: EventBus, micro_batch: Callable[..., MicroBatchCompleted], link: Callable[..., LinkCounts]
) -> None:
    bus.publish(RunStarted(("ams",), ("q",), "1.2"))
    bus.publish(micro_batch())
    bus.publish(link())
    exporter = serve(bus, 0)
    try:
        found = samples(scrape(exporter))
    finally:
        exporter.stop()
    assert found["watersmeet_run_active"] == 1
    assert found['watersmeet_state_rows{site="ams"}'] == 40
    assert found['watersmeet_link_bytes_total{from="ams",purpose="keys",to="fra"}'] == 10


def test_labels_are_escaped(bus: EventBus, exporter: Exporter, link: Callable[..., LinkCounts]) -> None:
    bus.publish(link(site='a"b\\c\nd'))
    assert 'watersmeet_link_bytes_total{from="a\\"b\\\\c\\nd",' in scrape(exporter)


def test_two_exporters_do_not_mix(bus: EventBus, exporter: Exporter, link: Callable[..., LinkCounts]) -> None:
    other = serve(EventBus(), 0)
    try:
        bus.publish(link())
        assert other.port != exporter.port
        assert "from=" in scrape(exporter)
        assert "from=" not in scrape(other)
    finally:
        other.stop()


def test_it_listens_on_the_loopback_address_only_and_stops(bus: EventBus) -> None:
    exporter = serve(bus, 0)
    assert exporter.url == f"http://127.0.0.1:{exporter.port}/metrics"
    with socket.socket() as other, pytest.raises(OSError, match="refused"):
        other.connect(("127.0.0.2", exporter.port))  # bound to all addresses, it would answer here
    scrape(exporter)
    exporter.stop()
    with pytest.raises(urllib.error.URLError):
        scrape(exporter)
    bus.publish(RunEnded("completed"))


def test_a_port_that_is_taken(bus: EventBus, exporter: Exporter) -> None:
    with pytest.raises(InputError, match=rf"metrics port {exporter.port} cannot be opened: Address already in use; "):
        serve(bus, exporter.port)
