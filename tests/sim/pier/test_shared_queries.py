"""GROUP BY queries of SQL that differ in their filters share work in the network, and answers stay the oracle's."""

from pathlib import Path
from random import Random

import pytest
from peers import answers, network, tuples
from pier_scenarios import STREAMS

from watersmeet.cli import main
from watersmeet.errors import InputError, UflError
from watersmeet.program.pier.dataflow import prepare
from watersmeet.program.pier.ufl.format import format_ufl
from watersmeet.program.pier.ufl.parse import parse_ufl
from watersmeet.sim.scenario.load import load_scenario
from watersmeet.sim.scenario.model import Scenario
from watersmeet.sim.scenario.pier.outcome import PierOutcome
from watersmeet.sim.scenario.pier.simulate import explained, simulate_pier, ufl_of

NODES = 30
TREES = ", aggregation: Tree-Hi-S-Topology, group_wait: 2 s"
NESTED = ["h.room < 3", "h.room >= 3", "h.room < 7", "h.room >= 7", "h.room >= 3 AND h.room < 7", "h.room >= 0"]
CROSSED = [
    "h.room < 5",
    "(h.room >= 5 OR h.room IS NULL)",
    "h.degrees < 25.5",
    "(h.degrees >= 25.5 OR h.degrees IS NULL)",
]


def together(
    tmp_path: Path, queries: list[str], pier: str = "", network: str = "", rows: int = 40, seed: int = 3
) -> Scenario:
    file = tmp_path / "scenario.yaml"
    asked = "".join(
        f"  q{number}:\n    home: {3 + number % 3}\n    sql: >\n      {sql}\n" for number, sql in enumerate(queries)
    )
    file.write_text(
        f"system: pier\nnetwork: {{nodes: {NODES}, overlay: bamboo, latency: king, seed: {seed}{network}}}\n"
        f"pier: {{drain: 25 s{pier}}}\n{STREAMS.format(rows=rows, seed=seed)}\nqueries:\n{asked}"
    )
    return load_scenario(file)


def heat(items: str, where: str, end: str = "TUMBLE(2 SECONDS)") -> str:
    return f"SELECT h.room, {items} FROM heat [UNBOUNDED] AS h WHERE {where} GROUP BY h.room, {end}"


def is_exact(outcome: PierOutcome) -> bool:
    summary = outcome.summary
    assert all(query.checked is not None and query.repeated == 0 for query in summary.queries.values())
    assert sum(query.answers for query in summary.queries.values()) > 0, "no query has answers: it tests nothing"
    return summary.is_right and summary.late == 0 and summary.malformed == 0


@pytest.mark.few(4)
@pytest.mark.parametrize("pier", ["", TREES, ", transport: ip"])
@pytest.mark.parametrize(
    "items", ["count(*) AS n, sum(h.room) AS s", "max(h.degrees) AS m, min(h.ts) AS t", "avg(h.degrees) AS a"]
)
def test_answers_are_those_of_the_oracle(tmp_path: Path, items: str, pier: str) -> None:
    outcome = simulate_pier(together(tmp_path, [heat(items, where) for where in NESTED], pier))
    assert is_exact(outcome)
    (shared,) = outcome.summary.shared
    assert (len(shared.queries), shared.fragments) == (6, 4)
    assert shared.entries is not None
    assert shared.entries < 6
    if "aggregation" in pier:
        assert all(set(table.column("nodes").to_pylist()) == {NODES} for table in outcome.answers.values())


@pytest.mark.parametrize("pier", ["", TREES])
def test_counts_of_crossed_conditions_are_subtracted(tmp_path: Path, pier: str) -> None:
    """Neither condition says anything of the other, so there are four fragments, but F has three ranks."""
    queries = [heat("count(*) AS n, sum(h.room) AS s", where, "HOP(2 SECONDS, 1 SECOND)") for where in CROSSED]
    given = together(tmp_path, queries, pier)
    ((graphs, shared),) = explained(given).values()
    assert shared is not None
    assert (shared.fragments, shared.entries) == (4, 3)
    assert "implementation = Linear" in format_ufl(graphs)
    assert is_exact(simulate_pier(given))


def test_sums_of_doubles_are_never_subtracted(tmp_path: Path) -> None:
    queries = [heat("count(*) AS n, sum(h.degrees) AS s", where) for where in CROSSED]
    outcome = simulate_pier(together(tmp_path, queries))
    assert outcome.summary.shared == ()  # four disjoint sets are no fewer than four queries
    assert is_exact(outcome)


