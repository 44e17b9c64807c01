"""`watersmeet check`: validate a topology without running it."""

import argparse

from watersmeet.cli.inputs import check_queries, errors_naming, selected_queries
from watersmeet.cli.options import Subparsers, topology_options
from watersmeet.cli.session import spark_session
from watersmeet.cli.tables import counted
from watersmeet.topology.model import load_topology


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser("check", parents=[topology_options()], help="validate a topology without running it")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Check the file, then with Spark the types of queries and the sources of all streams."""
    topology = load_topology(options.topology)
    queries = selected_queries(topology, options)
    check_queries(topology, queries)
    with spark_session(options) as spark:
        from watersmeet.spark.binding import stream_schema
        from watersmeet.spark.ingest.sources import check_source, open_stream
        from watersmeet.spark.run import check_query

        for query in queries:
            with errors_naming(query):
                check_query(spark, topology, query)
        for stream in topology.streams:
            schema = stream_schema(spark, stream)
            check_source(stream, schema, once=False)
            open_stream(spark, stream, schema)
    counts = counted(len(topology.streams), "stream", "streams"), counted(len(queries), "query", "queries")
    print(f"{options.topology}: {' and '.join(counts)}, nothing wrong")
    return 0
