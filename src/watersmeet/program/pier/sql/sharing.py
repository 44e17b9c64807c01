"""GROUP BY queries that differ in their filters as op-graphs that share their work (PIER, chapter 5).

One join without the filters feeds one `fragment`; nodes send the entries of A' instead of records of each query. By the
DHT an entry's records meet at the owner of entry and group, which sends what it has on to the owner of the group; by
aggregation trees each entry has a tree of its own, and one coordinator gets what their roots have. There each query is
reconstructed, and its answers go to the node that asked it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from watersmeet.errors import InputError
from watersmeet.program.aggregate.functions import Rule
from watersmeet.program.pier.expressions import compiled
from watersmeet.program.pier.graph import Call, ConstantArgument, Expression, Operator, TupleField, UflQuery
from watersmeet.program.pier.operators.share import QUERIES, basis_entry, bits_of, set_entry
from watersmeet.program.pier.operators.windows import NODES, PANE, RECORDS, TUPLES, aggregate_of_values
from watersmeet.program.pier.runtime import Receiver
from watersmeet.program.pier.sql.build import Given, operator
from watersmeet.program.pier.sql.check import check_query, flat_schema
from watersmeet.program.pier.sql.expressions import plain_name, predicate_of, ufl_expression
from watersmeet.program.pier.sql.families import FragmentAlgebra, QueryFamily, chosen_families
from watersmeet.program.pier.sql.groups import (
    ROWS,
    GroupPlanner,
    GroupTypes,
    RecordRouting,
    aggregate_call,
    group_types,
)
from watersmeet.program.pier.sql.plan import Planner
from watersmeet.program.pier.sql.settings import PlanSettings, StreamTypes, group_settings
from watersmeet.program.pier.tuples import Schema
from watersmeet.program.pier.values import DOUBLE, INTEGER, STRING
from watersmeet.query.model import GROUP, TIME, JoinQuery, key_of_group
from watersmeet.query.sql.simple import ValueKind, fits
from watersmeet.query.sql.simple import predicate_of as simple_predicate
from watersmeet.sharing.basic import basic_decomposition
from watersmeet.sharing.bits import Bools
from watersmeet.sharing.classify import Classifier
from watersmeet.sharing.cover import rectangle_cover
from watersmeet.sharing.decomposition import IntegerCombination, SetCombination
from watersmeet.sharing.gains import total_gain
from watersmeet.sharing.linear import linear_basis
from watersmeet.sharing.predicates import And, Predicate

_MOST_COMBINATIONS = 1 << 14  # of values that predicates tell apart, from which F is listed before a query is sent
_MOST_CELLS = 1 << 20  # of F, for which a decomposition is searched
_MOST_FACTOR = 127
_INSENSITIVE = {Rule.MIN, Rule.MAX, Rule.UNION, Rule.BOTTOM}  # a row may count twice: nothing changes
_KINDS = {INTEGER: ValueKind.WHOLE, DOUBLE: ValueKind.DOUBLE, STRING: ValueKind.TEXT}
_ARROW = {ValueKind.WHOLE: pa.int64(), ValueKind.DOUBLE: pa.float64(), ValueKind.TEXT: pa.string()}

Terms = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the records of fragments become entries; without sets and factors each node decomposes its own."""

    queries: int
    overlaps: bool = False  # whether a row may count twice: for duplicate-insensitive aggregates it may
    sets: tuple[int, ...] = ()
    factors: tuple[tuple[int, Terms], ...] = ()  # Linear: an independent query, and its factors in queries
    fragments: int | None = None  # of F as the predicates allow; None: they are not simple enough to say

    @property
    def entries(self) -> tuple[bytes, ...]:
        """The names of A', where they are known."""
        return tuple(basis_entry(query) for query, _ in self.factors) or tuple(map(set_entry, self.sets))

    @property
    def gain(self) -> float | None:
        """The share of aggregates that need not be sent (5.7)."""
        return total_gain(len(self.entries), self.queries) if self.entries else None

    def factors_of(self, query: int) -> dict[int, int]:
        """What the records of the independent queries count for a query."""
        return {basis: factor for basis, terms in self.factors for other, factor in terms if other == query and factor}

    def trees_of(self, query: int) -> tuple[int, ...]:
        """The trees that have entries of a query; what no entry was expected for is in the first."""
        if self.factors:
            wanted = self.factors_of(query)
            found = tuple(tree for tree, (basis, _) in enumerate(self.factors) if basis in wanted)
        else:
            found = tuple(tree for tree, set_ in enumerate(self.sets) if set_ >> query & 1)
        return found or (0,)


