"""The options of a generator, as users write them, to the stream that they describe."""

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import partial

from watersmeet.errors import InputError, did_you_mean
from watersmeet.query.windows import parse_duration
from watersmeet.topology.generate.columns import microseconds, read_column, timestamp
from watersmeet.topology.generate.model import Rush, Spec

OPTIONS = ("rows", "rows_per_second", "rush", "pace", "rows_per_batch", "start", "disorder", "seed", "partitions")
_NUMBER = re.compile(r"\d[\d_]*(\.\d+)?([eE][+-]?\d{1,2})?")


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
    - `column.NAME`: the values of a column, as the head of this package says. By default integers are `sequence`,
      reals `uniform 0 1`, strings `pattern NAME-{} uniform 0 1000`, booleans `choice true false`, times `time`.

    >>> from watersmeet.topology.generate.making import rows
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
            read_column(name, sql_type, given.get(f"column.{name.lower()}", "")) for name, sql_type in columns.items()
        ),
        rows_per_second=rows_per_second,
        rows_per_batch=whole("rows_per_batch", default_batch, smallest=1),
        start_us=microseconds(timestamp(given.get("start", "2025-01-01 00:00:00"), "generator option start")),
        disorder_us=_disorder(given.get("disorder", "0 seconds")),
        seed=whole("seed", 0),
        partitions=whole("partitions", 1, smallest=1),
        rows=whole("rows", 0, smallest=0) if "rows" in given else None,
        pace=pace,
        rush=_rush(given["rush"], rows_per_second) if "rush" in given else None,
    )


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
