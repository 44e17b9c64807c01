"""What the ends of a link say of themselves, as bytes: JSON with a checksum, sealed where links have keys."""

import json
from dataclasses import asdict, fields

from watersmeet.program.storage.wire import UNKNOWN
from watersmeet.spark.durable import sealed, unsealed
from watersmeet.spark.links.protocol import LinkDirection, LinkEnd, Role
from watersmeet.spark.links.seal import Seal, end_context


def pack_end(end: LinkEnd, link: LinkDirection, role: Role, seal: Seal) -> bytes:
    """What one end of a link says, as it travels."""
    return seal.seal(end_context(link.sender, link.reader, role, end.epoch), sealed(json.dumps(asdict(end))).encode())


def unpack_end(data: bytes, link: LinkDirection, role: Role, epoch: int, seal: Seal) -> LinkEnd:
    """What one end of a link says; ValueError where it is damaged, `Refused` where a key does not fit."""
    text = seal.open(end_context(link.sender, link.reader, role, epoch), data)
    try:
        found = json.loads(unsealed(text.decode()))
        end = LinkEnd(**found)
    except (TypeError, RecursionError):
        raise ValueError("it is not an end of a link") from None
    are_right = all(type(found[field.name]) is field.type for field in fields(LinkEnd))
    in_range = are_right and 0 <= end.released <= end.number < 2**63 and UNKNOWN <= end.pace < 2**63
    if not in_range or end.epoch != epoch:
        raise ValueError("a value is not in its range")
    return end
