"""`watersmeet explain`: show the plan of each query and what it is expected to cost."""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from watersmeet.cli.inputs import check_queries, errors_naming, selected_queries
from watersmeet.cli.options import Subparsers, check_trigger, planner_options, topology_of, topology_options
from watersmeet.cli.session import spark_session
from watersmeet.errors import InputError
from watersmeet.query.windows import parse_duration
from watersmeet.topology.model import Topology
from watersmeet.topology.views import readers_of

if TYPE_CHECKING:
    from watersmeet.cost.price import Cost
    from watersmeet.planners.choose import Chosen
    from watersmeet.spark.run import Planned


_METHODS = {
    "SP-S": "all rows of the stream are shipped to where the combinations are",
    "SP-D": "the combinations are shipped to where the stream arrives",
    "SM-S1": "keys of new combinations are shipped to the stream, and its rows with these keys come back",
    "SM-S2": "the stream announces its keys, those that are wanted are asked for, and their rows come back",
    "SM-D1": "the stream announces its keys, and combinations with one of them are shipped to it",
    "SM-D2": "keys of new combinations are shipped to the stream, those that it has come back, and combinations with "
    "one of them are shipped to it",
}


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
        from watersmeet.spark.run import plan_queries

        for query in queries:
            with errors_naming(query):
                planned = plan_queries(spark, topology, [query], every=options.every)
        if len(queries) > 1:
            planned = plan_queries(spark, topology, queries, every=options.every)
    priced = [(name, chosen, estimate(chosen)) for name, chosen in planned.plans.items()]
    if options.draw is not None:
        for name, chosen, cost in priced:
            _draw(options.draw, name if len(priced) > 1 else "", chosen, cost)
    if options.format == "json":
        data = {name: _data(chosen, cost) for name, chosen, cost in priced}
        print(json.dumps(data, indent=2))
    else:
        readers = dict(readers_of(planned.asked))
        texts = [_text(_title(name, planned, readers), chosen, cost) for name, chosen, cost in priced]
        shared = _shared(planned.topology, planned.plans)
        print("\n\n".join([*texts, *([shared] if shared else [])]))
    return 0


def _explain_ufl(options: argparse.Namespace) -> int:
    """Print UFL; it needs no Spark."""
    from watersmeet.errors import did_you_mean
    from watersmeet.program.pier.ufl.format import format_ufl
    from watersmeet.sim.scenario.load import load_scenario
    from watersmeet.sim.scenario.pier.simulate import ufl_of

    queries = ufl_of(load_scenario(options.topology))
    wanted = options.query
    if wanted is not None:
        if wanted not in queries:
            raise InputError(f"unknown query {wanted!r}; {did_you_mean(wanted, queries)}")
        queries = {wanted: queries[wanted]}
    if options.format == "json":
        print(json.dumps({name: format_ufl(graphs) for name, graphs in queries.items()}, indent=2))
    else:
        print("\n\n".join(f"# query {name}\n{format_ufl(graphs)}" for name, graphs in queries.items()))
    return 0


def _shared(topology: Topology, plans: "Mapping[str, Chosen]") -> str:
    from watersmeet.plan.explain_sites import shared_text
    from watersmeet.spark.run import site_programs

    return shared_text(site_programs(plans, topology))


def _data(chosen: "Chosen", cost: "Cost | None") -> dict[str, object]:
    from watersmeet.plan.explain import estimate_data, explain_data

    estimated = estimate_data(chosen.planner, cost, chosen.batch_interval_s, chosen.note, chosen.tried)
    return explain_data(chosen.plan) | {"estimate": estimated}


def _title(name: str, planned: "Planned", readers: "Mapping[str, list[str]]") -> str:
    """What a plan is for: a query, a part of its UNION ALL, or a view and who reads it."""
    target = next(one.output.target for one in planned.asked if name in dict(one.output.branches))
    is_view = target.is_stream
    what = f"view {target.name}, read by {', '.join(readers[target.name])}" if is_view else f"query {target.name}"
    return what if name == target.name else f"{what}: {name}, another SELECT of its UNION ALL"


def _text(title: str, chosen: "Chosen", cost: "Cost | None") -> str:
    from watersmeet.plan.explain import estimate_text, explain_text

    estimated = estimate_text(chosen.planner, cost, chosen.batch_interval_s, chosen.note, chosen.tried)
    estimated = estimated.replace("\n", "\n  ")
    shown = explain_text(chosen.plan)
    used = [f"  {name}: {words}" for name, words in _METHODS.items() if f"by {name}" in shown]
    return "\n".join([title, shown, f"  {estimated}", *used])


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
