"""Deciding on plans where every site runs by itself: what a site observes, and what sites tell each other about it.

The first site that is up decides. A site whose figures have moved says so (`FiguresWanted`); whoever decides asks all
sites (`Look`), which answer with their figures (`FiguresReply`), and decides when it has them. So averages and sketches
stay where they are made, and nothing is sent while nothing changes. A site that takes no messages for a while is passed
over: the next one decides, by the plans in force, which its ledger has, and by what sites report from then on. Nothing
here is needed to recover: what is lost in a crash is asked for again, and how sites go over to a plan is agreed on
elsewhere.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias, assert_never

from watersmeet.adapt.controller import HOLD_STEPS, GoOver
from watersmeet.adapt.decisions import Decisions
from watersmeet.adapt.reports import Heard, ObservedFigures, Report, figures_of_site, pack_figures, unpack_figures
from watersmeet.metrics.events import Event
from watersmeet.plan.nodes import JoinPlan

SILENT_TRIGGERS = 20  # that a site may take no messages before it is passed over
LEAST_SILENT_S = 10.0
_ANSWER_TRIGGERS = 10  # for which figures are awaited
_LEAST_ANSWER_S = 5.0
_OUTCOME_TRIGGERS = 100  # after which a change that was asked for and that nobody hears of is given up


@dataclass(frozen=True, slots=True)
class FiguresWanted:
    """A site's figures have moved: costs are to be computed again."""


@dataclass(frozen=True, slots=True)
class Look:
    """Whoever decides asks for figures; by the token a site knows whether that one has its values already."""

    number: int
    token: str


@dataclass(frozen=True, slots=True)
class FiguresReply:
    """The figures of a site."""

    number: int
    figures: ObservedFigures


Message: TypeAlias = FiguresWanted | Look | FiguresReply


def pack_message(message: Message) -> str:
    """A message as text.

    >>> unpack_message(pack_message(Look(3, "x")))
    Look(number=3, token='x')
    """
    match message:
        case FiguresWanted():
            return json.dumps(["wanted"])
        case Look(number, token):
            return json.dumps(["look", number, token])
        case FiguresReply(number, figures):
            return json.dumps(["reply", number, pack_figures(figures)])
        case _:
            assert_never(message)


def unpack_message(text: str) -> Message:
    """A message as it came; ValueError where it is none."""
    match json.loads(text):
        case ["wanted"]:
            return FiguresWanted()
        case ["look", int(number), str(token)]:
            return Look(number, token)
        case ["reply", int(number), str(packed)]:
            return FiguresReply(number, unpack_figures(packed))
        case _:
            raise ValueError("not a message about what sites observe")


@dataclass(frozen=True, slots=True)
class InForce:
    """What a site knows of plans: those in force, how many changes there have been, and whether one is under way."""

    joins: Mapping[str, JoinPlan]
    changes: int = 0
    is_settled: bool = True


@dataclass(frozen=True)
class Exchanged:
    """Messages for other sites, plans to go over to, and what was decided and why."""

    messages: tuple[tuple[str, Message], ...] = ()
    changes: tuple[GoOver, ...] = ()
    events: tuple[Event, ...] = ()


@dataclass(frozen=True)
class _Gathering:
    """A look at costs that waits for the figures of sites."""

    number: int
    missing: frozenset[str]
    until_s: float  # by the clock


