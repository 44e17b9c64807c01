"""What a run is, as events: its topology, its queries, the programs of its sites, and what is expected of them."""

from collections.abc import Iterator, Mapping
from typing import assert_never

from watersmeet.cost.costs import Cost
from watersmeet.metrics.events import (
    LinkCounts,
    QueryDescribed,
    ShippingExpected,
    SiteProgramInForce,
    TopologyInForce,
)
from watersmeet.metrics.traffic import expected_flows
from watersmeet.plan.nodes import Plan, join_plans_of
from watersmeet.program.operators import Announce, Gather, Join, Operator, Pair, Probe, ProjectKeys, Semijoin
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.site.outbox import flow_purposes, traffic_by_purpose
from watersmeet.program.site.program import Shipment, SiteProgram
from watersmeet.topology.model import Topology


def topology_event(topology: Topology) -> TopologyInForce:
    """Sites, links between those that have one, and homes of streams."""
    sites = topology.site_names
    links = []
    for origin in sites:
        for to in sites:
            if origin != to and topology.is_linked(origin, to):
                link = topology.link(origin, to)
                links.append((origin, to, link.latency_us / 1e3, link.price_per_gb))
    homes = {stream: home for stream, home in topology.homes.items() if home is not None}
    return TopologyInForce(tuple(sites), tuple(links), homes)


def query_event(topology: Topology, name: str, plan: Plan) -> QueryDescribed:
    """What a planned query asks."""
    query = topology.query(name)
    streams = sorted({scan.stream for join in join_plans_of(plan) for scan in join.scans})
    return QueryDescribed(name, query.sql, tuple(streams), topology.query_site(query))


def program_event(program: SiteProgram) -> SiteProgramInForce:
    """The operators of a site, and what it ships for which queries."""
    operators = [f"{', '.join(part.queries)}: {_text(operator)}" for part, operator in program.operators]
    shipments = [
        (shipment.to, shipment.arrives_as, shipment.purpose.value, ", ".join(_queries_of(program, shipment)))
        for shipment in program.shipments
    ]
    return SiteProgramInForce(program.site, tuple(operators), tuple(shipments))


def _queries_of(program: SiteProgram, shipment: Shipment) -> list[str]:
    users = [
        part
        for part in program.parts
        if any(ship.to == shipment.to and part.flow(ship.flow) == shipment.flow for ship in part.program.ships)
        or (shipment.join and part.name == shipment.join)
    ]
    return list(dict.fromkeys(query for part in users for query in part.queries))


def _text(operator: Operator) -> str:
    match operator:
        case Probe():
            return f"probe {', '.join(lookup.alias for lookup in operator.lookups)} with new rows of {operator.head}"
        case Join():
            return f"join {operator.left} with the window of {operator.alias}"
        case Pair():
            return f"join {operator.left} with {operator.right}"
        case Semijoin():
            return f"semijoin {operator.subject} by {operator.witness}"
        case Gather():
            return f"gather rows of {operator.alias} for {len(operator.semijoins)} semijoins"
        case Announce():
            return f"announce keys of {operator.alias}"
        case ProjectKeys():
            return f"project keys of {operator.rows}"
        case _:
            assert_never(operator)


def link_events(program: SiteProgram, ledger: SiteLedger) -> Iterator[LinkCounts]:
    """What a site has sent so far, by link and purpose."""
    purposes = flow_purposes(program)
    for to, sent in traffic_by_purpose(program, ledger).items():
        flows: dict[str, dict[str, int]] = {}
        for name, traffic in ledger.links[to].traffic.items():
            flows.setdefault(purposes(to, name).value, {})[name] = traffic.bytes
        for purpose, traffic in sent.items():
            counts = (traffic.bytes, traffic.batches, traffic.tuples)
            yield LinkCounts(program.site, to, purpose.value, *counts, flows=flows[purpose.value])


def central_bytes(before: SiteLedger, after: SiteLedger) -> dict[str, int]:
    """By stream, what shipping whole the rows that came between two ledgers would have taken."""
    found = {}
    for stream, traffic in after.central.items():
        sent = before.central.get(stream)
        found[stream] = traffic.bytes - (0 if sent is None else sent.bytes)
    return {stream: size for stream, size in found.items() if size}


def shipping_event(
    rates: Mapping[str, float], costs: Mapping[str, Cost], programs: Mapping[str, SiteProgram]
) -> ShippingExpected | None:
    """What plans are expected to ship, by join what each costs, for streams of such rates; None if nothing is known."""
    parts = [part for program in programs.values() for part in program.parts if part.is_in_force]
    streams = {view.stream for part in parts for view in part.views.values()}  # also those of other sites
    streams |= {scan.stream for program in programs.values() for scan in program.sources}
    rows_s = sum(rates.get(name, 0.0) for name in streams)
    flows = expected_flows(costs, programs)
    if not costs or not flows or not rows_s:
        return None
    joins = {query: part.name for part in parts for query in part.queries if part.name in costs}
    return ShippingExpected(
        rows_s,
        tuple((origin, to, purpose.value, name, size) for (origin, to, purpose, name), size in sorted(flows.items())),
        {query: costs[join].bytes_s for query, join in sorted(joins.items())},
    )
