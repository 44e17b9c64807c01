"""Sites that run by themselves decide together as one that sees everything, whatever is late, lost or begun anew."""

import base64
import json
import math
import random
import tracemalloc
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from adapt.test_controller import of_rates

from watersmeet.adapt.controller import Controller, GoOver, adaptive_query
from watersmeet.adapt.decide import Mode
from watersmeet.adapt.decisions import HALF_LIFE_TRIGGERS, Decisions
from watersmeet.adapt.exchange import (
    FiguresReply,
    FiguresWanted,
    InForce,
    Look,
    Message,
    SiteDecisions,
    pack_message,
    unpack_message,
)
from watersmeet.adapt.monitor import MonitorState, StreamObserved, TransferObserved, observe
from watersmeet.adapt.reports import Heard, ObservedFigures, figures_of_site, pack_figures, unpack_figures
from watersmeet.plan.nodes import JoinPlan
from watersmeet.stats.model import Number, Stats, StreamStats
from watersmeet.stats.sketches import StreamSketch
from watersmeet.topology.model import Adapt, Query

HALF_LIFE_S = 5.0
TRIGGER_US = int(HALF_LIFE_S / HALF_LIFE_TRIGGERS * 1e6)
STEP_S = 0.5


def controller_for(mode: Mode, *rates: float) -> Controller:
    of = of_rates(*rates)
    query = Query("q", of.sql, site="n0", assume_defaults=True, planner="greedy" if mode == "planner" else None)
    watched = adaptive_query(query, of.query, Adapt(mode, min_interval="20 seconds"), HALF_LIFE_S)
    assert watched is not None
    return Controller(of.topology, (watched,), HALF_LIFE_S)


