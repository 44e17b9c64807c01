"""Answers as messages of a Kafka topic, each micro-batch in one transaction: exactly once for readers of committed
messages (`isolation.level=read_committed`).

The transaction also commits, as an offset of a consumer group named like its transactional id, the number of the
micro-batch. So the brokers say up to which micro-batch a topic has answers, whatever has died in between: what the
ledger gives again after a crash is passed over. With that offset goes the name of the process that holds the sink.
"""

import contextlib
import math
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from watersmeet.errors import CheckpointMismatch, InputError, RunError, did_you_mean
from watersmeet.spark.deliver.claims import Start
from watersmeet.spark.deliver.writer import Writer
from watersmeet.spark.kafka_options import GET_CONNECTOR, client_options
from watersmeet.spark.session import option_values
from watersmeet.topology.model import Query, Sink
from watersmeet.topology.payload import Payload

HEADER = "watersmeet"  # of every message: the run and the micro-batch
_WAIT_S = 10.0  # for brokers, before they count as out of reach
_START_S = 60.0  # at a start, before it is refused
_COMMIT_S = 15.0
_AGAIN_S = 0.5
_MICROS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
_UNKNOWN = -2  # micro-batch; -1 is before the first
_LOST = ("refuse", "deliver", "skip")  # what is given again when brokers have forgotten how far the topic is
_NO_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")
_LASTING = (  # causes that trying again does not cure
    *("TOPIC_AUTHORIZATION_FAILED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED"),
    *("CLUSTER_AUTHORIZATION_FAILED", "SASL_AUTHENTICATION_FAILED", "_AUTHENTICATION", "_INVALID_ARG"),
    *("MSG_SIZE_TOO_LARGE", "_MSG_SIZE_TOO_LARGE"),
)


def check_kafka_sink(query: Query) -> None:
    """Refuse a sink of Kafka that no run could write, before anything runs."""
    options = query.sink.options
    for name, example in (("topic", "answers"), ("bootstrap.servers", "'broker1:9092,broker2:9092'")):
        if not options.get(name) and not options.get(f"kafka.{name}"):
            raise InputError(
                f"query {query.name!r}: a sink of format kafka needs {name}, such as options: {{{name}: {example}}}"
            )
    lost = options.get("lost_offsets", _LOST[0])
    if lost not in _LOST:
        raise InputError(f"query {query.name!r}: unknown lost_offsets {lost!r}; {did_you_mean(lost, _LOST)}")
    _clients()


def _clients() -> Any:
    try:
        import confluent_kafka
    except ImportError:
        raise InputError(
            "a sink of format kafka needs the package confluent-kafka; install it with pip install 'watersmeet[kafka]'"
        ) from None
    return confluent_kafka


