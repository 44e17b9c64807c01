"""Node operator sets: the examples of the adaptive paper, and each of the semijoin paper's six methods, as they are."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from watersmeet.plan.nodes import HashParts, Hop, JoinPlan, Method, Partition, join_plan_of
from watersmeet.planners.local import local, symmetric
from watersmeet.planners.sited import central, explicit
from watersmeet.program.compile import compile_sites
from watersmeet.program.operators import Form, Join, JoinProgram, Probe, Purpose, clock_of, node_operators
from watersmeet.query.sql import parse_query

COLUMNS = ("k", "m", "id", "ts")
HOMES = {"s1": "n1", "s2": "n2", "s3": "n3"}
DESTINATION, SOURCE = Method.SP_D, Method.SP_S


def three_way(plan: Mapping[str, Sequence[Hop]]) -> dict[str, JoinProgram]:
    sql = "SELECT s1.id AS one FROM s1 [RANGE 1 MINUTE], s2 [RANGE 1 MINUTE], s3 [RANGE 1 MINUTE]"
    query = parse_query(f"{sql} WHERE s1.k = s2.k AND s2.k = s3.k", dict.fromkeys(HOMES, COLUMNS))
    return compile_sites(join_plan_of(explicit(query, dict.fromkeys(HOMES, COLUMNS), HOMES, "n0", plan)))


# Example 1: SEP_1 = ([S2, S3], [1, 1]), SEP_2 = ([S1, S3], [0, 1]), SEP_3 = ([S1, S2], [0, 0]).
EXAMPLE_1 = {
    "s1": (Hop("s2", DESTINATION), Hop("s3", DESTINATION)),
    "s2": (Hop("s1", SOURCE), Hop("s3", DESTINATION)),
    "s3": (Hop("s1", SOURCE), Hop("s2", SOURCE)),
}


# Example 2. The paper's S_2^1 is our s2^s1; it ships S_3^1 to N0 where we ship answers(s1). Its first operator of N3 is
# printed as join(S_1^1, S_3), which nothing ships there: N2 ships S_2^1.
EXAMPLE_2 = {
    "n1": {"ship(s1, n2)", "ship(s1, n3)"},
    "n2": {
        "join(s1, s2)",
        "update(s2)",
        "ship(s2^s1, n3)",
        "update(s1)",
        "join(s2, s1)",
        "ship(s1^s2, n3)",
        "ship(s2, n3)",
    },
    "n3": {
        "join(s2^s1, s3)",
        "update(s3)",
        "ship(answers(s1), n0)",
        "join(s1^s2, s3)",
        "ship(answers(s2), n0)",
        "join(s3, s1)",
        "join(s1^s3, s2)",
        "update(s1)",
        "update(s2)",
        "ship(answers(s3), n0)",
    },
    "n0": set(),
}


def test_examples_1_and_2_of_the_adaptive_paper() -> None:
    programs = three_way(EXAMPLE_1)
    found = {site: list(node_operators(program)) for site, program in programs.items()}
    assert {site: set(operators) for site, operators in found.items()} == EXAMPLE_2
    assert all(len(operators) == len(set(operators)) for operators in found.values()), "a union, nothing twice"


# Example 3: what SEP_1 alone asks of each node, before and after it becomes ([S3, S2], [0, 1]).
EXAMPLE_3_BEFORE = {
    "n1": {"ship(s1, n2)"},
    "n2": {"join(s1, s2)", "update(s2)", "ship(s2^s1, n3)"},
    "n3": {"join(s2^s1, s3)", "update(s3)", "ship(answers(s1), n0)"},
}
EXAMPLE_3_AFTER = {
    "n1": {"join(s1, s3)", "update(s3)", "ship(s3^s1, n2)"},
    "n2": {"join(s3^s1, s2)", "update(s2)", "ship(answers(s1), n0)"},
    "n3": {"ship(s3, n1)"},
}


def sequence_operators(programs: dict[str, JoinProgram], head: str) -> dict[str, set[str]]:
    """What one head's sequence asks of each site: its joins, their windows, and what its flows need shipped."""
    operators: dict[str, set[str]] = {}
    for site, program in programs.items():
        joins = [one for one in program.operators if isinstance(one, Join) and one.head == head]
        here = {f"join({join.left}, {join.alias})" for join in joins} | {f"update({join.right})" for join in joins}
        outs = {flow for other in programs.values() for flow in wanted(other, head)}
        here |= {f"ship({ship.flow}, {ship.to})" for ship in program.ships if (ship.flow.name, ship.to) in outs}
        operators[site] = here & set(node_operators(program))
    return operators


