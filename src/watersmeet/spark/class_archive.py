"""Java's classes as one file that later starts map into memory: a Spark session is there three seconds sooner.

Java itself checks that the file is of this very Java and of these very jars, and does without it otherwise. It is made
by a short run that uses what runs use, of which Java writes down the classes when it ends.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from watersmeet.errors import RunError

_MAKING = "WATERSMEET_MAKES_CLASS_ARCHIVE"  # the environment of the run that makes it: where it is to be written
_SCHEMA = "k long, s string, ts timestamp"
_QUERIES = {
    "plain": "SELECT a.k, b.s FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND] WHERE a.k = b.k",
    "other": """SELECT DISTINCT a.k + 1 AS k, upper(b.s) AS s FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND]
        WHERE a.s = b.s AND a.k <= b.k AND a.k > 0""",
}


def archive_path() -> Path:
    """Where the file is, beside the packages it is about."""
    return Path(sys.prefix) / "share" / "watersmeet" / "java-classes.jsa"


def archive_flags() -> list[str]:
    """What Java is told at its start."""
    if making := os.environ.get(_MAKING):
        return [f"-XX:ArchiveClassesAtExit={making}"]
    path = archive_path()
    if not path.exists():
        return []
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def make_archive() -> Path:
    """Make the file anew."""
    path = archive_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path.parent} cannot be written: {error.strerror}") from None
    fresh = path.with_suffix(".tmp")
    with tempfile.TemporaryDirectory(prefix="watersmeet-") as directory:
        command = [sys.executable, "-m", "watersmeet", "run", str(_topology(Path(directory))), "--once", "--quiet"]
        # Java has this pipe too: reading it to its end is waiting for Java's.
        ended = subprocess.run(
            [*command, "--master", "local[2]"],
            env=os.environ | {_MAKING: str(fresh)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if ended.returncode or not fresh.exists():
        raise RunError(f"Java wrote no archive of its classes: {ended.stdout.strip() or 'it did not say why'}")
    os.replace(fresh, path)
    return path


def _topology(directory: Path) -> Path:
    """Two streams of a few rows, read as columns and as rows, and answers of both kinds."""
    rows = pa.table(
        {"k": [1, 2, 3], "s": ["x", "y", "z"], "ts": pa.array([0, 1, 2], pa.timestamp("us", "UTC"))},
        schema=pa.schema([("k", pa.int64()), ("s", pa.string()), ("ts", pa.timestamp("us", "UTC"))]),
    )
    for name in "ab":
        (directory / name).mkdir()
        for number in range(3):
            pq.write_table(rows, directory / name / f"{number}.parquet")
    source = {"format": "parquet", "options": {"maxFilesPerTrigger": 1}}
    streams = {
        name: {"site": "here", "schema": _SCHEMA, "event_time": "ts", "source": source | {"path": name}}
        for name in "ab"
    }
    queries = {name: {"sql": sql, "sink": {"format": "parquet", "path": name}} for name, sql in _QUERIES.items()}
    path = directory / "topology.yaml"
    path.write_text(json.dumps({"sites": ["here"], "streams": streams, "queries": queries}), encoding="utf-8")
    return path
