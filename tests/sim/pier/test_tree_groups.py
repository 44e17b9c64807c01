"""GROUP BY of SQL by aggregation trees: answers are the oracle's, and say how many nodes are in them."""

from pathlib import Path

import pytest
from pier_scenarios import is_exact, scenario

from watersmeet.errors import InputError, UflError
from watersmeet.program.pier.algorithms import names_for_queries
from watersmeet.program.pier.dataflow import prepare
from watersmeet.program.pier.operators.tree import RecordAlgebra
from watersmeet.program.pier.tuples import Batch, Schema
from watersmeet.program.pier.ufl.format import format_ufl
from watersmeet.program.pier.ufl.parse import parse_ufl
from watersmeet.sim.scenario.pier.simulate import simulate_pier, ufl_of

NODES = 30
ROOMS = (
    "SELECT h.room, count(*) AS n, sum(h.degrees) AS s, max(h.ts) AS t FROM heat [UNBOUNDED] AS h "
    "GROUP BY h.room, TUMBLE(2 SECONDS)"
)
QUERIES = [
    ROOMS,
    "SELECT d.state, count(*) AS n, avg(d.room) AS a, window_start FROM doors [RANGE 2 SECONDS] AS d, "
    "badges [TUMBLE 2 SECONDS] AS b WHERE d.badge = b.badge GROUP BY d.state, HOP(2 SECONDS, 1 SECOND) "
    "HAVING count(*) > 1",
    "SELECT d.badge, count(*) AS n, avg(d.room) AS a, min(d.ts) AS t, max(d.state) AS m FROM doors [UNBOUNDED] AS d "
    "WHERE d.room > 1 GROUP BY d.badge, TUMBLE(2 SECONDS) ORDER BY n DESC, a LIMIT 2",
    "SELECT count(*) AS n, stddev(h.degrees) AS s FROM heat [UNBOUNDED] AS h GROUP BY TUMBLE(1 SECOND)",
]


@pytest.mark.parametrize("sql", QUERIES)
def test_groups_are_those_of_the_oracle_with_all_nodes_in_them(tmp_path: Path, sql: str) -> None:
    outcome = simulate_pier(scenario(tmp_path, sql, ", aggregation: Tree-Hi-S-Topology, group_wait: 2 s", seed=3))
    assert is_exact(outcome)
    assert (outcome.summary.malformed, outcome.summary.late) == (0, 0)
    (query,) = outcome.summary.queries.values()
    assert query.repeated == 0
    nodes = outcome.answers["q"].column("nodes").to_pylist()
    assert set(nodes) == {NODES}


@pytest.mark.parametrize(
    "name", ["DHT-1L-Learned", "DHT-ML-Timeout", "DHT-Hi-Timeout", "DHT-Hi-S-Adaptive", "Tree-ML-Learned"]
)
def test_other_algorithms(tmp_path: Path, name: str) -> None:
    assert name in names_for_queries()
    outcome = simulate_pier(scenario(tmp_path, ROOMS, f", aggregation: {name}, group_wait: 2 s", rows=40, seed=5))
    assert is_exact(outcome)
    assert set(outcome.answers["q"].column("nodes").to_pylist()) == {NODES}


@pytest.mark.parametrize("name", ["Tree-Hi-S-Topology", "DHT-1L-Learned", "DHT-Hi-Timeout", "Tree-ML-Timeout"])
def test_windows_whose_panes_are_as_long_as_groups_wait(tmp_path: Path, name: str) -> None:
    """The window waits for its last pane, which takes longer up the tree than the next pane of other windows."""
    sql = ROOMS.replace("TUMBLE(2 SECONDS)", "HOP(4 SECONDS, 2 SECONDS)")
    outcome = simulate_pier(scenario(tmp_path, sql, f", aggregation: {name}, group_wait: 2 s", seed=5))
    assert is_exact(outcome)
    assert outcome.summary.late == 0
    assert set(outcome.answers["q"].column("nodes").to_pylist()) == {NODES}


def test_one_root_answers_all_groups_in_one_op_graph(tmp_path: Path) -> None:
    assert len(ufl_of(scenario(tmp_path, ROOMS, ", aggregation: Tree-Hi-S-Topology"))["q"].graphs) == 1
    assert len(ufl_of(scenario(tmp_path, ROOMS, ""))["q"].graphs) == 2


def test_answers_under_churn_say_how_many_nodes_are_in_them(tmp_path: Path) -> None:
    network = ", churn: {sessions: exponential, mean: 40 s, stable_nodes: 12}"
    outcome = simulate_pier(
        scenario(tmp_path, ROOMS, ", aggregation: Tree-Hi-S-Adaptive, group_wait: 2 s", network, rows=300, seed=7)
    )
    assert outcome.summary.failures > 3
    nodes = outcome.answers["q"].column("nodes").to_pylist()
    assert nodes
    assert 12 <= max(nodes) <= NODES + outcome.summary.joins
    assert min(nodes) < NODES


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown aggregation 'Tree-Hi-Topologie'.*Tree-Hi-Topology"):
        scenario(tmp_path, ROOMS, ", aggregation: Tree-Hi-Topologie")
    with pytest.raises(InputError, match="unknown aggregation 'IP-1L-Learned'"):
        scenario(tmp_path, ROOMS, ", aggregation: IP-1L-Learned")
    with pytest.raises(InputError, match="aggregation runs by epochs"):
        scenario(tmp_path, ROOMS, ", aggregation: DHT-Hi-Learned, mode: snapshot")
    with pytest.raises(InputError, match="answers get a column nodes"):
        simulate_pier(scenario(tmp_path, ROOMS.replace("AS n", "AS nodes"), ", aggregation: DHT-Hi-Learned"))


def test_op_graphs_survive_their_text_and_are_checked(tmp_path: Path) -> None:
    graphs = ufl_of(scenario(tmp_path, ROOMS, ", aggregation: Tree-Hi-S-Topology"))["q"]
    text = format_ufl(graphs)
    assert format_ufl(parse_ufl(text)) == text
    with pytest.raises(UflError, match=r"unknown algorithm 'Tree-Hi-S-Top'"):
        prepare(parse_ufl(text.replace("Tree-Hi-S-Topology", "Tree-Hi-S-Top")))


def test_records_of_several_kinds_are_kept_apart(tmp_path: Path) -> None:
    graphs = prepare(ufl_of(scenario(tmp_path, ROOMS, ", aggregation: Tree-Hi-S-Topology"))["q"])
    (plan,) = [plan for graph in graphs for name, plan in graph.plans.items() if name == "tree"]
    algebra = RecordAlgebra(plan.settings.window)
    assert algebra.combine([(), ()]) == ()
    assert algebra.size_bytes(()) == 0
    assert isinstance(algebra.combine([(), (Batch(_schema(), [(1, 2)]),)])[0], Batch)


def _schema() -> Schema:
    return Schema.of("records", {"a": "integer", "b": "integer"})
