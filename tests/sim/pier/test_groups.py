"""GROUP BY of SQL as op-graphs: groups of output windows on simulated peers beside those of the oracle."""

from pathlib import Path
from random import Random

import pytest
from peers import answers, network, tuples
from pier_scenarios import is_exact, scenario

from watersmeet.errors import InputError, UflError
from watersmeet.program.pier.dataflow import prepare
from watersmeet.program.pier.ufl.format import format_ufl
from watersmeet.program.pier.ufl.parse import parse_ufl
from watersmeet.query.bags import nearly_bag_of
from watersmeet.sim.scenario.load import load_scenario
from watersmeet.sim.scenario.pier.simulate import simulate_pier, ufl_of

JOINED = "doors [RANGE 2 SECONDS] AS d, badges [TUMBLE 2 SECONDS] AS b WHERE d.badge = b.badge"
QUERIES = [
    "SELECT h.room, count(*) AS n, sum(h.degrees) AS s FROM heat [UNBOUNDED] AS h GROUP BY h.room, TUMBLE(2 SECONDS)",
    f"SELECT d.state, count(*) AS n, count(DISTINCT b.team) AS k, window_start FROM {JOINED} "
    "GROUP BY d.state, HOP(2 SECONDS, 1 SECOND) HAVING count(*) > 1",
    "SELECT d.badge, count(*) AS n, avg(d.room) AS a, min(d.ts) AS t, max(d.state) AS m FROM doors [UNBOUNDED] AS d "
    "WHERE d.room > 1 GROUP BY d.badge, TUMBLE(2 SECONDS) ORDER BY n DESC, a LIMIT 2",
    "SELECT count(*) AS n, count(d.badge) AS k, stddev(h.degrees) AS s, max(h.degrees) - min(h.degrees) AS m "
    "FROM heat [RANGE 2 SECONDS] AS h, doors [RANGE 1 SECOND] AS d WHERE h.room = d.room GROUP BY TUMBLE(1 SECOND)",
]


@pytest.mark.parametrize("sql", QUERIES)
def test_groups_are_those_of_the_oracle(tmp_path: Path, sql: str) -> None:
    outcome = simulate_pier(scenario(tmp_path, sql, "", seed=3))
    assert is_exact(outcome)
    (query,) = outcome.summary.queries.values()
    assert (outcome.summary.malformed, outcome.summary.late, query.repeated) == (0, 0, 0)
    assert query.delays is not None
    assert query.delays.median_us > 2_000_000  # an answer waits until its window has ended


@pytest.mark.parametrize(
    "pier",
    [
        ", transport: ip",
        ", join: hierarchical",
        ", join: semijoin",
        ", join: fetch_matches, mode: snapshot",
        ", join: bloom, mode: snapshot",
    ],
)
def test_groups_of_every_method(tmp_path: Path, pier: str) -> None:
    assert is_exact(simulate_pier(scenario(tmp_path, QUERIES[1], pier, seed=4)))


