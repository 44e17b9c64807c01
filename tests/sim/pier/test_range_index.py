"""Range indexes in op-graphs: publishing, reading a range, and sending a query only to those who have tuples."""

from collections import Counter

from peers import answers, network, tuples

from watersmeet.sim.pier.network import PierNetwork

PUBLISH = (
    "%opgraph(publish) {{ duration = {duration} %operator(r) {{ type = scan implementation = Local table = heat }}"
    " %operator(put) {{ type = put implementation = PHT sources[] = r ns = heat.by.degrees key[] = $degrees"
    " lifetime = {lifetime} {more} }} }}"
)
READ = (
    "%opgraph(read) {{ duration = 10 ns = anywhere rid = 1"
    " %operator(i) {{ type = scan implementation = PHT ns = heat.by.degrees {bounds} }}"
    " %operator(out) {{ type = result sources[] = i }} }}"
)
ASK = (
    "%opgraph(ask) {{ duration = 10 ns = heat.by.degrees {bounds}"
    " %operator(r) {{ type = scan implementation = Local table = heat }}"
    " %operator(s) {{ type = selection sources[] = r"
    '  %predicate(p) {{ type = atomic leftexpression = $degrees op = ">=" rightexpression = "{low}"::integer }}'
    '  %predicate(q) {{ type = atomic leftexpression = $degrees op = "<=" rightexpression = "{high}"::integer }} }}'
    " %operator(out) {{ type = result sources[] = s }} }}"
)
ROWS = [(node, 7 * node - 100 + 50 * turn) for node in range(0, 40, 2) for turn in (0, 1)]  # degrees from -100 to 216


def filled() -> PierNetwork:
    pier = network(40, seed=5)
    for node in sorted({node for node, _ in ROWS}):
        pier.nodes[node].publish(tuples("heat", "node degrees", [row for row in ROWS if row[0] == node]))
    return pier


def published() -> PierNetwork:
    pier = filled()
    answers(pier, PUBLISH.format(lifetime=300, duration=20, more=""), at=3)
    return pier


def test_an_op_graph_goes_to_the_nodes_that_have_tuples_in_a_range() -> None:
    pier = published()
    for low, high in ((-100, -60), (100, 130), (500, 600)):
        client = answers(pier, ASK.format(bounds=f"low = {low} high = {high}", low=low, high=high), at=11)
        expected = [row for row in ROWS if low <= row[1] <= high]
        assert Counter(client.rows) == Counter(expected)
        ran = {address for address, node in pier.nodes.items() if (client.query_id, "ask") in node.counters}
        assert ran == {node for node, _ in expected}  # and nobody else has got it
        assert client.errors == []


def test_a_range_of_an_index_is_read_from_anywhere() -> None:
    pier = published()
    assert Counter(answers(pier, READ.format(bounds=""), at=8).rows) == Counter(ROWS)
    client = answers(pier, READ.format(bounds="low = 0 high = 50"), at=9)
    assert Counter(client.rows) == Counter(row for row in ROWS if 0 <= row[1] <= 50)
    assert sum(bool(node.range_index("heat.by.degrees").nodes()) for node in pier.nodes.values()) > 1  # it has split


def test_a_range_index_is_the_inner_of_an_index_join() -> None:
    pier = published()
    pier.nodes[5].publish(tuples("wanted", "d", [(-100,), (40,), (41,), (40,)]))
    client = answers(
        pier,
        "%opgraph(g) { duration = 10 %operator(w) { type = scan implementation = Local table = wanted }"
        " %operator(i) { type = scan implementation = PHT ns = heat.by.degrees }"
        " %operator(j) { type = join implementation = Index sources[] = w sources[] = i"
        " left[] = $d right[] = $degrees }"
        " %operator(out) { type = result sources[] = j } }",
    )
    wanted = Counter([-100, 40, 41, 40])
    assert Counter(client.rows) == Counter(
        {(degrees, node, degrees): wanted[degrees] for node, degrees in ROWS if wanted[degrees]}
    )


def test_entries_live_as_long_as_they_are_renewed() -> None:
    for more, left in (("", 0), ("renew = 4", len(ROWS))):
        pier = filled()
        client = pier.nodes[3].ask(PUBLISH.format(lifetime=8, duration=60, more=more))
        pier.kernel.run(client.asked_us + 30_000_000)
        assert len(answers(pier, READ.format(bounds="")).rows) == left


def test_keys_that_no_range_index_takes_are_malformed() -> None:
    pier = network()
    pier.nodes[0].publish(tuples("heat", "node degrees", [(1, 20.5)]))
    client = answers(pier, PUBLISH.format(lifetime=60, duration=5, more="errors = true"))
    ((_, batch),) = client.errors
    assert "whole number" in batch.rows[0][2]
