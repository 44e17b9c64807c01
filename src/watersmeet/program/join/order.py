"""The order in which a probe looks up its windows: those first that leave the fewest combinations.

Answers do not depend on it, so it follows what is there and nobody has to agree on it: before each chunk of rows, a
sample of them is looked up in every window, and windows come in the order of how many rows a row finds. Where
combinations grow or shrink by a factor in each window, no other order makes fewer on the way.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from watersmeet.program.join import kernels

if TYPE_CHECKING:
    from watersmeet.program.join.probe import Combinations, Relation, Run

LEAST_ROWS = 1_024  # fewer are not worth a sample
_SAMPLE_ROWS = 256

Check: TypeAlias = tuple[int, int, int]  # a column, the bound relation that must have the same value, its column there


def probe_order(partial: "Combinations", relations: "Sequence[Relation]") -> tuple[int, ...]:
    """The numbers of relations, from 1 on, in the order in which they are to be looked up."""
    numbers = range(1, len(relations) + 1)
    if len(relations) < 2 or len(partial) < LEAST_ROWS:
        return tuple(numbers)
    some = partial.take(np.arange(0, len(partial), -(-len(partial) // _SAMPLE_ROWS)))
    found = {number: _found(some, relation) for number, relation in zip(numbers, relations, strict=True)}
    return tuple(sorted(numbers, key=lambda number: found[number]))


def _found(partial: "Combinations", relation: "Relation") -> float:
    """About how many rows of a relation some partial combinations find."""
    total = 0.0
    for run in relation.runs:
        start, stop = kernels.ranges(
            partial.keys, partial.latest, partial.limit, run.keys, run.narrows, *run.visible.rule
        )
        total += float((stop - start).sum()) * _accepted_share(run)
    return total


def _accepted_share(run: "Run") -> float:
    if not run.bit:
        return 1.0
    some = run.bits[:: -(-len(run.bits) // _SAMPLE_ROWS)]
    return float(np.mean((some & np.uint64(run.bit)) != 0))


def reordered(checks: Sequence[Sequence[Check]], order: Sequence[int]) -> list[tuple[Check, ...]]:
    """What to compare on a hit if relations are looked up in another order than 1, 2, ...; 0 is the carrier.

    Relations that have to agree on a value do so whichever of them is bound first.

    >>> reordered([(), ((7, 1, 8),), ((9, 1, 8),)], [3, 1, 2])
    [(), ((8, 1, 9),), ((7, 1, 9),)]
    """
    place = {0: 0, **{number: position for position, number in enumerate(order, 1)}}
    agreeing: dict[tuple[int, int], dict[int, int]] = {}  # by relation and column: all that have that value
    for number, own in enumerate(checks, 1):
        for column, owner, its_column in own:
            group = agreeing.setdefault((owner, its_column), {owner: its_column})
            group[number] = column
            agreeing[number, column] = group
    found: list[list[Check]] = [[] for _ in order]
    for group in {id(group): group for group in agreeing.values()}.values():
        first, *others = sorted(group, key=lambda number: place[number])
        for other in others:
            found[place[other] - 1].append((group[other], place[first], group[first]))
    return [tuple(some) for some in found]


def given_order(partial: "Combinations", order: Sequence[int]) -> "Combinations":
    """Combinations with their rows in the order of relations 1, 2, ..., which were looked up in another."""
    place = {number: position for position, number in enumerate(order, 1)}
    return partial.with_rows((partial.rows[0], *(partial.rows[place[number]] for number in sorted(order))))
