"""How sites agree on the instant at which a change takes effect: two phases, without a pause.

One site, the first by name, proposes changes one after the other. A site that is asked is *local-ready* when it has
promised not to ingest rows after an instant of its own before it has gone over; all sites are *global-ready* when the
promises of all are known, and the change takes effect just after the latest of those instants. Since that follows from
the promises alone, whoever knows all of them decides alike: each site for itself where promises go to everyone (point
to point), or the proposer for all of them (coordinated); if it stays away, any other site can ask for the promises.
Notes travel in the parcels of the links, so each comes once, in order, and is part of the ledger.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

from watersmeet.program.site.changes import Change
from watersmeet.program.site.deployment import Deployment
from watersmeet.program.site.nearest import Holding
from watersmeet.program.storage.codec import fits, from_json, to_json
from watersmeet.program.storage.wire import UNKNOWN
from watersmeet.query.windows import END_US, FIRST_US

_MOST_LOGGED = 100  # changes that are remembered; those before are counted
_MOST_NUMBERINGS = 8
_LATEST_US = 2 * END_US  # of a change: the end of time and what may go by while sites agree


class DecidedBy(StrEnum):
    """Who decides that all sites are ready."""

    POINT_TO_POINT = "point to point"
    COORDINATED = "coordinated"


NOTHING_HELD = Holding()


@dataclass(frozen=True)
class Ready:
    """A site's promise to ingest no row after an instant until it has gone over; or why it cannot go over."""

    number: int
    bound_us: int
    gone: tuple[str, ...] = ()  # joins that are over at the site
    refused: str = ""
    holding: Holding = NOTHING_HELD  # what it could send of the past


@dataclass(frozen=True)
class Request:
    """A change that the proposer should propose."""

    change: Change


@dataclass(frozen=True)
class Prepare:
    """A change is proposed, with the proposer's own promise."""

    number: int
    change: Change
    form: DecidedBy
    promise: Ready


@dataclass(frozen=True)
class Decided:
    """What became of a proposal: the instant at which it takes effect, or why it is called off."""

    number: int
    at_us: int
    retired: tuple[str, ...] = ()  # joins that are over at all sites
    refused: str = ""
    holdings: Mapping[str, Holding] = field(default_factory=dict)  # what each site could send of the past


@dataclass(frozen=True)
class Observed:
    """What sites tell each other of what they observe, for whoever decides on plans; no part of the agreement."""

    text: str


Note = Request | Prepare | Ready | Decided | Observed
Outgoing = list[tuple[str, Note]]
Judge = Callable[[Change], str]  # why a site cannot go over to a change; empty if it can
Bound = Callable[[Change], int]  # up to which instant a site may have rows before it goes over to a change


def accept(change: Change) -> str:
    """Nothing is wrong with a change."""
    return ""


@dataclass(frozen=True)
class Proposal:
    """A change that sites are agreeing on, or have agreed on and not all gone over to."""

    number: int
    change: Change
    proposer: str
    form: DecidedBy
    promises: Mapping[str, Ready]
    informed: tuple[str, ...] = ()  # sites that know our promise
    decision: Decided | None = None


@dataclass(frozen=True)
class Takeover:
    """What became of a change."""

    revision: int
    change: Change
    at_us: int  # from when on heads are the new versions'; of one that was called off, nothing
    refused: str = ""
    shipped: int = 0  # bytes that this site had sent in all as it went over
    migrated: int = 0  # and those among them that were rows of the past for other plans


