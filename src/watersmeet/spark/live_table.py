"""A table of a query's first answers that a notebook keeps up to date."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from html import escape
from importlib import import_module
from typing import Any

from pyspark.sql import DataFrame

from watersmeet.spark.handle import StreamingRun

_ROWS = 20  # that are shown
_FIRST_S = 20.0  # how long the first answers are waited for
_LIVE_S = 60.0  # how long the table is kept up to date


def table_html(columns: Sequence[str], rows: Sequence[Sequence[Any]], caption: str) -> str:
    """Rows as an HTML table; nothing in them is taken for HTML.

    >>> table_html(["k"], [["<b>"]], "1 answer")
    '<table><caption>1 answer</caption><tr><th>k</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(value))}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>"


class LiveTable:
    """The latest answers of a run that is only looked at; it is stopped after a minute."""

    def __init__(self, columns: Sequence[str], closed: Callable[[], object]) -> None:
        self._columns = columns
        self._closed = closed
        self._rows: list[Sequence[Any]] = []
        self._count = 0
        self._has_rows = threading.Event()
        self._display: Any = None
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
        with contextlib.suppress(ImportError):  # only where there is a notebook
            display = import_module("IPython.display")
            if self._display is None and import_module("IPython").get_ipython() is not None:
                self._display = display.display(display.HTML(self._html()), display_id=True)
                return ""
        return self._html()

    @property
    def _is_running(self) -> bool:
        return self._run is not None and self._run.isActive

    def _html(self) -> str:
        state = "live" if self._is_running else "ended"
        return table_html(self._columns, self._rows, f"{self._count:,} answers, the latest first ({state})")

    def _update(self) -> None:
        if self._display is not None:
            self._display.update(import_module("IPython.display").HTML(self._html()))

    def _watch(self) -> None:
        assert self._run is not None
        with contextlib.suppress(Exception):  # the table says only what there is
            self._run.awaitTermination(_LIVE_S)
        with contextlib.suppress(Exception):
            self._run.stop()
        self._closed()
        self._update()
