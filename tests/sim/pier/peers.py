"""Small networks of PIER nodes for tests, and tuples for them."""

from collections.abc import Iterable
from typing import Any

from watersmeet.program.pier.tuples import Batch, Schema
from watersmeet.sim.internet.latency import King
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.pier.client import ClientQuery
from watersmeet.sim.pier.network import PierNetwork

TYPES = {int: "integer", str: "string", float: "double", bool: "boolean"}


def network(nodes: int = 1, seed: int = 1, **settings: Any) -> PierNetwork:
    latency = King(nodes, seed=seed)
    made = PierNetwork(Kernel(seed), latency, Prefixes.random(nodes, seed, latency), **settings)
    made.settle()
    return made


def tuples(table: str, names: str, rows: Iterable[tuple[Any, ...]]) -> Batch:
    """A batch whose types are those of its first row."""
    found = list(rows)
    kinds = [TYPES[type(value)] for value in found[0]]
    return Batch(Schema.of(table, dict(zip(names.split(), kinds, strict=True))), found)


def answers(pier: PierNetwork, ufl: str, at: int = 0) -> ClientQuery:
    """Ask a query and wait until it has ended, and a little longer."""
    client = pier.nodes[at].ask(ufl)
    pier.kernel.run(client.ends_us + 5_000_000)
    return client