@dataclass(frozen=True, slots=True)
class SharedQueries:
    """Queries that are answered together, and how."""

    family: QueryFamily
    sharing: Sharing

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, as they were given."""
        return self.family.names

    def graphs(
        self, streams: Mapping[str, StreamTypes], settings: PlanSettings, receivers: Sequence[Receiver]
    ) -> UflQuery:
        """Their op-graphs, with whoever gets the answers of each."""
        return _SharedPlanner(self, streams, settings, receivers).plan()

    @property
    def once(self) -> tuple[tuple[str, ...], ...]:
        """The columns by which answers of each query are known."""
        return tuple(
            tuple(sorted(["#start", *(f"#key{number}" for number in range(len(keys)))])) for keys in self.family.keys
        )


def shared_queries(
    queries: Mapping[str, tuple[JoinQuery, int | None]],
    streams: Mapping[str, StreamTypes],
    settings: PlanSettings,
    *,
    may_subtract: bool = True,
) -> list[SharedQueries]:
    """The queries, by name with the instant from which they count, that are answered together because it pays (5.6.1).

    Where nodes may fail nothing is subtracted: the trees of two entries may then have lost different nodes.
    """

    def algebra_of(query: JoinQuery) -> FragmentAlgebra:
        check_query(query, streams, settings)
        rules = _rules(query, streams)
        if rules <= _INSENSITIVE:
            return FragmentAlgebra.INSENSITIVE
        return FragmentAlgebra.LINEAR if may_subtract and rules == {Rule.SUM} else FragmentAlgebra.GENERAL

    found = chosen_families(
        *(queries, algebra_of, lambda family: _chosen(family, streams)),
        with_coarser_groups=settings.aggregation is not None,
    )
    return [SharedQueries(family, sharing) for family, sharing in found]


# What they share.


def _chosen(family: QueryFamily, streams: Mapping[str, StreamTypes]) -> Sharing | None:
    """The decomposition with the fewest entries; None where it does not pay.

    It pays if records of entries have fewer columns than those of the queries that have the groups and panes of the
    whole; what the others would send by themselves is not known, so it counts as nothing.
    """
    members = family.queries
    overlaps = family.algebra is FragmentAlgebra.INSENSITIVE
    fragments = _static_fragments(members, streams)
    if fragments is None or fragments.size > _MOST_CELLS:
        count = None if fragments is None else len(fragments)
        return Sharing(len(members), overlaps, fragments=count) if family.is_uniform else None
    count, queries = fragments.shape
    found = []
    combination = (rectangle_cover if overlaps else basic_decomposition)(fragments).combination
    assert isinstance(combination, SetCombination), "a decomposition into sets"
    sets = tuple(sorted(bits_of(np.flatnonzero(value).tolist()) for value in combination.basis))
    found.append(Sharing(queries, overlaps, sets=sets, fragments=count))
    if family.algebra is FragmentAlgebra.LINEAR:
        basis = linear_basis(fragments)
        factors = _factors(basis.columns.tolist(), basis.combination)
        if factors is not None:
            found.append(Sharing(queries, factors=factors, fragments=count))
    best = min(found, key=lambda sharing: len(sharing.entries))
    pays = len(best.entries) < queries and len(best.entries) * family.together < family.alone
    return best if best.entries and pays else None


def _factors(columns: Sequence[int], combination: object) -> tuple[tuple[int, Terms], ...] | None:
    if not isinstance(combination, IntegerCombination) or combination.denominator != 1:
        return None
    if np.abs(combination.numerators).max(initial=0) > _MOST_FACTOR:
        return None
    return tuple(
        (column, tuple((query, int(row[query])) for query in np.flatnonzero(row).tolist()))
        for column, row in zip(columns, combination.numerators, strict=True)
    )


def _rules(query: JoinQuery, streams: Mapping[str, StreamTypes]) -> set[Rule]:
    """How the states of a query's aggregates are combined."""
    grouping = query.grouping
    assert grouping is not None, "a query with groups"
    schema, rules = flat_schema(query, streams), set()
    for number, aggregate in enumerate(grouping.aggregates):
        kind = INTEGER
        if aggregate.item is not None:
            kind = compiled(ufl_expression(query.select[aggregate.item].expression), schema)[1]
        rules |= set(aggregate_of_values(aggregate_call(grouping, number), kind).function.rules.values())
    return rules


