"""Spark Connect servers on loopback, as processes from the jars of the pip package."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark
import pytest
from free_ports import free_port
from s3 import is_listening
from scenes import wait_for

from watersmeet.spark.connect.session import is_installed


class ConnectServer:
    """A server with two cores of its own Spark; it knows nothing of the package."""

    def __init__(self, directory: Path, name: str) -> None:
        if not is_installed():
            pytest.skip("no client of Spark Connect: pip install 'watersmeet[connect]'")
        self._directory, self._name = directory, name
        self._port = free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        """Start it, again if it was killed."""
        home = Path(pyspark.__file__).parent
        environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": ""}
        settings = {"spark.connect.grpc.binding.port": self._port, "spark.ui.enabled": "false"}
        settings |= {"spark.driver.memory": "1g", "spark.connect.grpc.binding.address": "127.0.0.1"}
        command = [str(home / "bin" / "spark-submit"), "--master", "local[2]"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        with open(self._directory / f"{self._name}.log", "ab") as log:
            self._process = subprocess.Popen(
                [*command, "spark-internal"], stdout=log, stderr=log, env=environment, cwd=self._directory
            )
        wait_for(lambda: is_listening(self._port), "the Connect server does not listen", self._check)

    def kill(self) -> None:
        """End it at once, with its workers."""
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        self._process.kill()
        self._process.wait()

    def _check(self) -> None:
        assert self._process.poll() is None, (self._directory / f"{self._name}.log").read_text(encoding="utf-8")

    def __enter__(self) -> "ConnectServer":
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