@dataclass
class SiteDecisions:
    """One site's part in deciding: what it observes, what it was asked, and, if it decides, what others reported.

    Event times are in microseconds; `clock_s` is any clock that goes on while no rows come.
    """

    site: str
    own: Decisions  # the controller, and what this site observes
    token: str  # of this start of the site
    heard: Heard = field(default_factory=Heard)
    _is_deciding: bool = False
    _number: int = 0
    _gathering: _Gathering | None = None
    _looked_us: int | None = None  # when costs were last to be computed
    _wanted: bool = False  # whether some site's figures have moved
    _asked_for: tuple[int, float] | None = None  # the changes known when one was asked for, and when to give it up
    _paused_s: float = 0.0  # until when nothing is asked, since a site did not answer
    _again: set[str] = field(default_factory=set)  # sites that are to be asked once more
    _changes: int = -1  # whose outcome is known
    _looks: dict[str, Look] = field(default_factory=dict)  # to be answered, by who asks
    _known: dict[str, tuple[str, dict[str, Report]]] = field(default_factory=dict)  # what who asks has, and its token
    _figures: Mapping[str, float] = field(default_factory=dict)  # those that were reported last
    _informed: str = ""  # who knows that they have moved
    _held_us: int | None = None  # since when figures have been moving

    @property
    def sites(self) -> tuple[str, ...]:
        return self.own.controller.topology.site_names

    @property
    def trigger_s(self) -> float:
        return self.own.trigger_us / 1e6

    @property
    def _patience_s(self) -> float:
        return max(_ANSWER_TRIGGERS * self.trigger_s, _LEAST_ANSWER_S)

    @property
    def _homes(self) -> set[str]:
        """The sites whose streams the queries read."""
        return {home for join in self.own.joins.values() for home in join.homes}

    def hear(self, sender: str, message: Message) -> None:
        """Take what another site says."""
        match message:
            case FiguresWanted():
                self._wanted, self._paused_s = True, 0.0
                if self._gathering is not None and sender in self._gathering.missing:
                    self._again.add(sender)  # it was asked before it started, perhaps
            case Look():
                self._looks[sender] = message
            case FiguresReply(number, figures):
                self.heard = self.heard.with_figures(sender, figures)
                if self._gathering is not None and self._gathering.number == number:
                    left = self._gathering.missing - {sender}
                    self._gathering = replace(self._gathering, missing=left)
            case _:
                assert_never(message)

    def decide(self, now_us: int, clock_s: float, silent: Collection[str], in_force: InForce) -> Exchanged:
        """What to say and do now; `silent` are sites that take no messages."""
        decider = next(site for site in self.sites if site == self.site or site not in silent)
        messages: list[tuple[str, Message]] = []
        if self._is_steady(now_us):
            messages += self._answers(now_us)
            has_moved = self.own.has_moved(self._figures)
        else:
            has_moved = False
        if decider != self.site:
            self._is_deciding, self._gathering = False, None
            if (has_moved or self._wanted) and self._informed != decider:  # perhaps one that finds it silent already
                self._informed, self._wanted = decider, False
                messages.append((decider, FiguresWanted()))
            return Exchanged(tuple(messages))
        if not self._is_deciding:
            self._take_over()
        self._wanted |= has_moved
        self._follow(in_force)
        if self._gathering is not None:
            if self._missing_of(silent) and clock_s < self._gathering.until_s:
                again = [(site, Look(self._gathering.number, self.token)) for site in sorted(self._again)]
                self._again.clear()
                return Exchanged((*messages, *again))
            outcome = self._decided(now_us, clock_s, in_force)
            return replace(outcome, messages=(*messages, *outcome.messages))
        if self._is_to_look(now_us, clock_s, in_force):
            messages += self._look(now_us, clock_s, silent)
            if not self._missing_of(silent):
                outcome = self._decided(now_us, clock_s, in_force)
                return replace(outcome, messages=(*messages, *outcome.messages))
        return Exchanged(tuple(messages))

    # -- what every site does

    def _is_steady(self, now_us: int) -> bool:
        """Whether figures can be reported: not while they seem to change, but for a few triggers at most."""
        if not self.own.state.monitor.is_moving(now_us / 1e6):
            self._held_us = None
            return True
        if self._held_us is None:
            self._held_us = now_us
        return now_us - self._held_us >= HOLD_STEPS * self.own.trigger_us

    def _answers(self, now_us: int) -> list[tuple[str, Message]]:
        found: list[tuple[str, Message]] = []
        for asker, look in sorted(self._looks.items()):
            token, known = self._known.get(asker, ("", {}))
            figures, reports = self._own_figures(known if token == look.token else {}, now_us)
            self._known[asker] = (look.token, reports)
            found.append((asker, FiguresReply(look.number, figures)))
        if found:
            self._looks.clear()
            self._figures, self._informed = self.own.figures, ""
        return found

    def _own_figures(self, known: Mapping[str, Report], now_us: int) -> tuple[ObservedFigures, dict[str, Report]]:
        return figures_of_site(self.own.state.monitor, known, self.own.controller.topology, now_us / 1e6)

    # -- what the one does that decides

    def _take_over(self) -> None:
        """Decide from now on, by the plans in force and what sites report from then on."""
        self._is_deciding, self.heard, self._changes = True, Heard(), -1
        self._looked_us, self._asked_for, self._wanted, self._paused_s = None, None, False, 0.0
        self.token += "+"  # what was reported to this site before counts no more
        self.own.begin_anew()

    def _follow(self, in_force: InForce) -> None:
        """Go on from the plans in force, when what was asked for is, or was called off."""
        if self._asked_for is not None and in_force.changes > self._asked_for[0]:
            self._asked_for = None
        if in_force.is_settled and in_force.changes != self._changes:
            self._changes = in_force.changes
            for query, join in in_force.joins.items():
                self.own.go_on_with(query, join)

    def _is_to_look(self, now_us: int, clock_s: float, in_force: InForce) -> bool:
        if self._looked_us is not None and now_us - self._looked_us < self.own.trigger_us:
            return False
        awaits_outcome = self._asked_for is not None and clock_s < self._asked_for[1]
        if not in_force.is_settled or awaits_outcome or clock_s < self._paused_s:
            return False
        return self._wanted or self.own.controller.is_due(self.own.state, now_us / 1e6)

    def _missing_of(self, silent: Collection[str]) -> frozenset[str]:
        return frozenset() if self._gathering is None else self._gathering.missing - set(silent)

    def _look(self, now_us: int, clock_s: float, silent: Collection[str]) -> list[tuple[str, Message]]:
        self._number, self._looked_us, self._wanted = self._number + 1, now_us, False
        asked = [site for site in self.sites if site != self.site and site not in silent]
        self._gathering = _Gathering(self._number, frozenset(asked), clock_s + self._patience_s)
        return [(site, Look(self._number, self.token)) for site in asked]

    def _decided(self, now_us: int, clock_s: float, in_force: InForce) -> Exchanged:
        self._gathering = None
        self._again.clear()
        token, known = self._known.get(self.site, ("", {}))
        figures, reports = self._own_figures(known if token == self.token else {}, now_us)
        self._known[self.site] = (self.token, reports)
        self.heard = self.heard.with_figures(self.site, figures)
        self._figures = self.own.figures
        if not self._homes <= self.heard.links.keys():  # some site has said nothing yet: no change could be agreed on
            self._wanted, self._paused_s = True, clock_s + self._patience_s
            return Exchanged()
        changes, events = self.own.decide_for(self.heard, now_us)
        if changes:
            self._asked_for = (in_force.changes, clock_s + _OUTCOME_TRIGGERS * self.trigger_s)
        return Exchanged((), changes, events)