@dataclass
class Network:
    """Sites that tell each other of what they observe; a plan is in force some time after it is asked for."""

    mode: Mode
    first: tuple[float, ...]
    seed: int = 0
    late: int = 0  # steps that a message may take
    agree: int = 4  # steps until a change is in force
    now_s: float = 0.0
    joins: dict[str, JoinPlan] = field(default_factory=dict)
    changes: list[tuple[float, str, GoOver]] = field(default_factory=list)
    said: list[tuple[str, str, Message]] = field(default_factory=list)
    down: set[str] = field(default_factory=set)
    _under_way: list[tuple[float, str, str, str]] = field(default_factory=list)
    _asked: list[tuple[float, GoOver]] = field(default_factory=list)
    _log: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.rows = np.random.default_rng(self.seed)
        self.controller = controller_for(self.mode, *self.first)
        self.names = self.controller.topology.site_names
        self.sites = {name: self.begun(name) for name in self.names}
        self.joins = dict(self.sites["n0"].own.joins)

    def begun(self, name: str) -> SiteDecisions:
        """A site as it starts: it knows the topology, and soon the plans in force."""
        own = Decisions(self.controller, self.controller.start(0.0), TRIGGER_US)
        return SiteDecisions(name, own, f"{name}-{self.random.random()}")

    def see(self, *rates: float, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            for number, name in enumerate(self.names):
                if name not in self.down:
                    count = int(self.rows.poisson(rates[number] * STEP_S))
                    stream = self.controller.topology.streams[number].name
                    self.sites[name].own.ingested(stream, count, STEP_S, self._now_us)
            for _ in range(3):  # messages are faster than triggers
                self._deliver()
                for name in self.names:
                    if name not in self.down:
                        self._decide(name)
            due = [change for at_s, change in self._asked if at_s <= self.now_s and not self.down]
            for change in due:
                self.joins[change.query] = change.join
                self._log += 1
            self._asked = [one for one in self._asked if one[1] not in due]

    @property
    def _now_us(self) -> int:
        return int(self.now_s * 1e6)

    def _silent(self) -> Collection[str]:
        return frozenset(self.down)

    def _deliver(self) -> None:
        due = [one for one in self._under_way if one[0] <= self.now_s and one[2] not in self.down]
        self._under_way = [one for one in self._under_way if one not in due]
        for _, sender, to, text in due:
            self.sites[to].hear(sender, unpack_message(text))

    def _decide(self, name: str) -> None:
        in_force = InForce(self.joins, self._log, not self._asked)
        outcome = self.sites[name].decide(self._now_us, self.now_s, self._silent(), in_force)
        for to, message in outcome.messages:
            self.said.append((name, to, message))
            at_s = self.now_s + STEP_S * self.random.randint(0, self.late)
            self._under_way.append((at_s, name, to, pack_message(message)))
        for change in outcome.changes:
            self.changes.append((self.now_s, name, change))
            self._asked.append((self.now_s + self.agree * STEP_S, change))

    def replies(self, since: int = 0) -> list[FiguresReply]:
        return [message for _, _, message in self.said[since:] if isinstance(message, FiguresReply)]


@pytest.mark.parametrize("mode", ["cnu", "dnu", "planner"])
@pytest.mark.parametrize("late", [0, 5])
def test_sites_decide_as_one_that_sees_everything(mode: Mode, late: int) -> None:
    net = Network(mode, (10, 100, 20), seed=late, late=late)
    net.see(10, 100, 20, seconds=60)
    assert net.changes == [] and net.replies()
    before = len(net.said)
    net.see(10, 100, 20, seconds=60)
    quiet = len(net.said) - before
    assert quiet <= 30, "hardly anything is said while nothing changes"
    net.see(10, 100, 600, seconds=60)
    assert net.changes and net.changes[-1][0] < 160 and {site for _, site, _ in net.changes} == {"n0"}
    assert ("n2", "n0", FiguresWanted()) in net.said[before + quiet :]
    whole = Decisions(net.controller, net.controller.start(0.0), TRIGGER_US)
    for step in range(240):
        for name, rate in zip(("a", "b", "c"), (10, 100, 20 if step < 120 else 600), strict=True):
            stream = net.controller.topology.streams["abc".index(name)].name
            whole.ingested(stream, int(rate * STEP_S), STEP_S, int((step + 1) * STEP_S * 1e6))
        whole.decide(int((step + 1) * STEP_S * 1e6))
    assert net.joins == whole.joins
    count = len(net.changes)
    net.see(10, 100, 600, seconds=90)
    assert len(net.changes) == count, "nothing more while figures stay"


def test_another_site_decides_while_the_first_is_silent() -> None:
    net = Network("cnu", (10, 100, 20))
    net.see(10, 100, 20, seconds=60)
    net.down.add("n0")
    net.see(10, 100, 600, seconds=40)
    looks = {(site, to) for site, to, message in net.said if isinstance(message, Look)}
    assert ("n1", "n2") in looks
    assert net.changes == [], "nothing is known of the stream of a site that is away, and it could not agree"
    net.down.clear()
    net.sites["n0"] = net.begun("n0")  # without what it knew
    net.see(10, 100, 600, seconds=60)
    assert net.changes and net.changes[-1][1] == "n0"
    assert net.joins["q"] == net.changes[-1][2].join


def test_whoever_was_away_does_not_undo_what_another_site_has_decided() -> None:
    net = Network("planner", (10, 100, 20))
    net.see(10, 100, 20, seconds=30)
    net.sites["n0"]._is_deciding = False
    real = Network._silent
    Network._silent = lambda self: frozenset({"n0"})  # type: ignore[method-assign]  # its link is away: it still hears
    try:
        net.see(10, 100, 600, seconds=60)
    finally:
        Network._silent = real  # type: ignore[method-assign]
    assert net.changes
    count = len(net.changes)
    net.see(10, 100, 600, seconds=90)
    assert len({change.join for _, _, change in net.changes[-1:]} | {net.joins["q"]}) == 1
    assert len(net.changes) <= count + 1


def test_a_message_that_is_lost_is_asked_for_again() -> None:
    net = Network("cnu", (10, 100, 20))
    net.see(10, 100, 20, seconds=60)
    decide = net._decide
    lost: list[tuple[float, str, str, str]] = []

    def losing(name: str) -> None:
        decide(name)
        if len(lost) < 6 and net._under_way:
            lost.append(net._under_way.pop())

    net._decide = losing  # type: ignore[method-assign]
    net.see(10, 100, 600, seconds=120)
    assert len(lost) == 6 and net.changes


def sketched(keys: np.ndarray) -> StreamSketch:
    found = StreamSketch()
    found.count(np.arange(len(keys)) * 1_000)
    found.add(pa.table({"k": keys}))
    found.measure(pa.table({"k": keys}))
    found.passed("k > 3", 40, 100)
    return found


def test_figures_travel_with_values_once() -> None:
    topology = controller_for("planner", 10, 20, 30).topology
    stream, keys = topology.streams[0].name, np.random.default_rng(3).integers(-50, 450, 3_000)
    monitor = observe(MonitorState(HALF_LIFE_S), StreamObserved(stream, 3_000, 10.0, sketched(keys)), 10.0)
    for size in (100, 2_000) * 4:
        monitor = observe(monitor, TransferObserved(("n0", "n2"), size, 3.0 + 8 * size / 1e4), 10.0)
    figures, known = figures_of_site(monitor, {}, topology, 10.0)
    text = pack_figures(figures)
    found = unpack_figures(text)
    assert found.shares == figures.shares and found.links == figures.links != ()
    (column,) = found.streams[stream].columns.values()
    (meant,) = figures.streams[stream].columns.values()
    assert column.histogram is not None and meant.histogram is not None and len(meant.histogram.bins) > 100
    for one, other in zip(column.histogram.bins, meant.histogram.bins, strict=True):
        assert (one.low, one.high) == (other.low, other.high)
        assert one.share == pytest.approx(other.share, abs=1e-6)
    assert found.streams[stream].busy == figures.streams[stream].busy
    assert (column.sizes, column.distinct) == (meant.sizes, meant.distinct)
    assert len(text) < 8 * len(meant.histogram.bins)
    again, _ = figures_of_site(monitor, known, topology, 10.0)
    assert len(pack_figures(again)) < 400
    heard = Heard().with_figures("n0", found).with_figures("n0", unpack_figures(pack_figures(again)))
    assert heard.stats(Stats()).stream(stream) == found.streams[stream]
    link = heard.topology(topology).link("n0", "n2")
    assert link.latency_us > 2_000_000


@pytest.mark.parametrize("text", ["", "[1]", '["reply",1,"zz"]', '["look","a","b"]', "{}"])
def test_damaged_messages_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack_message(text)


def reported(change: Callable[[dict[str, Any]], object], tail: bytes = b"") -> str:
    """A report that says something else than any site does."""
    figures = ObservedFigures(
        3.0, {"s": StreamStats(rate=Number(2.0))}, {"k > 3": Number(0.5)}, (("a", "b", 0.1, None),)
    )
    data = zlib.decompress(base64.b85decode(pack_figures(figures)))
    head = json.loads(data[4:])
    change(head["figures"])
    text = json.dumps(head).encode()
    return base64.b85encode(zlib.compress(len(text).to_bytes(4, "little") + text + tail)).decode()


@pytest.mark.parametrize(
    "change",
    [
        lambda figures: figures.update(at_s="soon"),
        lambda figures: figures.update(at_s=math.nan),
        lambda figures: figures.update(links=[["a", "b", math.inf, None]]),
        lambda figures: figures.update(links=[["a", 5, 0.1, None]]),
        lambda figures: figures["streams"]["s"].update(busy={"1.0": "x"}),
        lambda figures: figures["streams"]["s"]["rate"].update(value=-1.0),
        lambda figures: figures["shares"].update({"k > 3": {"value": [1]}}),
    ],
)
def test_a_report_with_a_figure_that_is_none_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    assert unpack_figures(reported(lambda figures: None)).at_s == 3.0
    with pytest.raises(ValueError, match=r"^a report of a site is damaged"):
        unpack_figures(reported(change))


def test_a_short_report_asks_for_no_memory() -> None:
    bomb = reported(lambda figures: None, bytes(1 << 28))
    tracemalloc.start()
    try:
        unpack_figures(bomb)
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()
