"""`watersmeet stats`: estimate the statistics of streams from a sample of them."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from watersmeet.cli.inputs import check_sql, selected_queries
from watersmeet.cli.live import progress_bar
from watersmeet.cli.options import Subparsers, check_file, topology_of, topology_options
from watersmeet.cli.session import spark_session
from watersmeet.errors import InputError
from watersmeet.stats.model import Histogram, Number, Stats, StreamStats
from watersmeet.stats.yaml import stats_data, write_stats


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "stats",
        parents=[topology_options()],
        help="estimate the statistics of streams from a sample of them",
        description="Read a bounded sample of every stream's source and estimate its rate, the sizes of its columns on "
        "a link and the distribution of their values, and the selectivity of each filter of the queries.",
    )
    parser.add_argument(
        "--rows", metavar="N", type=int, default=100_000, help="rows to read of each stream, about (%(default)s)"
    )
    parser.add_argument(
        "--seconds", metavar="S", type=float, default=60.0, help="time limit for reading a stream (%(default)s)"
    )
    parser.add_argument("--output", metavar="FILE", help="also write them as YAML, for `stats_file:` in a topology")
    parser.add_argument("--format", choices=("text", "yaml", "json"), default="text", help="(default: %(default)s)")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Sample the streams and print, and perhaps write, their statistics."""
    if options.rows <= 0 or options.seconds <= 0:
        raise InputError("--rows and --seconds must be more than 0")
    topology = topology_of(options)
    queries = None if options.query is None else selected_queries(topology, options)
    check_sql(topology, queries or topology.queries)  # no plans: a planner may need the very statistics made here
    check_file("--output", options.output)
    progress = progress_bar(TextColumn("reading {task.description}"), TextColumn("{task.completed:,} rows"))
    with spark_session(options) as spark, progress:
        from watersmeet.spark.statistics import estimate

        bars: dict[str, TaskID] = {}

        def report(stream: str, rows: int) -> None:
            if stream not in bars:
                bars[stream] = progress.add_task(stream, total=options.rows)
            progress.update(bars[stream], completed=rows)

        stats = estimate(spark, topology, queries, rows=options.rows, seconds=options.seconds, tell=report)
    if options.output is not None:
        Path(options.output).write_text(write_stats(stats), encoding="utf-8")
    match options.format:
        case "json":
            print(json.dumps(stats_data(stats), indent=2))
        case "yaml":
            print(write_stats(stats), end="")
        case _:
            console = Console(highlight=False)
            for table in _tables(stats):
                console.print(table)
            if options.output is not None:
                console.print(f"written to {options.output}; name it as stats_file in the topology to plan with it")
    return 0


def _tables(stats: Stats) -> Iterator[Table]:
    """A table for each stream, and one of predicates."""
    for name, stream in stats.streams.items():
        yield _stream_table(name, stream)
    if stats.selectivities:
        table = Table(title="predicates", title_justify="left")
        table.add_column("predicate")
        table.add_column("selectivity", justify="right")
        table.add_column("confidence", justify="right")
        for sql, share in stats.selectivities.items():
            table.add_row(Text(sql.replace("`", "")), f"{share.value:.2%}", f"{share.confidence:.0%}")
        yield table


def _stream_table(name: str, stream: StreamStats) -> Table:
    facts = [f"stream {name}"]
    if stream.rate is not None:
        facts.append(f"{stream.rate.value:,.4g} rows a second (confidence {stream.rate.confidence:.0%})")
    if stream.row_bytes is not None:
        facts.append(f"{stream.row_bytes.value:,.4g} bytes a row")
    table = Table(title=", ".join(facts), title_justify="left")
    table.add_column("column")
    sizes_by_batch = ("bytes a value in 1", "100", "10,000 rows")
    for heading in ("distinct", "confidence", *sizes_by_batch, "most frequent", "bins", "confidence"):
        table.add_column(heading, justify="right")
    for key, column in stream.columns.items():
        distinct = ("", "") if column.distinct is None else _with_confidence(column.distinct)
        sizes = ("", "", "") if column.sizes is None else tuple(f"{size:,.1f}" for size in column.sizes[::2])
        table.add_row(key, *distinct, *sizes, *_distribution(column.histogram))
    return table


def _with_confidence(number: Number) -> tuple[str, str]:
    return f"{number.value:,.0f}", f"{number.confidence:.0%}"


def _distribution(histogram: Histogram | None) -> tuple[str, str, str]:
    """The most frequent value, the number of bins, the confidence."""
    if histogram is None or not histogram.bins:
        return "", "", ""
    single_values = [bin_ for bin_ in histogram.bins if bin_.low == bin_.high]
    top = max(single_values, key=lambda bin_: bin_.share, default=None)
    most = "" if top is None else f"{top.low} ({top.share:.1%})"
    return most, f"{len(histogram.bins):,}", f"{histogram.confidence:.0%}"
