"""Micro-batches that the client numbers itself, in the place of Spark's streaming query (note 0024).

Where the files of all streams are listed by the driver, Spark's query is but a clock; over Connect its function would
run on the server, far from the state of the site. So a thread of the client calls it. It has the members of PySpark's
`StreamingQuery` that a run uses.
"""

import threading
import uuid
from collections.abc import Callable
from typing import Any


class ThreadQuery:
    """The members of PySpark's `StreamingQuery` that are about a thread of this process, and what has ended it."""

    _thread: threading.Thread
    _error: Exception | None = None

    @property
    def isActive(self) -> bool:
        """Whether micro-batches still run."""
        return self._thread.is_alive()

    def exception(self) -> Exception | None:
        """What has ended it, if anything has."""
        return self._error

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end; with a timeout, whether it has come. Raises what has ended it."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True


class ClientBatches(ThreadQuery):
    """Calls a function with the numbers of micro-batches, one after the other, until it raises or is stopped."""

    def __init__(self, run_batch: Callable[[Any, int], None], first: int, interval_s: float, name: str) -> None:
        self.id = uuid.uuid4()
        self.name = name
        self.lastProgress: Any = None  # Spark counts nothing here
        self._run_batch = run_batch
        self._next = first
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"batches-{name}", daemon=True)
        self._thread.start()

    @property
    def status(self) -> dict[str, Any]:
        """In the form of PySpark's."""
        text = f"micro-batch {self._next}" if self.isActive else "stopped"
        return {"message": text, "isDataAvailable": self.isActive, "isTriggerActive": self.isActive}

    def stop(self) -> None:
        """Let no micro-batch begin any more; returns when the one under way is over."""
        self._stopping.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._run_batch(None, self._next)
                self._next += 1
                self._stopping.wait(self._interval_s)
        except Exception as error:
            self._error = error
