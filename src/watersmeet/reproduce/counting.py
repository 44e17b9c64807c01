"""What a plan on one key ships, counted over the very rows without running it.

A combination belongs to its latest row, the head. So the combinations of some streams are, summed over the rows of each
as head, the product of how many rows with the same value the windows of the others hold then. That takes time by rows
and not by combinations, however many there are; `measure` in `workloads.py`, which runs the plan, counts the same.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from watersmeet.cost.workload import I64, Workload, members_of
from watersmeet.planners.partition import SubPlans
from watersmeet.planners.trees import shipments_of

_SECOND = 1_000_000


class RowsByValue:
    """The rows of all streams with one key, in order of value and time."""

    def __init__(self, workload: Workload, tables: Mapping[str, pa.Table], event_time: str) -> None:
        (domain,) = workload.domains
        self.workload = workload
        self.windows_us = np.round(workload.window_s * _SECOND).astype(np.int64)
        ts, self.first = [], np.zeros((len(workload.aliases), domain.cells + 1), np.int64)
        start = 0
        for number, alias in enumerate(workload.aliases):
            cells = np.searchsorted(domain.low, tables[alias].column("k0").to_numpy())
            stamps = tables[alias].column(event_time).cast(pa.int64()).to_numpy()
            ts.append(stamps[np.lexsort((stamps, cells))])
            self.first[number] = start + np.concatenate([[0], np.bincount(cells, minlength=domain.cells).cumsum()])
            start += len(stamps)
        self.ts_us: I64 = np.concatenate(ts)

    def combinations(self, mask: int, cells: NDArray[np.bool_], from_us: int) -> float:
        """Combinations of some streams whose value is in some cells and whose latest row is not before a time."""
        members = np.array(members_of(mask), np.int64)
        return float(_combinations(self.ts_us, self.first, self.windows_us, members, np.flatnonzero(cells), from_us))


def shipped_per_s(rows: RowsByValue, sub_plans: SubPlans, full_us: int, seconds: float) -> float:
    """Rows and combinations a second, each as one, that a plan ships once the windows have filled."""
    trees, partition = sub_plans
    (domain,) = rows.workload.domains
    if partition is None:
        cells_of = [np.ones(domain.cells, np.bool_)]
    else:
        of_cells = rows.workload.sub_plan_of_cells(partition)
        cells_of = [of_cells == number for number in range(len(trees))]
    return (
        sum(
            rows.combinations(shipment.mask, cells, full_us)
            for tree, cells in zip(trees, cells_of, strict=True)
            for shipment in shipments_of(tree, rows.workload)
        )
        / seconds
    )


@njit(cache=True)
def _combinations(ts, first, windows_us, members, cells, from_us):  # type: ignore[no-untyped-def]
    total = 0.0
    low, high = np.empty(len(members), np.int64), np.empty(len(members), np.int64)
    for cell in cells:
        for head in range(len(members)):
            for other in range(len(members)):
                low[other] = high[other] = first[members[other], cell]
            for row in range(first[members[head], cell], first[members[head], cell + 1]):
                now = ts[row]
                if now < from_us:
                    continue
                made = 1.0
                for other in range(len(members)):
                    if other == head:
                        continue
                    stream = members[other]
                    end = first[stream, cell + 1]
                    while high[other] < end and (ts[high[other]] < now or (ts[high[other]] == now and other < head)):
                        high[other] += 1
                    while low[other] < high[other] and ts[low[other]] < now - windows_us[stream]:
                        low[other] += 1
                    made *= high[other] - low[other]
                    if made == 0:
                        break
                total += made
    return total
