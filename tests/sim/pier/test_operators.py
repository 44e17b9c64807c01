"""Every operator and implementation of table 3.3 in op-graphs on real nodes."""

import sqlite3
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from peers import answers, network, tuples

from watersmeet.errors import UflError
from watersmeet.program.pier.operators.eddy import Eddy
from watersmeet.program.pier.tuples import Batch, Schema

R = tuples("R", "a b", [(1, "x"), (2, "y"), (3, "x"), (3, "x"), (4, "z")])
S = tuples("S", "c d", [(3, 0.5), (1, 1.5), (3, 2.5), (9, 3.5)])


def graph(*operators: str, duration: float = 5) -> str:
    return f"%opgraph(g) {{ duration = {duration} " + "\n".join(operators) + " }"


def scan(name: str = "r", table: str = "R") -> str:
    return f"%operator({name}) {{ type = scan implementation = Local table = {table} }}"


def out(source: str, more: str = "") -> str:
    return f"%operator(out) {{ type = result sources[] = {source} {more} }}"


def rows(*operators: str, duration: float = 5) -> list[tuple[object, ...]]:
    """What an op-graph on one node makes of R and S."""
    pier = network()
    for batch in (R, S):
        pier.nodes[0].publish(batch)
    return answers(pier, graph(*operators, duration=duration)).rows


def test_selection() -> None:
    condition = (
        "%predicate(p) { type = atomic leftexpression = $a op = greaterthanequals rightexpression = 3::integer }"
    )
    assert rows(scan(), f"%operator(s) {{ type = selection sources[] = r {condition} }}", out("s")) == [
        (3, "x"),
        (3, "x"),
        (4, "z"),
    ]


def test_predicates_of_predicates() -> None:
    either = (
        "%predicate(p) { type = or"
        '  %predicate(a) { type = atomic leftexpression = $b op = "=" rightexpression = y::string }'
        "  %predicate(b) { type = and"
        '    %predicate(c) { type = atomic leftexpression = $b op = "=" rightexpression = x::string }'
        '    %predicate(d) { type = atomic leftexpression = $a op = "<" rightexpression = 2::integer } } }'
    )
    found = rows(scan(), f"%operator(s) {{ type = selection sources[] = r {either} }}", out("s"))
    assert found == [(1, "x"), (2, "y")]


def test_projections() -> None:
    basic = "%operator(p) { type = projection sources[] = r fields[] = b rename[b] = name table = T }"
    assert rows(scan(), basic, out("p"))[:2] == [("x",), ("y",)]
    made = (
        "%operator(p) { type = projection implementation = Generate sources[] = r"
        " columns[twice] = multiply($a, 2::integer) columns[name] = upper($b) }"
    )
    assert rows(scan(), made, out("p"))[:2] == [(2, "X"), (4, "Y")]


def test_tee_and_union() -> None:
    found = rows(
        scan(),
        "%operator(t) { type = tee sources[] = r }",
        "%operator(p) { type = projection sources[] = t fields[] = a }",
        "%operator(q) { type = projection sources[] = t fields[] = a }",
        "%operator(u) { type = union sources[] = p sources[] = q }",
        out("u"),
    )
    assert Counter(found) == Counter({(1,): 2, (2,): 2, (3,): 4, (4,): 2})


JOINED = Counter({(3, "x", 3, 0.5): 2, (3, "x", 3, 2.5): 2, (1, "x", 1, 1.5): 1})


def test_symmetric_hash_join_of_two_sources() -> None:
    join = "%operator(j) { type = join sources[] = r sources[] = s left[] = $a right[] = $c }"
    assert Counter(rows(scan(), scan("s", "S"), join, out("j"))) == JOINED


def test_symmetric_hash_join_of_one_source_by_table() -> None:
    found = rows(
        scan(),
        scan("s", "S"),
        "%operator(u) { type = union sources[] = r sources[] = s }",
        "%operator(j) { type = join sources[] = u left[] = $a right[] = $c lefttable = R righttable = S"
        '  %predicate(p) { type = atomic leftexpression = $d op = "<" rightexpression = 2::integer } }',
        out("j"),
    )
    assert Counter(found) == Counter({(3, "x", 3, 0.5): 2, (1, "x", 1, 1.5): 1})


def test_keys_are_compared_as_sql_compares_them() -> None:
    pier = network()
    pier.nodes[0].publish(tuples("R", "a", [(1,), (2,)]))
    kinds = Schema.of("S", {"c": "double"})
    pier.nodes[0].publish(Batch(kinds, [(1.0,), (2.5,), (None,), (float("nan"),)]))
    join = "%operator(j) { type = join sources[] = r sources[] = s left[] = $a right[] = $c }"
    assert answers(pier, graph(scan(), scan("s", "S"), join, out("j"))).rows == [(1, 1.0)]


