"""Scenario files: what they say, and one sentence with the line for every slip."""

import re
from pathlib import Path
from random import Random

import pytest

from watersmeet.cli.main import run_command
from watersmeet.errors import InputError
from watersmeet.program.rjoin.shard import Strategy
from watersmeet.sim.internet.hosts import Congestion
from watersmeet.sim.scenario.model import (
    Choice,
    ChurnPlan,
    LatencyKind,
    Live,
    Network,
    OverlayKind,
    Scenario,
    SessionKind,
    UserLoad,
    ZipfLoad,
    load_scenario,
)

ROOT = Path(__file__).resolve().parents[3]

ZIPF = """\
network: {nodes: 50, overlay: chord, latency: king, hop: "50 ms", seed: 7}
rjoin: {strategy: first, pairs: false, rate_window: "10 minutes", rate_age: none}
workload: {kind: zipf, relations: 4, attributes: 3, values: 9, theta: 0.5, ways: 3, queries: 5, tuples: 6, warm_up: 0,
  rate: 2, ranking: own, window: "1 minute"}
"""
USER = """\
network:
  nodes: 20
streams:
  a:
    schema: "k int, ts timestamp"
    event_time: ts
    home: 3
    source: {format: generator, options: {rows: 5}}
  b:
    schema: "k int, s string, ts timestamp"
    event_time: ts
    home: any
    source: {format: generator, options: {rows: 5}}
queries:
  q:
    sql: SELECT a.k FROM a [UNBOUNDED], b [UNBOUNDED] WHERE a.k = b.k
    home: 4
    sink: {format: parquet, path: out/q}
"""
TOPOLOGY = USER.replace("network:\n  nodes: 20\n", "sites: [here]\n").replace("    home: 3\n", "")
TOPOLOGY = TOPOLOGY.replace("    home: any\n", "").replace("    home: 4\n", "")


