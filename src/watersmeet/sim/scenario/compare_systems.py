"""The same streams, queries and network for all systems: what each sends, how long answers take, who bears the load.

Peers have access links and latencies as the scenario says, and their overlay is at rest: it sends nothing of its own. A
site is a peer that publishes a stream or asks a query; sites know each other, and their links have the latency between
these peers and the bandwidth of an access link. What PIER's distribution tree sends without any query is `standing`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from watersmeet.errors import InputError
from watersmeet.program.rjoin.arrays import Longs
from watersmeet.query.bags import bag_of
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.internet.latency import Latency
from watersmeet.sim.scenario.model import PierMode, Scenario, SitesScenario, System
from watersmeet.sim.scenario.network import DynamicSettings
from watersmeet.sim.scenario.pier.simulate import pier_standing, simulate_pier
from watersmeet.sim.scenario.rjoin.feed import UserFeed, checked_streams
from watersmeet.sim.scenario.rjoin.settings import latency_of
from watersmeet.sim.scenario.rjoin.simulate import simulate_rjoin
from watersmeet.sim.scenario.sites import simulate_sites
from watersmeet.sim.scenario.sites_outcome import AnswerDelays
from watersmeet.sim.scenario.workload import UserLoad
from watersmeet.topology.model import Link, Site, Topology

Bags = Mapping[str, pa.Table]


@dataclass(frozen=True, slots=True)
class SystemFigures:
    """What one system needed for a scenario, and what it gave."""

    bytes: int
    messages: int  # each hop of an overlay is one
    standing_bytes: int  # that it sends in this time without any query
    median_us: int | None  # from the event time of an answer's latest tuple to its arrival; None without answers
    p99_us: int | None
    highest_bytes: int  # that one node receives
    mean_bytes: float  # over all nodes of the network
    expected: int
    right: int
    surplus: int

    @property
    def recall(self) -> float:
        """The share of the oracle's answers that came."""
        return self.right / self.expected if self.expected else 1.0


def by_pier(scenario: Scenario) -> SystemFigures:
    """PIER on peers."""
    load = _checked(scenario)
    asked = replace(scenario, system=System.PIER)
    if asked.pier.mode is not PierMode.CONTINUOUS:
        raise InputError("systems are compared on continuous queries; leave out mode: snapshot")
    outcome = simulate_pier(asked, check=False)
    summary = outcome.summary
    standing = pier_standing(asked, summary.virtual_us)
    delays_us = np.concatenate([outcome.delays_us[each.query.name] for each in load.queries])
    return _figures(
        scenario,
        outcome.answers,
        summary.bytes - standing.bytes,
        summary.messages - standing.messages,
        standing.bytes,
        delays_us,
        summary.most_inbound_bytes,
        summary.mean_inbound_bytes,
    )


def by_rjoin(scenario: Scenario) -> SystemFigures:
    """RJoin on the same peers."""
    load = _checked(scenario)
    network = scenario.network
    dynamic = network.dynamic or DynamicSettings()
    outcome = simulate_rjoin(
        replace(scenario, system=System.RJOIN, network=replace(network, dynamic=dynamic)), upkeep=False
    )
    summary, received, answers = outcome.summary, outcome.received_bytes, outcome.answers
    assert summary.dynamic is not None and received is not None and answers is not None, "its network is dynamic"
    names = [each.query.name for each in load.queries]
    return _figures(
        scenario,
        {name: outcome.table(name) for name in names},
        summary.dynamic.bytes_total,
        summary.messages_total,
        0,
        np.concatenate([answers.delays_us(outcome.numbers[name]) for name in names]),
        int(received.max()),
        float(received.sum()) / network.nodes,
    )


def by_sites(planner: str, trigger_us: int) -> Callable[[Scenario], SystemFigures]:
    """Programs of sites at the peers that publish and ask, by a planner."""

    def run(scenario: Scenario) -> SystemFigures:
        topology = topology_of(scenario)
        outcome = simulate_sites(SitesScenario(topology, trigger_us=trigger_us, planner=planner))
        summary = outcome.summary
        received = dict.fromkeys(topology.site_names, 0)
        for row in summary.traffic.rows:
            received[row.to] += row.traffic.bytes
        figures = summary.queries.values()
        delays_us = np.concatenate(list(outcome.delays_us.values()))
        found = _figures(
            scenario,
            outcome.answers,
            summary.traffic.bytes,
            sum(row.traffic.batches for row in summary.traffic.rows),
            0,
            delays_us,
            max(received.values()),
            summary.traffic.bytes / scenario.network.nodes,
        )
        assert all(query.checked.surplus == 0 for query in figures), "sites give no answer too many"
        return found

    return run


def topology_of(scenario: Scenario) -> Topology:
    """Sites for all peers that publish or ask; streams and queries must have homes."""
    load = _checked(scenario)
    given = [each.home for each in load.streams] + [each.home for each in load.queries]
    homes = sorted({_home(home) for home in given})
    latency, dynamic = latency_of(scenario.network), scenario.dynamic or DynamicSettings()
    links = [
        Link((_site(a), _site(b)), _latency_us(scenario, latency, a, b), dynamic.access_bps)
        for a in homes
        for b in homes
        if a < b
    ]
    return Topology(
        streams=tuple(replace(each.stream, site=_site(_home(each.home))) for each in load.streams),
        queries=tuple(replace(each.query, site=_site(_home(each.home)), assume_defaults=True) for each in load.queries),
        sites=tuple(Site(_site(home)) for home in homes),
        links=tuple(links),
    )


def _site(home: int) -> str:
    return f"n{home}"


def _home(home: int | None) -> int:
    if home is None:
        raise InputError("sites are the homes of streams and queries; give each of them a home that is a number")
    return home


def _latency_us(scenario: Scenario, latency: Latency | None, a: int, b: int) -> int:
    return (scenario.network.hop_us or 50_000) if latency is None else latency.latency_us(a, b)


def _checked(scenario: Scenario) -> UserLoad:
    if not isinstance(scenario.load, UserLoad):
        raise InputError("systems are compared on streams and queries of your own; a generated workload is RJoin's")
    return scenario.load


def _figures(
    scenario: Scenario,
    answers: Bags,
    sent_bytes: int,
    messages: int,
    standing_bytes: int,
    delays_us: Longs,
    highest_bytes: int,
    mean_bytes: float,
) -> SystemFigures:
    load = _checked(scenario)
    schemas, event_times = checked_streams(load)
    feed = UserFeed.of(load, event_times)
    tables = {
        each.stream.name: table.select(schemas[each.stream.name].names)
        for each, table in zip(load.streams, feed.tables, strict=True)
    }
    expected = right = surplus = 0
    for each in load.queries:
        parsed = parse_query(each.query.sql, load.columns, allow_cross=each.query.allow_cross)
        wanted, came = bag_of(answer(parsed, tables, event_times)), bag_of(answers[each.query.name])
        expected += wanted.total()
        right += (wanted & came).total()
        surplus += (came - wanted).total()
    found = AnswerDelays.of(delays_us)
    median_us, p99_us = (None, None) if found is None else (found.median_us, found.p99_us)
    return SystemFigures(
        sent_bytes, messages, standing_bytes, median_us, p99_us, highest_bytes, mean_bytes, expected, right, surplus
    )