@pytest.mark.parametrize("pier", ["", TREES])
def test_fewer_messages_than_without_sharing(tmp_path: Path, pier: str) -> None:
    queries = [heat("count(*) AS n", where) for where in NESTED]
    shared = simulate_pier(together(tmp_path, queries, pier, rows=60))
    alone = simulate_pier(together(tmp_path, queries, f"{pier}, sharing: none", rows=60))
    assert is_exact(shared)
    assert is_exact(alone)
    assert alone.summary.shared == ()
    for name, table in alone.answers.items():
        came = shared.answers[name].sort_by([(each, "ascending") for each in table.column_names])
        assert came == table.sort_by([(each, "ascending") for each in table.column_names])
    assert shared.summary.messages < 0.85 * alone.summary.messages
    assert shared.summary.bytes < alone.summary.bytes


def test_windows_having_order_and_limit_may_differ(tmp_path: Path) -> None:
    items = "count(*) AS n, max(h.ts) AS t"
    queries = [
        heat(items, NESTED[0]),
        heat(items, NESTED[1], "TUMBLE(2 SECONDS) HAVING count(*) > 1"),
        heat(items, NESTED[2], "TUMBLE(2 SECONDS) ORDER BY n DESC, t LIMIT 2"),
        heat(items, NESTED[3]).replace("count(*) AS n", "count(*) + h.room AS n, window_start"),
        heat(items, NESTED[5]).replace("h.", "other.").replace("AS h ", "AS other "),
        heat(items, "h.room > 3", "HOP(3 SECONDS, 1 SECOND)"),  # other panes: it is answered by itself
    ]
    for pier in ("", TREES):
        outcome = simulate_pier(together(tmp_path, queries, pier))
        (shared,) = outcome.summary.shared
        assert shared.queries == ("q0", "q1", "q2", "q3", "q4")
        assert is_exact(outcome)


def grouped(keys: str, items: str, where: str, end: str = "TUMBLE(2 SECONDS)", stream: str = "heat") -> str:
    columns = keys.split(", ") if keys else []
    named = "".join(f"{each} AS k{number}, " for number, each in enumerate(columns))
    by = "".join(f"{each}, " for each in columns)
    return f"SELECT {named}{items} FROM {stream} [UNBOUNDED] AS {stream[0]} WHERE {where} GROUP BY {by}{end}"


@pytest.mark.few(2)
@pytest.mark.parametrize("pier", ["", TREES, ", transport: ip"])
def test_aggregates_groups_and_panes_may_differ(tmp_path: Path, pier: str) -> None:
    """Records of the finest groups and panes are rolled up for the others (5.6.2)."""
    fine = [grouped("h.room > 4, h.room % 3", "count(*) AS n, sum(h.room) AS s", where) for where in NESTED]
    hopping = "HOP(4 SECONDS, 2 SECONDS) HAVING count(*) > 1"
    coarse = [
        grouped("h.room > 4", "count(*) AS n", NESTED[2]),
        grouped("h.room % 3", "sum(h.room) AS s, count(*) AS n", NESTED[1], hopping),
        grouped("", "avg(h.room) AS a", NESTED[0], "TUMBLE(6 SECONDS)"),
        grouped("h.room % 3, h.room > 4", "avg(h.room) AS a", NESTED[3], "TUMBLE(4 SECONDS) ORDER BY a DESC LIMIT 2"),
    ]
    other = [grouped("h.room > 4", "max(h.ts) AS t", where) for where in NESTED]  # another algebra: its own family
    queries = [*fine, *coarse, *other]
    given = together(tmp_path, queries, pier, rows=100)
    outcome = simulate_pier(given)
    assert is_exact(outcome)
    has_trees = "aggregation" in pier  # coarser groups are rolled up where all records meet, at a coordinator
    assert [len(shared.queries) for shared in outcome.summary.shared] == [10 if has_trees else 7, 6]
    alone = simulate_pier(together(tmp_path, queries, f"{pier}, sharing: none", rows=100))
    assert outcome.summary.messages < 0.8 * alone.summary.messages
    assert outcome.summary.bytes < alone.summary.bytes
    if "aggregation" in pier:
        assert all(set(table.column("nodes").to_pylist()) == {NODES} for table in outcome.answers.values())


def test_what_is_subtracted_is_rolled_up_too(tmp_path: Path) -> None:
    items = "count(*) AS n, sum(h.room) AS s, avg(h.room) AS a"
    queries = [grouped("h.room > 4, h.room % 3", items, where) for where in CROSSED]
    queries += [
        grouped("h.room > 4", "sum(h.room) AS s", CROSSED[2]),
        grouped("", "count(*) AS n, avg(h.room) AS a", CROSSED[3], "HOP(4 SECONDS, 2 SECONDS)"),
        grouped("h.room % 3", "count(*) AS n", CROSSED[0], "TUMBLE(4 SECONDS)"),
    ]
    given = together(tmp_path, queries, TREES, rows=80)
    ((graphs, shared),) = explained(given).values()
    assert shared is not None
    assert (len(shared.queries), shared.fragments, shared.entries) == (7, 4, 3)
    assert "implementation = Linear" in format_ufl(graphs)
    assert is_exact(simulate_pier(given))


