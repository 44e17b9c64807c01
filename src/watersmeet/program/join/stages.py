"""One stage of a head's sequence in one bucket: the carrier's rows in, finished or moving combinations out."""

from collections.abc import Callable, Iterator, Mapping
from functools import reduce

import numpy as np
import pyarrow as pa

from watersmeet.plan.nodes import JoinPlan, Key, MultiJoin, Sequence
from watersmeet.program.join.probe import LATEST, LIMIT, Combinations, Lookup, Relation, join
from watersmeet.program.join.values import same_values
from watersmeet.program.storage.segments import KEY, class_column, column, sort_key

WindowOf = Callable[[str, Key], Relation]  # the window of an alias, indexed by a key, in this bucket

ROW = "#row"  # stands for a combination none of whose columns is asked for


def output_columns(plan: MultiJoin | JoinPlan) -> tuple[str, ...]:
    """Columns of a finished combination; never none, since Arrow counts rows by columns."""
    return plan.output or (ROW,)


def run_stage(
    plan: MultiJoin, sequence: Sequence, number: int, carrier: Relation, window_of: WindowOf
) -> Iterator[pa.Table]:
    """Combinations after stage `number`: finished ones after the last stage, else ready to move to the next key."""
    stage = sequence.stages[number]
    bound = _bound_before(sequence, number)
    owners: dict[int, int] = {c: 0 for alias in bound for c in plan.scan(alias).classes}
    lookups: list[Lookup] = []
    for probe in stage.probes:
        relation = window_of(probe.alias, stage.key)
        lookups.append(Lookup(relation, tuple((c, owners[c]) for c in probe.checks)))
        for c in plan.scan(probe.alias).classes:
            owners.setdefault(c, len(lookups))
    relations = (carrier, *(lookup.relation for lookup in lookups))
    names = [_flat_columns(plan, bound), *(_flat_columns(plan, [probe.alias]) for probe in stage.probes)]
    is_last = number == len(sequence.stages) - 1
    for combinations in join(carrier, lookups):
        columns = _fetch(combinations, relations, names)
        if is_last:
            yield finished(plan, columns, len(combinations))
        else:
            yield _moving(sequence, number, combinations, relations, owners, columns)


def carried_classes(plan: MultiJoin) -> frozenset[int]:
    """The key classes that rows must bring along: compared on a hit, or part of a later stage's key."""
    return frozenset(
        c
        for sequence in plan.sequences
        for number, stage in enumerate(sequence.stages)
        for c in (*(stage.key if number else ()), *(c for probe in stage.probes for c in probe.checks))
    )


def moving_key(table: pa.Table, key: Key) -> pa.Table:
    """Moving combinations with the sort key of the stage they move to."""
    keys = sort_key([column(table, class_column(c)) for c in key], table.num_rows)
    return table.append_column(KEY, pa.array(keys))


def finished(plan: MultiJoin | JoinPlan, columns: Mapping[str, pa.Array], count: int) -> pa.Table:
    """Finished combinations: those whose values behind hashed keys are the same, with the columns asked for."""
    table = pa.table(dict(columns)) if plan.output else pa.table({**columns, ROW: pa.nulls(count, pa.bool_())})
    if plan.verify:
        same = reduce(np.logical_and, (same_values(columns[left], columns[right]) for left, right in plan.verify))
        if not same.all():
            table = table.filter(pa.array(same))
    return table.select(list(output_columns(plan)))


def _moving(
    sequence: Sequence,
    number: int,
    combinations: Combinations,
    relations: tuple[Relation, ...],
    owners: Mapping[int, int],
    columns: Mapping[str, pa.Array],
) -> pa.Table:
    classes = {
        c: relations[owner].gather(combinations.rows[owner], [class_column(c)])[0]
        for c, owner in owners.items()
        if _needed_after(sequence, number, c)
    }
    return pa.table(
        {
            LATEST: combinations.latest,
            LIMIT: combinations.limit,
            **{class_column(c): values for c, values in classes.items()},
            **columns,
        }
    )


def _needed_after(sequence: Sequence, number: int, class_number: int) -> bool:
    return any(
        class_number in stage.key or any(class_number in probe.checks for probe in stage.probes)
        for stage in sequence.stages[number + 1 :]
    )


def _bound_before(sequence: Sequence, number: int) -> list[str]:
    return [sequence.head, *(probe.alias for stage in sequence.stages[:number] for probe in stage.probes)]


def _flat_columns(plan: MultiJoin, aliases: list[str]) -> list[str]:
    return [name for alias in aliases for name in plan.scan(alias).columns]


def _fetch(combinations: Combinations, relations: tuple[Relation, ...], names: list[list[str]]) -> dict[str, pa.Array]:
    return {
        name: values
        for relation, rows, wanted in zip(relations, combinations.rows, names, strict=True)
        for name, values in zip(wanted, relation.gather(rows, wanted), strict=True)
    }
