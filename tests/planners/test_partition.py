"""Partitions against the paper's example 1, by-hand cases of algorithm 2, and what must hold of every partition."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.cost.workload import I64, Domain, Workload
from watersmeet.errors import InputError
from watersmeet.plan.nodes import HashParts, Input, JoinNode, Leaf, Partition, RangeParts, Tree, ValueParts, leaves_of
from watersmeet.plan.partition import sub_plans_of
from watersmeet.planners.partition import (
    PartMethod,
    Parts,
    candidates,
    cost_of_sub_plans,
    find_partition,
    hash_parts,
    partitioned,
    parts_of,
    pmjoin_cost,
    pmjoin_plan,
    range_parts,
    rank_vectors,
    rate_parts,
)
from watersmeet.planners.trees import BYTES, TUPLES, cost_of, optimal, shipments_of, stream_join_opt

repeatable = settings(derandomize=True, deadline=None, max_examples=60)
METHODS: list[PartMethod] = ["hash", "range", "rate"]
Splitter = Callable[[Workload, int, int], tuple[I64, Parts]]
SPLITTERS: list[Splitter] = [hash_parts, range_parts, rate_parts]


def meet(at: str, *nodes: Tree | str) -> JoinNode:
    return JoinNode(at, tuple(Input(Leaf(node) if isinstance(node, str) else node) for node in nodes))


def workload(rates: Sequence[float], homes: str, window_s: float, *domains: Domain) -> Workload:
    count = len(homes)
    return Workload(
        tuple(f"s{number}" for number in range(count)),
        tuple(f"n{home}" for home in homes),
        None,
        np.array(rates, float),
        np.full(count, window_s),
        domains,
        (((1.0, 1.0, 1.0, 1.0, 1.0),),) * count,
    )


def by_value(rates: Sequence[Sequence[float]], widths: Sequence[int] = ()) -> tuple[Workload, Domain]:
    """One key class, streams at sites of their own, from the rates of each stream in each cell."""
    table = np.array(rates, float)
    size = np.array(widths or [1] * table.shape[1])
    low = np.concatenate([[0], np.cumsum(size)[:-1]])
    total = np.maximum(table.sum(axis=1), 1e-12)
    domain = Domain(low, low + size - 1, size.astype(float), table / total[:, None], np.ones(len(table), bool))
    return workload(total.tolist(), "0123456789"[: len(table)], 0.5, domain), domain


def example_1() -> Workload:
    """The paper's table 1."""
    return by_value([[0.1, 0.1, 100], [0.03, 50, 0.04], [50, 0.01, 0.02]])[0]


def two_keys(homes: str = "01234", rates: Sequence[float] = (50, 60, 70, 5, 8), window_s: float = 0.05) -> Workload:
    """Key class 0 of s0, s1, s2 and key class 1 of s2, s3, s4; every stream has a value of its own that is frequent."""
    shares = np.full((5, 6), 0.04) + np.eye(5, 6) * 0.76
    domains = []
    for own in ([0, 1, 2], [2, 3, 4]):
        members = np.isin(np.arange(5), own)
        domains.append(Domain(np.arange(6), np.arange(6), np.ones(6), shares * members[:, None], members))
    return workload(rates, homes, window_s, *domains)


@st.composite
def workloads(draw: st.DrawFn, *, wide: bool = False) -> Workload:
    count, cells = draw(st.integers(2, 4)), draw(st.integers(1, 6))
    row = st.lists(st.sampled_from([0.0, 0.1, 1.0, 1.0, 20.0]), min_size=cells, max_size=cells).filter(any)
    widths = draw(st.lists(st.integers(1, 4), min_size=cells, max_size=cells)) if wide else ()
    return by_value([draw(row) for _ in range(count)], widths)[0]


def test_example_1_by_hand() -> None:
    work = example_1()
    sub_plans, partition = partitioned(work, 0, rate_parts(work, 0, 3)[1], lambda part: stream_join_opt(part, BYTES))
    assert set(sub_plans) == {
        meet("n2", "s2", meet("n0", "s0", "s1")),  # for value a, and so on: figure 4
        meet("n1", "s1", meet("n0", "s0", "s2")),
        meet("n0", "s0", meet("n1", "s1", "s2")),
    }
    assert partition is not None
    costs = [
        cost_of(sub_plans[sub_plan], work.limited(partition, np.arange(3) == cell), BYTES)
        for cell, sub_plan in enumerate(work.sub_plan_of_cells(partition))
    ]
    assert costs == pytest.approx([0.036, 0.012, 0.0216])
    assert cost_of_sub_plans(sub_plans, partition, work, BYTES) == pytest.approx(0.0696)
    for method in METHODS:
        whole = pmjoin_plan(work, method, 1, BYTES)
        assert cost_of_sub_plans(*whole, work, BYTES) == pytest.approx(54.0316)
    assert cost_of_sub_plans(*pmjoin_plan(work, "rate", 3, BYTES), work, BYTES) == pytest.approx(0.0696)
    assert cost_of_sub_plans(*pmjoin_plan(work, "range", 3, BYTES), work, BYTES) == pytest.approx(0.0696)
    assert pmjoin_cost(work, "range", 3, BYTES) == pytest.approx(0.0696)


