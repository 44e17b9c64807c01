"""`watersmeet check`: validate a topology, or verify a checkpoint, without running anything."""

import argparse
import sys

from watersmeet.cli.inputs import check_queries, errors_naming, selected_queries
from watersmeet.cli.options import Subparsers, topology_of, topology_options
from watersmeet.cli.session import spark_session
from watersmeet.cli.tables import counted
from watersmeet.errors import InputError, TopologyError


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "check",
        parents=[topology_options(is_needed=False)],
        help="validate a topology, or verify a checkpoint, without running anything",
    )
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="verify the checkpoints of all sites in DIR: checksums, and that all agrees"
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help="with --checkpoint: remove what power cuts and killed processes have left and nobody needs",
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Check what the options name."""
    if options.topology is None and options.checkpoint is None:
        raise InputError("name a topology file, a checkpoint (--checkpoint DIR), or both")
    if options.repair and options.checkpoint is None:
        raise InputError("--repair is for checkpoints; give --checkpoint DIR")
    if options.topology is not None:
        _check_topology(options)
    is_whole = options.checkpoint is None or _verify(options.checkpoint, repair=options.repair)
    return 0 if is_whole else 1


def _check_topology(options: argparse.Namespace) -> None:
    """Check the file, then with Spark the types of queries and the sources of all streams."""
    topology = topology_of(options)
    queries = selected_queries(topology, options)
    check_queries(topology, queries)
    with spark_session(options) as spark:
        from watersmeet.cost.from_statistics import MissingStatistic
        from watersmeet.spark.binding import stream_schema
        from watersmeet.spark.first_look import first_look
        from watersmeet.spark.ingest.file_columns import unknown_column
        from watersmeet.spark.ingest.sources import check_source, open_stream
        from watersmeet.spark.ingest.tables import open_table, with_table_schemas
        from watersmeet.spark.planning import check_query

        topology = with_table_schemas(spark, topology)
        check_queries(topology, queries)
        for query in queries:
            with errors_naming(query):
                try:
                    check_query(spark, topology, query)
                except MissingStatistic:  # a run looks at the sources first
                    check_query(spark, first_look(spark, topology, [query]).topology, query)
        for stream in topology.streams:
            schema = stream_schema(spark, stream)
            check_source(stream, schema, once=False)
            open_stream(spark, stream, schema)
            if (wrong := unknown_column(stream)) is not None:
                raise TopologyError(wrong)
        for table in topology.tables:
            schema = stream_schema(spark, table)
            check_source(table, schema, once=False)
            if (wrong := unknown_column(table)) is not None:
                raise TopologyError(wrong)
            open_table(spark, table, schema)
    tables = [counted(len(topology.tables), "table", "tables")] if topology.tables else []
    views = [counted(len(topology.views), "view", "views")] if topology.views else []
    *first, last = (
        counted(len(topology.streams), "stream", "streams"),
        *tables,
        *views,
        counted(len(queries), "query", "queries"),
    )
    print(f"{options.topology}: {', '.join(first)} and {last}, nothing wrong")
    for query in queries:
        if (adapt := topology.adapt_of(query)).is_on:
            when = f"when a cost changes by more than {adapt.threshold:.0%}, at most every {adapt.min_interval}"
            print(
                f"query {query.name!r}: other plans are considered (adapt mode {adapt.mode}) {when}; "
                "simulations report the decisions, no run carries them out yet"
            )


def _verify(place: str, *, repair: bool) -> bool:
    """Verify the checkpoints of all sites, and say what was found; whether they are whole."""
    from watersmeet.spark.store.mirror import local_root
    from watersmeet.spark.verify import remove_spare, site_checkpoints, verify_checkpoint

    is_whole = True
    for directory in site_checkpoints(local_root(place)):
        found = verify_checkpoint(directory)
        is_whole = is_whole and not found.wrong
        if found.verified:
            print(f"{directory}: verified {', '.join(found.verified)}")
        for sentence in found.wrong:
            print(f"watersmeet: {sentence}", file=sys.stderr)
        removed = remove_spare(found) if repair else []
        for path in found.spare:
            what = "removed" if path in removed else "the next start or --repair removes it"
            print(f"{path}: left by a power cut or a killed process, nobody needs it; {what}")
    return is_whole
