"""Links over topics of Kafka: what a log means, and what happens when brokers or topics go away.

What holds for every transport is in test_protocol.py.
"""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka_broker import Broker, missing, write_certificate
from link_ends import LINK, KafkaPlace, acknowledged, arrived, ends, make_parcels, numbers, run_of, start
from scenes import PATIENCE_S, Scene, by_arrow, make_batches, wait_for

import watersmeet as wm
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import RunWarning
from watersmeet.spark.links.kafka_log import (
    MAX_PARTS,
    PARCELS,
    PART_BYTES,
    READER,
    EndLog,
    ParcelLog,
    ParcelPart,
    parts_of,
    read_part,
)
from watersmeet.spark.links.protocol import Fenced, LinkEnd, LinkUnreadable, LinkUnwritable, Role
from watersmeet.spark.links.seal import OPEN, SharedKeys, new_key

END = LinkEnd("run", "same", 1, "a")


# What a log means -----------------------------------------------------------------------------------------------------


def ends_log(*records: tuple[bytes, bytes]) -> EndLog:
    log = EndLog(LINK, Role.READER, OPEN)
    for key, value in records:
        log.add(key, value)
    return log


def test_of_two_claims_to_an_epoch_the_first_in_the_log_holds() -> None:
    log = EndLog(LINK, Role.READER, OPEN)
    other, newer = replace(END, token="b"), replace(END, epoch=2, token="c")
    say = log.statement
    assert ends_log(say(END), say(other), say(replace(other, number=7))).newest == END
    assert ends_log(say(END), say(newer), say(replace(END, number=9))).newest == newer, "it is fenced"
    assert ends_log(say(END), say(replace(END, number=4))).newest == replace(END, number=4)
    after = ends_log(say(END), say(newer), log.withdrawal(newer))
    assert (after.newest, after.newest_below(1)) == (END, None)
    assert ends_log(say(END), say(newer), log.withdrawal(END)).newest == newer, "only what holds is withdrawn"
    assert ends_log(say(END), say(newer)).newest_below(2) == END


def test_rejections_count_until_the_parcel_is_acknowledged() -> None:
    log = EndLog(LINK, Role.READER, OPEN)
    twice = [log.statement(END), log.rejection(END, 3), log.rejection(END, 3)]
    assert ends_log(*twice).rejected == {3: 2}
    assert ends_log(*twice, log.rejection(replace(END, token="b"), 3)).rejected == {3: 2}
    assert ends_log(*twice, log.statement(replace(END, number=3))).rejected == {}


@pytest.mark.parametrize(
    "key", [b"", b"\xff", b"says", b"says x", b"says 1", b"withdraws 1", b"rejects 1 99999999999999999999"]
)
def test_garbage_in_the_log_of_an_end_is_passed_over(key: bytes) -> None:
    log = ends_log(EndLog(LINK, Role.READER, OPEN).statement(END), (key, b"{garbage"))
    assert log.newest == END


def parcels_log(*records: tuple[bytes, bytes], rejected: dict[int, int] | None = None) -> ParcelLog:
    log = ParcelLog()
    for offset, (key, value) in enumerate(records):
        log.add(key, value, offset, rejected or {})
    return log


def test_parcels_are_put_together_and_taken_once() -> None:
    data = bytes(range(250)) * 8_000
    whole = parts_of(1, 1, END, data)
    assert [len(value) for _, value in whole] == [PART_BYTES, PART_BYTES, len(data) - 2 * PART_BYTES]
    assert parcels_log(*whole).cached == {1: data}
    assert parcels_log(*whole[:2]).cached == {}, "half of it"
    assert parcels_log(*whole[:2], *whole).cached == {1: data}, "its sender began again"
    assert parcels_log(whole[0], whole[2]).cached == {}, "a part is missing"
    assert parcels_log(*whole, *parts_of(1, 1, END, b"other")).cached == {1: data}, "the first copy is taken"
    assert parcels_log(*whole, rejected={1: 1}).cached == {}
    assert parcels_log(*whole, *parts_of(1, 2, END, b"again"), rejected={1: 1}).cached == {1: b"again"}