def test_index_join_fetches_matches_from_the_dht() -> None:
    pier = network(12)
    for key, value in S.rows:
        pier.place("S", str(key), f"{value}", Batch(S.schema, [(key, value)]), 60_000_000)
    pier.nodes[3].publish(R)
    found = answers(
        pier,
        graph(
            scan(),
            "%operator(s) { type = scan implementation = DHT ns = S }",
            "%operator(j) { type = join implementation = Index sources[] = r sources[] = s left[] = $a right[] = $c }",
            out("j"),
        ),
        at=5,
    )
    assert Counter(found.rows) == JOINED


def test_a_secondary_index_is_the_inner_of_an_index_join() -> None:
    """(index key, tuple id) pairs lead to the tuples; that semijoin is what an outer index join probes."""
    pier = network(12)
    for number, (key, value) in enumerate(S.rows):
        pier.place("S", str(number), "s", tuples("S", "id c d", [(number, key, value)]), 60_000_000)
        pier.place("S.c", str(key), str(number), tuples("S.c", "ikey iid", [(key, number)]), 60_000_000)
    pier.nodes[7].publish(R)
    found = answers(
        pier,
        graph(
            scan(),
            "%operator(index) { type = scan ns = S.c }",
            "%operator(base) { type = scan ns = S }",
            "%operator(i) { type = join implementation = Index sources[] = index sources[] = base"
            " left[] = $iid right[] = $id }",
            "%operator(j) { type = join implementation = Index sources[] = r sources[] = i"
            " left[] = $a right[] = $ikey }",
            "%operator(p) { type = projection sources[] = j fields[] = a fields[] = b fields[] = c fields[] = d }",
            out("p"),
        ),
    )
    assert Counter(found.rows) == JOINED


def test_group_by_of_a_set_probe() -> None:
    group = (
        "%operator(g) { type = groupby sources[] = r groupby[b] = $b aggregates[n] = count()"
        " aggregates[s] = sum($a) aggregates[lo] = min($a) aggregates[hi] = max($a) aggregates[mean] = avg($a) }"
    )
    flow = "%operator(f) { type = flowcontrol sources[] = g probe = set }"
    assert rows(scan(), group, flow, out("f")) == [
        ("x", 3, 7, 1, 3, 7 / 3),
        ("y", 1, 2, 2, 2, 2.0),
        ("z", 1, 4, 4, 4, 4.0),
    ]


def test_dual_flow_group_by_gives_results_when_asked() -> None:
    pier = network()
    client = pier.nodes[0].ask(
        graph(
            scan(),
            "%operator(in) { type = flowcontrol sources[] = r }",
            "%operator(g) { type = groupby implementation = DualFlow sources[] = in aggregates[n] = count() }",
            "%operator(f) { type = flowcontrol sources[] = g probe = set period = 2 start = false }",
            out("f"),
            duration=7,
        )
    )
    began_us = pier.kernel.now_us
    for second in (0.5, 1, 3):
        pier.kernel.run(began_us + int(second * 1e6))
        pier.nodes[0].publish(tuples("R", "a b", [(1, "x")]))
    pier.kernel.run(client.ends_us)
    assert client.rows == [(2,), (3,), (3,)]


def test_dual_flow_group_by_streams_what_changed() -> None:
    pier = network()
    client = pier.nodes[0].ask(
        graph(
            scan(),
            "%operator(in) { type = flowcontrol sources[] = r }",
            "%operator(g) { type = groupby implementation = DualFlow sources[] = in period = 1"
            " aggregates[n] = count() }",
            "%operator(f) { type = flowcontrol sources[] = g probe = stream }",
            out("f"),
        )
    )
    pier.nodes[0].publish(R)
    pier.kernel.run(client.ends_us)
    assert client.rows == [(5,)]


def test_duplicate_elimination() -> None:
    assert rows(scan(), "%operator(d) { type = dupelim sources[] = r }", out("d")) == [
        (1, "x"),
        (2, "y"),
        (3, "x"),
        (4, "z"),
    ]
    by_b = rows(scan(), "%operator(d) { type = dupelim sources[] = r fields[] = b }", out("d"))
    assert by_b == [(1, "x"), (2, "y"), (4, "z")]


def test_put_into_the_dht_and_scan() -> None:
    pier = network(20)
    for node in (2, 4):
        pier.nodes[node].publish(R)
    found = answers(
        pier,
        graph(scan(), '%operator(put) { type = put sources[] = r ns = "n\\qi" key[] = $b }')
        + '%opgraph(h) { duration = 5 %operator(s) { type = scan ns = "n\\qi" } '
        "%operator(out) { type = result sources[] = s } }",
        at=9,
    )
    assert Counter(found.rows) == Counter([*R.rows, *R.rows])


