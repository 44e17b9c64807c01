"""A table of a query's first answers that a notebook keeps up to date."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame

from watersmeet.dashboard.html import table_html
from watersmeet.spark.handle import StreamingRun
from watersmeet.spark.notebook import Place

_ROWS = 20  # that are shown
_FIRST_S = 20.0  # how long the first answers are waited for
_LIVE_S = 60.0  # how long the table is kept up to date


class LiveTable:
    """The latest answers of a run that is only looked at; it is stopped after a minute."""

    def __init__(self, columns: Sequence[str], closed: Callable[[], object]) -> None:
        self._columns = columns
        self._closed = closed
        self._rows: list[Sequence[Any]] = []
        self._count = 0
        self._has_rows = threading.Event()
        self._place = Place()
        self._run: StreamingRun | None = None

    def take(self, rows: DataFrame, batch: int) -> None:
        """What each micro-batch's answers are given to."""
        rows = rows.persist()
        try:
            count, some = rows.count(), rows.limit(_ROWS).collect()
        finally:
            rows.unpersist()
        if count:
            self._count += count
            self._rows = [*map(tuple, some), *self._rows][:_ROWS]
            self._has_rows.set()
            self._update()

    def follow(self, run: StreamingRun) -> None:
        """Let a run go on for a while."""
        self._run = run
        threading.Thread(target=self._watch, name="live-table", daemon=True).start()

    def html(self) -> str:
        """The table as it is now; the first answers are waited for."""
        deadline = time.monotonic() + _FIRST_S
        while not self._has_rows.wait(0.1) and time.monotonic() < deadline and self._is_running:
            pass
        return self._html() if self._place.is_shown else self._place.show(self._html())

    @property
    def _is_running(self) -> bool:
        return self._run is not None and self._run.isActive

    def _html(self) -> str:
        state = "live" if self._is_running else "ended"
        return table_html(self._columns, self._rows, f"{self._count:,} answers, the latest first ({state})")

    def _update(self) -> None:
        self._place.update(self._html())

    def _watch(self) -> None:
        assert self._run is not None
        with contextlib.suppress(Exception):  # the table says only what there is
            self._run.awaitTermination(_LIVE_S)
        with contextlib.suppress(Exception):
            self._run.stop()
        self._closed()
        self._update()
