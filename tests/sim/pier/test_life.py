"""The life of a query: who gets it, when it begins and ends, and that nobody has to wait for it."""

from peers import answers, network, tuples

from watersmeet.sim.overlays.identifiers import identifier_of
from watersmeet.sim.pier.indexes.distribution_tree import DistributionSettings
from watersmeet.sim.pier.network import PierNetwork

SCAN = "%operator(r) { type = scan implementation = Local table = R } %operator(out) { type = result sources[] = r }"


def test_a_broadcast_query_reaches_every_node_once() -> None:
    pier = network(80, seed=3)
    for address, node in pier.nodes.items():
        node.publish(tuples("R", "a", [(address,)]))
    client = answers(pier, f"%opgraph(g) {{ duration = 10 {SCAN} }}", at=11)
    assert sorted(client.rows) == [(address,) for address in range(80)]


def test_the_equality_index_sends_an_op_graph_to_one_node() -> None:
    pier = network(80, seed=3)
    for address, node in pier.nodes.items():
        node.publish(tuples("R", "a", [(address,)]))
    before = pier.traffic.messages
    client = answers(pier, f"%opgraph(g) {{ duration = 5 ns = R rid = k7 {SCAN} }}", at=11)
    arc_owner = [node for node in pier.nodes.values() if node.dht.node.router.next_hop(identifier_of("R.k7")) is None]
    assert client.rows == [(arc_owner[0].address,)]
    announcements = 3 * 80  # distribution trees renew themselves meanwhile
    assert pier.traffic.messages - before < announcements


def test_an_op_graph_ends_with_its_duration() -> None:
    pier = network(5)
    client = pier.nodes[0].ask(f"%opgraph(g) {{ duration = 4 {SCAN} }}")
    for second in range(1, 9):
        pier.kernel.run(client.asked_us + second * 1_000_000)
        pier.nodes[2].publish(tuples("R", "a", [(second,)]))
    pier.kernel.run(pier.kernel.now_us + 1_000_000)
    assert client.rows == [(1,), (2,), (3,), (4,)]
    assert not any(node.graphs for node in pier.nodes.values())


def test_queries_do_not_mix() -> None:
    pier = network(20)
    pier.nodes[3].publish(tuples("R", "a", [(1,), (2,)]))
    text = (
        "%opgraph(g) { duration = 5 %operator(r) { type = scan implementation = Local table = R }"
        ' %operator(put) { type = put sources[] = r ns = "n\\qi" key[] = $a } }'
        '%opgraph(h) { duration = 5 %operator(s) { type = scan ns = "n\\qi" }'
        " %operator(out) { type = result sources[] = s } }"
    )
    first, second = pier.nodes[1].ask(text), pier.nodes[9].ask(text)
    pier.kernel.run(second.ends_us)
    assert sorted(first.rows) == sorted(second.rows) == [(1,), (2,)]
    assert first.query_id != second.query_id


def test_whoever_asks_begins_at_once() -> None:
    """Its own copy could wait behind the results of others, longer than tuples wait for it in the DHT."""
    pier = network(30)
    pier.nodes[4].publish(tuples("R", "a", [(1,)]))
    client = pier.nodes[4].ask(f"%opgraph(g) {{ duration = 5 {SCAN} }}")
    assert [name for _, name in pier.nodes[4].graphs] == ["g"]
    pier.kernel.run(client.ends_us)
    assert client.rows == [(1,)]  # and not again when the copy has come round


def test_queries_are_spread_over_several_distribution_trees() -> None:
    """Each goes down another tree, with another root, and reaches everybody once all the same."""
    pier = network(60, seed=3, trees=3)
    for address, node in pier.nodes.items():
        node.publish(tuples("R", "a", [(address,)]))
    roots = {point_owner(pier, DistributionSettings(trees=3).root(tree)) for tree in range(3)}
    assert len(roots) == 3
    began = {root: pier.net.bytes_sent[root] for root in roots}
    for _ in range(3):
        client = answers(pier, f"%opgraph(g) {{ duration = 5 {SCAN} }}", at=11)
        assert sorted(client.rows) == [(address,) for address in range(60)]
    one_query = 2_000  # a root sends a copy to each of its children, everybody else one result
    assert all(pier.net.bytes_sent[root] - began[root] > one_query for root in roots)


def point_owner(pier: PierNetwork, point: int) -> int:
    (owner,) = (node.address for node in pier.nodes.values() if node.dht.node.router.next_hop(point) is None)
    return owner
