"""When a plan is reconsidered, and whether another one is worth going over to.

The paper's trigger (section 4.2): the cost of a one-way join has changed by more than a threshold since the plan was
last considered. What it lacks: the change must be seen more than once, a least time between changes, a least saving
(hysteresis), and that what is saved over the time that the figures are expected to last is more than migration costs.

How long they last is judged by the phases seen so far. A phase ends with each trigger, unless averages are still on
their way in the direction in which it began. One is expected to last as long as the (geometric) mean of those before.
What is saved is less than that: the plan comes late by the time that it takes to notice a change and go over, and stays
as long after the end of the phase. A phase that has outlived the mean is expected to last as long again. So figures
that swing quickly stop being followed, and a change that stays is followed at last. Planning takes time itself: after
each time that nothing better was found, small changes wait twice as long, up to sixteen times the least interval.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import sqrt

from watersmeet.texts import cost_text

_NEGLIGIBLE = 0.05  # of all costs: changes of a one-way join that is cheaper are measured against this share
_LARGE = 2.0  # thresholds: so large a change is considered soon, whatever came of smaller ones before
_MOST_DOUBLINGS = 4
_SHORTEST_PHASE_S = 0.001


@dataclass(frozen=True, slots=True)
class Policy:
    """How eagerly plans change."""

    threshold: float = 0.2  # relative change of the cost of a one-way join
    min_interval_s: float = 30.0  # between two plans
    min_saving: float = 0.1  # share of the running plan's cost
    expected_phase_s: float = 600.0  # for how long figures are expected to last before any have changed
    confirmations: int = 2  # observations in a row that have to show a change
    settle_s: float = 0.0  # averages need so long to follow a change: what comes sooner is the same change, and the
    # plan is considered once more then, since the first decision was made on the way
    reaction_s: float = 0.0  # from a change of figures until another plan is in force

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 0:
                raise ValueError(f"{name} must be 0 or more")


@dataclass(frozen=True, slots=True)
class CostChange:
    """The cost of a one-way join, by name, before and now."""

    step: str
    before: float
    now: float


@dataclass(frozen=True)
class TriggerState:
    """What the trigger remembers of one query."""

    reference: Mapping[str, float] = field(default_factory=dict)  # costs as the present phase began
    began_s: float = 0.0  # of the present phase
    moved: Mapping[str, float] = field(default_factory=dict)  # by which shares costs changed as it began
    mean_phase_s: float | None = None
    considered_s: float | None = None
    switched_s: float | None = None
    settled_s: float | None = None  # when averages will have followed the last change
    in_vain: int = 0  # times in a row that a plan was considered and nothing better found
    is_large: bool = False  # whether the change that is pending is
    seen: int = 0  # observations in a row that show a change
    is_pending: bool = False  # a change has been seen, and no decision is final

    def is_waiting(self, now_s: float) -> bool:
        """Whether the next observation matters, whatever it is."""
        return self.is_pending or self.seen > 0 or (self.settled_s is not None and now_s >= self.settled_s)


@dataclass(frozen=True, slots=True)
class PlanOffer:
    """Another plan: what either costs a second, and what it costs to go over, in one unit."""

    current: float
    proposed: float
    migration: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to go over to another plan, and why or why not."""

    accepted: bool
    reason: str
    is_final: bool = True  # whether time alone cannot change it


def started(costs: Mapping[str, float], now_s: float) -> TriggerState:
    """The state as a plan begins."""
    return TriggerState(dict(costs), began_s=now_s, switched_s=now_s)


def largest_change(before: Mapping[str, float], now: Mapping[str, float]) -> tuple[CostChange | None, float]:
    """The one-way join whose cost has changed most, and by which share of it.

    >>> largest_change({"a": 10.0, "b": 20.0}, {"a": 15.0, "b": 20.0})
    (CostChange(step='a', before=10.0, now=15.0), 0.5)
    """
    least = _NEGLIGIBLE * max(sum(before.values()), sum(now.values()))
    worst, share = None, 0.0
    for step in sorted({*before, *now}):
        old, new = before.get(step, 0.0), now.get(step, 0.0)
        changed = abs(new - old) / max(old, least, 1e-300)
        if changed > share:
            worst, share = CostChange(step, old, new), changed
    return worst, share


