"""`watersmeet explain`: show the plan of each query and what it is expected to cost."""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from watersmeet.cli.inputs import check_queries, errors_naming, selected_queries
from watersmeet.cli.options import Subparsers, check_trigger, planner_options, topology_of, topology_options
from watersmeet.cli.session import spark_session
from watersmeet.errors import InputError
from watersmeet.query.windows import parse_duration
from watersmeet.topology.model import Query, Topology
from watersmeet.topology.views import readers_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.cost.costs import Cost
    from watersmeet.planners.choose import Chosen
    from watersmeet.planners.problem import Problem
    from watersmeet.spark.planning import Planned


_METHODS = {
    "SP-S": "all rows of the stream are shipped to where the combinations are",
    "SP-D": "the combinations are shipped to where the stream arrives",
    "SM-S1": "keys of new combinations are shipped to the stream, and its rows with these keys come back",
    "SM-S2": "the stream announces its keys, those that are wanted are asked for, and their rows come back",
    "SM-D1": "the stream announces its keys, and combinations with one of them are shipped to it",
    "SM-D2": "keys of new combinations are shipped to the stream, those that it has come back, and combinations with "
    "one of them are shipped to it",
}


_REDUCTIONS = {
    "tree: (": "(a + b) at x means that a and b are joined at x; what it makes is joined further or is the answer",
    "reduced in one step": "the other side announces its keys, and only rows with one of them are shipped",
    "reduced in two steps": "keys of new rows are shipped to the other side, those that it has come back, and only "
    "rows with one of these are shipped",
    "reduced first by keys": "those streams announce their keys to where the rows are, and only rows with one of them "
    "travel at all",
    "with Bloom filters": "keys are shipped as Bloom filters: fewer bytes, and now and then a row too many",
}
_OLD_S = 86_400.0  # statistics that were taken longer ago are named


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "explain",
        parents=[topology_options(), planner_options()],
        help="show the plan of each query and its estimated cost",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="(default: %(default)s)")
    parser.add_argument(
        "--running",
        metavar="CHECKPOINT",
        help="show instead the versions of plans that a run with this checkpoint has, when each took over and why",
    )
    parser.add_argument(
        "--ufl", action="store_true", help="show the op-graphs of PIER that each query becomes, also of a scenario"
    )
    parser.add_argument("--every", action="store_true", help="run every planner and show the cost by planner")
    parser.add_argument("--operators", action="store_true", help="also show what each site does, operator by operator")
    parser.add_argument("--draw", metavar="FILE", help="also draw the plan (.svg or .png); one file a query")
    parser.add_argument(
        "--trigger",
        metavar="INTERVAL",
        help="plan and estimate for micro-batches at this interval (default: batch_interval of the file, else as the "
        "statistics say that rows arrive, else 1 second)",
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Print the plans, and what several queries share, as text or JSON."""
    from watersmeet.planners.choose import estimate

    if options.running is not None:
        from watersmeet.spark.store.mirror import local_root
        from watersmeet.spark.versions_text import running_text

        print(running_text(local_root(options.running)))
        return 0
    if options.ufl:
        return _explain_ufl(options)
    topology = topology_of(options)
    queries = selected_queries(topology, options)
    check_queries(topology, queries)
    check_trigger(options.trigger)
    if options.trigger is not None:
        topology = replace(topology, batch_interval_us=parse_duration(options.trigger))
    with spark_session(options) as spark:
        from watersmeet.spark.first_look import first_look
        from watersmeet.spark.planning import plan_queries
        from watersmeet.spark.run import checkpoint_root

        look = first_look(spark, topology, queries, checkpoint_root(replace(topology, queries=queries), None))
        topology = look.topology
        for query in queries:
            with errors_naming(query):
                planned = plan_queries(spark, topology, [query], every=options.every)
        if len(queries) > 1:
            planned = plan_queries(spark, topology, queries, every=options.every)
        early = [
            line
            for query in queries
            if (line := _early(spark, topology, query, is_early=bool(planned.topology.query(query.name).group_early)))
        ]
    priced = [(name, chosen, estimate(chosen)) for name, chosen in planned.plans.items()]
    if options.draw is not None:
        for name, chosen, cost in priced:
            _draw(options.draw, name if len(priced) > 1 else "", chosen, cost)
    if options.format == "json":
        data = {name: _data(chosen, cost) for name, chosen, cost in priced}
        print(json.dumps(data, indent=2))
    else:
        readers = dict(readers_of(planned.asked))
        texts = [
            _text(_title(name, planned, readers), chosen, cost, operators=options.operators)
            for name, chosen, cost in priced
        ]
        shared = _shared(planned.topology, planned.plans)
        looked = [look.sentence] if look.sentence else []
        print("\n\n".join([*texts, *early, *([shared] if shared else []), *looked]))
    return 0


def _early(spark: "SparkSession", topology: Topology, query: Query, *, is_early: bool) -> str:
    """What aggregation below the join ships or would ship, beside what it takes without; empty where it cannot be."""
    from watersmeet.planners.early import compare_early
    from watersmeet.spark.planning import plan_queries

    found = compare_early(topology, query, lambda topology, asked: plan_queries(spark, topology, [asked]).plans)
    if found is None:
        return ""
    verb = "ship" if is_early else "would ship"
    why = "" if query.group_early is not None else ", so it is done" if is_early else ", so it is not done"
    return (
        f"query {query.name}: groups of equal rows in place of rows (group_early) {verb} {found.groups.rows_s:,.1f} "
        f"records/s instead of {found.rows.rows_s:,.1f} rows/s, {found.groups.bytes_s:,.0f} bytes/s instead of "
        f"{found.rows.bytes_s:,.0f}{why}"
    )


def _explain_ufl(options: argparse.Namespace) -> int:
    """Print UFL; it needs no Spark."""
    from watersmeet.errors import did_you_mean
    from watersmeet.program.pier.ufl.format import format_ufl
    from watersmeet.sim.scenario.load import load_scenario
    from watersmeet.sim.scenario.pier.simulate import explained

    queries = explained(load_scenario(options.topology))
    wanted = options.query
    if wanted is not None:
        found = {name: queries[key] for key in queries for name in key.split(", ")}
        if wanted not in found:
            raise InputError(f"unknown query {wanted!r}; {did_you_mean(wanted, found)}")
        queries = {key: each for key, each in queries.items() if wanted in key.split(", ")}
    if options.format == "json":
        print(json.dumps({name: format_ufl(graphs) for name, (graphs, _) in queries.items()}, indent=2))
        return 0
    parts = []
    for name, (graphs, shared) in queries.items():
        title = f"# query {name}" if shared is None else f"# queries {name}, answered together: {shared}"
        parts.append(f"{title}\n{format_ufl(graphs)}")
    print("\n\n".join(parts))
    return 0


def _shared(topology: Topology, plans: "Mapping[str, Chosen]") -> str:
    from watersmeet.plan.explain_sites import shared_text
    from watersmeet.spark.planning import site_programs

    return shared_text(site_programs(plans, topology))


def _data(chosen: "Chosen", cost: "Cost | None") -> dict[str, object]:
    from watersmeet.plan.explain import estimate_data, explain_data

    estimated = estimate_data(chosen.planner, cost, chosen.batch_interval_s, chosen.note, chosen.tried)
    return explain_data(chosen.plan) | {"estimate": estimated}


def _title(name: str, planned: "Planned", readers: "Mapping[str, list[str]]") -> str:
    """What a plan is for: a query, a part of its UNION ALL, or a view and who reads it."""
    target = next(asked.output.target for asked in planned.asked if name in dict(asked.output.branches))
    is_view = target.is_stream
    what = f"view {target.name}, read by {', '.join(readers[target.name])}" if is_view else f"query {target.name}"
    return what if name == target.name else f"{what}: {name}, another SELECT of its UNION ALL"


def _text(title: str, chosen: "Chosen", cost: "Cost | None", *, operators: bool) -> str:
    from watersmeet.plan.explain import estimate_text, explain_text
    from watersmeet.plan.explain_words import flow_words, shipping_lines
    from watersmeet.plan.nodes import join_plan_of

    join = join_plan_of(chosen.plan)
    words = flow_words(join) if cost is not None else {}
    estimated = estimate_text(chosen.planner, cost, chosen.batch_interval_s, chosen.note, chosen.tried, words)
    estimated = estimated.replace("\n", "\n  ")
    shown = explain_text(chosen.plan, operators=operators)
    used = [f"  {name}: {words}" for name, words in _METHODS.items() if f"by {name}" in shown]
    used += [f"  {name.removesuffix(': (')}: {words}" for name, words in _REDUCTIONS.items() if name in shown]
    old = [] if chosen.problem is None else [f"  {name}" for name in _old_statistics(chosen.problem, time.time())]
    ships = [f"  {line}" for line in shipping_lines(join)] if cost is None else []
    return "\n".join([title, shown, f"  {estimated}", *ships, *used, *old])


def _old_statistics(problem: "Problem", now: float) -> list[str]:
    """The streams whose statistics were taken long ago."""
    found = []
    for name in sorted({source.stream for source in problem.query.sources}):
        known = problem.topology.stats.stream(name)
        numbers = [known.rate, known.row_bytes, *(column.distinct for column in known.columns.values())]
        ages = [age for number in numbers if number is not None and (age := number.age_s(now)) is not None]
        if ages and max(ages) > _OLD_S:
            days = int(max(ages) // _OLD_S)
            found.append(
                f"old: statistics of {name} were taken {days} day{'' if days == 1 else 's'} ago; run `watersmeet stats`"
            )
    return found


def _draw(file: str, name: str, chosen: "Chosen", cost: "Cost | None") -> None:
    """Draw a plan; of several, each into a file of its own."""
    from watersmeet.plan.draw import draw
    from watersmeet.plan.nodes import join_plan_of
    from watersmeet.planners.auto import sub_plan_shares

    path = Path(file)
    if name:
        path = path.with_name(f"{path.stem}-{name}{path.suffix}")
    join = join_plan_of(chosen.plan)
    if len({*join.homes, join.site}) == 1:
        raise InputError("there is nothing to draw: all streams arrive where answers are wanted")
    shares = None
    if join.partition is not None and chosen.problem is not None:
        shares = sub_plan_shares(join.partition, chosen.problem.workload)
    draw(join, cost, path, title=f"{name or 'the plan'}, by {chosen.planner}", shares=shares)
    print(f"drawn to {path}", file=sys.stderr)