def wanted(program: JoinProgram, head: str) -> set[tuple[str, str | None]]:
    joins = [one for one in program.operators if isinstance(one, Join) and one.head == head]
    flows: set[tuple[str, str | None]] = {(flow.name, program.site) for join in joins for flow in join.inputs}
    return flows | {(f"answers({head})", program.join.site)}


@pytest.mark.parametrize(
    ("hops", "expected"),
    [
        (EXAMPLE_1["s1"], EXAMPLE_3_BEFORE),
        ((Hop("s3", SOURCE), Hop("s2", DESTINATION)), EXAMPLE_3_AFTER),
    ],
    ids=["before", "after"],
)
def test_example_3_of_the_adaptive_paper(hops: tuple[Hop, ...], expected: dict[str, set[str]]) -> None:
    programs = three_way(EXAMPLE_1 | {"s1": hops})
    assert sequence_operators(programs, "s1") == expected | {"n0": set()}


def two_way(method: Method, *, bloom: bool = False, window: str = "[RANGE 1 MINUTE]") -> dict[str, JoinProgram]:
    """Both heads of a join of a at n1 and b at n2 by one method; a's sequence is the one to look at."""
    return compile_sites(two_way_join(method, bloom, window))


def two_way_join(method: Method, bloom: bool, window: str) -> JoinPlan:
    columns = dict.fromkeys("ab", COLUMNS)
    query = parse_query(f"SELECT a.id AS one, b.id AS other FROM a {window}, b {window} WHERE a.k = b.k", columns)
    hops = {"a": [Hop("b", method, bloom=bloom)], "b": [Hop("a", Method.SP_D)]}
    join = join_plan_of(explicit(query, columns, {"a": "n1", "b": "n2"}, "n0", hops))
    return replace(join, ships_once=False)  # b goes to n1 whole for the other head


def of_head_a(program: JoinProgram) -> list[str]:
    """Without head b's sequence, which is always the same: b is shipped to n1 and joined there."""
    of_b = {"n0": [], "n1": ["join(b, a)", "update(a)", "ship(answers(b), n0)"], "n2": ["ship(b, n1)"]}
    left = list(node_operators(program))
    for line in of_b[program.site]:
        left.remove(line)
    return left


# N1 of the paper is n1, the site of the tuples that look for partners; N2 is n2, the home of the window.
METHODS = {
    "SP-S": {"n1": ["join(a, b)", "update(b)", "ship(answers(a), n0)"], "n2": []},
    "SP-D": {"n1": ["ship(a, n2)"], "n2": ["join(a, b)", "update(b)", "ship(answers(a), n0)"]},
    "SM-S1": {
        "n1": [
            "project(a) -> asks(a,b)",
            "join(a, b)",
            "update(fetched(b,a))",
            "ship(asks(a,b), n2)",
            "ship(answers(a), n0)",
        ],
        "n2": ["semijoin(b, asks(a,b)) -> fetched(b,a)", "ship(fetched(b,a), n1)"],
    },
    "SM-S2": {
        "n1": [
            "semijoin(keys(b,K1), a) -> wanted(a,b)",
            "join(a, b)",
            "update(fetched(b,a))",
            "ship(wanted(a,b), n2)",
            "ship(answers(a), n0)",
        ],
        "n2": [
            "announce(b) -> keys(b,K1)",
            "semijoin(b, wanted(a,b)) -> fetched(b,a)",
            "ship(keys(b,K1), n1)",
            "ship(fetched(b,a), n1)",
        ],
    },
    "SM-D1": {
        "n1": ["semijoin(a, keys(b,K1)) -> a|b", "ship(a|b, n2)"],
        "n2": [
            "announce(b) -> keys(b,K1)",
            "join(a|b, b)",
            "update(b)",
            "ship(keys(b,K1), n1)",
            "ship(answers(a), n0)",
        ],
    },
    "SM-D2": {
        "n1": [
            "project(a) -> asks(a,b)",
            "semijoin(a, found(a,b)) -> a|b",
            "ship(asks(a,b), n2)",
            "ship(a|b, n2)",
        ],
        "n2": [
            "announce(b) -> keys(b,K1)",
            "semijoin(keys(b,K1), asks(a,b)) -> found(a,b)",
            "join(a|b, b)",
            "update(b)",
            "ship(found(a,b), n1)",
            "ship(answers(a), n0)",
        ],
    },
}


