"""The columns of a schema in Spark's DDL; Spark itself checks the types when a run starts."""

import re

from watersmeet.errors import InputError


def parse_schema(ddl: str) -> dict[str, str]:
    """Column names and types of a DDL schema; Spark checks the types themselves later.

    >>> parse_schema("k long, `my col` decimal(10, 2), s struct<x: int, y: string> NOT NULL COMMENT 'x'")
    {'k': 'long', 'my col': 'decimal(10,2)', 's': 'struct<x:int,y:string>'}
    """
    columns: dict[str, str] = {}
    for part in _split_top_level(ddl):
        match = re.match(r"\s*(?:`((?:[^`]|``)+)`|([^\s:`,]+))\s*:?\s*(\S.*)?$", part, re.DOTALL)
        if not match or not match.group(3):
            raise InputError(f'schema: {part.strip()!r} is not a column; write it like "k long, ts timestamp"')
        name = match.group(1).replace("``", "`") if match.group(1) else match.group(2)
        kind = re.sub(r"\s+(not\s+null|comment\s+('[^']*'|\"[^\"]*\")|default\s+.*)", "", match.group(3), flags=re.I)
        if name in columns:
            raise InputError(f"schema: duplicate column names: {name}")
        columns[name] = re.sub(r"\s*([<>(),:])\s*", r"\1", kind.strip().lower())
    return columns


def _split_top_level(ddl: str) -> list[str]:
    parts, depth, quote, start = [], 0, "", 0
    for position, char in enumerate(ddl):
        if quote:
            quote = "" if char == quote else quote
        elif char in "`'\"":
            quote = char
        elif char in "<(":
            depth += 1
        elif char in ">)":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(ddl[start:position])
            start = position + 1
    if depth or quote:
        raise InputError(f"schema: unbalanced brackets or quotes in {ddl!r}")
    return [*parts, ddl[start:]]
