"""The Structured Streaming query of one site, as it starts, fails, restarts and ends."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from watersmeet.errors import WatersmeetError
from watersmeet.spark.connect.batches import ClientBatches
from watersmeet.spark.connect.offered import OfferedBatches
from watersmeet.spark.failures import explain, raise_explained
from watersmeet.spark.site.job import SiteJob
from watersmeet.spark.site.settings import FrameChanged, InputEnded

SparkQuery = StreamingQuery | ClientBatches | OfferedBatches  # what calls for micro-batches


class _Stopped(WatersmeetError):
    """A micro-batch that began while the run was being stopped; it runs again at the next start."""


class SiteQuery:
    """The Structured Streaming query of one site."""

    def __init__(self, job: SiteJob, queries: Sequence[str]) -> None:
        self.job = job
        self.ledger_at_start = job.ledger
        self._queries = tuple(queries)  # for messages
        self._in_batch = threading.Lock()
        self._closing = threading.Lock()
        self._is_stopping = False
        self._has_read_all = False
        self._is_closed = False
        self._query: SparkQuery | None = None
        self._is_restarting = False
        # Starts Spark's query over streams as they are read now.
        self.start_again: Callable[[], SparkQuery] | None = None
        self.failure: BaseException | None = None

    def attach(self, query: SparkQuery) -> None:
        """Spark's query has started."""
        self._query = query
        if self.failure is not None:
            query.stop()

    @property
    def query(self) -> SparkQuery:
        assert self._query is not None, "the handle is given out only once the query has started"
        return self._query

    def fail(self, error: BaseException) -> None:
        """Something went wrong while Spark may be waiting for rows, perhaps for ever, or a micro-batch for a sink.

        Spark's stop waits for the micro-batch under way, and this may be called within one: so it has a thread.
        """
        self.failure = self.failure or error
        self.job.stop_waiting()
        if self._query is not None:
            threading.Thread(target=self._stop_spark, daemon=True).start()

    def _stop_spark(self) -> None:
        with suppress(Py4JError, ConnectionError):
            self.query.stop()

    def run_batch(self, frame: Any, batch: int) -> None:
        """What Spark calls for each micro-batch."""
        with self._in_batch:
            if self._is_stopping:
                raise _Stopped("stopping")
            try:
                self.job.run_batch(frame, batch)
            except InputEnded:
                self._has_read_all = True
                raise
            except FrameChanged:
                self._is_restarting = True
                threading.Thread(target=self._restart, daemon=True).start()
                raise
            except BaseException as error:
                self.failure = self.failure or error  # what came first may have interrupted this
                raise

    def _restart(self) -> None:
        """Start Spark's query again: what was planned of a micro-batch is read by the new one."""
        with suppress(Exception):
            self.query.awaitTermination()
        try:
            if not self._is_stopping and self.start_again is not None:
                self._query = self.start_again()
        except Exception as error:
            self.failure = self.failure or error
        finally:
            self._is_restarting = False
            if self._is_stopping:
                self._stop_spark()

    @property
    def is_active(self) -> bool:
        """Whether it is still running; not if Spark's Java process is gone."""
        if self._is_restarting:
            return True
        try:
            return bool(self.query.isActive)
        except (Py4JError, ConnectionError):
            return False

    def await_end(self, timeout: float) -> bool:
        """Whether Spark's query has ended; nothing is given up, since parcels may still come."""
        if self._is_restarting:
            time.sleep(timeout)
            return False
        query = self.query
        try:
            ended = bool(query.awaitTermination(timeout))  # type: ignore[arg-type]
            if ended:
                query.awaitTermination()  # with a timeout Spark says so a moment before the name is free again
        except Exception as error:
            if self._is_restarting or query is not self.query:
                return False
            self._note(error)
            ended = True
        if ended:
            self._raise_failure()
        return ended

    def take_parcels(self) -> None:
        """Join what has come over the links; raises what went wrong there."""
        if not self._is_closed:
            self._tried(self.job.take_parcels)

    def drain(self) -> None:
        """Take the end of the site's own streams for the end of time."""
        self._tried(self.job.drain)

    def tell_what_waits(self) -> None:
        """Say what waits for watermarks."""
        self._tried(self.job.tell_what_waits)

    def has_joined(self, timeout: float) -> bool:
        """Wait for what was ingested to be joined; whether it is, within the timeout."""
        return self._tried(lambda: self.job.has_joined(timeout))

    def has_delivered(self, timeout: float) -> bool:
        """Wait for all answers to be delivered; whether they are, within the timeout."""
        return self._tried(lambda: self.job.has_delivered(timeout))

    def _tried(self, step: Callable[[], bool]) -> bool:
        try:
            done = step()
        except Exception as error:
            self.failure = self.failure or error
        self._raise_failure()
        return done

    def _note(self, error: BaseException | None) -> None:
        """Remember what Spark says has ended the query, unless we have ended it."""
        if error is not None and not self._is_stopping and not self._has_read_all:
            self.failure = self.failure or error

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise_explained(self.failure, *self._queries)

    def exception(self) -> WatersmeetError | None:
        """One sentence for what ended the query; None if it runs or was stopped."""
        try:
            if not self._is_restarting:
                self._note(self.query.exception())
        except (Py4JError, ConnectionError) as error:
            self._note(error)
        return None if self.failure is None else explain(self.failure, *self._queries)

    def begin_to_stop(self) -> None:
        """Let no micro-batch begin any more, and none wait."""
        self.exception()  # what has ended it before is not forgotten
        self._is_stopping = True
        self.job.stop_waiting()

    def stop(self) -> None:
        """Let the micro-batch under way finish, then end the query."""
        self.begin_to_stop()
        with self._in_batch:
            pass
        self._stop_spark()
        self.close()

    def close(self) -> None:
        """Give up everything that the site holds; whoever asks again waits until it is done."""
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                try:
                    self.job.close(has_failed=self.failure is not None)
                except Exception as error:
                    raise_explained(error, *self._queries)
