"""Sinks that store or send tuples: into the DHT, through it, straight to a node, as Bloom filters, and to all nodes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from watersmeet.program.pier.bloom import add_key, empty_filter
from watersmeet.program.pier.expressions import Malformed, compiled, compiled_row
from watersmeet.program.pier.graph import Expression, Operator
from watersmeet.program.pier.runtime import Context, Implementation, Plan, RunningOperator, Tag, no_settings
from watersmeet.program.pier.settings import SettingsReader
from watersmeet.program.pier.tuples import Batch, Row, Schema
from watersmeet.program.pier.values import INTEGER, key_text

LIFETIME_US = 60_000_000  # long enough for a node that gets the query late (section 3.3.8)
BLOOM_BITS, BLOOM_HASHES = 65_536, 4
FILTER = "filter"  # the column of a Bloom filter


class PutSettings(NamedTuple):
    """Where tuples go: a namespace and a key of their own, and how long they live there."""

    namespace: str
    key: tuple[Expression, ...]
    suffix: Expression | None
    lifetime_us: int
    renew_us: int | None  # how often tuples are renewed, as long as they should live


def _put(reader: SettingsReader, operator: Operator) -> PutSettings:
    no_settings(reader, operator)
    return PutSettings(
        reader.text("ns"),
        reader.expressions("key"),
        reader.expression("suffix"),
        reader.duration_us("lifetime", LIFETIME_US) or LIFETIME_US,
        reader.duration_us("renew", None),
    )


class _Put(RunningOperator):
    """Finds the key of each tuple; a tuple with a NULL in it has no place and is dropped as malformed."""

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        found = self.keyed(batch)
        if found is None:
            return
        keys, suffixes, rows = found
        schema = batch.schema
        for key, suffix, row in zip(keys, suffixes, rows, strict=True):
            text = key_text(key)
            if text is None:
                self.malformed(1, "the partitioning key has a NULL")
            else:
                self.store(text, suffix, Batch(schema, (row,)))

    def store(self, key: str, suffix: str, batch: Batch) -> None:
        """Store one tuple."""
        raise NotImplementedError

    def keyed(self, batch: Batch) -> tuple[Sequence[Row], Sequence[str], Sequence[Row]] | None:
        """Keys, suffixes and rows."""
        settings: PutSettings = self.plan.settings
        name = settings.suffix
        parts = settings.key if name is None else (*settings.key, name)
        kernel = self.compiled("key", batch.schema, lambda schema: compiled_row(parts, schema)[0])
        if isinstance(kernel, Malformed):
            self.malformed(len(batch.rows), str(kernel))
            return None
        values, rows = self.evaluated(kernel, batch)
        if name is None:
            return values, [self.context.new_suffix() for _ in rows], rows
        return [value[:-1] for value in values], [str(value[-1]) for value in values], rows


class DhtPut(_Put):
    """Stores tuples at the owner of their key, and renews them there if asked to: owners come and go."""

    def store(self, key: str, suffix: str, batch: Batch) -> None:
        settings: PutSettings = self.plan.settings
        host = self.context.host
        host.put(settings.namespace, key, suffix, batch, settings.lifetime_us)
        renew_us = settings.renew_us
        if renew_us is None:
            return
        ends_us = host.now_us + settings.lifetime_us

        def renew() -> None:
            left_us = ends_us - host.now_us
            if left_us > 0:
                host.renew(settings.namespace, key, suffix, batch, left_us)
                self.context.after(renew_us, renew)

        self.context.after(renew_us, renew)


class RangePut(_Put):
    """Publishes tuples into a range index, by a key that is a whole number or a time, and again to renew them."""

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        found = self.keyed(batch)
        if found is None:
            return
        for key, suffix, row in zip(*found, strict=True):
            if type(key[0]) is int and -(1 << 63) <= key[0] < 1 << 63:
                self._publish(key[0], suffix, Batch(batch.schema, (row,)))
            else:
                self.malformed(1, "the key of a range index is a whole number of 64 bits or a time")

    def _publish(self, key: int, suffix: str, batch: Batch) -> None:
        settings: PutSettings = self.plan.settings
        self.context.host.index(settings.namespace, key, suffix, batch, settings.lifetime_us)
        if settings.renew_us is not None:
            self.context.after(settings.renew_us, lambda: self._publish(key, suffix, batch))


def _range(reader: SettingsReader, operator: Operator) -> PutSettings:
    found = _put(reader, operator)
    if len(found.key) != 1:
        raise reader.fail(f"a range index has one key, not {len(found.key)}; give key[] = field once")
    return found


class DhtMessagePut(_Put):
    """Routes tuples to the owner of their key; nodes on the way see them."""

    def store(self, key: str, suffix: str, batch: Batch) -> None:
        settings: PutSettings = self.plan.settings
        self.context.host.send(settings.namespace, key, suffix, batch, settings.lifetime_us)


class IpSettings(NamedTuple):
    """A port, and the address as an expression or by the owner of a key."""

    port: str
    address: Expression | None
    key: tuple[Expression, ...]


def _ip(reader: SettingsReader, operator: Operator) -> IpSettings:
    no_settings(reader, operator)
    found = IpSettings(reader.text("port"), reader.expression("address"), reader.expressions("key"))
    if (found.address is None) == (not found.key):
        raise reader.fail("it needs an address or a key, and not both")
    return found


class IpPut(RunningOperator):
    """Sends tuples straight to a node: by its address, or as an exchange that knows who owns which key."""

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        settings: IpSettings = self.plan.settings
        kernel = self.compiled("address", batch.schema, self._compile)
        if isinstance(kernel, Malformed):
            self.malformed(len(batch.rows), str(kernel))
            return
        host = self.context.host
        values, rows = self.evaluated(kernel, batch)
        by_address: dict[int, list[Row]] = {}
        for value, row in zip(values, rows, strict=True):
            if settings.address is None:
                text = key_text(value)
                value = None if text is None else host.owner_address(settings.port, text)
            if value is None:
                self.malformed(1, "the address or the partitioning key has a NULL")
            elif value < 0:
                self.malformed(1, "an address is below 0")
            else:
                by_address.setdefault(value, []).append(row)
        for address, several in by_address.items():
            for row in several:  # a message each, as from a DHT: experiments compare the two
                host.transmit(address, settings.port, Batch(batch.schema, (row,)))

    def _compile(self, schema: Schema) -> Callable[[Row], Any]:
        settings: IpSettings = self.plan.settings
        if settings.address is None:
            return compiled_row(settings.key, schema)[0]
        kernel, kind = compiled(settings.address, schema)
        if kind != INTEGER:
            raise Malformed(f"an address is a whole number, not {kind}")
        return kernel


class BloomSettings(NamedTuple):
    """What goes into a filter, and where the filter goes."""

    put: PutSettings
    bits: int
    hashes: int


def _bloom(reader: SettingsReader, operator: Operator) -> BloomSettings:
    hashes = reader.whole("hashes", BLOOM_HASHES) or BLOOM_HASHES
    if hashes > 32:
        raise reader.fail(f"hashes must be 32 or fewer, not {hashes}")
    bits = reader.whole("bits", BLOOM_BITS, least=8) or BLOOM_BITS
    put = _put(reader, operator)
    if not put.key:
        raise reader.fail("it needs a key: key[] = expression")
    return BloomSettings(put, bits, hashes)


class BloomPut(RunningOperator):
    """Puts the keys of all tuples of a set probe into one Bloom filter and, at its end, the filter into the DHT."""

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._filters: dict[Tag, bytearray] = {}

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        settings: BloomSettings = self.plan.settings
        kernel = self.compiled("key", batch.schema, lambda schema: compiled_row(settings.put.key, schema)[0])
        if isinstance(kernel, Malformed):
            self.malformed(len(batch.rows), str(kernel))
            return
        keys, _ = self.evaluated(kernel, batch)
        found = self._filters.setdefault(tag, empty_filter(settings.bits, settings.hashes))
        for key in keys:
            add_key(found, key)

    def end(self, tag: Tag, port: int) -> None:
        settings: BloomSettings = self.plan.settings
        found = self._filters.pop(tag, None) or empty_filter(settings.bits, settings.hashes)
        batch = Batch(Schema.of("bloom", {FILTER: "binary"}), ((bytes(found),),))
        put, host = settings.put, self.context.host
        host.put(put.namespace, "filters", str(host.address), batch, put.lifetime_us)


class BroadcastPut(RunningOperator):
    """Sends tuples to a port of every node."""

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        self.context.host.broadcast(self.plan.settings, batch)


def _broadcast(reader: SettingsReader, operator: Operator) -> str:
    no_settings(reader, operator)
    return reader.text("port")


PUT = {
    "dht": Implementation(_put, DhtPut),
    "dhtmessage": Implementation(_put, DhtMessagePut),
    "ip": Implementation(_ip, IpPut),
    "bloom": Implementation(_bloom, BloomPut),
    "pht": Implementation(_range, RangePut),
    "broadcast": Implementation(_broadcast, BroadcastPut),
}
