"""Authenticated encryption of what crosses a link, whatever carries it.

Each parcel, and each statement of an end, is sealed with ChaCha20-Poly1305 under a key of its own: HKDF-SHA256 derives
it from the shared key and a random salt that travels in front, so that no nonce is ever used twice. Associated data
binds the bytes to their place: link, kind, number and the sender's epoch. What was altered, comes from somebody without
the key, or was taken from another place does not open.

    WMS1 | length of the key's id | id | epoch, 8 bytes | salt, 24 bytes | ciphertext and tag
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from watersmeet.errors import InputError, hide_secret

MAGIC = b"WMS1"
_EPOCH_BYTES, _SALT_BYTES, _KEY_BYTES, _TAG_BYTES = 8, 24, 32, 16
_LONGEST_ID = 64
_LONGEST_FILE = 65_536
_NONCE = bytes(12)  # each key seals one message


class Refused(ValueError):
    """What came over a link is not what a site that has the key has put there."""


class Seal(Protocol):
    """Wraps what goes over links and unwraps what comes."""

    def seal(self, context: "SealContext", data: bytes) -> bytes:
        """The data as it travels."""
        ...

    def open(self, context: "SealContext", data: bytes) -> bytes:
        """The data as it was given to `seal` in the same context; `Refused` otherwise."""
        ...


@dataclass(frozen=True, slots=True)
class SealContext:
    """Where something belongs, and the epoch of whoever has sealed it: the newest that may be, of a parcel."""

    place: str
    epoch: int


def parcel_context(sender: str, reader: str, number: int, epoch: int) -> SealContext:
    """Of a parcel: parcels of earlier epochs may still be on a link, of later ones not."""
    return SealContext(f"parcel {sender} {reader} {number}", epoch)


def end_context(sender: str, reader: str, role: str, epoch: int) -> SealContext:
    """Of what an end says of itself."""
    return SealContext(f"{role} {sender} {reader}", epoch)


class Open:
    """No key: everything travels as it is."""

    def seal(self, context: SealContext, data: bytes) -> bytes:
        """The same bytes."""
        return data

    def open(self, context: SealContext, data: bytes) -> bytes:
        """The same bytes, unless they are sealed."""
        if data.startswith(MAGIC):
            raise Refused("it is encrypted, and this site has no key: give link_transport the key_file of the others")
        return data


OPEN = Open()


class SharedKeys:
    """Sealing with shared keys: the first of them seals, any of them opens.

    Keys are read again when their file changes: a key is added at the end of the file at all sites, then moved to the
    first line, and the old one removed when nothing sealed with it is on its way any more.
    """

    def __init__(self, path: str | None, environment: str | None) -> None:
        self._path, self._environment = path, environment
        self._seen: tuple[int, int, int] | None = None
        self._keys: Mapping[str, bytes] = {}
        self._refresh()

    def seal(self, context: SealContext, data: bytes) -> bytes:
        """Encrypt with the first key."""
        self._refresh()
        name, key = next(iter(self._keys.items()))
        salt = os.urandom(_SALT_BYTES)
        encoded = name.encode()
        head = MAGIC + bytes([len(encoded)]) + encoded + context.epoch.to_bytes(_EPOCH_BYTES, "big") + salt
        sealed: bytes = _cipher(key, salt).encrypt(_NONCE, data, head + context.place.encode())
        return head + sealed

    def open(self, context: SealContext, data: bytes) -> bytes:
        """Decrypt with the key that is named, in just this place."""
        from cryptography.exceptions import InvalidTag

        if not data.startswith(MAGIC):
            raise Refused("it is not encrypted, and this site has keys: give the other site the same key_file")
        start = len(MAGIC) + 1
        size = data[len(MAGIC)] if len(data) > len(MAGIC) else 0
        end = start + size + _EPOCH_BYTES + _SALT_BYTES
        if len(data) < end + _TAG_BYTES:
            raise Refused("it is cut off")
        name = data[start : start + size].decode("utf-8", "replace")
        if name not in self._keys:
            self._refresh()
        key = self._keys.get(name)
        if key is None:
            shown = name if is_key_id(name) else "of no valid id"
            raise Refused(f"its key {shown!r} is unknown here: give all sites the same key_file")
        epoch = int.from_bytes(data[start + size : start + size + _EPOCH_BYTES], "big")
        if epoch > context.epoch:
            raise Refused(f"it is of epoch {epoch}, and its sender is at {context.epoch}")
        head, salt = data[:end], data[end - _SALT_BYTES : end]
        try:
            opened: bytes = _cipher(key, salt).decrypt(_NONCE, data[end:], head + context.place.encode())
            return opened
        except InvalidTag:
            raise Refused("it was altered, or belongs to another place") from None

    def _refresh(self) -> None:
        """Read the keys if they have changed."""
        if self._path is None:
            if not self._keys:
                self._keys = read_keys(os.environ.get(self._environment or "", ""), f"variable {self._environment}")
            return
        try:
            state = os.stat(self._path)
            seen = (state.st_mtime_ns, state.st_size, state.st_ino)
            if seen != self._seen:
                text = Path(self._path).read_bytes()[:_LONGEST_FILE].decode("utf-8", "replace")
                self._keys, self._seen = read_keys(text, f"key_file {self._path}"), seen
        except OSError as error:
            if not self._keys:
                raise InputError(
                    f"link_transport: key_file {self._path} cannot be read: {error.strerror}; "
                    "`watersmeet key ID` prints the line of a key"
                ) from None
        except InputError:
            if not self._keys:  # half a file while it is being written: those of before hold
                raise


def new_key(name: str) -> str:
    """The line of a new key.

    >>> line = new_key("2026a")
    >>> line.startswith("2026a "), len(read_keys(line, "x")["2026a"])
    (True, 32)
    """
    return f"{name} {os.urandom(_KEY_BYTES).hex()}"


def read_keys(text: str, where: str) -> dict[str, bytes]:
    """Keys by id, from lines `id 64-hexadecimal-digits`; what is wrong is said without a word of the keys."""
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        try:
            name, key = words[0], bytes.fromhex(words[1])
            if len(words) != 2 or len(key) != _KEY_BYTES:
                raise ValueError
        except (ValueError, IndexError):
            raise InputError(
                f"link_transport: {where}, line {number} is not a key: write an id and 64 hexadecimal digits, as "
                "`watersmeet key ID` does"
            ) from None
        if not is_key_id(name) or name in keys:
            raise InputError(
                f"link_transport: {where}, line {number}: the id of a key must be one of its own, of up to "
                f"{_LONGEST_ID} ASCII characters"
            )
        hide_secret(words[1])
        keys[name] = key
    if not keys:
        raise InputError(
            f"link_transport: {where} has no keys; write an id and 64 hexadecimal digits, as `watersmeet key ID` does"
        )
    return keys


def is_key_id(text: str) -> bool:
    """Whether a text can be the id of a key.

    >>> [is_key_id(text) for text in ("2026-11", "two words", "a#b", "")]
    [True, False, False, False]
    """
    return bool(re.fullmatch(rf"[!-~]{{1,{_LONGEST_ID}}}", text)) and "#" not in text


def _cipher(key: bytes, salt: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return ChaCha20Poly1305(HKDF(SHA256(), _KEY_BYTES, salt, b"watersmeet link").derive(key))