def test_parcels_of_an_older_epoch_that_follow_a_newer_one_are_passed_over() -> None:
    newer = replace(END, epoch=2, token="b")
    fence = (ParcelPart(0, 1, 1, 1, 2, "b").key, b"")
    assert parcels_log(*parts_of(1, 1, END, b"x"), fence, *parts_of(2, 1, END, b"y")).cached == {1: b"x"}
    assert parcels_log(fence, *parts_of(1, 1, newer, b"z")).cached == {1: b"z"}


@pytest.mark.parametrize("numbers", [(1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 2, 1), (1, 1, 1, MAX_PARTS + 1)])
def test_parts_that_cannot_be_are_passed_over(numbers: tuple[int, int, int, int]) -> None:
    assert read_part(ParcelPart(*numbers, 1, "a").key) is None
    assert read_part(ParcelPart(1, 1, 1, MAX_PARTS, 1, "a").key) is not None


def test_what_does_not_fit_into_memory_is_only_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watersmeet.spark.links.kafka_log.MAX_CACHED_BYTES", 3)
    log = parcels_log(*(record for number in (1, 2, 3) for record in parts_of(number, 1, END, b"xx")))
    assert (list(log.places), list(log.cached), log.cached_bytes) == ([1, 2, 3], [1], 2)
    log.drop_acknowledged(1)
    assert (list(log.places), log.cached_bytes) == ([2, 3], 0)


# With a broker --------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(kafka_broker: Broker) -> Iterator[KafkaPlace]:
    found = KafkaPlace(kafka_broker.servers, f"t-{uuid.uuid4().hex[:12]}")
    yield found
    found.close()


def held(links: Any, partition: int) -> tuple[int, int]:
    """The first offset of a partition, and the next."""
    place = (links._logs[LINK].topic, partition)
    return links._client.first_offsets([place])[place], links._client.next_offsets([place])[place]


def after_forgetting(fra: Any) -> tuple[int, int]:
    """The offsets of parcels that are held; deleting is asked for again, since it is not waited for."""
    fra.forget_acknowledged("nyc")
    return held(fra, PARCELS)


