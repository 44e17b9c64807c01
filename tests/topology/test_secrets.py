"""Secrets are looked up where they are used, and show nowhere."""

from pathlib import Path

import pytest

from watersmeet.errors import InputError, RunError, WatersmeetError
from watersmeet.metrics.events import RunEnded, RunWarning, to_json
from watersmeet.topology.load import load_topology
from watersmeet.topology.secrets import resolved

YAML = """
streams:
  a:
    schema: "k long, ts timestamp"
    event_time: ts
    source: {format: kafka, options: {subscribe: a, "kafka.sasl.jaas.config": "u=me password=${env:WM_TEST_SECRET};"}}
queries:
  q: {sql: SELECT k FROM a}
"""


def test_a_topology_keeps_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WM_TEST_SECRET", "hunter2-from-env")
    (tmp_path / "topology.yaml").write_text(YAML)
    topology = load_topology(tmp_path / "topology.yaml")
    assert "hunter2" not in repr(topology)
    source = topology.streams[0].source
    assert source is not None
    found = resolved(source.options, "stream 'a'")
    assert found == {"subscribe": "a", "kafka.sasl.jaas.config": "u=me password=hunter2-from-env;"}
    error: WatersmeetError
    for error in (RunError("refused: hunter2-from-env"), InputError("hunter2-from-env is wrong")):
        assert "hunter2" not in str(error) and "***" in str(error)
    for event in (RunWarning(None, None, "with hunter2-from-env"), RunEnded("failed", "by hunter2-from-env")):
        assert "hunter2" not in to_json(event, 0) + repr(event)


def test_values_come_from_the_environment_files_and_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WM_TEST_SECRET", "one")
    (tmp_path / "secret").write_text("two\n")
    options = {
        "x": "${env:WM_TEST_SECRET}-${file:%s}" % (tmp_path / "secret"),
        "y": "${spark:spark.my.secret}",
        "z": "${}",
    }
    found = resolved(options, "the sink", {"spark.my.secret": "three"}.get)
    assert found == {"x": "one-two", "y": "three", "z": "${}"}


@pytest.mark.parametrize(
    ("reference", "cause"),
    [
        ("${env:WM_NOT_SET}", "the environment has no variable WM_NOT_SET"),
        ("${file:/not/there}", "file /not/there cannot be read"),
        ("${spark:spark.not.set}", "Spark's configuration has no spark.not.set"),
    ],
)
def test_what_is_missing_is_named(reference: str, cause: str) -> None:
    with pytest.raises(InputError) as caught:
        resolved({"password": reference}, "the sink of query 'q'")
    assert str(caught.value) == (f"the sink of query 'q': option 'password' refers to {reference}, and {cause}; set it")
