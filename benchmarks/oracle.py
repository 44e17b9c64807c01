"""The witness and the floor: DuckDB answers the same join over all files at once.

With equal RANGE windows T the condition `t_max - T <= t_j for every j` says that all pairs are at most T apart. Such
rows lie in the same or in neighbouring intervals of length T: `--slots` joins on the interval too, which keeps keys
that are skewed in every stream affordable and costs twice the time where they are not.

    python benchmarks/oracle.py --window-us 60000000 --output expected.parquet DIR_A DIR_B DIR_C
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
from workload import STREAM_NAMES


def oracle_sql(paths: Sequence[Path], window_us: int, slots: bool = False) -> str:
    """DuckDB SQL over one directory of Parquet files a stream; columns are a_id, b_id, ..."""
    names = STREAM_NAMES[: len(paths)]
    first, *others = names
    # A row is offered to its own interval and to both neighbours; the first stream's row is in exactly one of them.
    slot = {name: f"epoch_us(ts) // {window_us} + {'0' if name == first else 'unnest([-1, 0, 1])'}" for name in names}
    views = [
        f"{name} AS (SELECT k, id, epoch_us(ts) AS us{f', {slot[name]} AS slot' if slots else ''} "
        f"FROM read_parquet('{path}/*.parquet'))"
        for name, path in zip(names, paths, strict=True)
    ]
    joins = [
        f"JOIN {name} ON {name}.k = {first}.k{f' AND {name}.slot = {first}.slot' if slots else ''}"
        + "".join(f" AND abs({name}.us - {earlier}.us) <= {window_us}" for earlier in names[:position])
        for position, name in enumerate(others, start=1)
    ]
    columns = ", ".join(f"{name}.id AS {name}_id" for name in names)
    return "\n".join([f"WITH {', '.join(views)}", f"SELECT {columns} FROM {first}", *joins])


def parquet_files(output: Path) -> list[Path]:
    """The data files of a Parquet file or of an output directory, without logs, temporary files and checksums."""
    if output.is_file():
        return [output]
    return sorted(
        file
        for file in output.rglob("*.parquet")
        if not any(part.startswith(("_", ".")) for part in file.relative_to(output).parts)
    )


def rows_in(output: Path) -> int:
    """Rows of all data files, from their footers."""
    return sum(pq.read_metadata(file).num_rows for file in parquet_files(output))


def difference(expected: Path, output: Path) -> tuple[int, int]:
    """How many answers are missing from `output` and how many are too many, both as bags."""
    files = parquet_files(output)
    if not files:
        return rows_in(expected), 0
    columns = ", ".join(pq.read_schema(expected).names)
    with duckdb.connect() as db:
        db.execute(f"CREATE TABLE expected AS SELECT {columns} FROM read_parquet('{expected}')")
        db.execute(f"CREATE TABLE found AS SELECT {columns} FROM read_parquet({[str(file) for file in files]})")
        missing, extra = (
            db.execute(f"SELECT count(*) FROM (FROM {left} EXCEPT ALL FROM {right})").fetchall()[0][0]
            for left, right in (("expected", "found"), ("found", "expected"))
        )
    return missing, extra


def main() -> None:
    parser = argparse.ArgumentParser(description="Answer the workload's join with DuckDB, all data at once.")
    parser.add_argument("--window-us", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True, help="Parquet file to write")
    parser.add_argument("--slots", action="store_true", help="join on time intervals too: for skewed keys")
    parser.add_argument("paths", type=Path, nargs="+", metavar="DIR", help="one directory of Parquet files a stream")
    args = parser.parse_args()
    begin = time.perf_counter()
    with duckdb.connect() as db:
        db.execute(f"COPY ({oracle_sql(args.paths, args.window_us, args.slots)}) TO '{args.output}' (FORMAT parquet)")
    seconds = time.perf_counter() - begin
    print(
        json.dumps(
            {"rows_in": sum(map(rows_in, args.paths)), "seconds": round(seconds, 3), "rows_out": rows_in(args.output)}
        )
    )


if __name__ == "__main__":
    main()
