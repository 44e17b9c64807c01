"""The applications of PIER's first chapter: firewall logs and file sharing, as the examples run them."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from watersmeet.reproduce import experiment_named, runner
from watersmeet.sim.pier.file_sharing import Library, hybrid, search_by_flooding, search_by_pier
from watersmeet.sim.scenario.load import load_scenario
from watersmeet.sim.scenario.pier.simulate import simulate_pier

EXAMPLES = Path(__file__).parents[3] / "examples"
WEIRD = Path(__file__).resolve().parents[4] / "shared" / "data" / "zeek_wrccdc" / "weird.parquet"


def test_the_top_sources_of_firewall_events() -> None:
    scenario = load_scenario(EXAMPLES / "firewall" / "scenario.yaml").changed(nodes=40, tuples=2_500)
    outcome = simulate_pier(scenario)
    (query,) = outcome.summary.queries.values()
    assert query.checked is not None
    assert (query.checked.expected, query.is_right) == (20, True)  # ten in each of two windows
    answers = outcome.answers["top_sources"].to_pylist()
    assert max(row["events"] for row in answers) > 200  # the first source causes a large part of the events


@pytest.mark.skipif(not WEIRD.exists(), reason="the recordings are not here")
def test_the_top_sources_of_a_recorded_log(tmp_path: Path) -> None:
    """Zeek's log of odd connections: each event is logged by another peer, and one host causes nearly all of them."""
    text = (EXAMPLES / "firewall" / "scenario.yaml").read_text()
    text = (
        text[: text.index("streams:")]
        + f"""
streams:
  weird:
    schema: "ts timestamp, orig_h string, resp_p int"
    event_time: ts
    home: any
    source: {{format: parquet, path: {WEIRD}}}
queries:
  top_sources:
    sql: >
      SELECT w.orig_h, count(*) AS events, max(w.resp_p) AS highest_port, window_start
      FROM weird [UNBOUNDED] AS w GROUP BY w.orig_h, TUMBLE(10 SECONDS) ORDER BY events DESC, orig_h LIMIT 10
"""
    )
    (tmp_path / "scenario.yaml").write_text(text)
    outcome = simulate_pier(load_scenario(tmp_path / "scenario.yaml").changed(nodes=40, tuples=1_500))
    (query,) = outcome.summary.queries.values()
    assert query.checked is not None
    assert query.checked.expected > 10
    assert query.is_right


LIBRARY = Library(nodes=30, files=150, words=120, seed=4)


def test_pier_finds_every_replica_and_flooding_what_is_near() -> None:
    searches = LIBRARY.searches(12)
    assert {search.replicas > 0 for search in searches} == {True, False}
    pier, near = search_by_pier(LIBRARY, searches), search_by_flooding(LIBRARY, searches, hops=2)
    far = search_by_flooding(LIBRARY, searches, hops=20)
    for number, search in enumerate(searches):
        wanted = len(LIBRARY.matches(search.words))
        assert pier.searched[number].answers == wanted == search.replicas
        assert far.searched[number].answers == wanted
        assert near.searched[number].answers <= wanted
        assert (pier.searched[number].first_us is None) == (wanted == 0)
    assert sum(found.answers for found in near.searched) < sum(found.answers for found in far.searched)
    assert near.messages < far.messages
    both = hybrid(LIBRARY, searches, pier, near, rare_postings=10**9)
    assert both == pier.searched
    assert hybrid(LIBRARY, searches, pier, near, rare_postings=-1) == near.searched


def test_the_experiment_makes_whole_rows() -> None:
    experiment = experiment_named("pier-fig1.1")
    (point,) = experiment.points(True)
    rows = runner.run_all(experiment, [replace(point, library=LIBRARY, searches=12)])
    assert len(rows) == 3 * 3 * 9
    assert all(row[name] is not None for row in rows for name in experiment.columns)
    assert len(experiment.verdict(rows)) == 2


def test_the_example_of_file_sharing(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "file_sharing" / "search.py"))
    printed = capsys.readouterr().out
    assert "hybrid" in printed
    assert "60 peers" in printed