class KafkaWriter(Writer):
    """A topic of Kafka."""

    def __init__(self, spark: SparkSession, sink: Sink, run_id: str, warn: Callable[[str], object]) -> None:
        self._kafka = _clients()
        self._payload = sink.payload or Payload()
        options = option_values(spark, sink.options, "a sink of format kafka")
        self._topic = options["topic"]
        self._lost = options.get("lost_offsets", _LOST[0])
        self._complaint: Any = None  # the last error that clients have told of, which says why brokers do not answer
        known = {"log_level": 0, "reconnect.backoff.max.ms": 1_000, "error_cb": self._note}
        self._settings = {**known, **client_options(options)}
        self._json = {name: value for name, value in options.items() if "." not in name and name not in ("topic",)}
        self._run_id, self._name = run_id, f"watersmeet-{run_id}"
        self._token = uuid.uuid4().hex[:12]
        self._warn = warn
        self._written = -1  # the last micro-batch that the topic has
        self._is_holding = False
        self._producer: Any = None
        self._group: Any = None
        self._stopping = threading.Event()

    # -- what a sink does

    def expect(self, schema: StructType) -> None:
        """Refuse answers that cannot be written."""
        key = self._payload.key
        if key is not None and key not in schema.names:
            raise InputError(
                f"the key of topic {self._topic}, {key!r}, is no column of the answers; "
                + did_you_mean(key, schema.names)
            )
        if twice := sorted({name for name in schema.names if schema.names.count(name) > 1}):
            raise InputError(f"topic {self._topic}: answers have columns of one name, {twice[0]!r}; rename one with AS")

    def resume_after(self, batch: int, delivered: int, start: Start) -> None:
        """Take hold of the topic; a process that held it before can commit nothing any more."""
        self._trying(lambda: self._take_hold(batch, delivered < batch), _START_S)

    def write(self, rows: DataFrame, batch: int, *, replay: bool) -> int:
        if batch <= self._written:
            return 0
        messages = self._messages(rows)
        self._trying(lambda: self._commit(messages, batch))
        return int(messages.num_rows)

    def give_up(self) -> None:
        """Wait no longer for brokers."""
        self._stopping.set()

    def close(self) -> None:
        self._drop()
        if self._group is not None:
            self._group.close()
            self._group = None

    # -- messages

    def _messages(self, rows: DataFrame) -> pa.Table:
        """Key and value of each answer."""
        value = F.struct(*(F.col(f"`{name.replace('`', '``')}`") for name in rows.columns))
        key = F.lit(None).cast("binary")
        if self._payload.key is not None:
            named = F.col(f"`{self._payload.key.replace('`', '``')}`")
            kind = rows.schema[self._payload.key].dataType.simpleString()
            key = named if kind == "binary" else named.cast("string").cast("binary")
        try:
            if self._payload.format == "avro":
                from pyspark.sql.avro.functions import to_avro

                written = to_avro(value, self._payload.schema or "")
            else:
                options = {"timestampFormat": _MICROS, "ignoreNullFields": "false", **self._json}
                written = F.to_json(value, options).cast("binary")
            return rows.select(key.alias("key"), written.alias("value")).toArrow()
        except TypeError as error:
            if "JavaPackage" not in str(error):
                raise
            raise InputError(f"topic {self._topic}: Spark cannot write Avro by itself; {GET_CONNECTOR}") from None

    # -- transactions

    def _connect(self) -> None:
        """Have a producer that is the only one of its name; what another one of it has begun is over."""
        if self._group is None:
            own = {"group.id": self._name, "enable.auto.commit": False, "isolation.level": "read_committed"}
            self._group = self._kafka.Consumer({**self._settings, **own})
        if self._producer is None:
            own = {"transactional.id": self._name, "partitioner": "murmur2_random", "linger.ms": 5}
            self._producer = self._kafka.Producer({**own, "compression.type": "lz4", **self._settings})
            self._producer.init_transactions(_WAIT_S)
            batch, holder = self._committed()
            if self._is_holding:
                if holder != self._token:
                    raise self._in_use()
                self._written = batch

    def _committed(self) -> tuple[int, str]:
        """The last micro-batch that the topic has, and who has said so; _UNKNOWN if brokers do not know."""
        place = self._kafka.TopicPartition(self._topic, 0)
        found = self._group.committed([place], _WAIT_S)[0]
        if found.error is not None:
            raise self._kafka.KafkaException(found.error)
        return (_UNKNOWN, "") if found.offset < 0 else (found.offset - 1, str(found.metadata or ""))

    def _take_hold(self, batch: int, replay: bool) -> None:
        self._connect()
        written, _ = self._committed()
        if written > batch:
            raise CheckpointMismatch(
                f"topic {self._topic} has answers of this run up to micro-batch {written}, and the checkpoint is of "
                f"micro-batch {batch}, before them; go on with the checkpoint that came last, or begin anew with "
                "--fresh and another topic"
            )
        if written == _UNKNOWN and replay:  # there was a process before, and it has said how far it was
            if self._lost == "refuse":
                raise RunError(
                    f"brokers have forgotten up to which micro-batch topic {self._topic} has answers, as they do after "
                    f"offsets.retention.minutes; see the header {HEADER} of its last messages of run {self._run_id}, "
                    "and give the sink the option lost_offsets: skip if the last answers are there, or deliver if not"
                )
            written = batch if self._lost == "skip" else written
        self._written = written
        self._in_transaction(lambda producer: None, written)
        self._is_holding = True

    def _commit(self, messages: pa.Table, batch: int) -> None:
        self._connect()
        if batch > self._written:
            self._in_transaction(lambda producer: self._produce(producer, messages, batch), batch)
            self._written = batch

    def _in_transaction(self, produce: Callable[[Any], None], batch: int) -> None:
        """Commit messages and the number of their micro-batch, all or nothing.

        librdkafka may wait for ever for a coordinator that was killed, whatever the timeout: so this has a thread,
        which is left behind then. What it still does is over once the next producer of the name is there.
        """
        producer, group = self._producer, self._group.consumer_group_metadata()
        place = self._kafka.TopicPartition(self._topic, 0, max(batch, -1) + 1, self._token)
        outcome: list[BaseException | None] = []

        def commit() -> None:
            try:
                producer.begin_transaction()
                produce(producer)
                producer.send_offsets_to_transaction([place], group, _COMMIT_S)
                producer.commit_transaction(_COMMIT_S)
                outcome.append(None)
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=commit, name=f"commit-{self._name}", daemon=True)
        thread.start()
        thread.join(2 * _COMMIT_S)
        if not outcome:
            self._producer = None
            raise self._kafka.KafkaException(self._kafka.KafkaError(self._kafka.KafkaError._TIMED_OUT))
        if outcome[0] is not None:
            raise outcome[0]

    def _produce(self, producer: Any, messages: pa.Table, batch: int) -> None:
        header = [(HEADER, f"{self._run_id} {batch}".encode())]
        for piece in messages.to_batches():
            for key, value in zip(piece.column(0).to_pylist(), piece.column(1).to_pylist(), strict=True):
                while True:
                    try:
                        producer.produce(self._topic, value, key, headers=header)
                        break
                    except BufferError:
                        producer.poll(0.1)

    def _trying(self, step: Callable[[], None], patience_s: float = math.inf) -> None:
        """Do something until brokers have done it: each attempt asks them first whether one before it has succeeded."""
        has_warned, deadline = False, time.monotonic() + patience_s
        self._complaint = None
        while True:
            try:
                step()
                return
            except self._kafka.KafkaException as error:
                self._drop()
                names, text = {error.args[0].name()}, error.args[0].str()
                if self._complaint is not None:
                    names.add(self._complaint.name())
                    text = f"{text.split(', retry')[0]} ({self._complaint.str()})"
                if names & set(_NO_TOPIC):
                    raise self._unwritable("brokers have no such topic") from None
                if names & set(_LASTING):
                    raise self._unwritable(text) from None
                if self._stopping.is_set() or time.monotonic() > deadline:
                    raise self._unwritable(f"{text}; what is not there yet stays in the checkpoint") from None
                if not has_warned:
                    self._warn(f"topic {self._topic} cannot be written: {text}; it goes on when it can be")
                    has_warned = True
                self._stopping.wait(_AGAIN_S)

    def _drop(self) -> None:
        """Let go of the producer, and leave what it has begun to the next one."""
        if self._producer is not None:
            self._producer.purge()
            with contextlib.suppress(self._kafka.KafkaException):  # one that is fenced cannot be asked any more
                self._producer.poll(0)  # it says why brokers do not answer, if it knows
            self._producer = None

    def _note(self, error: Any) -> None:
        if self._complaint is None or error.code() != self._kafka.KafkaError._ALL_BROKERS_DOWN:
            self._complaint = error

    def _unwritable(self, cause: str) -> RunError:
        return RunError(
            f"the sink, topic {self._topic}, cannot be written: {cause}; make the topic, correct the sink's options or "
            "start the brokers, and start the run again"
        )

    def _in_use(self) -> CheckpointMismatch:
        return CheckpointMismatch(
            f"topic {self._topic} is written by another process of the same run, which has this checkpoint or a copy "
            "of it; stop that process, or give --checkpoint and the sink another place"
        )
