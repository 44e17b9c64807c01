"""Sealing of what crosses links: it opens in its place with its key, and nowhere else."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import Scene, make_batches

from watersmeet.errors import InputError
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import ParcelsRefused, RunWarning
from watersmeet.spark.links.seal import (
    OPEN,
    Refused,
    SealContext,
    SharedKeys,
    end_context,
    new_key,
    parcel_context,
    read_keys,
)

PLACE = parcel_context("fra", "nyc", 7, 3)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    (tmp_path / "keys").write_text("# of the links\n" + new_key("2026a") + "\n")
    return tmp_path / "keys"


def keys(path: Path) -> SharedKeys:
    return SharedKeys(str(path), None)


@pytest.mark.parametrize("data", [b"", b"x", os.urandom(100_000)])
def test_what_is_sealed_opens_and_shows_nothing(key_file: Path, data: bytes) -> None:
    one, other = keys(key_file), keys(key_file)
    sealed = one.seal(PLACE, data)
    assert other.open(PLACE, sealed) == data
    assert len(data) < 8 or data not in sealed
    assert sealed != one.seal(PLACE, data), "the same parcel looks different each time"


@pytest.mark.parametrize(
    "elsewhere",
    [
        parcel_context("fra", "nyc", 8, 3),
        parcel_context("nyc", "fra", 7, 3),
        parcel_context("fra", "tok", 7, 3),
        end_context("fra", "nyc", "sender", 3),
    ],
)
def test_what_was_taken_from_another_place_is_refused(key_file: Path, elsewhere: SealContext) -> None:
    with pytest.raises(Refused, match=r"altered, or belongs to another place"):
        keys(key_file).open(elsewhere, keys(key_file).seal(PLACE, b"rows"))


def test_epochs_may_be_of_before_and_not_of_later(key_file: Path) -> None:
    seal = keys(key_file)
    sealed = seal.seal(PLACE, b"rows")
    assert seal.open(parcel_context("fra", "nyc", 7, 4), sealed) == b"rows"
    with pytest.raises(Refused, match=r"it is of epoch 3, and its sender is at 2"):
        seal.open(parcel_context("fra", "nyc", 7, 2), sealed)


def test_every_altered_byte_is_noticed(key_file: Path) -> None:
    seal = keys(key_file)
    sealed = bytearray(seal.seal(PLACE, b"rows of a parcel"))
    for place in range(len(sealed)):
        sealed[place] ^= 1
        with pytest.raises(Refused):
            seal.open(PLACE, bytes(sealed))
        sealed[place] ^= 1
    for size in range(len(sealed)):
        with pytest.raises(Refused):
            seal.open(PLACE, bytes(sealed[:size]))
    assert seal.open(PLACE, bytes(sealed)) == b"rows of a parcel"


@given(st.binary(max_size=200))
def test_no_bytes_are_more_than_refused(data: bytes) -> None:
    os.environ["WATERSMEET_TEST_KEYS"] = "k " + "ab" * 32
    seal = SharedKeys(None, "WATERSMEET_TEST_KEYS")
    for attempt in (data, b"WMS1" + data, b"WMS1\x01k" + data):
        with pytest.raises(Refused):
            seal.open(PLACE, attempt)


def test_without_keys_nothing_is_changed_and_what_is_sealed_is_refused(key_file: Path) -> None:
    assert OPEN.open(PLACE, OPEN.seal(PLACE, b"rows")) == b"rows"
    with pytest.raises(Refused, match=r"it is encrypted, and this site has no key: give link_transport the key_file"):
        OPEN.open(PLACE, keys(key_file).seal(PLACE, b"rows"))
    with pytest.raises(Refused, match=r"it is not encrypted, and this site has keys: give the other site the same"):
        keys(key_file).open(PLACE, b"rows")


def test_keys_are_changed_while_sites_run(tmp_path: Path) -> None:
    """A new key is added everywhere, then used everywhere, then the old one is removed."""
    old, new = new_key("old"), new_key("new")
    paths = [tmp_path / "fra", tmp_path / "nyc"]
    for path in paths:
        path.write_text(f"{old}\n")
    fra, nyc = map(keys, paths)
    on_its_way = fra.seal(PLACE, b"by the old key")
    paths[0].write_text(f"{new}\n{old}\n")
    with pytest.raises(Refused, match=r"its key 'new' is unknown here: give all sites the same key_file"):
        nyc.open(PLACE, fra.seal(PLACE, b"too early"))
    for path in paths:
        path.write_text(f"{new}\n{old}\n")
    assert (nyc.open(PLACE, on_its_way), nyc.open(PLACE, fra.seal(PLACE, b"new"))) == (b"by the old key", b"new")
    paths[1].write_text(f"{new}\n")
    nyc.seal(PLACE, b"")  # it looks at its file when it seals
    with pytest.raises(Refused, match=r"its key 'old' is unknown here"):
        nyc.open(PLACE, on_its_way)
    paths[1].write_text("half a")
    assert nyc.open(PLACE, nyc.seal(PLACE, b"x")) == b"x", "a file that is being written does not end the run"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "has no keys; write an id and 64 hexadecimal digits"),
        ("abc", "line 1 is not a key"),
        (f"a {'0' * 64}\nb hunter2", "line 2 is not a key"),
        (f"a {'0' * 62}", "line 1 is not a key"),
        (f"a {'0' * 64} b", "line 1 is not a key"),
        (f"a {'0' * 64}\na {'1' * 64}", "line 2: the id of a key must be one of its own"),
        (f"{'x' * 65} {'0' * 64}", "line 1: the id of a key must be one of its own, of up to 64"),
    ],
)
def test_what_is_wrong_with_keys_is_said_without_them(text: str, cause: str) -> None:
    with pytest.raises(InputError) as caught:
        read_keys(text, "key_file k")
    assert cause in str(caught.value) and "hunter2" not in str(caught.value) and "0000" not in str(caught.value)


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^link_transport: key_file .*/nothing cannot be read: No such file"):
        keys(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"^link_transport: variable WATERSMEET_NOT_SET has no keys"):
        SharedKeys(None, "WATERSMEET_NOT_SET")


JOIN = "SELECT a.id AS a_id, b.id AS b_id FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"


def test_a_parcel_that_was_exchanged_on_its_way_is_refused_counted_and_published_anew(
    spark: Any, tmp_path: Path, key_file: Path
) -> None:
    data = {name: make_batches(seed) for seed, name in enumerate("ab")}
    transport = {"kind": "directory", "path": "links", "key_file": str(key_file)}
    scene = Scene(tmp_path, data, {"q": JOIN}, homes={"a": "ams", "b": "nyc"}, site="nyc", transport=transport).write()
    scene.run_site(spark, "ams")
    way = tmp_path / "links" / "nyc" / "ams"
    sent = sorted(way.glob("*.parcel"))
    assert len(sent) >= 2
    first = sent[0].read_bytes()
    assert not any(b"a.id" in path.read_bytes() for path in sent), "names of columns can be read on the link"
    sent[1].write_bytes(first)  # a replay
    events: list[object] = []
    bus = EventBus()
    bus.subscribe(lambda at, event: events.append(event))
    scene.run_site(spark, "nyc", events=bus, warn=None)
    assert [event for event in events if isinstance(event, ParcelsRefused)] == [ParcelsRefused("nyc", "ams", 1)]
    said = [event.text for event in events if isinstance(event, RunWarning)]
    assert any("parcel 2 is damaged (refused: it was altered, or belongs to another place)" in text for text in said)
    scene.run(spark)  # ams publishes it anew
    scene.check()
    assert not list(way.glob("*.parcel"))
    secret = key_file.read_text().split()[-1]
    for path in tmp_path.rglob("*"):
        if path.is_file() and path != key_file:
            assert secret.encode() not in path.read_bytes(), path


def test_a_site_without_the_key_of_the_others_says_so(spark: Any, tmp_path: Path, key_file: Path) -> None:
    data = {name: make_batches(seed) for seed, name in enumerate("ab")}
    transport = {"kind": "directory", "path": "links", "key_file": str(key_file)}
    scene = Scene(tmp_path, data, {"q": JOIN}, homes={"a": "ams", "b": "nyc"}, site="nyc", transport=transport).write()
    scene.run_site(spark, "ams")
    key_file.write_text(new_key("another"))
    said: list[str] = []
    scene.run_site(spark, "nyc", warn=said.append)
    assert any("sender-000000000001 is refused, its key '2026a' is unknown here" in text for text in said)
    assert not scene.ledger("nyc").received