def test_dht_messages_are_seen_on_their_way() -> None:
    pier = network(60)
    pier.nodes[2].publish(tuples("R", "a visited", [(1, "")]))
    found = answers(
        pier,
        graph(scan(), "%operator(put) { type = put implementation = DHTMessage sources[] = r ns = m key[] = $a }")
        + "%opgraph(h) { duration = 5"
        " %operator(s) { type = scan implementation = DHTMessage ns = m annotate = visited }"
        " %operator(out) { type = result sources[] = s } }",
    )
    path = [str(visited) for _, visited in found.rows]
    assert len(path) > 1
    # Each copy names all nodes that the message has passed before.
    assert path[0] == ""
    assert all(len(visited.split(",")) == number + 1 for number, visited in enumerate(path[1:]))
    assert all(later.startswith(earlier) for earlier, later in pairwise(path))


def test_ip_messages_wait_for_a_query_that_begins_late() -> None:
    pier = network(10)
    pier.nodes[2].publish(tuples("R", "a to", [(1, 7), (2, 7), (3, 8)]))
    sender = graph(scan(), "%operator(put) { type = put implementation = IP sources[] = r port = p address = $to }")
    listener = (
        "%opgraph(h) { duration = 5 %operator(s) { type = scan implementation = IP port = p }"
        " %operator(out) { type = result sources[] = s } }"
    )
    answers(pier, sender)
    assert Counter(answers(pier, listener, at=3).rows) == Counter([(1, 7), (2, 7), (3, 8)])


def test_csv_and_database(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("host,port\na,1\nb,x\nc,\n")
    file = f'implementation = CSV file = "{tmp_path}/log.csv" table = log'
    csv = f"%operator(c) {{ type = scan {file} types[port] = integer errors = true }}"
    pier = network()
    assert answers(pier, graph(csv, out("c"))).rows == [("a", 1), ("c", None)]
    assert pier.nodes[0].malformed_inputs == 1
    with sqlite3.connect(tmp_path / "log.db") as database:
        database.execute("CREATE TABLE log (host TEXT, port)")
        database.execute("INSERT INTO log VALUES ('a', 1), ('b', NULL), ('c', 'x')")
    jdbc = (
        f'%operator(c) {{ type = scan implementation = JDBC url = "jdbc:sqlite:{tmp_path}/log.db"'
        ' sql = "SELECT * FROM log ORDER BY host" table = log }'
    )
    positive = '%predicate(p) { type = atomic leftexpression = $port op = ">" rightexpression = 0::integer }'
    selected = answers(pier, graph(jdbc, f"%operator(s) {{ type = selection sources[] = c {positive} }}", out("s")))
    assert selected.rows == [("a", 1)]
    missing = answers(pier, graph(csv.replace("log.csv", "missing.csv"), out("c")))
    assert missing.rows == []
    assert "missing.csv cannot be read" in missing.errors[0][1].rows[0][2]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('implementation = CSV file = "DIR/twice.csv"', "two columns of the same name"),
        ('implementation = CSV file = "\\u0000"', "cannot be read"),
        (
            'implementation = JDBC url = "jdbc:sqlite:DIR/log.db" sql = "SELECT 1 AS a, 2 AS a"',
            "two columns of",
        ),
        ('implementation = JDBC url = "jdbc:sqlite:DIR/log.db" sql = "SELECT 1; SELECT 2"', "does not answer"),
        ('implementation = JDBC url = "jdbc:sqlite:DIR/log.db" sql = "SELECT \\u0000"', "does not answer"),
        ('implementation = JDBC url = "jdbc:sqlite:\\u0000" sql = "SELECT 1"', "does not answer"),
        ('implementation = JDBC url = "jdbc:other:x" sql = "SELECT 1"', "is not known here"),
    ],
)
def test_files_and_databases_that_cannot_be_read_are_reported(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n")
    sqlite3.connect(tmp_path / "log.db").close()
    scanned = f"%operator(c) {{ type = scan {source.replace('DIR', str(tmp_path))} table = t errors = true }}"
    client = answers(network(), graph(scanned, out("c")))
    assert client.rows == []
    assert message in client.errors[0][1].rows[0][2]


def test_a_database_may_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / "a?b#c%20.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE t AS SELECT 7 AS a")
    source = f'%operator(c) {{ type = scan implementation = JDBC url = "jdbc:sqlite:{path}" sql = "SELECT * FROM t" '
    assert answers(network(), graph(source + "table = t }", out("c"))).rows == [(7,)]


