"""Routers of either kind of overlay: of the nodes that it begins with, of one that joins, and who comes and goes."""

from collections.abc import Callable, Collection, Iterable

from watersmeet.sim.internet.churn import Churn, Sessions
from watersmeet.sim.internet.hosts import Internet
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays import bamboo, chord
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.overlays.router import Address, Router


def converged_routers(kernel: Kernel, net: Internet, overlay: Ring | Prefixes, *, timers: bool) -> list[Router]:
    """The routers of an overlay that has converged; without timers it sends no messages of its own."""
    if isinstance(overlay, Ring):
        return [*chord.converged(kernel, net, overlay, timers=timers)]
    return [*bamboo.converged(kernel, net, overlay, timers=timers)]


def joining_router(kernel: Kernel, net: Internet, overlay: Ring | Prefixes, address: Address) -> Router:
    """The router of a node that is to join such an overlay, with an identifier by chance."""
    identifier = kernel.random.getrandbits(64)
    kind = chord.Chord if isinstance(overlay, Ring) else bamboo.Bamboo
    return kind(kernel, net, address, identifier)


def churn_among(
    kernel: Kernel,
    sessions: Sessions,
    addresses: Iterable[Address],
    stable: Collection[Address],
    *,
    join: Callable[[Address, Address], object],
    fail: Callable[[Address], object],
    leave: Callable[[Address], object],
    graceful_fraction: float = 0.0,
    until_us: int | None = None,
) -> Churn:
    """From now on let all nodes but the stable ones come and go; who joins asks a stable one (`join(who, whom)`)."""
    hosts, known = sorted(stable), sorted(addresses)
    churn = Churn(
        kernel,
        sessions,
        join=lambda address: join(address, kernel.random.choice(hosts)),
        fail=fail,
        leave=leave,
        graceful_fraction=graceful_fraction,
        until_us=until_us,
    )
    churn.start([address for address in known if address not in stable], next_address=max(known) + 1)
    return churn
