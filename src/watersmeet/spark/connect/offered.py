"""Micro-batches of a streaming query on a Connect server, taken by the client one after the other (note 0024).

Spark calls the function of `foreachBatch` in a worker beside the server. That function only offers the micro-batch, and
collects what its tasks report when the client asks for it: state, links and sinks stay with the client. The two talk
through small files of the checkpoint, which both see:

N.offer      the server has planned micro-batch N and waits
N.K.take     the client wants it read, for the K-th time: a change of plans may come in between
N.K.reports  what the tasks reported; or N.K.failed, why they could not
N.done       the client has committed it: Spark may go on
end          the client is gone, or has failed; `alive` says otherwise, and changes every few seconds
"""

import contextlib
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from watersmeet.errors import RunError
from watersmeet.spark.connect.batches import ThreadQuery
from watersmeet.spark.failures import is_servers_end

_POLL_S = 0.02
_BEAT_S = 2.0
_SILENCE_S = 60.0  # of the client, after which the server lets go of a micro-batch
_END = "end"
_ATTEMPTS = 10  # at starting a query


def offer_to(place: str) -> Callable[[Any, int], None]:
    """The function for `foreachBatch`; it is sent by value and needs nothing but Python's own modules."""
    poll_s, silence_s, end = _POLL_S, _SILENCE_S, _END

    def offer(frame: Any, batch: int) -> None:
        import json
        import os
        import time

        def path(name: str) -> str:
            return os.path.join(place, name)

        def put(name: str, text: str) -> None:
            with open(path(f"{name}.tmp"), "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(path(f"{name}.tmp"), path(name))

        def beat() -> str:
            try:
                with open(path("alive"), encoding="utf-8") as file:
                    return file.read()
            except OSError:
                return ""

        put(f"{batch}.offer", "")
        asked, last, heard = 0, beat(), time.monotonic()
        while not os.path.exists(path(f"{batch}.done")):
            if os.path.exists(path(end)) or time.monotonic() - heard > silence_s:
                raise RuntimeError("the client of this query has ended")
            if os.path.exists(path(f"{batch}.{asked}.take")):
                try:
                    put(f"{batch}.{asked}.reports", json.dumps([row[0] for row in frame.collect()]))
                except Exception as error:
                    put(f"{batch}.{asked}.failed", str(error))
                asked += 1
            time.sleep(poll_s)
            if (now := beat()) != last:
                last, heard = now, time.monotonic()

    return offer


class OfferedFrame:
    """Stands for the frame of a micro-batch: to collect it is to have it read on the server."""

    def __init__(self, place: Path, batch: int, check: Callable[[], None]) -> None:
        self._place, self._batch, self._check = place, batch, check
        self._asked = 0

    def collect(self) -> list[tuple[str]]:
        """What the tasks report."""
        stem = self._place / f"{self._batch}.{self._asked}"
        self._asked += 1
        stem.with_name(f"{stem.name}.take").touch()
        reports, failed = (stem.with_name(f"{stem.name}.{kind}") for kind in ("reports", "failed"))
        while not reports.exists():
            if failed.exists():
                raise RunError(failed.read_text(encoding="utf-8"))
            self._check()
            time.sleep(_POLL_S)
        return [(text,) for text in json.loads(reports.read_text(encoding="utf-8"))]


class OfferedBatches(ThreadQuery):
    """A query on the server and the thread that takes its micro-batches, as one: the members of `StreamingQuery`."""

    def __init__(
        self, directory: Path, start: Callable[[Callable[[Any, int], None]], Any], run_batch: Callable[[Any, int], None]
    ) -> None:
        for old in directory.glob("*"):  # of clients that were killed: their queries end
            with contextlib.suppress(OSError):
                (old / _END).touch()
        self._place = directory / uuid.uuid4().hex[:12]
        self._place.mkdir(parents=True)
        self._run_batch = run_batch
        self._closing = threading.Event()
        self._beat()
        try:
            self._query = self._started(start)
        except BaseException:
            self._end()
            raise
        self._beating = threading.Thread(target=self._keep_beating, daemon=True)
        self._beating.start()
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self._thread.start()

    def _started(self, start: Callable[[Callable[[Any, int], None]], Any]) -> Any:
        """Start the query; a busy server gives its Python worker ten seconds, which are sometimes too few."""
        for attempt in range(_ATTEMPTS):
            try:
                return start(offer_to(str(self._place)))
            except Exception as error:
                if "failed to connect back" not in str(error) or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("it was started or has failed")

    @property
    def id(self) -> Any:
        """Spark's identity of the query."""
        return self._query.id

    @property
    def status(self) -> dict[str, Any]:
        """What Spark is doing."""
        return dict(self._query.status)

    @property
    def lastProgress(self) -> Any:
        """Spark's progress of the last micro-batch."""
        return self._query.lastProgress

    def stop(self) -> None:
        """End the query on the server."""
        self._closing.set()
        self._end()
        self._stop_query()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        shutil.rmtree(self._place, ignore_errors=True)

    def _stop_query(self) -> None:
        """End the query on the server, unless the server is lost: it would be waited for once more."""
        if self._error is None or not is_servers_end(self._error):
            with contextlib.suppress(Exception):  # the server may be gone
                self._query.stop()

    def _run(self) -> None:
        try:
            while not self._closing.is_set() and (batch := self._await_offer()) is not None:
                self._run_batch(OfferedFrame(self._place, batch, self._check), batch)
                (self._place / f"{batch}.done").touch()
                self._forget(batch)
        except Exception as error:
            self._error = error
            self._end()
            self._stop_query()
        finally:
            self._closing.set()

    def _await_offer(self) -> int | None:
        """The number of the next micro-batch; None when the query has ended well."""
        polls = 0
        while not self._closing.is_set():
            found = sorted(int(path.name.split(".")[0]) for path in self._place.glob("*.offer"))
            if found:
                return found[-1]
            polls += 1
            if polls % 10 == 0 and self._has_ended() and not any(self._place.glob("*.offer")):
                return None
            time.sleep(_POLL_S)
        return None

    def _has_ended(self) -> bool:
        if self._query.isActive:
            return False
        self._raise_error()
        return True

    def _check(self) -> None:
        """Raise if nothing will be reported any more."""
        if self._closing.is_set():
            raise RunError("the run is being stopped")
        if not self._query.isActive:
            self._raise_error()
            raise RunError("the query on the Spark Connect server has ended; start the run again to resume it")

    def _raise_error(self) -> None:
        error = self._query.exception()
        if error is not None:
            raise error

    def _forget(self, batch: int) -> None:
        """Remove what was said of a micro-batch; `done` is left until the next one, since the server looks for it."""
        for path in self._place.glob("*.*"):
            number = path.name.split(".")[0]
            if number.isdigit() and (int(number) < batch or (int(number) == batch and not path.name.endswith("done"))):
                with contextlib.suppress(OSError):
                    path.unlink()

    def _keep_beating(self) -> None:
        while not self._closing.wait(_BEAT_S):
            with contextlib.suppress(OSError):
                self._beat()

    def _beat(self) -> None:
        fresh = self._place / "alive.tmp"
        fresh.write_text(str(time.monotonic_ns()), encoding="utf-8")
        os.replace(fresh, self._place / "alive")

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            (self._place / _END).touch()
