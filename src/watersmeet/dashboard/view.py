"""The run as it is now, as JSON for the page and as figures for the terminal."""

from collections.abc import Iterable
from dataclasses import asdict
from itertools import takewhile
from typing import Any

from watersmeet.dashboard.model import RunModel
from watersmeet.dashboard.redact import redacted, redacted_plan, redacted_sql
from watersmeet.metrics.events import (
    LinkCounts,
    MicroBatchCompleted,
    PlanInForce,
    QueryDescribed,
    QueryEnded,
    QueryRemoved,
    RunStarted,
    ShippingExpected,
    SiteProgramInForce,
    SiteStatus,
)

_GIGA = 1e9


def snapshot(model: RunModel, now: float) -> dict[str, Any]:
    """Everything but the history: sites, links, queries, totals."""
    topology = model.topology
    states = {site: model.site_state(site, now) for site in topology.sites}
    links = _links(model, now)
    queries = [_query(model, now, name, links) for name in model.query_names]
    started = [event for _, _, event in model.events_of(RunStarted)]
    return {
        "now": now,
        "began": None if model.first_at > model.last_at else model.first_at,
        "last": model.last_at,
        "is_live": model.is_live,
        "state": _state(states, is_live=model.is_live),
        "message": _message(model),
        "version": started[-1].version if started else "",
        "sites": [_site(model, now, site, *states[site]) for site in topology.sites],
        "links": links,
        "queries": queries,
        "totals": _totals(model, now, links),
        "notes": model.notes_ever,
        "answers": model.answers_ever,
    }


def _state(states: dict[str, tuple[str, str]], *, is_live: bool) -> str:
    found = {state for state, _ in states.values()}
    if not found or found == {"not seen"}:
        return "waiting"
    for worst in ("failed", "silent", "slow", "running"):
        if worst in found:
            return worst
    return "ended"


def _message(model: RunModel) -> str:
    texts = [source.ended.message for source in model.sources.values() if source.ended is not None]
    return redacted(next((text for text in texts if text), ""))


def _site(model: RunModel, now: float, site: str, state: str, why: str) -> dict[str, Any]:
    last: MicroBatchCompleted | None = model.latest(MicroBatchCompleted, site)
    program: SiteProgramInForce | None = model.latest(SiteProgramInForce, site)
    status: SiteStatus | None = model.latest(SiteStatus, site)
    homes = [stream for stream, home in model.topology.streams.items() if home == site]
    counted = [key[2] for key in model.keys("rows") if key[1] == site]
    streams = []
    for stream in dict.fromkeys([*homes, *counted]):
        key = ("rows", site, stream)
        streams.append(
            {
                "name": stream,
                "rows": model.total(*key),
                "rows_s": model.rate(now, [key] if key in model.series else []),
                "late": model.total("late", site, stream),
                "malformed": model.total("malformed", site, stream),
                "watermark_us": None if last is None else last.watermarks.get(stream),
            }
        )
    return {
        "name": site,
        "state": state,
        "why": why,
        "seen": model.seen.get(site),
        "streams": streams,
        "rows_s": sum(stream["rows_s"] for stream in streams),
        "batch": None if last is None else last.batch,
        "batch_seconds": None if last is None else last.seconds,
        "phases": {} if last is None else dict(last.phases),
        "state_rows": None if last is None else last.state_rows,
        "state_bytes": None if last is None else last.state_bytes,
        "segments": None if last is None else last.segments,
        "operators": [] if program is None else [redacted_plan(operator) for operator in program.operators],
        "undelivered": {} if status is None else dict(status.undelivered),
    }


