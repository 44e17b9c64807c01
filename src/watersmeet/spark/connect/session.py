"""Connecting to a server of Spark Connect."""

import importlib.util
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from watersmeet.errors import InputError, RunError, first_line
from watersmeet.spark.backend.protocol import backend_of

_NEEDED = ("grpc", "grpc_status", "google.rpc", "zstandard")
# A server that was away has lost its sessions: only the network is worth waiting for. PySpark's own patience is ten
# minutes, for each call.
_START_RETRIES, _RUN_RETRIES = 8, 18  # about 20 s and a minute
_LONGEST_PAUSE_MS = 4_000


def connect(url: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session at a server, such as `sc://host:15002`, that runs our tasks."""
    if not url.startswith("sc://"):
        raise InputError(f"--remote {_shown(url)}: the address of a Spark Connect server begins with sc://")
    if not is_installed():
        raise InputError("--remote needs the client of Spark Connect; install it: pip install 'watersmeet[connect]'")
    try:
        session = SparkSession.builder.remote(url).create()
        _give_patience(session, _START_RETRIES)
        _ = session.version
    except Exception as error:
        raise RunError(f"no Spark Connect server answers at {_shown(url)}: {_cause(error)}") from None
    ours, theirs = _spark_version(), session.version
    if theirs.split(".")[:2] != ours.split(".")[:2]:
        raise RunError(f"the server at {_shown(url)} is Spark {theirs}, and this is PySpark {ours}; use the same")
    for name, value in (settings or {}).items():
        try:
            session.conf.set(name, value)
        except Exception as error:
            raise InputError(
                f"--conf {name}: a session at a server cannot set it ({first_line(error)}); set it where the server is "
                "started"
            ) from None
    backend_of(session).prepare()
    _give_patience(session, _RUN_RETRIES)
    return session


def _give_patience(session: Any, retries: int) -> None:
    """How often a call is tried again while the server does not answer."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session.client.set_retry_policies([DefaultPolicy(max_retries=retries, max_backoff=_LONGEST_PAUSE_MS)])


def is_installed() -> bool:
    """Whether the libraries of PySpark's own client are there."""
    return all(_has(name) for name in _NEEDED)


def _has(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _spark_version() -> str:
    import pyspark

    return pyspark.__version__


def _shown(url: str) -> str:
    """An address without its parameters, among which a token may be.

    >>> _shown("sc://host:15002/;use_ssl=true;token=secret")
    'sc://host:15002'
    """
    return url.partition("/;")[0]


def _cause(error: BaseException) -> str:
    details = getattr(error, "details", None)
    text = details() if callable(details) else first_line(error)
    return str(text).splitlines()[0] if text else type(error).__name__
