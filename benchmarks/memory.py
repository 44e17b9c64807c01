"""Windows several times larger than memory: wide rows of two streams, all of which stay in the state, are joined.

python benchmarks/memory.py                                  # 2 streams of 3 million rows of 1 kB, 2,048 MB a process
python benchmarks/memory.py --rows 200000 --limit-mb 1024

Every process of the run (Python, Java) may have so many bytes of its own (RLIMIT_DATA); pages of mapped files do not
count, since the kernel can drop them. The answers are compared with DuckDB's.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import ours
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from measure import measure

FILE_ROWS = 50_000
SCHEMA = "k long, id long, ts timestamp, payload string"
START_US = 1_767_225_600_000_000
SQL = """SELECT a.id AS a_id, b.id AS b_id, a.payload AS a_payload, b.payload AS b_payload
FROM a [UNBOUNDED], b [UNBOUNDED] WHERE a.k = b.k"""


def write_stream(place: Path, number: int, rows: int, keys: int, payload: int, seed: int) -> None:
    """Files of rows with random letters that do not compress."""
    random = np.random.default_rng([seed, number])
    place.mkdir()
    for first in range(0, rows, FILE_ROWS):
        count = min(FILE_ROWS, rows - first)
        letters = random.integers(33, 127, count * payload, np.uint8)
        offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * payload)
        ids = np.arange(first, first + count)
        columns = {
            "k": random.integers(0, keys, count),
            "id": ids,
            "ts": pa.array(START_US + ids * 1_000).cast(pa.timestamp("us", "UTC")),
            "payload": pa.StringArray.from_buffers(count, offsets, pa.py_buffer(letters.tobytes())),
        }
        pq.write_table(pa.table(columns), place / f"{first:09}.parquet", compression="none")


def check(place: Path) -> int:
    """Compare the answers with DuckDB's; how many there are."""
    a, b, answers = (f"read_parquet('{place}/{name}/*.parquet')" for name in ("a", "b", "answers"))
    with duckdb.connect(config={"memory_limit": "2GB", "temp_directory": str(place / "duckdb")}) as db:
        pairs = f"SELECT a.id, b.id FROM {a} a JOIN {b} b USING (k)"
        found = f"SELECT a_id, b_id FROM {answers}"
        for one, other in ((pairs, found), (found, pairs)):
            if wrong := db.sql(f"SELECT count(*) FROM ({one} EXCEPT ALL {other})").fetchall()[0][0]:
                raise SystemExit(f"answers are not DuckDB's: {wrong} differ")
        count = int(db.sql(f"SELECT count(*) FROM ({found})").fetchall()[0][0])
        for name, rows in (("a", a), ("b", b)):
            same = f"""SELECT count(*) FROM {answers} x JOIN {rows} r ON x.{name}_id = r.id
                WHERE x.{name}_payload = r.payload"""
            if db.sql(same).fetchall()[0][0] != count:
                raise SystemExit(f"payloads of {name} are not those of its rows")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_000_000, help="of each stream (default %(default)s)")
    parser.add_argument("--payload", type=int, default=1_000, help="bytes of text in a row (default %(default)s)")
    parser.add_argument("--matches", type=int, default=50_000, help="answers, about (default %(default)s)")
    parser.add_argument("--limit-mb", type=int, default=2_048, help="for each process (default %(default)s)")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        for number, name in enumerate("ab"):
            keys = max(1, args.rows * args.rows // args.matches)
            write_stream(place / name, number, args.rows, keys, args.payload, args.seed)
        source = {"format": "parquet", "options": {"maxFilesPerTrigger": 2}}
        stream = {"schema": SCHEMA, "event_time": "ts", "watermark": "0 seconds"}
        streams = {name: stream | {"source": {**source, "path": str(place / name)}} for name in "ab"}
        query = {"sql": SQL, "sink": {"format": "parquet", "path": str(place / "answers")}}
        file = place / "topology.yaml"
        file.write_text(yaml.safe_dump({"streams": streams, "queries": {"q": query}}))
        command = ["prlimit", f"--data={args.limit_mb << 20}", sys.executable, "-m", "watersmeet", "run", str(file)]
        command += ["--once", "--quiet", "--checkpoint", str(place / "checkpoint"), "--master", "local[2]"]
        command += ["--events", str(place / ours.EVENTS), "--conf", "spark.driver.memory=1g"]
        found = measure(command, env=ours.environment())
        if found.returncode:
            raise SystemExit(found.last_lines())
        events = [json.loads(line) for line in (place / ours.EVENTS).read_text().splitlines()]
        state = max(event["state_bytes"] for event in events if event["event"] == "micro_batch_completed")
        print(
            f"{2 * args.rows:,} rows, {state / 2**20:,.0f} MiB of state, {args.limit_mb:,} MiB for each process: "
            f"{found.wall_seconds:.0f} s, {2 * args.rows / found.wall_seconds:,.0f} rows/s, {found.cpu_seconds:.0f} s "
            f"of CPU, {check(place):,} answers as DuckDB's"
        )


if __name__ == "__main__":
    main()
