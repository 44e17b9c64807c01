"""Made-up streams that can be replayed: row i is a pure function of the specification and i, so nothing is kept.

    draw(seed, column, purpose, i) = splitmix64(key + (i + 1) * GOLDEN),   key = blake2b(seed, column, purpose)
    event time of row i            = start + i / rows_per_second - disorder_i,   0 <= disorder_i <= disorder

Values depend on the seed and the column's name: two streams with a column of the same name and the same seed have the
same values there, row by row, so give each stream its own seed unless that is what you want.

A column's values are written as a few words, quoted as in a shell where a word holds a space:

    sequence            the row number; past the largest value of its type it starts at 0 again
    time                the event time (timestamps), or its day in UTC (dates)
    uniform LOW HIGH    integers from LOW up to but not including HIGH, or reals in the same interval
    zipf S N            integers 0..N-1; the probability of r is in proportion to 1 / (r + 1)^S
    choice A B C        one of the words, each as likely
    constant X          always X
    pattern TEXT [NUM]  TEXT with its {} filled by NUM: sequence, uniform or zipf; `uniform 0 1000` if not given
    null P [SPEC]       a share P of NULLs, the rest as SPEC says, or as the type's default
"""

import hashlib
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from watersmeet.errors import InputError, did_you_mean
from watersmeet.query.windows import parse_duration

CHUNK_ROWS = 100_000
ZIPF_LARGEST = 10_000_000
OPTIONS = ("rows", "rows_per_second", "rush", "pace", "rows_per_batch", "start", "disorder", "seed", "partitions")
ARROW_TYPES = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "date": pa.date32(),
}
_TYPE_ALIASES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
_ROLES = {
    "integer": ("tinyint", "smallint", "int", "bigint"),
    "floating": ("float", "double"),
    "string": ("string",),
    "boolean": ("boolean",),
    "time": ("timestamp", "timestamp_ntz", "date"),
}
_ROLE = {sql_type: role for role, sql_types in _ROLES.items() for sql_type in sql_types}
_FORMS = {
    "sequence": "sequence",
    "time": "time",
    "uniform": "uniform LOW HIGH",
    "zipf": "zipf S N",
    "choice": "choice A B C",
    "constant": "constant X",
    "pattern": "pattern TEXT-{} zipf S N",
    "null": "null P uniform LOW HIGH",
}
_FITTING = {
    "integer": ("sequence", "uniform", "zipf", "choice", "constant"),
    "floating": ("uniform", "choice", "constant"),
    "string": ("pattern", "choice", "constant"),
    "boolean": ("choice", "constant"),
    "time": ("time", "choice", "constant"),
}

