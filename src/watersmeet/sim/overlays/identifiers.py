"""Identifiers on a circle of 2^64 points: the leading bits of SHA-1, so that arrays of them are plain numbers."""

from hashlib import sha1

ID_BITS = 64
SPACE = 1 << ID_BITS


def identifier_of(key: str) -> int:
    """The point of a key on the circle.

    >>> f"{identifier_of('R+A'):016x}"
    'b385b4d21932c321'
    """
    return int.from_bytes(sha1(key.encode(), usedforsecurity=False).digest()[: ID_BITS // 8], "big")


def distance(start: int, end: int) -> int:
    """How far it is clockwise from one point to another.

    >>> distance(5, 3) == SPACE - 2
    True
    """
    return (end - start) % SPACE


def is_between(point: int, after: int, upto: int) -> bool:
    """Whether a point lies in (after, upto], clockwise; with both ends the same that is the whole circle.

    >>> is_between(3, 3, 7), is_between(7, 3, 7), is_between(1, 7, 3), is_between(5, 2, 2)
    (False, True, True, True)
    """
    return after == upto or 0 < distance(after, point) <= distance(after, upto)