@dataclass(frozen=True)
class Versions:
    """What a site knows of versions: part of its state, kept as one file since it seldom changes."""

    deployment: Deployment
    gone: tuple[str, ...] = ()  # joins that are over here
    numbering: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)  # of flows, by revision
    number: int = 1  # of the last proposal that was decided
    origin: str = ""  # what tells deployments that began differently apart
    form: DecidedBy = DecidedBy.POINT_TO_POINT
    proposal: Proposal | None = None
    queue: tuple[Change, ...] = ()  # at the site that proposes
    early: tuple[tuple[str, Ready], ...] = ()  # promises about a proposal that has not come yet
    log: tuple[Takeover, ...] = ()  # the last changes
    forgotten: int = 0  # changes before those
    messages: Mapping[str, int] = field(default_factory=dict)  # sent so far, by kind
    queries: Mapping[str, str] = field(default_factory=dict)  # what queries ask for, by `Finish.definition`
    streams: Mapping[str, str] = field(default_factory=dict)  # and what streams are

    def has_request(self, request: str) -> bool:
        """Whether a change that comes from a request is made, under way or queued here."""
        under_way = () if self.proposal is None else (self.proposal.change,)
        changes = (*(entry.change for entry in self.log), *under_way, *self.queue)
        return any(change.request == request for change in changes)

    @property
    def changes(self) -> int:
        """How many changes were made or called off so far."""
        return self.forgotten + len(self.log)

    def changes_after(self, count: int) -> tuple[Takeover, ...]:
        """The changes after so many, as far as they are remembered."""
        return self.log[max(0, count - self.forgotten) :]

    def with_change(self, entry: Takeover) -> "Versions":
        """The same with what became of one more change."""
        log = (*self.log, entry)
        return replace(self, log=log[-_MOST_LOGGED:], forgotten=self.changes + 1 - len(log[-_MOST_LOGGED:]))

    def with_numbering(self, revision: int, numbers: Mapping[str, tuple[str, ...]]) -> "Versions":
        """The same with the numbers of flows at a revision that is over here.

        Where promises go to everyone, all parcels of the revision before the last one have been taken once a site goes
        over: each site has promised in its own parcels, after it had gone over itself.
        """
        numbering = {**self.numbering, str(revision): numbers}
        if self.form is DecidedBy.POINT_TO_POINT:
            numbering = dict(list(numbering.items())[-_MOST_NUMBERINGS:])
        return replace(self, numbering=numbering)

    @property
    def under_way(self) -> int:
        """How many changes are asked for here and neither made nor called off yet."""
        return len(self.queue) + (self.proposal is not None)

    @property
    def is_decided(self) -> bool:
        """Whether all sites go over to a proposal, and this one has not yet."""
        return self.proposal is not None and self.proposal.decision is not None

    def hold_us(self, site: str) -> int | None:
        """Rows after this instant wait."""
        promise = None if self.proposal is None else self.proposal.promises.get(site)
        return None if promise is None else promise.bound_us

    def to_json(self) -> str:
        return to_json(self, named=True)

    @staticmethod
    def from_json(text: str) -> "Versions":
        return from_json(Versions, text)


@dataclass(frozen=True)
class _Notes:
    notes: tuple[Note, ...]


def pack_notes(notes: Sequence[Note]) -> str:
    """Notes as text."""
    return to_json(_Notes(tuple(notes)), named=True)


def unpack_notes(text: str | bytes) -> tuple[Note, ...]:
    """Notes as they came; ValueError where they are none."""
    try:
        found = from_json(_Notes, text)
        if fits(_Notes, found) and all(_is_in_range(note) for note in found.notes):
            return found.notes
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError, RecursionError):
        pass
    raise ValueError("a note about plans is damaged")


def _is_in_range(note: Note) -> bool:
    """Whether the instants of a note can be instants of changes, to which lengths of windows are added."""
    match note:
        case Ready(_, bound_us):
            return bound_us < _LATEST_US
        case Prepare(_, _, _, promise):
            return promise.bound_us < _LATEST_US
        case Decided(_, at_us):
            return FIRST_US <= at_us < _LATEST_US
        case Request() | Observed():
            return True
        case _:
            assert_never(note)


def proposer_of(deployment: Deployment) -> str:
    """The site that proposes changes."""
    return deployment.sites[0]


def step(
    versions: Versions,
    site: str,
    bound: Bound,
    notes: Iterable[tuple[str, Note]] = (),
    judge: Judge = accept,
    holding: Holding = NOTHING_HELD,
) -> tuple[Versions, Outgoing]:
    """Take notes, propose, promise and decide as far as possible; the notes for others.

    `bound` is up to which instant the site may have rows before it goes over; `judge` says why it cannot; `holding` is
    what it could send of the past.
    """
    out: Outgoing = []
    for sender, note in notes:
        versions, more = _take(versions, site, sender, note)
        out += more
    versions, more = _propose(versions, site, bound, judge, holding)
    out += more
    versions, more = _promise(versions, site, bound, judge, holding)
    out += more
    versions, more = _decide(versions, site)
    out += more
    counts = dict(versions.messages)
    for _, note in out:
        kind = type(note).__name__.lower()
        counts[kind] = counts.get(kind, 0) + 1
    versions = replace(versions, messages=counts) if out else versions
    if versions.proposal is None and versions.queue and proposer_of(versions.deployment) == site:
        versions, more = step(versions, site, bound, (), judge, holding)  # one that was called off makes room
        out += more
    return versions, out


def insist(versions: Versions, site: str) -> tuple[Versions, Outgoing]:
    """Ask all sites for their promises, since the proposer does not say what was decided."""
    proposal = versions.proposal
    if proposal is None or proposal.decision is not None or site not in proposal.promises:
        return versions, []
    others = [one for one in versions.deployment.sites if one not in (site, *proposal.informed)]
    informed = (*proposal.informed, *others)
    versions = replace(versions, proposal=replace(proposal, informed=informed))
    return versions, [(other, proposal.promises[site]) for other in others]