def test_large_parcels_are_split_fetched_again_when_needed_and_deleted_when_acknowledged(
    place: KafkaPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watersmeet.spark.links.kafka_log.MAX_CACHED_BYTES", 1)
    parcels = make_parcels(tmp_path, size=2_000_000)
    fra, nyc = ends(place)
    fra.publish("nyc", parcels)
    assert list(arrived(nyc).values()) == [Path(one.path).read_bytes() for one in parcels]
    assert held(fra, PARCELS) == (0, 1 + 3 * 3)
    nyc.acknowledge("fra", 2, 0)
    assert acknowledged(fra) == (2, 0)
    wait_for(lambda: after_forgetting(fra) == (7, 10), "records of acknowledged parcels stay")
    assert numbers(nyc, after=2) == [3]
    nyc.acknowledge("fra", 3, 0)
    fra.catch_up()
    wait_for(lambda: after_forgetting(fra) == (10, 10), "records of acknowledged parcels stay")


def test_what_a_reader_has_said_before_is_deleted(place: KafkaPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watersmeet.spark.links.kafka._MOST_STATEMENTS", 10)
    fra, nyc = ends(place)
    for pace in range(40):
        nyc.acknowledge("fra", 0, pace)
        nyc.catch_up()

    def first_held() -> int:
        nyc.acknowledge("fra", 0, 39)  # says nothing new: deleting is only asked for again, as it is not waited for
        return held(nyc, READER)[0]

    wait_for(lambda: first_held() > 25, "what is over is not deleted")
    assert acknowledged(fra) == (0, 39) == acknowledged(ends_again(place))


def ends_again(place: KafkaPlace) -> Any:
    links = place.open("fra")
    links.prepare([LINK])
    return links


def test_links_travel_by_tls_with_a_password(kafka_broker: Broker, tmp_path: Path) -> None:
    place = KafkaPlace("", f"t-{uuid.uuid4().hex[:12]}", options=kafka_broker.secure_options)
    fra, nyc = ends(place)
    fra.publish("nyc", make_parcels(tmp_path))
    assert numbers(nyc) == [1, 2, 3]
    place.close()


def test_a_process_that_is_fenced_deletes_nothing(place: KafkaPlace, tmp_path: Path) -> None:
    parcels = make_parcels(tmp_path)
    older, ledger = start(place, "fra")
    nyc, _ = start(place, "nyc")
    older.publish("nyc", parcels[:1])
    newer, _ = start(place, "fra", ledger)
    newer.publish("nyc", parcels)
    nyc.catch_up()
    nyc.acknowledge("fra", 1, 0)
    older.catch_up()
    before = held(newer, PARCELS)
    older.forget_acknowledged("nyc")
    with pytest.raises(Fenced):
        older.publish("nyc", parcels)
    assert held(newer, PARCELS) == before and numbers(nyc, after=1) == [2, 3]


def test_a_topic_that_is_lost_is_made_anew_and_said_in_one_sentence(place: KafkaPlace, tmp_path: Path) -> None:
    parcels = make_parcels(tmp_path)
    fra, nyc = ends(place)
    fra.publish("nyc", parcels)
    assert numbers(nyc) == [1, 2, 3]
    nyc.acknowledge("fra", 1, 5)
    nyc._client.topics.remove([f"{place.prefix}.fra.nyc"])  # type: ignore[attr-defined]
    said = []
    for links in (fra, nyc):
        wait_for(lambda links=links: bool(links._logs[LINK].notice), "the loss is not noticed")  # type: ignore[misc]
        with pytest.raises(LinkUnreadable) as caught:
            links.end(LINK, Role.READER)
        said.append(str(caught.value))
    assert set(said) == {
        f"link fra -> nyc: its topic {place.prefix}.fra.nyc was lost and is made anew; nothing of the link is lost: "
        "what was not acknowledged is published again"
    }
    nyc.acknowledge("fra", 1, 6)
    fra.catch_up()
    fra.publish("nyc", parcels)
    assert (run_of(nyc), numbers(nyc, after=1), acknowledged(fra)) == ("run-of-fra", [2, 3], (1, 6))


def test_brokers_that_cannot_be_reached_are_named_at_the_start() -> None:
    place = KafkaPlace("127.0.0.1:1", "nowhere", wait_s=0.3, start_s=0.5)
    with pytest.raises(
        LinkUnwritable, match=r"^link fra -> nyc cannot be made: .*127\.0\.0\.1:1\); start the brokers, or "
    ):
        start(place, "fra")
    place.close()


@pytest.mark.parametrize(
    ("option", "why"), [("sasl.password", "uthentication failed"), ("ssl.ca.location", "certificate verify failed")]
)
def test_why_brokers_do_not_answer_is_said(kafka_broker: Broker, tmp_path: Path, option: str, why: str) -> None:
    """As soon as it is known: no waiting helps then."""
    write_certificate(tmp_path)
    another = {"sasl.password": "not-the-password", "ssl.ca.location": str(tmp_path / "ca.pem")}[option]
    options = {**kafka_broker.secure_options, option: another}
    place = KafkaPlace("", "refused", options=options, wait_s=1.0, start_s=PATIENCE_S)
    with pytest.raises(LinkUnwritable, match=rf"^link fra -> nyc cannot be made: .*{why}.*; start the brokers, or "):
        start(place, "fra")
    place.close()


@pytest.mark.soak
def test_a_broker_that_is_killed_and_started_again_loses_nothing(tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    parcels = make_parcels(tmp_path)
    with Broker(tmp_path / "broker") as broker:
        place = KafkaPlace(broker.servers, "links", wait_s=5.0, start_s=PATIENCE_S)
        fra, nyc = ends(place)
        fra.publish("nyc", parcels[:1])
        assert numbers(nyc) == [1]
        broker.kill()
        wait_for(lambda: bool(nyc._down and fra._down), "the outage is not noticed")  # type: ignore[attr-defined]
        with pytest.raises(LinkUnreadable, match=r"^link fra -> nyc cannot be read: .*; nothing is lost: it goes on "):
            nyc.has_arrived("fra", 1)
        with pytest.raises(
            LinkUnwritable, match=r"^link fra -> nyc cannot be written: .*; nothing is lost: it goes on "
        ):
            fra.publish("nyc", parcels)
        broker.start()
        wait_for(lambda: not nyc._down and not fra._down, "its return is not noticed")  # type: ignore[attr-defined]
        fra.publish("nyc", parcels)
        assert numbers(nyc) == [1, 2, 3]
        nyc.acknowledge("fra", 3, 1)
        assert acknowledged(fra) == (3, 1)
        place.close()


JOIN = "SELECT a.id AS a_id, b.id AS b_id FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"


def scene_over_kafka(directory: Path, servers: str, **differs: Any) -> Scene:
    (directory / "keys").write_text(new_key("first") + "\n")
    transport = {
        "kind": "kafka",
        "topics": f"t-{uuid.uuid4().hex[:12]}",
        "options": {"bootstrap.servers": servers},
        "key_file": "keys",
    }
    data = {name: make_batches(seed) for seed, name in enumerate("ab")}
    settings: dict[str, Any] = {"homes": {"a": "ams", "b": "nyc"}, "site": "nyc", "transport": transport}
    return Scene(directory, batches=data, queries={"q": JOIN}, **settings | differs).write()


def test_two_sites_over_topics_with_keys_answer_as_the_oracle_does(
    spark: Any, kafka_broker: Broker, tmp_path: Path
) -> None:
    scene = scene_over_kafka(tmp_path, kafka_broker.servers)
    scene.run(spark)
    scene.check()
    for name, seed in (("a", 5), ("b", 6)):
        scene.add(name, make_batches(seed, first=210))
    scene.run(spark)  # on the same checkpoints and topics
    scene.check()
    wm.start(scene.topology, spark=spark, once=True, checkpoint=scene.checkpoint, fresh=True).awaitTermination()
    assert by_arrow(scene.sink("q")) == scene.expected(), "begun anew, with topics that are anew too"


@pytest.mark.soak
def test_a_run_goes_on_while_its_broker_is_killed_and_started_again(spark: Any, tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    said: list[str] = []
    bus = EventBus()
    bus.subscribe(lambda at, event: said.append(event.text) if isinstance(event, RunWarning) else None)
    with Broker(tmp_path / "broker") as broker:
        scene = scene_over_kafka(tmp_path, broker.servers)
        handle = wm.start(scene.topology, spark=spark, checkpoint=scene.checkpoint, warn=None, events=bus)
        try:
            expected = scene.expected().total()
            wait_for(lambda: scene.ledger("nyc").rows_out.get("q", 0) == expected, "no answers")
            broker.kill()
            for name, seed in (("a", 5), ("b", 6)):
                scene.add(name, make_batches(seed, first=210))
            wait_for(lambda: any("cannot be" in text for text in said), "the outage is not said")
            broker.start()
            expected = scene.expected().total()
            wait_for(lambda: scene.ledger("nyc").rows_out.get("q", 0) == expected, "it does not go on")
        finally:
            handle.stop()
    scene.check()


# Keys -----------------------------------------------------------------------------------------------------------------


def test_ends_without_the_key_are_refused_with_a_sentence(kafka_broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(new_key("first"))
    prefix = f"t-{uuid.uuid4().hex[:12]}"
    sealed = KafkaPlace(kafka_broker.servers, prefix, SharedKeys(str(tmp_path / "keys"), None))
    plain = KafkaPlace(kafka_broker.servers, prefix)
    start(sealed, "fra")
    nyc, _ = start(plain, "nyc")
    refusal = (
        r"^link fra -> nyc cannot be read: what fra says of itself is refused, it is encrypted, and this site has no"
    )
    with pytest.raises(LinkUnreadable, match=refusal):
        nyc.end(LINK, Role.SENDER)
    for place in (sealed, plain):
        place.close()
