"""Sources and sinks that are topics of Kafka: every payload, malformed messages, offsets, and answers exactly once."""

import base64
import json
import struct
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka_broker import CONNECTOR, PASSWORD, Broker, missing
from scenes import DDL, PATIENCE_S, SCHEMA, Bag, ledger_of, make_batches, wait_for

import watersmeet as wm
from watersmeet.errors import CheckpointMismatch, InputError, RunError, without_secrets
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.spark import kafka_options
from watersmeet.spark.deliver.claims import Start
from watersmeet.spark.deliver.kafka import KafkaWriter
from watersmeet.spark.kafka_options import client_options, spark_options
from watersmeet.testing import bag
from watersmeet.topology.model import Sink
from watersmeet.topology.payload import Payload

PAYLOADS = {"a": "json", "b": "avro", "c": "arrow", "d": "parquet"}
AVRO = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "m", "type": ["null", "int"]},
        {"name": "s", "type": ["null", "string"]},
        {"name": "id", "type": "long"},
        {"name": "v", "type": ["null", "double"]},
        {"name": "ts", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    ],
}
FRAME = b"\x00\x00\x00\x00\x07"
BAD = {"a": b'{"id": "x"', "b": FRAME + b"\x07", "c": b"not Arrow", "d": b"PAR1"}
ROWS_OF_A_MESSAGE = 50


# Messages, written by hand --------------------------------------------------------------------------------------------


def zigzag(number: int) -> bytes:
    rest, found = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes(found + bytes([rest]))


def avro(row: Mapping[str, Any]) -> bytes:
    def optional(name: str, data: bytes | None) -> bytes:
        return zigzag(0) if data is None else zigzag(1) + data

    def micros() -> int | None:
        return None if row["ts"] is None else pa.scalar(row["ts"], pa.timestamp("us", "UTC")).value

    text = None if row["s"] is None else row["s"].encode()
    at = micros()
    return b"".join(
        [
            optional("m", None if row["m"] is None else zigzag(row["m"])),
            optional("s", None if text is None else zigzag(len(text)) + text),
            zigzag(row["id"]),
            optional("v", None if row["v"] is None else struct.pack("<d", row["v"])),
            optional("ts", None if at is None else zigzag(at)),
        ]
    )


def messages(kind: str, table: pa.Table) -> list[tuple[bytes | None, bytes]]:
    """Key and value of the messages that hold the rows of a table; of Avro, column k is in the key."""
    if kind in ("json", "avro"):
        rows = table.to_pylist()
        if kind == "json":
            texts = [json.dumps(row, default=lambda at: at.isoformat()) for row in rows]
            return [(None, text.encode()) for text in texts]
        return [(None if row["k"] is None else str(row["k"]).encode(), FRAME + avro(row)) for row in rows]
    found: list[tuple[bytes | None, bytes]] = []
    for first in range(0, table.num_rows, ROWS_OF_A_MESSAGE):
        sink, piece = pa.BufferOutputStream(), table.slice(first, ROWS_OF_A_MESSAGE)
        if kind == "parquet":
            pq.write_table(piece, sink)
        else:
            with pa.ipc.new_stream(sink, piece.schema) as writer:
                writer.write_table(piece)
        found.append((None, sink.getvalue().to_pybytes()))
    return found


