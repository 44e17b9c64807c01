"""Links on directories: what is on the disk, and whatever goes out of reach in between.

What holds for every transport is in test_protocol.py.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_ends import LINK, DirectoryPlace, acknowledged, ends, make_parcels, numbers, run_of
from link_ends import start as start_at

from watersmeet.errors import CheckpointMismatch
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.storage.wire import UNKNOWN, index_parcel
from watersmeet.spark.durable import UNFLUSHED, sealed
from watersmeet.spark.links.board import DirectoryBoard, open_board
from watersmeet.spark.links.directory import DirectoryLinks
from watersmeet.spark.links.ends import unpack_end
from watersmeet.spark.links.protocol import Fenced, LinkEnd, Links, LinkUnreadable, LinkUnwritable, Role, Sealed
from watersmeet.spark.links.seal import OPEN
from watersmeet.spark.links.transport import default_links, open_transport, remove_links
from watersmeet.topology.model import LinkTransport, Site, Source, Stream, Topology


@pytest.fixture
def parcels(tmp_path: Path) -> list[Sealed]:
    """Three parcels in the checkpoint of their sender."""
    return make_parcels(tmp_path)


def start(root: Path, site: str, ledger: SiteLedger | None = None, run: str = "") -> tuple[Links, SiteLedger]:
    """Start one end of the link on a checkpoint: the links, and the ledger that was committed by that."""
    return start_at(DirectoryPlace(root), site, ledger, run)


def ends_of(root: Path) -> tuple[Links, Links, Path]:
    """Both ends of a link, and its directory."""
    return *ends(DirectoryPlace(root)), root / "nyc" / "fra"


def names(way: Path) -> set[str]:
    return {path.name for path in way.iterdir()}


def test_parcels_arrive_once_and_in_order_and_go_when_they_are_acknowledged(
    tmp_path: Path, parcels: list[Sealed]
) -> None:
    fra, nyc, way = ends_of(tmp_path / "links")
    assert (run_of(nyc), nyc.has_arrived("fra", 0), numbers(nyc)) == ("run-of-fra", False, [])
    assert acknowledged(fra) == (0, UNKNOWN)
    fra.publish("nyc", parcels[:2])
    assert (nyc.has_arrived("fra", 0), nyc.has_arrived("fra", 1), nyc.has_arrived("fra", 2)) == (True, True, False)
    assert [data for _, data in nyc.arrived("fra", 0)] == [Path(one.path).read_bytes() for one in parcels[:2]]
    assert numbers(nyc, after=1) == [2]
    nyc.acknowledge("fra", 1, 4_711)
    assert acknowledged(fra) == (1, 4_711)
    fra.forget_acknowledged("nyc")
    assert (numbers(nyc), numbers(nyc, after=1)) == ([], [2]), "what comes after a gap has not arrived"
    fra.publish("nyc", parcels)  # also what the sender's ledger still names
    assert numbers(nyc, after=1) == [2, 3] and not nyc.has_arrived("fra", 0)
    nyc.acknowledge("fra", 3, 4_712)
    fra.forget_acknowledged("nyc")
    assert names(way) == {"sender-000000000001", "reader-000000000001"}


def test_a_parcel_that_is_there_stays_as_it_is_and_one_that_is_lost_is_put_there_again(
    tmp_path: Path, parcels: list[Sealed]
) -> None:
    fra, nyc, way = ends_of(tmp_path / "links")
    fra.publish("nyc", parcels)
    files = sorted(way.glob("*.parcel"))
    before = [path.stat().st_mtime_ns for path in files]
    files[1].unlink()
    assert numbers(nyc) == [1]
    fra.publish("nyc", parcels)
    assert numbers(nyc) == [1, 2, 3]
    assert [path.stat().st_mtime_ns for path in files][::2] == before[::2]


def test_a_sender_killed_between_writing_and_naming_a_parcel_leaves_nothing_to_be_taken(
    tmp_path: Path, parcels: list[Sealed], monkeypatch: pytest.MonkeyPatch
) -> None:
    fra, ledger = start(tmp_path / "links", "fra")
    nyc, way = start(tmp_path / "links", "nyc")[0], tmp_path / "links" / "nyc" / "fra"

    def killed(source: object, target: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            fra.publish("nyc", parcels)
    assert numbers(nyc) == [] and len(names(way)) == 3, "it is there under another name"
    again, _ = start(tmp_path / "links", "fra", ledger)
    again.publish("nyc", parcels)
    again.forget_acknowledged("nyc")
    assert numbers(nyc) == [1, 2, 3] and len(names(way)) == 5, "and is gone"


def test_where_files_cannot_be_linked_they_are_copied(
    tmp_path: Path, parcels: list[Sealed], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: object, target: object) -> None:
        raise OSError("another disk")

    monkeypatch.setattr(os, "link", refuse)
    fra, nyc, _ = ends_of(tmp_path / "links")
    fra.publish("nyc", parcels)
    assert numbers(nyc) == [1, 2, 3]


def test_a_link_belongs_to_one_run_of_its_sender(tmp_path: Path) -> None:
    _, nyc, way = ends_of(tmp_path / "links")
    told = r"^link fra -> nyc: it holds parcels of another run of fra \(checkpoint run-of-fra\); start with "
    with pytest.raises(CheckpointMismatch, match=told):
        start(tmp_path / "links", "fra", run="other-run")
    (way / "sender-000000000001").unlink()
    assert run_of(nyc) is None
    start(tmp_path / "links", "fra", run="other-run")
    assert run_of(nyc) == "other-run"


def test_a_directory_that_cannot_be_made_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "links").write_text("not a directory")
    with pytest.raises(LinkUnwritable, match=r"^link fra -> nyc cannot be made: Not a directory .*link_transport"):
        start(tmp_path / "links", "fra")


def test_a_url_of_this_machine_is_its_directory(tmp_path: Path) -> None:
    streams = (Stream("a", "ts", schema="ts timestamp", site="fra", source=Source("parquet", "data")),)
    transport = LinkTransport(path=f"file://{tmp_path}/my%20links")
    topology = Topology(streams, (), sites=(Site("fra"), Site("nyc")), link_transport=transport)
    assert default_links(topology) == tmp_path / "my links"
    assert isinstance(open_transport(topology, "fra", UNFLUSHED), DirectoryLinks)
    assert isinstance(open_board(topology, "asked"), DirectoryBoard)
    remove_links(topology)  # it is moved aside with the checkpoint


# Who may be at the ends -----------------------------------------------------------------------------------------------


def test_a_sender_that_is_overtaken_before_it_names_a_parcel_cannot_name_it(
    tmp_path: Path, parcels: list[Sealed], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, put = tmp_path / "links", os.replace
    start(root, "nyc")
    older, ledger = start(root, "fra")

    def late(source: Path, target: Path) -> None:
        if target.suffix == ".parcel":
            monkeypatch.setattr(os, "replace", put)
            start(root, "fra", ledger)
        put(source, target)

    monkeypatch.setattr(os, "replace", late)
    with pytest.raises(LinkUnwritable):
        older.publish("nyc", parcels[:1])
    assert not any(root.rglob("*.parcel"))
    with pytest.raises(Fenced):
        older.publish("nyc", parcels[:1])


def test_what_a_fenced_process_acknowledges_is_not_believed(tmp_path: Path, parcels: list[Sealed]) -> None:
    root = tmp_path / "links"
    fra, _ = start(root, "fra")
    fra.publish("nyc", parcels)
    _, ledger = start(root, "nyc")
    written = (root / "nyc/fra/reader-000000000001").read_bytes()
    newer, _ = start(root, "nyc", ledger)
    newer.acknowledge("fra", 1, 0)
    # It had looked before the newer one came, and writes now.
    (root / "nyc/fra/reader-000000000001").write_bytes(written.replace(b'"number": 0', b'"number": 3'))
    fra.forget_acknowledged("nyc")
    assert acknowledged(fra) == (1, 0) and numbers(newer, after=1) == [2, 3]


END = '{"run": "r", "programs": "same", "epoch": 1, "token": "t", "number": 1, "released": 0, "pace": 0}'
FLIPPED = sealed(END).replace('"number": 1', '"number": 3').encode()  # within its range, and so an acknowledgement
GARBAGE = [
    b"",
    b"7 1000",
    b"{}",
    b"[1, 2]",
    b"[" * 100_000,
    b"\xff\xfe",
    sealed('{"run": 1, "programs": "same", "epoch": 1, "token": "t", "number": 1, "released": 0, "pace": 0}').encode(),
    sealed(
        '{"run": "r", "programs": "same", "epoch": 2, "token": "t", "number": 1, "released": 0, "pace": 0}'
    ).encode(),
    sealed(
        '{"run": "r", "programs": "same", "epoch": 1, "token": "t", "number": -1, "released": 0, "pace": 0}'
    ).encode(),
    sealed(
        '{"run": "r", "programs": "same", "epoch": 1, "token": "t", "number": 1e9, "released": 0, "pace": 0}'
    ).encode(),
    sealed(
        '{"run": "r", "programs": "same", "epoch": 1, "token": "t", "number": true, "released": 0, "pace": 0}'
    ).encode(),
    sealed(
        '{"run": "r", "programs": "same", "epoch": 1, "token": "t", "number": 1, "released": 0, "pace": 1' + "0" * 5_000
    ).encode(),
    END.encode(),
    FLIPPED,
]


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("role", Role)
def test_garbage_in_place_of_an_end_is_named_and_mended_by_whose_it_is(
    tmp_path: Path, parcels: list[Sealed], role: Role, garbage: bytes
) -> None:
    fra, nyc, way = ends_of(tmp_path / "links")
    nyc.acknowledge("fra", 0, 7)
    (way / f"{role}-000000000001").write_bytes(garbage)
    other = nyc if role is Role.SENDER else fra
    told = rf"^link fra -> nyc cannot be read: {role}-000000000001 is damaged; remove it, and {LINK.site(role)} "
    with pytest.raises(LinkUnreadable, match=told):
        other.end(LINK, role)
    fra.forget_acknowledged("nyc")
    if role is Role.READER:
        nyc.acknowledge("fra", 0, 7)
        assert acknowledged(fra) == (0, 7)
    fra.publish("nyc", parcels)
    assert run_of(nyc) == "run-of-fra" and numbers(nyc) == [1, 2, 3]


@settings(max_examples=300)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_bytes_in_place_of_an_end_are_pythons_words(data: bytes) -> None:
    for found in (data, b"{" + data, sealed("{" + data.decode("utf-8", "replace")).encode()):
        with contextlib.suppress(ValueError):
            assert isinstance(unpack_end(found, LINK, Role.READER, 1, OPEN), LinkEnd)


# Damage ---------------------------------------------------------------------------------------------------------------


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def no_parcel(path: Path) -> None:
    path.write_bytes(b"something else" * 10)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    with open(path, "r+b") as file:  # in place: a hard link to it would see it too
        file.write(data)


@pytest.mark.parametrize("damage", [cut_off, no_parcel, flip])
def test_a_damaged_parcel_is_put_aside_and_published_anew(
    tmp_path: Path, parcels: list[Sealed], damage: Callable[[Path], None]
) -> None:
    fra, nyc, way = ends_of(tmp_path / "links")
    fra.publish("nyc", parcels)
    damaged, whole = way / f"{2:012d}.parcel", Path(parcels[1].path).read_bytes()
    for times in (1, 2):
        damage(damaged)
        assert Path(parcels[1].path).read_bytes() == whole, "the sender has a copy of its own"
        with pytest.raises(ValueError, match=r"not a parcel|checksum"):
            index_parcel(next(nyc.arrived("fra", 1))[1])
        assert nyc.reject("fra", 2) == times and numbers(nyc) == [1]
        fra.publish("nyc", parcels)
        assert numbers(nyc) == [1, 2, 3] and damaged.read_bytes() == whole
    assert {f"{2:012d}.damaged-1", f"{2:012d}.damaged-2"} < names(way)
    nyc.acknowledge("fra", 2, 0)
    fra.forget_acknowledged("nyc")
    assert not list(way.glob("*.damaged-*"))


def test_a_link_whose_directory_becomes_a_file_is_named_at_both_ends(tmp_path: Path, parcels: list[Sealed]) -> None:
    fra, nyc, way = ends_of(tmp_path / "links")
    fra.publish("nyc", parcels)
    nyc.acknowledge("fra", 1, 7)
    way.rename(tmp_path / "away")
    way.write_text("not a directory")
    told = rf"^link fra -> nyc cannot be read: Not a directory \({way}\); nothing is lost: it goes on when "
    with pytest.raises(LinkUnreadable, match=told + "the directory can be read again$"):
        run_of(nyc)
    with pytest.raises(LinkUnreadable, match=told):
        nyc.has_arrived("fra", 0)
    with pytest.raises(LinkUnreadable, match=told):
        numbers(nyc)
    with pytest.raises(LinkUnwritable, match=r"^link fra -> nyc cannot be written: Not a directory"):
        nyc.acknowledge("fra", 2, 0)
    with pytest.raises(LinkUnwritable, match=r"^link fra -> nyc cannot be written: Not a directory"):
        fra.publish("nyc", parcels)
    with pytest.raises(LinkUnreadable, match=told):
        acknowledged(fra)
    fra.forget_acknowledged("nyc")  # nothing is forgotten meanwhile
    way.unlink()
    (tmp_path / "away").rename(way)
    assert (run_of(nyc), numbers(nyc, after=1)) == ("run-of-fra", [2, 3])
    assert acknowledged(fra) == (1, 7)


def test_a_directory_that_changes_between_looking_and_opening(
    tmp_path: Path, parcels: list[Sealed], monkeypatch: pytest.MonkeyPatch
) -> None:
    fra, nyc, way = ends_of(tmp_path / "links")
    fra.publish("nyc", parcels)
    way.rename(tmp_path / "away")
    monkeypatch.setattr(DirectoryLinks, "has_arrived", lambda *_: True)
    assert numbers(nyc) == [], "what is gone has not arrived"
    way.write_text("not a directory")
    with pytest.raises(LinkUnreadable, match=r"^link fra -> nyc cannot be read: Not a directory"):
        numbers(nyc)
    way.unlink()
    (tmp_path / "away").rename(way)
    arrived = nyc.arrived("fra", 0)
    assert next(arrived)[0] == 1
    way.rename(tmp_path / "away")
    assert list(arrived) == [], "a transport may stop anywhere; the rest arrives another time"


def test_waiting_ends_after_the_timeout_at_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    _, nyc, _ = ends_of(tmp_path / "links")
    nyc.wake(0.25)
    assert sum(slept) <= 0.25
