"""The Spark session of a command, and how signals stop a run."""

import argparse
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watersmeet.errors import InputError, RunError
from watersmeet.topology.model import Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def spark_session(options: argparse.Namespace, topology: Topology | None = None) -> Iterator["SparkSession"]:
    """A Spark session, set up for the streams of a topology if one is given.

    Without --debug its log goes to a temporary file, which is kept and named only if the run fails.
    """
    from watersmeet.spark.ingest.sources import has_rows_in_java
    from watersmeet.spark.kafka_options import connector_settings
    from watersmeet.spark.session import start_session

    settings = _settings(options)
    if not settings.keys() & {"spark.jars", "spark.jars.packages"}:
        settings = connector_settings(topology) | settings
    from pyspark.sql import SparkSession

    is_ours = SparkSession.getActiveSession() is None
    log = Path(tempfile.mkdtemp(prefix="watersmeet-")) / "spark.log"
    keep_log = False
    os.environ.setdefault("WATERSMEET_QUERY_LOG", "error")
    try:
        if not options.debug:
            _silence_loggers()
        with _child_stderr_to(log) if not options.debug else contextlib.nullcontext():
            remote = getattr(options, "remote", None)
            has_rows = topology is not None and has_rows_in_java(topology.sources)
            if remote is not None:
                from watersmeet.spark.connect.session import connect

                spark = connect(remote, settings)
            else:
                spark = start_session(options.master, settings=settings or None, has_rows=has_rows)
        try:
            yield spark
        finally:
            if is_ours:
                with contextlib.suppress(Exception):
                    spark.stop()
    except RunError as error:
        keep_log = log.exists() and log.stat().st_size > 0
        if keep_log:
            raise type(error)(f"{error} (Spark's log: {log})") from error
        raise
    finally:
        if not keep_log:
            shutil.rmtree(log.parent, ignore_errors=True)


def _settings(options: argparse.Namespace) -> dict[str, str]:
    settings = {}
    for setting in getattr(options, "conf", []):
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--conf {setting!r} must be NAME=VALUE, such as spark.driver.memory=4g")
        settings[name] = value
    return settings


def _silence_loggers() -> None:
    from pyspark import accumulators
    from pyspark.logger import PySparkLogger

    for server in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        setattr(server, "handle_error", lambda *_: None)  # noqa: B010 - they print a stack trace when Java ends

    logging.getLogger().setLevel(logging.CRITICAL)  # py4j tells of a lost connection on the root logger
    for name in ("py4j", "pyspark", "py4j.clientserver"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # they print Java stack traces
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


@contextlib.contextmanager
def _child_stderr_to(path: Path) -> Iterator[None]:
    """Redirect standard error of processes started meanwhile, and only theirs, to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(path, "wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def stop_on_signals(stop: threading.Event | None = None) -> Iterator[threading.Event]:
    """The first Ctrl-C lets the current micro-batch complete; the second exits at once, and the next start resumes.

    PySpark sets a handler of its own when a session starts: give the event to set ours again.
    """
    stop = stop or threading.Event()

    def handle(number: int, frame: Any) -> None:
        if stop.is_set():
            from watersmeet.spark.session import end_java

            end_java()
            os._exit(130)
        stop.set()

    before = [(number, signal.signal(number, handle)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield stop
    finally:
        for number, handler in before:
            signal.signal(number, handler)