def _links(model: RunModel, now: float) -> list[dict[str, Any]]:
    """Every link that has a flow, and those over which one could go."""
    since, expected = _expected(model)
    seconds = model.stream_seconds(since)
    users = {
        (program.site, to, flow): [query for query in queries.split(", ") if query]
        for _, _, program in model.events_of(SiteProgramInForce)
        for to, flow, _, queries in program.shipments
    }
    names, readers = set(model.query_names), [event for _, _, event in model.events_of(QueryDescribed)]

    def users_of(origin: str, to: str, flow: str) -> list[str]:
        """The queries of a flow; where it belongs to an earlier plan by its name: JOIN~VERSION:... or a stream."""
        if found := users.get((origin, to, flow)):
            return found
        join = flow.partition(":")[0].partition("~")[0]
        return (
            [join] if ":" in flow and join in names else [reader.query for reader in readers if flow in reader.streams]
        )

    sent: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for _, _, event in model.events_of(LinkCounts):
        key = ("link", event.site, event.to, event.purpose)
        rate = model.rate(now, [key] if key in model.series else [])
        counts = {"bytes": model.total(*key), "bytes_s": rate, "batches": event.batches, "tuples": event.tuples}
        sent.setdefault((event.site, event.to), {})[event.purpose] = counts
    parts: dict[tuple[str, str], dict[tuple[str, str], dict[str, Any]]] = {}
    for _, origin, to, purpose, flow in model.keys("flow"):
        size = model.total("flow", origin, to, purpose, flow)
        recent = model.since(since, "flow", origin, to, purpose, flow)
        parts.setdefault((origin, to), {})[purpose, flow] = _flow(size, recent, seconds, None)
    for origin, to, purpose, flow, bytes_s in () if expected is None else expected.flows:
        if bytes_s:
            flows = parts.setdefault((origin, to), {})
            known = flows.get((purpose, flow), {"bytes": 0.0, "since_plan": 0.0})
            flows[purpose, flow] = _flow(known["bytes"], known["since_plan"], seconds, bytes_s)
    found = []
    for origin, to, latency_ms, price in model.topology.links:
        purposes, flows = sent.get((origin, to), {}), parts.get((origin, to), {})
        status: SiteStatus | None = model.latest(SiteStatus, origin)
        found.append(
            {
                "from": origin,
                "to": to,
                "latency_ms": latency_ms,
                "price_per_gb": price,
                "bytes": sum(purpose["bytes"] for purpose in purposes.values()),
                "bytes_s": sum(purpose["bytes_s"] for purpose in purposes.values()),
                "purposes": purposes,
                "backlog": 0 if status is None else status.backlog_bytes.get(to, 0),
                "measured_latency_s": None if status is None else status.latency_s.get(to),
                "is_stuck": model.is_stuck(origin, to),
                "flows": [
                    {
                        "purpose": purpose,
                        "flow": flow,
                        "queries": users_of(origin, to, flow),
                        **one,
                    }
                    for (purpose, flow), one in sorted(flows.items())
                ],
            }
        )
    return found


def _flow(size: float, recent: float, seconds: float, expected_s: float | None) -> dict[str, Any]:
    """What a flow has shipped, and since the plan is in force: in all, and by the second of its streams."""
    return {
        "bytes": size,
        "since_plan": recent,
        "measured_s": recent / seconds if seconds else None,
        "expected_s": expected_s,
    }


def _expected(model: RunModel) -> tuple[float, ShippingExpected | None]:
    """What is expected of the plan in force, and since when it is, or the run was started.

    Sites by themselves may know only the plan that they were started with.
    """
    shipped = {
        (program.site, to, flow)
        for _, _, program in model.events_of(SiteProgramInForce)
        for to, flow, _, _ in program.shipments
    }
    found = [(at, event) for _, at, event in model.events_of(ShippingExpected)]

    def fit(one: tuple[float, ShippingExpected]) -> tuple[int, float]:
        return len(shipped & {(origin, to, flow) for origin, to, _, flow, _ in one[1].flows}), one[0]

    return max(found, key=fit) if found else (0.0, None)


