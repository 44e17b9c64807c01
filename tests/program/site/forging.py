"""Parcels that are well formed and yet nothing that a site makes: what they hold is wrong, not how it is written.

`forged` changes one or two things in a real parcel and packs it anew. `Forger` stands before `SiteEngine.run`: each
micro-batch that takes a parcel is first tried with forged ones, which must be refused by a sentence, or else leave a
state with which the site can go on to the end; the ledger that it was tried with stays as it was.
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import WatersmeetError
from watersmeet.program.operators import Form
from watersmeet.program.site.adoption import adopt
from watersmeet.program.site.engine import Arrivals, SiteEngine
from watersmeet.program.site.inbound import _is_of, known_types
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.storage.packing import pack_rows, unpack_rows
from watersmeet.program.storage.wire import UNKNOWN, Message, Parcel, index_parcel, pack_schema, unpack_schema
from watersmeet.query.windows import END_US

MOST = 2**63 - 1
NUMBERS = (0, 1, -1, 63, 2**20, 2**31, 2**32, -(2**31), 2**53 + 1, 2**62, MOST, -MOST, UNKNOWN, END_US)
REALS = (math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.8e308 / 1.01, -1e308)
TYPES = (
    *(pa.int8(), pa.int32(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string()),
    *(pa.binary(), pa.null(), pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.date32(), pa.decimal128(38, 0)),
    *(pa.decimal256(76, 3), pa.list_(pa.int64()), pa.list_(pa.list_(pa.int64())), pa.struct([("x", pa.int64())])),
    *(pa.duration("us"), pa.time64("us"), pa.binary(3), pa.map_(pa.string(), pa.int64()), pa.large_list(pa.int64())),
)
ALIKE = (pa.types.is_integer, pa.types.is_floating, pa.types.is_timestamp, pa.types.is_decimal)
JUNK: tuple[Any, ...] = (
    *(
        None,
        True,
        5,
        -1,
        2**70,
        1.5,
        math.nan,
        "",
        "x",
        "Ready",
        [],
        [1],
        [[]],
        {},
        {"is": "Observed"},
        {"x": {"y": 1}},
    ),
)

Random = np.random.Generator


def opened(data: bytes) -> Parcel:
    """A parcel with its messages, to be made anew otherwise."""
    index = index_parcel(data)
    messages = (
        Message(one.flow, one.watermark, one.rows, data[one.start : one.start + one.size], one.schema)
        for one in index.entries
    )
    return Parcel(index.number, tuple(messages), index.previous, index.revision, index.notes)


@dataclass(frozen=True)
class Flow:
    """What is known of the rows of a message: their schema, and columns whose type the reader does not know."""

    schema: bytes = b""
    untyped: frozenset[str] = frozenset()


def forged(parcel: Parcel, flows: Sequence[Flow], rng: Random) -> tuple[str, Parcel]:
    """A parcel with one thing wrong, and what; `flows` are those of its messages."""
    kinds: list[Callable[[], tuple[str, Parcel]]] = [lambda: _envelope(parcel, rng), lambda: _notes(parcel, rng)]
    places = range(len(parcel.messages))
    full = [place for place in places if parcel.messages[place].rows and flows[place].schema]

    def in_message(place: int, change: Callable[[Message], tuple[str, Message]]) -> tuple[str, Parcel]:
        what, message = change(parcel.messages[place])
        messages = (*parcel.messages[:place], message, *parcel.messages[place + 1 :])
        return f"message {place}: {what}", replace(parcel, messages=messages)

    if parcel.messages:
        kinds += [lambda: in_message(int(rng.choice(places)), lambda one: _message(one, parcel, rng))] * 2
    if full:
        place = int(rng.choice(full))
        kinds += [lambda: in_message(place, lambda one: _rows(one, flows[place], rng))] * 16
    return kinds[int(rng.integers(len(kinds)))]()


def _number(rng: Random) -> int:
    near = int(rng.integers(-3, 4))
    return max(-MOST - 1, min(MOST, NUMBERS[int(rng.integers(len(NUMBERS)))] + near))


def _envelope(parcel: Parcel, rng: Random) -> tuple[str, Parcel]:
    match int(rng.integers(5)):
        case 0:
            number = abs(_number(rng))
            return f"number {number}", replace(parcel, number=number)
        case 1:
            previous = int(rng.integers(2**32))
            return f"parcel before {previous}", replace(parcel, previous=previous)
        case 2:
            revision = abs(_number(rng))
            return f"revision {revision}", replace(parcel, revision=revision)
        case 3:
            order = rng.permutation(len(parcel.messages))
            return f"messages {order}", replace(parcel, messages=tuple(parcel.messages[one] for one in order))
        case _:
            again = parcel.messages[: int(rng.integers(1, 3))]
            return "messages twice", replace(parcel, messages=(*parcel.messages, *again))


def _notes(parcel: Parcel, rng: Random) -> tuple[str, Parcel]:
    """Notes of known kinds, whose members have other types or impossible values."""
    kinds: list[dict[str, Any]] = [
        {"is": "Observed", "text": "what"},
        {"is": "Ready", "number": 2, "bound_us": 5, "gone": [], "refused": ""},
        {"is": "Decided", "number": 2, "at_us": 5, "retired": [], "refused": ""},
        {"is": "Request", "change": {"is": "Change", "plans": [], "removed": ["q1"]}},
        {
            **{"is": "Prepare", "number": 2, "form": "point to point", "change": {"is": "Change", "plans": []}},
            "promise": {"is": "Ready", "number": 2, "bound_us": 5},
        },
    ]
    with contextlib.suppress(ValueError):
        kinds += json.loads(parcel.notes)["notes"] * 3
    note = kinds[int(rng.integers(len(kinds)))]
    for _ in range(int(rng.integers(1, 3))):
        note = _otherwise(note, rng)
    text = json.dumps({"is": "_Notes", "notes": [note]}) if rng.random() < 0.95 else "[" * int(rng.integers(10**5))
    return f"notes {text[:300]}", replace(parcel, notes=text.encode())


def _otherwise(value: Any, rng: Random) -> Any:
    """Plain data with one thing in it replaced, left out or added."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = sorted(value)[int(rng.integers(len(value)))]
        match int(rng.integers(6)):
            case 0:
                return {key: one for key, one in value.items() if key != name}
            case 1:
                return {**value, "more": 1}
            case _:
                return {**value, name: _otherwise(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = int(rng.integers(len(value)))
        return [*value[:place], _otherwise(value[place], rng), *value[place + 1 :]]
    if type(value) is int and rng.random() < 0.5:
        return _number(rng)
    return JUNK[int(rng.integers(len(JUNK)))]


def _message(message: Message, parcel: Parcel, rng: Random) -> tuple[str, Message]:
    other = parcel.messages[int(rng.integers(len(parcel.messages)))]
    match int(rng.integers(6)):
        case 0:
            flow = (other.flow, int(rng.integers(40)), 2**62)[int(rng.integers(3))]
            return f"flow {flow}", replace(message, flow=flow)
        case 1 | 2:
            watermark = int(rng.choice([message.watermark + int(rng.integers(-9, 10)) * 10**6, _number(rng)]))
            return f"watermark {watermark}", replace(message, watermark=max(UNKNOWN, watermark))
        case 3:
            rows = int(rng.choice([0, message.rows + 1, 2**40]))
            return f"{rows} rows", replace(message, rows=rows)
        case 4:
            return "the schema of another", replace(message, schema=other.schema)
        case _:
            return "the rows of another", replace(message, payload=other.payload, rows=other.rows)


def _rows(message: Message, flow: Flow, rng: Random) -> tuple[str, Message]:
    table = unpack_rows(message.payload, unpack_schema(flow.schema))
    what: list[str] = []
    for _ in range(int(rng.choice([1, 1, 1, 2]))):
        said, table = _table(table, rng, flow.untyped, same_schema=not message.schema)
        what.append(said)
    try:
        payload = pack_rows(table)
    except (pa.ArrowException, ValueError):  # of a kind that cannot be packed at all
        return "nothing", message
    told = pack_schema(table.schema) if message.schema else b""
    return " and ".join(what), replace(message, payload=payload, rows=table.num_rows, schema=told)


def _table(table: pa.Table, rng: Random, untyped: frozenset[str], *, same_schema: bool) -> tuple[str, pa.Table]:
    if not table.num_columns:
        return "no columns", table
    place = int(rng.integers(table.num_columns))
    name, column = table.column_names[place], table.column(place)
    match int(rng.integers(4 if same_schema else 0, 13)):
        case 0:
            return f"without {name!r}", table.remove_column(place)
        case 1:
            named = str(rng.choice([*table.column_names, "more", "#ts", "#ordinal", "#class9", "", "#key", "#low"]))
            return f"with {named!r} once more", table.append_column(named, column)
        case 2 if name not in untyped:
            kind = TYPES[int(rng.integers(len(TYPES)))]
            if any(is_such(kind) and is_such(column.type) for is_such in ALIKE):  # which is not looked at
                return f"{name!r} as it was", table
            return f"{name!r} of type {kind}", table.set_column(place, name, _cast(column, kind))
        case 3 if len(set(table.column_names)) == table.num_columns:
            names = [table.column_names[one] for one in rng.permutation(table.num_columns)]
            return "columns in another order", table.select(names)
        case 4:
            holes = pa.array(rng.random(table.num_rows) < 0.5)
            return f"NULLs in {name!r}", table.set_column(
                place, name, pc.if_else(holes, pa.scalar(None, column.type), column)
            )
        case 5:
            order = rng.permutation(table.num_rows)
            return f"{name!r} in another order", table.set_column(place, name, column.take(pa.array(order)))
        case 6:
            chosen = rng.integers(0, table.num_rows, int(rng.choice([1, 2, 300]))) if table.num_rows else np.arange(0)
            return f"rows {chosen[:20]}", table.take(pa.array(chosen))
        case _:
            try:
                values = [_value(one, column.type, rng) if rng.random() < 0.6 else one for one in column.to_pylist()]
                made = pa.array(values, column.type)
            except (pa.ArrowException, OverflowError, ValueError, TypeError):
                return f"{name!r} as it was", table
            return f"{name!r} = {values[:8]}", table.set_column(place, name, made)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    try:
        return column.cast(kind)
    except (pa.ArrowException, ValueError):
        return pa.nulls(len(column), kind)


def _value(value: Any, kind: pa.DataType, rng: Random) -> Any:
    """Another value of a type, one that is hardly ever met."""
    if pa.types.is_boolean(kind):
        return bool(rng.integers(2))
    if pa.types.is_integer(kind):
        near = [] if value is None else [value + int(rng.integers(-9, 10)), -value]
        width = kind.bit_width - 1
        return max(-(2**width), min(2**width - 1, [_number(rng), *near][int(rng.integers(1 + len(near)))]))
    if pa.types.is_floating(kind):
        return REALS[int(rng.integers(len(REALS)))]
    if pa.types.is_decimal(kind):
        return Decimal(int(rng.choice([-1, 1])) * (10 ** (kind.precision - max(kind.scale, 0)) - 1))
    if pa.types.is_timestamp(kind):
        return pa.scalar(_number(rng), pa.int64()).cast(kind) if rng.random() < 0.5 else None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return str(rng.choice(["", "\0", "x" * 3_000, "é", "NULL"]))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return bytes(rng.bytes(int(rng.choice([0, 1, 7, 8, 9, 64, 500]))))
    if pa.types.is_list(kind):
        if rng.random() < 0.2:
            return None
        some = (
            [] if value is None else [_value(one, kind.value_type, rng) if rng.random() < 0.5 else one for one in value]
        )
        match int(rng.integers(4)):
            case 0:
                return some[1:]
            case 1:
                return [*some, _value(None, kind.value_type, rng)]
            case 2:
                return [*some, None]
            case _:
                return some
    return None


def _flows(engine: SiteEngine, ledger: SiteLedger, sender: str, parcel: Parcel) -> Iterator[Flow]:
    names, known = engine.program.flow_names(sender, parcel.revision), dict(ledger.schemas)
    for message in parcel.messages:
        shipment = engine.program.shipments_in.get((sender, names[message.flow]))
        if shipment is None:
            yield Flow()
            continue
        if message.schema:
            known[shipment.arrives_as] = message.schema.hex()
        schema = bytes.fromhex(known.get(shipment.arrives_as, ""))
        columns = unpack_schema(schema).names if schema else []
        if shipment.form is Form.RECORD:  # the simulator has no types of select items
            untyped = {one for one in columns if one.startswith("key") or one.endswith(".value")}
        else:
            types = known_types(engine.program, shipment, engine.type_of)
            untyped = {one for one in columns if not one.startswith("#") and _is_of(types.get(one, ""), pa.null())}
        yield Flow(schema, frozenset(untyped))


@dataclass
class Forger:
    """Tries micro-batches with forged parcels before they run with the real ones."""

    run: Callable[[SiteEngine, SiteLedger, Arrivals], SiteLedger]  # what it stands before
    rng: Random
    tries: int = 2  # in a micro-batch
    refused: int = 0
    taken: int = 0
    causes: dict[str, int] = field(default_factory=dict)

    def __call__(self, engine: SiteEngine, ledger: SiteLedger, arrivals: Arrivals) -> SiteLedger:
        newest = engine.program.revision
        due = [one for one in arrivals.parcels if one[2].number == ledger.received.get(one[0], 0) + 1]
        parcels = [one for one in due if one[2].revision <= newest]
        if parcels:
            text = ledger.to_json()
            for _ in range(self.tries):
                self._attempt(engine, ledger, arrivals, parcels[int(self.rng.integers(len(parcels)))])
            assert ledger.to_json() == text, "what was refused has left something behind"
        return self.run(engine, ledger, arrivals)

    def _attempt(
        self, engine: SiteEngine, ledger: SiteLedger, arrivals: Arrivals, chosen: tuple[str, str, Any]
    ) -> None:
        sender, path, _ = chosen
        parcel = opened(engine.shelf.get_bytes(path))
        what, made = forged(parcel, list(_flows(engine, ledger, sender, parcel)), self.rng)
        try:
            data = made.pack()
        except OverflowError:
            return
        if made == parcel:
            return
        try:
            came = (sender, engine.shelf.put_bytes("parcel", data), index_parcel(data))
        except ValueError as error:
            self._note(f"as it is read: {error}")
            return
        others = [one for one in arrivals.parcels if one is not chosen]
        try:
            self._go_on(engine, self.run(engine, ledger, Arrivals([came, *others], arrivals.declared)))
            self.taken += 1
        except WatersmeetError as error:
            self._note(str(error))
        except Exception as error:
            error.add_note(f"forged: {what}\nof {engine.program.site}, from {sender}")
            raise

    def _note(self, cause: str) -> None:
        assert "\n" not in cause, "one sentence"
        self.refused += 1
        words = "".join(" " if one.isdigit() else one for one in cause)
        self.causes[words] = self.causes.get(words, 0) + 1

    def _go_on(self, engine: SiteEngine, ledger: SiteLedger) -> None:
        """A site that believes it must be able to go on to the end of its input."""
        ledger = SiteLedger.from_json(ledger.to_json())
        if ledger.versions and engine.versions(ledger).is_decided:
            engine, ledger = adopt(engine, ledger)
        streams = [scan.stream for scan in engine.program.sources if not scan.is_table]
        ledger = self.run(engine, ledger, Arrivals((), dict.fromkeys(streams, END_US)))
        SiteLedger.from_json(ledger.to_json())
