"""`watersmeet run --once` through `wm.start`, which also tells what Spark itself spends on every micro-batch.

The command line reports our phases (`--events`) but not Spark's. This starts the same session and the same run, and
writes Spark's progress of each micro-batch as a line of JSON, with the seconds spent in our code as `ours_s`.

    python benchmarks/profiled.py topology.yaml --once --checkpoint DIR --events FILE --progress FILE
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import watersmeet as wm
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.jsonl import append_events
from watersmeet.spark.handle import SiteQuery
from watersmeet.spark.ingest.sources import has_rows_in_java


def run(options: argparse.Namespace) -> None:
    """Run a topology of one site to the end of its streams."""
    topology = wm.load_topology(options.topology)
    settings = dict(setting.split("=", 1) for setting in options.conf)
    settings["spark.sql.streaming.numRecentProgressUpdates"] = "100000"
    spark = wm.start_session(options.master, settings=settings, has_rows=has_rows_in_java(topology.streams))
    our_seconds = _time_our_code()
    bus = EventBus()
    close = append_events(bus, options.events)
    handle = wm.start(topology, spark=spark, checkpoint=options.checkpoint, once=options.once, events=bus)
    (query,) = spark.streams.active
    handle.awaitTermination()
    close()
    lines = [json.loads(progress.json) for progress in query.recentProgress]
    with options.progress.open("w") as file:
        for line in lines:
            if line["batchId"] in our_seconds:
                file.write(json.dumps(line | {"ours_s": our_seconds[line["batchId"]]}) + "\n")
    spark.stop()


def _time_our_code() -> dict[int, float]:
    """Have every micro-batch timed from where Spark calls us to where we return."""
    seconds: dict[int, float] = {}
    run_batch = SiteQuery.run_batch

    def timed(self: SiteQuery, frame: Any, batch: int) -> None:
        begin = time.perf_counter()
        run_batch(self, frame, batch)
        seconds[batch] = time.perf_counter() - begin

    SiteQuery.run_batch = timed  # type: ignore[method-assign]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a topology once and write Spark's progress beside our events.")
    parser.add_argument("topology")
    parser.add_argument("--once", action="store_true", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--conf", action="append", default=[])
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--progress", type=Path, required=True)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
