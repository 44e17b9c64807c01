"""The workload of RJoin: frequencies by Zipf's law, chains whose neighbours differ, one seed one workload."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from watersmeet.query.windows import Range
from watersmeet.sim.rjoin.workload import ZipfWorkload, zipf

TUPLES = 20_000


def misfit(counts: NDArray[np.int64], chances: NDArray[np.float64]) -> float:
    """Pearson's chi-square over its degrees of freedom: about 1 if the counts are drawn by these chances."""
    expected = counts.sum() * chances
    return float(((counts - expected) ** 2 / expected).sum() / (len(counts) - 1))


@pytest.mark.parametrize("theta", [0.3, 0.9])
def test_relations_and_values_follow_zipfs_law(theta: float) -> None:
    relations, values = ZipfWorkload(theta=theta, seed=5).tuples(TUPLES)
    assert values.shape == (TUPLES, 10)
    assert misfit(np.bincount(relations, minlength=10), zipf(10, theta)) < 2.5
    for attribute in range(10):
        assert misfit(np.bincount(values[:, attribute], minlength=100), zipf(100, theta)) < 1.6
    # The same counts are far from any other distribution.
    for other in (theta - 0.1, theta + 0.1):
        assert misfit(np.bincount(relations, minlength=10), zipf(10, other)) > 5
        assert misfit(np.bincount(values[:, 0], minlength=100), zipf(100, other)) > 1.8


def test_attributes_are_drawn_apart() -> None:
    relations, values = ZipfWorkload(attributes=3, values=10, seed=2).tuples(TUPLES)
    chances = zipf(10, 0.9)
    together = np.bincount(values[:, 0] * 10 + values[:, 1], minlength=100)
    assert misfit(together, np.outer(chances, chances).ravel()) < 1.6
    beside = np.bincount(relations * 10 + values[:, 2], minlength=100)
    assert misfit(beside, np.outer(chances, chances).ravel()) < 1.6


def test_with_its_own_ranking_each_attribute_has_popular_values_of_its_own() -> None:
    plain, own = (ZipfWorkload(own_ranking=is_own, seed=3).tuples(TUPLES) for is_own in (False, True))
    assert (plain[0] == own[0]).all()
    favourites = set()
    for relation in range(10):
        of_plain, of_own = plain[1][plain[0] == relation, 0], own[1][own[0] == relation, 0]
        counted, renamed = np.bincount(of_plain, minlength=100), np.bincount(of_own, minlength=100)
        assert sorted(counted) == sorted(renamed)  # the same distribution under other names
        assert counted.argmax() == 0
        favourites.add(int(renamed.argmax()))
    assert len(favourites) >= 6


@pytest.mark.parametrize(("relations", "ways"), [(10, 4), (10, 8), (4, 4), (3, 6), (2, 5)])
def test_queries_are_chains_whose_neighbours_differ(relations: int, ways: int) -> None:
    queries = ZipfWorkload(relations=relations, ways=ways, window=Range(7), seed=4).queries(300)
    used = set()
    for query in queries:
        streams = [source.stream for source in query.sources]
        assert len(streams) == ways
        assert all(one != other for one, other in pairwise(streams))
        if ways <= relations:
            assert len(set(streams)) == ways
        chain = [(equality.left.aliases[0], equality.right.aliases[0]) for equality in query.equalities]
        assert chain == [(f"s{number}", f"s{number + 1}") for number in range(ways - 1)]
        assert {source.window for source in query.sources} == {Range(7)}
        used.update(streams)
    assert used == {f"r{number}" for number in range(relations)}


def test_relations_and_attributes_of_queries_are_all_as_likely() -> None:
    queries = ZipfWorkload(seed=6).queries(3_000)
    first = np.bincount([int(query.sources[0].stream[1:]) for query in queries], minlength=10)
    sides = [side for query in queries for equality in query.equalities for side in (equality.left, equality.right)]
    attributes = np.bincount([int(side.columns[0].name[1:]) for side in sides], minlength=10)
    assert misfit(first, np.full(10, 0.1)) < 2.5
    assert misfit(attributes, np.full(10, 0.1)) < 2.5


def test_a_seed_is_a_workload() -> None:
    first, same, other = ZipfWorkload(seed=8), ZipfWorkload(seed=8), ZipfWorkload(seed=9)
    assert first.queries(50) == same.queries(50)
    assert first.queries(50) != other.queries(50)
    assert all((mine == yours).all() for mine, yours in zip(first.tuples(50), same.tuples(50), strict=True))
    assert not (first.tuples(50)[1] == other.tuples(50)[1]).all()


def test_tables_are_the_tuples_one_by_one() -> None:
    workload = ZipfWorkload(relations=3, attributes=2, values=5, seed=1)
    relations, values = workload.tuples(30)
    tables = list(workload.tables(30))
    assert [stream for stream, _ in tables] == [f"r{relation}" for relation in relations]
    assert pa.concat_tables([table for _, table in tables]).to_pydict() == {
        "a0": values[:, 0].tolist(),
        "a1": values[:, 1].tolist(),
    }
    assert workload.schemas["r2"].names == ["a0", "a1", workload.event_times["r2"]]
