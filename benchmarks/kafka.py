"""Kafka: w2 read from topics beside Spark's own chained joins from the same topics, and links that are topics.

python benchmarks/kafka.py                          # w2 from topics (JSON), in turn with Spark's chained joins
python benchmarks/kafka.py --scale 0.02 --rounds 1
python benchmarks/kafka.py --table links            # three sites: links over topics beside links in a directory

A broker is started on the loopback address (`python scripts/kafka_broker.py fetch` gets its jars); it takes part of the
machine in both cases. Every run's answers are compared with DuckDB's.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import native
import oracle
import ours
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from measure import measure
from stores import write_expected
from workload import DRIVER_MEMORY, MASTER, SPARK_SCHEMA, Workload, add_arguments, from_arguments, generate

sys.path.insert(0, str(ours.HERE.parent / "scripts"))

from kafka_broker import Broker, connector_jars, missing


def fill(servers: str, workload: Workload, paths: Sequence[Path]) -> dict[str, str]:
    """A topic for each stream, of one partition, with a JSON object for each row in its order; their names."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    topics = {name: f"w2-{uuid.uuid4().hex[:6]}-{name}" for name in workload.names}
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics.values()]).values():
        done.result()
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "compression.type": "lz4"})
    for name, path in zip(workload.names, paths, strict=True):
        for file in sorted(path.glob("*.parquet")):
            rows = pq.read_table(file)
            rows = rows.set_column(2, "ts", rows.column("ts").cast(pa.string()))
            for row in rows.to_pylist():
                while True:
                    try:
                        producer.produce(topics[name], json.dumps(row).encode())
                        break
                    except BufferError:
                        producer.poll(0.1)
    if producer.flush(600):
        raise SystemExit("the broker did not take all rows")
    return topics


def run_native(args: Any) -> None:
    """Spark's own joins from topics, in this process."""
    from pyspark.sql import functions as F

    native.SETTINGS["spark.jars"] = ",".join(map(str, connector_jars()))
    spark, streams = native.session(), {}
    for number, topic in enumerate(args.topics):
        name = ours.Workload().names[number]
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", args.servers)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        messages = reader.option("maxOffsetsPerTrigger", args.batch_rows).load()
        row = F.from_json(F.col("value").cast("string"), SPARK_SCHEMA).alias("r")
        columns = [F.col(f"r.{column}").alias(f"{name}_{column}") for column in ("k", "id", "ts")]
        streams[name] = messages.select(row).select(columns).withWatermark(f"{name}_ts", "0 seconds")
    writer = native.join(streams, args.window_us).writeStream.format("parquet").option("path", str(args.output))
    writer.option("checkpointLocation", str(args.checkpoint)).trigger(availableNow=True).start().awaitTermination()


def sources_table(workload: Workload, paths: Sequence[Path], place: Path, rounds: int) -> None:
    """Both systems from the same topics, in turn."""
    expected = write_expected(workload, paths, place / "expected.parquet")
    found: dict[str, list[tuple[float, float]]] = {"watersmeet": [], "Spark's chained joins": []}
    with Broker(place / "broker") as broker:
        topics = fill(broker.servers, workload, paths)
        for _ in range(rounds):
            for kind, taken in found.items():
                directory = place / "run"
                shutil.rmtree(directory, ignore_errors=True)
                directory.mkdir()
                command = _ours(workload, broker.servers, topics, directory)
                if kind != "watersmeet":
                    command = _native(workload, broker.servers, topics, directory)
                measured = measure(command, env=ours.environment() | {"SPARK_DRIVER_MEMORY": DRIVER_MEMORY})
                if measured.returncode:
                    raise SystemExit(measured.last_lines())
                if (wrong := oracle.difference(expected, directory / "answers")) != (0, 0):
                    raise SystemExit(f"{kind}: {wrong[0]} answers are missing, {wrong[1]} too many")
                taken.append((measured.wall_seconds, measured.cpu_seconds))
                print(f"{kind}: {taken[-1][0]:.1f} s, {taken[-1][1]:.1f} s of CPU, answers as DuckDB's", flush=True)
    for place_of, what in enumerate(("wall time", "CPU time")):
        medians = {kind: statistics.median(one[place_of] for one in some) for kind, some in found.items()}
        ratio = medians["Spark's chained joins"] / medians["watersmeet"]
        print(f"{what}: Spark's chained joins take {ratio:.2f} times as long (medians, starts included)")