def test_coarse_queries_alone_do_not_take_fine_records(tmp_path: Path) -> None:
    """One query with fine groups would make records of all entries for it; so the others share without it."""
    queries = [grouped("h.room, h.ts", "count(*) AS n", NESTED[0])]
    queries += [grouped("h.room", "count(*) AS n", where) for where in NESTED]
    outcome = simulate_pier(together(tmp_path, queries))
    (shared,) = outcome.summary.shared
    assert shared.queries == tuple(f"q{number}" for number in range(1, 7))
    assert is_exact(outcome)


@pytest.mark.parametrize("pier", ["", TREES])
@pytest.mark.parametrize("items", ["count(*) AS n", "max(h.degrees) AS m"])
def test_filters_of_any_kind(tmp_path: Path, items: str, pier: str) -> None:
    """Fragments are not known before there are rows, so each node decomposes its own."""
    wheres = ["h.room % 2 = 0", "h.room % 3 = 0", "h.room % 2 = 0 OR h.room % 3 = 0", "100 / h.room > 20", "h.room > 4"]
    outcome = simulate_pier(together(tmp_path, [heat(items, where) for where in wheres], pier, rows=60))
    (shared,) = outcome.summary.shared
    assert (len(shared.queries), shared.entries) == (5, None)
    assert outcome.summary.is_right
    assert sum(query.answers for query in outcome.summary.queries.values()) > 20


