"""What a site sends: parcels of a micro-batch for the outbox, and counts of what was sent, by purpose."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from watersmeet.program.operators import Purpose
from watersmeet.program.site.agreement import Observed, pack_notes, unpack_notes
from watersmeet.program.site.filing import Made, payload_name
from watersmeet.program.site.ledger import LinkState, Outgoing, SiteLedger, Traffic
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.storage.shelf import Shelf
from watersmeet.program.storage.wire import UNKNOWN, Message, Parcel, checksum_of


def send(program: SiteProgram, shelf: Shelf, ledger: SiteLedger, made: Sequence[Made]) -> SiteLedger:
    """Put into the outbox what other sites get of this micro-batch."""
    links = dict(ledger.links)
    by_flow: dict[str, list[Made]] = {}
    for filed in made:
        by_flow.setdefault(filed.flow, []).append(filed)
    for to in sorted({*program.peers_out, *(to for to, link in links.items() if link.notes)}):
        link = links.get(to, LinkState())
        numbers = {flow: number for number, flow in enumerate(program.numbers_out.get(to, ()))}
        names = tuple(numbers)
        messages: list[Message] = []
        reported, described, traffic = dict(link.reported), list(link.described), dict(link.traffic)
        histories: set[int] = set()  # messages with rows that are sent for a new version alone
        for shipment in program.flows_to(to):
            flow, name = shipment.arrives_as, payload_name(shipment)
            if shipment.is_past and flow in reported:
                continue
            number = numbers[flow]
            reached = ledger.watermarks.get(shipment.flow, UNKNOWN)
            payloads = [(o.payloads[name], o.is_history) for o in by_flow.get(shipment.flow, ()) if name in o.payloads]
            for payload, is_history in payloads:
                if is_history:
                    histories.add(len(messages))
                schema = b"" if flow in described else bytes.fromhex(payload.schema)
                if schema:
                    described.append(flow)
                data = shelf.get_bytes(payload.path)
                messages.append(Message(number, reached, payload.rows, data, schema))
            if not payloads and reached > reported.get(flow, UNKNOWN):
                messages.append(Message(number, reached))
            reported[flow] = reached
        if messages or link.notes:
            notes, seen = _joined_notes(link.notes)
            parcel = Parcel(link.number + 1, tuple(messages), link.checksum, program.revision, notes)
            _count(traffic, Purpose.WATERMARKS.value, Traffic(parcel.own_size, 1))
            if notes:
                _count(traffic, Purpose.OBSERVATIONS.value, seen)
                _count(
                    traffic,
                    Purpose.AGREEMENT.value,
                    Traffic(len(notes) - seen.bytes, len(link.notes) - seen.batches),
                )
            for place, (message, size) in enumerate(zip(messages, parcel.sizes, strict=True)):
                name = names[message.flow] if message.rows else Purpose.WATERMARKS.value
                name = Purpose.MIGRATION.value if place in histories else name
                _count(traffic, name, Traffic(size, int(message.rows > 0), message.rows))
            packed = parcel.pack()
            path = shelf.put_bytes(f"parcel-{to}", packed)
            outbox = (*link.outbox, Outgoing(parcel.number, path, len(packed)))
            link = LinkState(parcel.number, reported, tuple(described), outbox, traffic, checksum_of(packed))
        links[to] = link
    return replace(ledger, links=links)


def _joined_notes(texts: Sequence[str]) -> tuple[bytes, Traffic]:
    """Notes that wait for another site, as one text; and how much of it is what was observed."""
    notes = [note for text in texts for note in unpack_notes(text)]
    sizes = [len(note.text) for note in notes if isinstance(note, Observed)]
    return pack_notes(notes).encode() if notes else b"", Traffic(sum(sizes), len(sizes))


def _count(traffic: dict[str, Traffic], name: str, more: Traffic) -> None:
    if more != Traffic():
        traffic[name] = traffic.get(name, Traffic()) + more


def flow_purposes(program: SiteProgram) -> Callable[[str, str], Purpose]:
    """What a flow to another site is for; traffic that is no flow has the name of its purpose."""
    purposes = {(shipment.to, shipment.arrives_as): shipment.purpose for shipment in program.shipments}
    own = {purpose.value: purpose for purpose in Purpose}
    return lambda to, name: purposes.get((to, name)) or own.get(name, Purpose.WATERMARKS)


def traffic_by_purpose(program: SiteProgram, ledger: SiteLedger) -> dict[str, dict[Purpose, Traffic]]:
    """What a site has sent to each other one, by what it was for."""
    purpose_of = flow_purposes(program)
    sent: dict[str, dict[Purpose, Traffic]] = {}
    for to, link in sorted(ledger.links.items()):
        counts: dict[Purpose, Traffic] = {}
        for name, traffic in link.traffic.items():
            purpose = purpose_of(to, name)
            counts[purpose] = counts.get(purpose, Traffic()) + traffic
        sent[to] = {purpose: counts[purpose] for purpose in Purpose if purpose in counts}
    return sent


def bytes_sent(program: SiteProgram, ledger: SiteLedger) -> tuple[int, int]:
    """All bytes that a site has sent, and those among them that were rows of the past for other plans."""
    counts = [
        (purpose, traffic) for sent in traffic_by_purpose(program, ledger).values() for purpose, traffic in sent.items()
    ]
    return sum(traffic.bytes for _, traffic in counts), sum(
        traffic.bytes for why, traffic in counts if why is Purpose.MIGRATION
    )
