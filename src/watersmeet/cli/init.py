"""`watersmeet init`: write a commented topology file for a directory of files."""

import argparse
from pathlib import Path

from watersmeet.cli.options import Subparsers, spark_options
from watersmeet.cli.session import spark_session
from watersmeet.cli.tables import counted
from watersmeet.errors import InputError
from watersmeet.topology.load import load_topology


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "init",
        parents=[spark_options()],
        help="write a commented topology file for a directory of files",
        description="Make a stream of every subdirectory with Parquet, ORC, Avro, JSON or CSV files (and of every such "
        "file in the directory itself): columns and types are inferred, the event-time column is guessed, the "
        "watermark is what the files need in the order they were modified in. Nothing that exists is overwritten.",
    )
    parser.add_argument("directory", metavar="DIR", help="where the files are")
    parser.add_argument("--output", metavar="FILE", default="topology.yaml", help="(default: %(default)s)")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Look at the files and write the topology."""
    output = Path(options.output)
    if output.exists():
        raise InputError(f"{output} exists; remove it, or name another file with --output")
    with spark_session(options) as spark:
        from watersmeet.spark.ingest.infer import find_streams
        from watersmeet.topology.propose import propose

        streams = find_streams(spark, Path(options.directory).absolute(), output.absolute().parent)
    output.write_text(propose(streams), encoding="utf-8")
    for stream in streams:
        time = "no column is a timestamp" if stream.event_time is None else f"event time {stream.event_time} (guessed)"
        files = counted(stream.files, f"{stream.format} file", f"{stream.format} files")
        print(f"stream {stream.name}: {files}, {counted(len(stream.columns), 'column', 'columns')}, {time}")
    if any(stream.event_time is not None for stream in streams):
        load_topology(output)
        print(f"written to {output}; look at what was guessed, then: watersmeet run {output} --once")
    else:
        print(f"written to {output}; give a stream a timestamp first, as the comments say")
    return 0
