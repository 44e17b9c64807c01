"""What checkpoints say of the versions of plans: what is in force, what ends, what sites are agreeing on, and why."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from watersmeet.plan.explain import explain_text
from watersmeet.program.site.adoption import program_of
from watersmeet.program.site.agreement import Versions
from watersmeet.program.site.changes import Change
from watersmeet.program.site.deployment import Joined
from watersmeet.program.site.engine import read_versions
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.site.outbox import bytes_sent
from watersmeet.program.site.savings import SiteCounts, savings
from watersmeet.query.windows import END_US
from watersmeet.spark.checkpoint import read_ledger
from watersmeet.spark.requests import requests_in
from watersmeet.spark.store.mirror import shelf_of
from watersmeet.spark.verify import site_checkpoints


def running_text(root: Path) -> str:
    """The versions that the sites of a checkpoint run, in words; nothing is locked or written."""
    known, states, asked = {}, {}, 0
    for directory in site_checkpoints(root):
        ledger, asked = read_ledger(directory), asked + len(requests_in(directory))
        if ledger.versions:
            shelf = shelf_of(directory)
            known[directory.name] = read_versions(shelf, ledger)
            sent = bytes_sent(program_of(shelf, ledger, directory.name), ledger)
            states[directory.name] = SiteCounts(known[directory.name].log, *sent, _reached_us(ledger))
    if not known:
        return "no plan is in force yet"
    latest = max(known.values(), key=lambda one: (one.deployment.revision, one.changes))
    waiting = [f"asked for and not looked at yet: {asked}, in turn"] if asked else []
    return "\n".join((*_lines(latest, known, list(states.values())), *waiting))


def _reached_us(ledger: SiteLedger) -> int | None:
    times = [state.max_ts for state in ledger.streams.values() if state.max_ts is not None]
    return max((time for time in times if time < END_US), default=None)


def _lines(latest: Versions, known: dict[str, Versions], states: list[SiteCounts]) -> Iterator[str]:
    yield f"revision {latest.deployment.revision} of the plans, by the checkpoints of {', '.join(known)}"
    behind = sorted(
        f"{site} ({versions.deployment.revision})" for site, versions in known.items() if _old(versions, latest)
    )
    if behind:
        yield f"  not there yet: {', '.join(behind)}"
    for join in latest.deployment.joins:
        yield from _join_lines(join, known)
    if latest.forgotten:
        yield f"{latest.forgotten:,} changes before these"
    for entry in latest.log:
        what = f"called off: {entry.refused}" if entry.refused else f"heads from {format_instant(entry.at_us)} on"
        yield f"change {entry.revision}: {_change(entry.change)}; {what}"
        yield from (f"  {line}" for line in savings(entry, states))
    if latest.proposal is not None:
        ready = sorted(latest.proposal.promises)
        state = "decided" if latest.is_decided else f"ready are {', '.join(ready)}"
        yield f"change {latest.proposal.number}, under way: {_change(latest.proposal.change)}; {state}"
    for change in latest.queue:
        yield f"queued: {_change(change)}"


def _old(versions: Versions, latest: Versions) -> bool:
    return versions.deployment.revision < latest.deployment.revision


def _join_lines(join: Joined, known: dict[str, Versions]) -> Iterator[str]:
    queries = ", ".join(finish.query for finish in join.finishes)
    from_us, until_us = join.heads.from_us, join.heads.until_us
    since = "from the start" if from_us is None else f"from {format_instant(from_us)} on"
    gone = sorted(site for site, versions in known.items() if join.name in versions.gone)
    if until_us is None:
        state = "in force"
    else:
        state = f"until {format_instant(until_us)}" + (f", over at {', '.join(gone)}" if gone else "")
    yield f"version {join.name} of {queries}: heads {since}, {state}"
    yield from (f"  {line}" for line in explain_text(join.join).splitlines())


def _change(change: Change) -> str:
    plans = [
        f"{'new query ' if plan.is_fresh else ''}{plan.query}{f' by {plan.planner}' if plan.planner else ''}"
        for plan in change.plans
    ]
    what = ", ".join([*plans, *(f"{query} ends" for query in change.removed)])
    return f"{what}, since {change.reason}" if change.reason else what


def format_instant(instant_us: int) -> str:
    """An instant of event time, in UTC."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=instant_us)).isoformat(" ")
