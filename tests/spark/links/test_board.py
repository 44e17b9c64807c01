"""Sites that run elsewhere, seen through what carries their links: only while somebody looks, and nothing twice."""

import contextlib
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from kafka_broker import Broker
from scenes import PATIENCE_S, wait_for

from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import RunStarted, RunWarning
from watersmeet.metrics.jsonl import KEPT, WATCHED, keep_events
from watersmeet.spark.links.board import Board, DirectoryBoard, Elsewhere, Shown, StoreBoard
from watersmeet.spark.links.kafka_board import BoardLog, KafkaBoard, Reads, records_of
from watersmeet.spark.links.kafka_log import PART_BYTES
from watersmeet.spark.links.kafka_topics import offsets_of
from watersmeet.spark.links.protocol import LinkUnreadable, LinkUnwritable
from watersmeet.spark.links.seal import OPEN, Seal, SharedKeys, new_key
from watersmeet.spark.store.object_store import open_store
from watersmeet.topology.model import LinkTransport, Site, Source, Stream, Topology

SOURCE = Source("parquet", "data")


class Scene:
    """Two sites elsewhere, and dashboards that come and go, on a clock of its own."""

    def __init__(
        self,
        board: Board,
        directory: Path,
        seal: Seal = OPEN,
        key_file: str | None = None,
        of_sites: Board | None = None,  # where it is another object
        passing: tuple[type[Exception], ...] = (),  # errors after which a process tries again, as those of runs do
    ) -> None:
        self.passing = passing
        self.board, self.directory, self.now = board, directory, 100.0
        self.of_sites = board if of_sites is None else of_sites
        transport = LinkTransport(key_file=key_file)
        streams = tuple(Stream(name, "ts", schema="ts timestamp", site=name, source=SOURCE) for name in ("ams", "nyc"))
        self.topology = Topology(streams, (), sites=(Site("ams"), Site("nyc")), link_transport=transport)
        self.buses, self.shown = {}, {}
        for site in ("ams", "nyc"):
            place = directory / "far" / site
            place.mkdir(parents=True)
            self.buses[site] = EventBus()
            keep_events(self.buses[site], place)
            self.shown[site] = Shown(self.of_sites, seal, site, place)
            self.buses[site].publish(RunStarted((site,), ("q",), "1"))

    def dashboard(self, name: str = "here") -> Elsewhere:
        return Elsewhere(self.topology, self.board, self.directory / name, lambda site: False)

    def step(self, *dashboards: Elsewhere, seconds: float = 4.0) -> None:
        self.now += seconds
        steps = [one.step for one in dashboards]
        for step in (*steps, *(site.step for site in self.shown.values()), *steps):
            with contextlib.suppress(*self.passing):
                step(self.now)

    def has_all(self, *dashboards: Elsewhere, name: str = "here", seconds: float = 4.0) -> bool:
        """Go on, and see whether a dashboard has as many events as there are."""
        self.step(*dashboards, seconds=seconds)
        here, far = ([self.directory / place / site / KEPT for site in self.buses] for place in (name, "far"))
        return all(map(Path.exists, here)) and list(map(_lines, here)) == list(map(_lines, far))

    def check(self, name: str = "here") -> None:
        for site in self.buses:
            here, far = (self.directory / place / site / KEPT for place in (name, "far"))
            assert here.read_bytes().splitlines() == far.read_bytes().splitlines()


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


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


def test_sites_with_links_over_kafka(kafka_broker: Broker, tmp_path: Path) -> None:
    options = ({"bootstrap.servers": kafka_broker.servers}, f"watched-{uuid.uuid4().hex[:8]}")

    def board_of(reads: Reads) -> KafkaBoard:
        return KafkaBoard(*options, reads, wait_s=PATIENCE_S)

    sites, ours, theirs = board_of("asked"), board_of("events"), board_of("events")
    scene = Scene(ours, tmp_path, of_sites=sites, passing=(LinkUnreadable, LinkUnwritable))  # a broker may be slow
    noise = np.random.default_rng(5).bytes(2_500_000).hex()
    warn(scene.buses["nyc"], f"before anybody looked {noise}")  # more than a broker takes at once
    scene.step()
    assert sites.names() == [], "a dashboard that is not open costs nothing"
    dashboard = scene.dashboard()
    wait_for(lambda: scene.has_all(dashboard), "all events have come")
    warn(scene.buses["ams"], "while somebody looks")
    wait_for(lambda: scene.has_all(dashboard, seconds=0.1), "those too, each once")
    late = scene.dashboard("there")
    late._board = theirs
    wait_for(lambda: scene.has_all(dashboard, late, name="there"), "a second dashboard has them")
    scene.check()
    for board in (sites, ours, theirs):
        board.close()


def test_a_topic_that_was_just_made_is_waited_for() -> None:
    causes = [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART]

    def ask() -> list[TopicPartition]:
        if causes:
            raise KafkaException(KafkaError(causes.pop(0)))
        return [TopicPartition("watched.watch", 1, 7)]

    assert [one.offset for one in offsets_of(ask, 10.0)] == [7]
    causes.append(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException):
        offsets_of(ask, 10.0)


class FaultyBoard(DirectoryBoard):
    """A board that fails every third time, whether it then has what was put or not."""

    def __init__(self, root: Path, *, is_put: bool) -> None:
        super().__init__(root)
        self._is_put, self._times = is_put, 0

    def put(self, name: str, data: bytes) -> None:
        self._times += 1
        fails = self._times % 3 == 0
        if self._is_put or not fails:
            super().put(name, data)
        if fails:
            raise LinkUnwritable("the brokers do not answer")


