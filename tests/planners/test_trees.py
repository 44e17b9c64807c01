"""Trees of meets against the paper's examples, a brute force and a plain reading of algorithm 1."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.cost.workload import Domain, Workload, members_of
from watersmeet.errors import InputError
from watersmeet.plan.nodes import Input, JoinNode, Leaf, Tree, leaves_of
from watersmeet.planners.trees import (
    BYTES,
    TUPLES,
    Shipping,
    cost_of,
    local_first,
    optimal,
    rates_of_all,
    shipments_of,
    simple,
    site_of,
    stream_join_opt,
)

repeatable = settings(derandomize=True, deadline=None, max_examples=60)
LINKS = Shipping(link=lambda origin, to: 1.0 + (3 * int(origin[1:]) + 5 * int(to[1:])) % 7)  # not even symmetric
WEIGHTS = [TUPLES, BYTES, LINKS]


def meet(at: str, *nodes: Tree | str) -> JoinNode:
    return JoinNode(at, tuple(Input(Leaf(node) if isinstance(node, str) else node) for node in nodes))


def domain(shares: Sequence[Sequence[float]], members: Sequence[bool]) -> Domain:
    """A key class whose values are 0, 1, 2 and so on."""
    numbers = np.arange(len(shares[0]))
    return Domain(numbers, numbers, np.ones(len(numbers)), np.array(shares, float), np.array(members))


def edge(count: int, one: int, other: int, selectivity: float) -> Domain:
    """A key class of two aliases that pairs of their rows agree on with a given chance."""
    members = np.isin(np.arange(count), [one, other])
    zero = np.zeros(1, np.int64)
    return Domain(zero, zero, np.array([1 / selectivity]), members[:, None].astype(float), members)


def workload(homes: str, rates: Sequence[float], window_s: Sequence[float], *domains: Domain) -> Workload:
    """Streams s0, s1 and so on at sites n0 to n9, each with rows of one byte."""
    return Workload(
        tuple(f"s{number}" for number in range(len(homes))),
        tuple(f"n{home}" for home in homes),
        None,
        np.array(rates, float),
        np.array(window_s, float),
        domains,
        (((1.0, 1.0, 1.0, 1.0, 1.0),),) * len(homes),
    )


def example_1() -> Workload:
    """The paper's table 1: rates by value a, b and c, and windows of half a second."""
    rates = np.array([[0.1, 0.1, 100], [0.03, 50, 0.04], [50, 0.01, 0.02]])
    total = rates.sum(axis=1)
    return workload("123", total, [0.5] * 3, domain((rates / total[:, None]).tolist(), [True] * 3))


def example_2() -> Workload:
    """The paper's figure 2, with the selectivities that its table 2 and its text leave open."""
    edges = [(0, 1, 0.01), (2, 3, 0.001), (0, 2, 0.004), (0, 4, 0.01)]
    return workload("00112", [10, 35, 25, 30, 15], [10] * 5, *(edge(5, *one) for one in edges))


def drawn(seed: int, count: int, *, sites: int = 4, classes: int = 1, cells: int = 5) -> Workload:
    """Streams with rates and shares at random; several key classes make a random tree of joins."""
    rng = np.random.default_rng(seed)
    groups: list[set[int]] = [set() for _ in range(classes)]
    for number in range(count):
        fits = [group for group in groups if group] if number else groups[:1]
        fits[rng.integers(len(fits))].add(number)
        empty = [group for group in groups if not group]
        if empty and number < count - 1:
            empty[0].add(number)  # a bridge between two classes
    domains = []
    for group in groups:
        members = np.isin(np.arange(count), sorted(group))
        shares = rng.dirichlet(np.full(cells, 0.5), count) * members[:, None]
        domains.append(domain(shares.tolist(), members.tolist()))
    homes = "".join(str(home) for home in rng.integers(sites, size=count))
    return workload(homes, rng.uniform(1, 100, count).tolist(), (10 ** rng.uniform(-2, 0.5, count)).tolist(), *domains)


@st.composite
def workloads(draw: st.DrawFn, most: int = 5) -> Workload:
    """Small workloads with many ties: equal and zero rates, shared sites, values that only some streams have."""
    count = draw(st.integers(2, most))
    classes = draw(st.integers(1, 2))
    members = [[True] * count]
    if classes == 2:
        members = [[number <= count // 2 for number in range(count)], [number >= count // 2 for number in range(count)]]
    weights = st.lists(st.sampled_from([0.0, 1.0, 1.0, 5.0]), min_size=3, max_size=3).filter(any)
    domains = []
    for own in members:
        shares = [np.array(draw(weights)) if is_in else np.zeros(3) for is_in in own]
        domains.append(domain([(one / max(one.sum(), 1.0)).tolist() for one in shares], own))
    homes = "".join(draw(st.lists(st.sampled_from("012"), min_size=count, max_size=count)))
    rates = draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, 7.5, 100.0]), min_size=count, max_size=count))
    windows = draw(st.lists(st.sampled_from([0.01, 0.1, 1.0]), min_size=count, max_size=count))
    site = draw(st.sampled_from([None, "n0", "n3"]))
    return replace(workload(homes, rates, windows, *domains), site=site)


