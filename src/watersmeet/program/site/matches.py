"""How many combinations joins really make: counted from what they find anyway, so that costs can be judged by it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from watersmeet.program.operators import Join, Operator, Pair, Probe, SubPlans
from watersmeet.program.site.filing import Made
from watersmeet.program.site.part import JoinPart
from watersmeet.program.site.program import SiteProgram


@dataclass(frozen=True, slots=True, order=True)
class Matched:
    """Combinations of some aliases of a query; only those whose latest row is the head's, where one is named."""

    query: str
    aliases: tuple[str, ...]  # sorted
    head: str = ""


def matched_flows(program: SiteProgram) -> dict[str, Matched]:
    """By flow of what a join finds for all of its key space: combinations of what it is."""
    found: dict[str, Matched] = {}
    parts: dict[str, set[SubPlans]] = {}
    for part in program.parts:
        for operator in part.program.operators:
            what = _found_by(part, operator)
            if what is not None:
                flow = part.flow(operator.out)
                found[flow] = what
                parts.setdefault(flow, set()).add(operator.sub_plans)
    return {flow: what for flow, what in found.items() if parts[flow] == {None}}


def _found_by(part: JoinPart, operator: Operator) -> Matched | None:
    every = len(part.join.scans)
    match operator:
        case Join():
            return Matched(part.queries[0], tuple(sorted((*operator.bound, operator.alias))), operator.head)
        case Pair():
            return Matched(part.queries[0], tuple(sorted((*operator.left_bound, *operator.right_bound))))
        case Probe():  # stages before the last find what arrives in some order, which is not that of heads
            aliases = (*operator.bound, *(lookup.alias for lookup in operator.lookups))
            return Matched(part.queries[0], tuple(sorted(aliases))) if len(aliases) == every else None
        case _:
            return None


def counted(before: Mapping[str, int], flows: Mapping[str, Matched], made: Iterable[Made]) -> dict[str, int]:
    """All combinations found so far, by flow; flows that are gone are forgotten."""
    counts = {flow: before.get(flow, 0) for flow in flows}
    for filed in made:
        if filed.flow in counts:
            counts[filed.flow] += filed.rows
    return counts


def matches_since(program: SiteProgram, before: Mapping[str, int], after: Mapping[str, int]) -> dict[Matched, int]:
    """What joins have found between two ledgers of a site, of all versions that run."""
    found: dict[Matched, int] = {}
    for flow, what in matched_flows(program).items():
        if flow in after:
            found[what] = found.get(what, 0) + after[flow] - before.get(flow, 0)
    return found
