"""What links ask of brokers: to take records, to say how far partitions are, to hand out a parcel again."""

import contextlib
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka import KafkaError as Cause

from watersmeet.spark.links.kafka_log import PARCELS, PART_BYTES, LogPlace, read_part
from watersmeet.spark.links.kafka_topics import WAIT_S, Topics, client_settings, offsets_of

Partition: TypeAlias = tuple[str, int]  # of a topic

POLL_S = 0.1
FLUSH_BYTES = 16_000_000  # of parcels on their way to brokers at a time
_FETCH_BYTES = 8_000_000  # of a partition at a time: some parts of parcels, not one
_RECORD_OVERHEAD = 1_000
_UNANSWERED = (Cause._TIMED_OUT, Cause._TIMED_OUT_QUEUE, Cause._TRANSPORT, Cause._ALL_BROKERS_DOWN)


class BrokersAway(Exception):
    """Brokers do not answer, or refuse; the text says what was the matter with which of them."""


class KafkaClient:
    """A producer and two consumers: one that reads all links, and one that only looks."""

    def __init__(self, options: Mapping[str, str], group: str, wait_s: float = WAIT_S) -> None:
        settings = client_settings(options, wait_s)
        self._servers = options.get("bootstrap.servers", "")
        self._wait_s = wait_s
        self.topics = Topics(settings, wait_s)
        self._producer = Producer(
            {
                **settings,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 0,
                "message.max.bytes": PART_BYTES + _RECORD_OVERHEAD,
                "message.timeout.ms": int(wait_s * 1_000),
                "queue.buffering.max.kbytes": 2 * FLUSH_BYTES // 1_000,
            }
        )
        consumer = {
            **settings,
            "group.id": group,  # it is asked for, and not used: offsets are in ledgers
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 50,
            "retry.backoff.ms": 50,
            "fetch.queue.backoff.ms": 50,
            "fetch.message.max.bytes": _FETCH_BYTES,
            "queued.max.messages.kbytes": 16_384,
            "allow.auto.create.topics": False,
        }
        self._reader, self._looker = Consumer(consumer), Consumer(consumer)
        self._looking = threading.Lock()

    def close(self) -> None:
        """End all connections; what is on its way is waited for."""
        self._producer.flush(min(self._wait_s, WAIT_S))
        for consumer in (self._reader, self._looker):
            consumer.close()

    # -- reading on

    def read_from(self, places: Mapping[Partition, int | None]) -> None:
        """Read partitions from an offset on, or from the first that they have."""
        beginnings = {place: OFFSET_BEGINNING if offset is None else offset for place, offset in places.items()}
        self._reader.assign([TopicPartition(*place, offset) for place, offset in beginnings.items()])

    def read(self) -> list[Message]:
        """The next records, as far as there are some soon."""
        with self._explained():
            first = self._reader.poll(POLL_S)  # `consume` would wait for as many as it may return
            found = [] if first is None else [first, *self._reader.consume(500, 0)]
        return [message for message in found if message.error() is None]

    # -- asking

    def first_offsets(self, places: Collection[Partition]) -> dict[Partition, int]:
        """The offsets of the first records that partitions have."""
        return self._offsets(places, OFFSET_BEGINNING)

    def next_offsets(self, places: Collection[Partition]) -> dict[Partition, int]:
        """The offsets that the next records of partitions will have, by one request to each broker."""
        return self._offsets(places, OFFSET_END)

    def _offsets(self, places: Collection[Partition], which: int) -> dict[Partition, int]:
        asked = [TopicPartition(*place, which) for place in places]

        def ask() -> list[TopicPartition]:
            with self._looking:
                return self._looker.offsets_for_times(asked, self._wait_s)

        with self._explained():
            found = offsets_of(ask, self._wait_s)
        return {(partition.topic, partition.partition): partition.offset for partition in found}

    def parcel(self, topic: str, place: LogPlace) -> bytes | None:
        """A parcel by its place; None if its topic does not hold it any more."""
        parts: list[bytes] = []
        deadline = time.monotonic() + self._wait_s
        with self._looking, self._explained():
            self._looker.assign([TopicPartition(topic, PARCELS, place.first)])
            try:
                while time.monotonic() < deadline:
                    for message in self._looker.consume(64, POLL_S):
                        if message.error() is not None:
                            continue
                        part = read_part(message.key() or b"")
                        if part is not None and part.parcel == place.copy and part.part == len(parts) + 1:
                            parts.append(message.value() or b"")
                            if part.part == part.parts:
                                return b"".join(parts)
                        if (message.offset() or 0) > place.last:
                            return None
            finally:
                self._looker.unassign()
        raise self._silence

    # -- writing

    def append(self, topic: str, partition: int, records: Sequence[tuple[bytes, bytes]]) -> list[int]:
        """Have brokers take records, in order; their offsets."""
        offsets: list[int] = []
        failed: list[str] = []

        def delivered(error: Cause | None, message: Message) -> None:
            if error is not None:
                failed.append(error.str())
            else:
                offsets.append(message.offset() or 0)

        for key, value in records:
            while True:
                with self._explained():
                    try:
                        self._producer.produce(topic, value, key, partition, delivered)
                        break
                    except BufferError:
                        self._producer.poll(POLL_S)
        deadline = time.monotonic() + self._wait_s + 1
        while len(offsets) + len(failed) < len(records) and time.monotonic() < deadline:
            self._producer.poll(POLL_S)
        if failed:
            raise self.away(failed[0])
        if len(offsets) < len(records):
            raise self._silence
        return offsets

    # -- errors

    def away(self, cause: str) -> BrokersAway:
        """The error for a cause."""
        return BrokersAway(f"{cause} (brokers {self._servers})")

    def _unanswered(self, cause: str) -> BrokersAway:
        """The error where nothing came in time, with what the client knows of why."""
        why = self.topics.complaint
        return self.away(f"{cause}; {why}" if why else cause)

    @property
    def _silence(self) -> BrokersAway:
        return self._unanswered("the brokers do not answer")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self.explained(error) from None

    def explained(self, error: KafkaException) -> BrokersAway:
        """The same error in words."""
        cause = error.args[0] if error.args else error
        if not isinstance(cause, Cause):
            return self.away(str(cause))
        return self._unanswered(cause.str()) if cause.code() in _UNANSWERED else self.away(cause.str())

    def may_answer(self, error: KafkaException) -> bool:
        """Whether brokers have not answered, and still may."""
        cause = error.args[0] if error.args else error
        return isinstance(cause, Cause) and cause.code() in _UNANSWERED and not self.topics.is_refused
