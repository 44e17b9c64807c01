"""Files and databases as tuples: what the access methods CSV and JDBC read (PIER, section 3.3.1)."""

import csv
import sqlite3
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from watersmeet.errors import RunError
from watersmeet.program.pier.tuples import Batch, Row, Schema
from watersmeet.program.pier.values import BINARY, DOUBLE, INTEGER, NULL, STRING, TYPES

_KINDS = {int: INTEGER, float: DOUBLE, str: STRING, bytes: BINARY, type(None): NULL}
_SQLITE = "jdbc:sqlite:"


def read_csv(path: str, table: str, types: Mapping[str, str]) -> tuple[list[Batch], int]:
    """The lines of a file with a header, and how many are malformed; columns without a type are text, empty is NULL."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            names = next(reader, [])
            _check_names(names, f"the file {path}")
            schema = Schema.of(table, {name: types.get(name, STRING) for name in names})
            readers = [TYPES[kind].read for kind in schema.types]
            rows: list[Row] = []
            malformed = 0
            for fields in reader:
                try:
                    if len(fields) != len(readers):
                        raise ValueError(fields)
                    rows.append(
                        tuple(None if not text else read(text) for text, read in zip(fields, readers, strict=True))
                    )
                except ValueError:
                    malformed += 1
    except (OSError, ValueError, csv.Error) as error:  # a path may have characters that no file's name has
        raise RunError(f"the file {path} cannot be read: {error}; correct the path or the file") from None
    return ([Batch(schema, rows)] if rows else []), malformed


def query_database(url: str, sql: str, table: str) -> list[Batch]:
    """The rows of a statement; the type of each column is that of its values, and rows that differ are told apart."""
    if not url.startswith(_SQLITE):
        raise RunError(f"the database {url} is not known here; give {_SQLITE}FILE")
    path = url.removeprefix(_SQLITE)
    try:
        if "\0" in path:  # SQLite would read a name that ends there, or none at all
            raise ValueError("its name has a NUL")
        connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)
        try:
            cursor = connection.execute(sql)
            names = [column[0] for column in cursor.description or ()]
            rows = cursor.fetchall()
        finally:
            connection.close()
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:  # ValueError: a NUL
        raise RunError(f"the database {url} does not answer {sql!r}: {error}") from None
    _check_names(names, f"the answer to {sql!r}")
    return _typed(table, names, rows)


def _check_names(names: Sequence[str], where: str) -> None:
    """Tuples are told what they have by the names of their columns, so each has its own."""
    if len(set(names)) < len(names):
        raise RunError(f"{where} has two columns of the same name; rename one of them")


def _typed(table: str, names: Sequence[str], rows: Sequence[Row]) -> list[Batch]:
    by_kind: dict[tuple[str, ...], list[Row]] = {}
    known = list[str](NULL for _ in names)
    for row in rows:
        for place, value in enumerate(row):
            if known[place] == NULL:
                known[place] = _KINDS[type(value)]
    for row in rows:
        kinds = tuple(known[place] if value is None else _KINDS[type(value)] for place, value in enumerate(row))
        by_kind.setdefault(kinds, []).append(row)
    return [Batch(Schema.of(table, dict(zip(names, kinds, strict=True))), found) for kinds, found in by_kind.items()]
