"""Sites that run elsewhere, seen through what carries their links: only while somebody looks, and nothing twice."""

from pathlib import Path

import pytest

from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import RunStarted, RunWarning
from watersmeet.metrics.jsonl import KEPT, WATCHED, keep_events
from watersmeet.spark.links.board import Board, DirectoryBoard, Elsewhere, Shown, StoreBoard
from watersmeet.spark.links.seal import OPEN, Keys, Seal, new_key
from watersmeet.spark.store.object_store import open_store
from watersmeet.topology.model import LinkTransport, Site, Source, Stream, Topology

SOURCE = Source("parquet", "data")


class Scene:
    """Two sites elsewhere, and dashboards that come and go, on a clock of its own."""

    def __init__(self, board: Board, directory: Path, seal: Seal = OPEN, key_file: str | None = None) -> None:
        self.board, self.directory, self.now = board, directory, 100.0
        transport = LinkTransport(key_file=key_file)
        streams = tuple(Stream(name, "ts", schema="ts timestamp", site=name, source=SOURCE) for name in ("ams", "nyc"))
        self.topology = Topology(streams, (), sites=(Site("ams"), Site("nyc")), link_transport=transport)
        self.buses, self.shown = {}, {}
        for site in ("ams", "nyc"):
            place = directory / "far" / site
            place.mkdir(parents=True)
            self.buses[site] = EventBus()
            keep_events(self.buses[site], place)
            self.shown[site] = Shown(board, seal, site, place)
            self.buses[site].publish(RunStarted((site,), ("q",), "1"))

    def dashboard(self, name: str = "here") -> Elsewhere:
        return Elsewhere(self.topology, self.board, self.directory / name, lambda site: False)

    def step(self, *dashboards: Elsewhere, seconds: float = 4.0) -> None:
        self.now += seconds
        steps = [one.step for one in dashboards]
        for step in (*steps, *(site.step for site in self.shown.values()), *steps):
            step(self.now)

    def check(self, name: str = "here") -> None:
        for site in self.buses:
            here, far = (self.directory / place / site / KEPT for place in (name, "far"))
            assert here.read_bytes().splitlines() == far.read_bytes().splitlines()


@pytest.fixture(params=["directory", "store"])
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Board:
    if request.param == "store":
        return StoreBoard(open_store(request.getfixturevalue("s3_url")))
    return DirectoryBoard(tmp_path / "links" / ".watch")


def warn(bus: EventBus, text: str) -> None:
    bus.publish(RunWarning(None, None, text))


def test_events_come_while_somebody_looks_and_each_once(board: Board, tmp_path: Path) -> None:
    scene = Scene(board, tmp_path)
    warn(scene.buses["nyc"], "before anybody looked")
    scene.step()
    assert board.names() == [], "a dashboard that is not open costs nothing"
    first = scene.dashboard()
    scene.step(first)
    scene.step(first)
    scene.check()
    warn(scene.buses["nyc"], "while somebody looks")
    scene.step(first)
    scene.check()
    second, beside = scene.dashboard("there"), scene.dashboard()  # the last leaves it to the first
    for _ in range(3):
        warn(scene.buses["ams"], "while two look")
        scene.step(first, second, beside)
    scene.check()
    scene.check("there")
    first.wants_answers = lambda: True
    scene.step(first)
    assert (tmp_path / "far" / "nyc" / WATCHED).exists()
    for one in (first, second, beside):
        one.close()
    for _ in range(20):
        scene.step()
    assert board.names() == [], "nobody looks any more"
    warn(scene.buses["ams"], "meanwhile")
    third = scene.dashboard()
    for _ in range(3):
        scene.step(third)
    scene.check()


def test_a_site_that_is_started_again_is_followed(tmp_path: Path) -> None:
    board = DirectoryBoard(tmp_path / "links" / ".watch")
    scene, seconds = Scene(board, tmp_path), 4.0
    dashboard = scene.dashboard()
    scene.step(dashboard)
    scene.step(dashboard)
    warn(scene.buses["nyc"], "the last before it is killed")
    scene.shown["nyc"] = Shown(board, OPEN, "nyc", tmp_path / "far" / "nyc")
    scene.step(dashboard, seconds=seconds)
    scene.check()


def test_what_travels_is_sealed_where_links_are(tmp_path: Path) -> None:
    key = tmp_path / "keys"
    key.write_text(new_key("one") + "\n", encoding="utf-8")
    board = DirectoryBoard(tmp_path / "links" / ".watch")
    scene = Scene(board, tmp_path, Keys(str(key), None), str(key))
    dashboard = scene.dashboard()
    scene.step(dashboard)
    scene.step(dashboard)
    scene.check()
    pieces = [board.get(name) or b"" for name in board.names() if name.startswith("events-")]
    assert len(pieces) == 2 and all(piece.startswith(b"WMS1") for piece in pieces)
    board.put("events-nyc-999999999999", b"of somebody without the key")
    scene.step(dashboard)
    scene.check()
