"""What the rows of a flow are, as values, and how many a second they are for a workload or a part of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from watersmeet.cost.estimates import (
    HeadRows,
    Meets,
    announced,
    asked,
    fetched,
    fetched_by_cell,
    met,
    met_by_cell,
    overlapping_by_cell,
    overlapping_each,
    wanted,
    wanted_by_any,
)
from watersmeet.cost.formulas import with_false_positives
from watersmeet.cost.workload import F64, Workload
from watersmeet.program.operators import Form


@dataclass(frozen=True, slots=True)
class OfStream:
    """As many as a stream has."""

    alias: int


@dataclass(frozen=True, slots=True)
class OfHead:
    """As many as combinations whose latest row is a head's."""

    head: int
    mask: int


@dataclass(frozen=True, slots=True)
class OfTree:
    """As many as combinations, whichever row is the latest."""

    mask: int


@dataclass(frozen=True, slots=True)
class Announced:
    """As many as announcements of keys."""

    mask: int
    key: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AskedKeys:
    """As many as distinct keys that rows ask a partner about, batch by batch."""

    rows: "Content"
    partner: int
    batch_interval_s: float


@dataclass(frozen=True, slots=True)
class Wanted:
    """As many as announcements that somebody asks for."""

    mask: int
    by: "Content"


@dataclass(frozen=True, slots=True)
class Met:
    """Those partial combinations whose key is in a window."""

    subject: "Content"
    other: int
    false: float
    slack_s: float


@dataclass(frozen=True, slots=True)
class Overlapping:
    """Those rows of a tree that meet a row of the other side while they live."""

    subject: "Content"
    other: int
    false: float
    slack_s: float


@dataclass(frozen=True, slots=True)
class Fetched:
    """Those rows of a window that are asked for while they are seen."""

    subject: "Content"
    by: "Content"
    spans: bool
    slack_s: float


@dataclass(frozen=True, slots=True)
class Gathered:
    """Those rows of a stream that any of several semijoins finds."""

    subject: "Content"
    found: tuple["Fetched | Met | Overlapping", ...]


@dataclass(frozen=True, slots=True)
class Nothing:
    """No rows at all."""


Rate = OfStream | OfHead | OfTree | Announced | AskedKeys | Wanted | Met | Overlapping | Fetched | Gathered | Nothing


@dataclass(frozen=True, slots=True)
class Content:
    """What the rows of a flow are."""

    form: Form
    mask: int  # the aliases they combine
    rate: Rate
    head: int | None = None
    of: int = 0  # of keys: the aliases whose keys they are


def rate_of(content: Content, workload: Workload) -> float:
    """Rows a second of a content, for a workload: that of all sub-plans or of some."""
    match content.rate:
        case OfStream(alias):
            return float(workload.rate[alias])
        case OfHead(head, mask):
            return workload.head_rate(head, mask)
        case OfTree(mask):
            return workload.combination_rate(mask)
        case Announced(mask, key):
            return announced(workload, mask, key)
        case AskedKeys(rows, partner, batch_interval_s):
            return asked(workload, _rows(rows, workload), partner, batch_interval_s)
        case Wanted(mask, by):
            return wanted(workload, mask, _rows(by, workload))
        case Met(subject, other, false, slack_s):
            return rate_of(subject, workload) * met(workload, subject.mask, other, false, slack_s)
        case Overlapping():
            subject, others = _reduced_by(content.rate)
            return rate_of(subject, workload) * overlapping_each(workload, subject.mask, others)
        case Fetched(subject, by, spans, slack_s):
            share = fetched(workload, subject.mask, _rows(by, workload), spans=spans, slack_s=slack_s)
            return rate_of(subject, workload) * share
        case Gathered(subject, found):
            counted = _counted(found, workload)
            share = wanted_by_any([_chances(content, workload) for content in found]) if counted is None else counted
            return rate_of(subject, workload) * share
        case Nothing():
            return 0.0
        case _:
            assert_never(content.rate)


def _reduced_by(found: Overlapping) -> tuple[Content, list[Meets]]:
    """What a tree's rows are that are reduced by several others, one after the other, and what they are to meet."""
    others = []
    while True:
        others.append(Meets(found.other, found.false, found.slack_s))
        if not isinstance(found.subject.rate, Overlapping):
            return found.subject, others
        found = found.subject.rate


def _chances(found: Fetched | Met | Overlapping, workload: Workload) -> tuple[F64, F64]:
    """How the rows of a stream are spread over the cells of a key, and how likely a semijoin takes them there."""
    mask = found.subject.mask
    if isinstance(found, Fetched):
        return fetched_by_cell(workload, mask, _rows(found.by, workload), spans=found.spans, slack_s=found.slack_s)
    by_cell = met_by_cell if isinstance(found, Met) else overlapping_by_cell
    shares, chance = by_cell(workload, mask, found.other, found.slack_s)
    return shares, with_false_positives(chance, found.false)


def _counted(found: Sequence[Fetched | Met | Overlapping], workload: Workload) -> float | None:
    """The share of a stream's rows that any of several semijoins takes in a sample, if there is one."""
    if workload.sampled is None:
        return None
    taken, others = [], []
    for content in found:
        mask, other = content.subject.mask, content.by.mask if isinstance(content, Fetched) else content.other
        if not other or not (workload.is_counted(mask) and workload.is_counted(other)):
            return None
        if not workload.shared(mask, other):
            return None
        if isinstance(content, Fetched):
            head = content.by.head
            bits = workload.sampled.which_fetched(mask, other, head, spans=content.spans, slack_s=content.slack_s)
        else:
            kind = "met" if isinstance(content, Met) else "overlapping"
            bits = workload.sampled.which(kind, mask, other, content.slack_s)
            others.append(content.false)
        taken.append((mask, bits))
    share, of = workload.sampled.gathered(taken)
    estimated = wanted_by_any([_chances(content, workload) for content in found])
    share = (share * of + min(estimated, 1.0)) / (of + 1)
    return float(with_false_positives(np.asarray(share), max(others, default=0.0)))


def _rows(content: Content, workload: Workload) -> HeadRows:
    return HeadRows(content.mask, rate_of(content, workload), content.head)
