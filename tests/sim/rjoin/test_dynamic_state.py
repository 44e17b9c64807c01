"""State of dynamic peers: queries are removed by messages, expired state is evicted, copies find a key's owner."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.program.rjoin.arrays import MASK, QUERY, WAITS
from watersmeet.program.rjoin.settings import NodeSettings, Strategy
from watersmeet.program.rjoin.tables import Catalog, Known, Widths
from watersmeet.query.sql import parse_query
from watersmeet.sim.internet.latency import King
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.chord import Chord
from watersmeet.sim.overlays.node import OverlayNode
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.rjoin.answers import ReceivedAnswers
from watersmeet.sim.rjoin.copies import Copies
from watersmeet.sim.rjoin.dynamic_network import DynamicNetwork
from watersmeet.sim.rjoin.expressions import judge
from watersmeet.sim.rjoin.fault_tolerance import FaultTolerance
from watersmeet.sim.rjoin.mail import MailPurpose
from watersmeet.sim.rjoin.peer import DynamicPeer

SECOND_US = 1_000_000
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
UNBOUNDED = "SELECT a.v AS x, b.v AS y FROM a [UNBOUNDED], b [UNBOUNDED] WHERE a.k = b.k"
NODES = 40


class World:
    """A small network and a query asked at node 3."""

    def __init__(
        self,
        sql: str,
        fault_tolerance: FaultTolerance,
        overlay: str = "chord",
        *,
        upkeep: bool = False,
        keep_us: int = 1 << 62,
        **choices: Any,
    ) -> None:
        columns = dict.fromkeys("ab", SCHEMA.names)
        catalog = Catalog(dict.fromkeys("ab", SCHEMA), dict.fromkeys("ab", "ts"))
        query = parse_query(sql, columns)
        self.known = Known(catalog, Widths.of([catalog.shape(query)]), judge)
        self.answers = ReceivedAnswers(self.known)
        self.kernel = Kernel(5)
        settings = NodeSettings(delay_us=5 * SECOND_US, keep_us=keep_us, hold_us=keep_us, is_guarded=True, **choices)
        kind = Ring if overlay == "chord" else Prefixes
        self.network = DynamicNetwork(
            self.kernel,
            King(NODES, seed=5),
            kind.random(NODES, 5),
            self.known,
            settings,
            fault_tolerance,
            self.answers.take,
            upkeep=upkeep,
        )
        self.number = self.network.rjoin.submit(query, 3)

    @property
    def peers(self) -> list[DynamicPeer]:
        return list(self.network.rjoin.peers.values())

    def publish(self, stream: str, values: Sequence[tuple[int, int]], node: int = 8) -> None:
        rows = [{"k": k, "v": v, "ts": self.kernel.now_us} for k, v in values]
        self.network.rjoin.publish(node, stream, pa.Table.from_pylist(rows, schema=SCHEMA))

    def pass_s(self, seconds: float) -> None:
        self.kernel.run(self.kernel.now_us + round(seconds * SECOND_US))

    def rows(self) -> list[list[int]]:
        return [row for peer in self.peers for row in _stored_rows(peer).tolist()]

    def stored(self) -> int:
        stored = [peer.shard.stored() for peer in self.peers]
        return int(sum(counts.queries[0] + counts.tuples[0] + counts.held[0] for counts in stored))


def _stored_rows(peer: DynamicPeer) -> np.ndarray:
    numbers = range(len(peer.shard.names))
    return np.concatenate([np.zeros((0, peer.shard.width), np.int32), *(peer.shard.rows_at(n) for n in numbers)])


@pytest.mark.parametrize("overlay", ["chord", "bamboo"])
def test_a_removed_query_has_no_answers_from_then_on_and_every_node_forgets_it(overlay: str) -> None:
    world = World(UNBOUNDED, FaultTolerance(sweep_us=10 * SECOND_US, replicas=1), overlay)
    world.pass_s(5)
    world.publish("a", [(1, 10), (2, 20)])
    world.pass_s(5)
    before = world.network.net.messages_for[MailPurpose.QUERIES]
    world.publish("b", [(1, 11)])  # under way when the query is removed: its answer is of before
    world.pass_s(0.001)
    world.network.rjoin.remove(world.number)
    world.publish("b", [(2, 21)])
    world.pass_s(5)
    assert world.answers.table(world.number).to_pylist() == [{"x": 10, "y": 11}]
    removal_messages = world.network.net.messages_for[MailPurpose.QUERIES] - before
    assert NODES - 1 <= removal_messages <= 6 * NODES  # each node by a route of its own, most of them short
    assert all(world.number in peer._ends for peer in world.peers)
    assert world.rows() != []
    world.pass_s(25)
    assert world.rows() == []
    assert sum(peer.copies.size[0] for peer in world.peers) == 0
    world.publish("b", [(2, 22)])
    world.pass_s(5)
    assert world.answers.count(world.number) == 1 and world.rows() == []


def test_who_has_not_heard_of_a_removal_is_told_when_it_answers() -> None:
    world = World(UNBOUNDED, FaultTolerance())
    world.pass_s(5)
    world.publish("a", [(1, 10)])
    world.pass_s(5)
    world.network.rjoin.peers[3]._hear_end(world.number, world.kernel.now_us - 1)  # and nobody else
    world.publish("b", [(1, 11)])
    world.pass_s(5)
    assert world.answers.count(world.number) == 0
    assert 2 <= sum(world.number in peer._ends for peer in world.peers) < NODES


def test_a_query_that_expires_is_forgotten_without_a_message() -> None:
    world = World(UNBOUNDED, FaultTolerance(sweep_us=10 * SECOND_US))
    query = world.known.queries[world.number]
    short = world.network.rjoin.submit(query, 4, until_us=20 * SECOND_US)
    world.pass_s(5)
    world.publish("a", [(1, 10)])
    world.publish("b", [(1, 11)])
    world.pass_s(10)
    assert (world.answers.count(world.number), world.answers.count(short)) == (1, 1)
    assert {row[QUERY] for row in world.rows()} == {world.number, short}
    world.pass_s(30)
    assert {row[QUERY] for row in world.rows()} == {world.number}
    world.publish("b", [(1, 12)])
    world.pass_s(5)
    assert (world.answers.count(world.number), world.answers.count(short)) == (2, 1)


def test_what_is_over_is_given_back_with_its_copies() -> None:
    sql = UNBOUNDED.replace("UNBOUNDED", "RANGE 10 SECONDS")
    world = World(sql, FaultTolerance(sweep_us=10 * SECOND_US, replicas=2), keep_us=10 * SECOND_US)
    world.pass_s(5)
    for number in range(20):
        world.publish("ab"[number % 2], [(number % 3, number), (number % 3, -number)])
        world.pass_s(0.5)
    world.pass_s(3)
    came = world.answers.count(world.number)
    assert came > 50 and world.stored() > 100
    assert sum(sum(peer.copies.size) for peer in world.peers) >= 2 * world.stored() * 0.9
    world.pass_s(40)
    assert world.stored() == 0 and [row[MASK] for row in world.rows()] == [0]  # but for the query itself
    assert sum(sum(peer.copies.size) for peer in world.peers) == 2
    assert sum(len(peer._kept) for peer in world.peers) == 1
    world.publish("a", [(1, 1)])
    world.publish("b", [(1, 1)])
    world.pass_s(5)
    assert world.answers.count(world.number) == came + 1


def test_state_that_was_handed_over_is_given_back() -> None:
    world = World(UNBOUNDED, FaultTolerance(sweep_us=10 * SECOND_US), upkeep=True)
    world.pass_s(5)
    world.publish("a", [(k, k) for k in range(30)])
    world.pass_s(5)
    before = world.stored()
    giver = max(world.peers, key=lambda peer: len(peer._kept))
    points = sorted(giver._point(key) for key in giver._kept)
    kernel, net = world.kernel, world.network.net
    joined = world.network.rjoin.add(OverlayNode(kernel, net, Chord(kernel, net, NODES, points[len(points) // 2])))
    joined.node.start(3)
    world.pass_s(15)
    moved = len(points) // 2 + 1  # the new node has the arc up to its own point
    assert (len(joined._kept), len(giver._kept)) == (moved, len(points) - moved)
    assert sorted(giver.shard.occupied().tolist()) == sorted(giver._kept)
    assert world.stored() == before  # it is there once
    world.publish("b", [(k, -k) for k in range(30)])
    world.pass_s(5)
    assert world.answers.count(world.number) == 30


def test_a_self_join_is_renewed_for_the_alias_it_waits_for() -> None:
    sql = "SELECT x.v AS x, y.v AS y FROM a [UNBOUNDED] AS x, a [UNBOUNDED] AS y WHERE x.k = y.k AND x.v < y.v"
    chosen = set()
    for seed in range(4):
        world = World(sql, FaultTolerance(renew_us=10 * SECOND_US), strategy=Strategy.RANDOM, seed=seed)
        world.pass_s(3)
        (row,) = world.rows()
        chosen.add(row[WAITS])
        world.publish("a", [(1, 1), (1, 2)])
        world.pass_s(30)
        assert [other[WAITS] for other in world.rows() if other[MASK] == 0] == [row[WAITS]]  # no second one beside it
        assert world.answers.count(world.number) == 1
    assert chosen == {0, 1}


@pytest.mark.parametrize("overlay", ["chord", "bamboo"])
def test_an_owner_that_never_heard_of_a_key_gets_the_copies_of_it(overlay: str) -> None:
    world = World(UNBOUNDED, FaultTolerance(replicas=2), overlay, upkeep=True)
    world.pass_s(5)
    (owner,) = [peer for peer in world.peers if len(_stored_rows(peer))]
    (key,) = owner._kept
    (holder,) = [peer for peer in world.peers if peer.node.address == owner._copied_to[0]]
    row = _stored_rows(owner).copy()
    owner.shard.forget(owner.shard.numbers(np.array([key])))  # as one that has joined after a crash has not heard of it
    owner.shard.sweep(world.kernel.now_us)
    owner._kept.clear()
    world.pass_s(4)
    assert not owner._kept
    world.pass_s(6)  # nobody has claimed the key for four looks
    assert owner._kept == {key} and _stored_rows(owner).tolist() == row.tolist()
    world.publish("a", [(1, 10)])
    world.publish("b", [(1, 11)])
    world.pass_s(5)
    assert world.answers.count(world.number) == 1
    assert holder.copies.within(owner.node.router.arc)  # and has copies of it again


def test_another_successor_is_found_as_soon_as_a_copy_is_not_delivered() -> None:
    world = World(UNBOUNDED, FaultTolerance(replicas=2), upkeep=True)
    world.pass_s(5)
    (owner,) = [peer for peer in world.peers if len(_stored_rows(peer))]
    first, second = owner._copied_to
    world.network.rjoin.fail(second)  # Chord itself would hear of it from the first successor, a period later
    (key,) = owner._kept
    owner._copy(key, *owner._state(key))
    world.pass_s(0.5)
    assert second not in owner._copied_to and first in owner._copied_to
    (replacement,) = set(owner._copied_to) - {first}
    assert world.network.rjoin.peers[replacement].copies.within(owner.node.router.arc) == [key]


def test_copies_that_nobody_claims_are_handed_on_once_without_what_the_owner_has() -> None:
    rows = np.arange(6, dtype=np.int32).reshape(2, 3)
    copies = Copies(width=3, point_of=lambda key: key)
    copies.take(7, 50, rows, np.array([1, 2], np.int32), now_us=10)
    copies.take(7, 90, rows[:1], np.array([3], np.int32), now_us=10)
    copies.claimed(7, (40, 60), now_us=20)  # 90 is not its own any more
    assert [key for key, _, _ in copies.pop_orphans(15)] == [90]
    copies.take(8, 50, rows[1:], np.array([2, 4], np.int32), now_us=30)  # a new owner, which knows a part
    assert copies.pop_orphans(20) == []
    ((key, left, tuples),) = copies.pop_orphans(25)
    assert (key, left.tolist(), tuples.tolist()) == (50, [[0, 1, 2]], [1])
    assert copies.within((0, 60)) == [50] and copies.size == (1, 2)
    copies.claimed(8, None, now_us=40)
    assert copies.size == (0, 0) and copies.within((0, 60)) == []
