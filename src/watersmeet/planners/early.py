"""Whether rows are grouped below the join, where a query leaves it open: by the costs of the plans of both kinds.

A choice is kept with the query in its checkpoint, since that belongs to the SELECTs that it was made for.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from watersmeet.errors import InputError
from watersmeet.planners.choose import Chosen
from watersmeet.topology.model import Query, Topology
from watersmeet.topology.views import Asked, outputs_of

PlansOf = Callable[
    [Topology, Query], Mapping[str, Chosen]
]  # the plans of a query's SELECTs; nothing is read or written
_LEAST_SAVED = 0.5  # of the cost: groups of streams are SELECTs of their own, and estimates are not exact


@dataclass(frozen=True, slots=True)
class Shipped:
    """What the plans of a query are expected to ship, and what that comes to by the query's objective."""

    rows_s: float
    bytes_s: float
    value: float


@dataclass(frozen=True, slots=True)
class ComparedGroups:
    """A query over its rows, beside the same over groups of them."""

    rows: Shipped
    groups: Shipped

    @property
    def pays(self) -> bool:
        return self.groups.value < (1 - _LEAST_SAVED) * self.rows.value


def with_early_groups(topology: Topology, plans_of: PlansOf) -> Topology:
    """The topology in which all queries, and the views that they read, say whether rows are grouped below the join."""
    owners: dict[str, Asked] = {}
    for query in topology.queries:
        with suppress(InputError):  # which whoever plans it will say
            owners |= {asked.owner.name: asked for asked in outputs_of(topology, [query])}

    def settled(query: Query) -> Query:
        if query.group_early is not None or query.name not in owners:
            return query
        return replace(query, group_early=_pays(topology, owners[query.name], plans_of))

    return replace(
        topology,
        queries=tuple(map(settled, topology.queries)),
        views=tuple(map(settled, topology.views)),
    )


def _pays(topology: Topology, asked: Asked, plans_of: PlansOf) -> bool:
    query = asked.owner if asked.site is None else replace(asked.owner, site=asked.site)
    if query.plan is not None or query.planner not in (None, "auto") or query.errors != "fail":
        return False  # what fails would be kept or counted by groups, not by rows
    if len(topology.site_names) == 1 or not _fails_alike(asked):
        return False
    compared = compare_early(topology, query, plans_of)
    return compared is not None and compared.pays


def _fails_alike(asked: Asked) -> bool:
    """Whether no expression would be evaluated for rows that have no partner, for which it might fail."""
    for _, query in asked.output.branches:
        grouping = query.grouping
        arguments = (
            []
            if grouping is None
            else [aggregate.item for aggregate in grouping.aggregates if aggregate.item is not None]
        )
        if grouping is None or not all(query.select[item].expression.is_plain for item in arguments):
            return False
    return True


def compare_early(topology: Topology, query: Query, plans_of: PlansOf) -> ComparedGroups | None:
    """What a query is expected to cost over rows and over groups; None if it has no groups, or it is not known."""
    views = tuple(view for view in topology.views if view.name != query.name)
    shipped = []
    try:
        outputs_of(replace(topology, views=views), [replace(query, group_early=True)])
        for is_early in (False, True):
            one = replace(query, group_early=is_early)
            shipped.append(_shipped(plans_of(replace(topology, queries=(one,), views=views), one).values()))
    except InputError:
        return None
    rows, groups = shipped
    return None if rows is None or groups is None or not rows.bytes_s else ComparedGroups(rows, groups)


def _shipped(plans: Iterable[Chosen]) -> Shipped | None:
    rows_s = bytes_s = value = 0.0
    for chosen in plans:
        if chosen.planner == "local":
            continue  # which ships nothing
        if chosen.cost is None or chosen.problem is None:
            return None
        rows_s += sum(flow.rows_s for flow in chosen.cost.flows if flow.origin != flow.to)
        bytes_s += chosen.cost.bytes_s
        value += chosen.problem.objective.value(chosen.cost, chosen.problem.topology)
    return Shipped(rows_s, bytes_s, value)
