"""Probes of different joins that are done together, since they differ only in selections and columns."""

from collections.abc import Sequence
from dataclasses import dataclass

from watersmeet.plan.nodes import Key
from watersmeet.program.join.shared import MOST_QUERIES, MOST_SELECTIONS
from watersmeet.program.operators import (
    Form,
    Operator,
    Probe,
)
from watersmeet.program.site.part import JoinPart, needs_rows
from watersmeet.program.site.program import SiteProgram


@dataclass(frozen=True)
class ProbeGroup:
    """Probes of several joins that do the same but for filters and columns: one probe does it for all of them."""

    members: tuple[tuple[str, Probe], ...]  # name of the join, its probe


def probe_groups(
    program: SiteProgram, operators: Sequence[tuple[str, Operator]]
) -> tuple[list[ProbeGroup], list[tuple[str, Operator]]]:
    """Probes that can be done together, at most 64, and the operators that are left."""
    alike: dict[object, list[tuple[str, Probe]]] = {}
    rest: list[tuple[str, Operator]] = []
    for name, operator in operators:
        part = program.part(name)
        slot = _probe_shape(part, operator)
        streams = {view.stream for view in part.views.values()} & program.stored.keys()
        if slot is None or any(len(program.stored[stream].selections) > MOST_SELECTIONS for stream in streams):
            rest.append((name, operator))
        else:
            assert isinstance(operator, Probe)
            alike.setdefault(slot, []).append((name, operator))
    groups = []
    for members in alike.values():
        for start in range(0, len(members), MOST_QUERIES):
            some = members[start : start + MOST_QUERIES]
            if len(some) > 1:
                groups.append(ProbeGroup(tuple(some)))
            else:
                rest += some
    return groups, rest


def _probe_shape(part: JoinPart, operator: Operator) -> object | None:
    """What probes that are done together have in common; None where a probe is done by itself."""
    if not isinstance(operator, Probe) or operator.out.form is not Form.RESULT or operator.sub_plans is not None:
        return None
    if part.view_of(operator.left) is None:
        return None
    aliases = [flow.name for flow in operator.windows]
    windows = tuple((part.views[alias].flow, part.join.scan(alias).window) for alias in aliases)
    lookups = tuple(
        (
            aliases.index(lookup.alias),
            part.columns(lookup.rows, lookup.checks),
            owners_of(part, operator, lookup.checks),
        )
        for lookup in operator.lookups
    )
    keys = tuple(part.columns(flow, operator.key) for flow in operator.inputs)
    relations = tuple(part.relation(flow, operator.key) for flow in operator.inputs)
    return aliases.index(operator.head), windows, lookups, keys, relations, part.heads, needs_rows(part)


def owners_of(part: JoinPart, operator: Probe, checks: Key) -> tuple[tuple[int, int], ...]:
    """For each class to compare, the place and column of the first alias before that has it."""
    order = [operator.head, *(lookup.alias for lookup in operator.lookups)]
    found = []
    for number in checks:
        place = next(place for place, alias in enumerate(order) if number in part.views[alias].keys)
        found.append((place, part.views[order[place]].keys[number]))
    return tuple(found)
