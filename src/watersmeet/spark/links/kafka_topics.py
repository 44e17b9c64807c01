"""Making, finding and shortening the topics of links."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

_PARTITIONS = 3
_WAIT_S, _POLL_S = 10.0, 0.05
_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}  # only we delete


def client_settings(options: Mapping[str, str]) -> dict[str, Any]:
    """Settings of every client: the user's, and no talk on the standard error about what is tried again anyway."""
    return {"log_level": 0, "socket.timeout.ms": 10_000, "reconnect.backoff.max.ms": 1_000, **options}


class Shortening:
    """Deletes the first records of a partition, without waiting for it; what has failed is asked for again."""

    def __init__(self, topics: "Topics", topic: str, partition: int) -> None:
        self._topics, self._topic, self._partition = topics, topic, partition
        self._asked: tuple[int, Future[Any]] | None = None
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

    def is_due(self, offset: int) -> bool:
        """Whether records before an offset are there that nobody has asked to delete."""
        return offset > self.first and self._asked is None

    def ask(self, offset: int) -> None:
        """Have the records before an offset deleted, unless another request is under way."""
        if self.is_due(offset):
            self._asked = offset, self._topics.delete_before(self._topic, self._partition, offset)


class Topics:
    """The topics of the links of one site."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._admin = AdminClient(dict(settings))

    def make(self, topic: str) -> str:
        """Make a topic if it is not there; its identity."""
        new = NewTopic(topic, num_partitions=_PARTITIONS, replication_factor=-1, config=dict(_CONFIG))
        try:
            self._admin.create_topics([new], operation_timeout=_WAIT_S, request_timeout=_WAIT_S)[topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            self._mend(topic)
        deadline = time.monotonic() + _WAIT_S
        while (identity := self.identity(topic)) is None:  # brokers may take a moment to know of it
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
            time.sleep(_POLL_S)
        return identity

    def _mend(self, topic: str) -> None:
        """Give a topic that a broker has made by itself, when it was written to, what it lacks."""
        more = NewPartitions(topic, _PARTITIONS)
        with contextlib.suppress(KafkaException):  # it has them
            self._admin.create_partitions([more], request_timeout=_WAIT_S)[topic].result()
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in _CONFIG.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        for done in self._admin.incremental_alter_configs([resource], request_timeout=_WAIT_S).values():
            done.result()

    def identity(self, topic: str) -> str | None:
        """What tells a topic from others that had its name; None if there is none."""
        asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=_WAIT_S)[topic]
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
        return next(iter(self._admin.delete_records([place], request_timeout=_WAIT_S).values()))

    def remove(self, topics: Sequence[str]) -> None:
        """Delete those of some topics that are there."""
        for done in self._admin.delete_topics(
            list(topics), operation_timeout=_WAIT_S, request_timeout=_WAIT_S
        ).values():
            try:
                done.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
