"""Adding a query to a topology file as it is: nothing else of the text changes, comments included."""

import re

from watersmeet.errors import InputError
from watersmeet.topology.model import check_name


def with_query(text: str, name: str, sql: str, sink: str) -> str:
    """The text of a topology file with one more query, whose answers go to Parquet files.

    >>> print(with_query("queries:\\n  p: {sql: x}\\nstreams: {}\\n", "q", "SELECT 1", "out/q"), end="")
    queries:
      p: {sql: x}
      q:
        sql: >-
          SELECT 1
        sink: {format: parquet, path: out/q}
    streams: {}
    """
    check_name(name, "query")
    lines = text.splitlines()
    heads = [number for number, line in enumerate(lines) if re.match(r"queries\s*:", line)]
    body = re.match(r"queries\s*:\s*(#.*)?$", lines[heads[0]]) if heads else None
    if body is None:
        raise InputError("the file has no `queries:` with one query below the other; add the query by hand")
    inside = [number for number in range(heads[0] + 1, len(lines)) if _is_inside(lines, heads[0], number)]
    entries = [
        lines[number] for number in inside if lines[number].strip() and not lines[number].lstrip().startswith("#")
    ]
    margin = re.match(r" *", entries[0]).group() if entries else "  "  # type: ignore[union-attr]
    if not margin:
        raise InputError("the queries of the file are not indented; add the query by hand")
    last = max((number for number in inside if lines[number].strip()), default=heads[0])
    added = [f"{margin}{name}:", f"{margin}  sql: >-"]
    added += [f"{margin}    {line.strip()}" for line in sql.strip().splitlines() if line.strip()]
    added.append(f"{margin}  sink: {{format: parquet, path: {sink}}}")
    return "\n".join([*lines[: last + 1], *added, *lines[last + 1 :]]) + "\n"


def _is_inside(lines: list[str], head: int, number: int) -> bool:
    """Whether a line belongs to the mapping that begins at another: no line of a lower level is between."""
    return all(not line.strip() or line.startswith((" ", "#")) for line in lines[head + 1 : number + 1])