def _static_fragments(members: Sequence[JoinQuery], streams: Mapping[str, StreamTypes]) -> Bools | None:
    """All rows that F can have by the predicates alone, where these only compare columns with constants."""
    schema = flat_schema(members[0], streams).columns
    kinds = {name: _KINDS.get(kind, ValueKind.OTHER) for name, kind in schema.items()}
    predicates: list[Predicate] = []
    for query in members:
        parts = [simple_predicate(each) for each in query.filters]
        whole = And(tuple(part for part in parts if part is not None))
        if len(whole.parts) < len(parts) or not fits(whole, kinds):
            return None
        predicates.append(whole)
    types = {name: _ARROW[kind] for name, kind in kinds.items() if kind is not ValueKind.OTHER}
    try:
        found = Classifier(predicates, types).static_superset(_MOST_COMBINATIONS)
    except InputError:
        return None
    return found if len(found) else None


# Their op-graphs.


class _SharedPlanner(Planner):
    """One join for all queries, and what follows it."""

    def __init__(
        self,
        shared: SharedQueries,
        streams: Mapping[str, StreamTypes],
        settings: PlanSettings,
        receivers: Sequence[Receiver],
    ) -> None:
        family = shared.family
        filters = {column for query in family.queries for predicate in query.filters for column in predicate.columns}
        joined = replace(family.whole, also_kept=tuple(sorted(filters)))
        super().__init__(joined, streams, replace(settings, roots=1), family.start_us)
        self._shared, self._receivers, self._types_of = shared, receivers, streams

    def _filters(self, alias: str) -> list[Expression]:
        """What rows of some query satisfy, where all queries have simple filters of the alias: these never fail."""
        if len(self._query.sources) == 1:
            return []  # `fragment` is at the same node
        terms = []
        for query in self._shared.family.queries:
            own = [each for each in query.filters if each.aliases == (alias,)]
            if not own or any(simple_predicate(each) is None for each in own):
                return []
            terms.append(_all_of([ufl_expression(each, plain_name) for each in own]))
        different = tuple(dict.fromkeys(terms))
        return [different[0] if len(different) == 1 else Call("or", different)]

    def _grouped(self, source: str, time: str) -> list[Operator]:
        schema, settings = flat_schema(self._query, self._types_of), group_settings(self._settings)
        family, sharing = self._shared.family, self._shared.sharing
        members = [
            GroupPlanner(
                *(query, _types(query, schema), settings, f".{number}", receiver), counts_rows=bool(sharing.factors)
            )
            for number, (query, receiver) in enumerate(zip(family.queries, self._receivers, strict=True))
        ]
        conditions = [_all_of([ufl_expression(each) for each in query.filters]) for query in family.queries]
        planner = _SharedGroups(self._query, _types(self._query, schema), settings, self._shared, members)
        return planner.shared(source, time, conditions, self._add)


def _types(query: JoinQuery, schema: Schema) -> GroupTypes:
    assert query.grouping is not None, "a query with groups"
    return group_types(query, query.grouping, schema)


