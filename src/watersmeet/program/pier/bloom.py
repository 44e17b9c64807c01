"""Bloom filters as bytes in a column: a bit array and, in its first byte, the number of hash functions."""

from hashlib import blake2b
from typing import Any

from watersmeet.program.pier.values import key_text


def empty_filter(bits: int, hashes: int) -> bytearray:
    """A filter in which nothing is.

    >>> bytes(empty_filter(16, 3))
    b'\\x03\\x00\\x00'
    """
    return bytearray([hashes]) + bytearray(-(-bits // 8))


def add_key(found: bytearray, values: tuple[Any, ...]) -> None:
    """Put a key into a filter; a key with NULL joins nothing and is left out."""
    text = key_text(values)
    if text is not None:
        for place in _places(text, found[0], 8 * (len(found) - 1)):
            found[1 + (place >> 3)] |= 1 << (place & 7)


def might_contain(found: bytes, values: tuple[Any, ...]) -> bool:
    """Whether a key may be in a filter; False is certain."""
    if len(found) < 2:
        raise ValueError("no Bloom filter is that short")
    text = key_text(values)
    if text is None:
        return False
    return all(found[1 + (place >> 3)] >> (place & 7) & 1 for place in _places(text, found[0], 8 * (len(found) - 1)))


def merged(first: bytes, second: bytes) -> bytes:
    """The filter of all that is in one of two; ValueError if they are not of one kind."""
    if len(first) != len(second) or first[:1] != second[:1]:
        raise ValueError("two Bloom filters differ in size or hash functions")
    body = int.from_bytes(first[1:], "big") | int.from_bytes(second[1:], "big")
    return first[:1] + body.to_bytes(len(first) - 1, "big")


def _places(text: str, hashes: int, bits: int) -> list[int]:
    digest = blake2b(text.encode(), digest_size=16).digest()
    first, second = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big") | 1
    return [(first + number * second) % bits for number in range(hashes)]
