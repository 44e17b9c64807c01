"""SQL text to `JoinQuery` and back; sqlglot is used here, in `dialect.py` and in `substitute.py` only."""

from watersmeet.query.dialect import to_duckdb
from watersmeet.query.sql.canonical import canonical_sql
from watersmeet.query.sql.parse import parse_query
from watersmeet.query.sql.script import parse_script
from watersmeet.query.substitute import constant_of, with_values

__all__ = ["canonical_sql", "constant_of", "parse_query", "parse_script", "to_duckdb", "with_values"]