def watch(
    state: TriggerState, policy: Policy, costs: Mapping[str, float], now_s: float
) -> tuple[TriggerState, CostChange | None]:
    """Compare the costs of the running plan with those as the present phase began.

    Returns the change to act on: the plan is to be considered now. A change within the least interval waits.
    """
    worst, share = largest_change(state.reference, costs)
    moved = _shares(state.reference, costs)
    state = replace(state, seen=state.seen + 1 if share > policy.threshold else 0)
    if state.seen >= max(policy.confirmations, 1):
        length_s = now_s - state.began_s
        is_large = share > _LARGE * policy.threshold
        state = replace(state, reference=dict(costs), seen=0, is_pending=True, is_large=is_large)
        if length_s >= policy.settle_s or _is_back(state.moved, moved):
            mean_s = sqrt(_mean_phase_s(state, policy) * max(length_s, _SHORTEST_PHASE_S))
            state = replace(state, began_s=now_s, moved=moved, mean_phase_s=mean_s)
            if policy.settle_s:
                state = replace(state, settled_s=now_s + policy.settle_s)
    if state.settled_s is not None and now_s >= state.settled_s:
        state = replace(state, settled_s=None, is_pending=True, is_large=True)
    last = max((when for when in (state.considered_s, state.switched_s) if when is not None), default=None)
    wait_s = policy.min_interval_s * (1 if state.is_large else 2 ** min(state.in_vain, _MOST_DOUBLINGS))
    is_moving = state.seen > 0  # what is pending may be over: one observation more will tell
    if not state.is_pending or is_moving or (last is not None and now_s - last < wait_s):
        return state, None
    state = replace(state, considered_s=now_s)
    return state, worst or CostChange("", 0.0, 0.0)


def _shares(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """By which share of the greater each cost has changed, upwards or downwards."""
    return {
        step: (cost - before[step]) / max(cost, before[step]) if max(cost, before[step]) > 0 else 0.0
        for step, cost in now.items()
        if step in before
    }


def _is_back(before: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Whether costs go the other way than as the phase began, which averages that follow a change never do."""
    return sum(share * before.get(step, 0.0) for step, share in now.items()) < 0


def _mean_phase_s(state: TriggerState, policy: Policy) -> float:
    return policy.expected_phase_s if state.mean_phase_s is None else state.mean_phase_s


def expected_rest_s(state: TriggerState, policy: Policy, now_s: float) -> float:
    """For how long another plan is expected to be worth having, from now on."""
    mean_s, age_s = _mean_phase_s(state, policy), now_s - state.began_s
    rest_s = age_s if age_s > mean_s else mean_s - age_s
    return max(rest_s - 2 * policy.reaction_s, 0.0)


def judge(state: TriggerState, policy: Policy, offer: PlanOffer, now_s: float) -> Verdict:
    """Whether an offer is worth it.

    >>> judge(TriggerState(), Policy(), PlanOffer(current=100.0, proposed=95.0, migration=0.0), 0.0).reason
    'saves 5%, below min_saving 10%'
    """
    saving = offer.current - offer.proposed
    share = saving / offer.current if offer.current > 0 else 0.0
    if share < policy.min_saving or saving <= 0:
        return Verdict(False, f"saves {max(share, 0):.0%}, below min_saving {policy.min_saving:.0%}")
    rest_s = expected_rest_s(state, policy, now_s)
    gain = saving * rest_s
    if gain <= offer.migration:
        reason = f"saves {cost_text(gain)} in the {rest_s:,.0f} s that figures are expected to last, migration costs "
        return Verdict(False, f"{reason}{cost_text(offer.migration)}", is_final=False)
    return Verdict(
        True, f"saves {share:.0%}: {cost_text(gain)} in {rest_s:,.0f} s for a migration of {cost_text(offer.migration)}"
    )


def decided(state: TriggerState, verdict: Verdict, costs: Mapping[str, float], now_s: float) -> TriggerState:
    """The state after a verdict; `costs` are those of the plan that runs from now on."""
    if verdict.accepted:
        return replace(state, reference=dict(costs), switched_s=now_s, in_vain=0, seen=0, is_pending=False)
    if verdict.is_final:
        return replace(state, reference=dict(costs), in_vain=state.in_vain + 1, seen=0, is_pending=False)
    return state
