"""Node operator sets (adaptive paper, section 4.1): what each node does for each sequence of a plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from watersmeet.adapt.sequences import ExecutionPlan, StreamPlan


@dataclass(frozen=True, slots=True, order=True)
class HeadFlow:
    """Rows of a head joined as far as a stream; the head's own rows if that is the head."""

    head: str
    stream: str

    def __str__(self) -> str:
        return self.stream if self.head == self.stream else f"{self.stream}^{self.head}"


@dataclass(frozen=True, slots=True, order=True)
class JoinStep:
    """Join new rows of a flow with the window of a stream."""

    rows: HeadFlow
    window: str


@dataclass(frozen=True, slots=True, order=True)
class Update:
    """Keep the window of a stream."""

    window: str


@dataclass(frozen=True, slots=True, order=True)
class ShipStep:
    """Send rows of a flow to a node."""

    rows: HeadFlow
    to: str


Operator: TypeAlias = JoinStep | Update | ShipStep
OperatorSets: TypeAlias = dict[str, dict[str, frozenset[Operator]]]  # by node and head


def sequence_operators(plan: StreamPlan, homes: Mapping[str, str], site: str) -> dict[str, frozenset[Operator]]:
    """What each node does for one sequence; answers go to a site."""
    found: dict[str, set[Operator]] = {homes[stream]: set() for stream in (plan.head, *plan.order)}
    at, rows = homes[plan.head], HeadFlow(plan.head, plan.head)
    for stream, at_destination in zip(plan.order, plan.at_destination, strict=True):
        home = homes[stream]
        if at_destination:
            if at != home:
                found[at].add(ShipStep(rows, home))
            at = home
        elif at != home:
            found[home].add(ShipStep(HeadFlow(stream, stream), at))
        found[at] |= {JoinStep(rows, stream), Update(stream)}
        rows = HeadFlow(plan.head, stream)
    found[at].add(ShipStep(rows, site))
    return {node: frozenset(operators) for node, operators in found.items()}


def operator_sets(plan: ExecutionPlan, homes: Mapping[str, str], site: str) -> OperatorSets:
    """What each node does, by the head it does it for."""
    found: OperatorSets = {homes[sequence.head]: {} for sequence in plan.sequences}
    for sequence in plan.sequences:
        for node, operators in sequence_operators(sequence, homes, site).items():
            found[node][sequence.head] = operators
    return found


def windows_of(operators: Mapping[str, frozenset[Operator]]) -> frozenset[str]:
    """The windows that a node keeps, for whichever head."""
    return frozenset(one.window for each in operators.values() for one in each if isinstance(one, Update))