def test_an_address_that_is_none_is_malformed() -> None:
    """An address of nobody is a message that is lost."""
    pier = network(3)
    rows = [(1, 2), (4, -1), (5, None), (6, 99)]
    pier.nodes[0].publish(Batch(Schema.of("R", {"a": "integer", "to": "integer"}), rows))
    put = "%operator(p) { type = put implementation = IP sources[] = r port = p address = $to errors = true }"
    listener = (
        "%opgraph(h) { duration = 5 %operator(s) { type = scan implementation = IP port = p }"
        " %operator(out) { type = result sources[] = s } }"
    )
    client = answers(pier, graph(scan(), put) + listener)
    assert client.rows == [(1, 2)]
    reasons = Counter(row[2] for _, batch in client.errors for row in batch.rows)
    assert reasons == {"an address is below 0": 1, "the address or the partitioning key has a NULL": 1}


def test_tuples_that_are_not_what_they_say_are_dropped_and_counted() -> None:
    pier = network()
    kinds = Schema.of("R", {"a": "integer", "b": "string"})
    rows = [(1, "x"), ("1", "x"), (1.0, "x"), (True, "x"), (1 << 63, "x"), (1, b"x"), (1,), (1, "x", 2), (None, None)]
    pier.nodes[0].publish(Batch(kinds, rows))
    assert answers(pier, graph(scan(), out("r"))).rows == [(1, "x"), (None, None)]
    assert pier.nodes[0].malformed_inputs == 7


def test_groups_of_numbers_are_those_of_all_their_types_and_of_nothing_else() -> None:
    pier = network()
    for batch in (tuples("R", "a", [(1,), (2,)]), tuples("R", "a", [(1.0,), (2.5,)]), tuples("R", "a", [("1",)])):
        pier.nodes[0].publish(batch)
    group = "%operator(g) { type = groupby sources[] = r groupby[a] = $a aggregates[n] = count() }"
    flow = "%operator(f) { type = flowcontrol sources[] = g probe = set }"
    client = answers(pier, graph(scan(), group, flow, out("f")))
    assert sorted(client.rows) == [(1, 2), (2, 1), (2.5, 1)]
    ((_, batch),) = client.results
    assert batch.schema.types == ("double", "integer")
    assert pier.nodes[0].counters[client.query_id, "g"].malformed == {"g": 1}


def test_tuples_that_have_no_order_with_those_before_them_are_malformed() -> None:
    pier = network()
    for batch in (tuples("R", "a", [(3,), (1,)]), tuples("R", "a", [("x",)]), tuples("R", "a", [(0.5,)])):
        pier.nodes[0].publish(batch)
    top = '%operator(t) { type = top sources[] = r order[] = $a direction[] = "asc nulls last" count = 2 wait = 1 }'
    client = answers(pier, graph(scan(), top, out("t")))
    assert client.rows == [(0.5,), (1,)]
    assert pier.nodes[0].counters[client.query_id, "g"].malformed == {"t": 1}


@pytest.mark.parametrize("expression", ["negate($a)", "abs($a)", "bucket($a, 7::integer)"])
def test_whole_numbers_never_leave_64_bits(expression: str) -> None:
    pier = network()
    pier.nodes[0].publish(tuples("R", "a", [(-(1 << 63),), (7,)]))
    made = f"%operator(p) {{ type = projection implementation = Generate sources[] = r columns[b] = {expression} }}"
    client = answers(pier, graph(scan(), made, out("p")))
    assert [abs(value) for (value,) in client.rows] == [7]
    assert pier.nodes[0].counters[client.query_id, "g"].malformed == {"p": 1}


@pytest.mark.parametrize("rows", [[(b"",)], [(b"\x03",)], [(b"",), (b"",)]])
def test_what_is_no_bloom_filter_is_malformed(rows: list[tuple[bytes]]) -> None:
    pier = network()
    pier.nodes[0].publish(Batch(Schema.of("R", {"f": "binary"}), rows))
    tried = "%operator(s) { type = selection sources[] = r %predicate(p) { type = atomic op = equals"
    tried += " leftexpression = mightcontain($f, 1::integer) rightexpression = true::boolean } }"
    assert answers(pier, graph(scan(), tried, out("s"))).rows == []
    together = "%operator(g) { type = groupby sources[] = r aggregates[f] = bloomor($f) }"
    flow = "%operator(f) { type = flowcontrol sources[] = g probe = set }"
    assert answers(pier, graph(scan(), together, flow, out("f"))).rows == rows[:1]


