"""What a page shows, from the events of a run: pure, and bounded however long the run is."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple, TypeAlias

from watersmeet.dashboard.notes import Note, notes_of
from watersmeet.dashboard.series import Key, Kind, Series, grid_over
from watersmeet.metrics.bus import MAX_RECENT, key_of
from watersmeet.metrics.events import (
    AnswerSample,
    AnswersDelivered,
    Event,
    LinkCounts,
    MicroBatchCompleted,
    PlanInForce,
    RunEnded,
    RunStarted,
    SiteStatus,
    TopologyInForce,
)
from watersmeet.program.operators import Purpose

SILENT_AFTER_S = 8.0  # without a sign of life, of which there is one every two seconds
ELSEWHERE, ELSEWHERE_S = "elsewhere/", 7.0  # what names of sources that come over links begin with; how late those are
SLOW_AFTER_S = 10.0  # that something has waited for a site
MOST_NOTES = 5_000
MOST_ANSWERS = 500  # of each query
_RATE_S = 10  # over which rates are taken
_EFFECT_S = 60.0  # before and after a plan came into force
_BINS = 20  # of delays, in each power of ten

_END_US = 253_402_300_800_000_000  # the year 10000: watermarks beyond are those of streams that have ended
_NO_FLOWS = frozenset({Purpose.WATERMARKS.value, Purpose.AGREEMENT.value, Purpose.MIGRATION.value})  # beside flows
About: TypeAlias = tuple[str, Key]  # the source of an event, and what it is about

_LEVELS = frozenset({"state_bytes", "state_rows", "backlog", "latency", "undelivered", "batch_seconds", "watermark"})


@dataclass
class EventSource:
    """One event file: the process that writes it runs, or has ended."""

    sites: tuple[str, ...] = ()
    ended: RunEnded | None = None
    started_at: float = 0.0


class SampledAnswer(NamedTuple):
    """A row that was delivered, in the sample of a number."""

    sample: int
    at: float
    columns: tuple[str, ...]
    row: tuple[Any, ...]


@dataclass
class RunModel:
    """Reads events in their order, from one file or several, and answers what a page asks."""

    silent_after_s: float = SILENT_AFTER_S
    series: dict[Key, Series] = field(default_factory=dict)
    recent: dict[type[Event], dict[About, tuple[str, float, Event]]] = field(default_factory=dict)  # the latest
    notes: deque[Note] = field(default_factory=lambda: deque(maxlen=MOST_NOTES))
    answers: dict[str, deque[SampledAnswer]] = field(default_factory=dict)
    sources: dict[str, EventSource] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)  # by site, the last sign of life
    waits_since: dict[tuple[str, str], float] = field(default_factory=dict)  # by link
    first_at: float = math.inf
    last_at: float = 0.0
    notes_ever: int = 0
    answers_ever: int = 0
    _sent: dict[Key, int] = field(default_factory=dict)  # by link and by flow, the total last said
    _batches: dict[str, tuple[int, int]] = field(default_factory=dict)  # by site, first and last that were seen

    # -- events

    def read(self, source: str, at: float, event: Event, *, again: bool = False) -> None:
        """Take an event; `again` if it was counted before, and only says how things are."""
        about, known = (source, tuple(map(str, key_of(event)))), self.recent.setdefault(type(event), {})
        before = known.pop(about, None)
        known[about] = (source, at, event)
        if len(known) > MAX_RECENT:
            del known[next(iter(known))]
        self.first_at, self.last_at = min(self.first_at, at), max(self.last_at, at)
        if not again and (before is None or not (isinstance(event, RunStarted) and before[1] == at)):
            for note in notes_of(at, event, None if before is None else before[2]):
                self.note(note)
        self._follow(source, at, event, again=again)

    def note(self, note: Note) -> None:
        """Add something to the time line."""
        self.notes.append(note)
        self.notes_ever += 1

    def _follow(self, source: str, at: float, event: Event, *, again: bool) -> None:
        match event:
            case RunStarted():
                for site in event.sites:
                    self.seen[site] = max(at, self.seen.get(site, 0.0))
                    if not again:
                        self.waits_since = {link: t for link, t in self.waits_since.items() if site not in link}
                known = self.sources.get(source)
                if known is None or at >= known.started_at:
                    ended = known.ended if known is not None and known.started_at == at else None
                    self.sources[source] = EventSource(event.sites, ended, at)
            case RunEnded():
                known = self.sources.setdefault(source, EventSource())
                if at >= known.started_at:
                    known.ended = event
            case MicroBatchCompleted():
                self.seen[event.site] = at
                self._batches[event.site] = self._batches.get(event.site, (event.batch, 0))[0], event.batch
                if not again:
                    self._count_batch(at, event)
            case LinkCounts():
                self._count_link(at, event, again=again)
            case SiteStatus():
                self.seen[event.site] = at
                self._wait(at, event)
                if not again:
                    self._level_status(at, event)
            case AnswersDelivered():
                if not again:
                    place = round(_BINS * math.log10(max(event.seconds, 1e-4)))
                    self.add(at, event.rows, "delay", event.query, str(place))
            case AnswerSample():
                kept = self.answers.setdefault(event.query, deque(maxlen=MOST_ANSWERS))
                self.answers_ever += 1
                kept.extend(SampledAnswer(self.answers_ever, at, event.columns, row) for row in event.rows)
            case _:
                pass  # what is needed of them is in `recent` and in the notes

    def add(self, at: float, value: float, *key: str) -> None:
        """Count something, or take a level."""
        series = self.series.get(key)
        if series is None:
            series = self.series[key] = Series(kind_of_series(key))
        series.add(at, value)

    def _count_batch(self, at: float, event: MicroBatchCompleted) -> None:
        for name, counts in (("rows", event.rows_in), ("late", event.late), ("malformed", event.malformed)):
            for stream, count in counts.items():
                if count or name == "rows":
                    self.add(at, count, name, event.site, stream)
        for stream, size in event.central_bytes.items():
            self.add(at, size, "central", event.site, stream)
        for stream, watermark_us in event.watermarks.items():
            if watermark_us is not None and watermark_us < _END_US:
                self.add(at, watermark_us / 1e6, "watermark", event.site, stream)
        for query, answers in event.answers.items():
            self.add(at, answers or 0, "answers", query)
        for query, failed in event.failed.items():
            self.add(at, failed, "failed", query)
        self.add(at, 1, "batches", event.site)
        self.add(at, event.seconds, "batch_seconds", event.site)
        self.add(at, event.state_bytes, "state_bytes", event.site)
        self.add(at, event.state_rows, "state_rows", event.site)

    def _count_link(self, at: float, event: LinkCounts, *, again: bool) -> None:
        first, last = self._batches.get(event.site, (0, 0))
        is_old = 1 < first == last  # what came before the first that was seen
        totals: dict[Key, int] = {("link", event.site, event.to, event.purpose): event.bytes}
        for flow, size in event.flows.items():
            if flow != event.purpose or flow in _NO_FLOWS:  # else what flows of earlier plans have sent
                totals["flow", event.site, event.to, event.purpose, flow] = size
        for key, total in totals.items():
            before = self._sent.get(key)
            self._sent[key] = total
            if again or (before is None and is_old):
                continue
            more = total if before is None or total < before else total - before
            if more:
                self.add(at, more, *key)

    def _level_status(self, at: float, event: SiteStatus) -> None:
        for to, size in event.backlog_bytes.items():
            self.add(at, size, "backlog", event.site, to)
        for to, seconds in event.latency_s.items():
            self.add(at, seconds, "latency", event.site, to)
        for query, count in event.undelivered.items():
            self.add(at, count, "undelivered", query)

    def _wait(self, at: float, event: SiteStatus) -> None:
        for to, size in event.backlog_bytes.items():
            if size:
                self.waits_since.setdefault((event.site, to), at)
            else:
                self.waits_since.pop((event.site, to), None)

    # -- what the latest events say

    def events_of(self, kind: type[Any]) -> Iterator[tuple[str, float, Any]]:
        """The latest events of a kind about different things, with source and time."""
        yield from self.recent.get(kind, {}).values()

    def latest(self, kind: type[Any], site: str) -> Any:
        """The latest event of a kind about a site; None if there is none."""
        found = [(at, event) for _, at, event in self.events_of(kind) if event.site == site]
        return max(found, key=lambda one: one[0])[1] if found else None

    def newest(self, kind: type[Any]) -> Any:
        """The latest event of a kind; None if there is none."""
        found = [(at, event) for _, at, event in self.events_of(kind)]
        return max(found, key=lambda one: one[0])[1] if found else None

    @property
    def topology(self) -> TopologyInForce:
        """The topology, or what can be known of it without an event that says so."""
        said = self.newest(TopologyInForce)
        if said is not None:
            return said  # type: ignore[no-any-return]
        sites = sorted({site for source in self.sources.values() for site in source.sites} | set(self.seen))
        links = sorted({(event.site, event.to, 0.0, 0.0) for _, _, event in self.events_of(LinkCounts)})
        streams = {key[2]: key[1] for key in self.series if key[0] == "rows"}
        return TopologyInForce(tuple(sites), tuple(links), streams)

    @property
    def query_names(self) -> list[str]:
        """Queries that were ever in force."""
        found = dict.fromkeys(query for _, _, event in self.events_of(RunStarted) for query in event.queries)
        found |= dict.fromkeys(event.query for _, _, event in self.events_of(PlanInForce))
        return list(found)

    def total(self, *key: str) -> float:
        """What was counted of something."""
        series = self.series.get(key)
        return 0.0 if series is None else series.total

    def since(self, at: float, *key: str) -> float:
        """What was counted of something since a time; all of it where that is before the first event."""
        series = self.series.get(key)
        if series is None:
            return 0.0
        return series.total if at <= self.first_at + 1 else series.between(at, max(self.last_at, at) + 1)

    def stream_seconds(self, since: float) -> float:
        """How far streams have come in their own time since a time: the median of their watermarks."""
        series = [self.series[key] for key in self.keys("watermark")]
        advances = [one.total - first for one in series if (first := one.level(since)) is not None]
        return median(advances) if advances else 0.0

    def totals(self, name: str, **places: str) -> float:
        """The same over everything of a kind; `places` are like `at1="ams"`: the label at place 1 must be that."""
        wanted = {int(place.removeprefix("at")): label for place, label in places.items()}
        return sum(
            series.total
            for key, series in self.series.items()
            if key[0] == name and all(key[place] == label for place, label in wanted.items())
        )

    def rate(self, now: float, keys: Iterable[Key]) -> float:
        """Counts a second of late; of a run that has ended, over all its time."""
        if not self.is_live:
            return sum(self.series[key].total for key in keys) / max(1.0, self.last_at - self.first_at)
        return sum(self.series[key].rate(now, _RATE_S) for key in keys)

    def keys(self, name: str) -> list[Key]:
        """The figures of a kind."""
        return [key for key in self.series if key[0] == name]

    # -- states

    @property
    def is_live(self) -> bool:
        """Whether anything may still come."""
        return any(source.ended is None for source in self.sources.values())

    def source_of(self, site: str) -> EventSource | None:
        """The process that runs a site now, or ran it last."""
        found = [source for source in self.sources.values() if site in source.sites]
        return max(found, key=lambda source: source.started_at, default=None)

    def site_state(self, site: str, now: float) -> tuple[str, str]:
        """How a site is, and why: running, slow, silent, ended or not seen."""
        source = self.source_of(site)
        if source is None:
            return "not seen", "no event of this site has come"
        if source.ended is not None:
            return ("failed" if source.ended.reason == "failed" else "ended"), f"run {source.ended.reason}"
        has_signs = any(event.site == site for _, _, event in self.events_of(SiteStatus))
        age, patience_s = now - self.seen.get(site, 0.0), self.silent_after_s
        if any(event_source is source and name.startswith(ELSEWHERE) for name, event_source in self.sources.items()):
            patience_s += ELSEWHERE_S
        if has_signs and age > patience_s:
            return "silent", f"no sign of life for {duration_text(age)}"
        status = self.latest(SiteStatus, site)
        if status is not None and status.is_held_back:
            return "slow", "new rows wait: others have not taken what was sent"
        for (origin, to), since in self.waits_since.items():
            if to == site and self.is_stuck(origin, to):
                return "slow", f"what {origin} sent waits for {duration_text(self.seen[origin] - since)}"
        return "running", ""

    def is_stuck(self, origin: str, to: str) -> bool:
        """Whether something has waited long for being taken at the end of a link."""
        since = self.waits_since.get((origin, to))
        return since is not None and self.seen.get(origin, 0.0) - since > SLOW_AFTER_S

    # -- history

    def history(
        self, start: float, end: float, points: int = 300, kinds: frozenset[str] | None = None
    ) -> dict[str, Any]:
        """Charts' figures over a time: the grid, and by kind (all, or some) a list of labels and values."""
        grid = grid_over(start, end, max(self.last_at, end), points)
        found: dict[str, list[dict[str, Any]]] = {}
        for key, series in sorted(self.series.items()):
            name = key[0]
            if name in ("delay", "flow", "watermark") or (kinds is not None and name not in kinds):
                continue
            found.setdefault(name, []).append({"labels": key[1:], "values": _rounded(series.points(grid))})
        delays = self.keys("delay") if kinds is None or "delay" in kinds else []
        for query in sorted({key[1] for key in delays}):
            bins = {int(key[2]): self.series[key].points(grid) for key in delays if key[1] == query}
            for share, name in ((0.5, "median"), (0.99, "99 %")):
                values = [_quantile({n: bins[n][i] or 0.0 for n in bins}, share) for i in range(grid.count)]
                found.setdefault("delay", []).append({"labels": [query, name], "values": _rounded(values)})
        return {"start": grid.start, "step": grid.step, "count": grid.count, "series": found}

    def delays(self, query: str) -> tuple[float | None, float | None]:
        """Median and 99th percentile of a query's delays, over all its answers."""
        bins = {int(key[2]): self.series[key].total for key in self.keys("delay") if key[1] == query}
        return _quantile(bins, 0.5), _quantile(bins, 0.99)

    def effect(self, note: Note) -> dict[str, float] | None:
        """Bytes a second over all links before and after a plan came into force, over a minute at most."""
        if note.version is None or note.version < 2:
            return None
        marks = [one.at for one in self.notes if one.version is not None and one.query == note.query]
        earlier = max((at for at in marks if at < note.at), default=self.first_at)
        later = min((at for at in marks if at > note.at), default=self.last_at)
        start, end = max(note.at - _EFFECT_S, earlier), min(note.at + _EFFECT_S, later)
        if note.at - start < 1 or end - note.at < 1:
            return None
        keys = self.keys("link")
        before = sum(self.series[key].between(start, note.at) for key in keys) / (note.at - start)
        after = sum(self.series[key].between(note.at, end) for key in keys) / (end - note.at)
        return {"before": before, "after": after}


def kind_of_series(key: Key) -> Kind:
    """Whether the figures of a key are levels or counts."""
    return "last" if key[0] in _LEVELS else "sum"


def duration_text(seconds: float) -> str:
    """A time for people.

    >>> duration_text(75), duration_text(7300), duration_text(4.2)
    ('1 min 15 s', '2 h 1 min', '4 s')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def _quantile(bins: Mapping[int, float], share: float) -> float | None:
    """The delay below which a share of all is, by how many are in each bin."""
    left = share * sum(bins.values())
    if left <= 0:
        return None
    for place in sorted(bins):
        left -= bins[place]
        if left <= 1e-9:
            return float(10.0 ** (place / _BINS))
    return None


def _rounded(values: list[float | None]) -> list[float | None]:
    """Figures with as many digits as a chart can show."""
    return [value if value is None or value == 0 else float(f"{value:.5g}") for value in values]
