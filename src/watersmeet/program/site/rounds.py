"""Which operators of a site run in which round: a round ends where rows must move to the bucket of another key."""

from collections.abc import Sequence
from typing import TypeAlias

from watersmeet.program.operators import Operator
from watersmeet.program.site.filing import Made
from watersmeet.program.site.probe_groups import ProbeGroup, probe_groups
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.storage.shelf import Segment

Rounds: TypeAlias = Sequence[tuple[tuple[ProbeGroup, ...], tuple[tuple[str, Operator], ...]]]


def rounds_of(program: SiteProgram, names: frozenset[str]) -> Rounds:
    """The operators of some joins in order, cut into rounds.

    Probes that are done together are apart from the others.
    """
    made: dict[str, tuple[int, str]] = {}
    rounds: list[list[tuple[str, Operator]]] = []
    for part, operator in program.operators:
        if part.name not in names:
            continue
        number, key = 0, f"{part.name} {operator.key}"
        for flow in operator.inputs:
            name = part.flow(flow)
            if name in made:
                before, made_by = made[name]
                number = max(number, before + (made_by != key))
        made[part.flow(operator.out)] = (number, key)
        while len(rounds) <= number:
            rounds.append([])
        rounds[number].append((part.name, operator))
    grouped = [probe_groups(program, operators) for operators in rounds]
    return [(tuple(groups), tuple(rest)) for groups, rest in grouped]


def segments_made(made: Sequence[Made]) -> dict[str, tuple[Segment, ...]]:
    """What was filed, by the relation that it is of."""
    new: dict[str, tuple[Segment, ...]] = {}
    for filed in made:
        for relation, segment in filed.segments.items():
            new[relation] = (*new.get(relation, ()), segment)
    return new
