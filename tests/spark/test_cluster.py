"""Runs on a cluster: executors without the package, and executors and workers that are killed."""

import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster import StandaloneCluster
from processes import CommandProcess
from pyspark.sql import SparkSession
from scenes import Scene, make_batches, wait_for

from watersmeet.errors import RunError
from watersmeet.spark import executors
from watersmeet.spark.backend.classic import ClassicBackend
from watersmeet.spark.executors import ReportVersions, check_executors, differences, versions_here

SQL = "SELECT a.id AS a_id, b.id AS b_id, b.s FROM a [RANGE 90 SECONDS], b [RANGE 90 SECONDS] WHERE a.k = b.k"


def test_executors_that_are_not_like_the_driver_are_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_executors(spark)
    here = versions_here()
    others = {**here, "python": "3.10", "pyarrow": "1.2.3", "numpy": "0"}
    monkeypatch.setattr(executors, "versions_here", lambda libraries: others)
    with pytest.raises(RunError) as refused:
        check_executors(spark)
    text = str(refused.value)
    assert text.startswith("the executors of local[2] are not like the driver: ")
    for name, other in (("Python", "3.10"), ("pyarrow", "1.2.3"), ("numpy", "0")):
        assert f"has {name} {here[name.lower()]} (the driver has {other})" in text
    assert text.endswith("or let PYSPARK_PYTHON (or --conf spark.pyspark.python) name a Python that has it")


def test_what_only_some_runs_need_is_asked_for_by_name() -> None:
    ((machine, found),) = ReportVersions(("obstore", "no-such-library"))(0)
    assert machine and set(found) == {"python", "obstore", "no-such-library"}
    assert differences({**found, "no-such-library": "1.0"}, found) == ["no no-such-library (the driver has 1.0)"]


class Application:
    """An application on a cluster that somebody else has started: what is sent to its executors."""

    master, defaultParallelism = "spark://host:7077", 2  # noqa: N815 - Spark's name

    def __init__(self, directory: Path) -> None:
        self._temp_dir = str(directory)
        self.sent: list[str] = []

    def addArchive(self, path: str) -> None:
        self.sent.append(path)


def test_the_package_goes_to_executors_of_any_session_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[object] = []
    monkeypatch.setattr(executors, "check_executors", checked.append)
    application = Application(tmp_path)
    sessions: list[Any] = [SimpleNamespace(sparkContext=application) for _ in range(2)]
    for session in sessions:
        backend = ClassicBackend(session)
        backend.prepare()
        backend.prepare()
    assert application.sent == [f"{tmp_path}/kernels/watersmeet.zip#watersmeet"] and checked == sessions
    with zipfile.ZipFile(tmp_path / "kernels" / "watersmeet.zip") as archive:
        assert {"__init__.py", "spark/executors.py"} <= set(archive.namelist())


@pytest.mark.soak
def test_executors_and_workers_are_killed(tmp_path: Path) -> None:
    batches = {name: make_batches(seed, 12, 6000, keys=3000) for seed, name in enumerate("ab")}
    scene = Scene(tmp_path, batches, {"q": SQL}, late=["a"]).write()
    with StandaloneCluster(tmp_path) as cluster:
        command = ["run", str(scene.topology_path), "--quiet", "--master", cluster.master]
        command += ["--checkpoint", str(scene.checkpoint), "--conf", "spark.driver.host=127.0.0.1"]
        with CommandProcess(command, tmp_path / "log.txt") as run:

            def await_progress() -> None:
                before = scene.ledger("here").ingested_batch
                wait_for(
                    lambda: scene.ledger("here").ingested_batch > before or scene.is_at_rest(),
                    "no micro-batch is ingested",
                    run.check,
                )

            await_progress()
            cluster.executors()[0].kill()
            await_progress()
            shipped = [path.parent for path in (tmp_path / "worker0").rglob("watersmeet/program/join/kernels.py")]
            assert any(any(place.rglob("kernels.*.nbi")) for place in shipped), "the package is shipped, as compiled"
            for child in [one for one in cluster.executors() if one.parent().pid == cluster.workers[1].pid]:
                child.kill()
            cluster.workers[1].kill()
            await_progress()
            wait_for(scene.is_at_rest, "it does not come to its end", run.check)
            run.stop()
        with CommandProcess([*command, "--once"], tmp_path / "log.txt") as again:
            again.finish()
    scene.check()