@pytest.mark.parametrize("seed", range(4))
def test_random_groupings(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    keys = chance.sample(["d.room", "d.state", "b.team", "d.badge", "d.room + b.badge"], chance.randrange(3))
    functions = ["count(*)", "sum(d.room)", "avg(b.badge)", "min(b.team)", "max(d.ts)", "count(DISTINCT d.room)"]
    items = [f"{key} AS k{number}" for number, key in enumerate(keys)]
    items += [f"{name} AS v{number}" for number, name in enumerate(chance.sample(functions, 3))]
    window = chance.choice(["TUMBLE(1 SECOND)", "TUMBLE(3 SECONDS)", "HOP(3 SECONDS, 1 SECOND)"])
    order = " ORDER BY v0 DESC NULLS LAST LIMIT 3" if chance.random() < 0.5 else ""
    sql = f"SELECT {', '.join(items)} FROM {JOINED} GROUP BY {', '.join([*keys, window])}{order}"
    assert is_exact(simulate_pier(scenario(tmp_path, sql, "", seed=seed))), sql


def test_records_travel_and_not_tuples(tmp_path: Path) -> None:
    """All tuples of `doors` are at one node: a record for each group and window, for count(DISTINCT) too."""
    sql = "SELECT {0}, {1} AS n FROM doors [UNBOUNDED] AS d GROUP BY {0}, TUMBLE(2 SECONDS)"
    whole = simulate_pier(scenario(tmp_path, sql.format("d.ts", "count(d.room)"), "")).summary  # each row is a group
    assert whole.is_right
    for aggregate in ("count(d.room)", "count(DISTINCT d.room)"):
        records = simulate_pier(scenario(tmp_path, sql.format("d.state", aggregate), "")).summary
        assert records.is_right
        assert records.messages + 50 < whole.messages


def test_what_is_too_late_for_its_window_is_counted(tmp_path: Path) -> None:
    sql = "SELECT h.room, count(*) AS n FROM heat [UNBOUNDED] AS h GROUP BY h.room, TUMBLE(500 MILLISECONDS)"
    outcome = simulate_pier(scenario(tmp_path, sql, ", group_wait: 1 ms", seed=5))
    (query,) = outcome.summary.queries.values()
    assert query.checked is not None
    assert outcome.summary.late > 0  # nobody waits long enough here, and the answers say so
    assert query.checked.missing > 0


def test_the_ufl_of_groups_asks_the_same(tmp_path: Path) -> None:
    given = scenario(tmp_path, QUERIES[2], "")
    by_sql = simulate_pier(given)
    (tmp_path / "q.ufl").write_text(format_ufl(ufl_of(given)["q"]).replace("duration = 60", "duration = 50"))
    file = tmp_path / "scenario.yaml"
    lines = file.read_text().split("    sql: >")[0]
    file.write_text(f"{lines}    ufl: q.ufl\n")
    by_ufl = simulate_pier(load_scenario(file)).answers["q"]
    assert nearly_bag_of(by_ufl.select(by_sql.answers["q"].column_names)) == nearly_bag_of(by_sql.answers["q"])


def test_what_groups_cannot_have_is_refused_in_one_sentence(tmp_path: Path) -> None:
    sql = "SELECT sum(d.state) AS s FROM doors [UNBOUNDED] AS d GROUP BY TUMBLE(2 SECONDS)"
    with pytest.raises(InputError) as error:
        simulate_pier(scenario(tmp_path, sql, ""))
    assert "\n" not in str(error.value)


WINDOW = """%opgraph(w) {{ duration = 20
  %operator(s) {{ type = scan implementation = Local table = t }}
  %operator(g) {{ type = groupby implementation = Window sources[] = s {settings} }}
  %operator(r) {{ type = result sources[] = g }} }}"""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("time = $ts aggregates[n] = count()", "length"),
        ("length = 2 aggregates[n] = count()", "time"),
        ("length = 2 slide = 3 time = $ts aggregates[n] = count()", "slide"),
        ("length = 2 time = $ts aggregates[n] = middle($x)", "unknown aggregate 'middle'"),
        ("length = 2 time = $ts output = records aggregates[n] = countdistinct()", "countdistinct"),
        ("length = 2 time = $ts groupby[n] = $x aggregates[n] = count()", "same name"),
        ("length = 2 input = records output = records nodes = yes aggregates[n] = count()", "only windows have nodes"),
    ],
)
def test_settings_that_are_wrong(settings: str, message: str) -> None:
    with pytest.raises(UflError, match=message):
        prepare(parse_ufl(WINDOW.format(settings=settings)))


def test_tuples_that_cannot_be_grouped_are_dropped_and_counted() -> None:
    pier = network()
    pier.nodes[0].publish(tuples("t", "ts x", [(1, 1), (2, 2)]))
    pier.nodes[0].publish(tuples("t", "ts x", [(3, "text")]))
    pier.nodes[0].publish(tuples("t", "other", [(3,)]))
    text = WINDOW.format(settings="length = 2 wait = 1 time = $ts aggregates[n] = sum($x)")
    client = answers(pier, text)
    assert [record["n"] for record in client.records()] == [3]
    (counters,) = pier.nodes[0].counters.values()
    assert counters.malformed == {"g": 2}
