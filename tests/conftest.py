"""What the tests share: one Spark session, and streams as directories of files in arrival order."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings
from scenes import write_batches
from seeds import fresh_seeds, pytest_runtest_makereport

__all__ = ["fresh_seeds", "pytest_runtest_makereport"]  # pytest looks for them here

ROOT = Path(__file__).resolve().parents[1]

# Every Java of a test lives for seconds or minutes: the optimising compiler would take more of the cores than it gives
# back. Without it the store of compiled code is by default too small for Spark, and what it loses is compiled again;
# and it would collect garbage each time that some more classes are loaded.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=200m -XX:+UseSerialGC -XX:MetaspaceSize=256m",
)


settings.register_profile("repeatable", derandomize=True, deadline=None)  # the same examples always, however long
settings.register_profile("soak", derandomize=False, deadline=None, print_blob=True)  # others each time
settings.load_profile("soak" if os.environ.get("WATERSMEET_SOAK") else "repeatable")


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    from watersmeet.spark.session import start_session

    session = start_session("local[2]", app="watersmeet-tests")
    yield session
    session.stop()


@pytest.fixture
def write_stream(tmp_path: Path) -> Callable[[str, Sequence[pa.Table]], Path]:
    """Write the batches of a stream as Parquet files, one a batch, in an order that Spark's file source keeps."""

    def write(name: str, batches: Sequence[pa.Table]) -> Path:
        return write_batches(tmp_path / "data" / name, batches)

    return write


_LONG = (
    "test_recovery.py",
    "test_site_faults.py",
    "test_sites.py",
    "test_planned.py",
    "test_cli.py",
    "test_recordings.py",
    "test_queries.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is for `make soak`; long files first, so that no worker is left alone with one of them at the end."""
    if not os.environ.get("WATERSMEET_SOAK"):
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(pytest.mark.skip(reason="long; run by `make soak`"))
    items.sort(key=lambda item: item.path.name not in _LONG)
