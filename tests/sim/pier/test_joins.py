"""The joins of section 4.3.3: results by definition, each once, and the order of their costs."""

from collections import Counter
from dataclasses import replace

import pytest

from watersmeet.program.pier.sql.settings import JoinMethod, Transport
from watersmeet.sim.pier.joins import JoinRun, ask_join, expected_results, measure_join, tables_of

SMALL = JoinRun(nodes=12, tuples=10)


@pytest.mark.parametrize(
    "run",
    [
        SMALL,
        replace(SMALL, transport=Transport.IP),
        replace(SMALL, method=JoinMethod.FETCH_MATCHES),
        replace(SMALL, method=JoinMethod.SEMIJOIN),
        replace(SMALL, method=JoinMethod.BLOOM),
        replace(SMALL, method=JoinMethod.HIERARCHICAL, nodes=60, tuples=4),
        replace(SMALL, method=JoinMethod.HIERARCHICAL, nodes=60, tuples=4, skewed=True),
        replace(SMALL, skewed=True),
    ],
    ids=lambda run: f"{run.method.value}-{run.transport.value}-{run.skewed}",
)
def test_results_are_those_of_the_definition_each_once(run: JoinRun) -> None:
    tables = tables_of(run)
    wanted = expected_results(run, tables)
    assert wanted.total() > 10
    pier, client = ask_join(run, tables)
    pier.kernel.run(pier.kernel.now_us + 40_000_000)
    found = Counter((record["rkey"], record["skey"]) for record in client.records())
    assert found == wanted
    assert client.repeated == 0


def test_messages_and_bytes_of_a_run_are_the_same_again() -> None:
    measured = measure_join(JoinRun(nodes=32))
    assert (measured.results, measured.messages, measured.megabytes) == (685, 13_991, 5.866077)
    assert (measured.latency_s, measured.most_inbound_megabytes) == (2.758329, 1.646103)


def test_tuples_have_the_sizes_of_the_paper() -> None:
    tables = tables_of(SMALL)
    pier, client = ask_join(SMALL, tables)
    sizes = {batch.schema.table: batch.size_bytes / len(batch.rows) for batch in [*pier.nodes[0].table("R")]}
    sizes |= {batch.schema.table: batch.size_bytes / len(batch.rows) for batch in [*pier.nodes[0].table("S")]}
    assert sizes == {"R": 1_024, "S": 1_536}
    pier.kernel.run(pier.kernel.now_us + 40_000_000)
    results = [batch.size_bytes / len(batch.rows) for _, batch in client.results]
    assert set(results) == {2_048}


def test_traffic_is_ordered_as_the_paper_says() -> None:
    by_ip = measure_join(replace(SMALL, nodes=24, transport=Transport.IP))
    by_dht = measure_join(replace(SMALL, nodes=24))
    hierarchical = measure_join(replace(SMALL, nodes=24, method=JoinMethod.HIERARCHICAL))
    assert by_ip.results == by_ip.expected == by_dht.results == hierarchical.results
    assert by_ip.megabytes < by_dht.megabytes < hierarchical.megabytes