def test_flow_control_by_count_and_by_rate() -> None:
    pier = network()
    client = pier.nodes[0].ask(
        graph(
            scan(),
            "%operator(g) { type = groupby sources[] = r aggregates[n] = count() }",
            "%operator(f) { type = flowcontrol sources[] = g probe = set start = false count = 2 }",
            out("f"),
        )
    )
    for number in range(5):
        pier.kernel.run(pier.kernel.now_us + 100_000)
        pier.nodes[0].publish(tuples("R", "a b", [(number, "x")]))
    pier.kernel.run(client.ends_us)
    assert client.rows == [(2,), (4,)]
    fast = network()
    client = fast.nodes[0].ask(
        graph(
            scan(),
            "%operator(g) { type = groupby sources[] = r aggregates[n] = count() }",
            "%operator(f) { type = flowcontrol sources[] = g probe = set start = false rate = 3 }",
            out("f"),
            duration=9,
        )
    )
    for at_ms in (500, 1_500, 2_500, 4_000, 4_100, 4_200, 4_300):  # only the last ones are three a second
        fast.kernel.run(client.asked_us + at_ms * 1_000)
        fast.nodes[0].publish(tuples("R", "a b", [(at_ms, "x")]))
    fast.kernel.run(client.ends_us)
    assert client.rows == [(6,)]


def test_a_cache_answers_later_probes() -> None:
    pier = network()
    pier.nodes[0].publish(R)
    client = pier.nodes[0].ask(
        graph(
            scan(),
            "%operator(c) { type = cache sources[] = r }",
            "%operator(g) { type = groupby sources[] = c aggregates[n] = count() }",
            "%operator(f) { type = flowcontrol sources[] = g probe = set period = 1 }",
            out("f"),
            duration=2.5,
        )
    )
    pier.kernel.run(pier.kernel.now_us + 1_500_000)
    pier.nodes[0].publish(R)  # the cache does not ask its source again
    pier.kernel.run(client.ends_us)
    assert client.rows == [(5,), (5,), (5,)]


def test_a_cache_keeps_each_tuple_once_however_many_ask_for_it() -> None:
    pier = network()
    pier.nodes[0].publish(R)
    client = pier.nodes[0].ask(
        graph(
            scan(),
            "%operator(c) { type = cache sources[] = r }",
            "%operator(set) { type = flowcontrol sources[] = c probe = set }",
            "%operator(both) { type = flowcontrol sources[] = c }",
            "%operator(stream) { type = flowcontrol sources[] = c probe = stream }",
            "%operator(none) { type = null implementation = NullSink sources[] = set }",
            "%operator(nobody) { type = null implementation = NullSink sources[] = both }",
            "%operator(nothing) { type = null implementation = NullSink sources[] = stream }",
            "%operator(g) { type = groupby sources[] = c aggregates[n] = count() }",
            "%operator(f) { type = flowcontrol sources[] = g probe = set start = false period = 3 }",
            out("f"),
            duration=4,
        )
    )
    pier.kernel.run(pier.kernel.now_us + 1_000_000)
    pier.nodes[0].publish(tuples("R", "a b", [(9, "w")]))
    pier.kernel.run(client.ends_us)
    assert client.rows == [(5,), (5,), (6,)]  # what the first two probes bring is grouped, too


def test_an_update_cache_has_the_latest_of_each_key() -> None:
    found = rows(
        scan(),
        "%operator(in) { type = flowcontrol sources[] = r }",
        "%operator(c) { type = cache implementation = MemUpdateCache sources[] = in key[] = $b }",
        "%operator(f) { type = flowcontrol sources[] = c probe = set start = false period = 3 }",
        out("f"),
    )
    assert found == [(2, "y"), (3, "x"), (4, "z")]


def test_nulls() -> None:
    assert rows(scan(), "%operator(n) { type = null sources[] = r }", out("n")) == list(R.rows)
    nothing = (
        "%operator(n) { type = null implementation = NullSource }",
        "%operator(g) { type = groupby sources[] = u aggregates[n] = count() }",
        "%operator(u) { type = union sources[] = n sources[] = r }",
        "%operator(f) { type = flowcontrol sources[] = g probe = set }",
    )
    assert rows(scan(), *nothing, out("f")) == [(5,)]  # the source without tuples has ended its probe, too
    assert rows(scan(), "%operator(n) { type = null implementation = NullSink sources[] = r }") == []


def test_a_cycle_computes_a_transitive_closure() -> None:
    edges = [(1, 2), (2, 3), (3, 1), (3, 4), (7, 8)]
    pier = network()
    pier.nodes[0].publish(tuples("edge", "f t", edges))
    found = answers(
        pier,
        graph(
            scan("e", "edge"),
            "%operator(e2) { type = projection sources[] = e rename[f] = f2 rename[t] = t2 table = step }",
            "%operator(u) { type = union sources[] = e sources[] = back }",
            "%operator(d) { type = dupelim sources[] = u }",
            "%operator(q) { type = queue sources[] = d }",
            "%operator(j) { type = join sources[] = q sources[] = e2 left[] = $t right[] = $f2 }",
            "%operator(back) { type = projection implementation = Generate sources[] = j table = edge"
            " columns[f] = $f columns[t] = $t2 }",
            "%operator(tee) { type = null sources[] = d }",
            out("tee"),
        ),
    )
    reachable = {(a, b) for a in (1, 2, 3) for b in (1, 2, 3, 4)} | {(7, 8)}
    assert Counter(found.rows) == Counter(reachable)


