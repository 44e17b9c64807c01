"""Golden cases: what a query's plan looks like and what it answers, small enough to check by eye.

A file has a heading and the sections `-- streams` (schema, then rows in arrival order; `|` ends a micro-batch; ts in
seconds), `-- sql`, `-- plan` and `-- rows`. `GOLDEN=write pytest tests/test_golden.py` writes the last two anew.
"""

import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from watersmeet.explain import explain_text
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.testing import InProcess, bag
from watersmeet.topology import parse_schema

CASES = sorted((Path(__file__).parent / "golden").glob("*.test"))
TYPES = {"long": pa.int64(), "string": pa.string(), "timestamp": pa.timestamp("us", "UTC")}


def read_case(path: Path) -> tuple[str, dict[str, str]]:
    heading, *parts = path.read_text(encoding="utf-8").split("\n-- ")
    return heading, {name: body.strip("\n") for name, _, body in (part.partition("\n") for part in parts)}


def read_streams(text: str) -> dict[str, list[pa.Table]]:
    streams: dict[str, list[pa.Table]] = {}
    for block in text.split("\n\n"):
        head, *lines = block.splitlines()
        name, ddl = head.rstrip(")").split("(", 1)
        schema = pa.schema([(column, TYPES[kind]) for column, kind in parse_schema(ddl).items()])
        batches: list[list[dict[str, object]]] = [[]]
        for line in lines:
            if line.strip() == "|":
                batches.append([])
            else:
                batches[-1].append({f.name: _value(text, f) for f, text in zip(schema, line.split(), strict=True)})
        streams[name] = [pa.Table.from_pylist(rows, schema=schema) for rows in batches]
    return streams


def _value(text: str, field: pa.Field) -> object:
    if text == "NULL":
        return None
    if field.type == TYPES["timestamp"]:
        return int(float(text) * 1_000_000)
    return text if field.type == pa.string() else int(text)


@pytest.mark.parametrize("path", CASES, ids=[case.stem for case in CASES])
def test_golden(path: Path, tmp_path: Path) -> None:
    heading, sections = read_case(path)
    streams = read_streams(sections["streams"])
    schemas = {name: batches[0].schema for name, batches in streams.items()}
    query = parse_query(sections["sql"], {name: schema.names for name, schema in schemas.items()}, allow_cross=True)
    process = InProcess(query, schemas, dict.fromkeys(streams, "ts"), tmp_path)
    got: Counter = Counter()
    for number in range(max(map(len, streams.values()))):
        got += bag(process.batch({name: b[number] for name, b in streams.items() if number < len(b)}))
    plan = explain_text(process.plan)
    rows = "\n".join(" ".join(map(str, row)) for row in sorted(got.elements(), key=str))
    if os.environ.get("GOLDEN") == "write":
        texts = [heading, *(f"-- {name}\n{sections[name]}\n" for name in ("streams", "sql"))]
        path.write_text("\n".join([*texts, f"-- plan\n{plan}\n", f"-- rows\n{rows}\n"]), encoding="utf-8")
        return
    assert plan == sections["plan"]
    assert rows == sections["rows"]
    whole = {name: pa.concat_tables(batches) for name, batches in streams.items()}
    horizon = process.ledger.released_to if process.join.ordered else None
    assert got == bag(answer(query, whole, dict.fromkeys(streams, "ts"), heads_before_us=horizon))
    assert got, "a golden case shows at least one answer"
