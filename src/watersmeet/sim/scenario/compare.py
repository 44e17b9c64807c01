"""Every planner on the same input: what each one ships, by running its plans on simulated sites.

Estimates rank plans before a run; here the bytes are those of parcels that were packed, and the answers are checked.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from watersmeet.errors import InputError
from watersmeet.plan.nodes import Plan
from watersmeet.planners.choose import NAMES
from watersmeet.sim.scenario.model import SitesScenario
from watersmeet.sim.scenario.sites import simulate_sites
from watersmeet.sim.scenario.sites_outcome import SitesSummary
from watersmeet.sim.scenario.sites_plans import plan_queries

Progress = Callable[[str, int, int], object]  # the planner, rows that have arrived, of how many


@dataclass(frozen=True, slots=True)
class PlannerRun:
    """What the plans of one planner did, or why it has none."""

    planner: str
    summary: SitesSummary | None
    cpu_s: float = 0.0  # of the simulation
    planning_s: float = 0.0  # CPU time
    reason: str = ""

    @property
    def bytes(self) -> int | None:
        return None if self.summary is None else self.summary.traffic.bytes


def compare_planners(
    scenario: SitesScenario, planners: Sequence[str] = NAMES, *, progress: Progress = lambda name, done, total: None
) -> Iterator[PlannerRun]:
    """Run all queries by one planner after the other; plans that are the same are run once."""
    if len(scenario.topology.sites) < 2:
        raise InputError("there is nothing to compare: all streams arrive at one site, and nothing is shipped")
    ran: dict[tuple[Plan, ...], tuple[SitesSummary, float]] = {}
    for planner in planners:

        def tell(done: int, total: int, planner: str = planner) -> None:
            progress(planner, done, total)

        asked = replace(scenario, planner=planner)
        began = time.process_time()
        try:
            planned = plan_queries(asked)
            planning_s = time.process_time() - began
            plans = tuple(planned_query.chosen.plan for _, planned_query in sorted(planned.selects.items()))
            if plans not in ran:
                outcome = simulate_sites(asked, progress=tell, planned=planned)
                ran[plans] = outcome.summary, time.process_time() - began - planning_s
        except InputError as error:
            yield PlannerRun(planner, None, reason=str(error))
            continue
        summary, cpu_s = ran[plans]
        made_by = {
            output.target.name: replace(
                summary.queries[output.target.name], planner=planned.selects[output.branches[0][0]].chosen.planner
            )
            for output in planned.answered
        }
        yield PlannerRun(planner, replace(summary, queries=made_by), cpu_s, planning_s)
