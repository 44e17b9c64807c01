"""A Spark that hangs: its run is not alive, as far as whoever may start it again can see."""

import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from scenes import PATIENCE_S, Scene, make_batches, wait_for

import watersmeet as wm
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.health import Health, serve_health

SQL = "SELECT a.id AS a_id, b.id AS b_id FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"


def is_alive(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/livez", timeout=PATIENCE_S) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


@pytest.mark.soak
def test_a_site_whose_java_stands_still_is_not_alive_until_it_goes_on(spark: Any, tmp_path: Path) -> None:
    scene = Scene(tmp_path, {name: make_batches(seed) for seed, name in enumerate("ab")}, {"q": SQL}).write()
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    bus = EventBus()
    server = serve_health(bus, 0, Health(silence_s=6.0))
    handle = wm.start(scene.topology, spark=spark, checkpoint=scene.checkpoint, warn=None, events=bus)
    try:
        wait_for(scene.is_at_rest, "no answers")
        assert is_alive(server.url), "it has nothing to do, and is alive"
        os.kill(java, signal.SIGSTOP)
        try:
            wait_for(lambda: not is_alive(server.url), "that Java stands still is not noticed")
        finally:
            os.kill(java, signal.SIGCONT)
        wait_for(lambda: is_alive(server.url), "that it goes on is not noticed")
    finally:
        handle.stop()
        server.stop()
    scene.check()
