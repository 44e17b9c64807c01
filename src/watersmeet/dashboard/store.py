"""The history of a run in SQLite beside its checkpoint, so that a page finds it again after any restart; bounded."""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from watersmeet.dashboard.model import MOST_NOTES, About, RunModel, kind_of_series
from watersmeet.dashboard.notes import Note
from watersmeet.dashboard.series import TIERS, Series
from watersmeet.dashboard.tail import Position
from watersmeet.errors import RunError
from watersmeet.metrics.events import AnswerSample, Event, from_json, kind_of, to_json

NAME = "dashboard.sqlite"
_FORMAT = 1
_FORGET_S = 60.0  # how often what is too old is dropped
_RECENT = "SELECT source, event FROM recent ORDER BY json_extract(event, '$.at')"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS totals(series TEXT PRIMARY KEY, total REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS points(series TEXT, tier INT, bucket INT, value REAL, PRIMARY KEY(series, tier, bucket))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes(number INTEGER PRIMARY KEY, note TEXT);
CREATE TABLE IF NOT EXISTS recent(about TEXT PRIMARY KEY, source TEXT, event TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS positions(source TEXT PRIMARY KEY, file INT, byte INT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS times(name TEXT PRIMARY KEY, at REAL) WITHOUT ROWID;
"""


class DashboardStore:
    """Writes what has changed since the last time, in one transaction with how far the event files were read."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._db = sqlite3.connect(":memory:" if path is None else path, check_same_thread=False, timeout=5.0)
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            if self._db.execute("PRAGMA user_version").fetchone()[0] not in (0, _FORMAT):
                raise RunError(f"{path} is of another version of Watersmeet; remove it, the event files are read again")
            self._db.executescript(_SCHEMA)
            self._db.execute(f"PRAGMA user_version = {_FORMAT}")
        except sqlite3.DatabaseError as error:
            raise self._unusable(error) from None
        self._stored_notes = 0
        self._forgot_at = 0.0
        self._stored_about: dict[tuple[type[Event], About], float] = {}

    def load(self, model: RunModel) -> dict[str, Position]:
        """Give a model what was stored; returns how far each event file was read."""
        try:
            return self._loaded(model)
        except (sqlite3.DatabaseError, ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
            raise self._unusable(error) from None

    def _unusable(self, error: Exception) -> RunError:
        return RunError(f"{self._path} cannot be used ({error}); remove it, the event files are read again")

    def _loaded(self, model: RunModel) -> dict[str, Position]:
        rows = self._db.execute(_RECENT)
        for source, line in rows.fetchall():
            at, event = from_json(line)
            model.read(source, at, event, again=True)
        for name, total in self._db.execute("SELECT series, total FROM totals"):
            key = tuple(json.loads(name))
            model.series[key] = Series(kind_of_series(key), total)
        for name, tier, bucket, value in self._db.execute("SELECT * FROM points ORDER BY series, tier, bucket"):
            model.series[tuple(json.loads(name))].tiers[tier][bucket] = value
        for (text,) in self._db.execute("SELECT note FROM notes ORDER BY number"):
            model.notes.append(Note(**json.loads(text)))
        model.notes_ever = self._stored_notes = self._last_note()
        times = dict(self._db.execute("SELECT name, at FROM times").fetchall())
        model.first_at = min(model.first_at, times.get("first", model.first_at))
        found = self._db.execute("SELECT source, file, byte FROM positions").fetchall()
        return {source: Position(file, byte) for source, file, byte in found}

    def _last_note(self) -> int:
        return int(self._db.execute("SELECT coalesce(max(number), 0) FROM notes").fetchone()[0])

    def save(self, model: RunModel, positions: Mapping[str, Position]) -> None:
        """Store what has changed."""
        points, totals = [], []
        for key, series in model.series.items():
            if series.changed:
                name = json.dumps(key)
                totals.append((name, series.total))
                for tier, bucket in series.changed:
                    if (value := series.tiers[tier].get(bucket)) is not None:
                        points.append((name, tier, bucket, value))
                series.changed.clear()
        new = model.notes_ever - self._stored_notes
        fresh = list(model.notes)[-new:] if new else []
        notes = [(self._stored_notes + n + 1, json.dumps(asdict(note))) for n, note in enumerate(fresh)]
        self._stored_notes = model.notes_ever
        recent = []
        for kind, known in model.recent.items():
            for about, (source, at, event) in known.items() if kind is not AnswerSample else ():
                if self._stored_about.get((kind, about)) != at:
                    self._stored_about[kind, about] = at
                    recent.append((json.dumps((kind_of(event), *about)), source, to_json(event, at)))
        places = [(source, place.file, place.offset) for source, place in positions.items()]
        with self._db:
            self._db.executemany("INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?)", points)
            self._db.executemany("INSERT OR REPLACE INTO totals VALUES (?, ?)", totals)
            self._db.executemany("INSERT OR REPLACE INTO notes VALUES (?, ?)", notes)
            self._db.executemany("INSERT OR REPLACE INTO recent VALUES (?, ?, ?)", recent)
            self._db.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?, ?)", places)
            if model.first_at < model.last_at:
                self._db.execute("INSERT OR REPLACE INTO times VALUES ('first', ?)", (model.first_at,))
            if model.last_at - self._forgot_at > _FORGET_S:
                self._forgot_at = model.last_at
                self._forget(model)

    def _forget(self, model: RunModel) -> None:
        """Drop what is older than is kept."""
        for tier, (step, most) in enumerate(TIERS):
            oldest = int(model.last_at // step) - most
            self._db.execute("DELETE FROM points WHERE tier = ? AND bucket < ?", (tier, oldest))
        self._db.execute("DELETE FROM notes WHERE number <= ?", (self._stored_notes - MOST_NOTES,))

    def close(self) -> None:
        """Give up the file."""
        self._db.close()
