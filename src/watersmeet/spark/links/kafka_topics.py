"""Making, finding and shortening the topics of links."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

WAIT_S = 10.0  # for brokers, before they count as out of reach
_LONGEST_MS = 300_000  # that clients let a request wait
_PARTITIONS = 3
_POLL_S = 0.05
_EVERY_S = 1.0  # between requests to delete records of a partition
_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}  # only we delete

_PASSING = (  # while brokers or clients do not know yet of a topic that was made, or made anew
    *(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART),
    *(
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    ),
)


_LASTING = (  # while brokers do not answer: why no waiting helps
    *(KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED),
    *(KafkaError.UNSUPPORTED_SASL_MECHANISM, KafkaError._UNSUPPORTED_FEATURE),
)


def client_settings(options: Mapping[str, str], wait_s: float = WAIT_S) -> dict[str, Any]:
    """Settings of every client: the user's, and no talk on the standard error about what is tried again anyway."""
    socket_ms = min(int(max(WAIT_S, wait_s) * 1_000), _LONGEST_MS)
    return {"log_level": 0, "socket.timeout.ms": socket_ms, "reconnect.backoff.max.ms": 1_000, **options}


def offsets_of(ask: Callable[[], list[TopicPartition]], wait_s: float) -> list[TopicPartition]:
    """What a consumer says to a question about offsets; leaders of a topic that was just made are waited for."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            found = ask()
            for partition in found:
                if partition.error is not None:
                    raise KafkaException(partition.error)
            return found
        except KafkaException as error:
            if error.args[0].code() not in _PASSING or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


class LastError:
    """The last that a client has said of its brokers: more than that they do not answer, such as why they refuse it.

    It is said when the client is polled.
    """

    def __init__(self) -> None:
        self.text = ""
        self.is_lasting = False  # that it is what no waiting helps against

    def __call__(self, error: KafkaError) -> None:
        if error.code() in _LASTING:
            self.text, self.is_lasting = error.str(), True
        elif not self.text or (error.code() != KafkaError._ALL_BROKERS_DOWN and not self.is_lasting):
            self.text = error.str()  # that all are down says nothing of why they are


class Shortening:
    """Deletes the first records of a partition now and then, without waiting for it; what has failed is asked again."""

    def __init__(self, topics: "Topics", topic: str, partition: int) -> None:
        self._topics, self._topic, self._partition = topics, topic, partition
        self._asked: tuple[int, Future[Any]] | None = None
        self._asked_at = -math.inf
        self._done = 0

    @property
    def first(self) -> int:
        """The offset before which nothing is kept any more."""
        if self._asked is not None and self._asked[1].done():
            offset, answer = self._asked
            self._asked = None
            if answer.exception() is None:
                self._done = max(self._done, offset)
        return self._done

    def is_due(self, offset: int, *, at_once: bool = False) -> bool:
        """Whether records before an offset are there that nobody has asked to delete, and not just asked for others."""
        is_time = at_once or time.monotonic() - self._asked_at >= _EVERY_S
        return is_time and offset > self.first and self._asked is None

    def ask(self, offset: int, *, at_once: bool = False) -> None:
        """Have the records before an offset deleted, if that is due."""
        if self.is_due(offset, at_once=at_once):
            self._asked_at = time.monotonic()
            self._asked = offset, self._topics.delete_before(self._topic, self._partition, offset)


class Topics:
    """The topics of the links of one site."""

    def __init__(self, settings: Mapping[str, Any], wait_s: float = WAIT_S) -> None:
        self._wait_s = wait_s
        self._last_error = LastError()
        client: dict[str, Any] = {**settings, "error_cb": self._last_error}
        self._admin = AdminClient(client)

    @property
    def complaint(self) -> str:
        """What the client has said of the brokers last."""
        self._admin.poll(0)
        return self._last_error.text

    @property
    def is_refused(self) -> bool:
        """Whether brokers are there and do not want this client, such as for a wrong password."""
        self._admin.poll(0)
        return self._last_error.is_lasting

    def make(self, topic: str, config: Mapping[str, str] = _CONFIG) -> str:
        """Make a topic if it is not there; its identity."""
        new = NewTopic(topic, num_partitions=_PARTITIONS, replication_factor=-1, config=dict(config))
        try:
            wait_s = self._wait_s
            self._admin.create_topics([new], operation_timeout=wait_s, request_timeout=wait_s)[topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            self._mend(topic, config)
        deadline = time.monotonic() + self._wait_s
        while (identity := self.identity(topic)) is None:  # brokers may take a moment to know of it
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
            time.sleep(_POLL_S)
        return identity

    def _mend(self, topic: str, config: Mapping[str, str]) -> None:
        """Give a topic that a broker has made by itself, when it was written to, what it lacks."""
        more = NewPartitions(topic, _PARTITIONS)
        with contextlib.suppress(KafkaException):  # it has them
            self._admin.create_partitions([more], request_timeout=self._wait_s)[topic].result()
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        for done in self._admin.incremental_alter_configs([resource], request_timeout=self._wait_s).values():
            done.result()

    def identity(self, topic: str) -> str | None:
        """What tells a topic from others that had its name; None if there is none."""
        return self.identities([topic])[topic]

    def identities(self, topics: Sequence[str]) -> dict[str, str | None]:
        """The same of several, by one request."""
        if not topics:
            return {}
        asked = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=self._wait_s)
        return {topic: self._identity(asked[topic]) for topic in topics}

    def _identity(self, asked: "Future[Any]") -> str | None:
        try:
            found = asked.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise
        return str(found.topic_id) if len(found.partitions) == _PARTITIONS else None

    def delete_before(self, topic: str, partition: int, offset: int) -> "Future[Any]":
        """Have the records before an offset deleted; what is done when they are."""
        place = TopicPartition(topic, partition, offset)
        return next(iter(self._admin.delete_records([place], request_timeout=self._wait_s).values()))

    def remove(self, topics: Sequence[str]) -> None:
        """Delete those of some topics that are there."""
        for done in self._admin.delete_topics(
            list(topics), operation_timeout=self._wait_s, request_timeout=self._wait_s
        ).values():
            try:
                done.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
