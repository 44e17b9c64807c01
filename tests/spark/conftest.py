"""One S3 server for all tests that need one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from s3 import Faults, environment, new_url, serve_s3


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An S3 server."""
    with serve_s3(tmp_path_factory.mktemp("s3")) as endpoint:
        yield endpoint


@pytest.fixture
def s3_url(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A URL at the server below which nothing is; this process knows how to reach it."""
    for name, value in environment(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WATERSMEET_CACHE", str(tmp_path / "cache"))
    return new_url()


@pytest.fixture
def faults(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Faults]:
    """A proxy before the server, through which this process reaches it; it passes all on until `decide` is set."""
    with Faults(s3_endpoint, lambda method, path: "pass") as proxy:
        for name, value in environment(proxy.endpoint).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("WATERSMEET_CACHE", str(tmp_path / "cache"))
        yield proxy
