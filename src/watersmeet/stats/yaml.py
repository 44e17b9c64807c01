"""Statistics as YAML: `stats:` of a stream in the topology, and the file that `stats_file:` names; read and written.

What is written can be read back with nothing lost (times to the microsecond).
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path
from typing import Any

from watersmeet.errors import InputError, did_you_mean
from watersmeet.stats.model import Bin, BytesByBatch, ColumnStats, Histogram, Number, Origin, Sample, Stats, StreamStats
from watersmeet.stats.samples import table_of
from watersmeet.topology.yaml_tree import SIZE_BYTES, Entry, dump, parse_amount, read

_FILE_KEYS = ("streams", "selectivities")
_STREAM_KEYS = ("rate", "row_bytes", "batch_interval", "busy", "columns", "sample")
_TABLE_KEYS = ("rows", "row_bytes", "columns")
_EITHER_KEYS = ("rows", *_STREAM_KEYS)
_COLUMN_KEYS = ("distinct", "nulls", "bytes", "sizes", "in_order", "histogram")
_ABOUT_KEYS = ("origin", "confidence", "taken_at")
_BIN_KEYS = ("low", "high", "value", "share", "distinct")
_SIZES_EXAMPLE = "sizes: [14, 9.5, 6, 4.2, 4]"
_BINS_EXAMPLE = "histogram: [{low: 1, high: 10, share: 0.5}, {value: 11, share: 0.5}]"


def read_table_stats(entry: Entry, table: str, columns: Sequence[str]) -> StreamStats:
    """The `stats:` of a table whose columns are these."""
    return read_stream_stats(entry, table, columns, known=_TABLE_KEYS, kind="table")


def read_stream_stats(
    entry: Entry, stream: str, columns: Sequence[str], *, known: Sequence[str] = _STREAM_KEYS, kind: str = "stream"
) -> StreamStats:
    """The `stats:` of a stream whose columns are these."""
    what = f"stats of {kind} {stream!r}"
    keys = entry.mapping(what, known)
    interval = keys.get("batch_interval")
    return StreamStats(
        rows=_number(keys["rows"], f"rows in {what}") if "rows" in keys else None,
        rate=_number(keys["rate"], f"rate in {what}") if "rate" in keys else None,
        row_bytes=_number(keys["row_bytes"], f"row_bytes in {what}", is_size=True) if "row_bytes" in keys else None,
        columns=_columns(keys["columns"], what, columns) if "columns" in keys else {},
        batch_interval=None if interval is None else _number(interval, f"batch_interval (seconds) in {what}"),
        busy=_busy(keys["busy"], what) if "busy" in keys else {},
        sample=_sample(keys["sample"], f"sample in {what}") if "sample" in keys else None,
    )


def read_stats(path: Path, columns: Mapping[str, Sequence[str]]) -> Stats:
    """A file of statistics; `columns` are those of every stream of the topology, and others are left out."""
    root = read(path, "it needs `streams` or `selectivities`")
    keys = root.mapping("a file of statistics", _FILE_KEYS)
    streams: dict[str, StreamStats] = {}
    unknown: list[str] = []
    if "streams" in keys:
        given = keys["streams"].mapping("streams")
        for name, entry in given.items():
            known = next((column for column in columns if column.casefold() == name.casefold()), None)
            if known is None:
                unknown.append(name)
                continue
            if known in streams:
                raise entry.fail(f"stream {name!r} is given twice (case does not count); remove one")
            streams[known] = read_stream_stats(entry, known, columns[known], known=_EITHER_KEYS)
    selectivities = keys["selectivities"].mapping("selectivities") if "selectivities" in keys else {}
    shares = {sql: _number(selectivity, f"selectivity {sql!r}", most=1.0) for sql, selectivity in selectivities.items()}
    return Stats(streams, shares, tuple(unknown))


def filled(first: Stats, second: Stats) -> Stats:
    """The figures of the first, and where it has none, those of the second.

    >>> more = Stats({"a": StreamStats(Number(1.0), Number(50.0))})
    >>> both = filled(Stats({"a": StreamStats(Number(7.0))}), more).stream("a")
    >>> both.rate.value, both.row_bytes.value
    (7.0, 50.0)
    """
    streams = {name: first.stream(name) for name in (*first.streams, *second.streams)}
    for name, other in second.streams.items():
        stats = streams[name]
        columns = {key: stats.columns.get(key, ColumnStats()) for key in (*stats.columns, *other.columns)}
        for key, extra in other.columns.items():
            own = columns[key]
            measured = own if own.sizes else extra
            columns[key] = ColumnStats(
                own.distinct or extra.distinct,
                own.histogram or extra.histogram,
                measured.sizes,
                measured.in_order,
                extra.nulls if own.nulls is None else own.nulls,
            )
        streams[name] = StreamStats(
            stats.rate or other.rate,
            stats.row_bytes or other.row_bytes,
            columns,
            stats.batch_interval or other.batch_interval,
            stats.rows or other.rows,
            stats.busy or (other.busy if stats.rate is None else {}),
            stats.sample or (other.sample if stats.rate is None else None),
        )
    unknown = tuple(dict.fromkeys((*first.unknown, *second.unknown)))
    return Stats(streams, {**second.selectivities, **first.selectivities}, unknown)


def write_stats(stats: Stats) -> str:
    """Statistics as the text of a file that `stats_file:` can name."""
    return dump(stats_data(stats))


def stats_data(stats: Stats) -> dict[str, Any]:
    """Statistics as plain values, in the form of the file."""
    data: dict[str, Any] = {}
    if stats.streams:
        data["streams"] = {name: _stream_data(stream) for name, stream in stats.streams.items()}
    if stats.selectivities:
        data["selectivities"] = {sql: _number_data(selectivity) for sql, selectivity in stats.selectivities.items()}
    return data


def _busy(entry: Entry, what: str) -> dict[float, float]:
    """The share of intervals with rows, by their length in seconds."""
    found = {}
    for length, share in entry.mapping(f"busy in {what}").items():
        try:
            seconds = float(length)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < inf:
            raise share.fail(f"busy in {what}: {length!r} is no length in seconds; write it like {{1: 0.2, 10: 0.9}}")
        found[seconds] = _amount(share, f"busy of {length} s in {what}", most=1.0)
    return dict(sorted(found.items()))


def _sample(entry: Entry, what: str) -> Sample:
    """Rows as text, as `watersmeet stats` writes them."""
    keys = entry.mapping(what, ("rows", "whole"))
    if "rows" not in keys:
        raise entry.fail(f"{what} has no rows; run `watersmeet stats` again")
    try:
        rows = b64decode(keys["rows"].text("rows"), validate=True)
        found = Sample(rows, "whole" in keys and keys["whole"].text("whole").casefold() == "true")
        table_of(found)
    except (ValueError, OSError) as error:
        raise keys["rows"].fail(f"{what} is damaged ({error}); run `watersmeet stats` again") from None
    return found


def _columns(entry: Entry, what: str, known: Sequence[str]) -> dict[str, ColumnStats]:
    found: dict[str, ColumnStats] = {}
    for name, one in entry.mapping(f"columns in {what}").items():
        spelled = _spelled(one, "column", name, what, known)
        if spelled in found:
            raise one.fail(f"column {name!r} is given twice in {what} (case does not count); remove one")
        found[spelled] = _column(one, f"column {spelled!r} in {what}")
    return found


def _spelled(entry: Entry, kind: str, name: str, what: str, known: Sequence[str]) -> str:
    """A name as the topology spells it."""
    for one in known:
        if one.casefold() == name.casefold():
            return one
    raise entry.fail(f"unknown {kind} {name!r} in {what}; {did_you_mean(name, known)}")


def _column(entry: Entry, what: str) -> ColumnStats:
    keys = entry.mapping(what, _COLUMN_KEYS)
    sizes = in_order = None
    if "bytes" in keys:
        if "sizes" in keys:
            raise keys["bytes"].fail(f"{what} has both bytes and sizes; keep one of them")
        each = _amount(keys["bytes"], f"bytes of {what}", is_size=True)
        sizes = (each, each, each, each, each)
    if "sizes" in keys:
        sizes = _sizes(keys["sizes"], what)
    if "in_order" in keys:
        if sizes is None:
            raise keys["in_order"].fail(f"{what} has in_order without sizes; give both, or bytes")
        in_order = _sizes(keys["in_order"], what)
    return ColumnStats(
        distinct=_number(keys["distinct"], f"distinct of {what}") if "distinct" in keys else None,
        histogram=_histogram(keys["histogram"], f"histogram of {what}") if "histogram" in keys else None,
        sizes=sizes,
        in_order=in_order,
        nulls=_amount(keys["nulls"], f"nulls of {what}", most=1.0) if "nulls" in keys else None,
    )


def _sizes(entry: Entry, what: str) -> BytesByBatch:
    listed = entry.sequence(f"sizes of {what}", _SIZES_EXAMPLE)
    if len(listed) not in (3, 5):
        raise entry.fail(
            f"sizes of {what} must be five, for batches of 1, 10, 100, 1,000 and 10,000 rows, such as {_SIZES_EXAMPLE}"
        )
    sizes = [_amount(entry, f"a size of {what}", is_size=True) for entry in listed]
    if len(sizes) == 3:  # as files had them: for batches of 10, 100 and 1,000 rows
        sizes = [sizes[0], *sizes, sizes[-1]]
    one, ten, hundred, thousand, most = sizes
    return one, ten, hundred, thousand, most


def _amount(entry: Entry, what: str, *, is_size: bool = False, most: float | None = None) -> float:
    """A number that is not negative; a size may have a unit."""
    text = entry.text(what)
    try:
        value = float(text)
    except ValueError:
        if not is_size:
            raise entry.fail(f"{what} must be a number, not {text!r}") from None
        try:
            value = float(parse_amount(text, SIZE_BYTES, "500 B"))
        except InputError as error:
            raise entry.fail(f"{what}: {error}") from None
    if not isfinite(value) or value < 0:
        raise entry.fail(f"{what} must be 0 or more, not {text}")
    if most is not None and value > most:
        raise entry.fail(f"{what} must be from 0 to {most:g}, not {text}")
    return value


def _number(entry: Entry, what: str, *, is_size: bool = False, most: float | None = None) -> Number:
    if not isinstance(entry.value, dict):
        return Number(_amount(entry, what, is_size=is_size, most=most))
    keys = entry.mapping(what, ("value", *_ABOUT_KEYS))
    if "value" not in keys:
        raise entry.fail(f"{what} has no value")
    return Number(_amount(keys["value"], what, is_size=is_size, most=most), *_about(keys, what))


def _about(keys: Mapping[str, Entry], what: str) -> tuple[Origin, float, float | None]:
    """Where a figure comes from, how far it can be trusted, and when it was taken."""
    origin, confidence, taken_at = Origin.GIVEN, 1.0, None
    if "origin" in keys:
        name, known = keys["origin"].text("origin"), [origin.value for origin in Origin]
        if name not in known:
            raise keys["origin"].fail(f"{what}: unknown origin {name!r}; {did_you_mean(name, known)}")
        origin = Origin(name)
    if "confidence" in keys:
        confidence = _amount(keys["confidence"], f"confidence of {what}", most=1.0)
    if "taken_at" in keys:
        text = keys["taken_at"].text("taken_at")
        try:
            instant = datetime.fromisoformat(text)
        except ValueError:
            raise keys["taken_at"].fail(
                f"{what}: taken_at {text!r} is not a timestamp; write it like 2025-01-31T12:00:00+00:00"
            ) from None
        taken_at = instant.replace(tzinfo=instant.tzinfo or UTC).timestamp()
    return origin, confidence, taken_at


def _histogram(entry: Entry, what: str) -> Histogram:
    about: tuple[Origin, float, float | None] = (Origin.GIVEN, 1.0, None)
    listing = entry
    if isinstance(entry.value, dict):
        keys = entry.mapping(what, ("bins", *_ABOUT_KEYS))
        if "bins" not in keys:
            raise entry.fail(f"{what} has no bins")
        about, listing = _about(keys, what), keys["bins"]
    bins = [(_bin(entry, what), entry) for entry in listing.sequence(what, _BINS_EXAMPLE)]
    bins.sort(key=lambda pair: pair[0].low)
    for (one, _), (other, place) in pairwise(bins):
        if one.high >= other.low:
            raise place.fail(f"{what}: the bins {_range(one)} and {_range(other)} overlap; every value has one bin")
    total = sum(bin_.share for bin_, _ in bins)
    if bins and not 0.99 < total < 1.01:
        raise entry.fail(f"{what}: the shares of its bins add up to {total:g}; they must add up to 1")
    return Histogram(tuple(bin_ for bin_, _ in bins), *about)


def _bin(entry: Entry, what: str) -> Bin:
    keys = entry.mapping(f"a bin of the {what}", _BIN_KEYS)
    if "share" not in keys:
        raise entry.fail(f"a bin of the {what} has no share")
    if ("value" in keys) == ("low" in keys or "high" in keys) or ("low" in keys) != ("high" in keys):
        raise entry.fail(f"a bin of the {what} must have either a value or both low and high")
    low = _whole(keys.get("value") or keys["low"], what)
    high = _whole(keys.get("value") or keys["high"], what)
    if low > high:
        raise entry.fail(f"a bin of the {what} has low {low} above high {high}; swap them")
    share = _amount(keys["share"], f"share in the {what}", most=1.01)
    if "distinct" in keys:
        return Bin(low, high, _amount(keys["distinct"], f"distinct in the {what}"), share)
    return Bin(low, high, float(high - low + 1), share)


def _whole(entry: Entry, what: str) -> int:
    try:
        value = int(entry.text(what))
    except ValueError:
        raise entry.fail(f"a value in the {what} must be a whole number, not {entry.value!r}") from None
    if not -(2**63) <= value < 2**63:
        raise entry.fail(f"a value in the {what} must fit 64 bits, and {value} does not")
    return value


def _range(bin_: Bin) -> str:
    return str(bin_.low) if bin_.low == bin_.high else f"{bin_.low}..{bin_.high}"


def _stream_data(stats: StreamStats) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if stats.rate is not None:
        data["rate"] = _number_data(stats.rate)
    if stats.rows is not None:
        data["rows"] = _number_data(stats.rows)
    if stats.row_bytes is not None:
        data["row_bytes"] = _number_data(stats.row_bytes)
    if stats.batch_interval is not None:
        data["batch_interval"] = _number_data(stats.batch_interval)
    if stats.busy:
        data["busy"] = {_plain(length): _plain(share) for length, share in stats.busy.items()}
    if stats.sample is not None:
        data["sample"] = {"rows": b64encode(stats.sample.rows).decode("ascii"), "whole": stats.sample.is_whole}
    if stats.columns:
        data["columns"] = {name: _column_data(column) for name, column in stats.columns.items()}
    return data


def _column_data(stats: ColumnStats) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if stats.distinct is not None:
        data["distinct"] = _number_data(stats.distinct)
    if stats.nulls:
        data["nulls"] = _plain(stats.nulls)
    if stats.sizes is not None:
        data["sizes"] = [_plain(size) for size in stats.sizes]
    if stats.in_order is not None:
        data["in_order"] = [_plain(size) for size in stats.in_order]
    if stats.histogram is not None:
        bins = [_bin_data(bin_) for bin_ in stats.histogram.bins]
        about = _about_data(stats.histogram)
        data["histogram"] = {**about, "bins": bins} if about else bins
    return data


def _bin_data(bin_: Bin) -> dict[str, Any]:
    place: dict[str, Any] = {"value": bin_.low} if bin_.low == bin_.high else {"low": bin_.low, "high": bin_.high}
    place["share"] = _plain(bin_.share)
    if bin_.distinct != float(bin_.high - bin_.low + 1):
        place["distinct"] = _plain(bin_.distinct)
    return place


def _number_data(number: Number) -> Any:
    about = _about_data(number)
    return {"value": _plain(number.value), **about} if about else _plain(number.value)


def _about_data(figure: Number | Histogram) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if figure.origin is not Origin.GIVEN:
        data["origin"] = figure.origin.value
    if figure.confidence != 1.0:
        data["confidence"] = _plain(figure.confidence)
    if figure.taken_at is not None:
        data["taken_at"] = datetime.fromtimestamp(figure.taken_at, UTC).isoformat()
    return data


def _plain(value: float) -> float | int:
    """A whole number without its `.0`."""
    return int(value) if value == int(value) and abs(value) < 1e15 else float(value)