_NUMBER = re.compile(r"\d[\d_]*(\.\d+)?([eE][+-]?\d{1,2})?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_US = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_DAY_US = 86_400_000_000

Uint64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sequence:
    """The row number."""


@dataclass(frozen=True, slots=True)
class Time:
    """The event time."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """Each number in [low, high) as likely."""

    low: int | float
    high: int | float


@dataclass(frozen=True, slots=True)
class Zipf:
    """Ranks 0..count-1, the most frequent first."""

    exponent: float
    count: int


@dataclass(frozen=True, slots=True)
class Choice:
    """Each of the values as likely."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value in every row."""

    value: Any


@dataclass(frozen=True, slots=True)
class Pattern:
    """A number between two texts."""

    before: str
    after: str
    number: "Numbers"


Numbers = Sequence | Uniform | Zipf
Values = Numbers | Time | Choice | Constant | Pattern


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the schema and where its values come from."""

    name: str
    type: str
    values: Values
    nullable: bool = True
    null_share: float = 0.0

    @property
    def arrow_field(self) -> pa.Field:
        return pa.field(self.name, ARROW_TYPES[self.type], nullable=self.nullable)


@dataclass(frozen=True, slots=True)
class Rush:
    """From some instant on, given by its first row, more rows come."""

    after_us: int
    first_row: int
    factor: int


@dataclass(frozen=True, slots=True)
class Spec:
    """A stream to generate: what its rows are, and how fast they come."""

    columns: tuple[Column, ...]
    rows_per_second: Fraction
    rows_per_batch: int
    start_us: int
    disorder_us: int
    seed: int
    partitions: int
    rows: int | None
    """How many rows there are; None: the stream never ends."""
    pace: Fraction | None
    """Wall-clock speed as a multiple of event time; None: as fast as the rows are taken."""
    rush: "Rush | None" = None

    @property
    def arrow_schema(self) -> pa.Schema:
        return pa.schema([column.arrow_field for column in self.columns])

    def available(self, restart: int, elapsed_s: float) -> int | None:
        """The row number reached when `elapsed_s` of wall clock have passed since a (re)start at row `restart`, or
        None for no bound; it depends on nothing that happened in between, so that a late reader catches up."""
        if self.pace is None:
            return self.rows
        if self.rush is None:
            reached = restart + int(elapsed_s * float(self.rows_per_second * self.pace))
        else:
            reached = self._row_at(self._second_of(restart) + elapsed_s * float(self.pace))
        return reached if self.rows is None else min(reached, self.rows)

    def _second_of(self, row: int) -> float:
        early = min(row, self.rush.first_row) if self.rush is not None else row
        faster = float(self.rows_per_second) * (self.rush.factor if self.rush is not None else 1)
        return early / float(self.rows_per_second) + (row - early) / faster

    def _row_at(self, second: float) -> int:
        rate, rush = float(self.rows_per_second), self.rush
        if rush is None or second < rush.after_us / 1e6:
            return int(second * rate)
        return rush.first_row + int((second - rush.after_us / 1e6) * rate * rush.factor)

    def splits(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """Rows [lo, hi) in at most `partitions` ranges, none of them empty."""
        count = max(min(self.partitions, hi - lo), 0)
        bounds = [lo + (hi - lo) * part // count for part in range(count + 1)] if count else []
        return list(pairwise(bounds))


def spec(columns: Mapping[str, str], options: Mapping[str, str]) -> Spec:
    """The stream that `options` describe over columns given as name -> SQL type (`bigint`, `string not null`).

    - `rows`: how many in all; without it the stream never ends.
    - `rows_per_second` (1000): the rate in event time.
    - `rush` (none): a duration and a whole number, such as `60 seconds 10`: from then on, so many times the rate.
    - `pace` (1): wall-clock speed as a multiple of event time; `max` or 0: as fast as the rows are taken.
    - `rows_per_batch`: the most rows a micro-batch takes; if not given, what comes in 10 seconds at that pace, and
      at least in 10 seconds of event time. With `pace: max` every micro-batch but the last has exactly this many.
    - `start` (2025-01-01 00:00:00): the time of row 0, in UTC unless it names its own offset.
    - `disorder` (none): a duration; each event time is set back by a random part of it.
    - `seed` (0): another seed, other rows.
    - `partitions` (1): how many parts a micro-batch is made in.
    - `column.NAME`: the values of a column, as the head of this module says. By default integers are `sequence`,
      reals `uniform 0 1`, strings `pattern NAME-{} uniform 0 1000`, booleans `choice true false`, times `time`.

    >>> made = spec({"ts": "timestamp", "host": "string"}, {"column.host": "pattern 10.0.0.{} zipf 1.1 250"})
    >>> rows(made, 2, 4)["ts"].to_pylist()[1].isoformat()
    '2025-01-01T00:00:00.003000+00:00'
    """
    given = {key.lower(): str(value).strip() for key, value in options.items()}
    _check_names(columns, given)
    rows_per_second = _rate(given.get("rows_per_second", "1000"))
    pace = _pace(given.get("pace", "1"))
    whole = partial(_whole, given)
    default_batch = max(1, int(10 * rows_per_second * max(pace or 1, 1)))
    return Spec(
        columns=tuple(
            _column(name, sql_type, given.get(f"column.{name.lower()}", "")) for name, sql_type in columns.items()
        ),
        rows_per_second=rows_per_second,
        rows_per_batch=whole("rows_per_batch", default_batch, smallest=1),
        start_us=_microseconds(_timestamp(given.get("start", "2025-01-01 00:00:00"), "generator option start")),
        disorder_us=_disorder(given.get("disorder", "0 seconds")),
        seed=whole("seed", 0),
        partitions=whole("partitions", 1, smallest=1),
        rows=whole("rows", 0, smallest=0) if "rows" in given else None,
        pace=pace,
        rush=_rush(given["rush"], rows_per_second) if "rush" in given else None,
    )


def rows(spec: Spec, lo: int, hi: int) -> pa.Table:
    """Rows [lo, hi) of the stream, whatever its `rows` and pace are."""
    return pa.Table.from_batches(batches(spec, lo, hi), schema=spec.arrow_schema)


def arrivals_us(spec: Spec, lo: int, hi: int) -> Int64s:
    """When rows [lo, hi) arrive at the stream's own pace: their event times before disorder sets them back.

    >>> arrivals_us(spec({"ts": "timestamp"}, {"start": "1970-01-01", "disorder": "9 seconds"}), 1, 4).tolist()
    [1000, 2000, 3000]
    """
    punctual = replace(spec, disorder_us=0)
    chunks = [_Chunk(punctual, first, min(first + CHUNK_ROWS, hi)) for first in range(lo, hi, CHUNK_ROWS)]
    return np.concatenate([np.empty(0, np.int64), *(chunk.times_us() for chunk in chunks)])


def batches(spec: Spec, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
    """Rows [lo, hi) of the stream in record batches of at most CHUNK_ROWS."""
    schema = spec.arrow_schema
    for first in range(lo, hi, CHUNK_ROWS):
        chunk = _Chunk(spec, first, min(first + CHUNK_ROWS, hi))
        yield pa.RecordBatch.from_arrays([chunk.array(column) for column in spec.columns], schema=schema)


# Making rows ---------------------------------------------------------------------------------------------------------


class _Chunk:
    """Rows [lo, hi), few enough for the arithmetic on event times to stay inside 64 bits."""

    def __init__(self, spec: Spec, lo: int, hi: int) -> None:
        self.spec, self.lo, self.size = spec, lo, hi - lo

    def array(self, column: Column) -> pa.Array:
        made = self._values(column)
        if column.null_share:
            is_null = _reals(self._draw(column.name, "null")) < column.null_share
            made = pc.if_else(pa.array(is_null), pa.scalar(None, made.type), made)
        return made

    def _values(self, column: Column) -> pa.Array:
        arrow_type = ARROW_TYPES[column.type]
        match column.values:
            case Uniform(low, high) if _ROLE[column.type] == "floating":
                dtype = arrow_type.to_pandas_dtype()
                reals = (low + _reals(self._draw(column.name, "value")) * (high - low)).astype(dtype)
                # Rounding may reach `high`, which is not in the interval.
                return pa.array(np.minimum(reals, np.nextafter(dtype(high), dtype(low))))
            case Sequence() | Uniform() | Zipf() as numbers:
                return pa.array(
                    self._integers(column, numbers, arrow_type.bit_width).astype(f"i{arrow_type.byte_width}")
                )
            case Time():
                times = self.times_us()
                if column.type == "date":
                    return pa.array((times // _DAY_US).astype(np.int32)).view(arrow_type)
                return pa.array(times).view(arrow_type)
            case Choice(values):
                picked = self._draw(column.name, "value") % np.uint64(len(values))
                return pa.array(values, arrow_type).take(pa.array(picked))
            case Constant(value):
                return pa.repeat(pa.scalar(value, arrow_type), self.size)
            case Pattern(before, after, number):
                digits = pc.cast(pa.array(self._integers(column, number)), pa.string())
                return pc.binary_join_element_wise(before, digits, after, "")
            case _ as other:
                assert_never(other)

    def _integers(self, column: Column, numbers: Numbers, bits: int = 64) -> Int64s:
        match numbers:
            case Sequence():
                return np.arange(self.lo, self.lo + self.size, dtype=np.int64) & np.int64(2 ** (bits - 1) - 1)
            case Uniform(low, high):
                # Unsigned and wrapping, so that the whole range of a bigint is one interval like any other.
                offsets = self._draw(column.name, "value")
                if (span := int(high) - int(low)) < 2**64:
                    offsets %= np.uint64(span)
                offsets += np.uint64(int(low) % 2**64)
                return offsets.view(np.int64)
            case Zipf(exponent, count):
                reals = _reals(self._draw(column.name, "value"))
                return _zipf_cdf(exponent, count).searchsorted(reals, side="right")
            case _ as other:
                assert_never(other)

    def times_us(self) -> Int64s:
        """start + floor(i * step) exactly: in Python for the first row, and in 64 bits from there."""
        rush = self.spec.rush
        if rush is not None:
            early = replace(self.spec, rush=None)
            split = min(max(rush.first_row, self.lo), self.lo + self.size)
            late = replace(
                early,
                start_us=early.start_us + rush.after_us,
                rows_per_second=early.rows_per_second * rush.factor,
                disorder_us=0,
            )
            before = _Chunk(replace(early, disorder_us=0), self.lo, split).times_us()
            after = _Chunk(late, split - rush.first_row, self.lo + self.size - rush.first_row).times_us()
            return self._set_back(np.concatenate([before, after] if split < self.lo + self.size else [before]))
        step_us = 1_000_000 / self.spec.rows_per_second
        whole, rest = divmod(self.lo * step_us.numerator, step_us.denominator)
        first_us = self.spec.start_us + whole
        if first_us + int(self.size * step_us) > _LAST_US:
            raise InputError(
                f"generator: row {self.lo + self.size} would be after the year 9999; "
                "raise rows_per_second or choose an earlier start"
            )
        ticks = np.arange(self.size, dtype=np.int64) * step_us.numerator + rest
        times: Int64s = first_us + ticks // step_us.denominator
        return self._set_back(times)

    def _set_back(self, times: Int64s) -> Int64s:
        if self.spec.disorder_us:
            times -= (self._draw("", "disorder") % np.uint64(self.spec.disorder_us + 1)).view(np.int64)
        return times

    def _draw(self, column: str, purpose: str) -> Uint64s:
        """64 random bits a row: splitmix64 (Steele, Lea, Flood 2014), entered at the row's place in its sequence."""
        name = f"{self.spec.seed}\0{column.casefold()}\0{purpose}"
        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
        bits = np.arange(self.lo + 1, self.lo + 1 + self.size, dtype=np.uint64)
        bits *= np.uint64(0x9E3779B97F4A7C15)
        bits += np.uint64(key)
        bits ^= bits >> np.uint64(30)
        bits *= np.uint64(0xBF58476D1CE4E5B9)
        bits ^= bits >> np.uint64(27)
        bits *= np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
        return bits


def _reals(bits: Uint64s) -> NDArray[np.float64]:
    """Reals in [0, 1) of 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


@lru_cache(maxsize=4)
def _zipf_cdf(exponent: float, count: int) -> NDArray[np.float64]:
    cdf: NDArray[np.float64] = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -exponent)
    cdf /= cdf[-1]
    return cdf


# Reading the options -------------------------------------------------------------------------------------------------


def _check_names(columns: Mapping[str, str], given: Mapping[str, str]) -> None:
    if not columns:
        raise InputError("generator: the schema has no columns; give at least one, such as 'ts timestamp'")
    by_lower: dict[str, str] = {}
    for name in columns:
        if twin := by_lower.get(name.lower()):
            raise InputError(f"generator: columns {twin!r} and {name!r} differ in case alone; rename one of them")
        by_lower[name.lower()] = name
    for key in given:
        if key.startswith("column."):
            if (name := key.removeprefix("column.")) not in by_lower:
                raise InputError(
                    f"generator option {key}: the schema has no column {name!r}; {did_you_mean(name, columns)}"
                )
        elif key not in OPTIONS:
            known = (*OPTIONS, "column.NAME")
            raise InputError(f"generator: there is no option {key!r}; {did_you_mean(key, known)}")


def _whole(given: Mapping[str, str], option: str, default: int, smallest: int = -(2**63)) -> int:
    text = given.get(option, str(default))
    try:
        number = int(text)
    except ValueError:
        raise InputError(f"generator option {option}: {text!r} is not a whole number; write it like 1000") from None
    if not smallest <= number < 2**63:
        raise InputError(
            f"generator option {option}: {number} is out of range; give at least {smallest} and below 2^63"
        )
    return number


def _rate(text: str) -> Fraction:
    rate = Fraction(text) if _NUMBER.fullmatch(text) else Fraction(0)
    # A bounded numerator and denominator keep the event times of a chunk inside 64 bits.
    if not 0 < rate <= 10**12 or 10**6 % rate.denominator:
        raise InputError(
            f"generator option rows_per_second: {text!r} is not a rate; give a number above 0, at most 1e12 "
            "and with at most six decimals, such as 1000 or 0.5"
        )
    return rate


def _rush(text: str, rate: Fraction) -> Rush:
    """When it begins, and how many times the rate it brings.

    >>> _rush("2 seconds 10", Fraction(50))
    Rush(after_us=2000000, first_row=100, factor=10)
    """
    duration, _, factor = text.rpartition(" ")
    if not duration or not factor.isdecimal() or not 1 <= int(factor) <= 10_000:
        raise InputError(
            f"generator option rush: {text!r} is not a duration and a factor up to 10000, such as `60 seconds 10`"
        )
    after_us = parse_duration(duration)
    return Rush(after_us, -(-after_us * rate.numerator // (1_000_000 * rate.denominator)), int(factor))


def _pace(text: str) -> Fraction | None:
    if text.lower() == "max":
        return None
    if not _NUMBER.fullmatch(text):
        raise InputError(
            f"generator option pace: {text!r} is not a speed; give a multiple of real time such as 1 or 2.5, or 'max'"
        )
    return Fraction(text) or None


def _disorder(text: str) -> int:
    try:
        disorder_us = parse_duration(text)
    except InputError as error:
        raise InputError(f"generator option disorder: {error}") from None
    if disorder_us < 0:
        raise InputError(f"generator option disorder: {text!r} is negative; give 0 seconds or more")
    return disorder_us


def _timestamp(text: str, where: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InputError(f"{where}: {text!r} is not a timestamp; write it like '2025-01-01 00:00:00'") from None


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _column(name: str, declared: str, text: str) -> Column:
    sql_type, nullable = _sql_type(name, declared)
    where = f"generator option column.{name}: {text!r}"
    try:
        words = shlex.split(text)
    except ValueError:
        raise InputError(
            f"{where} has a quote that is not closed; close it, or write the quote as \\' or \\\""
        ) from None
    null_share = 0.0
    if words and words[0].lower() == "null":
        if len(words) == 1:
            raise InputError(f"{where} does not say how many are NULL; write it like '{_FORMS['null']}'")
        null_share = _real(words[1], where)
        if not 0 <= null_share <= 1:
            raise InputError(f"{where}: {words[1]} is not a share; give a number from 0 to 1")
        if null_share and not nullable:
            raise InputError(f"{where} makes NULLs in a column that is NOT NULL; drop one of the two")
        words = words[2:]
    values = _values(words, sql_type, where) if words else _default(name, sql_type)
    return Column(name, sql_type, values, nullable, null_share)


def _sql_type(name: str, declared: str) -> tuple[str, bool]:
    lowered = " ".join(declared.lower().split())
    bare = lowered.removesuffix(" not null")
    sql_type = _TYPE_ALIASES.get(bare, bare)
    if sql_type not in ARROW_TYPES:
        raise InputError(
            f"generator: column {name!r} has type {declared}, which cannot be generated; use one of "
            f"{', '.join(ARROW_TYPES)}, and cast it in the query"
        )
    return sql_type, bare == lowered


def _default(name: str, sql_type: str) -> Values:
    match _ROLE[sql_type]:
        case "integer":
            return Sequence()
        case "floating":
            return Uniform(0.0, 1.0)
        case "string":
            return Pattern(f"{name}-", "", Uniform(0, 1000))
        case "boolean":
            return Choice((True, False))
        case _:
            return Time()


def _values(words: list[str], sql_type: str, where: str) -> Values:
    form, role = words[0].lower(), _ROLE[sql_type]
    if form not in _FORMS:
        raise InputError(f"{where}: there is no form {words[0]!r}; {did_you_mean(form, _FORMS)}")
    if form not in _FITTING[role]:
        cures = " or ".join(f"'{_FORMS[fitting]}'" for fitting in _FITTING[role])
        raise InputError(f"{where} does not fit a column of type {sql_type}; write {cures}")
    match [form, *words[1:]]:
        case ["time"]:
            return Time()
        case ["choice", first, *others]:
            return Choice(tuple(_literal(word, sql_type, where) for word in (first, *others)))
        case ["constant", word]:
            return Constant(_literal(word, sql_type, where))
        case ["pattern", text, *number]:
            return _pattern(text, number or ["uniform", "0", "1000"], where)
        case ["uniform", low, high] if role == "floating":
            return _interval(_real(low, where, sql_type), _real(high, where, sql_type), where)
        case ["sequence" | "uniform" | "zipf", *_]:
            return _numbers(words, sql_type, where)
        case _:
            raise InputError(f"{where} has too few or too many words; write it like '{_FORMS[form]}'")


def _pattern(text: str, number: list[str], where: str) -> Pattern:
    before, hole, after = text.partition("{}")
    if not hole or "{}" in after:
        raise InputError(
            f"{where}: {text!r} needs exactly one {{}} for the number; write it like '{_FORMS['pattern']}'"
        )
    return Pattern(before, after, _numbers(number, "bigint", where))


def _numbers(words: list[str], sql_type: str, where: str) -> Numbers:
    match [words[0].lower(), *words[1:]]:
        case ["sequence"]:
            return Sequence()
        case ["uniform", low, high]:
            least = _integer(low, sql_type, where)
            return _interval(least, _integer(high, sql_type, where, beyond=1), where)
        case ["zipf", exponent, count]:
            ranks = _integer(count, sql_type, where, beyond=1)
            slope = _real(exponent, where)
            if slope < 0 or not 1 <= ranks <= ZIPF_LARGEST:
                raise InputError(f"{where}: zipf needs an exponent of 0 or more and 1 to {ZIPF_LARGEST:,} values")
            return Zipf(slope, ranks)
        case ["sequence" | "uniform" | "zipf" as form, *_]:
            raise InputError(f"{where} has too few or too many words; write it like '{_FORMS[form]}'")
        case [other, *_]:
            raise InputError(f"{where}: {other!r} makes no integers; use sequence, 'uniform LOW HIGH' or 'zipf S N'")
    raise AssertionError("a form has at least one word")


def _interval(low: float, high: float, where: str) -> Uniform:
    if not low < high:
        raise InputError(f"{where}: no number is at least {low} and below {high}; give LOW below HIGH")
    return Uniform(low, high)


def _literal(word: str, sql_type: str, where: str) -> Any:
    match sql_type:
        case "string":
            return word
        case "boolean":
            if word.lower() not in ("true", "false"):
                raise InputError(f"{where}: {word!r} is not a boolean; write true or false")
            return word.lower() == "true"
        case "float" | "double":
            return _real(word, where, sql_type)
        case "timestamp":
            return _timestamp(word, where)
        case "timestamp_ntz":
            return _timestamp(word, where).replace(tzinfo=None)
        case "date":
            try:
                return date.fromisoformat(word)
            except ValueError:
                raise InputError(f"{where}: {word!r} is not a date; write it like 2025-01-01") from None
        case _:
            return _integer(word, sql_type, where)


def _integer(word: str, sql_type: str, where: str, beyond: int = 0) -> int:
    """An integer of the type, or up to `beyond` past its largest for a bound that is itself not included."""
    try:
        number = int(word)
    except ValueError:
        raise InputError(f"{where}: {word!r} is not a whole number; write it like 1000") from None
    largest = 2 ** (ARROW_TYPES[sql_type].bit_width - 1) - 1
    if not -largest - 1 <= number <= largest + beyond:
        raise InputError(f"{where}: {number} does not fit type {sql_type}; stay within {-largest - 1} and {largest}")
    return number


def _real(word: str, where: str, sql_type: str = "double") -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    # Half the largest, so that the length of an interval is finite too.
    largest = float(np.finfo(ARROW_TYPES[sql_type].to_pandas_dtype()).max) / 2
    if not abs(number) <= largest:
        raise InputError(
            f"{where}: {word!r} is not a number that fits type {sql_type}; write it like 0.5, at most {largest:.1e}"
        )
    return number
