"""Self-describing tuples (PIER, section 3.3.1): each knows its table, its columns and their types.

Tuples with the same description travel together as a batch, so that a description is looked at once a batch. There is
one `Schema` object for each description, and it is compared by identity.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from watersmeet.program.pier.values import are_of_type, fixed_bytes, value_bytes

Row: TypeAlias = tuple[Any, ...]


class Schema:
    """The description of a tuple; `Schema.of` gives the same object for the same description.

    >>> schema = Schema.of("R", {"a": "integer", "b": "string"})
    >>> schema is Schema.of("R", {"a": "integer", "b": "string"}), schema.place("b"), schema
    (True, 1, R(a integer, b string))
    """

    __slots__ = ("_places", "fixed_bytes", "names", "table", "types", "varying")

    table: str
    names: tuple[str, ...]
    types: tuple[str, ...]
    fixed_bytes: int  # the description itself, and values of types with a fixed size
    varying: tuple[int, ...]  # places of the other columns
    _places: dict[str, int]

    @staticmethod
    def of(table: str, columns: dict[str, str]) -> "Schema":
        """The schema of a table with these columns and types."""
        key = (table, tuple(columns), tuple(columns.values()))
        found = _SCHEMAS.get(key)
        if found is None:
            found = _SCHEMAS[key] = Schema()
            found.table, found.names, found.types = key
            found._places = {name: place for place, name in enumerate(found.names)}
            described = 2 + len(table.encode()) + sum(2 + len(name.encode()) for name in columns)
            sizes = [fixed_bytes(kind) for kind in found.types]
            found.fixed_bytes = described + sum(size for size in sizes if size is not None)
            found.varying = tuple(place for place, size in enumerate(sizes) if size is None)
        return found

    @property
    def columns(self) -> dict[str, str]:
        """The types by name, in order."""
        return dict(zip(self.names, self.types, strict=True))

    def place(self, name: str) -> int | None:
        """Where a column is; None if there is none of this name."""
        return self._places.get(name)

    def renamed(self, table: str) -> "Schema":
        """The same columns under another table name."""
        return Schema.of(table, self.columns)

    def row_bytes(self, row: Row) -> int:
        """What one tuple takes in a message."""
        size = self.fixed_bytes
        for place in self.varying:
            size += value_bytes(row[place], self.types[place])
        return size

    def __repr__(self) -> str:
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        return f"{self.table}({columns})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema.of, (self.table, self.columns)


_SCHEMAS: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Schema] = {}


@dataclass(frozen=True, slots=True)
class Batch:
    """Tuples with the same description."""

    schema: Schema
    rows: Sequence[Row]

    @property
    def size_bytes(self) -> int:
        """What they take as tuples of their own, each with its description."""
        schema = self.schema
        if not schema.varying:
            return schema.fixed_bytes * len(self.rows)
        return sum(map(schema.row_bytes, self.rows))

    def column(self, name: str) -> list[Any]:
        """The values of a column that is there."""
        place = self.schema.place(name)
        assert place is not None, f"{self.schema} has no column {name}"
        return [row[place] for row in self.rows]


def well_formed(batch: Batch) -> tuple[Batch, int]:
    """The tuples that are as they say: with a value of its type for each column; and how many are not.

    >>> batch = Batch(Schema.of("R", {"a": "integer"}), [(1,), ("x",), (None,), (1, 2), (1 << 63,)])
    >>> kept, wrong = well_formed(batch)
    >>> kept.rows, wrong
    ([(1,), (None,)], 3)
    """
    types = batch.schema.types
    if set(map(len, batch.rows)) <= {len(types)} and all(
        are_of_type(values, kind) for values, kind in zip(zip(*batch.rows, strict=True), types, strict=False)
    ):
        return batch, 0
    kept = [
        row
        for row in batch.rows
        if len(row) == len(types) and all(are_of_type((value,), kind) for value, kind in zip(row, types, strict=True))
    ]
    return Batch(batch.schema, kept), len(batch.rows) - len(kept)


def grouped(tuples: Iterable[tuple[Schema, Row]]) -> list[Batch]:
    """Tuples as batches: neighbours with the same description together, in their order."""
    batches: list[tuple[Schema, list[Row]]] = []
    for schema, row in tuples:
        if batches and batches[-1][0] is schema:
            batches[-1][1].append(row)
        else:
            batches.append((schema, [row]))
    return [Batch(schema, rows) for schema, rows in batches]
