"""Which plan a query should have now: by the adaptive paper's two procedures, or by any planner (one interface).

`consider` answers with an offer: the plan, what it and the running one cost by the figures of now, and what it costs to
go over. The paper's procedures count seconds of work (equations 1 to 3), planners the query's objective.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never

from watersmeet.adapt.centralised import update_centrally
from watersmeet.adapt.distributed import update_distributed
from watersmeet.adapt.messages import Modification
from watersmeet.adapt.sequences import (
    ExecutionPlan,
    Setting,
    StreamFigures,
    best_step_costs,
    generate,
    plan_cost,
)
from watersmeet.adapt.synchronise import point_to_point
from watersmeet.adapt.translate import figures_of, linear_of, setting_of
from watersmeet.adapt.trigger import PlanOffer
from watersmeet.plan.nodes import JoinPlan
from watersmeet.planners.auto import auto, plan_with
from watersmeet.planners.problem import NoPlan, Problem
from watersmeet.program.compile import compile_sites
from watersmeet.program.operators import Form

Mode: TypeAlias = Literal["cnu", "dnu", "planner"]
_MESSAGE_BYTES = 100.0
_KEPT = (Form.ROW, Form.INTERMEDIATE, Form.SPAN)  # what is kept where it arrives: a new reader needs the past of it


@dataclass(frozen=True)
class RunningQuery:
    """The plan of a query in force; for the paper's procedures also its sequences, and what they are greedy for."""

    join: JoinPlan
    planner: str
    sequences: ExecutionPlan | None = None
    figures: Mapping[str, StreamFigures] | None = None
    setting: Setting | None = None


@dataclass(frozen=True)
class Considered:
    """A plan beside the running one."""

    next: RunningQuery
    offer: PlanOffer
    modification: Modification | None = None


def first_plan(problem: Problem, mode: Mode, planner: str = "auto") -> RunningQuery:
    """The plan to begin with."""
    match mode:
        case "cnu" | "dnu":
            setting, figures = setting_of(problem), figures_of(problem.workload)
            return _linear(problem, mode, generate(setting, figures), figures)
        case "planner":
            return RunningQuery(_planned(problem, planner), planner)
        case _:
            assert_never(mode)


def watched_costs(problem: Problem, mode: Mode, running: RunningQuery) -> dict[str, float]:
    """The costs that the trigger watches: of every one-way join, or of every flow over a link and the rest."""
    match mode:
        case "cnu" | "dnu":
            assert running.sequences is not None, "the paper's procedures have sequences"
            setting, figures = setting_of(problem), figures_of(problem.workload)
            return {
                f"{sequence.head} to {stream}": cost
                for sequence in running.sequences.sequences
                for stream, cost in best_step_costs(setting, figures, sequence).items()
            }
        case "planner":
            # Streams count whether or not this plan ships them: another one may because they have become small.
            workload = problem.workload
            found = {
                f"stream {alias}": float(workload.rate[number]) * workload.row_bytes(1 << number, 100.0)
                for number, alias in enumerate(workload.aliases)
            }
            for flow in problem.cost(running.join).flows:
                name = f"{flow.flow} from {flow.origin} to {flow.to}"
                found[name] = found.get(name, 0.0) + flow.bytes_s
            return found
        case _:
            assert_never(mode)


def consider(
    problem: Problem, mode: Mode, running: RunningQuery, *, planner: str = "auto", coordinator: str
) -> Considered:
    """The plan for the figures of now."""
    match mode:
        case "cnu" | "dnu":
            return _by_sequences(problem, mode, running, coordinator)
        case "planner":
            join = _planned(problem, planner)
            offer = PlanOffer(
                problem.value(running.join), problem.value(join), moved_value(problem, running.join, join)
            )
            return Considered(RunningQuery(join, planner), offer)
        case _:
            assert_never(mode)


def _by_sequences(problem: Problem, mode: Literal["cnu", "dnu"], running: RunningQuery, coordinator: str) -> Considered:
    assert running.sequences is not None and running.figures is not None, "the paper's procedures have sequences"
    setting, figures = setting_of(problem), figures_of(problem.workload)
    if mode == "cnu":
        changed = next((name for name in setting.streams if figures[name] != running.figures[name]), setting.streams[0])
        found = update_centrally(setting, figures, running.sequences, changed=changed, coordinator=coordinator)
    else:
        anew = running.setting != setting  # links have changed, not streams: every sequence begins anew
        found = update_distributed(setting, running.figures, figures, running.sequences, anew=anew)
    offer = PlanOffer(
        plan_cost(setting, figures, running.sequences),
        plan_cost(setting, figures, found.plan),
        _migration_s(setting, figures, found),
    )
    return Considered(_linear(problem, mode, found.plan, figures), offer, found)


def _linear(problem: Problem, mode: str, plan: ExecutionPlan, figures: Mapping[str, StreamFigures]) -> RunningQuery:
    linear = linear_of(plan, problem.aliases, problem.homes)
    return RunningQuery(problem.join((linear,)), mode, plan, figures, setting_of(problem))


def _migration_s(setting: Setting, figures: Mapping[str, StreamFigures], found: Modification) -> float:
    """The time that messages and windows take on links."""
    messages = (*found.messages, *point_to_point(found.groups))
    total = sum(setting.transfer_s(message.sender, message.to, _MESSAGE_BYTES) for message in messages)
    for move in dict.fromkeys(found.moves):
        size = figures[move.stream].window_rows * figures[move.stream].row_bytes
        total += setting.transfer_s(move.origin, move.to, size)
    return total


def _planned(problem: Problem, planner: str) -> JoinPlan:
    tried = auto(problem) if planner == "auto" else plan_with(problem, planner)
    if tried.join is None:
        raise NoPlan(f"the plan of {planner} breaks a limit: {tried.reason}")
    return tried.join


def moved_value(problem: Problem, old: JoinPlan, new: JoinPlan) -> float:
    """What it is worth, by the objective, to bring the past to where the new plan keeps rows and the old one does not.

    A flow that is kept where it arrives needs one window of its rows; what the old plan brings there is there.
    """
    longest_s = {alias: float(problem.workload.window_s[number]) for number, alias in enumerate(problem.aliases)}
    kept = {
        (name, ship.to): ship.arrives_as.name
        for program in compile_sites(new).values()
        for ship in program.ships
        if ship.arrives_as.form in _KEPT
        for name in {ship.payload, ship.arrives_as.name, ship.flow.name}
    }
    before = _bytes_into(problem, old)
    total = 0.0
    for (name, to, origin), size in _bytes_into(problem, new).items():
        if (name, to) in kept:
            there = sum(known for (other, site, _), known in before.items() if (other, site) == (name, to))
            window_s = longest_s.get(name.split("~")[0], max(longest_s.values()))
            total += max(size - there, 0.0) * window_s * problem.byte_weight[origin, to]
    return total


def _bytes_into(problem: Problem, join: JoinPlan) -> dict[tuple[str, str, str], float]:
    found: dict[tuple[str, str, str], float] = {}
    for flow in problem.cost(join).flows:
        place = (flow.flow, flow.to, flow.origin)
        found[place] = found.get(place, 0.0) + flow.bytes_s
    return found
