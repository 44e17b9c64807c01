"""Versions of joins: which joins a change of plans or queries ends, which it starts, and what those can share.

A combination belongs to its latest row, so a version is a join for a span of event time: what was in force ends before
an instant, what follows begins with it. Both are overlaid like two queries are. Whatever stored rows and messages
depend on (numbers of keys and selections, columns of a shipped stream, names) is never changed, only added to.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from watersmeet.plan.nodes import join_plans_of
from watersmeet.program.finish.model import Finish
from watersmeet.program.site.changes import Change, QueryPlan, left_behind, must_fill
from watersmeet.program.site.deployment import Deployment, Joined, shared_joins
from watersmeet.program.site.nearest import Holding
from watersmeet.program.site.reuse import reusing, used
from watersmeet.program.site.spans import Span
from watersmeet.program.site.streams import stream_tables
from watersmeet.query.windows import Range, Tumble, Window


def next_deployment(
    now: Deployment,
    change: Change,
    revision: int,
    at_us: int,
    retired: Iterable[str],
    holdings: Mapping[str, Holding] | None = None,
) -> Deployment:
    """The deployment after a change that all sites go over to before any of them has a row from `at_us` on.

    Joins that are over at all sites are left out of it. `holdings` is what sites could send of the past.
    """
    gone = set(retired)
    joins = [joined for joined in now.joins if joined.name not in gone]
    about = set(change.queries)
    ended = [joined for joined in joins if joined.heads.until_us is None and about & {f.query for f in joined.finishes}]
    split_us = _split_us(now, change, ended, at_us)
    added = list(_added(change, ended, revision, split_us))
    names = {joined.name for joined in ended}
    joins = [
        replace(joined, heads=replace(joined.heads, until_us=split_us)) if joined.name in names else joined
        for joined in joins
    ]
    scans, _ = stream_tables(((joined.name, joined.join, joined.start_us) for joined in added), now.scans)
    known = tuple(scans[name] for name in sorted(scans))
    added, more = reusing(replace(now, scans=known), added, revision, holdings or {})
    joins += added
    after = replace(now, joins=tuple(joins), revision=revision, scans=known, sent=(*now.sent, *more))
    return replace(after, sent=tuple(used(after)))


def _split_us(now: Deployment, change: Change, ended: Iterable[Joined], at_us: int) -> int:
    """From when on heads are the new versions': at once, or when windows have filled where no history is kept."""
    begun = [joined.heads.from_us for joined in ended if joined.heads.from_us is not None]
    windows = [
        scan.window
        for plan in change.plans
        if not plan.is_fresh
        for join in join_plans_of(plan.plan)
        for scan in join.scans
    ]
    windows += [scan.window for joined in ended for scan in joined.join.scans] if windows else []
    copies = [joined for joined in left_behind(now, change) if must_fill(now, joined)]
    windows += [scan.window for joined in copies for scan in joined.join.scans]
    longest = 0 if now.history else max((_length_us(window) for window in windows), default=0)
    return max(at_us + longest, *begun) if begun else at_us + longest


def _length_us(window: Window) -> int:
    return window.window_us + 1 if isinstance(window, Range | Tumble) else 0


def _added(change: Change, ended: Iterable[Joined], revision: int, split_us: int) -> Iterable[Joined]:
    """The joins that a change starts; queries that shared a join with one that leaves it go on with a copy."""
    heads = Span(split_us)
    ended = list(ended)
    begun = {finish.query: joined.start_us for joined in ended for finish in joined.finishes}
    since = {finish.query: finish.since for joined in ended for finish in joined.finishes}
    for is_fresh in (False, True):
        plans = {plan.query: plan for plan in change.plans if plan.is_fresh == is_fresh}
        starts = {name: _start(plan, split_us) if is_fresh else begun[name] for name, plan in plans.items()}
        errors = {name: plan.errors for name, plan in plans.items()}
        for joined in shared_joins({name: plan.plan for name, plan in plans.items()}, starts, errors):
            name = f"{joined.name}~{revision}"
            finishes = tuple(
                replace(finish, since=revision if is_fresh else since[finish.query]) for finish in joined.finishes
            )
            yield replace(joined, name=name, finishes=finishes, heads=heads, since=revision, is_fresh=is_fresh)
    about = set(change.queries)
    for joined in ended:
        left: tuple[Finish, ...] = tuple(finish for finish in joined.finishes if finish.query not in about)
        if left:
            name = f"{left[0].query}~{revision}"
            yield replace(
                joined, name=name, finishes=left, heads=heads, since=revision, is_fresh=False, copy_of=joined.name
            )


def _start(plan: QueryPlan, split_us: int) -> int:
    return split_us if plan.start_us is None else max(plan.start_us, split_us)
