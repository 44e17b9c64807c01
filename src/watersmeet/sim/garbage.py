"""Large simulations without Python's search for dead cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_cycles_collected() -> Iterator[None]:
    """Millions of living objects make each search for dead cycles long, and there are next to none to be found."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
