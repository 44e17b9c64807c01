"""Schemas in Spark's DDL."""

import pytest

from watersmeet.topology.schema import parse_schema


@pytest.mark.parametrize(
    ("ddl", "types"),
    [
        ("k LONG, ts TIMESTAMP", {"k": "long", "ts": "timestamp"}),
        ("k: long, ts: timestamp_ntz", {"k": "long", "ts": "timestamp_ntz"}),
        ("k long not null comment 'a, b', ts timestamp", {"k": "long", "ts": "timestamp"}),
        ("`a b` decimal(10, 2), `x``y` int", {"a b": "decimal(10,2)", "x`y": "int"}),
        ("s struct<a: int, b: array<string>>, m map<string, int>",
         {"s": "struct<a:int,b:array<string>>", "m": "map<string,int>"}),
    ],
)  # fmt: skip
def test_schemas_are_read_as_spark_writes_them(ddl: str, types: dict[str, str]) -> None:
    assert parse_schema(ddl) == types
