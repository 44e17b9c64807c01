"""The archive of Java's classes: how Java is told of it, and that set-up can make it."""

import sys
from pathlib import Path

import pytest

from watersmeet.errors import RunError
from watersmeet.spark.class_archive import archive_flags, archive_path, make_archive


def test_java_is_told_of_an_archive_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert archive_flags() == []
    archive_path().parent.mkdir(parents=True)
    archive_path().touch()
    assert archive_flags()[0] == f"-XX:SharedArchiveFile={tmp_path}/share/watersmeet/java-classes.jsa"
    assert "-Xshare:auto" in archive_flags(), "an archive of another Java is passed over"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "share").write_text("a file, not a directory")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(RunError, match=f"{tmp_path}/share/watersmeet cannot be written: Not a directory"):
        make_archive()


@pytest.mark.soak
def test_a_run_makes_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert make_archive().stat().st_size > 50_000_000
    assert [path.name for path in archive_path().parent.iterdir()] == ["java-classes.jsa"]
