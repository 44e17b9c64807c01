"""A standalone cluster of Spark on loopback: a master and workers as processes, from the jars of the pip package."""

import json
import os
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark
from free_ports import free_port
from scenes import wait_for


class StandaloneCluster:
    """A master, and workers with work directories of their own."""

    def __init__(self, directory: Path, workers: int = 2, environment: dict[str, str] | None = None) -> None:
        self._directory = directory
        self._port, self._web = free_port(), free_port()
        self._environment = {**os.environ, **(environment or {}), "SPARK_LOCAL_IP": "127.0.0.1"}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        at = ["--host", "127.0.0.1"]
        self._run("Master", [*at, "--port", str(self._port), "--webui-port", str(self._web)], "master")
        try:
            wait_for(lambda: self._state().get("status") == "ALIVE", "the master does not start")
            for number in range(workers):
                self.add_worker(f"worker{number}")
            wait_for(lambda: self.alive_workers == workers, "the workers do not register")
        except BaseException:
            self.close()
            raise

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    @property
    def alive_workers(self) -> int:
        return int(self._state().get("aliveworkers", 0))

    def add_worker(self, name: str) -> None:
        """Start another worker, with one core."""
        place = self._directory / name
        arguments = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
        arguments += ["--work-dir", str(place), self.master]
        self.workers.append(self._run("worker.Worker", arguments, name))

    def executors(self) -> list[psutil.Process]:
        """The processes that run tasks."""
        children = [psutil.Process(worker.pid).children(recursive=True) for worker in self.workers if _runs(worker)]
        return [one for some in children for one in some if "CoarseGrainedExecutorBackend" in " ".join(_command(one))]

    def close(self) -> None:
        """End all of it."""
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
            process.kill()
            process.wait()

    def __enter__(self) -> "StandaloneCluster":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, name: str, arguments: list[str], log: str) -> "subprocess.Popen[bytes]":
        home = Path(pyspark.__file__).parent
        kind = f"org.apache.spark.deploy.{name if '.' in name else f'master.{name}'}"
        with open(self._directory / f"{log}.log", "wb") as file:
            command = [str(home / "bin" / "spark-class"), kind, *arguments]
            environment = {**self._environment, "SPARK_HOME": str(home)}
            process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        self._processes.append(process)
        return process

    def _state(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._web}/json/"
        with suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
        return {}


def _runs(process: "subprocess.Popen[bytes]") -> bool:
    return process.poll() is None


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess):
        return list(process.cmdline())
    return []
