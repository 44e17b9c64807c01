"""Whether a run is alive and ready, asked over HTTP on the loopback address."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from scenes import PATIENCE_S

from watersmeet.errors import InputError
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import MicroBatchCompleted, RunEnded, RunStarted, SiteStatus
from watersmeet.metrics.health import Health, HealthServer, serve_health


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bus() -> EventBus:
    return EventBus(clock=lambda: 5.0)


@pytest.fixture
def server(bus: EventBus, clock: Clock) -> Iterator[HealthServer]:
    made = serve_health(bus, 0, Health(60.0, clock))
    yield made
    made.stop()


def ask(server: HealthServer, path: str) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{server.url}{path}", timeout=PATIENCE_S) as response:
            assert json.load(response)["ok"] is True
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.read()
        return error.code


def status(site: str) -> SiteStatus:
    return SiteStatus(site, {}, {}, {}, False)


def test_a_run_is_ready_when_all_its_sites_have_begun_and_alive_as_long_as_they_are_heard_of(
    bus: EventBus, server: HealthServer, clock: Clock, micro_batch: Callable[..., MicroBatchCompleted]
) -> None:
    def health() -> tuple[int, int]:
        return ask(server, "/livez"), ask(server, "/readyz")

    assert health() == (200, 503)  # Spark starts
    bus.publish(RunStarted(("ams", "fra"), ("q",), "1.2"))
    bus.publish(status("ams"))
    assert health() == (200, 503)
    bus.publish(status("fra"))
    assert health() == (200, 200)
    clock.now += 50
    bus.publish(micro_batch("ams", 0))
    clock.now += 20
    assert health() == (503, 200)  # nothing of fra for 70 s
    bus.publish(status("fra"))
    assert health() == (200, 200)
    bus.publish(RunEnded("stopped", ""))
    assert health() == (200, 503)


def test_a_run_that_has_failed_or_never_begins_is_not_alive(bus: EventBus, server: HealthServer, clock: Clock) -> None:
    bus.publish(RunStarted(("ams",), ("q",), "1.2"))
    clock.now += 61
    assert ask(server, "/livez") == 503
    bus.publish(status("ams"))
    assert ask(server, "/livez") == 200
    bus.publish(RunEnded("failed", "a disk is full"))
    assert (ask(server, "/livez"), ask(server, "/readyz")) == (503, 503)


def test_other_paths_and_ports_that_are_taken(bus: EventBus, server: HealthServer) -> None:
    assert ask(server, "/") == 404
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"health port {port} cannot be opened: .*; give another one"):
            serve_health(bus, port)
