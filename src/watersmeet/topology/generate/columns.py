"""What users write about the values of a column, such as `uniform 0 10`, to where its values come from."""

import math
import shlex
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np

from watersmeet.errors import InputError, did_you_mean
from watersmeet.topology.generate.model import (
    ARROW_TYPES,
    ROLE,
    Choice,
    ConstantValue,
    GeneratedColumn,
    Numbers,
    Pattern,
    RowNumbers,
    Time,
    Uniform,
    Values,
    Zipf,
)

ZIPF_LARGEST = 10_000_000
_TYPE_ALIASES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
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
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_column(name: str, declared: str, text: str) -> GeneratedColumn:
    """A column of the schema and what is written about its values, which may be nothing."""
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
    return GeneratedColumn(name, sql_type, values, nullable, null_share)


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
    match ROLE[sql_type]:
        case "integer":
            return RowNumbers()
        case "floating":
            return Uniform(0.0, 1.0)
        case "string":
            return Pattern(f"{name}-", "", Uniform(0, 1000))
        case "boolean":
            return Choice((True, False))
        case _:
            return Time()


def _values(words: list[str], sql_type: str, where: str) -> Values:
    form, role = words[0].lower(), ROLE[sql_type]
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
            return ConstantValue(_literal(word, sql_type, where))
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
            return RowNumbers()
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
            return timestamp(word, where)
        case "timestamp_ntz":
            return timestamp(word, where).replace(tzinfo=None)
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


def timestamp(text: str, where: str) -> datetime:
    """An instant, in UTC if the text has no time zone."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InputError(f"{where}: {text!r} is not a timestamp; write it like '2025-01-01 00:00:00'") from None


def microseconds(moment: datetime) -> int:
    """Microseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)
