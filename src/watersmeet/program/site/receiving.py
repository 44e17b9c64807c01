"""Parcels that have come over the links: taken in order and once, and refused where they cannot be of their sender."""

from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import replace

from watersmeet.errors import CheckpointMismatch
from watersmeet.program.operators import Form
from watersmeet.program.site.agreement import Note, unpack_notes
from watersmeet.program.site.arrivals import Packed
from watersmeet.program.site.inbound import TypeOf, check_columns
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.site.program import Shipment, SiteProgram
from watersmeet.program.storage.wire import UNKNOWN, ParcelEntry, ParcelIndex, naming_damage, unpack_schema
from watersmeet.query.windows import END_US


def receive(
    program: SiteProgram, ledger: SiteLedger, parcels: Iterable[tuple[str, str, ParcelIndex]], type_of: TypeOf
) -> tuple[SiteLedger, dict[str, int], list[Packed], list[tuple[str, Note]]]:
    """Note what has come over the links; second deliveries and what is behind a gap are left alone.

    So is what a site has sent that has gone over to the next revision before this one.
    """
    received, checksums, schemas = dict(ledger.received), dict(ledger.checksums), dict(ledger.schemas)
    reported: dict[str, int] = {}
    watermarks = ChainMap(reported, dict(ledger.watermarks))
    messages: list[Packed] = []
    notes: list[tuple[str, Note]] = []
    for sender, path, parcel in sorted(parcels, key=lambda found: (found[0], found[2].number)):
        if parcel.number != received.get(sender, 0) + 1 or parcel.revision > program.revision:
            continue
        if parcel.previous != checksums.get(sender, 0):
            raise CheckpointMismatch(
                f"link {sender} -> {program.site}: parcel {parcel.number} does not follow the one that was "
                f"taken before it, so {sender} has gone on from an older copy of its checkpoint; restore the "
                f"checkpoints of all sites from copies of one moment, or remove them and the links to begin anew"
            )
        received[sender], checksums[sender] = parcel.number, parcel.checksum
        names = program.flow_names(sender, parcel.revision)
        with naming_damage(sender, program.site, parcel.number):
            if parcel.notes:
                if not ledger.versions:
                    raise ValueError("it has notes about plans, which do not change here")
                notes += [(sender, note) for note in unpack_notes(parcel.notes)]
        for entry in parcel.entries:
            with naming_damage(sender, program.site, parcel.number):
                if entry.flow >= len(names):
                    raise ValueError(f"it has flow {entry.flow} of {len(names)}")
                shipment = program.shipments_in.get((sender, names[entry.flow]))
                if shipment is None:  # of a join that is over here
                    continue
                _check(program, shipment, entry, schemas, watermarks, type_of)
            flow = shipment.arrives_as
            if entry.schema:
                schemas[flow] = entry.schema.hex()
            if entry.rows:
                place = (path, entry.start, entry.size)
                messages.append(Packed(sender, parcel.number, shipment, *place, schemas[flow], entry.rows))
            is_pace = shipment.form is Form.PACE
            reported[flow] = max(entry.watermark, watermarks.get(flow, UNKNOWN)) if is_pace else entry.watermark
    after = replace(ledger, received=received, checksums=checksums, schemas=schemas)
    return after, reported, messages, notes


def _check(
    program: SiteProgram,
    shipment: Shipment,
    entry: ParcelEntry,
    schemas: Mapping[str, str],
    marks: Mapping[str, int],
    type_of: TypeOf,
) -> None:
    """Refuse a message that cannot be one of a shipment, by a ValueError."""
    flow = shipment.arrives_as
    if entry.schema:
        if flow in schemas:
            raise ValueError(f"the schema of {flow} comes a second time")
        check_columns(program, shipment, unpack_schema(entry.schema), type_of)
    elif entry.rows and flow not in schemas:
        raise ValueError(f"rows of {flow} come before their schema")
    if (entry.rows > 0) != (entry.size > 0):
        raise ValueError(f"{entry.rows} rows of {flow} have {entry.size} bytes")
    if entry.watermark > END_US:
        raise ValueError(f"the watermark of {flow} is beyond the end of time")
    if entry.watermark < marks.get(flow, UNKNOWN) and shipment.form is not Form.PACE:  # which may have two sources
        raise ValueError(f"the watermark of {flow} goes back")