def is_tied(work: Workload, mask: int) -> bool:
    """Whether key classes hold a set of aliases together."""
    reached = mask & -mask
    for _ in members_of(mask):
        reached |= sum(1 << one for one in members_of(mask & ~reached) if work.shared(reached, 1 << one))
    return reached == mask


def blocks(items: list[int]) -> Iterator[list[list[int]]]:
    """Every way to split a list into groups."""
    if not items:
        yield []
        return
    first, *rest = items
    for split in blocks(rest):
        yield [[first], *split]
        for place in range(len(split)):
            yield [*split[:place], [first, *split[place]], *split[place + 1 :]]


def all_trees(work: Workload, items: list[int], sites: Sequence[str]) -> Iterator[Tree]:
    """Every tree of meets over some aliases with every placement."""
    if len(items) == 1:
        yield Leaf(work.aliases[items[0]])
        return
    if not is_tied(work, sum(1 << one for one in items)):
        return
    for split in blocks(items):
        if len(split) > 1:
            inputs: list[tuple[Tree, ...]] = [()]
            for group in split:
                inputs = [(*before, tree) for before in inputs for tree in all_trees(work, group, sites)]
            yield from (meet(at, *nodes) for nodes in inputs for at in sites)


def test_example_1_by_hand() -> None:
    work = example_1()
    assert work.combination_rate(0b011) == pytest.approx(9.003)
    assert work.combination_rate(0b101) == pytest.approx(7.001)
    assert work.combination_rate(0b110) == pytest.approx(2.0008)
    assert cost_of(simple(work, BYTES), work, BYTES) == pytest.approx(100.1)
    chosen = stream_join_opt(work, BYTES)
    assert chosen == meet("n1", "s0", meet("n2", "s1", "s2"))
    assert cost_of(chosen, work, BYTES) == pytest.approx(54.0316)
    assert cost_of(optimal(work, BYTES), work, BYTES) == pytest.approx(54.0316)


def test_example_2_by_hand() -> None:
    work = example_2()
    assert work.combination_rate(0b00011) == pytest.approx(70)
    assert (work.combination_rate(0b01100), work.count(0b01100)) == pytest.approx((15, 75))
    assert (work.combination_rate(0b01101), work.count(0b01101)) == pytest.approx((9, 30))
    assert stream_join_opt(work) == meet("n0", "s1", meet("n1", meet("n1", "s2", "s3"), "s0"), "s4")
    assert cost_of(stream_join_opt(work), work) == pytest.approx(10 + 9 + 15)


def test_local_first_joins_whatever_is_local() -> None:
    work = example_2()
    assert local_first(work) == meet("n0", meet("n0", meet("n0", "s0", "s1"), meet("n1", "s2", "s3")), "s4")
    together = workload("0011", [1] * 4, [1] * 4, domain([[1.0]] * 4, [True] * 4))
    assert local_first(together) == meet("n1", meet("n1", "s2", "s3"), meet("n0", "s0", "s1"))


def literal_algorithm_1(work: Workload) -> float:
    """The pseudo code line by line on sets of aliases, each with its site, and what its plan ships a second."""
    rate = work.combination_rate
    streams: list[tuple[int, str]] = []
    for site in sorted(set(work.homes)):
        own = sorted((1 << n for n, home in enumerate(work.homes) if home == site), key=rate)
        j = 0
        while j < len(own):
            k = j + 1
            while k < len(own):
                if work.shared(own[j], own[k]) and rate(own[j] | own[k]) < rate(own[j]):
                    own[j] |= own.pop(k)
                else:
                    k += 1
            j += 1
        streams += [(mask, site) for mask in own]
    shipped = 0.0
    while len(streams) > 1:
        streams.sort(key=lambda one: rate(one[0]))
        pending = [streams.pop(0)]
        while True:
            together = sum(mask for mask, _ in pending)
            offers = []
            for mask, at in streams:
                if work.shared(together, mask):
                    first = sum(rate(one) for one, home in pending if home != at) + rate(together | mask)
                    second = sum(rate(one) for one, _ in pending) + rate(mask)
                    offers.append((min(first, second), first <= second, mask, at))
            _, here, mask, at = min(offers)
            streams.remove((mask, at))
            if here or not streams:
                shipped += sum(rate(one) for one, home in pending if home != at)
                streams.append((together | mask, at))
                break
            pending.append((mask, at))
    return shipped