@pytest.mark.parametrize("method", list(Method))
def test_the_operators_of_a_method(method: Method) -> None:
    programs = two_way(method)
    found = {site: of_head_a(program) for site, program in programs.items()}
    assert found == {"n0": [], **METHODS[method]}


BLOOM = {
    "SM-S1": {("n1", "n2"): {"bloom asks(a,b)"}, ("n2", "n1"): set()},
    "SM-S2": {("n1", "n2"): set(), ("n2", "n1"): {"bloom keys(b,K1)"}},
    "SM-D1": {("n1", "n2"): set(), ("n2", "n1"): {"bloom keys(b,K1)"}},
    "SM-D2": {("n1", "n2"): {"bloom asks(a,b)"}, ("n2", "n1"): {"bloom found(a,b)"}},
}


@pytest.mark.parametrize("method", list(BLOOM))
def test_what_a_bloom_filter_stands_for(method: str) -> None:
    programs = two_way(Method(method), bloom=True)
    for (sender, receiver), filters in BLOOM[method].items():
        ships = [ship for ship in programs[sender].ships if ship.to == receiver]
        assert {ship.arrives_as.name for ship in ships if ship.arrives_as.bloom} == filters
        assert {ship.arrives_as.name for ship in ships if ship.arrives_as.purpose is Purpose.FILTERS} == filters


@pytest.mark.parametrize("method", [method for method in Method if method is not Method.SP_D])
def test_the_clock_of_a_rows_window_goes_where_its_times_are_translated(method: Method) -> None:
    programs = two_way(method, window="[ROWS 5]")
    assert "ship(clock(b), n1)" in set(node_operators(programs["n2"]))
    assert ("n2", clock_of("b")) in programs["n1"].inbound


def test_a_simple_join_at_the_destination_ships_no_clock() -> None:
    programs = two_way(Method.SP_D, window="[ROWS 5]")
    assert [line for program in programs.values() for line in node_operators(program) if "clock" in line] == []


def test_central_ships_every_stream_once_and_joins_at_the_querys_site() -> None:
    columns = dict.fromkeys(HOMES, COLUMNS)
    sql = "SELECT s1.id FROM s1 [UNBOUNDED], s2 [UNBOUNDED], s3 [UNBOUNDED] WHERE s1.k = s2.k AND s2.k = s3.k"
    programs = compile_sites(join_plan_of(central(parse_query(sql, columns), columns, HOMES, "n0")))
    for stream, home in HOMES.items():
        assert list(node_operators(programs[home])) == [f"ship({stream}, n0)"]
    assert sum(line.startswith("join(") for line in node_operators(programs["n0"])) == 6
    assert programs["n0"].ships == ()


@pytest.mark.parametrize("method", list(Method))
def test_a_flow_has_one_form_of_its_own(method: Method) -> None:
    """Full tuples are rows or partial combinations: what the count of shipped tuples rests on."""
    columns = dict.fromkeys("abc", COLUMNS)
    sql = "SELECT a.id FROM a [ROWS 5], b [ROWS 5], c [ROWS 5] WHERE a.k = b.k AND b.m = c.m"
    hops = {head: [Hop(alias, method) for alias in others] for head, others in (("a", "bc"), ("b", "ac"), ("c", "ba"))}
    homes = {"a": "n1", "b": "n2", "c": "n3"}
    join = join_plan_of(explicit(parse_query(sql, columns), columns, homes, "n0", hops))
    for program in compile_sites(join).values():
        full = [ship.flow for ship in program.ships if ship.flow.purpose is Purpose.TUPLES]
        assert {flow.form for flow in full} <= {Form.ROW, Form.POINT}


# Symmetric joins ------------------------------------------------------------------------------------------------------


def symmetric_join(where: str, window: str = "[UNBOUNDED]", site: str = "n1") -> JoinPlan:
    columns = dict.fromkeys("abc", COLUMNS)
    sql = f"SELECT a.id FROM a {window}, b {window}, c {window} WHERE {where}"
    return join_plan_of(local(parse_query(sql, columns), columns, site))