def _ours(workload: Workload, servers: str, topics: dict[str, str], directory: Path) -> list[str]:
    described: Any = ours.topology(workload, [directory] * workload.streams, directory / "answers")
    for name, stream in described["streams"].items():
        options = {"subscribe": topics[name], "bootstrap.servers": servers, "maxOffsetsPerTrigger": workload.batch_rows}
        stream["source"] = {"format": "kafka", "payload": "json", "options": options}
    file = directory / "topology.yaml"
    file.write_text(yaml.safe_dump(described))
    command = [sys.executable, "-m", "watersmeet", "run", str(file), "--once", "--master", MASTER]
    return [*command, "--checkpoint", f"{directory}/checkpoint", "--conf", f"spark.driver.memory={DRIVER_MEMORY}"]


def _native(workload: Workload, servers: str, topics: dict[str, str], directory: Path) -> list[str]:
    settings = {"servers": servers, "window-us": workload.window_us, "batch-rows": workload.batch_rows}
    settings |= {"output": directory / "answers", "checkpoint": directory / "checkpoint"}
    options = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    return [sys.executable, __file__, "--native", *options, "--topics", *topics.values()]


def links_table(workload: Workload, paths: Sequence[Path], place: Path, rounds: int) -> None:
    """Three sites in one warm Spark, all rows shipped to the query's: the same with either transport, in turn."""
    import watersmeet as wm

    expected = write_expected(workload, paths, place / "expected.parquet")
    best: dict[str, float] = {}
    least_cpu_s: dict[str, float] = {}
    sites = ("sa", "sb", "sc")
    with Broker(place / "broker") as broker:
        others = psutil.Process().children(recursive=True)  # the broker: whose machine it takes is not the point
        spark = wm.start_session(MASTER)
        spark.sparkContext.setLogLevel("OFF")  # the end of the input is an error to Spark
        for number in range(rounds + 1):  # the first warms up
            for kind in ("directory", "kafka"):
                directory = place / f"{kind}{number}"
                directory.mkdir()
                described: Any = ours.topology(workload, paths, directory / "answers")
                for site, stream in zip(sites, described["streams"].values(), strict=True):
                    stream["site"] = site
                described["queries"]["q"] |= {"site": "sa", "planner": "central"}
                options = {"bootstrap.servers": broker.servers}
                kafka = {"kind": "kafka", "topics": f"l{number}", "options": options}
                described["link_transport"] = kafka if kind == "kafka" else {"kind": kind, "path": "links"}
                file = directory / "topology.yaml"
                file.write_text(yaml.safe_dump(described | {"sites": list(sites)}))
                begin, cpu_s = time.perf_counter(), _cpu_seconds(others)
                wm.start(wm.load_topology(file), spark=spark, once=True).awaitTermination()
                seconds, cpu_s = time.perf_counter() - begin, _cpu_seconds(others) - cpu_s
                if (wrong := oracle.difference(expected, directory / "answers")) != (0, 0):
                    raise SystemExit(f"{kind}: {wrong[0]} answers are missing, {wrong[1]} too many")
                rate = workload.rows_in / seconds
                said = "" if number else " (warming up)"
                print(f"{kind}: {rate:,.0f} rows/s, {cpu_s:.1f} s of CPU{said}", flush=True)
                if number:
                    best[kind] = max(rate, best.get(kind, 0.0))
                    least_cpu_s[kind] = min(cpu_s, least_cpu_s.get(kind, cpu_s))
        spark.stop()
    print(f"links over topics: {best['kafka'] / best['directory']:.2f} of the throughput of a directory (best runs)")
    by_cpu = least_cpu_s["directory"] / least_cpu_s["kafka"]
    print(f"by seconds of CPU, the broker's left out: {by_cpu:.2f} (least of each)")


def _cpu_seconds(others: Sequence[psutil.Process]) -> float:
    """What this process and those that it has started have taken, save for some."""
    found = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        if process not in others:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                found += times.user + times.system
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    if "--native" in sys.argv:
        parser.add_argument("--native", action="store_true")
        parser.add_argument("--servers")
        parser.add_argument("--window-us", type=int)
        parser.add_argument("--batch-rows", type=int)
        parser.add_argument("--output", type=Path)
        parser.add_argument("--checkpoint", type=Path)
        parser.add_argument("--topics", nargs="+")
        run_native(parser.parse_args())
        return
    add_arguments(parser)
    parser.add_argument("--table", choices=["sources", "links"], default="sources")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if why := missing():
        sys.exit(f"benchmarks/kafka.py: {why}")
    workload = from_arguments(args)
    paths = generate(workload, args.data)
    with tempfile.TemporaryDirectory() as place:
        table = sources_table if args.table == "sources" else links_table
        table(workload, paths, Path(place), args.rounds)


if __name__ == "__main__":
    main()
