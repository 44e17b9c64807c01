"""Whether the executors of a cluster have the same Python and libraries as the driver.

Tasks and rows go from one to the other: a pickled task of another Python, or a library that is missing, would fail in
the middle of a run with a stack trace of a worker.
"""

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from pyspark.sql import SparkSession

from watersmeet.errors import RunError
from watersmeet.spark.backend.protocol import backend_of

LIBRARIES = ("pyarrow", "numpy", "pandas", "numba", "sqlglot", "datasketches")  # that tasks import
STORE_LIBRARIES = ("obstore",)  # and those of runs with a checkpoint in a store
_MAY_DIFFER = ("sqlglot", "obstore")  # in which version it is there does not matter to tasks
_MISSING = "missing"


def versions_here(libraries: Sequence[str] = LIBRARIES) -> dict[str, str]:
    """Python and libraries of this process."""
    found = {"python": ".".join(map(str, sys.version_info[:2]))}
    for name in libraries:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = _MISSING
    return found


@dataclass(frozen=True, slots=True)
class ReportVersions:
    """A task that reports its machine and what is there; it imports nothing that may be missing."""

    libraries: tuple[str, ...]

    def __call__(self, number: int) -> list[tuple[str, dict[str, str]]]:
        return [(platform.node(), versions_here(self.libraries))]


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """What an executor has other than the driver, in words.

    >>> differences({"python": "3.11", "numpy": "2.1.0"}, {"python": "3.12", "numpy": "2.1.3"})
    ['Python 3.12 (the driver has 3.11)']
    >>> differences({"pyarrow": "21.0.0"}, {"pyarrow": "missing"})
    ['no pyarrow (the driver has 21.0.0)']
    >>> differences({"obstore": "0.9.1"}, {"obstore": "0.10.0"})
    []
    """
    found = []
    for name, wanted in ours.items():
        there = theirs.get(name, _MISSING)
        is_same = there.split(".")[:2] == wanted.split(".")[:2] or (name in _MAY_DIFFER and there != _MISSING)
        if not is_same:
            what = f"no {name}" if there == _MISSING else f"{'Python' if name == 'python' else name} {there}"
            found.append(f"{what} (the driver has {wanted})")
    return found


def check_executors(session: SparkSession, libraries: tuple[str, ...] = LIBRARIES) -> None:
    """Refuse executors that could not run our tasks, with what they lack."""
    backend = backend_of(session)
    try:
        found = backend.run_tasks(ReportVersions(libraries), max(2, backend.parallelism) * 2)
    except Exception as error:
        cause = next((line.strip() for line in str(error).splitlines() if "rror" in line), type(error).__name__)
        raise RunError(
            f"no task of ours can run on the executors of {backend.name}: {cause}; let PYSPARK_PYTHON (or --conf "
            "spark.pyspark.python) name a Python there like this one"
        ) from None
    wrong = {(host, text) for host, theirs in found for text in differences(versions_here(libraries), theirs)}
    if wrong:
        listed = "; ".join(f"{host} has {text}" for host, text in sorted(wrong))
        raise RunError(
            f"the executors of {backend.name} are not like the driver: {listed}. Install the same there, or let "
            "PYSPARK_PYTHON (or --conf spark.pyspark.python) name a Python that has it"
        )