def committed(servers: str, topic: str) -> list[Any]:
    """All committed messages of a topic of one partition, as a reader finds them that follows the rule."""
    reader = Consumer(
        {"bootstrap.servers": servers, "group.id": uuid.uuid4().hex, "isolation.level": "read_committed"}
        | {"enable.partition.eof": True, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50}
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    while True:
        message = reader.poll(1)
        error = None if message is None else message.error()
        if message is not None and error is None:
            found.append(message)
        elif error is not None and error.name() == "_PARTITION_EOF":
            break
        else:  # the broker has much to do, or was just started
            assert time.monotonic() < deadline, f"the broker does not answer: {error}"
    reader.close()
    return found


def make_topics(servers: str, *names: str) -> None:
    """Make topics of one partition, and wait until it has a leader that clients find."""
    admin = AdminClient({"bootstrap.servers": servers})
    for one in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        one.result()

    def are_there() -> bool:
        found = admin.list_topics(timeout=PATIENCE_S).topics
        parts = [found[name].partitions.get(0) if name in found else None for name in names]
        return all(part is not None and part.error is None and part.leader >= 0 for part in parts)

    wait_for(are_there, "topics have no leaders")


@dataclass
class TopicScene:
    """Four streams that are topics, of a payload each, and two queries whose answers are topics too."""

    directory: Path
    broker: Broker
    prefix: str = field(default_factory=lambda: f"t-{uuid.uuid4().hex[:8]}")
    batches: dict[str, list[pa.Table]] = field(default_factory=dict)
    queries: ClassVar = {
        "ab": "SELECT a.id AS a_id, b.id AS b_id, b.k AS k, a.s AS s, b.ts AS ts "
        "FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k",
        "cd": "SELECT c.id AS c_id, d.id AS d_id, d.v AS v "
        "FROM c [RANGE 5 SECONDS], d [RANGE 5 SECONDS] WHERE c.k = d.k",
    }

    @property
    def servers(self) -> str:
        return self.broker.servers

    def make(self) -> "TopicScene":
        make_topics(self.servers, *(f"{self.prefix}-{name}" for name in (*PAYLOADS, *self.queries)))
        return self

    def produce(self, name: str, batches: Sequence[pa.Table], bad: bytes | None = None) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for key, value in [pair for batch in batches for pair in messages(PAYLOADS[name], batch)]:
            producer.produce(f"{self.prefix}-{name}", value, key)
        if bad is not None:
            producer.produce(f"{self.prefix}-{name}", bad, b"1")
            producer.produce(f"{self.prefix}-{name}", None, b"2")
        assert producer.flush(PATIENCE_S) == 0
        self.batches.setdefault(name, []).extend(batches)

    def topology(self) -> wm.Topology:
        (self.directory / "password").write_text(PASSWORD)
        secret = {"sasl.password": f"${{file:{self.directory / 'password'}}}"}
        reached = {**self.broker.secure_options, **secret}
        streams = {}
        for name, kind in PAYLOADS.items():
            payload: dict[str, Any] = {"format": kind}
            if kind == "avro":
                (self.directory / "row.avsc").write_text(json.dumps(AVRO))
                payload |= {"key": "k", "schema_file": "row.avsc", "framing": "confluent"}
            options = {"subscribe": f"{self.prefix}-{name}", **reached}
            streams[name] = {
                "schema": DDL,
                "event_time": "ts",
                "watermark": "20 seconds",
                "source": {"format": "kafka", "payload": payload, "options": options},
                "late": {"format": "parquet", "path": f"late/{name}"},
            }
        sinks = {"ab": {"format": "json", "key": "k"}, "cd": {"format": "avro"}}
        queries = {
            name: {
                "sql": sql,
                "sink": {
                    "format": "kafka",
                    "payload": sinks[name],
                    "options": {"topic": f"{self.prefix}-{name}", **reached},
                },
            }
            for name, sql in self.queries.items()
        }
        path = self.directory / "topology.yaml"
        path.write_text(yaml.safe_dump({"durability": "process", "streams": streams, "queries": queries}))
        return wm.load_topology(path)

    def run(self, spark: Any) -> wm.StreamingRun:
        run = wm.start(self.topology(), spark=spark, once=True, checkpoint=self.directory / "checkpoint")
        run.awaitTermination()
        return run

    def expected(self, query: str) -> Bag:
        parsed = parse_query(self.queries[query], dict.fromkeys(PAYLOADS, SCHEMA.names))
        tables = {name: pa.concat_tables(some) for name, some in self.batches.items()}
        return bag(answer(parsed, tables, dict.fromkeys(tables, "ts")))

    def check(self) -> None:
        """That topics have every answer once, as values and keys say."""
        found: Counter[tuple[Any, ...]] = Counter()
        for message in committed(self.servers, f"{self.prefix}-ab"):
            row = json.loads(message.value())
            assert message.key() == str(row["k"]).encode()
            at = pa.scalar(row["ts"]).cast(pa.timestamp("us", "UTC")).as_py()
            found[row["a_id"], row["b_id"], row["k"], row["s"], at] += 1
        assert found == self.expected("ab") and len(found) > 100
        found = Counter(answer_of_avro(one.value()) for one in committed(self.servers, f"{self.prefix}-cd"))
        assert found == self.expected("cd") and len(found) > 100


def answer_of_avro(data: bytes) -> tuple[Any, ...]:
    """A record of two long and a double that may be null, as Spark's schema has them: the value first, then null."""

    def number(at: int) -> tuple[int, int]:
        found, shift = 0, 0
        while True:
            found |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if not data[at - 1] & 0x80:
                return (found >> 1) ^ -(found & 1), at

    values: list[Any] = []
    at = 0
    for kind in ("long", "long", "double"):
        branch, at = number(at)
        if branch == 1:
            values.append(None)
        elif kind == "long":
            value, at = number(at)
            values.append(value)
        else:
            values.append(struct.unpack_from("<d", data, at)[0])
            at += 8
    assert at == len(data)
    return tuple(values)


def clean(seed: int, first: int = 0) -> list[pa.Table]:
    """Rows that are neither late nor without time; some have no key."""
    found = make_batches(seed, first=first, late_by_s=0)
    return [table.filter(pa.compute.is_valid(table.column("ts"))) for table in found]


def test_every_payload_is_joined_and_answered_as_the_oracle_does(
    spark: Any, kafka_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By TLS and with a password, and over a crash on either side of the commit of a transaction."""
    scene = TopicScene(tmp_path, kafka_broker).make()
    for seed, name in enumerate(PAYLOADS):
        scene.produce(name, clean(seed), BAD[name])
    scene.run(spark)
    scene.check()
    for seed, name in enumerate(PAYLOADS):
        scene.produce(name, clean(seed + 10, first=210))
    commit = KafkaWriter._in_transaction

    def crash(writer: KafkaWriter, produce: Callable[[Any], None], batch: int) -> None:
        if not writer._is_holding:  # it takes hold of its topic
            commit(writer, produce, batch)
        elif writer._payload.format == "json":
            commit(writer, produce, batch)
            raise RuntimeError("killed after the commit")
        else:
            writer._producer.begin_transaction()
            produce(writer._producer)
            raise RuntimeError("killed before the commit")

    with monkeypatch.context() as patched:
        patched.setattr(KafkaWriter, "_in_transaction", crash)
        with pytest.raises(RunError, match="killed"):
            scene.run(spark)
    scene.run(spark)  # goes on at the offsets of its checkpoint, and with the answers that topics do not have
    scene.check()
    states = ledger_of(tmp_path / "checkpoint" / "here").streams
    assert {name: states[name].malformed for name in PAYLOADS} == dict.fromkeys(PAYLOADS, 2)
    for name, kind in PAYLOADS.items():
        kept = ds.dataset(tmp_path / "late" / name).to_table().to_pylist()
        assert {row["_reason"] for row in kept} == {"malformed"} and len(kept) == 2
        told = {one["reason"]: one for one in (json.loads(row["_watersmeet_malformed"]) for row in kept)}
        empty = told.pop("it has no value")
        assert (empty["topic"], empty["partition"]) == (f"{scene.prefix}-{name}", 0)
        (bad,) = told.values()
        value = bad["value"].encode() if kind == "json" else base64.b64decode(bad["value"])
        assert (value, bad["offset"] + 1) == (BAD[name], empty["offset"])
    shown = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert not any(PASSWORD.encode() in path.read_bytes() for path in shown), "a secret is in the checkpoint"
    assert without_secrets(f"x{PASSWORD}y") == "x***y"


# Brokers that go away -------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_broker_that_is_killed_under_sources_links_and_a_sink_changes_no_answer(spark: Any, tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    with Broker(tmp_path / "broker") as broker:
        scene = TopicScene(tmp_path, broker).make()
        sql = "SELECT a.id AS a_id, c.id AS c_id FROM a [RANGE 5 SECONDS], c [RANGE 5 SECONDS] WHERE a.k = c.k"
        scene.queries = {"ab": sql}  # type: ignore[misc]
        reached = {"bootstrap.servers": broker.servers}
        sink = {"format": "kafka", "options": {"topic": f"{scene.prefix}-ab", **reached}}
        streams = {
            name: {
                "site": site,
                "schema": DDL,
                "event_time": "ts",
                "watermark": "20 seconds",
                "source": {
                    "format": "kafka",
                    "payload": PAYLOADS[name],
                    "options": {"subscribe": f"{scene.prefix}-{name}", **reached},
                },
            }
            for name, site in (("a", "ams"), ("c", "nyc"))
        }
        transport = {"kind": "kafka", "topics": scene.prefix, "options": reached}
        described = {"sites": ["ams", "nyc"], "durability": "process", "streams": streams, "link_transport": transport}
        path = tmp_path / "topology.yaml"
        path.write_text(yaml.safe_dump(described | {"queries": {"ab": {"sql": sql, "site": "nyc", "sink": sink}}}))

        def answers() -> Bag:
            found = [json.loads(message.value()) for message in committed(broker.servers, f"{scene.prefix}-ab")]
            return Counter((row["a_id"], row["c_id"]) for row in found)

        handle = wm.start(wm.load_topology(path), spark=spark, checkpoint=tmp_path / "checkpoint", warn=None)
        try:
            for kill in range(3):
                for seed, name in enumerate("ac"):
                    scene.produce(name, clean(seed + 10 * kill, first=210 * kill))
                if kill == 0:  # something is under way
                    wait_for(lambda: bool(answers()), "no answers", lambda: raise_of(handle))
                broker.kill()
                broker.start()
                expected = scene.expected("ab")
                wait_for(lambda wanted=expected: answers() == wanted, "it does not go on", lambda: raise_of(handle))  # type: ignore[misc]
        finally:
            handle.stop()
        assert answers() == scene.expected("ab") and len(scene.expected("ab")) > 300


def raise_of(handle: wm.StreamingRun) -> None:
    error = handle.exception()
    assert error is None, error


# Sinks ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def topic(kafka_broker: Broker) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    make_topics(kafka_broker.servers, name)
    return name


START = Start("this")  # Kafka itself tells the newer of two producers


def writer_of(spark: Any, broker: Broker, topic: str, **options: str) -> KafkaWriter:
    sink = Sink("kafka", options={"topic": topic, "bootstrap.servers": broker.servers, **options})
    return KafkaWriter(spark, sink, f"q-{topic}", lambda text: None)


def values(broker: Broker, topic: str) -> list[int]:
    return [json.loads(message.value())["id"] for message in committed(broker.servers, topic)]


def test_of_two_processes_the_newer_one_writes_and_what_the_topic_has_is_not_written_again(
    spark: Any, kafka_broker: Broker, topic: str
) -> None:
    rows = [spark.range(number, number + 1) for number in range(5)]
    older = writer_of(spark, kafka_broker, topic)
    older.resume_after(0, 0, START)
    older.write(rows[1], 1, replay=False)
    older._producer.begin_transaction()  # killed in the middle of the second micro-batch
    older._produce(older._producer, older._messages(rows[2]), 2)
    newer = writer_of(spark, kafka_broker, topic)
    newer.resume_after(2, 1, START)
    assert newer.write(rows[1], 1, replay=True) == 0
    newer.write(rows[2], 2, replay=True)
    with pytest.raises(CheckpointMismatch, match=r"^topic \S+ is written by another process of the same run"):
        older.write(rows[2], 2, replay=False)
    newer.write(rows[3], 3, replay=False)
    assert values(kafka_broker, topic) == [1, 2, 3]
    headers = [dict(message.headers())["watersmeet"] for message in committed(kafka_broker.servers, topic)]
    assert headers == [f"q-{topic} {batch}".encode() for batch in (1, 2, 3)]
    copied = writer_of(spark, kafka_broker, topic)
    with pytest.raises(CheckpointMismatch, match="up to micro-batch 3, and the checkpoint is of micro-batch 1"):
        copied.resume_after(1, 1, START)
    for writer in (older, newer, copied):
        writer.close()


def test_where_brokers_have_forgotten_how_far_a_topic_is_nothing_is_guessed(
    spark: Any, kafka_broker: Broker, topic: str
) -> None:
    refusing = writer_of(spark, kafka_broker, topic)
    with pytest.raises(RunError, match=r"brokers have forgotten .* option lost_offsets: skip if the last answers are"):
        refusing.resume_after(2, 1, START)
    skipping = writer_of(spark, kafka_broker, topic, lost_offsets="skip")
    skipping.resume_after(2, 1, START)
    assert [skipping.write(spark.range(1), batch, replay=True) for batch in (2, 3)] == [0, 1]
    for writer in (refusing, skipping):
        writer.close()


def test_a_topic_that_is_not_there_and_brokers_that_are_not_are_said_in_a_sentence(
    spark: Any, kafka_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watersmeet.spark.deliver.kafka._WAIT_S", 0.3)
    warned: list[str] = []
    sink = Sink("kafka", options={"topic": "t", "bootstrap.servers": "127.0.0.1:1"})
    writer = KafkaWriter(spark, sink, "q", warned.append)
    monkeypatch.setattr("watersmeet.spark.deliver.kafka._START_S", 2.0)
    with pytest.raises(RunError, match=r"^the sink, topic t, cannot be written: .*Connection refused.*start the brok"):
        writer.resume_after(0, 0, START)
    assert len(warned) == 1 and "it goes on when it can be" in warned[0]
    writer.close()
    monkeypatch.setattr("watersmeet.spark.deliver.kafka._WAIT_S", 2.0)
    monkeypatch.setattr("watersmeet.spark.deliver.kafka._START_S", float(PATIENCE_S))
    monkeypatch.setattr("watersmeet.spark.deliver.kafka._COMMIT_S", 3.0)
    password = {**kafka_broker.secure_options, "sasl.password": "not-the-password"}
    writer = KafkaWriter(spark, Sink("kafka", options={"topic": "t", **password}), "q", warned.append)
    with pytest.raises(RunError, match=r"^the sink, topic t, cannot be written: .*uthentication failed.*correct the"):
        writer.resume_after(0, 0, START)
    writer.close()
    writer = writer_of(spark, kafka_broker, "nowhere")
    with pytest.raises(RunError, match=r"^the sink, topic nowhere, cannot be written: brokers have no such topic; "):
        writer.resume_after(0, 0, START)
    writer.close()


# Options --------------------------------------------------------------------------------------------------------------


def test_options_are_one_dialect_for_all_clients() -> None:
    given = {
        "subscribe": "t",
        "bootstrap.servers": "b:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": 'hush"hush',
        "ssl.ca.location": "/ca.pem",
        "kafka.max.poll.records": "7",
        "kafkaConsumer.pollTimeoutMs": "9",
    }
    java = spark_options(given, "the source")
    login = java.pop("kafka.sasl.jaas.config")
    assert login.endswith('scram.ScramLoginModule required username="me" password="hush\\"hush";')
    assert java == {
        "subscribe": "t",
        "kafka.bootstrap.servers": "b:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.max.poll.records": "7",
        "kafkaConsumer.pollTimeoutMs": "9",
    }
    del given["kafkaConsumer.pollTimeoutMs"]
    assert client_options({**given, "fetchOffset.numRetries": "3"}) == {
        name.removeprefix("kafka."): given[name] for name in given if "." in name
    }
    assert without_secrets('password is hush"hush') == "password is ***"
    assert CONNECTOR == kafka_options.CONNECTOR


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ({"options": {"bootstrap.servers": "b"}}, "needs a topic, such as options"),
        ({"options": {"subscribe": "t"}}, "needs to know its brokers"),
        ({"payload": "xml"}, "unknown payload format 'xml'; known: arrow, avro, json, parquet"),
        ({"payload": "avro"}, "Avro is read with the schema that it was written with"),
        ({"payload": {"format": "avro", "schema": "{"}}, "the Avro schema is not JSON"),
        ({"payload": {"format": "json", "key": "z"}}, "the key of its payload, 'z', is not one of its columns"),
        ({"format": "json", "path": "x", "payload": "json"}, "payload is for format kafka"),
    ],
)
def test_sources_that_cannot_be_are_refused(spark: Any, tmp_path: Path, source: dict[str, Any], cause: str) -> None:
    options = {"subscribe": "t", "bootstrap.servers": "127.0.0.1:1"}
    stream = {"schema": DDL, "event_time": "ts", "source": {"format": "kafka", "options": options, **source}}
    topology = {"streams": {"a": stream}, "queries": {"q": {"sql": "SELECT id FROM a [RANGE 1 SECOND]"}}}
    path = tmp_path / "topology.yaml"
    path.write_text(yaml.safe_dump(topology))
    with pytest.raises(InputError, match=cause):
        wm.start(wm.load_topology(path), spark=spark, once=True, checkpoint=tmp_path / "checkpoint")


def test_answers_that_cannot_be_written_are_refused(spark: Any) -> None:
    sink = Sink("kafka", options={"topic": "t", "bootstrap.servers": "b"}, payload=Payload(key="k"))
    writer = KafkaWriter(spark, sink, "q", lambda text: None)
    with pytest.raises(InputError, match="the key of topic t, 'k', is no column of the answers"):
        writer.expect(spark.range(1).schema)
    with pytest.raises(InputError, match="answers are written as json or avro, not arrow"):
        Sink("kafka", payload=Payload("arrow"))
