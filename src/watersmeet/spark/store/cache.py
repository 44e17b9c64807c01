"""Where copies of what is in object stores are kept on a machine, and how many bytes of them."""

import os
import tempfile
from pathlib import Path

from watersmeet.errors import InputError, RunError

CACHE, CACHE_BYTES = "WATERSMEET_CACHE", "WATERSMEET_CACHE_BYTES"
_DEFAULT_BYTES = 20_000_000_000


def cache_directory() -> Path:
    """The directory for copies, which nobody else can write to."""
    place = Path(os.environ.get(CACHE) or Path(tempfile.gettempdir()) / f"watersmeet-{os.getuid()}")
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = place.stat()
    except OSError as error:
        raise RunError(
            f"{place} cannot be made: {error.strerror}; set {CACHE} to a directory on a local disk"
        ) from None
    if status.st_uid != os.getuid():
        raise RunError(f"{place} belongs to another user; set {CACHE} to a directory of your own on a local disk")
    return place


def cache_bytes() -> int:
    """How many bytes of copies of state files there may be for each site."""
    text = os.environ.get(CACHE_BYTES, "")
    if not text:
        return _DEFAULT_BYTES
    if not text.isdigit():
        raise InputError(f"{CACHE_BYTES} is {text!r}; give it as a number of bytes, such as {_DEFAULT_BYTES}")
    return int(text)
