"""Runs a scenario by the system that it names."""

from typing import assert_never, overload

from watersmeet.errors import InputError
from watersmeet.metrics.bus import Reader
from watersmeet.sim.scenario.model import SITES_NEED_A_TOPOLOGY, Scenario, SitesScenario, System
from watersmeet.sim.scenario.outcome import SimulationOutcome
from watersmeet.sim.scenario.rjoin.simulate import Progress, no_progress, simulate_rjoin
from watersmeet.sim.scenario.sites import simulate_sites
from watersmeet.sim.scenario.sites_outcome import SitesOutcome
from watersmeet.sim.scenario.trace import Trace


@overload
def simulate(scenario: Scenario, *, progress: Progress = no_progress, trace: Trace | None = None) -> SimulationOutcome:
    """Run peers; they write a trace."""


@overload
def simulate(
    scenario: SitesScenario, *, progress: Progress = no_progress, events: Reader | None = None
) -> SitesOutcome:
    """Run sites; they report the events of a run."""


def simulate(
    scenario: Scenario | SitesScenario,
    *,
    progress: Progress = no_progress,
    trace: Trace | None = None,
    events: Reader | None = None,
) -> SimulationOutcome | SitesOutcome:
    """Run a scenario to its end."""
    match scenario.system:
        case System.RJOIN:
            assert isinstance(scenario, Scenario)
            return simulate_rjoin(scenario, progress=progress, trace=trace)
        case System.PIER:
            raise InputError("a scenario of system pier is run by simulate_pier, which has an outcome of its own")
        case System.SITES:
            if not isinstance(scenario, SitesScenario):
                raise InputError(SITES_NEED_A_TOPOLOGY)
            return simulate_sites(scenario, progress=progress, events=events)
        case _ as never:
            assert_never(never)
