"""All aggregates of the engine among peers: by owners of groups, up trees, and shared between queries."""

from collections import Counter
from functools import reduce
from operator import and_, or_
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from peers import answers, network, tuples
from pier_scenarios import is_exact, scenario
from test_shared_queries import NESTED, heat, together
from test_shared_queries import is_exact as all_exact

from watersmeet.errors import InputError, UflError
from watersmeet.program.aggregate.filters import might_contain, most_counts
from watersmeet.program.pier.dataflow import prepare
from watersmeet.program.pier.ufl.format import format_ufl
from watersmeet.program.pier.ufl.parse import parse_ufl
from watersmeet.sim.scenario.pier.simulate import explained, simulate_pier

TREE = ", aggregation: Tree-Hi-S-Topology, group_wait: 2 s"
AGGREGATES = [
    "max_k(d.ts, 3) AS a, min_k(d.badge, 2) AS b, max_k(d.state, 2) AS c",
    "bool_or(d.badge > 4) AS a, bool_and(d.state = 'opened') AS b, count(DISTINCT d.badge) AS c",
    "approx_count_distinct(d.badge) AS a, approx_count_distinct(d.state, 0.1) AS b",
    "sum(DISTINCT d.badge) AS a, count(*) FILTER (WHERE d.badge > 2) AS b, avg(d.badge) AS c",
    "approx_percentile(d.badge, 0.5) AS a, approx_percentile(d.ts, array(0.1, 0.9), 200) AS b",
    "approx_top_k(d.badge, 2) AS a, approx_top_k(d.state, 1, 10) AS b",
]


@pytest.mark.few(8)
@pytest.mark.parametrize("pier", ["", TREE])
@pytest.mark.parametrize("items", AGGREGATES)
def test_groups_are_those_of_the_oracle(tmp_path: Path, items: str, pier: str) -> None:
    sql = f"SELECT d.room, {items} FROM doors [UNBOUNDED] AS d GROUP BY d.room, HOP(4 SECONDS, 2 SECONDS)"
    outcome = simulate_pier(scenario(tmp_path, sql, pier, seed=5))
    assert is_exact(outcome)
    assert (outcome.summary.malformed, outcome.summary.late) == (0, 0)


def test_arrays_are_ordered_by_and_objects_are_not(tmp_path: Path) -> None:
    sql = (
        "SELECT d.room, {} AS a FROM doors [UNBOUNDED] AS d GROUP BY d.room, TUMBLE(4 SECONDS) ORDER BY a DESC LIMIT 3"
    )
    assert is_exact(simulate_pier(scenario(tmp_path, sql.format("approx_percentile(d.badge, 0.9)"), TREE)))
    with pytest.raises(InputError, match="groups cannot be ordered by values with their counts"):
        simulate_pier(scenario(tmp_path, sql.format("approx_top_k(d.badge, 2)"), ""))


@pytest.mark.few(4)
@pytest.mark.parametrize("pier", ["", TREE])
@pytest.mark.parametrize(
    ("items", "overlaps"),
    [
        ("count(DISTINCT h.degrees) AS a, max(h.ts) AS b, approx_count_distinct(h.ts) AS c", True),
        ("max_k(h.degrees, 2) AS a, approx_percentile(h.degrees, 0.5) AS b", False),
    ],
)
def test_queries_share_what_a_row_may_count_twice_for_and_what_it_may_not(
    tmp_path: Path, items: str, overlaps: bool, pier: str
) -> None:
    given = together(tmp_path, [heat(items, where) for where in NESTED], pier, rows=60)
    ((graphs, shared),) = explained(given).values()
    assert shared is not None
    assert shared.entries is not None
    assert shared.entries < len(NESTED)
    assert ("overlap = yes" in format_ufl(graphs)) is overlaps
    assert all_exact(simulate_pier(given))


RECORDS = """%opgraph(g) {{ duration = 20
  %operator(s) {{ type = scan implementation = Local table = t }}
  %operator(r) {{ type = groupby implementation = Window sources[] = s time = $ts length = 4 wait = 1 output = records
    {aggregates} }}
  %operator(t) {{ type = groupby implementation = Tree sources[] = r length = 4 wait = 1 input = records
    algorithm = Tree-Hi-S-Topology {aggregates} }}
  %operator(w) {{ type = groupby implementation = Window sources[] = t length = 4 wait = 1 input = records nodes = yes
    {aggregates} }}
  %operator(out) {{ type = result sources[] = w }} }}"""