def eddy_cost(policy: str, order: tuple[str, str]) -> tuple[int, list[tuple[object, ...]]]:
    """How many tuples modules have got; `a` passes nearly all, `b` hardly any."""
    pier = network()
    pier.nodes[0].publish(tuples("R", "x", [(number,) for number in range(2_000)]))
    modules = " ".join(f"modules[] = {name}" for name in order)

    def module(name: str, op: str, bound: int) -> str:
        predicate = (
            f'%predicate(p) {{ type = atomic leftexpression = $x op = "{op}" rightexpression = {bound}::integer }}'
        )
        return (
            f"%operator({name}) {{ type = selection sources[] = e {predicate} }}"
            f"%operator(back.{name}) {{ type = put implementation = Eddy sources[] = {name} eddy = e }}"
        )

    text = graph(
        scan(),
        "%operator(q) { type = queue sources[] = r }",
        f"%operator(e) {{ type = eddy sources[] = q policy = {policy} {modules} }}",
        module("a", "<", 1_990),
        module("b", ">=", 1_900),
        out("e"),
    )
    client = pier.nodes[0].ask(text)
    pier.kernel.run(pier.kernel.now_us + 3_000_000)
    ((_, running),) = pier.nodes[0].graphs.items()
    eddy = running.operators["e"]
    assert isinstance(eddy, Eddy)
    return sum(eddy.routed.values()), client.rows


@pytest.mark.parametrize("policy", ["lottery", "backpressure"])
def test_an_eddy_beats_a_bad_fixed_order(policy: str) -> None:
    bad, right = eddy_cost("fixed", ("a", "b"))
    best, _ = eddy_cost("fixed", ("b", "a"))
    cost, found = eddy_cost(policy, ("a", "b"))
    assert sorted(found) == sorted(right) == [(number,) for number in range(1_900, 1_990)]
    assert bad == 3_990
    assert best == 2_100
    assert cost < 0.7 * bad


def eddy_of_joins(policy: str, order: tuple[str, ...]) -> tuple[int, Counter[tuple[object, ...]]]:
    """R, S and T by one eddy: every tuple of S has ten partners in R, and one in twenty has one in T."""
    pier = network()
    pier.nodes[0].publish(tuples("R", "a ra", [(key, 10 * key + copy) for key in range(20) for copy in range(10)]))
    pier.nodes[0].publish(tuples("T", "f tf", [(20 * key, key) for key in range(30)]))
    modules = " ".join(f"modules[] = {name}" for name in order)

    def joined(name: str, left: str, right: str) -> str:
        return (
            f"%operator({name}) {{ type = join sources[] = e left[] = ${left} right[] = ${right} }}"
            f"%operator(back.{name}) {{ type = put implementation = Eddy sources[] = {name} eddy = e }}"
        )

    high = '%predicate(p) { type = atomic leftexpression = $tf op = ">" rightexpression = 2::integer }'
    text = graph(
        scan(),
        scan("s", "S"),
        scan("t", "T"),
        f"%operator(e) {{ type = eddy sources[] = r sources[] = t sources[] = s policy = {policy} {modules} }}",
        joined("rs", "a", "b"),
        joined("st", "c", "f"),
        f"%operator(high) {{ type = selection sources[] = e {high} }}"
        "%operator(back.high) { type = put implementation = Eddy sources[] = high eddy = e }",
        "%operator(p) { type = projection sources[] = e fields[] = ra fields[] = c fields[] = tf }",
        out("p"),
    )
    client = pier.nodes[0].ask(text)
    pier.kernel.run(pier.kernel.now_us + 100_000)
    pier.nodes[0].publish(tuples("S", "b c", [(number % 25, number) for number in range(600)]))
    pier.kernel.run(client.asked_us + 3_000_000)
    ((_, running),) = pier.nodes[0].graphs.items()
    eddy = running.operators["e"]
    assert isinstance(eddy, Eddy)
    assert not pier.nodes[0].counters[client.query_id, "g"].malformed
    return sum(eddy.routed.values()), Counter(client.rows)


