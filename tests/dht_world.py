"""Networks of DHT nodes for tests: any overlay, any latencies, nodes that join, crash and leave."""

from collections.abc import Callable, Sequence
from random import Random

from watersmeet.sim.dht.node import Dht
from watersmeet.sim.dht.settings import DhtSettings
from watersmeet.sim.internet.hosts import Internet
from watersmeet.sim.internet.latency import ConstantLatency, King, Latency, Star, TransitStub
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays import bamboo, chord
from watersmeet.sim.overlays.ideal import Directory, IdealRouter
from watersmeet.sim.overlays.node import OverlayNode
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.overlays.router import Router

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
OVERLAYS = ("chord", "bamboo", "ideal")
LATENCIES: dict[str, Callable[[int, int], Latency]] = {
    "constant": lambda nodes, seed: ConstantLatency(40_000),
    "star": lambda nodes, seed: Star(nodes, spread_us=30_000, seed=seed),
    "transit-stub": lambda nodes, seed: TransitStub(nodes, seed=seed),
    "king": lambda nodes, seed: King(nodes, seed=seed),
}
# Each overlay and each kind of latencies at least once, not all pairs: tests are run often.
NETWORKS = (("chord", "star"), ("chord", "transit-stub"), ("bamboo", "king"), ("bamboo", "constant"), ("ideal", "king"))
QUICK = bamboo.BambooSettings(
    exchange_us=SECOND_US, check_us=SECOND_US, local_tuning_us=2 * SECOND_US, global_tuning_us=4 * SECOND_US
)


class DhtWorld:
    """Converged nodes; address and place in `dhts` are the same, also of those that join later."""

    def __init__(
        self,
        overlay: str,
        seed: int,
        nodes: int = 30,
        *,
        latency: str = "constant",
        settings: DhtSettings = DhtSettings(repair_us=2 * SECOND_US),  # noqa: B008 - it is frozen
        timers: bool = True,
        internet: Callable[[Kernel, Latency], Internet] = lambda kernel, latency: Internet(kernel, latency),
    ) -> None:
        self.overlay, self.settings = overlay, settings
        self.kernel, self.random = Kernel(seed), Random(seed)
        self.internet = internet(self.kernel, LATENCIES[latency](nodes, seed))
        self._directory = Directory()
        routers: Sequence[Router]
        if overlay == "chord":
            routers = chord.converged(self.kernel, self.internet, Ring.random(nodes, seed), timers=timers)
        elif overlay == "bamboo":
            routers = bamboo.converged(self.kernel, self.internet, Prefixes.random(nodes, seed), QUICK, timers=timers)
        else:
            routers = [
                IdealRouter(self._directory, address, int(identifier))
                for address, identifier in enumerate(Ring.random(nodes, seed).identifiers)
            ]
            for router in routers:
                router.start(None)
        self.dhts = [Dht(self.kernel, OverlayNode(self.kernel, self.internet, router), settings) for router in routers]

    def run(self, seconds: float = 3) -> None:
        """Let time pass."""
        self.kernel.run(until_us=self.kernel.now_us + int(seconds * SECOND_US))

    def up(self) -> list[Dht]:
        """The nodes that have joined and not gone."""
        return [dht for dht in self.dhts if dht.node.router.is_ready]

    def anyone(self) -> Dht:
        """A random one of them."""
        return self.random.choice(self.up())

    def owner(self, target: int) -> Dht:
        """Who takes itself for responsible for a point."""
        (owner,) = [dht for dht in self.up() if dht.node.router.next_hop(target) is None]
        return owner

    def join(self, bootstrap: int | None = None) -> Dht:
        """A new node, which begins to join through a given or else a random one."""
        address, identifier = len(self.dhts), self.random.getrandbits(64)
        router: Router
        if self.overlay == "chord":
            router = chord.Chord(self.kernel, self.internet, address, identifier)
        elif self.overlay == "bamboo":
            router = bamboo.Bamboo(self.kernel, self.internet, address, identifier, QUICK)
        else:
            router = IdealRouter(self._directory, address, identifier)
        if bootstrap is None:
            bootstrap = self.anyone().node.address
        dht = Dht(self.kernel, OverlayNode(self.kernel, self.internet, router), self.settings)
        self.dhts.append(dht)
        dht.start(bootstrap)
        return dht
