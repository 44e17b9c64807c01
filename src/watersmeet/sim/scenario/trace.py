"""A simulation as JSON lines: a `start` that says what is run, a `look` at every interval, an `end` with the summary.

Nothing in it depends on the machine or the hour: the same scenario and seed give the same bytes.
"""

import json
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from watersmeet.program.rjoin.arrays import Longs

VERSION = 1
MOST_IDENTIFIERS = 10_000  # of nodes, in the start
TOP_NODES = 10  # the most loaded, in every look


class Trace:
    """Writes the lines of one simulation."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._load = np.zeros(0, np.int64)  # at the look before

    def start(self, parameters: dict[str, Any], identifiers: NDArray[np.uint64], every_us: int, first_us: int) -> None:
        """What is run: all parameters, where nodes are on the circle, and how often there is a look."""
        network = parameters["network"]
        self._write(
            {
                "line": "start",
                "version": VERSION,
                "seed": network["seed"],
                "nodes": network["nodes"],
                "overlay": network["overlay"],
                "every_us": every_us,
                "first_us": first_us,
                "parameters": parameters,
                "identifiers": [f"{identifier:016x}" for identifier in identifiers[:MOST_IDENTIFIERS].tolist()],
            }
        )

    def look(self, time_us: int, figures: dict[str, Any], load: Longs) -> None:
        """What has been done so far, by whom most, and the loads of nodes that have changed since the look before."""
        before = np.zeros(len(load), np.int64)
        before[: min(len(load), len(self._load))] = self._load[: len(load)]
        changed = np.flatnonzero(load != before)
        self._load = load.copy()
        loads = [changed.tolist(), load[changed].tolist()]
        most = np.lexsort((np.arange(len(load)), -load))[:TOP_NODES]
        top = [[int(node), int(load[node])] for node in most if load[node]]
        self._write({"line": "look", "time_us": time_us, **figures, "top": top, "loads": loads})

    def end(self, time_us: int, summary: dict[str, Any]) -> None:
        """The last line: the summary of the whole simulation."""
        self._write({"line": "end", "time_us": time_us, "summary": summary})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