@pytest.mark.parametrize("policy", ["lottery", "backpressure"])
def test_an_eddy_reorders_joins(policy: str) -> None:
    expected = Counter(
        (10 * (number % 25) + copy, number, number // 20)
        for number in range(60, 600, 20)
        if number % 25 < 20
        for copy in range(10)
    )
    bad, found = eddy_of_joins("fixed", ("rs", "st", "high"))
    assert found == expected
    best, found = eddy_of_joins("fixed", ("high", "st", "rs"))
    assert found == expected
    cost, found = eddy_of_joins(policy, ("rs", "st", "high"))
    assert found == expected
    assert best < cost < 0.7 * bad


def test_malformed_tuples_are_dropped_counted_and_reported() -> None:
    pier = network(4)
    pier.nodes[1].publish(R)
    pier.nodes[1].publish(tuples("R", "a b", [("text", "x")]))
    pier.nodes[2].publish(tuples("R", "b", [("y",)]))
    condition = '%predicate(p) { type = atomic leftexpression = $a op = ">" rightexpression = 3::integer }'
    selection = "%operator(s) { type = selection sources[] = r " + condition + " errors = true }"
    client = answers(pier, graph(scan(), selection, out("s")))
    assert client.rows == [(4, "z")]
    assert (
        sum(sum(counters.malformed.values()) for node in pier.nodes.values() for counters in node.counters.values())
        == 2
    )
    reasons = sorted((row[2], node) for node, batch in client.errors for row in batch.rows)
    assert reasons == [("R has no column 'a'", 2), ("greaterthan does not take (string, integer)", 1)]
    silent = answers(pier, graph(scan(), selection.replace("errors = true", ""), out("s")))
    assert silent.errors == []


@pytest.mark.parametrize("tap", ["input", "output"])
def test_tees_and_eddies_are_tapped_like_others(tap: str) -> None:
    pier = network()
    pier.nodes[0].publish(R)
    high = '%predicate(p) { type = atomic leftexpression = $a op = ">" rightexpression = 3::integer }'
    client = answers(
        pier,
        graph(
            scan(),
            f"%operator(t) {{ type = tee sources[] = r tap = {tap} }}",
            f"%operator(e) {{ type = eddy sources[] = t modules[] = s tap = {tap} }}",
            f"%operator(s) {{ type = selection sources[] = e {high} }}",
            "%operator(back) { type = put implementation = Eddy sources[] = s eddy = e }",
            "%operator(rest) { type = null implementation = NullSink sources[] = t }",
            out("e"),
        ),
    )
    assert client.rows == [(4, "z")]
    tapped = Counter(name for _, name, batch in client.taps for _ in batch.rows)
    assert tapped == {"t": 5, "e": 5 if tap == "input" else 1}


def test_taps_and_the_limit_on_messages() -> None:
    pier = network(3)
    for batch in (R, R, R):
        pier.nodes[1].publish(batch)
    tapped = graph(scan(), "%operator(d) { type = dupelim sources[] = r tap = both }", out("d"))
    client = answers(pier, tapped)
    copies = Counter((node, name, len(batch.rows)) for node, name, batch in client.taps)
    assert copies == Counter({(1, "d", 5): 3, (1, "d", 4): 1})
    limited = answers(pier, tapped.replace("duration", "limit = 2 duration"))
    assert len(limited.taps) + len(limited.results) == 2
    assert sum(counters.withheld for counters in pier.nodes[1].counters.values()) == 3


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        (("%operator(r) { type = skan }",), "unknown type 'skan'; did you mean 'scan'"),
        (("%operator(r) { type = scan implementation = FTP }",), "unknown implementation 'ftp' of scan"),
        (("%operator(r) { type = scan }",), "it has no ns"),
        ((scan(), out("x")), "unknown source 'x'"),
        ((scan(), "%operator(s) { type = selection sources[] = r }"), "a selection needs a predicate"),
        ((scan(), out("r", "foo = 1")), "unknown setting 'foo'"),
        ((scan(), "%operator(t) { type = tee }"), "tee by basic takes 1 sources, not 0"),
        (
            (
                scan(),
                "%operator(a) { type = union sources[] = r sources[] = b } %operator(b) { type = null sources[] = a }",
            ),
            "in a cycle without a queue",
        ),
        (
            (scan(), "%operator(a) { type = queue sources[] = b } %operator(b) { type = null sources[] = a }"),
            "in a cycle without a union",
        ),
        (
            (scan(), "%operator(p) { type = projection implementation = Generate sources[] = r columns[x] = sin($a) }"),
            "unknown function 'sin'",
        ),
        ((scan(), "%operator(f) { type = flowcontrol sources[] = r period = 1 }"), "add probe = set"),
        (
            (scan(), "%operator(p) { type = put implementation = PHT sources[] = r ns = i }"),
            "a range index has one key, not 0",
        ),
        (("%operator(r) { type = scan implementation = PHT ns = i low = 2 high = 1 }",), "begins with its lowest key"),
        (("%operator(r) { type = scan implementation = PHT ns = i low = 1.5 }",), "low must be a whole number"),
        (
            ("%operator(r) { type = scan ns = a } %operator(e) { type = eddy sources[] = r modules[] = r }",),
            "the module 'r'",
        ),
    ],
)
def test_what_cannot_run_is_refused_in_one_sentence(operators: tuple[str, ...], message: str) -> None:
    with pytest.raises(UflError) as error:
        network().nodes[0].ask(graph(*operators))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def log_of(path: Path) -> str:
    (path / "log.csv").write_text("host,port\na,1\nb,3\nc,3\nd,\n")
    return (
        f'%operator(c) {{ type = scan implementation = CSV file = "{path}/log.csv" table = log types[port] = integer }}'
    )


