"""Turning what Spark throws into one sentence with a cause and a cure."""

import re
from typing import NoReturn
from urllib.parse import unquote, urlparse

from py4j.protocol import Py4JError, Py4JNetworkError

from watersmeet.errors import InputError, RunError, WatersmeetError, name_queries
from watersmeet.spark.analyser import readable

_READ_FILE = re.compile(r"FAILED_READ_FILE[.\w]*\]?\s*Encountered error while reading file\s+(\S+?)[.:]?\s", re.DOTALL)
_NOT_PARQUET = re.compile(r"(file:\S+?|/\S+?) is not a Parquet file")
_MISFIT = re.compile(r"reading Parquet column \[?(.+?)\]?\. Expected Spark type (.+?), actual Parquet type (\w+)")
_OWN = re.compile(r"watersmeet\.errors\.\w+: (.*)")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] ([^\n]*)")
# These only say that something failed somewhere; the condition inside them says what.
_WRAPPERS = ("STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR", "PYTHON_EXCEPTION", "TASK_WRITE_FAILED")


def refusal(error: Exception, *queries: str) -> WatersmeetError:
    """The error to show for what kept queries from starting: it is bad input, unless Java has ended."""
    if isinstance(error, WatersmeetError) or _is_due_to_javas_end(error) or is_servers_end(error):
        return explain(error, *queries)
    return InputError(f"{name_queries(queries)} cannot start: {readable(error)}")


def _is_due_to_javas_end(error: BaseException) -> bool:
    """Whether Java's end is the error, or what it was raised for."""
    cause: BaseException | None = error
    while cause is not None and not _is_javas_end(cause):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _is_javas_end(error: BaseException) -> bool:
    if isinstance(error, Py4JNetworkError | ConnectionError) or "Answer from Java side is empty" in str(error):
        return True
    return type(error) is Py4JError and "Trace:" not in str(error)  # half an answer; a whole one says what went wrong


def is_servers_end(error: BaseException) -> bool:
    """Whether a session of Spark Connect is lost; its library need not be installed, so classes go by their names."""
    is_connects = type(error).__module__.startswith(("grpc", "pyspark.errors"))
    return is_connects and any(sign in str(error) for sign in _LOST_SESSION)


_LOST_SESSION = (
    *("StatusCode.UNAVAILABLE", "SESSION_CHANGED", "SESSION_NOT_FOUND", "SESSION_CLOSED", "RETRIES_EXCEEDED"),
    "NO_ACTIVE_SESSION",  # what PySpark says once it has given a session up
)


def explain(error: BaseException, *queries: str) -> WatersmeetError:
    """The error to show for anything that ended queries."""
    what = name_queries(queries)
    if is_servers_end(error):
        return RunError(
            f"{what}: the Spark Connect server cannot be reached or has been started again; start the run again to "
            "resume it"
        )
    if _is_due_to_javas_end(error):
        return RunError(f"{what}: Spark's Java process ended unexpectedly; start the run again to resume it")
    if isinstance(error, WatersmeetError):
        return error
    text = str(error)
    if match := _READ_FILE.search(text) or _NOT_PARQUET.search(text):
        path = unquote(urlparse(match.group(1)).path)
        if "FILE_NOT_EXIST" in text:
            return RunError(f"{what}: input file {path} has disappeared; start the run again to go on without it")
        if misfit := _MISFIT.search(text):
            column, wanted, found = misfit.groups()
            return RunError(
                f"{what}: input file {path} cannot be read, its column {column} is {found} and not {wanted} "
                "as in the schema; replace or remove it and start the run again with the same checkpoint: "
                "nothing else is lost"
            )
        return RunError(
            f"{what}: input file {path} cannot be read, it is damaged or of another format; "
            "repair or remove it and start the run again with the same checkpoint: nothing else is lost"
        )
    if "OutOfMemoryError" in text:
        return RunError(
            f"{what}: Spark ran out of memory; give it more (--conf spark.driver.memory=4g) "
            "or take smaller batches (option maxFilesPerTrigger of the sources)"
        )
    if "No space left on device" in text:
        return RunError(f"{what}: a disk is full; make room and start the run again to resume it")
    if match := _OWN.search(text):
        return RunError(f"{what}: {match.group(1)}")
    for condition, message in _CONDITION.findall(text):
        if condition not in _WRAPPERS:
            message = re.sub(r"\s*SQLSTATE: \w+.*", "", message)
            return RunError(f"{what} failed: {message} ({condition})")
    if isinstance(error, Py4JError):
        return RunError(f"{what} failed in Spark: {_last_cause(text)}")
    return RunError(f"{what} failed: {readable(error) if isinstance(error, Exception) else repr(error)}")


def raise_explained(error: BaseException, *queries: str) -> NoReturn:
    """Raise the error to show for anything that ended queries."""
    explained = explain(error, *queries)
    if explained is error:
        raise error
    raise explained from error


def _last_cause(text: str) -> str:
    causes = re.findall(r"Caused by: (?:[\w.$]+\.)?(\w+: [^\n]*)", text)
    if causes:
        return str(causes[-1])
    lines = [line.strip(": ") for line in text.splitlines() if line.strip()]
    return lines[1] if len(lines) > 1 else text
