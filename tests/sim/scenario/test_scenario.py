"""Scenario files: what they say, and one sentence with the line for every slip."""

import re
from pathlib import Path
from random import Random

import pytest

from watersmeet.cli.main import run_command
from watersmeet.errors import InputError
from watersmeet.program.rjoin.settings import Strategy
from watersmeet.sim.internet.hosts import Congestion
from watersmeet.sim.scenario.load import KEYS, load_scenario
from watersmeet.sim.scenario.model import RJoinSettings, Scenario, System
from watersmeet.sim.scenario.network import (
    ChurnSettings,
    DynamicSettings,
    LatencyKind,
    NetworkSettings,
    OverlayKind,
    SessionKind,
)
from watersmeet.sim.scenario.simulate import simulate
from watersmeet.sim.scenario.workload import UserLoad, ZipfLoad

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
        NetworkSettings(50, OverlayKind.CHORD, LatencyKind.KING, 50_000, 7),
        RJoinSettings(Strategy.FIRST, False, 600_000_000, None),
        ZipfLoad(4, 3, 9, 0.5, 3, 5, 6, 0, 2.0, True, 60_000_000),
    )


DYNAMIC = """\
network:
  nodes: 50
  congestion: fair
  loss: 0.01
  access: 1.5 Mbps
  churn:
    sessions: weibull
    mean: 10 minutes
    graceful_fraction: 0.5
    stable_nodes: 4
rjoin:
  replicas: 2
  renew: 30 seconds
workload: {kind: zipf}
"""


def test_every_key_of_a_dynamic_network_is_taken(tmp_path: Path) -> None:
    scenario = load_scenario(saved(tmp_path, DYNAMIC))
    churn = ChurnSettings(SessionKind.WEIBULL, 600_000_000, 0.5, 4)
    assert scenario.network == NetworkSettings(50, dynamic=DynamicSettings(Congestion.FAIR, 0.01, 1_500_000.0, churn))
    assert scenario.rjoin == RJoinSettings(replicas=2, renew_us=30_000_000)
    parameters = scenario.parameters
    assert parameters["network"]["churn"] == {
        "sessions": "weibull",
        "mean_us": 600_000_000,
        "graceful_fraction": 0.5,
        "stable_nodes": 4,
    }
    assert (parameters["network"]["runtime"], parameters["network"]["congestion"]) == ("dynamic", "fair")
    assert (parameters["rjoin"]["replicas"], parameters["rjoin"]["renew_us"]) == (2, 30_000_000)
    assert "runtime" not in load_scenario(saved(tmp_path, ZIPF)).parameters["network"]


@pytest.mark.parametrize(
    ("text", "dynamic"),
    [
        ("network: {runtime: dynamic}\nworkload: {}\n", DynamicSettings()),
        ("network: {access: 64000}\nworkload: {}\n", DynamicSettings(access_bps=64_000.0)),
        ("network: {access: none}\nworkload: {}\n", DynamicSettings(access_bps=None)),
        ("network: {churn: {}}\nworkload: {}\n", DynamicSettings(churn=ChurnSettings())),
        ("rjoin: {replicas: 0}\nworkload: {}\n", DynamicSettings()),
        ("rjoin: {renew: 1 minute}\nworkload: {}\n", DynamicSettings()),
        ("network: {runtime: static}\nworkload: {}\n", None),
        ("rjoin: {pairs: false}\nworkload: {}\n", None),
    ],
)
def test_a_key_of_dynamic_networks_makes_it_one(tmp_path: Path, text: str, dynamic: DynamicSettings | None) -> None:
    assert load_scenario(saved(tmp_path, text)).dynamic == dynamic


def test_users_are_at_nodes_that_stay(tmp_path: Path) -> None:
    assert load_scenario(saved(tmp_path, USER)).users == range(20)
    churning = USER.replace("nodes: 20", "nodes: 20\n  churn: {stable_nodes: 5}")
    users = load_scenario(saved(tmp_path, churning)).users
    assert len(users) == 5 and {3, 4} < set(users) <= set(range(20))
    homes_only = churning.replace("stable_nodes: 5", "stable_nodes: 1")
    assert load_scenario(saved(tmp_path, homes_only)).users == [3, 4]  # homes do not go


def test_sessions_have_the_mean_that_was_asked_for() -> None:
    for kind, exact in ((kind, 0.05 if kind is not SessionKind.PARETO else 0.3) for kind in SessionKind):
        sessions, random = ChurnSettings(kind, 1_000_000).distribution, Random(1)
        mean = sum(sessions.draw(random) for _ in range(20_000)) / 20_000
        assert abs(mean / 1_000_000 - 1) < exact, kind


def test_streams_and_queries_have_homes_and_sinks(tmp_path: Path) -> None:
    scenario = load_scenario(saved(tmp_path, USER))
    assert isinstance(scenario.load, UserLoad)
    assert [(published.home, published.is_scattered) for published in scenario.load.streams] == [
        (3, False),
        (None, True),
    ]
    (asked,) = scenario.load.queries
    assert asked.home == 4 and asked.query.sink.path == str(tmp_path / "out" / "q")
    assert scenario.network == NetworkSettings(nodes=20) and scenario.rjoin == RJoinSettings()


