"""What a change of plans was expected to save, and what was shipped before and after it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from watersmeet.program.site.agreement import Takeover
from watersmeet.texts import size_text


@dataclass(frozen=True, slots=True)
class SiteCounts:
    """Of one site: what became of changes, and the bytes that it has sent by now."""

    log: tuple[Takeover, ...]
    shipped: int
    migrated: int
    reached_us: int | None  # the latest event time of its streams


@dataclass(frozen=True, slots=True)
class _Span:
    """What all sites have sent while a plan was in force."""

    seconds: float
    shipped: int
    migrated: int

    @property
    def bytes_s(self) -> float:
        return (self.shipped - self.migrated) / self.seconds


def savings(entry: Takeover, sites: Sequence[SiteCounts]) -> Iterator[str]:
    """In words: what the plans of a change were expected to save, and what came of it."""
    for plan in () if entry.refused else entry.change.plans:
        if plan.expected is not None:
            costs = plan.expected
            was, now, once = (_amount(value, costs.unit) for value in (costs.current, costs.proposed, costs.migration))
            yield f"expected for {plan.query}: {now} a second instead of {was}, and {once} to go over"
    after = None if entry.refused else _since(entry, sites)
    if after is None:
        return
    before = _before(entry, sites)
    rate = f"shipped {_amount(after.bytes_s, 'bytes')} a second in {after.seconds:,.0f} s of event time"
    was = "" if before is None else f" (before: {_amount(before.bytes_s, 'bytes')})"
    yield f"{rate}{was}, and {_amount(after.migrated, 'bytes')} to go over"
    expected = [plan.expected for plan in entry.change.plans if plan.expected is not None]
    if len(expected) == len(entry.change.plans) == 1 and expected[0].unit == "bytes":
        saved = (expected[0].current - after.bytes_s) * after.seconds - after.migrated
        what = "saved" if saved >= 0 else "lost"
        yield f"{what} {_amount(abs(saved), 'bytes')} in all, if the plan before had cost as expected"


def _since(entry: Takeover, sites: Sequence[SiteCounts]) -> _Span | None:
    """From a change to the next one, or up to now."""
    following = [_entry(site, entry.revision, later=True) for site in sites]
    own = [_entry(site, entry.revision) for site in sites]
    started = [takeover for takeover in own if takeover is not None]
    if len(started) < len(sites):
        return None  # not all sites have gone over
    ends = [takeover for takeover in following if takeover is not None]
    if len(ends) == len(sites):
        until_us, shipped, migrated = ends[0].at_us, *_total(ends)
    elif reached := [site.reached_us for site in sites if site.reached_us is not None]:
        until_us = max(reached)
        shipped, migrated = sum(site.shipped for site in sites), sum(site.migrated for site in sites)
    else:
        return None
    return _span(until_us - entry.at_us, shipped, migrated, started)


def _before(entry: Takeover, sites: Sequence[SiteCounts]) -> _Span | None:
    """From the change before to this one; nothing of the first plans, whose beginning nobody noted."""
    earlier = [takeover for takeover in sites[0].log if not takeover.refused and takeover.revision < entry.revision]
    return _since(earlier[-1], sites) if earlier else None


def _span(length_us: int, shipped: int, migrated: int, started: Sequence[Takeover]) -> _Span | None:
    sent, moved = _total(started)
    return _Span(length_us / 1e6, shipped - sent, migrated - moved) if length_us > 0 else None


def _total(entries: Sequence[Takeover]) -> tuple[int, int]:
    return sum(entry.shipped for entry in entries), sum(entry.migrated for entry in entries)


def _entry(site: SiteCounts, revision: int, *, later: bool = False) -> Takeover | None:
    wanted = (
        takeover
        for takeover in site.log
        if not takeover.refused and (takeover.revision > revision if later else takeover.revision == revision)
    )
    return next(wanted, None)


def _amount(value: float, unit: str) -> str:
    return size_text(value) if unit == "bytes" else f"{value:,.3g} {unit}"
