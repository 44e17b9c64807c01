"""How sites with links over Kafka are seen: the files of a board as records of one topic, kept for minutes.

A topic is a log, and what dashboards and sites say to each other matters only while they are there: a site reads from
now on what dashboards ask, a dashboard from now on what sites answer, and brokers forget both by themselves. The topic
is made by the first dashboard; until then a site only looks, seldom, whether it is there.
"""

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from confluent_kafka import OFFSET_END, Consumer, KafkaException, Producer, TopicPartition

from watersmeet.spark.links.kafka_log import PART_BYTES
from watersmeet.spark.links.kafka_topics import WAIT_S, Topics, client_settings, offsets_of
from watersmeet.spark.links.protocol import LinkUnreadable, LinkUnwritable

Reads: TypeAlias = Literal["asked", "events"]  # what the names begin with that a process reads

_PARTITION: Mapping[str, int] = {"asked": 0, "events": 1}
_CONFIG = {"cleanup.policy": "delete", "retention.ms": "600000", "segment.ms": "60000"}
_KEPT_S = 60.0  # how long what was read stays to be looked at
_MOST_PARTS = 80  # of a file
_MOST_BEGUN = 8  # files of which some parts have come
_POLL_S = 0.1
_KEY = re.compile(r"(\S{1,300}) (\d{1,4}) (\d{1,4})")


def topic_of(prefix: str) -> str:
    """The topic beside those of links, which have the names of two sites."""
    return f"{prefix}.watch"


def records_of(name: str, data: bytes) -> list[tuple[bytes, bytes]]:
    """A file as keys and values of records that brokers take."""
    parts = [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)] or [b""]
    return [(f"{name} {number} {len(parts)}".encode(), part) for number, part in enumerate(parts, 1)]


class BoardLog:
    """The files that records make, for as long as they are of interest."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, float]] = {}
        self._begun: dict[str, list[bytes]] = {}

    def add(self, key: bytes, value: bytes, now: float) -> None:
        """Take the next record; one that is none of ours, or does not follow, is passed over."""
        found = _KEY.fullmatch(key.decode("ascii", "replace"))
        if found is None:
            return
        name, part, parts = found.group(1), int(found.group(2)), int(found.group(3))
        begun = self._begun.get(name, []) if part > 1 else []
        if not 1 <= part <= parts <= _MOST_PARTS or len(begun) != part - 1:
            return
        begun.append(value)
        self._begun.pop(name, None)
        if part == parts:
            self._files[name] = b"".join(begun), now
        else:  # parts of several writers may come in any order among each other
            self._begun[name] = begun
            while len(self._begun) > _MOST_BEGUN:
                del self._begun[next(iter(self._begun))]  # whoever wrote it has gone

    def files(self, now: float) -> dict[str, bytes]:
        """What was written of late."""
        self._files = {name: file for name, file in self._files.items() if now - file[1] <= _KEPT_S}
        return {name: data for name, (data, _) in self._files.items()}

    def drop(self, name: str) -> None:
        """Forget a file."""
        self._files.pop(name, None)


class KafkaBoard:
    """The board of a process that reads what others ask, or what they answer."""

    every_s = 15.0

    def __init__(self, settings: Mapping[str, str], prefix: str, reads: Reads, *, wait_s: float = WAIT_S) -> None:
        self._settings, self._wait_s = client_settings(settings, wait_s), wait_s
        self._topic, self._reads = topic_of(prefix), reads
        self._log = BoardLog()
        self._topics = Topics(self._settings, wait_s)
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None

    def names(self) -> list[str]:
        """What was written of late of what this process reads."""
        return sorted(self._files())

    def get(self, name: str) -> bytes | None:
        """The same as bytes."""
        return self._files().get(name)

    def put(self, name: str, data: bytes) -> None:
        """Have the brokers take a file."""
        if self._producer is None:
            own = {"enable.idempotence": True, "acks": "all", "message.timeout.ms": int(self._wait_s * 1_000)}
            self._producer = Producer({**self._settings, **own})  # parts stay in order, also while leaders change
        failed: list[str] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error.str())

        partition = _PARTITION[name.partition("-")[0]]
        try:
            for key, value in records_of(name, data):
                self._producer.produce(self._topic, value, key, partition, delivered)
            left = self._producer.flush(self._wait_s + 1)
        except (KafkaException, BufferError) as error:
            raise LinkUnwritable(f"topic {self._topic} cannot be written: {error}; it is tried again") from None
        if failed or left:
            cause = failed[0] if failed else "the brokers do not answer"
            raise LinkUnwritable(f"topic {self._topic} cannot be written: {cause}; it is tried again")

    def delete(self, names: Iterable[str]) -> None:
        """Forget files here; brokers do so after some minutes."""
        for name in names:
            self._log.drop(name)

    def _files(self) -> dict[str, bytes]:
        try:
            if self._consumer is None:
                self._consumer = self._opened()
            if self._consumer is not None:
                while messages := self._consumer.consume(500, 0 if self._log.files(time.monotonic()) else _POLL_S):
                    for message in messages:
                        if message.error() is None:
                            self._log.add(message.key() or b"", message.value() or b"", time.monotonic())
        except KafkaException as error:
            raise LinkUnreadable(f"topic {self._topic} cannot be read: {error}; it is tried again") from None
        return self._log.files(time.monotonic())

    def _opened(self) -> Consumer | None:
        """What reads from now on; None while nobody has ever asked."""
        if self._reads == "events":
            self._topics.make(self._topic, _CONFIG)
        elif self._topics.identity(self._topic) is None:
            return None
        consumer = Consumer(
            {
                **self._settings,
                "group.id": self._topic,  # it is asked for, and not used
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "fetch.wait.max.ms": 5_000,
                "socket.timeout.ms": 20_000,
                "allow.auto.create.topics": False,
            }
        )
        end = TopicPartition(self._topic, _PARTITION[self._reads], OFFSET_END)
        try:
            consumer.assign(offsets_of(lambda: consumer.offsets_for_times([end], self._wait_s), self._wait_s))
        except BaseException:
            consumer.close()
            raise
        return consumer

    def close(self) -> None:
        """End the connections."""
        if self._producer is not None:
            self._producer.flush(1)
        if self._consumer is not None:
            self._consumer.close()
        self._producer = self._consumer = None
