"""Watersmeet on the same files: writes a topology and runs the command line as a user would.

python benchmarks/ours.py --scale 0.05 --window 5
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import yaml
from oracle import rows_in
from workload import DRIVER_MEMORY, MASTER, SPARK_SCHEMA, Workload, add_arguments, from_arguments, generate

SOURCE_ROOT = Path(__file__).resolve().parents[1] / "src"


def topology(workload: Workload, paths: Sequence[Path], output: Path) -> dict[str, object]:
    """One site that holds every stream and answers the workload's query into a Parquet directory."""
    streams = {
        name: {
            "site": "here",
            "schema": SPARK_SCHEMA,
            "event_time": "ts",
            "watermark": "0 seconds",
            "source": {"format": "parquet", "path": str(path), "options": {"maxFilesPerTrigger": 1}},
        }
        for name, path in zip(workload.names, paths, strict=True)
    }
    query = {"sql": workload.sql(), "sink": {"format": "parquet", "path": str(output)}}
    return {"sites": ["here"], "streams": streams, "queries": {"q": query}}


def prepare(
    workload: Workload, paths: Sequence[Path], directory: Path, driver_memory: str = DRIVER_MEMORY
) -> tuple[list[str], Path]:
    """Write `directory`/topology.yaml; the command that runs it, and where its answers will be."""
    output = directory / "answers"
    file = directory / "topology.yaml"
    directory.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(topology(workload, paths, output), sort_keys=False, width=120))
    checkpoint = directory / "checkpoint"
    command = [sys.executable, "-m", "watersmeet", "run", str(file), "--once", "--checkpoint", str(checkpoint)]
    # Its session sets a heap limit of its own, which wins over SPARK_DRIVER_MEMORY: it has to be told.
    return [*command, "--master", MASTER, "--conf", f"spark.driver.memory={driver_memory}"], output


def environment() -> dict[str, str]:
    """What the command needs to find this checkout and this Python."""
    path = os.pathsep.join(filter(None, (str(SOURCE_ROOT), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}


def main() -> None:
    parser = argparse.ArgumentParser(description="Answer the workload's join with Watersmeet.")
    add_arguments(parser)
    args = parser.parse_args()
    try:
        workload = from_arguments(args)
    except ValueError as error:
        parser.error(str(error))
    paths = generate(workload, args.data)
    directory = args.data.absolute() / "runs" / "ours-alone"
    shutil.rmtree(directory, ignore_errors=True)
    command, output = prepare(workload, paths, directory)
    begin = time.perf_counter()
    ended = subprocess.run(command, env={**os.environ, **environment()}, check=False, stdout=sys.stderr)
    if ended.returncode:
        sys.exit(f"watersmeet ended with exit code {ended.returncode}; its topology is {directory / 'topology.yaml'}")
    seconds = time.perf_counter() - begin
    print(json.dumps({"rows_in": workload.rows_in, "seconds": round(seconds, 3), "rows_out": rows_in(output)}))


if __name__ == "__main__":
    main()
