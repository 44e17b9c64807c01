"""What the tests share: one Spark session, and streams as directories of files in arrival order."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import kafka_broker as kafka_broker_script
import pyarrow as pa
import pytest
from hypothesis import settings
from scenes import write_batches
from seeds import (
    evenly_spread,
    fresh_seeds,
    keep_a_fraction,
    name_of_test,
    pytest_runtest_makereport,
    pytest_runtest_setup,
)

from watersmeet.query import oracle

__all__ = ["fresh_seeds", "pytest_runtest_makereport", "pytest_runtest_setup"]  # pytest looks for them here

ROOT = Path(__file__).resolve().parents[1]

# Every Java of a test lives for seconds or minutes: the optimising compiler would take more of the cores than it gives
# back. Without it the store of compiled code is by default too small for Spark, and what it loses is compiled again;
# and it would collect garbage each time that some more classes are loaded.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=200m -XX:+UseSerialGC -XX:MetaspaceSize=256m",
)


# Runs flush what they write, and a disk takes ten milliseconds for that. What a power cut would leave is tested by
# recorded flushes, not by the disk. Soak tests write gigabytes, and have the disk.
MEMORY = Path("/dev/shm")
if not os.environ.get("WATERSMEET_SOAK") and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

settings.register_profile("repeatable", derandomize=True, deadline=None)  # the same examples always, however long
settings.register_profile("soak", derandomize=False, deadline=None, print_blob=True)  # others each time
settings.load_profile("soak" if os.environ.get("WATERSMEET_SOAK") else "repeatable")


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    from watersmeet.spark.session import start_session

    connector = ",".join(map(str, kafka_broker_script.connector_jars()))  # of Kafka, where it was fetched
    session = start_session("local[2]", "watersmeet-tests", {"spark.jars": connector} if connector else None)
    yield session
    session.stop()


@pytest.fixture(scope="session", autouse=True)
def _oracle_of_one_thread() -> None:
    """Streams of tests have some hundred rows: a second thread of DuckDB takes more of the cores than it gives back."""
    if not os.environ.get("WATERSMEET_SOAK"):
        oracle._database(oracle._duckdb()).execute("SET threads = 1")


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka_broker_script.Broker]:
    """A broker of Apache Kafka; tests that want one are skipped on a machine that does not have it."""
    if why := kafka_broker_script.missing():
        pytest.skip(why)
    with kafka_broker_script.Broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def write_stream(tmp_path: Path) -> Callable[[str, Sequence[pa.Table]], Path]:
    """Write the batches of a stream as Parquet files, one a batch, in an order that Spark's file source keeps."""

    def write(name: str, batches: Sequence[pa.Table]) -> Path:
        return write_batches(tmp_path / "data" / name, batches)

    return write


# By what they took in a run of all, most first.
_LONG = (
    "cli/test_cli.py",
    "spark/test_recovery.py",
    "spark/test_queries.py",
    "sim/scenario/test_simulate_sites.py",
    "equivalence/test_changing_deployments.py",
    "sim/sites/test_changes.py",
    "spark/store/test_checkpoints.py",
    "spark/test_views.py",
    "spark/test_site_faults.py",
    "spark/ingest/test_generator.py",
    "test_readme.py",
    "spark/test_errors.py",
    "sim/sites/test_sites.py",
    "equivalence/test_outer_joins.py",
    "dashboard/test_live.py",
    "cli/test_compare.py",
    "cli/test_watch.py",
    "test_benchmarks.py",
    "spark/test_sites.py",
    "equivalence/test_simulated.py",
    "spark/test_kills.py",
    "equivalence/test_statements.py",
    "reproduce/test_semijoin.py",
    "reproduce/test_pmjoin.py",
    "spark/test_answers.py",
    "spark/test_handle.py",
    "equivalence/test_spark.py",
    "spark/test_first_look.py",
    "spark/test_apply.py",
    "spark/ingest/test_late.py",
    "spark/test_keys.py",
    "dashboard/test_page.py",
    "sim/sites/test_trial.py",
    "sim/sites/test_shared_groups.py",
    "sim/pier/test_shared_queries.py",
    "spark/test_tables.py",
    "equivalence/test_views.py",
    "spark/test_outer_joins.py",
    "test_tidy.py",
    "sim/sites/test_outer_changes.py",
    "spark/test_planned.py",
    "spark/test_power_cuts.py",
    "spark/test_statistics.py",
    "sim/sites/test_view_changes.py",
    "spark/test_api.py",
    "spark/test_durability.py",
    "spark/test_observed.py",
    "sim/pier/aggregation/test_continuous.py",
    "sim/sites/test_view_queries.py",
    "spark/test_apply_views.py",
    "cli/test_front_door.py",
)


@pytest.hookimpl(tryfirst=True)  # before cases are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what is for `make soak`; long files first, so that no worker is left alone with one of them at the end."""
    for _, some in groupby(items, key=_test_of):
        _leave_most_to_soak(list(some))
    if not os.environ.get("WATERSMEET_SOAK"):
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(pytest.mark.skip(reason="long; run by `make soak`"))
    else:
        keep_a_fraction(config, items)
    ranks = {ROOT / "tests" / name: rank for rank, name in enumerate(_LONG)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def _test_of(item: pytest.Item) -> str:
    return name_of_test(item.nodeid)


def _leave_most_to_soak(cases: list[pytest.Item]) -> None:
    """Of a test that is marked `few(n)`, n cases evenly spread are for every run, the first and the last among them."""
    if (mark := cases[0].get_closest_marker("few")) is None:
        return
    (count,) = mark.args
    chosen = evenly_spread(count, len(cases))
    for number, item in enumerate(cases):
        if number not in chosen:
            item.add_marker(pytest.mark.soak)