@pytest.mark.parametrize("seed", range(60))
def test_algorithm_1_is_the_pseudo_code(seed: int) -> None:
    work = drawn(seed, 3 + seed % 7, sites=2 + seed % 5, classes=1 + seed % 3)
    assert cost_of(stream_join_opt(work), work) == pytest.approx(literal_algorithm_1(work))


@repeatable
@given(workloads())
def test_rates_of_all_sets_are_those_of_each(work: Workload) -> None:
    each = [work.combination_rate(mask) for mask in range(1, 1 << len(work.aliases))]
    assert rates_of_all(work)[1:].tolist() == pytest.approx(each)


def test_rates_of_all_sets_in_several_chunks() -> None:
    work = drawn(3, 12, classes=2, cells=700)
    masks = range(1, 1 << 12, 37)
    assert rates_of_all(work)[list(masks)].tolist() == pytest.approx([work.combination_rate(mask) for mask in masks])


@pytest.mark.parametrize("weigh", WEIGHTS)
@repeatable
@given(work=workloads(most=4), deliver=st.booleans())
def test_the_optimum_is_that_of_all_trees(weigh: Shipping, work: Workload, deliver: bool) -> None:
    sites = sorted({*work.homes, *([work.site] if work.site else [])})
    trees = all_trees(work, list(range(len(work.aliases))), sites)
    least = min(cost_of(tree, work, weigh, deliver=deliver) for tree in trees)
    found = optimal(work, weigh, deliver=deliver)
    assert cost_of(found, work, weigh, deliver=deliver) == pytest.approx(least)


@pytest.mark.parametrize("weigh", WEIGHTS)
@repeatable
@given(work=workloads())
def test_nothing_is_below_the_optimum_and_all_trees_are_whole(weigh: Shipping, work: Workload) -> None:
    least = cost_of(optimal(work, weigh), work, weigh)
    for planner in (optimal, simple, local_first, stream_join_opt):
        tree = planner(work, weigh)
        assert sorted(leaves_of(tree)) == sorted(work.aliases)
        assert tree == planner(work, weigh)
        assert cost_of(tree, work, weigh) >= least * (1 - 1e-9)
        assert_first_input_is_local(tree, work)


def assert_first_input_is_local(tree: Tree, work: Workload) -> None:
    if isinstance(tree, JoinNode):
        if any(site_of(one.node, work) == tree.at for one in tree.inputs):
            assert site_of(tree.inputs[0].node, work) == tree.at
        for one in tree.inputs:
            assert is_tied(work, work.mask(leaves_of(one.node)))
            assert_first_input_is_local(one.node, work)


@repeatable
@given(work=workloads(), number=st.integers(0, 4), factor=st.sampled_from([1.0, 1.5, 10.0]))
def test_more_rows_never_cost_less(work: Workload, number: int, factor: float) -> None:
    rate = work.rate.copy()
    rate[number % len(rate)] *= factor
    faster = replace(work, rate=rate, _memory={})
    for tree in (simple(work), stream_join_opt(work), optimal(work)):
        assert cost_of(tree, faster) >= cost_of(tree, work) * (1 - 1e-9)


def test_delivery_is_counted_where_it_is_asked_for() -> None:
    work = replace(example_1(), site="n9")
    tree = stream_join_opt(work)
    answers = work.combination_rate(0b111)
    assert cost_of(tree, work, deliver=True) == pytest.approx(cost_of(tree, work) + answers)
    assert shipments_of(tree, work, deliver=True)[-1].to == "n9"
    assert (
        optimal(replace(work, site="n3"), Shipping(lambda work, mask: 1e6 if mask == 0b111 else 1.0), deliver=True).at
        == "n3"
    )


def test_what_nothing_ties_is_named() -> None:
    work = workload("01234", [1] * 5, [1] * 5, edge(5, 0, 1, 0.1), edge(5, 1, 3, 0.1), edge(5, 2, 4, 0.1))
    for planner in (optimal, simple, local_first, stream_join_opt):
        with pytest.raises(InputError, match=r"^nothing ties s2, s4 to the other streams"):
            planner(work)


def test_too_many_or_too_few_streams_are_refused() -> None:
    with pytest.raises(InputError, match="up to 16 streams and the query has 17"):
        optimal(drawn(0, 17))
    with pytest.raises(InputError, match="two streams or more"):
        simple(drawn(0, 1))


def test_a_hundred_streams_are_planned() -> None:
    work = drawn(5, 100, sites=9, classes=7, cells=50)
    assert sorted(leaves_of(stream_join_opt(work))) == sorted(work.aliases)
