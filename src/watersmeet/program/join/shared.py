"""The multi-way probe for many queries at once: the same windows and keys, with filters of their own as bits of rows.

Every partial combination carries the set of queries, at most 64, whose filters all its rows pass so far; it is dropped
as soon as the set is empty. The join is done once, whatever the number of queries.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from watersmeet.program.join import kernels
from watersmeet.program.join.order import given_order, probe_order, reordered
from watersmeet.program.join.probe import Combinations, Relation, Run, cut, in_order
from watersmeet.program.storage.segments import I64, U64, class_column

MOST_QUERIES = 64  # in one set
MOST_SELECTIONS = 64 * kernels.MOST_WORDS  # of a stream


@dataclass(frozen=True)
class Membership:
    """Which queries take the rows of a run: those of every row, and those of rows that have a bit."""

    words: tuple[U64, ...]
    places: I64  # of each selection that queries of this probe have: its word,
    bits: U64  # its bit in the word,
    members: U64  # and the queries that have it
    always: int

    @property
    def rule(self) -> tuple[object, ...]:
        """The arguments of the kernels."""
        return self.words, self.places, self.bits, self.members, np.uint64(self.always)


@dataclass(frozen=True)
class SharedLookup:
    """The relation to look in, the membership of each of its runs, and class columns to compare on a hit."""

    relation: Relation
    memberships: tuple[Membership, ...]
    checks: tuple[tuple[int, int, int], ...] = ()  # its column, the bound relation that has the value, its column there


def shared_join(
    carrier: Relation, memberships: Sequence[Membership], lookups: Sequence[SharedLookup]
) -> Iterator[tuple[Combinations, U64]]:
    """All combinations of the carrier's rows with one row of each lookup, and the queries that they are for."""
    for run, offset, membership in zip(carrier.runs, carrier.offsets, memberships, strict=False):
        sets = kernels.member_sets(len(run.keys), *membership.rule)
        places = np.flatnonzero(sets)
        begins = run.visible.at[places] * run.visible.scale + run.visible.offset
        start = Combinations(run.keys[places], begins, run.visible.ends(places), (places + offset,))
        order = probe_order(start, [lookup.relation for lookup in lookups])
        checks = reordered([lookup.checks for lookup in lookups], order)
        arranged = [replace(lookups[one - 1], checks=own) for one, own in zip(order, checks, strict=True)]
        for found, own_sets in _extend(start, sets[places], arranged, (carrier,)):
            yield given_order(found, order), own_sets


def _extend(
    partial: Combinations, sets: U64, lookups: Sequence[SharedLookup], bound: tuple[Relation, ...]
) -> Iterator[tuple[Combinations, U64]]:
    if not len(partial):
        return
    if len(bound) > len(lookups):
        yield partial, sets
        return
    shared = lookups[len(bound) - 1]
    first, last = partial.latest.min(), partial.limit.max()
    hits: list[tuple[Run, int, I64, I64]] = []
    of_hits: list[Membership] = []
    for run, offset, membership in zip(shared.relation.runs, shared.relation.offsets, shared.memberships, strict=False):
        if run.span[1] >= first and run.span[0] <= last:
            found = kernels.ranges(
                partial.keys, partial.latest, partial.limit, run.keys, run.narrows, *run.visible.rule
            )
            hits.append((run, int(offset), *found))
            of_hits.append(membership)
    for low, high in cut(len(partial), hits):
        pairs = [
            kernels.expand_sets(
                low, high, start, stop, partial.latest, partial.limit, sets, *membership.rule, *run.visible.rule
            )
            for (run, _, start, stop), membership in zip(hits, of_hits, strict=True)
        ]
        left, right, latest, limit, own = in_order(pairs, [offset for _, offset, _, _ in hits])
        extended = Combinations(partial.keys[left], latest, limit, (*(rows[left] for rows in partial.rows), right))
        if shared.checks and len(left):
            keep = np.ones(len(left), bool)
            for number, owner, its_number in shared.checks:
                ours = bound[owner].gather(extended.rows[owner], [class_column(its_number)])[0].to_numpy()
                theirs = shared.relation.gather(right, [class_column(number)])[0].to_numpy()
                keep &= ours == theirs
            which = np.flatnonzero(keep)
            extended, own = extended.take(which), own[which]
        yield from _extend(extended, own, lookups, (*bound, shared.relation))
