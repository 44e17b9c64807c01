"""The plans without partitions that section 4.1 compares."""

from watersmeet.cost.workload import Workload
from watersmeet.planners.partition import SubPlans
from watersmeet.planners.trees import optimal, simple, stream_join_opt
from watersmeet.reproduce.workloads import unpartitioned

LABELS = {"simple": "Simple", "heuristic": "heuristic", "optimal": "optimal"}
PLANS = tuple(LABELS)


def plans_of(workload: Workload) -> dict[str, SubPlans]:
    """All streams to one site, the paper's heuristic, and the optimum, by name."""
    return {
        "simple": unpartitioned(simple(workload)),
        "heuristic": unpartitioned(stream_join_opt(workload)),
        "optimal": unpartitioned(optimal(workload)),
    }
