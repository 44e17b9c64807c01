"""What notebooks show of a run: its figures kept up to date, its plans as pictures, its events as a table."""

import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watersmeet.dashboard import view
from watersmeet.dashboard.html import run_html
from watersmeet.dashboard.model import RunModel
from watersmeet.dashboard.tail import Tail
from watersmeet.errors import InputError, did_you_mean
from watersmeet.metrics.bus import EventBus, Reader
from watersmeet.metrics.events import KINDS
from watersmeet.metrics.jsonl import KEPT
from watersmeet.plan.draw import draw
from watersmeet.plan.explain import explain_text
from watersmeet.plan.nodes import join_plan_of
from watersmeet.planners.auto import sub_plan_shares
from watersmeet.planners.choose import Chosen, estimate

if TYPE_CHECKING:
    from pandas import DataFrame

_REFRESH_S = 1.0


class Place:
    """A place in a notebook whose contents can be replaced; where there is no notebook, nobody sees it."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._html: Callable[[str], object] = str

    def show(self, html: str) -> str:
        """Put contents into the notebook; returns what is to be shown where that cannot be done."""
        with contextlib.suppress(ImportError):
            display = import_module("IPython.display")
            if import_module("IPython").get_ipython() is not None:
                self._html = display.HTML
                self._shown = display.display(display.HTML(html), display_id=True)
                return ""
        return html

    @property
    def is_shown(self) -> bool:
        """Whether there is something to be replaced."""
        return self._shown is not None

    def update(self, html: str) -> None:
        """Replace the contents."""
        if self._shown is not None:
            self._shown.update(self._html(html))


class LiveView:
    """A run in a notebook, by the events that it keeps in its checkpoint: read only since somebody looks."""

    def __init__(self, directory: Path, is_active: Callable[[], bool]) -> None:
        self._tail = Tail(directory / KEPT)
        self._model = RunModel()
        self._is_active = is_active
        self._lock = threading.Lock()
        self._places: dict[str | None, Place] = {}  # by query; None is the whole run
        self._thread: threading.Thread | None = None

    def html(self, query: str | None = None) -> str:
        """The run, or one query of it, as it is now; a notebook keeps it up to date until the run ends."""
        place = self._places[query] = Place()
        shown = place.show(self._now(query))
        if place.is_shown and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._keep_up, name="notebook", daemon=True)
            self._thread.start()
        return shown

    def _now(self, query: str | None) -> str:
        with self._lock:
            with contextlib.suppress(OSError):  # it is being replaced
                for at, event in self._tail.read():
                    self._model.read(KEPT, at, event)
            now = time.time() if self._model.is_live else self._model.last_at
            return run_html(view.snapshot(self._model, now), view.timeline(self._model), query)

    def _keep_up(self) -> None:
        is_active = True
        while is_active:
            time.sleep(_REFRESH_S)
            is_active = self._is_active()
            for query, place in list(self._places.items()):
                place.update(self._now(query))


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture for a notebook: of SVG, or of text where a plan has no links to draw."""

    svg: str = ""
    text: str = ""

    def _repr_html_(self) -> str:
        return self.svg[self.svg.find("<svg") :] if self.svg else f"<pre>{escape(self.text)}</pre>"


@dataclass(frozen=True, repr=False)
class RunningPlan:
    """The plan of a query: text where it is printed, a picture where it is drawn."""

    name: str
    chosen: Chosen
    measured: Mapping[tuple[str, str], float]  # bytes a second on links, where only this query has sent them

    def __str__(self) -> str:
        return explain_text(self.chosen.plan)

    __repr__ = __str__

    def draw(self, file: str | Path | None = None) -> Drawing:
        """Sites, links and sub-plans with estimated and measured bytes; also into a file (.svg or .png)."""
        join = join_plan_of(self.chosen.plan)
        if len({*join.homes, join.site}) == 1:
            if file is not None:
                raise InputError("there is nothing to draw: all streams arrive where answers are wanted")
            return Drawing(text=str(self))
        problem, shares = self.chosen.problem, None
        if join.partition is not None and problem is not None:
            shares = sub_plan_shares(join.partition, problem.workload)
        title, cost = f"{self.name}, by {self.chosen.planner}", estimate(self.chosen)
        with tempfile.TemporaryDirectory() as directory:
            inline = Path(directory) / "plan.svg"
            for path in (inline, *(() if file is None else (Path(file),))):
                draw(join, cost, path, measured=self.measured, title=title, shares=shares)
            return Drawing(svg=inline.read_text(encoding="utf-8"))

    def _repr_html_(self) -> str:
        return self.draw()._repr_html_()


class RunEvents:
    """The events of a run: a DataFrame of those that it has kept when called, and those to come by `subscribe`."""

    def __init__(self, bus: EventBus, directory: Path) -> None:
        self._bus, self._directory = bus, directory
        self.publish, self.recent = bus.publish, bus.recent

    def subscribe(self, reader: Reader, *, replay: bool = False) -> Callable[[], None]:
        """Call `reader(at, event)` for every event from now on, with `replay` for the recent ones first."""
        return self._bus.subscribe(reader, replay=replay)

    def __call__(self, kind: str | None = None, *, query: str | None = None, site: str | None = None) -> "DataFrame":
        """The events that the checkpoint has kept (32 MB) as a pandas DataFrame, the earliest first.

        `at` is a time in UTC. With a kind, as "micro_batch_completed", what the event has by stream, query or phase
        gets a column each, as `rows_in.orders`.
        """
        import pandas as pd

        if kind is not None and kind not in KINDS:
            raise InputError(f"unknown kind of event {kind!r}; {did_you_mean(kind, KINDS)}")
        lines = (json.loads(line) for line in Tail(self._directory / KEPT).lines())
        rows = [
            line
            for line in lines
            if kind in (None, line["event"])
            and (query is None or query in (line.get("query"), *line.get("queries", ()), *line.get("answers", ())))
            and site in (None, line.get("site"))
        ]
        found = pd.DataFrame(rows) if kind is None or not rows else pd.json_normalize(rows)
        if rows:
            found["at"] = pd.to_datetime(found["at"], unit="s", utc=True)
        return found
