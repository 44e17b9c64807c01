"""Finished combinations of a join: values behind hashed keys compared for real, and the columns asked for above."""

from collections.abc import Mapping
from functools import reduce

import numpy as np
import pyarrow as pa

from watersmeet.plan.nodes import JoinPlan
from watersmeet.program.join.values import same_values

ROW = "#row"  # stands for a combination none of whose columns is asked for


def output_columns(join: JoinPlan) -> tuple[str, ...]:
    """Columns of a finished combination; never none, since Arrow counts rows by columns."""
    return join.output or (ROW,)


def finished(join: JoinPlan, columns: Mapping[str, pa.Array], count: int) -> pa.Table:
    """Finished combinations: those whose values behind hashed keys are the same, with the columns asked for."""
    table = pa.table(dict(columns)) if join.output else pa.table({**columns, ROW: pa.nulls(count, pa.bool_())})
    if join.verify:
        same = reduce(np.logical_and, (same_values(columns[left], columns[right]) for left, right in join.verify))
        if not same.all():
            table = table.filter(pa.array(same))
    return table.select(list(output_columns(join)))