def _take(versions: Versions, site: str, sender: str, note: Note) -> tuple[Versions, Outgoing]:
    proposal = versions.proposal
    match note:
        case Request(change):
            proposer = proposer_of(versions.deployment)
            if site != proposer:
                return versions, [(proposer, note)]
            if change.request and versions.has_request(change.request):
                return versions, []
            return replace(versions, queue=(*versions.queue, change)), []
        case Prepare(number, change, form, promise):
            if number <= versions.number:
                return versions, []
            if proposal is not None:  # a later one of the same revision: the one before was called off
                versions = _called_off(versions, proposal, "another site could not go over")
            promises = {who: ready for who, ready in versions.early if ready.number == number}
            early = tuple(item for item in versions.early if item[1].number > number)
            made = Proposal(number, change, sender, form, {**promises, sender: promise})
            return replace(versions, proposal=made, early=early), []
        case Ready(number):
            if proposal is not None and proposal.number == number:
                known = replace(proposal, promises={**proposal.promises, sender: note})
                out: Outgoing = []
                if sender not in known.informed and site in known.promises:  # it asks, since it does not hear otherwise
                    known = replace(known, informed=(*known.informed, sender))
                    out = [(sender, known.promises[site])] if known.form is DecidedBy.COORDINATED else []
                return replace(versions, proposal=known), out
            if number > versions.number:
                return replace(versions, early=(*versions.early, (sender, note))), []
            return versions, []
        case Decided(number):
            if proposal is not None and proposal.number == number and proposal.decision is None:
                return _settled(versions, proposal, note), []
            return versions, []
        case Observed():
            return versions, []
        case _:
            assert_never(note)


def _propose(versions: Versions, site: str, bound: Bound, judge: Judge, holding: Holding) -> tuple[Versions, Outgoing]:
    if versions.proposal is not None or not versions.queue or site != proposer_of(versions.deployment):
        return versions, []
    number, change = versions.number + 1, versions.queue[0]
    promise = Ready(number, bound(change), versions.gone, judge(change), holding)
    others = tuple(one for one in versions.deployment.sites if one != site)
    proposal = Proposal(number, change, site, versions.form, {site: promise}, informed=others)
    prepare = Prepare(number, change, versions.form, promise)
    return replace(versions, proposal=proposal, queue=versions.queue[1:]), [(other, prepare) for other in others]


def _promise(versions: Versions, site: str, bound: Bound, judge: Judge, holding: Holding) -> tuple[Versions, Outgoing]:
    proposal = versions.proposal
    if proposal is None or site in proposal.promises:
        return versions, []
    promise = Ready(proposal.number, bound(proposal.change), versions.gone, judge(proposal.change), holding)
    asked = versions.deployment.sites if proposal.form is DecidedBy.POINT_TO_POINT else (proposal.proposer,)
    others = tuple(name for name in asked if name != site)
    proposal = replace(proposal, promises={**proposal.promises, site: promise}, informed=(*proposal.informed, *others))
    return replace(versions, proposal=proposal), [(other, promise) for other in others]


def _decide(versions: Versions, site: str) -> tuple[Versions, Outgoing]:
    """Once all promises are known the decision follows from them, for whoever knows them."""
    proposal = versions.proposal
    if proposal is None or proposal.decision is not None:
        return versions, []
    promises = proposal.promises
    causes = sorted(f"{who}: {promise.refused}" for who, promise in promises.items() if promise.refused)
    if not causes and set(promises) != set(versions.deployment.sites):
        return versions, []
    bounds = [promise.bound_us for promise in promises.values() if promise.bound_us != UNKNOWN]
    gone = [set(promise.gone) for promise in promises.values()]
    at_us = max((bound + 1 for bound in bounds), default=FIRST_US)
    holdings = {who: promise.holding for who, promise in sorted(promises.items()) if promise.holding != NOTHING_HELD}
    retired = tuple(sorted(set.intersection(*gone)))
    decided = Decided(proposal.number, at_us, retired, causes[0] if causes else "", {} if causes else holdings)
    others = [one for one in versions.deployment.sites if one != site]
    tells = proposal.form is DecidedBy.COORDINATED
    return _settled(versions, proposal, decided), [(other, decided) for other in others] if tells else []


def _settled(versions: Versions, proposal: Proposal, decided: Decided) -> Versions:
    if decided.refused:
        return _called_off(versions, proposal, decided.refused)
    return replace(versions, proposal=replace(proposal, decision=decided))


def _called_off(versions: Versions, proposal: Proposal, cause: str) -> Versions:
    entry = Takeover(proposal.number, proposal.change, 0, cause)
    return replace(versions, proposal=None, number=proposal.number).with_change(entry)
