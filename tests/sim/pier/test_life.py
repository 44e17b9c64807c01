"""The life of a query: who gets it, when it begins and ends, and that nobody has to wait for it."""

from peers import answers, network, tuples

from watersmeet.sim.overlays.identifiers import identifier_of

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
