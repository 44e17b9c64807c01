"""The protocol of links over every transport: parcels in order and once, and only between ends that know each other."""

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from link_ends import (
    LINK,
    DirectoryPlace,
    KafkaPlace,
    Place,
    StorePlace,
    acknowledged,
    arrived,
    ends,
    make_parcels,
    numbers,
    run_of,
    start,
)
from scenes import PATIENCE_S

from watersmeet.errors import CheckpointMismatch, DamagedParcel
from watersmeet.program.site.ledger import LinkState, Outgoing, SiteLedger
from watersmeet.program.storage.wire import UNKNOWN
from watersmeet.spark.links.protocol import (
    Fenced,
    LinkEnd,
    Links,
    Role,
    Sealed,
    check_reader,
    check_sender,
    with_reader,
)
from watersmeet.spark.links.seal import OPEN, Seal, SharedKeys, new_key


@pytest.fixture(params=["directory", "directory with keys", "object store with keys", "kafka with keys"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def seal(transport: str, tmp_path: Path) -> Seal:
    if "keys" not in transport:
        return OPEN
    (tmp_path / "keys").write_text(new_key("first") + "\n")
    return SharedKeys(str(tmp_path / "keys"), None)


@pytest.fixture
def place(request: pytest.FixtureRequest, transport: str, tmp_path: Path, seal: Seal) -> Iterator[Place]:
    """Where the links are."""
    if transport.startswith("directory"):
        yield DirectoryPlace(tmp_path / "links", seal)
        return
    if transport.startswith("object store"):
        yield StorePlace(f"{request.getfixturevalue('s3_url')}/links", seal)
        return
    broker = request.getfixturevalue("kafka_broker")
    found = KafkaPlace(broker.servers, f"t-{uuid.uuid4().hex[:12]}", seal)
    yield found
    found.close()


@pytest.fixture
def parcels(tmp_path: Path, seal: Seal) -> list[Sealed]:
    """Three parcels in the checkpoint of their sender."""
    return make_parcels(tmp_path, seal)


def test_parcels_arrive_once_and_in_order_and_stay_until_they_are_acknowledged(
    place: Place, parcels: list[Sealed]
) -> None:
    fra, nyc = ends(place)
    assert (run_of(nyc), nyc.has_arrived("fra", 0), numbers(nyc)) == ("run-of-fra", False, [])
    assert acknowledged(fra) == (0, UNKNOWN)
    fra.publish("nyc", parcels[:2])
    nyc.catch_up()
    assert (nyc.has_arrived("fra", 0), nyc.has_arrived("fra", 1), nyc.has_arrived("fra", 2)) == (True, True, False)
    assert list(arrived(nyc).values()) == [Path(one.path).read_bytes() for one in parcels[:2]]
    assert numbers(nyc, after=1) == [2]
    nyc.acknowledge("fra", 1, 4_711)
    assert acknowledged(fra) == (1, 4_711)
    fra.forget_acknowledged("nyc")
    assert (numbers(nyc), numbers(nyc, after=1)) == ([], [2]), "what comes after a gap has not arrived"
    fra.publish("nyc", parcels)  # also what the sender's ledger still names
    assert numbers(nyc, after=1) == [2, 3] and not nyc.has_arrived("fra", 0)
    again, _ = start(place, "nyc", SiteLedger(received={"fra": 1}, epoch=1, token=token_of(nyc)))
    assert numbers(again, after=1) == [2, 3], "another process finds the same"


def token_of(links: Links, role: Role = Role.READER) -> str:
    end = links.end(LINK, role)
    assert end is not None
    return end.token


def test_a_sender_that_is_started_again_publishes_what_is_missing(place: Place, parcels: list[Sealed]) -> None:
    fra, ledger = start(place, "fra")
    nyc, _ = start(place, "nyc")
    fra.publish("nyc", parcels[:2])
    again, _ = start(place, "fra", ledger)
    again.publish("nyc", parcels)
    assert numbers(nyc) == [1, 2, 3]


def test_what_a_reader_has_taken_does_not_depend_on_the_senders_files(place: Place, parcels: list[Sealed]) -> None:
    fra, nyc = ends(place)
    fra.publish("nyc", parcels)
    for one in parcels:
        Path(one.path).unlink()  # the sender's checkpoint has forgotten them
    assert numbers(nyc) == [1, 2, 3]


def test_a_rejected_parcel_is_published_anew(place: Place, parcels: list[Sealed]) -> None:
    fra, nyc = ends(place)
    fra.publish("nyc", parcels)
    assert numbers(nyc) == [1, 2, 3]
    for times in (1, 2):
        assert nyc.reject("fra", 2) == times
        assert numbers(nyc) == [1] and numbers(nyc, after=2) == [3]
        fra.catch_up()
        fra.publish("nyc", parcels)
        assert numbers(nyc) == [1, 2, 3]


def test_a_link_belongs_to_one_run_of_its_sender(place: Place) -> None:
    ends(place)
    refusal = r"^link fra -> nyc: it holds parcels of another run of fra \(checkpoint run-of-fra\); start with "
    with pytest.raises(CheckpointMismatch, match=refusal):
        start(place, "fra", run="other-run")


def after_acknowledging(place: Place, parcels: list[Sealed]) -> tuple[Links, SiteLedger, Links, SiteLedger]:
    """Both ends and their ledgers once the reader has two parcels of three."""
    fra, sent = start(place, "fra")
    outgoing = tuple(Outgoing(one.number, one.path, 1) for one in parcels)
    sent = replace(sent, links={"nyc": LinkState(3, outbox=outgoing)})
    fra.publish("nyc", parcels)
    nyc, taken = start(place, "nyc")
    nyc.acknowledge("fra", 2, 0)
    fra.catch_up()
    end = fra.end(LINK, Role.READER)
    assert end is not None and check_reader(LINK, end, sent) == 2
    sent = replace(with_reader(sent, "nyc", end), links={"nyc": LinkState(3, outbox=outgoing[2:])})
    fra.forget_acknowledged("nyc")
    return fra, sent, nyc, replace(taken, received={"fra": 2}, peers={"fra": "run-of-fra"})


def test_a_reader_that_has_lost_its_checkpoint_is_refused(place: Place, parcels: list[Sealed]) -> None:
    fra, sent, _, _ = after_acknowledging(place, parcels)
    refusal = (
        r"^link fra -> nyc: nyc has read it up to parcel 2 with another checkpoint \(run-of-nyc\), and what was "
        r"read is gone; start nyc with that checkpoint, or restore the checkpoints of all sites from copies of one "
        r"moment and remove the links, or remove the links and the checkpoints of all sites to begin anew$"
    )
    with pytest.raises(CheckpointMismatch, match=refusal):
        start(place, "nyc", run="fresh")
    assert acknowledged(fra) == (2, 0), "and has changed nothing"
    # The sender knows by itself whom it sent to, and the reader what the sender has: also where the links are new.
    place.lose()
    fra, sent = start(place, "fra", sent)
    with pytest.raises(CheckpointMismatch, match=r"nyc has acknowledged parcel 2, and its checkpoint, .* knows of 0;"):
        start(place, "nyc", run="fresh")
    fra.catch_up()
    assert fra.end(LINK, Role.READER) is None, "and has taken nothing"
    with pytest.raises(CheckpointMismatch, match=r"acknowledged by another run of nyc .* it had \(run-of-nyc\), or "):
        check_reader(LINK, LinkEnd("fresh", "same", 1, "start"), sent)


def test_checkpoints_from_older_copies_are_refused(place: Place, parcels: list[Sealed]) -> None:
    fra, sent, _, taken = after_acknowledging(place, parcels)
    with pytest.raises(CheckpointMismatch, match=r"nyc has acknowledged parcel 2, and its checkpoint, .* knows of 1;"):
        start(place, "nyc", replace(taken, received={"fra": 1}))
    with pytest.raises(CheckpointMismatch, match=r"fra has run on a copy of this checkpoint since \(epoch 1, here 0\)"):
        start(place, "fra")
    reader = fra.end(LINK, Role.READER)
    assert reader is not None
    older = replace(sent, links={"nyc": LinkState(1)})
    with pytest.raises(CheckpointMismatch, match=r"fra has sent parcel 2, and its checkpoint, .* knows of 1; start it"):
        check_reader(LINK, reader, older)
    # All from copies of one moment, without the links: nothing is refused.
    place.lose()
    fra, sent = start(place, "fra", sent)
    nyc, taken = start(place, "nyc", taken)
    fra.catch_up()
    reader, sender = fra.end(LINK, Role.READER), nyc.end(LINK, Role.SENDER)
    assert reader is not None and sender is not None
    assert check_reader(LINK, reader, sent) == 2
    check_sender(LINK, sender, taken)
    fra.publish("nyc", parcels[2:])
    assert numbers(nyc, after=2) == [3]


@pytest.mark.parametrize("site", ["fra", "nyc"])
def test_of_two_processes_on_copies_of_a_checkpoint_the_older_is_fenced(
    place: Place, parcels: list[Sealed], site: str
) -> None:
    start(place, "nyc" if site == "fra" else "fra")
    older, ledger = start(place, site)
    newer, _ = start(place, site, ledger)  # a copy of what the older one has just committed

    def work(links: Links) -> None:
        links.publish("nyc", parcels) if site == "fra" else links.acknowledge("fra", 1, 0)

    older.catch_up()
    with pytest.raises(Fenced, match=rf"^link fra -> nyc: another process runs {site} on a copy .*\(epoch 2, here 1\)"):
        work(older)
    work(newer)
    with pytest.raises(CheckpointMismatch, match=rf"{site} has run on a copy of this checkpoint since \(epoch 2, "):
        start(place, site, ledger)  # also the next time, and the time after that
    with pytest.raises(CheckpointMismatch, match=r"has run on a copy of this checkpoint since"):
        start(place, site, replace(ledger, epoch=2))
    work(newer)


def test_a_sender_that_is_overtaken_while_it_publishes_leaves_no_parcel(
    place: Place, parcels: list[Sealed], transport: str
) -> None:
    """Its reader would take it, and then nothing of the newer process, whose parcels do not follow it."""
    if transport.startswith("kafka"):
        pytest.skip("a log has claims and parcels in one order (test_kafka.py)")
    nyc, _ = start(place, "nyc")
    older, ledger = start(place, "fra")
    newer: list[Links] = []

    def overtaken(data: bytes) -> bytes:
        newer.append(start(place, "fra", ledger)[0])
        return parcels[0].wrap(data)

    with pytest.raises(Fenced):
        older.publish("nyc", [replace(parcels[0], wrap=overtaken)])
    assert numbers(nyc) == []
    newer[0].publish("nyc", parcels[:1])
    assert numbers(nyc) == [1]
    start(place, "fra", replace(ledger, epoch=2, token=token_of(nyc, Role.SENDER)))  # one that has not made it
    assert numbers(nyc) == []


def test_an_epoch_is_given_to_one_process_only(place: Place) -> None:
    """Whoever looks at the same moment finds nobody there; the first claim holds."""
    chosen: list[str] = []
    start(place, "fra")
    barrier = threading.Barrier(8, timeout=PATIENCE_S)

    def try_to_claim(links: Links) -> None:
        links.prepare([LINK])
        barrier.wait()
        with contextlib.suppress(Fenced):
            links.claim(LINK, Role.READER, LinkEnd("run-of-nyc", "same", 1, str(threading.get_ident())))
            chosen.append(str(threading.get_ident()))

    threads = [threading.Thread(target=try_to_claim, args=(place.open("nyc"),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    links = place.open("fra")
    links.prepare([LINK])
    end = links.end(LINK, Role.READER)
    assert end is not None and [end.token] == chosen


def test_a_reader_that_has_taken_nothing_may_begin_anew_and_fences_the_one_before(place: Place) -> None:
    before, ledger = start(place, "nyc")
    before, _ = start(place, "nyc", ledger)
    fresh, _ = start(place, "nyc", run="fresh")
    before.catch_up()
    with pytest.raises(Fenced, match=r"epoch 3, here 2"):
        before.acknowledge("fra", 1, 0)
    fresh.acknowledge("fra", 1, 0)
    assert acknowledged(fresh) == (1, 0)


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(path.read_bytes()[:-1]), Path.unlink])
def test_what_is_damaged_in_the_senders_checkpoint_is_not_published(
    place: Place, parcels: list[Sealed], damage: Callable[[Path], None]
) -> None:
    fra, nyc = ends(place)
    damage(Path(parcels[1].path))
    refusal = rf"^link fra -> nyc: parcel 2 is damaged in the checkpoint of fra \({parcels[1].path}: .*\); restore the "
    with pytest.raises(DamagedParcel, match=refusal):
        fra.publish("nyc", parcels)
    assert numbers(nyc) == [1]
