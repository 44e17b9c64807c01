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
from dataclasses import asdict
from pathlib import Path

import yaml
from oracle import rows_in
from workload import DRIVER_MEMORY, MASTER, SPARK_SCHEMA, Workload, add_arguments, from_arguments, generate

HERE = Path(__file__).resolve().parent
SOURCE_ROOT = HERE.parent / "src"
EVENTS, PROGRESS = "events.jsonl", "progress.jsonl"


def topology(
    workload: Workload, paths: Sequence[Path], output: Path, files_a_trigger: int | None = 1
) -> dict[str, object]:
    """One site that holds every stream and answers the workload's query into a Parquet directory."""
    options = {} if files_a_trigger is None else {"options": {"maxFilesPerTrigger": files_a_trigger}}
    streams = {
        name: {
            "site": "here",
            "schema": SPARK_SCHEMA,
            "event_time": "ts",
            "watermark": "0 seconds",
            "source": {"format": "parquet", "path": str(path), **options},
        }
        for name, path in zip(workload.names, paths, strict=True)
    }
    query = {"sql": workload.sql(), "sink": {"format": "parquet", "path": str(output)}}
    return {"sites": ["here"], "streams": streams, "queries": {"q": query}}


def prepare(
    workload: Workload, paths: Sequence[Path], directory: Path, driver_memory: str = DRIVER_MEMORY
) -> tuple[list[str], Path]:
    """Write `directory`/topology.yaml; the command that runs it, and where its answers will be.

    The events of the run go to `directory`/events.jsonl.
    """
    output = directory / "answers"
    file = directory / "topology.yaml"
    directory.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(topology(workload, paths, output), sort_keys=False, width=120))
    checkpoint = directory / "checkpoint"
    command = [sys.executable, "-m", "watersmeet", "run", str(file), "--once", "--checkpoint", str(checkpoint)]
    command += ["--events", str(directory / EVENTS)]
    # Its session sets a heap limit of its own, which wins over SPARK_DRIVER_MEMORY: it has to be told.
    return [*command, "--master", MASTER, "--conf", f"spark.driver.memory={driver_memory}"], output


def prepare_profiled(
    workload: Workload, paths: Sequence[Path], directory: Path, driver_memory: str = DRIVER_MEMORY
) -> tuple[list[str], Path]:
    """The same through `wm.start`, which tells what the command line does not: Spark's own times of a micro-batch.

    Spark's progress goes to `directory`/progress.jsonl.
    """
    (_, _, _, _, file, *options), output = prepare(workload, paths, directory, driver_memory)
    progress = ["--progress", str(directory / PROGRESS)]
    return [sys.executable, str(HERE / "profiled.py"), file, *options, *progress], output


_ASK_REFERENCE = """
import json, sys
from pathlib import Path
root, fields, paths, directory, memory = json.loads(sys.argv[1])
sys.path.insert(0, root)
import ours
from workload import Workload
command, output = ours.prepare(Workload(**fields), [Path(path) for path in paths], Path(directory), memory)
print(json.dumps([command, str(output), ours.environment()]))
"""


def prepare_reference(
    checkout: Path, workload: Workload, paths: Sequence[Path], directory: Path, driver_memory: str = DRIVER_MEMORY
) -> tuple[list[str], Path, dict[str, str]]:
    """The same by another checkout: its own `ours.prepare`, and the environment in which its package is found."""
    root = checkout.absolute() / "benchmarks"
    asked = json.dumps([str(root), asdict(workload), [str(path) for path in paths], str(directory), driver_memory])
    ask = [sys.executable, "-c", _ASK_REFERENCE, asked]
    answered = subprocess.run(
        ask, cwd=root, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True, check=False
    )
    if answered.returncode:
        raise SystemExit(f"{root / 'ours.py'} does not say how to run it:\n{answered.stderr}")
    command, output, env = json.loads(answered.stdout)
    return command, Path(output), env


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
