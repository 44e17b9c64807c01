"""Links as topics of Apache Kafka, one a link: `kafka_log` says what their records mean.

A thread reads what brokers have for this site; everything else looks at what it has read. What is published is waited
for until the brokers have it (acks=all). The sender deletes the records of acknowledged parcels, the reader those of
what it has said before.

Nothing here is needed to recover: a topic that is lost is made anew, both ends say again who they are, and the sender
publishes again what was not acknowledged.
"""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from watersmeet.errors import DamagedParcel, InputError
from watersmeet.spark.links.kafka_log import (
    PARCELS,
    PART_BYTES,
    PARTITION,
    READER,
    SENDER,
    EndLog,
    ParcelLog,
    Part,
    Place,
    parts_of,
    read_part,
)
from watersmeet.spark.links.kafka_topics import Shortening, Topics, client_settings
from watersmeet.spark.links.protocol import Link, LinkEnd, LinkUnreadable, LinkUnwritable, Role, Sealed, fenced
from watersmeet.spark.links.seal import OPEN, Seal

try:
    from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
    from confluent_kafka import KafkaError as Cause
except ImportError:
    raise InputError(
        "link_transport: kind kafka needs the package confluent-kafka; install it with pip install 'watersmeet[kafka]'"
    ) from None

_WAIT_S = 10.0  # for brokers, before a link counts as out of reach
_LOOK_S = 1.0  # between looks at whether brokers and topics are there
_POLL_S = 0.1
_FLUSH_BYTES = 16_000_000  # of parcels on their way to brokers at a time
_MOST_STATEMENTS = 500  # of a reader, before those that are over are deleted
_RECORD_OVERHEAD = 1_000
_PASSING = (Cause.NOT_LEADER_FOR_PARTITION, Cause.LEADER_NOT_AVAILABLE, Cause.UNKNOWN_TOPIC_OR_PART)  # of new topics


@dataclass
class _LinkLogs:
    """What one link's topic has said so far."""

    topic: str
    ends: dict[Role, EndLog]
    shortening: dict[int, Shortening]  # by partition
    parcels: ParcelLog = field(default_factory=ParcelLog)
    id: str = ""  # of the topic: another one of the same name has another
    notice: str = ""  # to be said once
    published: dict[int, tuple[int, int]] = field(default_factory=dict)  # by parcel: the attempt, and its first offset
    last_offset: int = -1  # of the parcels that we have published
    statements: list[int] = field(default_factory=list)  # offsets of what we have said, as far as it is not deleted


