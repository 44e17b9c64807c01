"""The protocol of links on directories: parcels in order and once, whatever goes out of reach in between."""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.errors import CheckpointMismatch, DamagedParcel
from watersmeet.program.site.ledger import LinkState, Outgoing, SiteLedger
from watersmeet.program.storage.wire import UNKNOWN, Message, Parcel, index_parcel
from watersmeet.spark.links import directory
from watersmeet.spark.links.directory import DirectoryLinks
from watersmeet.spark.links.protocol import (
    Fenced,
    Link,
    LinkEnd,
    Links,
    LinkUnreadable,
    LinkUnwritable,
    Role,
    Sealed,
    check_reader,
    check_sender,
    open_links,
    with_reader,
)

LINK = Link("fra", "nyc")


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


def start(root: Path, site: str, ledger: SiteLedger | None = None, run: str = "") -> tuple[Links, SiteLedger]:
    """Start one end of the link on a checkpoint: the links, and the ledger that was committed by that."""
    links, before = DirectoryLinks(root, site), ledger or SiteLedger()
    committed: list[SiteLedger] = []
    end = LinkEnd(run or f"run-of-{site}", "same", before.epoch + 1, f"start-{os.urandom(4).hex()}")
    senders, readers = ([], ["nyc"]) if site == "fra" else (["fra"], [])
    open_links(links, site, senders, readers, end, before, committed.append)
    return links, committed[0]


def ends_of(root: Path) -> tuple[Links, Links, Path]:
    """Both ends of a link, and its directory."""
    return start(root, "fra")[0], start(root, "nyc")[0], root / "nyc" / "fra"


def run_of(links: Links) -> str | None:
    """Whose parcels a link has."""
    end = links.end(LINK, Role.SENDER)
    return None if end is None else end.run


def acknowledged(links: Links) -> tuple[int, int]:
    """What the reader has, and the latest event time it knows of."""
    end = links.end(LINK, Role.READER)
    return (0, UNKNOWN) if end is None else (end.number, end.pace)


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


def test_what_a_reader_has_taken_does_not_depend_on_the_senders_files(tmp_path: Path, parcels: list[Sealed]) -> None:
    fra, nyc, _ = ends_of(tmp_path / "links")
    fra.publish("nyc", parcels)
    for one in parcels:
        Path(one.path).unlink()  # the sender's checkpoint has forgotten them
    assert numbers(nyc) == [1, 2, 3]


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


# Who may be at the ends -----------------------------------------------------------------------------------------------


def after_acknowledging(root: Path, parcels: list[Sealed]) -> tuple[Links, SiteLedger, Links, SiteLedger]:
    """Both ends and their ledgers once the reader has two parcels of three."""
    fra, sent = start(root, "fra")
    outgoing = tuple(Outgoing(one.number, one.path, 1) for one in parcels)
    sent = replace(sent, links={"nyc": LinkState(3, outbox=outgoing)})
    fra.publish("nyc", parcels)
    nyc, taken = start(root, "nyc")
    nyc.acknowledge("fra", 2, 0)
    end = fra.end(LINK, Role.READER)
    assert end is not None and check_reader(LINK, end, end, sent) == 2
    sent = replace(with_reader(sent, "nyc", end), links={"nyc": LinkState(3, outbox=outgoing[2:])})
    fra.forget_acknowledged("nyc")
    return fra, sent, nyc, replace(taken, received={"fra": 2}, peers={"fra": "run-of-fra"})


def test_a_reader_that_has_lost_its_checkpoint_is_refused(tmp_path: Path, parcels: list[Sealed]) -> None:
    root = tmp_path / "links"
    fra, sent, _, _ = after_acknowledging(root, parcels)
    told = (
        r"^link fra -> nyc: nyc has read it up to parcel 2 with another checkpoint \(run-of-nyc\), and what was "
        r"read is gone; start nyc with that checkpoint, or restore the checkpoints of all sites from copies of one "
        r"moment and remove the links, or remove the links directory and the checkpoints of all sites to begin anew$"
    )
    with pytest.raises(CheckpointMismatch, match=told):
        start(root, "nyc", run="fresh")
    assert acknowledged(fra) == (2, 0), "and has changed nothing"
    # The sender knows by itself whom it sent to, and the reader what the sender has: also where the links are new.
    shutil.rmtree(root)
    fra, sent = start(root, "fra", sent)
    nyc, fresh = start(root, "nyc", run="fresh")
    reader, sender = fra.end(LINK, Role.READER), nyc.end(LINK, Role.SENDER)
    assert reader is not None and sender is not None
    with pytest.raises(CheckpointMismatch, match=r"acknowledged by another run of nyc .* it had \(run-of-nyc\), or "):
        check_reader(LINK, reader, sender, sent)
    with pytest.raises(CheckpointMismatch, match=r"nyc has acknowledged parcel 2, and its checkpoint, .* knows of 0;"):
        check_sender(LINK, sender, reader, fresh)


