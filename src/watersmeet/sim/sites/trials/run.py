"""Trials are run on simulated sites, and their answers compared with the reference semantics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from watersmeet.plan.nodes import (
    JoinPlan,
    Plan,
    Symmetric,
    join_plan_of,
)
from watersmeet.program.site.changes import Change, QueryPlan
from watersmeet.program.site.ledger import SiteLedger, watermark
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.model import JoinQuery
from watersmeet.query.oracle import answer
from watersmeet.query.windows import Rows
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.site import CommitCrash, CrashNow, SimulatedDisk, SimulatedSite
from watersmeet.sim.sites.trials.model import EVENT_TIME, Trial, TrialChange, TrialQuery
from watersmeet.sim.sites.trials.sql import MINUTE_US, SECOND_US

_MAX_EVENTS = 300_000

DOWN_US = (100, 300_000, 3 * SECOND_US, 5 * MINUTE_US)  # for which a site may be down


@dataclass(frozen=True)
class TrialResult:
    """What came of a trial, and what should have, by query."""

    trial: Trial
    plans: Mapping[str, Plan]
    answers: Mapping[str, Bag]
    expected: Mapping[str, Bag]
    sites: SimulatedSites
    is_at_rest: bool  # whether it came to an end by itself

    def missing(self, query: str) -> Bag:
        return self.expected[query] - self.answers[query]

    def surplus(self, query: str) -> Bag:
        return self.answers[query] - self.expected[query]

    @property
    def wrong(self) -> list[str]:
        """The queries whose answers are not those of the reference semantics."""
        return [name for name in self.expected if self.answers[name] != self.expected[name]]

    @property
    def is_right(self) -> bool:
        return self.is_at_rest and not self.wrong

    @property
    def verdict(self) -> str:
        """One line that says whether it went well, and how to see it again if it did not."""
        if not self.is_at_rest:
            return f"seed {self.trial.seed}: no end after {_MAX_EVENTS} events; replay: {self.trial.command}"
        if self.wrong:
            found = "; ".join(
                f"{name}: {self.missing(name).total()} missing and {self.surplus(name).total()} too many of "
                f"{self.expected[name].total()} answers"
                for name in self.wrong
            )
            return f"seed {self.trial.seed}: {found}; replay: {self.trial.command}"
        totals = " + ".join(str(bag.total()) for bag in self.expected.values())
        return f"seed {self.trial.seed}: {totals} answers, as they should be"


def run(trial: Trial, disks: Callable[[str], SimulatedDisk] | None = None) -> TrialResult:
    """Run a trial to its end and ask the oracle."""
    plans = {query.name: trial.plan(query) for query in trial.queries}
    event_times = dict.fromkeys(trial.tables, EVENT_TIME)
    sites = SimulatedSites(
        plans,
        event_times,
        seed=trial.seed,
        model_of=lambda sender, receiver: trial.links[sender, receiver],
        delays_us=trial.delays_us,
        interval_us=trial.intervals_us,
        buckets=trial.buckets,
        start_us={query.name: query.start_us for query in trial.queries},
        homes=trial.homes,
        sites=sorted(trial.intervals_us) if trial.changes else (),
        changes=bool(trial.changes),
        history=trial.history,
        form=trial.form,
        slack_us=trial.slack_us,
        crashes=_at_commits(trial) if trial.commit_crashes else None,
        disks=disks,
    )
    for feed in trial.feeds:
        sites.feed(feed.time_us, {feed.stream: feed.rows})
    for crash in trial.crashes:
        if crash.site in sites.sites:
            sites.crash(crash.site, crash.time_us, crash.down_us)
    for change in trial.changes:
        _ask_for(sites, trial, change)
    sites.run(_MAX_EVENTS)
    answers, expected = {}, {}
    for name, versions in _versions(trial, sites).items():
        answers[name] = sum((bag_of(table) for table in sites.answers(name)), Bag())
        expected[name] = _expected(trial, sites, versions)
    return TrialResult(trial, plans, answers, expected, sites, not sites.kernel.pending)


def _at_commits(trial: Trial) -> CommitCrash:
    """Crashes just before and after commits, above all those of a phase of a change."""
    random, left = Random(f"{trial.seed} commits"), iter(range(trial.commit_crashes))

    def crash(site: SimulatedSite, ledger: SiteLedger) -> CrashNow | None:
        is_phase = ledger.versions != site.ledger.versions
        if random.random() >= (0.4 if is_phase else 0.03) or next(left, None) is None:
            return None
        return CrashNow(random.random() < 0.5, random.choice(DOWN_US))

    return crash


def _ask_for(sites: SimulatedSites, trial: Trial, change: TrialChange) -> None:
    plans = tuple(
        QueryPlan(query.name, trial.plan(query), query.start_us, is_fresh=query.is_fresh) for query in change.planned
    )
    sites.change(change.time_us, Change(plans, change.removed), change.site)


@dataclass(frozen=True)
class _Version:
    """A query as it is answered for heads of a span of time."""

    query: TrialQuery
    start_us: int | None
    from_us: int | None = None
    until_us: int | None = None
    is_fresh: bool = True  # what it asks for began with it; otherwise only the plan is another


def _versions(trial: Trial, sites: SimulatedSites) -> dict[str, list[_Version]]:
    """By query, what was to be answered when, by what the sites have agreed on."""
    found = {query.name: [_Version(query, query.start_us)] for query in trial.queries}
    planned = {trial.plan(query): query for change in trial.changes for query in change.planned}
    for entry in sites.takeovers:
        if entry.refused:
            continue
        for name in entry.change.queries:
            if name in found:
                found[name][-1] = replace(found[name][-1], until_us=entry.at_us)
        for plan in entry.change.plans:
            start_us = entry.at_us if plan.is_fresh else found[plan.query][-1].start_us
            version = _Version(planned[plan.plan], start_us, entry.at_us, is_fresh=plan.is_fresh)
            found.setdefault(plan.query, []).append(version)
    return found


def _expected(trial: Trial, sites: SimulatedSites, versions: Sequence[_Version]) -> Bag:
    """The answers of all versions of a query by the reference semantics, as far as heads have got them."""
    event_times = dict.fromkeys(trial.tables, EVENT_TIME)
    whole, is_distinct = Bag(), False
    known: dict[tuple[str, int | None, int | None], Bag] = {}  # one version ends where the next one begins
    for number, version in enumerate(versions):
        parsed = trial.parsed(version.query)
        if parsed.grouping is not None:
            if version.is_fresh:
                later = [version for version in versions[number + 1 :] if version.is_fresh]
                last = versions[versions.index(later[0]) - 1] if later else versions[-1]
                whole += _expected_groups(trial, sites, replace(version, until_us=last.until_us))
            continue
        is_distinct = parsed.distinct
        marked_us, is_begun = answered_before(sites, trial.plan(version.query))
        ends = [end for end in (marked_us, version.until_us) if end is not None]

        def before(instant_us: int | None, parsed: JoinQuery = parsed, version: _Version = version) -> Bag:
            what = (version.query.sql, version.start_us, instant_us)
            if what not in known:
                asked, times = replace(parsed, distinct=False), {"start_us": version.start_us}
                found = answer(asked, trial.tables, event_times, heads_before_us=instant_us, **times)
                known[what] = bag_of(found)
            return known[what]

        if is_begun:
            bag = before(min(ends, default=None))
            whole += bag if version.from_us is None else bag - before(version.from_us)
    return Bag(dict.fromkeys(whole, 1)) if is_distinct else whole


def _expected_groups(trial: Trial, sites: SimulatedSites, version: _Version) -> Bag:
    """The groups of output windows that all streams have passed, and that end before the query is another."""
    parsed = trial.parsed(version.query)
    marks = [_reached_us(sites, source.stream) for source in parsed.sources]
    ends = [mark for mark in (*marks, version.until_us) if mark is not None]
    if None in marks:
        return Bag()
    event_times = dict.fromkeys(trial.tables, EVENT_TIME)
    times = {"start_us": version.start_us, "heads_before_us": version.until_us, "watermark_us": min(ends)}
    return bag_of(answer(parsed, trial.tables, event_times, **times))


def _reached_us(sites: SimulatedSites, stream: str) -> int | None:
    """The watermark of a stream, also of one that nobody reads any more."""
    site = sites.sites[sites.homes[stream]]
    return watermark(site.ledger.streams.get(stream), site.delays_us[stream])


def answered_before(sites: SimulatedSites, plan: Plan) -> tuple[int | None, bool]:
    """Before which instant heads have their answers (None: all have), and whether there is such an instant.

    Rows of a ROWS window have no order beyond the watermark of their stream: heads there are still to wait. In a
    symmetric join with such a window all rows wait until the watermarks of all its streams have passed them.
    """
    join = join_plan_of(plan)
    counted = [scan for scan in join.scans if isinstance(scan.window, Rows)]
    waited_for = join.scans if counted and is_symmetric(join) else counted
    marks = [_reached_us(sites, scan.stream) for scan in waited_for]
    known = [mark for mark in marks if mark is not None]
    return min(known, default=None), len(known) == len(marks)


def is_symmetric(join: JoinPlan) -> bool:
    """Whether a plan is a symmetric multi-way join for all keys."""
    return all(isinstance(sub_plan, Symmetric) for sub_plan in join.sub_plans)
