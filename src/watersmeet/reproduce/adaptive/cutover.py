"""Going over to another plan (adaptive paper, 4.3), by the sites' own programs: delays, bytes, how long it takes.

Three streams at three sites are joined at the first of these, and from an instant on at the second. Rows come at a
steady pace, so what changes is the place of the join alone. Four ways to go over are run over the same rows:

- not at all: the plan stays, for comparison;
- event time: ours; heads split at an agreed instant, and rows of windows that heads from then on reach are moved;
- filling: the same without moving rows, so that the instant is a window later and both plans run until then;
- pausing: new rows wait until every site has gone over and all that has moved has come.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from statistics import fmean

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.plan.nodes import Plan, join_plan_of, with_join
from watersmeet.planners.local import symmetric
from watersmeet.planners.sited import central
from watersmeet.program.operators import Purpose
from watersmeet.program.site.changes import Change, QueryPlan
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.query.sql import parse_query
from watersmeet.reproduce import plots
from watersmeet.reproduce.adaptive.runs import QUICK_RUNS, column, spread
from watersmeet.reproduce.experiment import Experiment, Row, finding
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.site import SimulatedSite

SECOND_US = 1_000_000
WAYS = ("not at all", "event time", "filling", "pausing")
HOMES = {"a": "n1", "b": "n2", "c": "n3"}
ASKED_AT = "n0"
RUNS = 5
FIGURES = ("delay ms", "longest ms", "kB", "moved kB", "done s", "answers")


@dataclass(frozen=True, slots=True)
class CutoverSettings:
    """The rows, the network and the change."""

    way: str
    window_s: int = 10
    rate: int = 100  # rows a second of each stream
    keys: int = 1_000
    payload_bytes: int = 50  # random, so that it does not shrink on links
    latency_us: int = 5_000
    bandwidth_bps: float = 1_024_000
    trigger_us: int = 100_000
    changed_s: int = 15
    end_s: int = 35


@dataclass(frozen=True, slots=True)
class Point:
    """One run, and its draw."""

    settings: CutoverSettings
    draw: int


def _points(quick: bool) -> tuple[Point, ...]:
    some = {"rate": 20, "window_s": 2, "changed_s": 3, "end_s": 7, "keys": 50} if quick else {}
    return tuple(
        Point(CutoverSettings(way, **some), draw) for way in WAYS for draw in range(QUICK_RUNS if quick else RUNS)
    )


def draw_tables(settings: CutoverSettings, seed: int) -> dict[str, pa.Table]:
    """The rows of all streams, evenly spaced; keys and payloads are random."""
    random = np.random.default_rng(seed)
    rows = settings.rate * settings.end_s
    ts = pa.array(np.arange(rows) * SECOND_US // settings.rate, pa.int64()).cast(pa.timestamp("us", "UTC"))
    found = {}
    for name in HOMES:
        keys = random.integers(0, settings.keys, rows)
        payload = pa.array([random.bytes(settings.payload_bytes) for _ in range(rows)], pa.binary())
        found[name] = pa.table({"k": keys, "v": payload, "ts": ts})
    return found


def plan_at(settings: CutoverSettings, tables: Mapping[str, pa.Table], site: str) -> Plan:
    """All streams are joined at a site."""
    window = f"[RANGE {settings.window_s} SECONDS]"
    sql = "SELECT a.k, a.ts AS a, b.ts AS b, c.ts AS c, a.v AS av, b.v AS bv, c.v AS cv "
    sql += f"FROM a {window}, b {window}, c {window} WHERE a.k = b.k AND b.k = c.k"
    columns = {name: table.schema.names for name, table in tables.items()}
    query = typed(parse_query(sql, columns), {name: table.schema for name, table in tables.items()})
    plan = central(query, columns, HOMES, ASKED_AT)
    join = join_plan_of(plan)
    return with_join(plan, replace(join, sub_plans=(symmetric(query.aliases, join.classes, site),)))


@dataclass
class Watched:
    """What is seen of a run: when the answers of each second's heads came, and what was shipped by then."""

    delays_us: dict[int, list[int]] = field(default_factory=dict)  # by second of the head
    bytes_at: dict[int, int] = field(default_factory=dict)  # by second
    done_us: int | None = None  # when all sites had gone over, and only the new plan ran
    answers: int = 0
    _seen: set[int] = field(default_factory=set)

    def take(self, site: SimulatedSite, before: SiteLedger) -> None:
        """Look at the answers that a micro-batch has given."""
        del before
        now_us = site.kernel.now_us
        for number, table in site.answers.get("q", {}).items():
            if number in self._seen or not table.num_rows:
                continue
            self._seen.add(number)
            heads = pc.max_element_wise(*(table.column(name).cast(pa.int64()) for name in HOMES)).to_numpy()
            self.answers += table.num_rows
            for head_us in np.unique(heads).tolist():
                self.delays_us.setdefault(head_us // SECOND_US, []).append(now_us - head_us)


def watch(settings: CutoverSettings, seed: int) -> tuple[Watched, SimulatedSites]:
    """Run one way to go over."""
    tables, watched = draw_tables(settings, seed), Watched()
    sites = SimulatedSites(
        plan_at(settings, tables, "n1"),
        dict.fromkeys(HOMES, "ts"),
        seed=seed,
        model_of=lambda *_: LinkModel(latency_us=settings.latency_us, bandwidth_bps=settings.bandwidth_bps),
        interval_us=settings.trigger_us,
        aligned=True,
        completed=watched.take,
        changes=True,
        history=settings.way != "filling",
        slack_us=0 if settings.way == "pausing" else 3 * settings.trigger_us,
    )
    gate = _Gate(sites, settings.way == "pausing")
    step = settings.rate * settings.trigger_us // SECOND_US
    for number in range(0, settings.rate * settings.end_s, step):
        end_us = (number + step) * SECOND_US // settings.rate
        sites.kernel.at(end_us - 1, gate.offer, {name: table.slice(number, step) for name, table in tables.items()})
    if settings.way != "not at all":
        change = Change((QueryPlan("q", plan_at(settings, tables, "n2")),))
        sites.kernel.at(settings.changed_s * SECOND_US, gate.close)
        sites.change(settings.changed_s * SECOND_US, change)
    for second in range(settings.end_s + 1):
        sites.kernel.at(second * SECOND_US, lambda at=second: watched.bytes_at.update({at: sites.bytes_shipped}))
    for ms in count(settings.changed_s * 1_000, 50):
        if ms > settings.end_s * 1_000:
            break
        sites.kernel.at(ms * 1_000, _look, sites, watched)
    sites.run()
    return watched, sites


def _look(sites: SimulatedSites, watched: Watched) -> None:
    if watched.done_us is None and _is_over(sites):
        watched.done_us = sites.kernel.now_us


def _is_over(sites: SimulatedSites) -> bool:
    """Whether all sites have gone over and nothing of the plan before runs any more."""
    programs = [site.engine.program for site in sites.sites.values()]
    return all(program.revision == 2 and all(part.is_in_force for part in program.parts) for program in programs)


@dataclass
class _Gate:
    """Rows that come while sites go over wait here, where a run pauses."""

    sites: SimulatedSites
    pauses: bool
    is_open: bool = True
    waiting: list[Mapping[str, pa.Table]] = field(default_factory=list)

    def offer(self, rows: Mapping[str, pa.Table]) -> None:
        if self.is_open:
            self.sites.feed(self.sites.kernel.now_us, rows)
        else:
            self.waiting.append(rows)

    def close(self) -> None:
        if self.pauses:
            self.is_open = False
            self._try_to_open()

    def _try_to_open(self) -> None:
        ledgers = {name: site.ledger for name, site in self.sites.sites.items()}
        has_come = all(
            ledgers[to].received.get(name, 0) == link.number
            for name, ledger in ledgers.items()
            for to, link in ledger.links.items()
        )
        if has_come and all(site.engine.program.revision == 2 for site in self.sites.sites.values()):
            self.is_open = True
            for rows in self.waiting:
                self.offer(rows)
        else:
            self.sites.kernel.after(10_000, self._try_to_open)


def _run(point: Point) -> list[Row]:
    watched, sites = watch(point.settings, point.draw)
    settings = point.settings
    moved = sum(by[Purpose.MIGRATION].bytes for by in sites.traffic.values() if Purpose.MIGRATION in by)
    assert settings.way == "not at all" or watched.done_us is not None, "the run is long enough"
    done_s = 0.0 if watched.done_us is None else watched.done_us / SECOND_US - settings.changed_s
    return [
        {
            "way": settings.way,
            "second": second - settings.changed_s,
            "draw": point.draw,
            "delay ms": fmean(delays) / 1e3,
            "longest ms": max(delays) / 1e3,
            "kB": (watched.bytes_at[second + 1] - watched.bytes_at[second]) / 1e3,
            "moved kB": moved / 1e3,
            "done s": done_s,
            "answers": watched.answers,
        }
        for second, delays in sorted(watched.delays_us.items())
        if second < settings.end_s
    ]


def _plot(rows: Sequence[Row], path: Path) -> None:
    figure, axes = plots.new_figure(1, 2, (8.4, 2.8))
    labels = ("longest delay of answers (ms)", "kB a second on all links")
    for name, label, axis in zip(("longest ms", "kB"), labels, axes.flat, strict=True):
        for way in dict.fromkeys(row["way"] for row in rows):
            seconds = sorted({row["second"] for row in rows if row["way"] == way})
            means = [fmean(column(rows, name, way=way, second=second)) for second in seconds]
            axis.plot(seconds, means, "o-", ms=2, lw=1, label=way)
        axis.set(xlabel="second of the head, after the change was asked for", ylabel=label)
        plots.show_grid(axis)
        plots.start_at_zero(axis)
    plots.legend_below(axes.flat[0])
    plots.save(figure, path)


def _longest(rows: Sequence[Row], way: str, *, after: bool) -> list[float]:
    """The longest delay of each draw, of heads after the change was asked for or before."""
    draws = sorted({row["draw"] for row in rows})
    own = [row for row in rows if row["way"] == way and (row["second"] >= 0) == after and row["second"] > -3]
    return [max(row["longest ms"] for row in own if row["draw"] == draw) for draw in draws]


def _verdict(rows: Sequence[Row]) -> list[str]:
    after = {way: _longest(rows, way, after=True) for way in WAYS}
    before = _longest(rows, "event time", after=False)
    moved = {way: column(rows, "moved kB", way=way) for way in WAYS}
    done = {way: column(rows, "done s", way=way) for way in WAYS[1:]}
    draws = len({row["draw"] for row in rows})
    shipped = {way: sum(column(rows, "kB", way=way)) / draws for way in WAYS}
    said = "; ".join(f"{way}: {spread(values)}" for way, values in after.items())
    answers = {(row["draw"], row["answers"]) for row in rows}
    return [
        finding(
            len(answers) == draws,
            f"nothing is lost or doubled: all ways give {fmean(count for _, count in answers):.0f} answers",
        ),
        finding(
            fmean(after["event time"]) < fmean(after["pausing"]),
            f"no pause: the longest delay of an answer is shorter than with a pause (ms, of heads after the change was "
            f"asked for; {said}; before it {spread(before)})",
        ),
        finding(
            fmean(after["filling"]) < 1.5 * fmean(after["not at all"]),
            "who lets windows fill delays nothing",
        ),
        finding(
            fmean(done["event time"]) < fmean(done["filling"]),
            "copied windows make the new plan take over sooner (s until nothing of the old one runs; "
            + "; ".join(f"{way}: {spread(values)}" for way, values in done.items())
            + ")",
        ),
        finding(
            shipped["event time"] < shipped["filling"],
            "and ship less than both plans side by side (kB in the whole run; "
            + "; ".join(f"{way}: {total:.0f}, {fmean(moved[way]):.0f} of it moved" for way, total in shipped.items())
            + ")",
        ),
    ]


EXPERIMENT = Experiment(
    name="adaptive-cutover",
    title="delay of answers and bytes while a join moves from one site to another",
    paper="adaptive, section 4.3 (not measured there)",
    keys=("way", "second"),
    figures=FIGURES,
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=(
        "nothing: the text says that old and new plan run together so that there is no pause, and that windows are "
        "copied so that the new one need not wait for them to fill; it gives no delays",
    ),
    notes=(
        "Not the paper's prototype but the sites' own programs, in the simulator, a micro-batch every 100 ms. Three "
        "streams of 100 rows/s, RANGE windows of 10 s, 50 random bytes a row, 1,000 keys; 5 ms and 1024 kbps between "
        "any two of four sites, as in the paper; five draws. The join moves from the home of a to that of b, "
        "answers go to a fourth site.",
    ),
    unit="by second of the head, after the change was asked for",
)
