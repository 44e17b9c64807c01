"""What it costs a site to ship its streams: rows a second beside a site that joins the same rows itself.

python benchmarks/shipping.py                     # w2 at scale 0.2
python benchmarks/shipping.py --scale 0.02 --window 2 --repeat 1     # a quick look

Spark takes about as long for a micro-batch whatever is in it, so rows a second depend on the rows in a micro-batch. The
first lines have the same ones: three streams, one file of each. A site with one stream has as many with three files in
a micro-batch, and a third with one: the last line, the same comparison as in `links.py --table throughput`. Answers are
compared with DuckDB's wherever they are made.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import oracle
from report import console, machine, show
from workload import MASTER, SPARK_SCHEMA, Workload, add_arguments, from_arguments, generate

import watersmeet as wm

BASE = "a site that joins its three streams, no links"
SHIPS_ALL = "a site that ships its three streams whole"
SHIPS_ONE = "a site that ships its one stream whole, as many rows in a micro-batch"
SHIPS_ONE_THIRD = "a site that ships its one stream whole, a third of the rows in a micro-batch"
READS = "the site that joins three streams, all of them over links"


@dataclass(frozen=True, slots=True)
class Case:
    """Where the streams and the query are, which site is timed, and how many files a micro-batch takes."""

    homes: Sequence[str]
    site: str  # of the query
    timed: str
    files: int = 1


# The query's site runs after those that ship to it.
CASES: Mapping[str, Case] = {
    BASE: Case(("here",) * 3, "here", "here"),
    SHIPS_ALL: Case(("far",) * 3, "here", "far"),
    READS: Case(("far",) * 3, "here", "here"),
    SHIPS_ONE: Case(("here", "far", "here"), "here", "far", files=3),
    SHIPS_ONE_THIRD: Case(("here", "far", "here"), "here", "far"),
}


def topology(workload: Workload, paths: Sequence[Path], case: Case, directory: Path) -> wm.Topology:
    """The workload's streams at the case's sites."""
    options = {"maxFilesPerTrigger": str(case.files)}
    streams = tuple(
        wm.Stream(
            name,
            event_time="ts",
            schema=SPARK_SCHEMA,
            source=wm.Source("parquet", str(path), options),
            site=home,
        )
        for name, path, home in zip(workload.names, paths, case.homes, strict=True)
    )
    query = wm.Query("q", workload.sql(), sink=wm.Sink("parquet", str(directory / "out")), site=case.site)
    sites = tuple(wm.Site(site) for site in sorted({*case.homes, case.site}))
    return wm.Topology(streams, (query,), sites, str(directory))


def timed(start: Callable[[], Any]) -> float:
    """Seconds from the start of a run to its end."""
    begin = time.perf_counter()
    start().awaitTermination()
    return time.perf_counter() - begin


def run(workload: Workload, paths: Sequence[Path], case: Case, spark: Any, expected: Path) -> float:
    """Seconds of the timed site; if it is the query's, its answers are compared with those expected."""
    directory = Path(tempfile.mkdtemp(prefix="shipping-"))
    try:
        laid_out = topology(workload, paths, case, directory)
        if len(laid_out.sites) == 1:
            seconds = timed(lambda: wm.start(laid_out, spark=spark, once=True))
        else:
            seconds = timed(lambda: wm.start_site(laid_out, "far", spark=spark, once=True))
            if case.timed == case.site:
                seconds = timed(lambda: wm.start_site(laid_out, case.site, spark=spark, once=True))
        if case.timed == case.site:
            missing, extra = oracle.difference(expected, directory / "out")
            assert not missing and not extra, f"{missing:,} answers are missing and {extra:,} too many"
        return seconds
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def rates(workload: Workload, paths: Sequence[Path], repeat: int) -> tuple[dict[str, list[float]], int]:
    """Rows a second of every case in each of the runs, which alternate, and the number of answers."""
    spark = wm.start_session(MASTER, has_rows=False)
    found: dict[str, list[float]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as directory, duckdb.connect() as db:
        expected = Path(directory) / "expected.parquet"
        db.execute(f"COPY ({oracle.oracle_sql(paths, workload.window_us)}) TO '{expected}' (FORMAT parquet)")
        for number in range(repeat + 1):
            for name, case in CASES.items():
                seconds = run(workload, paths, case, spark, expected)
                rows = workload.rows * sum(home == case.timed for home in case.homes) or workload.rows_in
                if number:  # the first round warms up
                    found[name].append(rows / seconds)
                console.log(f"{name}: {rows / seconds:,.0f} rows/s{'' if number else ' (warm-up)'}")
        return found, oracle.rows_in(expected)


def rows_of(found: Mapping[str, Sequence[float]]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the table: the median, and the median of the ratios to the base of the same round."""
    lines = []
    for name, values in found.items():
        ratios = [value / base for value, base in zip(values, found[BASE], strict=True)]
        shown = f"{min(ratios):.2f} to {max(ratios):.2f}"
        lines.append([name, f"{statistics.median(values):,.0f}", f"{statistics.median(ratios):.2f}", shown])
    return ["", "rows/s", "of the first", "from run to run"], lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_arguments(parser)
    parser.set_defaults(scale=0.2)
    parser.add_argument("--repeat", type=int, default=5, help="rounds of all cases after a first one (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the rows/s of every run")
    args = parser.parse_args()
    workload = from_arguments(args)
    if workload.streams != 3:
        parser.error("--streams: the cases have three streams")
    found, answers = rates(workload, generate(workload, args.data), args.repeat)
    title = (
        f"A site that ships its streams: 3 streams x {workload.rows:,} rows, {workload.batches} micro-batches, "
        f"seed {workload.seed}, {answers:,} answers, median of {args.repeat} runs in one warm Spark"
    )
    facts = machine()
    show(title, *rows_of(found), facts)
    if args.json:
        args.json.write_text(json.dumps({"machine": facts, "rows_per_second": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
