"""Rows and combinations for which an expression fails, as a cast of text that is no number does: which and why."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import ExpressionFailed
from watersmeet.program.finish.model import Evaluated, Finish
from watersmeet.program.storage.shelf import Shelf
from watersmeet.query.model import Expression

FAILING = "#failing"  # int beside combinations: the place of the first expression that fails, NULL if none does
DESCRIBED = pa.schema([("query", pa.string()), ("reason", pa.string()), ("inputs", pa.string())])
_LONGEST_INPUTS = 300  # characters of a row in a message


def failed_sink(query: str) -> str:
    """The name under which the ledger has what a query keeps of these, until it is written."""
    return f"#failed {query}"


def first_failing(finish: Finish, fails: Callable[[Expression], str], holds: Callable[[Expression], str]) -> str:
    """The place of the first expression that fails for a combination, as SQL, if no predicate before it rejects it.

    `fails` and `holds` are conditions in a dialect that can try an expression.
    """
    cases = []
    for number, predicate in enumerate(finish.predicates):
        cases += [f"WHEN {fails(predicate)} THEN {number}", f"WHEN NOT {holds(predicate)} THEN NULL"]
    for number, item in enumerate(finish.select, len(finish.predicates)):
        if not item.expression.is_plain:
            cases.append(f"WHEN {fails(item.expression)} THEN {number}")
    return f"CASE {' '.join(cases)} ELSE NULL END"


def set_failing_aside(shelf: Shelf, finish: Finish, table: pa.Table) -> Evaluated:
    """Put combinations on the shelf apart from those for which an expression fails, as the column FAILING says."""
    fails = pc.is_valid(table.column(FAILING))
    good = table.filter(pc.invert(fails)).drop_columns([FAILING])
    paths = (shelf.put("tried", good).path,) if good.num_rows else ()
    count = table.num_rows - good.num_rows
    if not count or finish.errors == "drop":
        return Evaluated(paths, count)
    bad = table.filter(fails)
    reasons = [_reason(finish, number) for number in bad.column(FAILING).to_pylist()]
    rows = bad.drop_columns([FAILING]).select(list(finish.columns)).to_pylist()
    return Evaluated(paths, count, (shelf.put("failed", described([finish.query] * count, reasons, rows)).path,))


def described(queries: Sequence[str], reasons: Sequence[str], rows: Sequence[Any]) -> pa.Table:
    """Rows that are left out: by which query, why, and what was in them."""
    inputs = [json.dumps(row, default=str, ensure_ascii=False) for row in rows]
    return pa.table([pa.array(queries), pa.array(reasons), pa.array(inputs)], schema=DESCRIBED)


def refuse_failed(query: str, table: pa.Table, count: int, cause: str = "") -> None:
    """Say which expression of a query fails, for which row, and what can be done."""
    first = table.filter(pc.equal(table.column("query"), query)).slice(0, 1).to_pylist()[0]
    more = (f" and {count - 1:,} more" if count > 1 else "") + (f" ({cause})" if cause else "")
    cure = "correct the SELECT list, or give" if first["reason"].startswith("SELECT ") else "give"
    raise ExpressionFailed(
        f"query {query!r} failed: {first['reason']} for {first['inputs'][:_LONGEST_INPUTS]}{more}; {cure} the query "
        "`errors: drop` or `errors: keep`, and start it again with the same checkpoint: nothing is lost"
    )


def _reason(finish: Finish, number: int) -> str:
    if number < len(finish.predicates):
        return f"WHERE {shown(finish.predicates[number].sql)} fails"
    return f"SELECT {shown(finish.select[number - len(finish.predicates)].expression.sql)} fails"


def shown(sql: str) -> str:
    """An expression as its user would write it."""
    return sql.replace("`", "")
