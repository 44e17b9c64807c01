"""Expressions of Spark in DuckDB's dialect."""

import pytest

from watersmeet.query.dialect import to_duckdb
from watersmeet.query.sql import parse_query

COLUMNS = {"a": ["ts", "host", "bytes", "s", "xs"], "b": ["ts", "host", "port"]}


@pytest.mark.parametrize(
    ("spark", "duckdb"),
    [
        ("a.host", '"a.host"'),
        ("a.s.x", '"a.s".x'),
        ("a.xs[0]", '"a.xs"[1]'),
        ("a.host <=> b.host", '"a.host" IS NOT DISTINCT FROM "b.host"'),
        ("a.bytes / b.port", '"a.bytes" / NULLIF("b.port", 0)'),
        ('"it\'s"', "'it''s'"),
        ("a.host rlike '^a'", "REGEXP_MATCHES(\"a.host\", '^a')"),
        ("timestampdiff(MINUTE, a.ts, b.ts)", 'DATE_SUB(\'minute\', "a.ts", "b.ts")'),
    ],
)
def test_to_duckdb(spark: str, duckdb: str) -> None:
    sql = f"SELECT {spark} AS it FROM a [ROWS 1], b [ROWS 1] WHERE a.host = b.host"
    assert to_duckdb(parse_query(sql, COLUMNS).select[0].expression) == duckdb