class _SharedGroups(GroupPlanner):
    """From answers of the join to those of all queries."""

    def __init__(
        self,
        query: JoinQuery,
        types: GroupTypes,
        settings: RecordRouting,
        shared: SharedQueries,
        members: Sequence[GroupPlanner],
    ) -> None:
        self._family, self._sharing, self._members = shared.family, shared.sharing, members
        further = {QUERIES: TupleField(QUERIES)}
        super().__init__(query, types, settings, counts_rows=bool(shared.sharing.factors), further=further)

    def shared(
        self,
        source: str,
        time: str,
        conditions: Sequence[Expression],
        add: Callable[[str, Sequence[Operator]], None],
    ) -> list[Operator]:
        """What follows the join; `add` takes the op-graphs behind it."""
        sharing, grouping, query = self._sharing, self._grouping, self._query
        predicates = tuple(predicate_of(each, f"q{number}") for number, each in enumerate(conditions))
        fragment = operator("fragment", "fragment", None, [source], predicates)
        columns: dict[str, Expression] = {
            item.name: TupleField(time) if item.expression.columns == (TIME,) else ufl_expression(item.expression)
            for item in query.select
        }
        columns[QUERIES] = TupleField(QUERIES)
        take = operator("grouped", "projection", "Generate", ["fragment"], table="grouped", columns=columns)
        keys = [key_of_group(number).flat for number in range(grouping.keys)]
        given = {key: TupleField(query.select[number].name) for number, key in enumerate(keys)}
        names = {key: TupleField(key) for key in keys}
        records = self._groups("records", "grouped", given, takes=TUPLES, gives=RECORDS)
        how: dict[str, Given] = {
            "overlap": "yes" if sharing.overlaps else None,
            "basis": [set_entry(set_).hex() for set_ in sharing.sets],
            "factors": {
                str(basis): " ".join(f"{other}:{factor}" for other, factor in terms) for basis, terms in sharing.factors
            }
            or None,
        }
        entries = self._groups(
            "entries",
            "records",
            names,
            takes=RECORDS,
            gives=RECORDS,
            kind="deconstruct",
            implementation="Linear" if sharing.factors else "Sets",
            more=how,
        )
        made = [fragment, take, records, entries]
        if self._settings.algorithm is not None:
            which: dict[str, Given] = {"column": QUERIES, "entries": [entry.hex() for entry in sharing.entries]}
            tree = self._groups(
                *("tree", "entries", names),
                takes=RECORDS,
                gives=RECORDS,
                implementation="Tree",
                more={**self._tree, **which},
            )
            made += [tree, self._send("groups", "tree", [])]
        else:
            key = self.routing_key(keys)
            made.append(self._send("entries", "entries", [TupleField(QUERIES), *key]))
            whole = self._groups("whole", "in.entries", names, takes=RECORDS, gives=RECORDS)
            add("entries", [self._scan("entries"), whole, self._send("groups", "whole", key)])
        self._answers(names, add)
        return made

    def _answers(self, names: Mapping[str, Expression], add: Callable[[str, Sequence[Operator]], None]) -> None:
        """From entries to the answers of all queries."""
        sharing, has_trees = self._sharing, self._settings.algorithm is not None
        # One probe for all queries: else each of them would ask for all records, and all would get them.
        answers = [self._scan("groups"), operator("all", "flowcontrol", None, ["in.groups"])]
        later: list[tuple[str, Sequence[Operator]]] = []
        for number, member in enumerate(self._members):
            one = self._groups(
                f"reconstruct.{number}",
                "all",
                names,
                takes=RECORDS,
                gives=RECORDS,
                kind="reconstruct",
                implementation="Basic",
                more={
                    "query": str(number),
                    "factors": {str(basis): str(factor) for basis, factor in sharing.factors_of(number).items()}
                    or None,
                    "trees": [str(tree) for tree in sharing.trees_of(number)] if has_trees else [],
                },
            )
            answers += member.answers_of(
                [one] if self._family.is_whole(number) else [one, self._rolled_up(number, one.name)],
                lambda behind, operators: later.append((behind, operators)),
                counts_nodes=has_trees,
                waits=1 + self.waits_of_panes if has_trees else 2,
            )
        add("groups", answers)
        for behind, operators in later:
            add(behind, operators)

    def _rolled_up(self, number: int, source: str) -> Operator:
        """Records of the whole as those of one query, whose keys and aggregates are some of them."""
        columns = {
            key_of_group(own).flat: TupleField(key_of_group(place).flat)
            for own, place in enumerate(self._family.keys[number])
        }
        for own, place in enumerate(self._family.aggregates[number]):
            states = self._types.states[place]
            columns |= {f"{GROUP}.value{own}.{part}": TupleField(f"{GROUP}.value{place}.{part}") for part in states}
        if self._counts_rows:
            columns[f"{ROWS}.n"] = TupleField(f"{ROWS}.n")
        columns[PANE] = TupleField(PANE)
        if self._settings.algorithm is not None:
            columns[NODES] = TupleField(NODES)
        return operator(f"rolled.{number}", "projection", "Generate", [source], table="records", columns=columns)


def _all_of(conditions: Sequence[Expression]) -> Expression:
    if not conditions:
        return ConstantArgument("true", "boolean")
    return conditions[0] if len(conditions) == 1 else Call("and", tuple(conditions))