def test_filters_histograms_and_bits_go_up_a_tree_of_peers() -> None:
    calls = {
        "h": "histogram($x, 0::integer, 100::integer, 4::integer)",
        "b": "bloom_filter($x, 512::integer, 3::integer)",
        "c": "spectralbloomfilter($x, 512::integer, 3::integer)",
        "all": "bitand($x)",
        "any": "bit_or($x)",
        "p": "percentiledisc($x, 0.25::double)",
        "top": "approx_top_k($x, 3::integer, 1000::integer)",
    }
    chance, pier = Random(4), network(12, seed=4)
    now_us = pier.kernel.now_us
    values = []
    for node in pier.nodes.values():
        own = [chance.randrange(-20, 120) for _ in range(chance.randrange(4))]
        values += own
        if own:
            node.publish(tuples("t", "ts x", [(now_us + number, value) for number, value in enumerate(own)]))
    text = RECORDS.format(aggregates=" ".join(f"aggregates[{name}] = {call}" for name, call in calls.items()))
    assert format_ufl(parse_ufl(format_ufl(parse_ufl(text)))) == format_ufl(parse_ufl(text))
    (record,) = answers(pier, text).records()
    assert record["nodes"] == 12
    places = [0 if x < 0 else 5 if x >= 100 else 1 + x // 25 for x in values]
    assert record["h"] == tuple(places.count(place) for place in range(6))
    assert (record["all"], record["any"]) == (reduce(and_, values), reduce(or_, values))
    assert record["p"] == sorted(values)[-(-len(values) // 4) - 1]
    different = pa.array(sorted(set(values)))
    assert might_contain(record["b"], different, 512, 3).all()
    counts = most_counts(np.array(record["c"]), different, 3)
    assert all(most >= values.count(x) for most, x in zip(counts.tolist(), different.to_pylist(), strict=True))
    assert sum(record["c"]) == 3 * len(values)
    assert record["top"] == tuple(sorted(Counter(values).items(), key=lambda each: (-each[1], each[0]))[:3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("max_k($x)", "maxk takes how many values it has"),
        ("maxk($x, 1.5::double)", "maxk takes how many values it has"),
        ("max_k($x, $ts)", "max_k takes numbers after its argument"),
        ("histogram($x, 5::integer, 1::integer, 4::integer)", "the lowest and the highest number"),
        ("bloomfilter($x, 1e300::double, 3::integer)", "how many places it has"),
        ("approxpercentile($x, 100::integer, 0::integer, 0.5::double, 0.9::double)", "1 for an array or 0"),
        ("approxtopk($x, 5::integer, 3::integer)", "the second not less than the first"),
        ("approxcountdistinct($x, 0.9::double)", "a relative error from 0.004"),
        ("percentiledisc($x, 2::integer)", "a share from 0 to 1"),
        ("sum($x, 2::integer)", "sum takes no numbers"),
        ("boolor()", "boolor takes an argument"),
    ],
)
def test_numbers_that_cannot_be_are_refused(call: str, message: str) -> None:
    with pytest.raises(UflError, match=message):
        prepare(parse_ufl(RECORDS.format(aggregates=f"aggregates[n] = {call}")))


def test_arrays_and_objects_are_values_that_operators_pass_on() -> None:
    """They can be groups, keys of puts and columns of DISTINCT, and what compares them drops tuples."""
    pier = network()
    pier.nodes[0].publish(tuples("t", "ts x", [(1, 5), (2, 7), (3, 5)]))
    text = """%opgraph(g) {{ duration = 12
      %operator(s) {{ type = scan implementation = Local table = t }}
      %operator(w) {{ type = groupby implementation = Window sources[] = s time = $ts length = 1 wait = 1
        aggregates[a] = approxtopk($x, 5::integer, 9::integer) aggregates[k] = mink($x, 2::integer) }}
      {more}
      %operator(out) {{ type = result sources[] = d }} }}"""
    distinct = "%operator(d) { type = dupelim sources[] = w }"
    (record,) = answers(pier, text.format(more=distinct)).records()
    assert (record["a"], record["k"]) == (((5, 2), (7, 1)), (5, 5))
    for more in (
        '%operator(d) { type = top sources[] = w order[] = $a direction[] = "asc nulls first" count = 1 }',
        "%operator(d) { type = groupby sources[] = w groupby[a] = $a groupby[k] = $k aggregates[m] = max($k) }",
        "%operator(d) { type = put implementation = DHT sources[] = w ns = n key[] = $a key[] = $k }",
    ):
        answers(pier, text.format(more=more).replace("sources[] = d }", "sources[] = w }"))
