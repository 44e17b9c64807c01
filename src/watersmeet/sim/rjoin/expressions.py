"""Expressions in the simulated network, by DuckDB: filters of tuples, predicates of complete rows, answers."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.query.dialect import to_duckdb
from watersmeet.query.model import Expression, JoinQuery
from watersmeet.sim.sites.rows import query_rows


def judge(alias: str, predicates: Sequence[Expression], rows: pa.Table) -> NDArray[np.bool_]:
    """Which rows satisfy all predicates."""
    flat = rows.rename_columns([f"{alias}.{name}" for name in rows.column_names]) if alias else rows
    condition = " AND ".join(f"({to_duckdb(predicate)})" for predicate in predicates)
    judged = query_rows(f"SELECT coalesce({condition}, false) AS is_true FROM flat", flat=flat)
    verdict: NDArray[np.bool_] = judged.column("is_true").to_numpy(zero_copy_only=False).astype(np.bool_)
    return verdict


def project(query: JoinQuery, rows: pa.Table) -> pa.Table:
    """The answers that complete rows make."""
    select = ", ".join(f'{to_duckdb(item.expression)} AS "{item.name}"' for item in query.select)
    return query_rows(f"SELECT {'DISTINCT ' if query.distinct else ''}{select} FROM flat", flat=rows)