@pytest.mark.few(2)
@pytest.mark.parametrize("pier", ["", TREES, ", join: semijoin", ", transport: ip"])
def test_one_join_for_all(tmp_path: Path, pier: str) -> None:
    def over(where: str) -> str:
        return (
            "SELECT d.state, count(*) AS n, max(b.team) AS m FROM doors [RANGE 2 SECONDS] AS d, "
            f"badges [TUMBLE 2 SECONDS] AS b WHERE d.badge = b.badge AND {where} GROUP BY d.state, TUMBLE(2 SECONDS)"
        )

    wheres = ["d.room < 4", "d.room >= 4", "d.room < 8", "d.room >= 8", "d.room >= 4 AND d.room < 8"]
    wheres.append("d.room >= 8 AND b.team = 'day'")
    given = together(tmp_path, [over(where) for where in wheres], pier)
    ((graphs, shared),) = explained(given).values()
    assert shared is not None
    text = format_ufl(graphs)
    assert text.count('ns = "\\qi.1"') + text.count('port = "\\qi.1"') == 3  # two inputs and one scan of them
    assert is_exact(simulate_pier(given))


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(8))
def test_random_families(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    atoms = ["d.room < {}", "d.room >= {}", "d.badge = {}", "d.badge IS NULL", "d.state = 'opened'", "d.badge <> {}"]
    atoms += ["d.room + d.badge > {}"] if seed % 2 else []

    def filtered() -> str:
        parts = [atom.format(chance.randrange(8)) for atom in chance.sample(atoms, chance.randrange(1, 3))]
        return chance.choice([" AND ", " OR "]).join(parts)

    functions = [
        "count(*)",
        "sum(d.room)",
        "avg(d.badge)",
        "min(d.ts)",
        "max(d.state)",
        "count(d.badge)",
        "max(d.room)",
    ]
    items = ", ".join(f"{name} AS v{number}" for number, name in enumerate(chance.sample(functions, 2)))
    key = chance.choice(["d.state", "d.badge", "d.room"])
    window = chance.choice(["TUMBLE(2 SECONDS)", "HOP(2 SECONDS, 1 SECOND)"])
    queries = [grouped(key, items, filtered(), window, "doors") for _ in range(chance.randrange(4, 9))]
    for _ in range(2):  # coarser ones
        of, some = chance.choice([(key, items.split(", ")[0]), ("", items)])
        queries.append(grouped(of, some, filtered(), "HOP(4 SECONDS, 2 SECONDS)", "doors"))
    outcome = simulate_pier(together(tmp_path, queries, chance.choice(["", TREES]), rows=50, seed=seed + 1))
    assert is_exact(outcome)


def test_answers_under_churn_say_how_many_nodes_are_in_them(tmp_path: Path) -> None:
    churn = ", churn: {sessions: exponential, mean: 40 s, stable_nodes: 12}"
    queries = [heat("count(*) AS n", where) for where in NESTED]
    given = together(tmp_path, queries, ", aggregation: Tree-Hi-S-Adaptive, group_wait: 2 s", churn, rows=300, seed=7)
    assert "Linear" not in "".join(map(format_ufl, ufl_of(given).values()))  # trees may lose different nodes
    outcome = simulate_pier(given)
    assert outcome.summary.failures > 3
    assert len(outcome.summary.shared) == 1
    nodes = [each for table in outcome.answers.values() for each in table.column("nodes").to_pylist()]
    assert nodes
    assert 12 <= max(nodes) <= NODES + outcome.summary.joins
    assert min(nodes) < NODES
    checked = [query.checked for query in outcome.summary.queries.values()]
    for name, table in outcome.answers.items():  # no count is above that of all rows
        assert all(n > 0 for n in table.column("n").to_pylist()), name
    assert all(each is not None and each.expected for each in checked)


@pytest.mark.parametrize("limit", ["", " ORDER BY n DESC, h.room LIMIT 2"])
def test_groups_are_spread_over_several_roots(tmp_path: Path, limit: str) -> None:
    sql = f"SELECT h.room, count(*) AS n FROM heat [UNBOUNDED] AS h GROUP BY h.room, TUMBLE(2 SECONDS){limit}"
    outcome = simulate_pier(together(tmp_path, [sql], f"{TREES}, roots: 3"))
    assert is_exact(outcome)
    assert set(outcome.answers["q0"].column("nodes").to_pylist()) == {NODES}


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown sharing 'all'; .*auto"):
        together(tmp_path, [heat("count(*) AS n", "h.room > 1")], ", sharing: all")
    with pytest.raises(InputError, match="roots are those of aggregation trees"):
        together(tmp_path, [heat("count(*) AS n", "h.room > 1")], ", roots: 2")
    with pytest.raises(InputError, match="roots must be from 1 to"):
        together(tmp_path, [heat("count(*) AS n", "h.room > 1")], f"{TREES}, roots: 999")


def test_explain_says_what_is_shared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    together(tmp_path, [heat("count(*) AS n", where) for where in NESTED])
    with pytest.raises(SystemExit) as ended:
        main.main(["explain", "--ufl", str(tmp_path / "scenario.yaml"), "--query", "q1"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "answered together: 4 aggregates for 6 queries (gain 0.33), from 4 fragments" in out


# The operators by themselves.

SHARED = """
%opgraph(g) {{ duration = 30
  %operator(r) {{ type = scan implementation = Local table = R }}
  %operator(f) {{ type = fragment sources[] = r
    %predicate(a) {{ type = atomic leftexpression = $a op = ">" rightexpression = 1::integer }}
    %predicate(b) {{ type = atomic leftexpression = add(9223372036854775805::integer, $a) op = "="
      rightexpression = 9223372036854775807::integer }}
  }}
  %operator(out) {{ type = result sources[] = {} }}
}}
"""


def test_a_predicate_that_fails_leaves_a_tuple_out_of_its_own_query_only() -> None:
    pier = network()
    pier.nodes[0].publish(tuples("R", "a", [(0,), (1,), (2,), (3,)]))
    assert answers(pier, SHARED.format("f")).rows == [(2, b"\x03"), (3, b"\x01")]
    assert pier.nodes[0].counters[("q0.1", "g")].malformed == {"f": 1}


def test_op_graphs_survive_their_text(tmp_path: Path) -> None:
    for where, pier in ((NESTED, ""), (NESTED, TREES), (CROSSED, TREES)):
        for graphs in ufl_of(together(tmp_path, [heat("count(*) AS n", each) for each in where], pier)).values():
            text = format_ufl(graphs)
            assert parse_ufl(text) == graphs
            prepare(parse_ufl(text))


@pytest.mark.parametrize(
    ("changed", "to", "message"),
    [
        ("basis[] = 7305", "basis[] = 62", "'62' is no entry of a set of queries"),
        ("basis[] = 7305", "basis[] = xyz", "'xyz' is no entry; entries are written in hexadecimal digits"),
        ("    output = records\n    overlap", "    overlap", "which become windows by a groupby; add output = records"),
        ("query = 0\n", "", "it needs the number of a query"),
        ("entries[] = 7305", "entries[] = zz", "entries are written in hexadecimal digits"),
        ('column = "#queries"\n    entries', "column = x\n    entries", "the column 'x' of entries is none of groupby"),
        ("trees[] = 0", "trees[] = first", "'first' is no small whole number"),
        ("asker = 0\n", "", "asker and query go together"),
    ],
)
def test_wrong_settings_are_one_sentence(tmp_path: Path, changed: str, to: str, message: str) -> None:
    queries = [heat("max(h.room) AS n", where) for where in NESTED]
    (graphs,) = ufl_of(together(tmp_path, queries, TREES)).values()
    text = format_ufl(graphs)
    assert changed in text, text
    with pytest.raises(UflError, match=message):
        prepare(parse_ufl(text.replace(changed, to, 1)))
