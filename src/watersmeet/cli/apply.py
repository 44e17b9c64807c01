"""`watersmeet apply`: let a deployment go over to another topology, while it runs or at its next start."""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from watersmeet.cli.inputs import check_queries, errors_naming, selected_queries
from watersmeet.cli.options import Subparsers, planner_options, topology_of, topology_options
from watersmeet.cli.session import spark_session
from watersmeet.cli.tables import print_table
from watersmeet.errors import InputError
from watersmeet.topology.difference import Difference, Differences, differences
from watersmeet.topology.model import Topology

if TYPE_CHECKING:
    from watersmeet.spark.requests import TopologyRequest
    from watersmeet.spark.resume import Deployed

_POLL_S = 0.1


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "apply",
        parents=[topology_options(), planner_options()],
        help="let a running deployment go over to another topology",
        description="Queries that the file has and the deployment has not begin, those that it lacks end, those that "
        "ask for something else are replaced; the others do not notice. A deployment that is stopped takes it at its "
        "next start.",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="the checkpoint of the deployment (default: .watersmeet/checkpoints beside the topology file)",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="print what is different and what would be refused")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until it has taken effect")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Print the difference, ask, hand the request to the running process and wait until it has taken effect."""
    topology = topology_of(options)
    topology = replace(topology, queries=selected_queries(topology, options))
    from watersmeet.spark.definitions import topology_text
    from watersmeet.spark.requests import new_request, put_request, requests_in
    from watersmeet.spark.resume import read_deployed, with_known_tables, with_settled
    from watersmeet.spark.run import checkpoint_root

    deployed = read_deployed(checkpoint_root(topology, options.checkpoint), topology)
    topology = with_settled(with_known_tables(topology, deployed.topology), deployed.topology)
    if not topology.has_schemas:
        topology = _with_columns(topology, options)
    check_queries(topology, topology.queries)
    found = differences(deployed.topology, topology)
    if found.rows and not found.refused:
        found = _with_plans(found, topology, deployed, options)
    console = Console(highlight=False)
    if not found.rows:
        console.print("nothing is different")
        return 0
    print_table(difference_table(found.rows), console)
    if found.refused:
        raise InputError(f"this cannot be done while queries run: {found.refused}")
    if options.dry_run:
        return 0
    _ask(options)
    request = new_request(topology_text(topology), "applied")
    if before := deployed.versions.under_way + len(requests_in(deployed.asked_at)):
        console.print(
            f"it comes after {before} {'change' if before == 1 else 'changes'} asked for before", soft_wrap=True
        )
    put_request(deployed.asked_at, request)
    if not deployed.is_running:
        console.print("the deployment is stopped; it goes over at its next start with this topology", soft_wrap=True)
        return 0
    if not options.no_wait:
        _await(deployed, request, console)
    return 0


def _with_columns(topology: Topology, options: argparse.Namespace) -> Topology:
    """The topology with the columns that Spark finds in tables."""
    with spark_session(options, topology) as spark:
        from watersmeet.spark.ingest.tables import with_table_schemas

        return with_table_schemas(spark, topology)


def difference_table(rows: Sequence[Difference]) -> Table:
    """What is different, a line each."""
    table = Table(title="what is different", title_justify="left")
    for heading in ("what", "name", "change", "detail"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(row.kind, row.name, f"{row.change} (refused)" if row.refused else row.change, row.detail)
    return table


def _with_plans(
    found: Differences, topology: Topology, deployed: "Deployed", options: argparse.Namespace
) -> Differences:
    """The differences with those of plans, and what Spark finds wrong with new queries."""
    rows = list(found.rows)
    with spark_session(options, topology) as spark:
        from watersmeet.program.site.changes import QueryPlan, plan_changes
        from watersmeet.spark.planning import check_query

        again: dict[str, QueryPlan] = {}  # with views and SELECTs, which have plans of their own
        for name in (*found.added, *found.replaced, *found.replanned):
            query = topology.query(name)
            with errors_naming(query):
                plans = check_query(spark, topology, query, site=None).plans
            rows += [
                Difference("plan", plan, "new", f"by {plans[plan].planner}") for plan in plans if plan in found.begun
            ]
            if name in found.replanned:
                others = {plan: chosen for plan, chosen in plans.items() if plan not in found.begun}
                again |= {
                    other: QueryPlan(other, chosen.plan, planner=chosen.planner) for other, chosen in others.items()
                }
        rows = list(dict.fromkeys(rows))
        changed = plan_changes(deployed.versions.deployment, again.values())
        rows += [Difference("plan", plan.query, "changed", f"by {plan.planner}") for plan in changed]
    return replace(found, rows=tuple(rows))


def _ask(options: argparse.Namespace) -> None:
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise InputError("apply asks before it changes anything, but there is nobody to ask; add --yes")
    print("go over to this? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().casefold() not in ("y", "yes"):
        raise InputError("nothing was changed")


def _await(deployed: "Deployed", request: "TopologyRequest", console: Console) -> None:
    """Wait until all sites have gone over, and say from which instant on; InputError if they have not."""
    from watersmeet.spark.apply import NOTHING
    from watersmeet.spark.requests import is_waiting, take_answer
    from watersmeet.spark.resume import became_of
    from watersmeet.spark.versions_text import format_instant

    said: set[Path] = set()
    while True:
        answer = take_answer(deployed.asked_at, request.id)
        if answer == NOTHING:
            console.print("the sites run it already")
            return
        if answer is not None:
            raise InputError(f"it was refused: {answer}")
        entries = became_of(deployed.checkpoints, request.id)
        for place, entry in entries.items():
            if entry.refused:
                raise InputError(f"the sites have called it off: {entry.refused}")
            if place not in said:
                said.add(place)
                console.print(
                    f"site {place.name}: in force from {format_instant(entry.at_us)} on, as revision {entry.revision}"
                )
        if len(entries) == len(deployed.checkpoints):
            return
        if is_waiting(deployed.asked_at, request.id) and not deployed.is_running:
            console.print("the deployment has stopped; it goes over at its next start", soft_wrap=True)
            return
        time.sleep(_POLL_S)
