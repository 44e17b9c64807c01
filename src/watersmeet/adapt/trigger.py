"""When a plan is reconsidered, and whether another one is worth going over to.

The paper's trigger (section 4.2): the cost of a one-way join has changed by more than a threshold since the plan was
last considered. What it lacks: the change must be seen more than once, a least time between changes, a least saving
(hysteresis), and that what is saved over the time that the figures are expected to last is more than migration costs.

How long they last is judged by the phases seen so far. A phase ends with each trigger; the expected rest of one is the
mean of those before, or as long as it has lasted already if that is longer. So figures that swing quickly stop being
followed, and a change that stays is followed at last. Planning takes time itself: after each time that nothing better
was found, small changes wait twice as long, up to sixteen times the least interval.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_NEGLIGIBLE = 0.05  # of all costs: changes of a one-way join that is cheaper are measured against this share
_LARGE = 2.0  # thresholds: so large a change is considered soon, whatever came of smaller ones before
_MOST_DOUBLINGS = 4
_LATEST_PHASE = 0.5  # how much the phase that has just ended counts in the mean


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

    def __post_init__(self) -> None:
        for name in ("threshold", "min_interval_s", "min_saving", "expected_phase_s", "confirmations", "settle_s"):
            if getattr(self, name) < 0:
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
class Offer:
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
    state = replace(state, seen=state.seen + 1 if share > policy.threshold else 0)
    if state.seen >= max(policy.confirmations, 1):
        length_s = now_s - state.began_s
        is_large = share > _LARGE * policy.threshold
        state = replace(state, reference=dict(costs), seen=0, is_pending=True, is_large=is_large)
        if length_s >= policy.settle_s:
            mean_s = policy.expected_phase_s if state.mean_phase_s is None else state.mean_phase_s
            mean_s = _LATEST_PHASE * length_s + (1 - _LATEST_PHASE) * mean_s
            state = replace(state, began_s=now_s, mean_phase_s=mean_s)
            if policy.settle_s:
                state = replace(state, settled_s=now_s + policy.settle_s)
    if state.settled_s is not None and now_s >= state.settled_s:
        state = replace(state, settled_s=None, is_pending=True, is_large=True)
    last = max((when for when in (state.considered_s, state.switched_s) if when is not None), default=None)
    wait_s = policy.min_interval_s * (1 if state.is_large else 2 ** min(state.in_vain, _MOST_DOUBLINGS))
    if not state.is_pending or (last is not None and now_s - last < wait_s):
        return state, None
    state = replace(state, considered_s=now_s)
    return state, worst or CostChange("", 0.0, 0.0)


def expected_rest_s(state: TriggerState, policy: Policy, now_s: float) -> float:
    """For how long the present figures are expected to last from now on."""
    mean_s = policy.expected_phase_s if state.mean_phase_s is None else state.mean_phase_s
    return max(mean_s, now_s - state.began_s)


def judge(state: TriggerState, policy: Policy, offer: Offer, now_s: float) -> Verdict:
    """Whether an offer is worth it.

    >>> judge(TriggerState(), Policy(), Offer(current=100.0, proposed=95.0, migration=0.0), 0.0).reason
    'saves 5%, below min_saving 10%'
    """
    saving = offer.current - offer.proposed
    share = saving / offer.current if offer.current > 0 else 0.0
    if share < policy.min_saving or saving <= 0:
        return Verdict(False, f"saves {max(share, 0):.0%}, below min_saving {policy.min_saving:.0%}")
    rest_s = expected_rest_s(state, policy, now_s)
    gain = saving * rest_s
    if gain <= offer.migration:
        reason = f"saves {gain:.3g} in the {rest_s:.3g} s that figures are expected to last, migration costs "
        return Verdict(False, f"{reason}{offer.migration:.3g}", is_final=False)
    return Verdict(True, f"saves {share:.0%}: {gain:.3g} in {rest_s:.3g} s for a migration of {offer.migration:.3g}")


def decided(state: TriggerState, verdict: Verdict, costs: Mapping[str, float], now_s: float) -> TriggerState:
    """The state after a verdict; `costs` are those of the plan that runs from now on."""
    if verdict.accepted:
        return replace(state, reference=dict(costs), switched_s=now_s, in_vain=0, seen=0, is_pending=False)
    if verdict.is_final:
        return replace(state, reference=dict(costs), in_vain=state.in_vain + 1, seen=0, is_pending=False)
    return state
