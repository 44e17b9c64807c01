"""Golden cases: what a query's plan looks like and what it answers, small enough to check by eye.

A file has a heading and the sections `-- streams` (schema, then rows in arrival order; `|` ends a micro-batch; ts in
seconds), `-- sql`, `-- plan` and `-- rows`. `GOLDEN=write pytest tests/plan/test_golden.py` writes the last
two anew, of answers that the oracle has too.
A case of several sites has the section `-- sites` too: homes, site and plan as in a topology, or a planner with the
statistics of streams. Cases run in the simulator, where every batch has come to an end before the next one comes.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from watersmeet.plan.explain import explain_text
from watersmeet.plan.nodes import Hop, Method, Plan
from watersmeet.planners.choose import choose
from watersmeet.planners.local import local
from watersmeet.planners.sited import central, explicit
from watersmeet.query.model import JoinQuery
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.trial import answered_before
from watersmeet.testing import bag
from watersmeet.topology.load import load_topology
from watersmeet.topology.schema import parse_schema

CASES = sorted((Path(__file__).parents[1] / "golden").glob("*.test"))
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


def planned(query: JoinQuery, asked: dict[str, Any], schemas: dict[str, pa.Schema], directory: Path) -> Plan:
    """What a planner makes of a query and the statistics of its streams."""
    kinds = {kind: name for name, kind in TYPES.items()}
    streams = {
        name: {
            "site": asked["homes"][name],
            "schema": ", ".join(f"{field.name} {kinds[field.type]}" for field in schema),
            "event_time": "ts",
            "source": {"format": "parquet", "path": "rows"},
            "stats": asked["stats"][name],
        }
        for name, schema in schemas.items()
    }
    settings = {key: asked[key] for key in ("site", "planner", "objective", "limits", "parts") if key in asked}
    sites = sorted({*asked["homes"].values(), asked["site"]})
    file = directory / "topology.yaml"
    queries: dict[str, Any] = {"q": {"sql": "-", **settings}}
    file.write_text(yaml.safe_dump({"sites": sites, "streams": streams, "queries": queries}))
    topology = load_topology(file)
    return choose(topology, topology.query("q"), query).plan


def plan_of(query: JoinQuery, schemas: dict[str, pa.Schema], sites: str | None, directory: Path) -> Plan:
    """The plan of a query at one site, or over several as a case says."""
    columns = {name: schema.names for name, schema in schemas.items()}
    if sites is None:
        return local(query, columns, "here")
    asked = yaml.safe_load(sites)
    if "planner" in asked:
        return planned(query, asked, schemas, directory)
    if "plan" in asked:
        hops = {
            head: [Hop(s["join"], Method(s.get("method", "SP-D")), s.get("at"), s.get("bloom", False)) for s in steps]
            for head, steps in asked["plan"].items()
        }
        return explicit(query, columns, asked["homes"], asked["site"], hops)
    return central(query, columns, asked["homes"], asked["site"])


def run(plan: Plan, streams: dict[str, list[pa.Table]]) -> tuple[Counter[tuple[Any, ...]], int | None]:
    """The answers of a plan, and before which instant heads have theirs (None: all have)."""
    sites = SimulatedSites(plan, dict.fromkeys(streams, "ts"), buckets=2)
    for number in range(max(map(len, streams.values()))):
        sites.feed(number * 60_000_000, {name: b[number] for name, b in streams.items() if number < len(b)})
    sites.run()
    before_us, is_known = answered_before(sites, plan)
    assert is_known, "every stream of a ROWS window has rows"
    if before_us is not None and len(sites.sites) == 1:  # there rows are taken in the order of all streams
        before_us = min(sites.sites["here"].ledger.watermarks[name] for name in streams)
    return sum((bag(table) for table in sites.answers()), Counter()), before_us


@pytest.mark.parametrize("path", CASES, ids=[case.stem for case in CASES])
def test_golden(path: Path, tmp_path: Path) -> None:
    heading, sections = read_case(path)
    streams = read_streams(sections["streams"])
    columns = {name: batches[0].schema.names for name, batches in streams.items()}
    schemas = {name: batches[0].schema for name, batches in streams.items()}
    query = typed(parse_query(sections["sql"], columns, allow_cross=True), schemas)
    made = plan_of(query, schemas, sections.get("sites"), tmp_path)
    got, before_us = run(made, streams)
    plan = explain_text(made)
    rows = "\n".join(" ".join(map(str, row)) for row in sorted(got.elements(), key=str))
    whole = {name: pa.concat_tables(batches) for name, batches in streams.items()}
    assert got == bag(answer(query, whole, dict.fromkeys(streams, "ts"), heads_before_us=before_us))
    assert got, "a golden case shows at least one answer"
    if os.environ.get("GOLDEN") == "write":
        texts = [
            heading,
            *(f"-- {name}\n{sections[name]}\n" for name in ("streams", "sql", "sites") if name in sections),
        ]
        path.write_text("\n".join([*texts, f"-- plan\n{plan}\n", f"-- rows\n{rows}\n"]), encoding="utf-8")
        return
    assert plan == sections["plan"]
    assert rows == sections["rows"]