@pytest.mark.parametrize("below", ["c", "n", "t"])
def test_a_probe_with_a_predicate_brings_a_part_of_the_set(tmp_path: Path, below: str) -> None:
    """Pushed down to the source: what does not satisfy it never enters the dataflow, as a tap there shows."""
    high = '%predicate(p) { type = atomic leftexpression = $port op = ">" rightexpression = 2::integer }'
    client = answers(
        network(),
        graph(
            log_of(tmp_path),
            "%operator(n) { type = null sources[] = c tap = input } %operator(t) { type = tee sources[] = n }",
            f"%operator(f) {{ type = flowcontrol sources[] = {below} probe = set {high} }}",
            "%operator(rest) { type = null implementation = NullSink sources[] = t }",
            out("f"),
        ),
    )
    assert client.rows == [("b", 3), ("c", 3)]
    tapped = [row for _, _, batch in client.taps for row in batch.rows]
    assert tapped == [("b", 3), ("c", 3)]


def test_kept_tuples_and_groups_answer_probes_with_predicates() -> None:
    more = '%predicate(p) { type = atomic leftexpression = $n op = ">" rightexpression = 1::integer }'
    groups = (
        "%operator(in) { type = flowcontrol sources[] = r }",
        "%operator(g) { type = groupby implementation = DualFlow sources[] = in groupby[b] = $b"
        " aggregates[n] = count() }",
        f"%operator(f) {{ type = flowcontrol sources[] = g probe = set start = false period = 3 {more} }}",
    )
    assert rows(scan(), *groups, out("f")) == [("x", 3)]
    latest = more.replace("$n", "$a").replace("1::", "3::")
    cache = (
        "%operator(in) { type = flowcontrol sources[] = r }",
        "%operator(c) { type = cache implementation = MemUpdateCache sources[] = in key[] = $b }",
        f"%operator(f) {{ type = flowcontrol sources[] = c probe = set start = false period = 3 {latest} }}",
    )
    assert rows(scan(), *cache, out("f")) == [(4, "z")]
    # A part of a set does not fill a cache: the second probe, of another flow control, gets everything.
    part = f"%operator(f) {{ type = flowcontrol sources[] = c probe = set {latest} }}"
    whole = "%operator(w) { type = flowcontrol sources[] = c probe = set start = false period = 3 }"
    found = rows(
        scan(),
        "%operator(c) { type = cache sources[] = r }",
        part,
        whole,
        out("f"),
        "%operator(out2) { type = result sources[] = w }",
    )
    assert Counter(found)[(1, "x")] == 2  # both results get what either probe brings
    assert Counter(found)[(4, "z")] == 4


@pytest.mark.parametrize("kind", ["CSV", "JDBC", "Local"])
def test_an_index_join_over_a_source_without_an_index(tmp_path: Path, kind: str) -> None:
    """The source cannot look a key up, gives all it has, and the join compares."""
    pier = network()
    pier.nodes[0].publish(R)
    pier.nodes[0].publish(tuples("log", "host port", [("a", 1), ("b", 3), ("c", 3)]))
    with sqlite3.connect(tmp_path / "log.db") as database:
        database.execute("CREATE TABLE log (host TEXT, port INTEGER)")
        database.execute("INSERT INTO log VALUES ('a', 1), ('b', 3), ('c', 3), ('d', NULL)")
    inner = {
        "CSV": log_of(tmp_path),
        "JDBC": f'%operator(c) {{ type = scan implementation = JDBC url = "jdbc:sqlite:{tmp_path}/log.db"'
        ' sql = "SELECT host, port FROM log" table = log }',
        "Local": scan("c", "log"),
    }[kind]
    found = answers(
        pier,
        graph(
            scan(),
            inner,
            "%operator(j) { type = join implementation = Index sources[] = r sources[] = c"
            " left[] = $a right[] = $port }",
            out("j"),
        ),
    )
    expected = {(1, "x", "a", 1): 1, (3, "x", "b", 3): 2, (3, "x", "c", 3): 2}
    assert Counter(found.rows) == Counter(expected)