def test_a_topology_has_a_thousand_peers_and_keeps_its_sinks_alone(tmp_path: Path) -> None:
    scenario = load_scenario(saved(tmp_path, TOPOLOGY))
    assert scenario.network.nodes == 1_000 and isinstance(scenario.load, UserLoad)
    assert [asked.query.sink.path for asked in scenario.load.queries] == [None]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*/*.yaml")), ids=lambda path: path.parent.name)
def test_every_example_can_be_loaded(path: Path) -> None:
    parameters = load_scenario(path).parameters["network"]
    assert parameters["nodes"] >= (100 if "runtime" in parameters else 1_000)


def test_parameters_given_anew() -> None:
    scenario = Scenario(NetworkSettings(), RJoinSettings()).changed(
        nodes=5, overlay="bamboo", strategy="worst", seed=9, tuples=3
    )
    assert scenario.network == NetworkSettings(5, OverlayKind.BAMBOO, seed=9)
    assert scenario.rjoin.strategy is Strategy.WORST
    assert isinstance(scenario.load, ZipfLoad) and scenario.load.tuples == 3
    with pytest.raises(InputError, match="did you mean 'bamboo'"):
        scenario.changed(overlay="bambu")


DYNAMIC_SLIPS = [
    (
        "graceful_fraction: 0.5",
        "polite: 0.5",
        "line 9: the key polite of churn is called graceful_fraction now; rename it",
    ),
    ("stable_nodes: 4", "stay: 4", "line 10: the key stay of churn is called stable_nodes now; rename it"),
    ("congestion: fair", "congestion: fare", "line 3: unknown congestion 'fare'; did you mean 'fair'?"),
    ("congestion: fair", "congestoin: fair", "line 3: unknown key 'congestoin' in network; did you mean 'congestion'?"),
    ("congestion: fair", "runtime: settled", "line 3: the runtime settled is called static now; rename it"),
    ("congestion: fair", "runtime: live", "line 3: the runtime live is called dynamic now; rename it"),
    ("congestion: fair", "runtime: dynamik", "line 3: unknown runtime 'dynamik'; did you mean 'dynamic'?"),
    (
        "congestion: fair",
        "runtime: static",
        "line 4: loss needs a dynamic network; leave it out, or write runtime: dynamic",
    ),
    ("loss: 0.01", "loss: 1", "line 4: loss must be from 0 to less than 1, not 1"),
    ("loss: 0.01", "loss: some", "line 4: loss must be a number, not 'some'"),
    ("1.5 Mbps", "1.5 Mbit", "line 5: access '1.5 Mbit': unknown unit 'Mbit'; units: bps, kbps, Mbps, Gbps"),
    ("1.5 Mbps", "fast", "line 5: access 'fast' is not understood; write it like '1.5 Mbps'"),
    ("1.5 Mbps", "0", "line 5: access must be more than 0, not 0 bps; none: sending takes no time"),
    ("1.5 Mbps", "none", "line 3: congestion fair needs an access link; leave out access: none"),
    ("sessions: weibull", "sessions: weibul", "line 7: unknown sessions 'weibul'; did you mean 'weibull'?"),
    ("mean: 10 minutes", "men: 10 minutes", "line 8: unknown key 'men' in churn; did you mean 'mean'?"),
    ("mean: 10 minutes", "mean: 10 mints", "line 8: mean: duration '10 mints': unknown unit 'mints'"),
    ("mean: 10 minutes", "mean: 0 s", "line 8: mean must be positive"),
    ("graceful_fraction: 0.5", "graceful_fraction: 1.5", "line 9: graceful_fraction must be from 0 to 1, not 1.5"),
    (
        "stable_nodes: 4",
        "stable_nodes: 0",
        "line 10: stable_nodes must be 1 or more, not 0: somebody has to publish and ask",
    ),
    ("stable_nodes: 4", "stable_nodes: 51", "churn: stable_nodes must be at most the 50 nodes there are, not 51"),
    ("replicas: 2", "replicas: 9", "line 12: replicas must be from 0 to 8, not 9"),
    ("renew: 30 seconds", "renew: 30 ms", "line 13: renew must be a second or longer, not 30 milliseconds"),
    (
        "nodes: 50",
        "nodes: 5001",
        "line 2: nodes must be 5,000 or fewer on a dynamic network, not 5,001: each has timers",
    ),
    (
        "replicas: 2",
        "strategy: worst",
        "line 12: strategy worst needs every rate at every node, which a dynamic network",
    ),
]


@pytest.mark.parametrize(("old", "new", "sentence"), DYNAMIC_SLIPS, ids=[new for _, new, _ in DYNAMIC_SLIPS])
def test_a_slip_about_a_dynamic_network_gets_one_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert DYNAMIC.count(old) == 1
    with pytest.raises(InputError) as caught:
        load_scenario(saved(tmp_path, DYNAMIC.replace(old, new)))
    assert sentence in str(caught.value) and str(caught.value).count("\n") == 0


def test_remedies_need_a_dynamic_network(tmp_path: Path) -> None:
    text = "network: {runtime: static}\nrjoin: {replicas: 2}\nworkload: {}\n"
    with pytest.raises(
        InputError, match="line 2: replicas needs a dynamic network; leave it out, or write runtime: dynamic"
    ):
        load_scenario(saved(tmp_path, text))


def test_too_many_nodes_given_anew_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nodes must be 5,000 or fewer on a dynamic network"):
        load_scenario(saved(tmp_path, DYNAMIC)).changed(nodes=6_000)


# What is replaced in a file, by what, and what the sentence must say, the line first.
SLIPS = [
    (ZIPF, "network:", "netwrok:", "line 1: unknown key 'netwrok' in the scenario; did you mean 'network'?"),
    (ZIPF, "overlay: chord", "overlya: chord", "line 1: unknown key 'overlya' in network; did you mean 'overlay'?"),
    (ZIPF, "overlay: chord", "overlay: cord", "line 1: unknown overlay 'cord'; did you mean 'chord'?"),
    (ZIPF, "latency: king", "latency: kong", "line 1: unknown latency 'kong'; did you mean 'king'?"),
    (ZIPF, "latency: king", "latency: transit-stub", "line 1: hop does not go with latency: transit-stub"),
    (ZIPF, '"50 ms"', '"50 sm"', "line 1: hop: duration '50 sm': unknown unit 'sm'"),
    (ZIPF, '"50 ms"', '"0 ms"', "line 1: hop must be positive"),
    (ZIPF, "nodes: 50", "nodes: 0", "line 1: nodes must be from 1 to 1,000,000, not 0"),
    (ZIPF, "nodes: 50", "nodes: many", "line 1: nodes must be a number, not 'many'"),
    (ZIPF, "nodes: 50", "nodes: 1.5", "line 1: nodes must be a whole number, not '1.5'"),
    (ZIPF, "nodes: 50", "nodes: inf", "line 1: nodes must be a whole number, not 'inf'"),
    (ZIPF, "seed: 7", "seed: -1", "line 1: seed must be 0 or more, not -1"),
    (ZIPF, "seed: 7", "seed: 7, churns: 1", "line 1: unknown key 'churns' in network; did you mean 'churn'?"),
    (ZIPF, "strategy: first", "strategy: frist", "line 2: unknown strategy 'frist'; did you mean 'first' or 'worst'?"),
    (ZIPF, "pairs: false", "pairs: maybe", "line 2: pairs must be true or false"),
    (ZIPF, "rate_window:", "rate_windo:", "line 2: unknown key 'rate_windo' in rjoin; did you mean 'rate_window'?"),
    (ZIPF, "10 minutes", "0 minutes", "line 2: rate_window must be positive"),
    (ZIPF, "rate_age: none", "rate_age: soon", "line 2: rate_age: duration 'soon' is not understood"),
    (ZIPF, "rate_age: none", "rate_age: -1 s", "line 2: rate_age must be positive"),
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
    (ZIPF, '"1 minute"', '"0 s"', "line 4: window must be positive"),
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


def test_rjoin_is_the_system_unless_another_is_named(tmp_path: Path) -> None:
    for text in ("workload: {}\n", "system: rjoin\nworkload: {}\n"):
        scenario = load_scenario(saved(tmp_path, text))
        assert scenario.system is System.RJOIN and scenario.parameters["system"] == "rjoin"
        assert scenario.changed(seed=5).system is System.RJOIN
    with pytest.raises(InputError, match="line 1: unknown system 'rjion'; did you mean 'rjoin'"):
        load_scenario(saved(tmp_path, "system: rjion\nworkload: {}\n"))


def test_the_system_of_sites_is_refused(tmp_path: Path) -> None:
    sentence = "system sites is run from a topology with sites"
    for text in ("system: sites\nworkload: {}\n", "system: sites\nsites: [ams]\nstreams: {}\n"):
        with pytest.raises(InputError, match=f"line 1: {sentence}$"):
            load_scenario(saved(tmp_path, text))
    with pytest.raises(InputError, match=f"^{sentence}$"):
        simulate(Scenario(NetworkSettings(), RJoinSettings(), system=System.SITES))


def keys_in_the_guide() -> dict[str, set[str]]:
    """The keys of each section in the guide's table; several in a cell are of the section of the first."""
    guide = Path(__file__).resolve().parents[3] / "docs/guide/simulate.md"
    table = guide.read_text("utf-8").split("## Every key")[1].split("\n## ")[0]
    keys: dict[str, set[str]] = {}
    for cell in re.findall(r"^\| (`.+?`) \|", table, re.MULTILINE):
        first, *others = re.findall(r"`(.+?)`", cell)
        *section, key = first.split(": ")
        keys.setdefault(": ".join(section), set()).update([key, *others])
    return keys


def test_every_key_of_a_scenario_is_in_the_guide() -> None:
    sections = {section: set(keys) for section, keys in KEYS.items()}
    for section in filter(None, KEYS):  # a section is in the guide by its keys
        *outer, name = section.removesuffix(": NAME").split(": ")
        sections[": ".join(outer)].discard(name)
    assert keys_in_the_guide() == sections
