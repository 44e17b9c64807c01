"""The protocol of links on directories: parcels in order and once, whatever goes out of reach in between."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from watersmeet.errors import CheckpointMismatch
from watersmeet.program.storage.wire import UNKNOWN, Message, Parcel, index_parcel
from watersmeet.spark.links.directory import DirectoryLinks
from watersmeet.spark.links.protocol import LinkDamaged, Links, LinkUnreadable, LinkUnwritable, Sealed


@pytest.fixture
def parcels(tmp_path: Path) -> list[Sealed]:
    """Three parcels in the checkpoint of their sender."""
    state = tmp_path / "state"
    state.mkdir()
    sealed = []
    for number in (1, 2, 3):
        path = state / f"parcel-{number}"
        path.write_bytes(Parcel(number, (Message(0, 1_000 * number),)).pack())
        sealed.append(Sealed(number, str(path)))
    return sealed


def ends_of(root: Path) -> tuple[Links, Links, Path]:
    """Both ends of a link, and its directory."""
    fra, nyc = DirectoryLinks(root, "fra"), DirectoryLinks(root, "nyc")
    fra.open((), ["nyc"], "run-of-fra")
    nyc.open(["fra"], (), "run-of-nyc")
    return fra, nyc, root / "nyc" / "fra"


def numbers(reader: Links, after: int = 0) -> list[int]:
    """What has arrived from fra, by the numbers that the transport and the parcels themselves give."""
    found = list(reader.arrived("fra", after))
    assert [number for number, _ in found] == [index_parcel(data).number for _, data in found]
    return [number for number, _ in found]


def names(way: Path) -> set[str]:
    return {path.name for path in way.iterdir()}


def test_parcels_arrive_once_and_in_order_and_go_when_they_are_acknowledged(
    tmp_path: Path, parcels: list[Sealed]
) -> None:
    fra, nyc, way = ends_of(tmp_path / "links")
    assert (nyc.sender_of("fra"), nyc.has_arrived("fra", 0), numbers(nyc)) == ("run-of-fra", False, [])
    assert (fra.acknowledged("nyc"), fra.pace("nyc")) == (0, UNKNOWN)
    fra.publish("nyc", parcels[:2])
    assert (nyc.has_arrived("fra", 0), nyc.has_arrived("fra", 1), nyc.has_arrived("fra", 2)) == (True, True, False)
    assert [data for _, data in nyc.arrived("fra", 0)] == [Path(one.path).read_bytes() for one in parcels[:2]]
    assert numbers(nyc, after=1) == [2]
    nyc.acknowledge("fra", 1, 4_711)
    assert (fra.acknowledged("nyc"), fra.pace("nyc")) == (1, 4_711)
    fra.forget_acknowledged("nyc")
    assert (numbers(nyc), numbers(nyc, after=1)) == ([], [2]), "what comes after a gap has not arrived"
    fra.publish("nyc", parcels)  # also what the sender's ledger still names
    assert numbers(nyc, after=1) == [2, 3] and not nyc.has_arrived("fra", 0)
    nyc.acknowledge("fra", 3, 4_712)
    fra.forget_acknowledged("nyc")
    assert names(way) == {"sender", "acknowledged"}


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


def test_what_a_reader_has_taken_does_not_depend_on_the_senders_files(tmp_path: Path, parcels: list[Sealed]) -> None:
    fra, nyc, _ = ends_of(tmp_path / "links")
    fra.publish("nyc", parcels)
    for one in parcels:
        Path(one.path).unlink()  # the sender's checkpoint has forgotten them
    assert numbers(nyc) == [1, 2, 3]


def test_a_sender_killed_between_writing_and_naming_a_parcel_leaves_nothing_to_be_taken(
    tmp_path: Path, parcels: list[Sealed], monkeypatch: pytest.MonkeyPatch
) -> None:
    fra, nyc, way = ends_of(tmp_path / "links")

    def killed(source: object, target: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            fra.publish("nyc", parcels)
    assert numbers(nyc) == [] and len(names(way)) == 2, "it is there under another name"
    again = DirectoryLinks(tmp_path / "links", "fra")
    again.open((), ["nyc"], "run-of-fra")
    again.publish("nyc", parcels)
    again.forget_acknowledged("nyc")
    assert numbers(nyc) == [1, 2, 3] and len(names(way)) == 4, "and is gone"


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
    with pytest.raises(CheckpointMismatch, match=rf"^link fra -> nyc: {way} holds parcels of another run; start with "):
        DirectoryLinks(tmp_path / "links", "fra").open((), ["nyc"], "other-run")
    (way / "sender").unlink()
    assert nyc.sender_of("fra") is None
    DirectoryLinks(tmp_path / "links", "fra").open((), ["nyc"], "other-run")
    assert nyc.sender_of("fra") == "other-run"


def test_a_directory_that_cannot_be_made_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "links").write_text("not a directory")
    with pytest.raises(LinkUnwritable, match=r"^link fra -> nyc cannot be made: Not a directory .*link_transport"):
        DirectoryLinks(tmp_path / "links", "fra").open((), ["nyc"], "run")


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def no_parcel(path: Path) -> None:
    path.write_bytes(b"something else" * 10)


@pytest.mark.parametrize("damage", [cut_off, no_parcel])
def test_a_damaged_parcel_is_named_after_those_before_it_are_given(
    tmp_path: Path, parcels: list[Sealed], damage: Callable[[Path], None]
) -> None:
    fra, nyc, way = ends_of(tmp_path / "links")
    fra.publish("nyc", parcels)
    damaged = way / f"{2:012d}.parcel"
    damaged.unlink()  # it may be one and the same file as the one in the checkpoint
    damaged.write_bytes(Path(parcels[1].path).read_bytes())
    damage(damaged)
    arrived = nyc.arrived("fra", 0)
    assert next(arrived)[0] == 1
    with pytest.raises(LinkDamaged, match=rf"^link fra -> nyc: {damaged} is damaged .*; remove the file, and"):
        next(arrived)
    damaged.unlink()
    fra.publish("nyc", parcels)
    assert numbers(nyc) == [1, 2, 3]


def test_a_link_whose_directory_becomes_a_file_is_named_at_both_ends(tmp_path: Path, parcels: list[Sealed]) -> None:
    fra, nyc, way = ends_of(tmp_path / "links")
    fra.publish("nyc", parcels)
    nyc.acknowledge("fra", 1, 7)
    way.rename(tmp_path / "away")
    way.write_text("not a directory")
    told = rf"^link fra -> nyc cannot be read: Not a directory \({way}\); nothing is lost: it goes on when "
    with pytest.raises(LinkUnreadable, match=told + "the directory can be read again$"):
        nyc.sender_of("fra")
    with pytest.raises(LinkUnreadable, match=told):
        nyc.has_arrived("fra", 0)
    with pytest.raises(LinkUnreadable, match=told):
        numbers(nyc)
    with pytest.raises(LinkUnwritable, match=r"^link fra -> nyc cannot be written: Not a directory"):
        nyc.acknowledge("fra", 2, 0)
    with pytest.raises(LinkUnwritable, match=r"^link fra -> nyc cannot be written: Not a directory"):
        fra.publish("nyc", parcels)
    assert (fra.acknowledged("nyc"), fra.pace("nyc")) == (0, UNKNOWN), "nothing is forgotten meanwhile"
    fra.forget_acknowledged("nyc")
    way.unlink()
    (tmp_path / "away").rename(way)
    assert (nyc.sender_of("fra"), numbers(nyc, after=1)) == ("run-of-fra", [2, 3])
    assert (fra.acknowledged("nyc"), fra.pace("nyc")) == (1, 7)


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