def _query(model: RunModel, now: float, name: str, links: list[dict[str, Any]]) -> dict[str, Any]:
    described = next((e for _, _, e in model.events_of(QueryDescribed) if e.query == name), None)
    plans = [(at, event) for _, at, event in model.events_of(PlanInForce) if event.query == name]
    plan = max(plans, key=lambda plan: plan[0])[1] if plans else None
    streams = () if described is None else described.streams
    median, p99 = model.delays(name)
    key = ("answers", name)
    prices = {(link["from"], link["to"]): link["price_per_gb"] / _GIGA for link in links}
    flows = [
        {"from": link["from"], "to": link["to"], **flow}
        for link in links
        for flow in link["flows"]
        if name in flow["queries"]
    ]
    site = None if described is None else described.site
    expected_s = _sum(flow["expected_s"] for flow in flows)
    if expected_s is None and plan is not None:
        expected_s = plan.expected_bytes_s
    central, central_price = _central(model, prices, {(stream, site) for stream in streams if site})
    readers = {kept for stream in streams for kept in (model.topology.streams.get(stream),) if kept}
    return {
        "name": name,
        "sql": "" if described is None else redacted_sql(described.sql.strip()),
        "streams": list(streams),
        "site": site,
        "sites": sorted(readers),
        "planner": None if plan is None else plan.planner,
        "plan": "" if plan is None else redacted_plan(plan.plan_text),
        "version": None if plan is None else plan.version,
        "state": _query_state(model, name),
        "rows": sum(model.totals("rows", at2=stream) for stream in streams),
        "late": sum(model.totals("late", at2=stream) for stream in streams),
        "malformed": sum(model.totals("malformed", at2=stream) for stream in streams),
        "failed": model.total("failed", name),
        "answers": model.total(*key),
        "answers_s": model.rate(now, [key] if key in model.series else []),
        "delay_median_s": median,
        "delay_p99_s": p99,
        "shipped": sum(flow["bytes"] for flow in flows),
        "shipped_price": sum(flow["bytes"] * prices[flow["from"], flow["to"]] for flow in flows),
        "central": central,
        "central_price": central_price,
        "measured_s": _sum(flow["measured_s"] for flow in flows),
        "expected_s": expected_s,
        "flows": flows,
    }


def _sum(values: Iterable[float | None]) -> float | None:
    """Of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _query_state(model: RunModel, name: str) -> str:
    def latest(kind: type[Any]) -> float:
        return max((at for _, at, event in model.events_of(kind) if event.query == name), default=-1.0)

    if max(latest(QueryEnded), latest(QueryRemoved)) > latest(PlanInForce):
        return "ended" if latest(QueryEnded) > latest(QueryRemoved) else "ending"
    return "running" if model.is_live else "ended"


def _central(
    model: RunModel, prices: dict[tuple[str, str], float], wanted: set[tuple[str, str]]
) -> tuple[float, float]:
    """What shipping streams whole to some sites would have taken, in bytes and money."""
    size = price = 0.0
    for _, home, stream in model.keys("central"):
        for name, site in wanted:
            if name == stream and site != home:
                more = model.total("central", home, stream)
                size += more
                price += more * prices.get((home, site), 0.0)
    return size, price


def _totals(model: RunModel, now: float, links: list[dict[str, Any]]) -> dict[str, Any]:
    prices = {(link["from"], link["to"]): link["price_per_gb"] / _GIGA for link in links}
    wanted = {(stream, event.site) for _, _, event in model.events_of(QueryDescribed) for stream in event.streams}
    central, central_price = _central(model, prices, wanted)
    return {
        "rows": model.totals("rows"),
        "rows_s": model.rate(now, model.keys("rows")),
        "late": model.totals("late"),
        "malformed": model.totals("malformed"),
        "answers": model.totals("answers"),
        "answers_s": model.rate(now, model.keys("answers")),
        "bytes": sum(link["bytes"] for link in links),
        "bytes_s": sum(link["bytes_s"] for link in links),
        "price": sum(link["bytes"] * prices[link["from"], link["to"]] for link in links),
        "central": central,
        "central_price": central_price,
        "state_rows": sum(event.state_rows for _, _, event in model.events_of(MicroBatchCompleted)),
        "state_bytes": sum(event.state_bytes for _, _, event in model.events_of(MicroBatchCompleted)),
    }


def timeline(model: RunModel) -> list[dict[str, Any]]:
    """What happened, the latest last, with what a new plan has changed."""
    return [asdict(note) | {"effect": model.effect(note)} for note in model.notes]


def answers(model: RunModel, after: int = 0) -> dict[str, Any]:
    """The latest answers that were seen, by query, the latest first; only those of samples after a number."""
    found = []
    for name, kept in model.answers.items():
        columns = kept[-1].columns
        new = takewhile(lambda one: one.sample > after, reversed(kept))
        rows = [{"at": value.at, "values": value.row} for value in new if value.columns == columns]
        found.append({"query": name, "columns": columns, "rows": rows})
    return {"samples": model.answers_ever, "queries": found}