class LosingBoard(DirectoryBoard):
    """A board that loses some of what is put there, without a word."""

    def __init__(self, root: Path, lost: set[int]) -> None:
        super().__init__(root)
        self._lost, self._times = lost, 0

    def put(self, name: str, data: bytes) -> None:
        self._times += 1
        if self._times not in self._lost:
            super().put(name, data)


@pytest.mark.parametrize("lost", [{1, 2}, {3}, {5, 6, 9}])
def test_a_dashboard_that_did_not_get_something_asks_for_all(tmp_path: Path, lost: set[int]) -> None:
    """The first two are all that both sites have kept, those after them what has come since."""
    links = tmp_path / "links" / ".watch"
    scene = Scene(DirectoryBoard(links), tmp_path, of_sites=LosingBoard(links, lost))
    dashboard = scene.dashboard()
    for number in range(16):
        for site, bus in scene.buses.items():
            warn(bus, f"event {number} of {site}")
        scene.step(dashboard)
    scene.check()


class LateBoard(DirectoryBoard):
    """A board at which a site sees only later that somebody else asks too."""

    seen = 1

    def names(self) -> list[str]:
        asked = [name for name in super().names() if name.startswith("asked-")]
        return [name for name in super().names() if name not in asked[self.seen :]]


def test_a_dashboard_that_is_opened_between_two_pieces_gets_what_was_before(tmp_path: Path) -> None:
    links = tmp_path / "links" / ".watch"
    sites = LateBoard(links)
    scene = Scene(DirectoryBoard(links), tmp_path, of_sites=sites)
    first, second = scene.dashboard(), scene.dashboard("there")
    first._name, second._name = "asked-1", "asked-2"
    for number in range(8):
        for site, bus in scene.buses.items():
            warn(bus, f"event {number} of {site}")
        if number == 4:
            sites.seen = 2
        scene.step(first, *((second,) if number > 1 else ()))
    scene.check()
    scene.check("there")


@pytest.mark.parametrize("is_put", [True, False])
def test_what_could_not_be_put_comes_again(tmp_path: Path, is_put: bool) -> None:
    links = tmp_path / "links" / ".watch"
    sites = FaultyBoard(links, is_put=is_put)
    scene = Scene(DirectoryBoard(links), tmp_path, of_sites=sites, passing=(LinkUnwritable,))
    first, second = scene.dashboard(), scene.dashboard("there")
    for number in range(16):
        for site, bus in scene.buses.items():
            warn(bus, f"event {number} of {site}")
        scene.step(first, *((second,) if number > 5 else ()))
    scene.check()
    scene.check("there")


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
    scene = Scene(board, tmp_path, SharedKeys(str(key), None), str(key))
    dashboard = scene.dashboard()
    scene.step(dashboard)
    scene.step(dashboard)
    scene.check()
    pieces = [board.get(name) or b"" for name in board.names() if name.startswith("events-")]
    assert len(pieces) == 2 and all(piece.startswith(b"WMS1") for piece in pieces)
    board.put("events-nyc-999999999999", b"of somebody without the key")
    scene.step(dashboard)
    scene.check()


@pytest.mark.parametrize("name", ["999999999999", "of the future", "9" * 200, "٣" * 12, "", "x", "-1"])
@pytest.mark.parametrize("has_key", [True, False])
def test_files_of_others_keep_nobody_from_being_seen(tmp_path: Path, name: str, has_key: bool) -> None:
    if name == "of the future":
        name = f"{int(time.time() * 10) + 10**8:012d}"
    key = tmp_path / "keys"
    key.write_text(new_key("one") + "\n", encoding="utf-8")
    board = DirectoryBoard(tmp_path / "links" / ".watch")
    scene = Scene(board, tmp_path, SharedKeys(str(key), None), str(key)) if has_key else Scene(board, tmp_path)
    board.put(f"events-nyc-{name}", b"what is this")
    (tmp_path / "links" / ".watch" / "asked-nothing").mkdir()
    dashboard = scene.dashboard()
    for number in range(3):
        warn(scene.buses["nyc"], f"warning {number}")
        scene.step(dashboard)
        if number == 1:
            board.put(f"events-nyc-{name}", b"and again")
    scene.check()


def test_parts_of_several_writers_may_come_in_any_order() -> None:
    log, data = BoardLog(), {name: name.encode() * 200_000 for name in ("events-ams-1", "events-nyc-1")}
    for records in zip(*(records_of(name, value) for name, value in data.items()), strict=True):
        for key, value in records:
            for _ in range(2):  # also twice
                log.add(key, value, 7.0)
    assert log.files(7.0) == data


def test_records_make_files_again_for_a_minute() -> None:
    log, data = BoardLog(), bytes(range(256)) * 8_000
    whole = records_of("events-nyc-1", data)
    assert [len(value) for _, value in whole] == [PART_BYTES, PART_BYTES, len(data) - 2 * PART_BYTES]
    for key, value in [whole[1], *whole[:2], (b"garbage", b""), (b"x 2 1", b""), (b"x 1 9999", b""), whole[2]]:
        log.add(key, value, 7.0)
    for key, value in records_of("asked-1", b"1"):
        log.add(key, value, 50.0)
    assert log.files(60.0) == {"events-nyc-1": data, "asked-1": b"1"}
    assert log.files(80.0) == {"asked-1": b"1"}
    log.drop("asked-1")
    assert log.files(80.0) == {}
