"""Runs a scenario by the system that it names."""

from typing import assert_never

from watersmeet.errors import InputError
from watersmeet.sim.scenario.model import SITES_NEED_A_TOPOLOGY, Scenario, System
from watersmeet.sim.scenario.outcome import SimulationOutcome
from watersmeet.sim.scenario.rjoin.simulate import Progress, no_progress, simulate_rjoin
from watersmeet.sim.scenario.trace import Trace


def simulate(scenario: Scenario, *, progress: Progress = no_progress, trace: Trace | None = None) -> SimulationOutcome:
    """Run a scenario to its end."""
    match scenario.system:
        case System.RJOIN:
            return simulate_rjoin(scenario, progress=progress, trace=trace)
        case System.SITES:
            raise InputError(SITES_NEED_A_TOPOLOGY)
        case _ as never:
            assert_never(never)
