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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from confluent_kafka import KafkaException, Message

from watersmeet.errors import DamagedParcel
from watersmeet.spark.links.kafka_client import FLUSH_BYTES, BrokersAway, KafkaClient, Partition
from watersmeet.spark.links.kafka_log import (
    PARCELS,
    PARTITION,
    READER,
    SENDER,
    EndLog,
    ParcelLog,
    ParcelPart,
    parts_of,
    read_part,
)
from watersmeet.spark.links.kafka_topics import WAIT_S, Shortening
from watersmeet.spark.links.protocol import LinkDirection, LinkEnd, LinkUnreadable, LinkUnwritable, Role, Sealed, fenced
from watersmeet.spark.links.seal import OPEN, Seal

START_S = 60.0  # for brokers, before a start is refused
_AGAIN_S = 0.2
_LOOK_S = 1.0  # between looks at whether brokers and topics are there
_MOST_STATEMENTS = 500  # of a reader, before those that are over are deleted


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

    def __init__(
        self,
        settings: Mapping[str, str],
        prefix: str,
        site: str,
        seal: Seal = OPEN,
        *,
        wait_s: float = WAIT_S,
        start_s: float = START_S,
    ) -> None:
        self.site, self.prefix, self.seal = site, prefix, seal
        self._client = KafkaClient(settings, f"{prefix}.{site}", wait_s)
        self._wait_s, self._start_s, self._start_until = wait_s, start_s, 0.0
        self._logs: dict[LinkDirection, _LinkLogs] = {}
        self._ours: dict[tuple[LinkDirection, Role], LinkEnd] = {}
        self._read: dict[Partition, int] = {}  # the offset after the last record that was read
        self._changed = threading.Condition()
        self._arrivals = 0
        self._down = ""
        self._closing = threading.Event()
        self._writing = threading.RLock()
        self._thread: threading.Thread | None = None

    # -- the ends

    def prepare(self, links: Iterable[LinkDirection]) -> None:
        """Make the topics, and read what they hold."""
        made = {}
        self._start_until = time.monotonic() + self._start_s
        for link in links:
            topic = f"{self.prefix}.{link.sender}.{link.reader}"
            identity = self._made(link, topic)
            ends = {role: EndLog(link, role, self.seal) for role in Role}
            made[link] = _LinkLogs(topic, ends, self._shortenings(topic), id=identity)
        with self._changed:
            self._logs |= made
            self._assign()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"links-{self.site}", daemon=True)
            self._thread.start()
        try:
            self._starting(self.catch_up)
        except LinkUnreadable as error:
            raise LinkUnwritable(str(error)) from None

    def _made(self, link: LinkDirection, topic: str) -> str:
        """Make a topic; its identity. Brokers may be about to start, or have much to do."""
        while True:
            try:
                return self._client.topics.make(topic)
            except KafkaException as error:
                if time.monotonic() < self._start_until and self._client.may_answer(error):
                    continue
                cause = self._client.explained(error)
                raise LinkUnwritable(
                    f"{link} cannot be made: {cause}; start the brokers, or correct the options of link_transport"
                ) from None

    def end(self, link: LinkDirection, role: Role, below: int | None = None) -> LinkEnd | None:
        """What an end says of itself by its newest epoch."""
        with self._changed:
            self._check(link)
            log = self._logs[link].ends[role]
            end = log.newest if below is None else log.newest_below(below)
            if end is None and log.refused:
                raise self._unreadable(link, f"what {link.site(role)} says of itself is refused, {log.refused}")
            return end

    def claim(self, link: LinkDirection, role: Role, end: LinkEnd) -> None:
        """Write our claim, and see whether it is the first of its epoch."""
        log = self._logs[link].ends[role]
        self._refuse_older(link, role, log, end)

        def state() -> None:  # also twice: the first of an epoch holds
            with self._writing_to(link):
                self._append(link, PARTITION[role], [log.statement(end)])

        self._starting(state)
        self._starting(self.catch_up)
        with self._changed:
            if not log.is_held_by(end):
                newest = log.newest
                raise fenced(link, role, end.epoch if newest is None else newest.epoch, end)
            self._ours[link, role] = end
        if role is Role.SENDER:  # parcels of older epochs that follow this are passed over
            fence = (ParcelPart(0, 1, 1, 1, end.epoch, end.token).key, b"")
            with self._writing_to(link):
                self._starting(lambda: self._append(link, PARCELS, [fence]))

    def _starting(self, step: Callable[[], object]) -> None:
        """Do what a start needs; brokers that do not answer are asked again, as long as a start has patience."""
        while True:
            try:
                step()
                return
            except (BrokersAway, LinkUnreadable, LinkUnwritable):
                if time.monotonic() >= self._start_until:
                    raise
            self._closing.wait(_AGAIN_S)

    def _refuse_older(self, link: LinkDirection, role: Role, log: EndLog, end: LinkEnd) -> None:
        with self._changed:
            newest = log.newest
        if newest is not None and newest.epoch >= end.epoch:
            raise fenced(link, role, newest.epoch, end)

    def withdraw(self, link: LinkDirection, role: Role) -> None:
        """Write that our claim is taken back."""
        end = self._ours.pop((link, role), None)
        if end is not None:
            with contextlib.suppress(LinkUnwritable), self._writing_to(link):
                self._append(link, PARTITION[role], [self._logs[link].ends[role].withdrawal(end)])

    def settle(self, link: LinkDirection, role: Role) -> None:
        """Nothing: claims before ours are deleted with what we say later."""

    def _hold(self, link: LinkDirection, role: Role) -> LinkEnd:
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
        link = LinkDirection(self.site, reader)
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
                if size >= FLUSH_BYTES:
                    self._append_parcels(link, records, attempts)
                    records, attempts, size = [], {}, 0
            self._append_parcels(link, records, attempts)

    def _append_parcels(
        self, link: LinkDirection, records: list[tuple[bytes, bytes]], attempts: Mapping[int, int]
    ) -> None:
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
        link = LinkDirection(sender, self.site)
        with self._writing_to(link):
            before, logs = self._hold(link, Role.READER), self._logs[link]
            end = replace(before, number=number, pace=pace)
            if end != before:
                logs.statements += self._append(link, READER, [logs.ends[Role.READER].statement(end)])
                self._ours[link, Role.READER] = end
                with self._changed:
                    logs.parcels.drop_acknowledged(number)
            self._forget_statements(link, logs, end)

    def _forget_statements(self, link: LinkDirection, logs: _LinkLogs, end: LinkEnd) -> None:
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
        link = LinkDirection(sender, self.site)
        with self._changed:
            self._check(link)
            return after + 1 in self._logs[link].parcels.places

    def arrived(self, sender: str, after: int) -> Iterator[tuple[int, bytes]]:
        """Parcels from a site beyond a number, as far as none is missing: number and bytes."""
        link = LinkDirection(sender, self.site)
        while self.has_arrived(sender, after):
            after += 1
            with self._changed:
                log = self._logs[link].parcels
                data, place = log.cached.get(after), log.places.get(after)
            if data is None and place is not None:  # it was not kept in memory
                with self._reading_from(link):
                    data = self._client.parcel(self._logs[link].topic, place)
            if data is None:
                return
            yield after, data

    def reject(self, sender: str, number: int) -> int:
        """Ask for a damaged parcel again; how often that was done with this one."""
        link = LinkDirection(sender, self.site)
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
            links = {
                (logs.topic, partition): link
                for link, logs in self._logs.items()
                for partition in self._partitions(link)
            }
        if not links:
            return
        with self._reading_from(next(iter(links.values()))):
            ends = self._client.next_offsets(links)
            behind = [place for place, end in ends.items() if not self._has_read(place, end, 0)]
            first = self._client.first_offsets(behind) if behind else {}
        for place in behind:
            if first[place] < ends[place] and not self._has_read(place, ends[place], self._wait_s):
                raise self._unreadable(links[place], self._down or "the brokers do not answer")

    def _has_read(self, place: Partition, end: int, timeout_s: float) -> bool:
        """Wait until everything before an offset has been read; whether it was."""
        with self._changed:
            return self._changed.wait_for(lambda: self._read.get(place, 0) >= end, timeout_s)

    def forget_acknowledged(self, reader: str) -> None:
        """Delete the records of parcels that their reader no longer needs."""
        self._shorten(LinkDirection(self.site, reader))

    def _shorten(self, link: LinkDirection, *, at_once: bool = False) -> None:
        with contextlib.suppress(LinkUnreadable, LinkUnwritable, BrokersAway), self._writing:
            if (link, Role.SENDER) not in self._ours:
                return
            logs, ours = self._logs[link], self._ours[link, Role.SENDER]
            end = self.end(link, Role.READER)
            acknowledged = 0 if end is None else end.number
            for number in [one for one in logs.published if one <= acknowledged]:
                del logs.published[number]
            first = min((offset for _, offset in logs.published.values()), default=logs.last_offset + 1)
            if not logs.shortening[PARCELS].is_due(first, at_once=at_once):
                return
            said = (logs.topic, SENDER)
            end_of_said = self._client.next_offsets([said])[said]
            with self._changed:  # what we have published may lie behind what a newer process has
                is_sure = self._read.get(said, 0) >= end_of_said and logs.ends[Role.SENDER].is_held_by(ours)
            if is_sure:
                logs.shortening[PARCELS].ask(first, at_once=at_once)

    def close(self) -> None:
        """End the thread and the connections."""
        for link, role in list(self._ours):
            if role is Role.SENDER:
                self._shorten(link, at_once=True)
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self._client.close()

    # -- brokers

    def _shortenings(self, topic: str) -> dict[int, Shortening]:
        return {partition: Shortening(self._client.topics, topic, partition) for partition in (PARCELS, READER)}

    def _partitions(self, link: LinkDirection) -> tuple[int, ...]:
        return (SENDER, READER) if link.sender == self.site else (PARCELS, SENDER, READER)

    def _assign(self) -> None:
        """Read all partitions from where we are."""
        places = [(logs.topic, partition) for link, logs in self._logs.items() for partition in self._partitions(link)]
        self._client.read_from({place: self._read.get(place) for place in places})

    def _append(self, link: LinkDirection, partition: int, records: list[tuple[bytes, bytes]]) -> list[int]:
        """Have brokers take records; their offsets."""
        if self._down:
            raise self._unwritable(link, self._down)
        return self._client.append(self._logs[link].topic, partition, records)

    def _run(self) -> None:
        """Read, and look now and then whether brokers and topics are there."""
        looked = time.monotonic()
        while not self._closing.is_set():
            try:
                messages = self._client.read()
            except BrokersAway as error:  # `_look` says when they are back
                self._down, messages = str(error), []
            with self._changed:
                by_topic = {logs.topic: logs for logs in self._logs.values()}
                for message in messages:
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
        links = list(self._logs.items())
        try:
            found = self._client.topics.identities([logs.topic for _, logs in links])
            identities = {topic: identity or self._client.topics.make(topic) for topic, identity in found.items()}
        except KafkaException as error:
            self._down = str(self._client.explained(error))
            return
        for link, logs in links:
            if identities[logs.topic] != logs.id:
                self._begin_anew(link, logs, identities[logs.topic])
        self._down = ""

    def _begin_anew(self, link: LinkDirection, logs: _LinkLogs, identity: str) -> None:
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

    def _check(self, link: LinkDirection) -> None:
        """Refuse to look at a link that is out of reach, or say what has happened to it."""
        if self._down:
            raise self._unreadable(link, self._down)
        logs = self._logs[link]
        if logs.notice:
            notice, logs.notice = logs.notice, ""
            raise LinkUnreadable(f"{link}: {notice}")

    @contextlib.contextmanager
    def _writing_to(self, link: LinkDirection) -> Iterator[None]:
        with self._writing:
            try:
                yield
            except BrokersAway as error:
                raise self._unwritable(link, str(error)) from None

    @contextlib.contextmanager
    def _reading_from(self, link: LinkDirection) -> Iterator[None]:
        try:
            yield
        except BrokersAway as error:
            raise self._unreadable(link, str(error)) from None

    def _unreadable(self, link: LinkDirection, cause: str) -> LinkUnreadable:
        return LinkUnreadable(f"{link} cannot be read: {cause}; nothing is lost: it goes on when it can be read again")

    def _unwritable(self, link: LinkDirection, cause: str) -> LinkUnwritable:
        return LinkUnwritable(
            f"{link} cannot be written: {cause}; nothing is lost: it goes on when it can be written again"
        )