def test_checkpoints_from_older_copies_are_refused(tmp_path: Path, parcels: list[Sealed]) -> None:
    root = tmp_path / "links"
    fra, sent, _, taken = after_acknowledging(root, parcels)
    with pytest.raises(CheckpointMismatch, match=r"nyc has acknowledged parcel 2, and its checkpoint, .* knows of 1;"):
        start(root, "nyc", replace(taken, received={"fra": 1}))
    with pytest.raises(CheckpointMismatch, match=r"fra has run on a copy of this checkpoint since \(epoch 1, here 0\)"):
        start(root, "fra")
    reader = fra.end(LINK, Role.READER)
    assert reader is not None
    older = replace(sent, links={"nyc": LinkState(1)})
    with pytest.raises(CheckpointMismatch, match=r"fra has sent parcel 2, and its checkpoint, .* knows of 1; start it"):
        check_reader(LINK, reader, reader, older)
    # All from copies of one moment, without the links: nothing is refused.
    shutil.rmtree(root)
    fra, sent = start(root, "fra", sent)
    nyc, taken = start(root, "nyc", taken)
    reader, sender = fra.end(LINK, Role.READER), nyc.end(LINK, Role.SENDER)
    assert reader is not None and sender is not None
    assert check_reader(LINK, reader, sender, sent) == 2
    check_sender(LINK, sender, reader, taken)
    fra.publish("nyc", parcels[2:])
    assert numbers(nyc, after=2) == [3]


@pytest.mark.parametrize("site", ["fra", "nyc"])
def test_of_two_processes_on_copies_of_a_checkpoint_the_older_is_fenced(
    tmp_path: Path, parcels: list[Sealed], site: str
) -> None:
    root = tmp_path / "links"
    fra, nyc, _ = ends_of(root)
    del fra, nyc
    shutil.rmtree(root)
    start(root, "nyc" if site == "fra" else "fra")
    older, ledger = start(root, site)
    newer, _ = start(root, site, ledger)  # a copy of what the older one has just committed

    def work(links: Links) -> None:
        links.publish("nyc", parcels) if site == "fra" else links.acknowledge("fra", 1, 0)

    with pytest.raises(Fenced, match=rf"^link fra -> nyc: another process runs {site} on a copy .*\(epoch 2, here 1\)"):
        work(older)
    work(newer)
    with pytest.raises(CheckpointMismatch, match=rf"{site} has run on a copy of this checkpoint since \(epoch 2, "):
        start(root, site, ledger)  # also the next time, and the time after that
    with pytest.raises(CheckpointMismatch, match=r"has run on a copy of this checkpoint since"):
        start(root, site, replace(ledger, epoch=2))
    work(newer)


def test_an_epoch_is_given_to_one_process_only(tmp_path: Path) -> None:
    """Whoever looks at the same moment finds nobody there; the file is created once."""
    root, chosen = tmp_path / "links", []
    start(root, "fra")
    barrier = threading.Barrier(8)

    def try_to_claim() -> None:
        links = DirectoryLinks(root, "nyc")
        barrier.wait()
        with contextlib.suppress(Fenced):
            links.claim(LINK, Role.READER, LinkEnd("run-of-nyc", "same", 1, str(threading.get_ident())))
            chosen.append(str(threading.get_ident()))

    threads = [threading.Thread(target=try_to_claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    end = DirectoryLinks(root, "fra").end(LINK, Role.READER)
    assert end is not None and [end.token] == chosen


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


GARBAGE = [
    b"",
    b"7 1000",
    b"{}",
    b"[1, 2]",
    b"[" * 100_000,
    b"\xff\xfe",
    b'{"run": 1, "programs": "same", "epoch": 1, "token": "t", "number": 1, "released": 0, "pace": 0}',
    b'{"run": "r", "programs": "same", "epoch": 2, "token": "t", "number": 1, "released": 0, "pace": 0}',
    b'{"run": "r", "programs": "same", "epoch": 1, "token": "t", "number": -1, "released": 0, "pace": 0}',
    b'{"run": "r", "programs": "same", "epoch": 1, "token": "t", "number": 1e9, "released": 0, "pace": 0}',
    b'{"run": "r", "programs": "same", "epoch": 1, "token": "t", "number": true, "released": 0, "pace": 0}',
    b'{"run": "r", "programs": "same", "epoch": 1, "token": "t", "number": 1, "released": 0, "pace": 1' + b"0" * 5_000,
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
    end = directory._end_of(data, 1)
    assert end is None or isinstance(end, LinkEnd)


def test_a_reader_that_has_taken_nothing_may_begin_anew_and_fences_the_one_before(tmp_path: Path) -> None:
    root = tmp_path / "links"
    before, ledger = start(root, "nyc")
    before, _ = start(root, "nyc", ledger)
    fresh, _ = start(root, "nyc", run="fresh")
    with pytest.raises(Fenced, match=r"epoch 3, here 2"):
        before.acknowledge("fra", 1, 0)
    fresh.acknowledge("fra", 1, 0)
    assert acknowledged(fresh) == (1, 0)


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


@pytest.mark.parametrize("damage", [cut_off, no_parcel, flip, Path.unlink])
def test_what_is_damaged_in_the_senders_checkpoint_is_not_published(
    tmp_path: Path, parcels: list[Sealed], damage: Callable[[Path], None]
) -> None:
    fra, nyc, _ = ends_of(tmp_path / "links")
    damage(Path(parcels[1].path))
    told = rf"^link fra -> nyc: parcel 2 is damaged in the checkpoint of fra \({parcels[1].path}: .*\); restore the "
    with pytest.raises(DamagedParcel, match=told):
        fra.publish("nyc", parcels)
    assert numbers(nyc) == [1]


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