class KafkaLinks:
    """All links of one site."""

    def __init__(self, settings: Mapping[str, str], prefix: str, site: str, seal: Seal = OPEN) -> None:
        self.site, self.prefix, self.seal = site, prefix, seal
        self._settings = client_settings(settings)
        self._servers = settings.get("bootstrap.servers", "")
        self._topics = Topics(self._settings)
        self._logs: dict[Link, _LinkLogs] = {}
        self._ours: dict[tuple[Link, Role], LinkEnd] = {}
        self._read: dict[tuple[str, int], int] = {}  # by partition: the offset after the last record that was read
        self._changed = threading.Condition()
        self._arrivals = 0
        self._down = ""
        self._closing = threading.Event()
        self._writing = threading.RLock()
        self._looking = threading.Lock()  # at offsets, with a consumer of its own
        self._producer = Producer(
            {
                **self._settings,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 0,
                "message.max.bytes": PART_BYTES + _RECORD_OVERHEAD,
                "message.timeout.ms": int(_WAIT_S * 1_000),
                "queue.buffering.max.kbytes": 2 * _FLUSH_BYTES // 1_000,
            }
        )
        self._consumer = self._new_consumer()
        self._looker = self._new_consumer()
        self._thread: threading.Thread | None = None

    def _new_consumer(self) -> Consumer:
        return Consumer(
            {
                **self._settings,
                "group.id": f"{self.prefix}.{self.site}",  # it is asked for, and not used: offsets are in ledgers
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 50,
                "retry.backoff.ms": 50,
                "fetch.queue.backoff.ms": 50,
                "queued.max.messages.kbytes": 16_384,
                "allow.auto.create.topics": False,
            }
        )

    # -- the ends

    def prepare(self, links: Iterable[Link]) -> None:
        """Make the topics, and read what they hold."""
        made = {}
        for link in links:
            topic = f"{self.prefix}.{link.sender}.{link.reader}"
            try:
                identity = self._topics.make(topic)
            except KafkaException as error:
                raise LinkUnwritable(
                    f"{link} cannot be made: {self._cause(error)}; start the brokers, or correct the options of "
                    "link_transport"
                ) from None
            ends = {role: EndLog(link, role, self.seal) for role in Role}
            made[link] = _LinkLogs(topic, ends, self._shortenings(topic), id=identity)
        with self._changed:
            self._logs |= made
            self._assign()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"links-{self.site}", daemon=True)
            self._thread.start()
        try:
            self.catch_up()
        except LinkUnreadable as error:
            raise LinkUnwritable(str(error)) from None

    def end(self, link: Link, role: Role, below: int | None = None) -> LinkEnd | None:
        """What an end says of itself by its newest epoch."""
        with self._changed:
            self._check(link)
            log = self._logs[link].ends[role]
            end = log.newest if below is None else log.newest_below(below)
            if end is None and log.refused:
                raise self._unreadable(link, f"what {link.site(role)} says of itself is refused, {log.refused}")
            return end

    def claim(self, link: Link, role: Role, end: LinkEnd) -> None:
        """Write our claim, and see whether it is the first of its epoch."""
        log = self._logs[link].ends[role]
        self._refuse_older(link, role, log, end)
        with self._writing_to(link):
            self._append(link, PARTITION[role], [log.statement(end)])
        self.catch_up()
        with self._changed:
            if not log.is_held_by(end):
                newest = log.newest
                raise fenced(link, role, end.epoch if newest is None else newest.epoch, end)
            self._ours[link, role] = end
        if role is Role.SENDER:  # parcels of older epochs that follow this are passed over
            with self._writing_to(link):
                self._append(link, PARCELS, [(Part(0, 1, 1, 1, end.epoch, end.token).key, b"")])

    def _refuse_older(self, link: Link, role: Role, log: EndLog, end: LinkEnd) -> None:
        with self._changed:
            newest = log.newest
        if newest is not None and newest.epoch >= end.epoch:
            raise fenced(link, role, newest.epoch, end)

    def withdraw(self, link: Link, role: Role) -> None:
        """Write that our claim is taken back."""
        end = self._ours.pop((link, role), None)
        if end is not None:
            with contextlib.suppress(LinkUnwritable), self._writing_to(link):
                self._append(link, PARTITION[role], [self._logs[link].ends[role].withdrawal(end)])

    def settle(self, link: Link, role: Role) -> None:
        """Nothing: claims before ours are deleted with what we say later."""

    def _hold(self, link: Link, role: Role) -> LinkEnd:
        """Our end, unless a newer process has taken over; said again where the topic is new."""
        ours, logs = self._ours[link, role], self._logs[link]
        with self._changed:
            newest = logs.ends[role].newest
        if newest is not None and newest.epoch > ours.epoch:
            raise fenced(link, role, newest.epoch, ours)
        if newest is None:
            self._append(link, PARTITION[role], [logs.ends[role].statement(ours)])
        return ours

    # -- parcels

    def publish(self, reader: str, parcels: Iterable[Sealed]) -> None:
        """Have the brokers take parcels, in order; those that they have stay as they are."""
        link = Link(self.site, reader)
        with self._writing_to(link):
            end, logs = self._hold(link, Role.SENDER), self._logs[link]
            with self._changed:
                there = logs.ends[Role.READER]
                acknowledged = 0 if there.newest is None else there.newest.number
                rejected = dict(there.rejected)
            records: list[tuple[bytes, bytes]] = []
            attempts: dict[int, int] = {}
            size = 0
            for parcel in parcels:
                attempt = rejected.get(parcel.number, 0) + 1
                if parcel.number <= acknowledged or logs.published.get(parcel.number, (0, 0))[0] >= attempt:
                    continue
                try:
                    data = parcel.read(link)
                except DamagedParcel:
                    self._append_parcels(link, records, attempts)
                    raise
                records += parts_of(parcel.number, attempt, end, data)
                attempts[parcel.number] = attempt
                size += len(data)
                if size >= _FLUSH_BYTES:
                    self._append_parcels(link, records, attempts)
                    records, attempts, size = [], {}, 0
            self._append_parcels(link, records, attempts)

    def _append_parcels(self, link: Link, records: list[tuple[bytes, bytes]], attempts: Mapping[int, int]) -> None:
        if not records:
            return
        logs = self._logs[link]
        identity = logs.id
        offsets = self._append(link, PARCELS, records)
        if logs.id != identity:  # the topic was lost meanwhile: they are published again
            return
        for (key, _), offset in zip(records, offsets, strict=True):
            part = read_part(key)
            if part is not None and part.part == 1:
                logs.published[part.number] = (attempts[part.number], offset)
        logs.last_offset = max(offsets)

    def acknowledge(self, sender: str, number: int, pace: int) -> None:
        """Tell a sender that its parcels up to a number are durable here, and how far other streams have come."""
        link = Link(sender, self.site)
        with self._writing_to(link):
            before, logs = self._hold(link, Role.READER), self._logs[link]
            end = replace(before, number=number, pace=pace)
            if end != before:
                logs.statements += self._append(link, READER, [logs.ends[Role.READER].statement(end)])
                self._ours[link, Role.READER] = end
                with self._changed:
                    logs.parcels.drop_acknowledged(number)
            self._forget_statements(link, logs, end)

    def _forget_statements(self, link: Link, logs: _LinkLogs, end: LinkEnd) -> None:
        """Delete what we have said before the last statement that we have read back, by which the end is ours.

        What we have just said is not read back yet: it says nothing of whoever may have claimed the end before it.
        """
        shortening = logs.shortening[READER]
        logs.statements = [offset for offset in logs.statements if offset >= shortening.first]
        if len(logs.statements) < _MOST_STATEMENTS:
            return
        with self._changed:
            log = logs.ends[Role.READER]
            read = self._read.get((logs.topic, READER), 0)
            is_sure = log.is_held_by(end) and not log.rejected
        if is_sure:
            shortening.ask(max((offset for offset in logs.statements if offset < read), default=0))

    def has_arrived(self, sender: str, after: int) -> bool:
        """Whether the parcel after a number has been read from the brokers, or can be."""
        link = Link(sender, self.site)
        with self._changed:
            self._check(link)
            return after + 1 in self._logs[link].parcels.places

    def arrived(self, sender: str, after: int) -> Iterator[tuple[int, bytes]]:
        """Parcels from a site beyond a number, as far as none is missing: number and bytes."""
        link = Link(sender, self.site)
        while self.has_arrived(sender, after):
            after += 1
            with self._changed:
                log = self._logs[link].parcels
                data, place = log.cached.get(after), log.places.get(after)
            if data is None and place is not None:
                data = self._fetched(link, place)
            if data is None:
                return
            yield after, data

    def _fetched(self, link: Link, place: Place) -> bytes | None:
        """A parcel that was not kept in memory; None if its topic does not hold it any more."""
        parts: list[bytes] = []
        topic, deadline = self._logs[link].topic, time.monotonic() + _WAIT_S
        with self._looking:
            self._looker.assign([TopicPartition(topic, PARCELS, place.first)])
            try:
                while time.monotonic() < deadline:
                    for message in self._looker.consume(64, _POLL_S):
                        if message.error() is not None:
                            continue
                        part = read_part(message.key() or b"")
                        if part is not None and part.parcel == place.copy and part.part == len(parts) + 1:
                            parts.append(message.value() or b"")
                            if part.part == part.parts:
                                return b"".join(parts)
                        if (message.offset() or 0) > place.last:
                            return None
            except KafkaException as error:
                raise self._unreadable(link, self._cause(error)) from None
            finally:
                self._looker.unassign()
        raise self._unreadable(link, "the brokers do not answer")

    def reject(self, sender: str, number: int) -> int:
        """Ask for a damaged parcel again; how often that was done with this one."""
        link = Link(sender, self.site)
        with self._writing_to(link):
            end, log = self._hold(link, Role.READER), self._logs[link].ends[Role.READER]
            self._append(link, READER, [log.rejection(end, number)])
        with self._changed:
            self._logs[link].parcels.drop(number)
        self.catch_up()
        with self._changed:
            return log.rejected.get(number, 1)

    def wake(self, timeout_s: float) -> None:
        """Return when something has been read, after the timeout at the latest."""
        with self._changed:
            before = self._arrivals
            self._changed.wait_for(lambda: self._arrivals > before, timeout_s)

    def catch_up(self) -> None:
        """Read all that brokers have now."""
        with self._changed:
            wanted = {(logs.topic, one): link for link, logs in self._logs.items() for one in self._partitions(link)}
        for place, link in wanted.items():
            low, high = self._offsets(link, *place)
            if low < high and not self._has_read(place, high):
                raise self._unreadable(link, self._down or "the brokers do not answer")

    def _has_read(self, place: tuple[str, int], high: int) -> bool:
        """Wait until everything before an offset has been read; whether it was."""
        with self._changed:
            return self._changed.wait_for(lambda: self._read.get(place, 0) >= high, _WAIT_S)

    def forget_acknowledged(self, reader: str) -> None:
        """Delete the records of parcels that their reader no longer needs."""
        link = Link(self.site, reader)
        with contextlib.suppress(LinkUnreadable, LinkUnwritable, KafkaException), self._writing:
            if (link, Role.SENDER) not in self._ours:
                return
            logs, ours = self._logs[link], self._ours[link, Role.SENDER]
            end = self.end(link, Role.READER)
            acknowledged = 0 if end is None else end.number
            for number in [one for one in logs.published if one <= acknowledged]:
                del logs.published[number]
            first = min((offset for _, offset in logs.published.values()), default=logs.last_offset + 1)
            if not logs.shortening[PARCELS].is_due(first):
                return
            _, high = self._offsets(link, logs.topic, SENDER)
            with self._changed:  # what we have published may lie behind what a newer process has
                is_sure = self._read.get((logs.topic, SENDER), 0) >= high and logs.ends[Role.SENDER].is_held_by(ours)
            if is_sure:
                logs.shortening[PARCELS].ask(first)

    def close(self) -> None:
        """End the thread and the connections."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self._producer.flush(_WAIT_S)
        for consumer in (self._consumer, self._looker):
            consumer.close()

    # -- brokers

    def _shortenings(self, topic: str) -> dict[int, Shortening]:
        return {partition: Shortening(self._topics, topic, partition) for partition in (PARCELS, READER)}

    def _partitions(self, link: Link) -> tuple[int, ...]:
        return (SENDER, READER) if link.sender == self.site else (PARCELS, SENDER, READER)

    def _assign(self) -> None:
        """Read all partitions from where we are."""
        places = [(logs.topic, one) for link, logs in self._logs.items() for one in self._partitions(link)]
        self._consumer.assign([TopicPartition(*place, self._read.get(place, -2)) for place in places])  # -2: the first

    def _offsets(self, link: Link, topic: str, partition: int) -> tuple[int, int]:
        deadline = time.monotonic() + _WAIT_S
        with self._looking:
            while True:
                try:
                    found = self._looker.get_watermark_offsets(TopicPartition(topic, partition), _WAIT_S)
                    if found is None:
                        raise self._unreadable(link, "the brokers do not answer")
                    return found[0], found[1]
                except KafkaException as error:
                    if error.args[0].code() not in _PASSING or time.monotonic() > deadline:
                        raise self._unreadable(link, self._cause(error)) from None
                time.sleep(_POLL_S)

    def _append(self, link: Link, partition: int, records: list[tuple[bytes, bytes]]) -> list[int]:
        """Have brokers take records; their offsets."""
        if self._down:
            raise self._unwritable(link, self._down)
        offsets: list[int] = []
        failed: list[str] = []

        def delivered(error: Cause | None, message: Message) -> None:
            if error is not None:
                failed.append(error.str())
            else:
                offsets.append(message.offset() or 0)

        topic = self._logs[link].topic
        for key, value in records:
            while True:
                try:
                    self._producer.produce(topic, value, key, partition, delivered)
                    break
                except BufferError:
                    self._producer.poll(_POLL_S)
                except KafkaException as error:
                    raise self._unwritable(link, self._cause(error)) from None
        deadline = time.monotonic() + _WAIT_S + 1
        while len(offsets) + len(failed) < len(records) and time.monotonic() < deadline:
            self._producer.poll(_POLL_S)
        if failed or len(offsets) < len(records):
            raise self._unwritable(link, failed[0] if failed else "the brokers do not answer")
        return offsets

    def _run(self) -> None:
        """Read, and look now and then whether brokers and topics are there."""
        looked = time.monotonic()
        while not self._closing.is_set():
            first = self._consumer.poll(_POLL_S)  # `consume` would wait for as many as it may return
            messages = [] if first is None else [first, *self._consumer.consume(500, 0)]
            with self._changed:
                by_topic = {logs.topic: logs for logs in self._logs.values()}
                for message in messages:
                    if message.error() is None:
                        self._take(by_topic, message)
                if messages:
                    self._arrivals += 1
                    self._changed.notify_all()
            if time.monotonic() - looked > _LOOK_S:
                self._look()
                looked = time.monotonic()

    def _take(self, by_topic: Mapping[str, _LinkLogs], message: Message) -> None:
        topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
        logs = by_topic.get(topic)
        place = (topic, partition)
        if logs is None or offset < self._read.get(place, 0):
            return
        self._read[place] = offset + 1
        key, value = message.key() or b"", message.value() or b""
        if partition == PARCELS:
            logs.parcels.add(key, value, offset, logs.ends[Role.READER].rejected)
        else:
            logs.ends[Role.SENDER if partition == SENDER else Role.READER].add(key, value)

    def _look(self) -> None:
        """See whether brokers answer, and whether topics are those that they were."""
        for link, logs in list(self._logs.items()):
            try:
                identity = self._topics.identity(logs.topic)
                if identity is None:
                    identity = self._topics.make(logs.topic)
            except KafkaException as error:
                self._down = self._cause(error)
                return
            if identity != logs.id:
                self._begin_anew(link, logs, identity)
        self._down = ""

    def _begin_anew(self, link: Link, logs: _LinkLogs, identity: str) -> None:
        """Forget what a topic has said that is gone."""
        with self._changed:
            for partition in range(len(PARTITION) + 1):
                self._read.pop((logs.topic, partition), None)
            logs.ends = {role: EndLog(link, role, self.seal) for role in Role}
            logs.parcels, logs.id = ParcelLog(), identity
            logs.published.clear()
            logs.last_offset, logs.statements = -1, []
            logs.shortening = self._shortenings(logs.topic)
            logs.notice = (
                f"its topic {logs.topic} was lost and is made anew; nothing of the link is lost: what was not "
                "acknowledged is published again"
            )
            self._assign()
            self._changed.notify_all()

    def _check(self, link: Link) -> None:
        """Refuse to look at a link that is out of reach, or say what has happened to it."""
        if self._down:
            raise self._unreadable(link, self._down)
        logs = self._logs[link]
        if logs.notice:
            notice, logs.notice = logs.notice, ""
            raise LinkUnreadable(f"{link}: {notice}")

    @contextlib.contextmanager
    def _writing_to(self, link: Link) -> Iterator[None]:
        with self._writing:
            try:
                yield
            except KafkaException as error:
                raise self._unwritable(link, self._cause(error)) from None

    def _cause(self, error: KafkaException) -> str:
        cause = error.args[0] if error.args else error
        text = cause.str() if isinstance(cause, Cause) else str(cause)
        return f"{text} (brokers {self._servers})"

    def _unreadable(self, link: Link, cause: str) -> LinkUnreadable:
        return LinkUnreadable(f"{link} cannot be read: {cause}; nothing is lost: it goes on when it can be read again")

    def _unwritable(self, link: Link, cause: str) -> LinkUnwritable:
        return LinkUnwritable(
            f"{link} cannot be written: {cause}; nothing is lost: it goes on when it can be written again"
        )