def saved(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_key_is_taken(tmp_path: Path) -> None:
    scenario = load_scenario(saved(tmp_path, ZIPF))
    assert scenario == Scenario(
        Network(50, OverlayKind.CHORD, LatencyKind.KING, 50_000, 7),
        Choice(Strategy.FIRST, False, 600_000_000, None),
        ZipfLoad(4, 3, 9, 0.5, 3, 5, 6, 0, 2.0, True, 60_000_000),
    )


LIVE = """\
network:
  nodes: 50
  congestion: fair
  loss: 0.01
  access: 1.5 Mbps
  churn:
    sessions: weibull
    mean: 10 minutes
    polite: 0.5
    stay: 4
rjoin:
  replicas: 2
  renew: 30 seconds
workload: {kind: zipf}
"""


def test_every_key_of_a_live_network_is_taken(tmp_path: Path) -> None:
    scenario = load_scenario(saved(tmp_path, LIVE))
    churn = ChurnPlan(SessionKind.WEIBULL, 600_000_000, 0.5, 4)
    assert scenario.network == Network(50, live=Live(Congestion.FAIR, 0.01, 1_500_000.0, churn))
    assert scenario.choice == Choice(replicas=2, renew_us=30_000_000)
    told = scenario.parameters
    assert told["network"]["churn"] == {"sessions": "weibull", "mean_us": 600_000_000, "polite": 0.5, "stay": 4}
    assert (told["network"]["runtime"], told["network"]["congestion"]) == ("live", "fair")
    assert (told["rjoin"]["replicas"], told["rjoin"]["renew_us"]) == (2, 30_000_000)
    assert "runtime" not in load_scenario(saved(tmp_path, ZIPF)).parameters["network"]


@pytest.mark.parametrize(
    ("text", "live"),
    [
        ("network: {runtime: live}\nworkload: {}\n", Live()),
        ("network: {access: 64000}\nworkload: {}\n", Live(access_bps=64_000.0)),
        ("network: {access: none}\nworkload: {}\n", Live(access_bps=None)),
        ("network: {churn: {}}\nworkload: {}\n", Live(churn=ChurnPlan())),
        ("rjoin: {replicas: 0}\nworkload: {}\n", Live()),
        ("rjoin: {renew: 1 minute}\nworkload: {}\n", Live()),
        ("network: {runtime: settled}\nworkload: {}\n", None),
        ("rjoin: {pairs: false}\nworkload: {}\n", None),
    ],
)
def test_a_key_of_live_networks_makes_it_one(tmp_path: Path, text: str, live: Live | None) -> None:
    assert load_scenario(saved(tmp_path, text)).live == live


def test_users_are_at_nodes_that_stay(tmp_path: Path) -> None:
    assert load_scenario(saved(tmp_path, USER)).users == range(20)
    churning = USER.replace("nodes: 20", "nodes: 20\n  churn: {stay: 5}")
    users = load_scenario(saved(tmp_path, churning)).users
    assert len(users) == 5 and {3, 4} < set(users) <= set(range(20))
    assert load_scenario(saved(tmp_path, churning.replace("stay: 5", "stay: 1"))).users == [3, 4]  # homes do not go


def test_sessions_have_the_mean_that_was_asked_for() -> None:
    for kind, exact in ((kind, 0.05 if kind is not SessionKind.PARETO else 0.3) for kind in SessionKind):
        sessions, random = ChurnPlan(kind, 1_000_000).distribution, Random(1)
        mean = sum(sessions.draw(random) for _ in range(20_000)) / 20_000
        assert abs(mean / 1_000_000 - 1) < exact, kind


def test_streams_and_queries_have_homes_and_sinks(tmp_path: Path) -> None:
    scenario = load_scenario(saved(tmp_path, USER))
    assert isinstance(scenario.load, UserLoad)
    assert [(one.home, one.is_scattered) for one in scenario.load.streams] == [(3, False), (None, True)]
    (asked,) = scenario.load.queries
    assert asked.home == 4 and asked.query.sink.path == str(tmp_path / "out" / "q")
    assert scenario.network == Network(nodes=20) and scenario.choice == Choice()


def test_a_topology_has_a_thousand_peers_and_keeps_its_sinks_alone(tmp_path: Path) -> None:
    scenario = load_scenario(saved(tmp_path, TOPOLOGY))
    assert scenario.network.nodes == 1_000 and isinstance(scenario.load, UserLoad)
    assert [one.query.sink.path for one in scenario.load.queries] == [None]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*/*.yaml")), ids=lambda path: path.parent.name)
def test_every_example_can_be_loaded(path: Path) -> None:
    told = load_scenario(path).parameters["network"]
    assert told["nodes"] >= (100 if "runtime" in told else 1_000)


def test_parameters_given_anew() -> None:
    scenario = Scenario(Network(), Choice()).changed(nodes=5, overlay="bamboo", strategy="worst", seed=9, tuples=3)
    assert scenario.network == Network(5, OverlayKind.BAMBOO, seed=9)
    assert scenario.choice.strategy is Strategy.WORST
    assert isinstance(scenario.load, ZipfLoad) and scenario.load.tuples == 3
    with pytest.raises(InputError, match="did you mean 'bamboo'"):
        scenario.changed(overlay="bambu")


LIVE_SLIPS = [
    ("congestion: fair", "congestion: fare", "line 3: unknown congestion 'fare'; did you mean 'fair'?"),
    ("congestion: fair", "congestoin: fair", "line 3: unknown key 'congestoin' in network; did you mean 'congestion'?"),
    ("congestion: fair", "runtime: living", "line 3: unknown runtime 'living'; did you mean 'live'?"),
    ("congestion: fair", "runtime: settled", "line 4: loss needs a live network; leave it out, or write runtime: live"),
    ("loss: 0.01", "loss: 1", "line 4: loss must be from 0 to less than 1, not 1"),
    ("loss: 0.01", "loss: some", "line 4: loss must be a number, not 'some'"),
    ("1.5 Mbps", "1.5 Mbit", "line 5: access '1.5 Mbit': unknown unit 'Mbit'; units: bps, kbps, Mbps, Gbps"),
    ("1.5 Mbps", "fast", "line 5: access 'fast' is not understood; write it like '1.5 Mbps'"),
    ("1.5 Mbps", "0", "line 5: access must be more than 0, not 0 bps; none: sending takes no time"),
    ("1.5 Mbps", "none", "line 3: congestion fair needs an access link; leave out access: none"),
    ("sessions: weibull", "sessions: weibul", "line 7: unknown sessions 'weibul'; did you mean 'weibull'?"),
    ("mean: 10 minutes", "men: 10 minutes", "line 8: unknown key 'men' in churn; did you mean 'mean'?"),
    ("mean: 10 minutes", "mean: 10 mints", "line 8: mean: duration '10 mints': unknown unit 'mints'"),
    ("mean: 10 minutes", "mean: 0 s", "line 8: mean must be longer than nothing"),
    ("polite: 0.5", "polite: 1.5", "line 9: polite must be from 0 to 1, not 1.5"),
    ("stay: 4", "stay: 0", "line 10: stay must be 1 or more, not 0: somebody has to publish and ask"),
    ("stay: 4", "stay: 51", "churn: stay must be at most the 50 nodes there are, not 51"),
    ("replicas: 2", "replicas: 9", "line 12: replicas must be from 0 to 8, not 9"),
    ("renew: 30 seconds", "renew: 30 ms", "line 13: renew must be a second or longer, not 30 milliseconds"),
    ("nodes: 50", "nodes: 5001", "line 2: nodes must be 5,000 or fewer on a live network, not 5,001: each has timers"),
    ("replicas: 2", "strategy: worst", "line 12: strategy worst knows every rate by magic, which live nodes do not"),
]


@pytest.mark.parametrize(("old", "new", "sentence"), LIVE_SLIPS, ids=[new for _, new, _ in LIVE_SLIPS])
def test_a_slip_about_a_live_network_gets_one_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert LIVE.count(old) == 1
    with pytest.raises(InputError) as caught:
        load_scenario(saved(tmp_path, LIVE.replace(old, new)))
    assert sentence in str(caught.value) and str(caught.value).count("\n") == 0


def test_remedies_need_a_live_network(tmp_path: Path) -> None:
    text = "network: {runtime: settled}\nrjoin: {replicas: 2}\nworkload: {}\n"
    with pytest.raises(InputError, match="line 2: replicas needs a live network; leave it out, or write runtime: live"):
        load_scenario(saved(tmp_path, text))


def test_too_many_nodes_given_anew_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nodes must be 5,000 or fewer on a live network"):
        load_scenario(saved(tmp_path, LIVE)).changed(nodes=6_000)


# What is replaced in a file, by what, and what the sentence must say, the line first.
SLIPS = [
    (ZIPF, "network:", "netwrok:", "line 1: unknown key 'netwrok' in the scenario; did you mean 'network'?"),
    (ZIPF, "overlay: chord", "overlya: chord", "line 1: unknown key 'overlya' in network; did you mean 'overlay'?"),
    (ZIPF, "overlay: chord", "overlay: cord", "line 1: unknown overlay 'cord'; did you mean 'chord'?"),
    (ZIPF, "latency: king", "latency: kong", "line 1: unknown latency 'kong'; did you mean 'king'?"),
    (ZIPF, "latency: king", "latency: transit-stub", "line 1: hop does not go with latency: transit-stub"),
    (ZIPF, '"50 ms"', '"50 sm"', "line 1: hop: duration '50 sm': unknown unit 'sm'"),
    (ZIPF, '"50 ms"', '"0 ms"', "line 1: hop must be longer than nothing"),
    (ZIPF, "nodes: 50", "nodes: 0", "line 1: nodes must be from 1 to 1,000,000, not 0"),
    (ZIPF, "nodes: 50", "nodes: many", "line 1: nodes must be a number, not 'many'"),
    (ZIPF, "nodes: 50", "nodes: 1.5", "line 1: nodes must be a whole number, not '1.5'"),
    (ZIPF, "nodes: 50", "nodes: inf", "line 1: nodes must be a whole number, not 'inf'"),
    (ZIPF, "seed: 7", "seed: -1", "line 1: seed must be 0 or more, not -1"),
    (ZIPF, "seed: 7", "seed: 7, churns: 1", "line 1: unknown key 'churns' in network; did you mean 'churn'?"),
    (ZIPF, "strategy: first", "strategy: frist", "line 2: unknown strategy 'frist'; did you mean 'first' or 'worst'?"),
    (ZIPF, "pairs: false", "pairs: maybe", "line 2: pairs must be true or false"),
    (ZIPF, "rate_window:", "rate_windo:", "line 2: unknown key 'rate_windo' in rjoin; did you mean 'rate_window'?"),
    (ZIPF, "10 minutes", "0 minutes", "line 2: rate_window must be longer than nothing"),
    (ZIPF, "rate_age: none", "rate_age: soon", "line 2: rate_age: duration 'soon' is not understood"),
    (ZIPF, "rate_age: none", "rate_age: -1 s", "line 2: rate_age must be longer than nothing"),
    (ZIPF, "kind: zipf", "kind: zipff", "line 3: unknown kind of workload 'zipff'; did you mean 'zipf'?"),
    (ZIPF, "attributes:", "atributes:", "line 3: unknown key 'atributes' in workload; did you mean 'attributes'?"),
    (ZIPF, "theta: 0.5", "theta: -1", "line 3: theta must be 0 or more, not -1"),
    (ZIPF, "theta: 0.5", "theta: nan", "line 3: theta must be 0 or more, not nan"),
    (ZIPF, "relations: 4", "relations: 1", "line 3: relations must be 2 or more, not 1: neighbours in a chain differ"),
    (ZIPF, "ways: 3", "ways: 1", "line 3: ways must be from 2 to 16, not 1"),
    (ZIPF, "tuples: 6", "tuples: 0", "line 3: tuples must be 1 or more, not 0"),
    (ZIPF, "warm_up: 0", "warm_up: -2", "line 3: warm_up must be 0 or more, not -2"),
    (ZIPF, "rate: 2", "rate: 0", "line 4: rate must be from"),
    (ZIPF, "ranking: own", "ranking: owns", "line 4: unknown ranking 'owns'; did you mean 'own'?"),
    (ZIPF, '"1 minute"', '"0 s"', "line 4: window must be longer than nothing"),
    (ZIPF, "workload: {", "workload: [", "not valid YAML"),
    (ZIPF, ZIPF, "network: {nodes: 5}\n", "line 1: the scenario has no streams"),
    (ZIPF, ZIPF, ZIPF + "queries: {}\n", "line 5: a scenario has either a workload or queries of its own"),
    (ZIPF, ZIPF, "", "the file is empty; it needs a `network`"),
    (USER, "home: 3", "home: 20", "line 7: stream 'a': home must be a node from 0 to 19 or any, not 20"),
    (USER, "home: 4", "home: x", "line 17: query 'q': home must be a node from 0 to 19, not x"),
    (USER, "    event_time: ts\n    home: 3", "    home: 3", "line 4: stream 'a' has no event_time"),
    (
        USER,
        'schema: "k int, ts',
        'shema: "k int, ts',
        "line 5: unknown key 'shema' in stream 'a'; did you mean 'schema'?",
    ),
    (
        USER,
        "event_time: ts\n    home: 3",
        "event_time: t\n    home: 3",
        "line 4: stream 'a': event_time 't' is not one",
    ),
    (
        USER,
        "{format: generator, options: {rows: 5}}\n  b",
        "{path: x}\n  b",
        "line 8: the source of stream 'a' has no for",
    ),
    (
        USER,
        "format: parquet",
        "format: csv",
        "line 18: the sink of query 'q': answers of a simulation are written as par",
    ),
    (USER, "sql:", "sqll:", "line 16: unknown key 'sqll' in query 'q'; did you mean 'sql'?"),
    (USER, "a.k FROM", "a.j FROM", "query 'q': line 1, column 8: 'a' has no column 'j'"),
    (USER, "a.k = b.k", "a.k = b.s", "query 'q': a.k is int32 and b.s is string"),
    (USER, "SELECT a.k", "SELECT nothing_such(a.k) AS x", "query 'q': the simulator evaluates expressions by DuckDB"),
    (USER, "{rows: 5}}\n  b", "{}}\n  b", "stream 'a': its generator never ends and cannot be simulated"),
    (
        USER,
        "generator, options: {rows: 5}}\n  b",
        "kafka}\n  b",
        "stream 'a': a source of format kafka cannot be simulated",
    ),
    (
        USER,
        "generator, options: {rows: 5}}\n  b",
        "csv, path: x}\n  b",
        "stream 'a': there are no files at its source path",
    ),
    (USER, "generator, options: {rows: 5}}\n  b", "json}\n  b", "stream 'a': its source of format json needs a path"),
    (
        USER,
        "options: {rows: 5}}\n  b",
        "options: {row: 5}}\n  b",
        "stream 'a': generator: there is no option 'row'; did you mean 'rows'?",
    ),
    (
        USER,
        '"k int, s',
        '"k map<int:int>, s',
        "stream 'b': generator: column 'k' has type map<int:int>",
    ),
    (TOPOLOGY, "sites:", "sitse:", "line 1: unknown key 'sitse' in the topology; did you mean 'sites'?"),
    (TOPOLOGY, "    sink", "    home: 4\n    sink", "unknown key 'home' in query 'q'"),
]


@pytest.mark.parametrize(("text", "right", "wrong", "sentence"), SLIPS, ids=[slip[3][:50] for slip in SLIPS])
def test_a_slip_gets_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, right: str, wrong: str, sentence: str
) -> None:
    assert right in text
    path = saved(tmp_path, text.replace(right, wrong, 1))
    assert run_command(["simulate", str(path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert sentence in shown.err and "unexpected" not in shown.err


OPTIONS = [
    (["--strategy", "rjion"], "unknown strategy 'rjion'; did you mean 'rjoin'?"),
    (["--overlay", "corde"], "unknown overlay 'corde'; did you mean 'chord'?"),
    (["--nodes", "0"], "nodes must be from 1 to 1,000,000, not 0"),
    (["--seed", "-3"], "seed must be 0 or more, not -3"),
    (["--tuples", "0"], "tuples must be 1 or more, not 0"),
    (["--trace", "nowhere/x.jsonl"], "--trace nowhere/x.jsonl: there is no such directory"),
    (["--plot", "x.gif"], "--plot x.gif: a plot is a .svg or a .png"),
    (["--out", "x"], "--out: answers of generated queries are counted and not made"),
]


@pytest.mark.parametrize(("options", "sentence"), OPTIONS, ids=[options[0] for options, _ in OPTIONS])
def test_a_wrong_option_gets_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["simulate", str(saved(tmp_path, ZIPF)), *options]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and re.fullmatch(r"watersmeet: [^\n]+\n", shown.err)
    assert sentence in shown.err


def test_fewer_nodes_than_a_home_needs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["simulate", str(saved(tmp_path, USER)), "--nodes", "4"]) == 2
    assert "query 'q': home must be a node from 0 to 3, not 4" in capsys.readouterr().err


def test_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["simulate", str(tmp_path / "none.yaml")]) == 2
    assert "there is no such file" in capsys.readouterr().err