@pytest.mark.parametrize("split", SPLITTERS)
@repeatable
@given(work=st.one_of(workloads(), workloads(wide=True)), parts=st.integers(1, 9))
def test_every_cell_is_in_exactly_one_part(split: Splitter, work: Workload, parts: int) -> None:
    part_of, how = split(work, 0, parts)
    domain = work.domains[0]
    assert part_of.shape == (domain.cells,)
    assert set(part_of) <= set(range(parts))
    assert part_of.tolist() == sub_plans_of(Partition(0, how), domain.low).tolist()
    if split is not hash_parts:
        assert part_of.tolist() == sub_plans_of(Partition(0, how), domain.high).tolist()
        assert set(part_of) == set(range(max(part_of) + 1)), "no part is empty"


def test_ranges_are_equal() -> None:
    work, domain = by_value([[1.0] * 10, [1.0] * 10])
    part_of, how = range_parts(work, 0, 5)
    assert how == RangeParts((2, 4, 6, 8), (0, 1, 2, 3, 4))
    assert part_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert range_parts(work, 0, 50)[1] == RangeParts(tuple(domain.low[1:].tolist()), tuple(range(10)))


def test_ranges_end_with_a_cell() -> None:
    work, _ = by_value([[1.0] * 3, [1.0] * 3], [4, 4, 2])
    assert range_parts(work, 0, 2)[1] == RangeParts((8,), (0, 1))


def test_ranks_are_places_in_ascending_order_of_rate() -> None:
    work, _ = by_value([[2.0, 1.0], [3.0, 1.0], [1.0, 0.0]])
    assert rank_vectors(work, 0).tolist() == [[1, 2, 0], [1, 2, 0]]


def test_values_that_rank_alike_are_together_whatever_their_place() -> None:
    work, _ = by_value([[1, 9, 1, 9, 1], [5, 5, 5, 5, 5]])
    part_of, how = rate_parts(work, 0, 4)
    assert part_of.tolist() == [0, 1, 0, 1, 0]
    assert how == ValueParts((0, 2, 4), (0, 0, 0), 1)
    assert sorted(set(rate_parts(work, 0, 5)[0].tolist())) == [0, 1, 2, 3, 4]


def test_wide_cells_are_parted_by_ranges() -> None:
    work, _ = by_value([[1, 9, 1, 9, 1], [5, 5, 5, 5, 5]], [2, 2, 2, 1, 1])
    assert rate_parts(work, 0, 2)[1] == RangeParts((2, 4, 6, 7), (0, 1, 0, 1, 0))


def test_rank_clusters_depend_on_the_seed_alone() -> None:
    rng = np.random.default_rng(1)
    work, _ = by_value(rng.uniform(0, 1, (6, 80)).tolist())
    one, other = rate_parts(work, 0, 7, seed=3), rate_parts(work, 0, 7, seed=3)
    assert one[0].tolist() == other[0].tolist()
    assert 1 < len(set(one[0])) <= 7
    ranks = [tuple(row) for row in rank_vectors(work, 0)]
    assert len({*zip(ranks, one[0].tolist(), strict=True)}) == len(set(ranks))


def test_no_parts_are_refused() -> None:
    for split in SPLITTERS:
        with pytest.raises(InputError, match="cannot be split into 0 parts"):
            split(example_1(), 0, 0)


@pytest.mark.parametrize("method", METHODS)
@repeatable
@given(work=workloads(), parts=st.integers(1, 6))
def test_a_partitioned_optimum_is_never_above_the_whole_one(method: PartMethod, work: Workload, parts: int) -> None:
    sub_plans, partition = partitioned(work, 0, parts_of(work, 0, method, parts), optimal)
    assert (partition is None) == (len(sub_plans) == 1)
    assert len(set(sub_plans)) == len(sub_plans)
    least = cost_of(optimal(work), work)
    assert cost_of_sub_plans(sub_plans, partition, work) <= least * (1 + 1e-9) + 1e-9
    if partition is not None:
        way_of = work.sub_plan_of_cells(partition)
        apart = sum(
            cost_of(optimal(part), part)
            for number in set(way_of)
            for part in [work.limited(partition, way_of == number)]
        )
        assert apart == pytest.approx(cost_of_sub_plans(sub_plans, partition, work)), "merged parts share one best tree"


def test_parts_with_the_same_tree_take_one_way() -> None:
    work = example_1()

    def plan_one(part: Workload) -> JoinNode:
        return meet("n1", "s1", "s0", "s2") if part.domains[0].low[0] == 1 else meet("n0", "s0", "s1", "s2")

    sub_plans = (meet("n0", "s0", "s1", "s2"), meet("n1", "s1", "s0", "s2"))
    assert partitioned(work, 0, RangeParts((1, 2), (0, 1, 2)), plan_one) == (
        sub_plans,
        Partition(0, RangeParts((1, 2), (0, 1, 0))),
    )
    assert partitioned(work, 0, ValueParts((0, 1), (0, 1), 2), plan_one) == (
        sub_plans,
        Partition(0, ValueParts((1,), (1,), 0)),
    )
    assert partitioned(work, 0, RangeParts((2,), (0, 1)), plan_one) == (sub_plans[:1], None)


