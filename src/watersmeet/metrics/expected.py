"""What the plans in force are expected to cost, by the figures that each was chosen for."""

from collections.abc import Callable, Iterable, Mapping

from watersmeet.cost.costs import Cost
from watersmeet.planners.choose import Chosen
from watersmeet.program.site.part import JoinPart
from watersmeet.program.site.program import SiteProgram
from watersmeet.topology.model import Topology


def costs_in_force(
    plans: Mapping[str, Chosen], programs: Iterable[SiteProgram], estimate: Callable[[Chosen], Cost | None]
) -> dict[str, Cost]:
    """By join in force, what its query's plan is expected to cost."""
    every = list(programs)
    newest = max((program.revision for program in every), default=0)  # others are about to go over to it
    parts = [part for program in every if program.revision == newest for part in program.parts if part.is_in_force]
    queries = {part.name: part.queries[0] for part in parts if part.queries[0] in plans and _is_first(part)}
    found = {name: estimate(plans[query]) for name, query in sorted(queries.items())}
    return {name: cost for name, cost in found.items() if cost is not None}


def _is_first(part: JoinPart) -> bool:
    """Whether a join is that of the plan: outer joins have further ones, for rows without partners."""
    return part.name == part.queries[0] or part.name.startswith(f"{part.queries[0]}~")


def planned_rates(topology: Topology, plans: Mapping[str, Chosen]) -> dict[str, float]:
    """Rows a second of streams that plans were chosen for: those observed where a plan has followed them."""
    names = [stream.name for stream in topology.streams]
    known = {name: rate.value for name in names if (rate := topology.stats.stream(name).rate) is not None}
    found = dict(known)
    for _, chosen in sorted(plans.items()):
        if chosen.problem is None:
            continue
        for stream in {scan.stream for scan in chosen.problem.shape.scans} & set(names):
            rate = chosen.problem.topology.stats.stream(stream).rate
            if rate is not None and rate.value != known.get(stream):
                found[stream] = rate.value
    return found