def test_a_symmetric_join_by_one_key_is_one_probe_a_head() -> None:
    (program,) = compile_sites(symmetric_join("a.k = b.k AND b.k = c.k")).values()
    assert list(node_operators(program)) == [
        "probe(a: b, c by K1) -> answers(a)",
        "update(b)",
        "update(c)",
        "probe(b: a, c by K1) -> answers(b)",
        "update(a)",
        "probe(c: a, b by K1) -> answers(c)",
    ]
    assert (program.ships, program.inbound, program.local) == ((), (), ("a", "b", "c"))


def test_a_symmetric_join_has_a_stage_for_every_key_and_carries_what_later_stages_need() -> None:
    (program,) = compile_sites(symmetric_join("a.k = b.k AND b.m = c.m")).values()
    probes = [one for one in program.operators if isinstance(one, Probe)]
    assert [line for line in node_operators(program) if line.startswith("probe")] == [
        "probe(a: b by K1) -> a+",
        "probe(a+: c by K2) -> answers(a)",
        "probe(b: a by K1) -> b+",
        "probe(b+: c by K2) -> answers(b)",
        "probe(c: b by K2) -> c+",
        "probe(c+: a by K1) -> answers(c)",
    ]
    assert [probe.carried for probe in probes] == [(1,), (), (1,), (), (0,), ()]
    assert [probe.bound for probe in probes] == [("a",), ("a", "b"), ("b",), ("b", "a"), ("c",), ("c", "b")]
    assert {probe.out.form for probe in probes} == {Form.DELTA, Form.RESULT}
    assert {flow.name for probe in probes for flow in probe.windows} == {"a", "b", "c"}


@pytest.mark.parametrize("window", ["[RANGE 1 MINUTE]", "[ROWS 5]"])
def test_a_symmetric_join_elsewhere_gets_every_stream_once_and_ships_answers(window: str) -> None:
    here = symmetric_join("a.k = b.k AND b.k = c.k", window)
    programs = compile_sites(replace(here, homes=("n1", "n2", "n3"), site="n0"))
    clocks = [f"clock({alias})" for alias in "abc"] if "ROWS" in window else ["", "", ""]
    for alias, home, clock in zip("bc", ("n2", "n3"), clocks[1:], strict=True):
        assert list(node_operators(programs[home])) == [f"ship({name}, n1)" for name in filter(None, (alias, clock))]
    ships = [line for line in node_operators(programs["n1"]) if line.startswith("ship")]
    assert ships == [f"ship(answers({head}), n0)" for head in "abc"]
    assert [flow.name for _, flow in programs["n0"].inbound] == [f"answers({head})" for head in "abc"]
    assert programs["n0"].operators == () and programs["n0"].is_query_site and not programs["n1"].is_query_site


def test_a_symmetric_join_may_be_for_some_keys_only() -> None:
    here = symmetric_join("a.k = b.k AND b.k = c.k")
    columns, homes = dict.fromkeys("abc", COLUMNS), dict.fromkeys("abc", "n1")
    sql = "SELECT a.id FROM a [UNBOUNDED], b [UNBOUNDED], c [UNBOUNDED] WHERE a.k = b.k AND b.k = c.k"
    linear = join_plan_of(central(parse_query(sql, columns), columns, homes, "n1")).sub_plans[0]
    sub_plans = (linear, symmetric(("a", "b", "c"), here.classes, "n1"))
    (program,) = compile_sites(
        replace(here, sub_plans=sub_plans, partition=Partition(0, HashParts((0, 1, 1))))
    ).values()
    assert {type(one): one.sub_plans for one in program.operators} == {Join: (0,), Probe: (1,)}
    outs = [one.out.name for one in program.operators]
    assert len(outs) == len(set(outs)), "each sub-plan has flows of its own"


def test_without_answers_only_what_links_carry_is_left() -> None:
    here = symmetric_join("a.k = b.k AND b.m = c.m")
    programs = compile_sites(replace(here, homes=("n1", "n2", "n3")), answers=False)
    assert [program.operators for program in programs.values()] == [(), (), ()]
    assert [ship.flow.name for program in programs.values() for ship in program.ships] == ["b", "c"]