def test_a_bucket_without_values_goes_with_the_busiest() -> None:
    work, _ = by_value([[1.0, 100.0], [1.0, 100.0]])
    part_of, how = hash_parts(work, 0, 8)
    first, second = part_of.tolist()
    assert first != second
    sub_plans, partition = partitioned(
        work, 0, how, lambda part: meet("n0", "s0", "s1") if part.domains[0].low[0] == 0 else meet("n1", "s1", "s0")
    )
    assert partition is not None and isinstance(partition.parts, HashParts)
    busiest = sub_plans.index(meet("n1", "s1", "s0"))
    assert [sub_plan == busiest for sub_plan in partition.parts.sub_plans] == [bucket != first for bucket in range(8)]


def test_algorithm_2_merges_meets_on_one_key_and_passes_by_what_gives_a_place() -> None:
    work = two_keys()
    lower = meet("n2", "s2", meet("n1", "s1", "s0"))
    tree = meet("n4", "s4", lower, "s3")
    top, below = candidates(tree, work)
    assert (top.node, top.key_class, top.inputs) == (tree, 1, (Leaf("s4"), lower, Leaf("s3")))
    assert (below.node, below.key_class, below.inputs) == (lower, 0, (Leaf("s2"), Leaf("s1"), Leaf("s0")))
    assert below.aliases == {"s0", "s1", "s2"} and below.above == tree
    first = meet("n2", meet("n2", "s2", "s1", "s0"), "s3", "s4")
    assert [one.node for one in candidates(first, work)] == [first], "the input that gives the place stays whole"


def test_a_meet_on_two_keys_is_not_partitioned() -> None:
    work = two_keys()
    tree = meet("n2", "s2", "s0", "s1", "s3", "s4")
    assert candidates(tree, work) == ()
    assert candidates(meet("n4", meet("n2", "s2", "s0", "s3"), "s1", "s4"), work) == ()


def test_the_pick_is_the_one_with_most_input() -> None:
    work = two_keys()
    lower = meet("n2", "s2", meet("n1", "s1", "s0"))
    tree = meet("n4", "s4", lower, "s3")
    assert [one.node for one in find_partition(tree, work)] == [lower], "it is fed by 180 rows a second"
    assert [one.node for one in find_partition(tree, work, "alternative")] == [tree]
    seen = {find_partition(tree, work, "random", seed)[0].node for seed in range(20)}
    assert seen == {lower, tree}
    slow_below = two_keys(rates=(1, 1, 1, 50, 80))
    assert [one.node for one in find_partition(tree, slow_below)] == [tree], "what feeds a pick is dropped too"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pick", ["heuristic", "random", "alternative"])
@pytest.mark.parametrize("homes", ["01234", "00112", "43210"])
def test_plans_by_several_keys_are_whole_and_keep_the_rest(
    method: PartMethod, pick: Literal["heuristic", "random", "alternative"], homes: str
) -> None:
    work = two_keys(homes)
    tree = stream_join_opt(work)
    picked = find_partition(tree, work, pick)
    sub_plans, partition = pmjoin_plan(work, method, 6, pick=pick)
    for sub_plan in sub_plans:
        assert sorted(leaves_of(sub_plan)) == sorted(work.aliases)
    if partition is None:
        return
    assert partition.key_class == picked[0].key_class
    inside = work.mask(picked[0].aliases)
    kept = {one for one in shipments_of(tree, work) if one.mask & ~inside}
    for sub_plan in sub_plans:
        assert kept <= set(shipments_of(sub_plan, work)) or any(
            one.key_class == partition.key_class for one in picked[1:]
        )


def test_several_keys_gain_from_parts() -> None:
    work = two_keys()
    whole = cost_of(stream_join_opt(work), work)
    sub_plans, partition = pmjoin_plan(work, "rate", 6)
    assert partition is not None
    assert cost_of_sub_plans(sub_plans, partition, work) < whole
    assert pmjoin_cost(work, "rate", 6) <= cost_of_sub_plans(sub_plans, partition, work) * (1 + 1e-9)


def test_what_has_no_value_of_the_key_is_shipped_once() -> None:
    work = two_keys()
    one = meet("n4", "s4", meet("n2", "s2", "s0", "s1"), "s3")
    other = meet("n4", "s4", meet("n1", "s1", "s0", "s2"), "s3")
    split = Partition(0, RangeParts((3,), (0, 1)))
    assert cost_of_sub_plans((one, one), split, work) == pytest.approx(cost_of(one, work))
    by_hand = sum(
        cost_of(tree, part, TUPLES) - part.combination_rate(work.mask(["s3"]))
        for number, tree in enumerate((one, other))
        for part in [work.limited(split, work.sub_plan_of_cells(split) == number)]
    )
    assert cost_of_sub_plans((one, other), split, work) == pytest.approx(
        by_hand + work.combination_rate(work.mask(["s3"]))
    )
