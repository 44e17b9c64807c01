"""Ports of the loopback address for servers that tests, benchmarks and examples start.

A server that is started later, or again after it was killed, must find its port free. So ports come from below those
that the system gives to clients, and the UDP port of the same number is held: whoever else asks here gets another one,
as long as this process lives.
"""

import contextlib
import random
import socket
from pathlib import Path

_SYSTEMS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST, _LAST = 10_000, 32_767
_held: list[socket.socket] = []


def free_port() -> int:
    """A port that nobody listens at, and that nobody else is given."""
    choices = range(_FIRST, _last() + 1)
    for port in random.SystemRandom().sample(choices, len(choices)):
        holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            holder.bind(("127.0.0.1", port))
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", port))
        except OSError:
            holder.close()
            continue
        _held.append(holder)
        return port
    raise RuntimeError(f"no port from {_FIRST:,} on is free on the loopback address")


def _last() -> int:
    """The last port before those that the system gives to clients."""
    with contextlib.suppress(OSError, ValueError):
        first_of_clients = int(_SYSTEMS.read_text(encoding="ascii").split()[0])
        if first_of_clients > _FIRST + 1_000:
            return first_of_clients - 1
    return _LAST
