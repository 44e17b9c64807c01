"""The numbers that aggregates take beside values: how many there are, and in which bounds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Parameters = tuple[float, ...]

_MOST, _MOST_PLACES, _MOST_HASHES = 1_000_000, 1 << 20, 32


@dataclass(frozen=True, slots=True)
class _Numbers:
    usage: str
    fit: Callable[[Parameters], bool]


def wrong_parameters(function: str, parameters: Parameters) -> str | None:
    """Which numbers a function takes, if it does not take these; None if it does.

    >>> wrong_parameters("max_k", (3.0,)), wrong_parameters("max_k", ())
    (None, 'how many values it has (1 to 1,000,000)')
    """
    numbers = _NUMBERS.get(function, _NONE)
    return None if numbers.fit(parameters) else numbers.usage


def _is_whole(number: float, most: int, least: int = 1) -> bool:
    return least <= number <= most and number == int(number)


def _are_percentiles(parameters: Parameters) -> bool:
    match parameters:
        case (accuracy, is_array, *shares):
            is_known = is_array == 1 or (is_array == 0 and len(shares) == 1)
            return is_known and _is_whole(accuracy, _MOST) and bool(shares) and all(0 <= share <= 1 for share in shares)
        case _:
            return False


def _are_top(parameters: Parameters) -> bool:
    match parameters:
        case (k, tracked):
            return _is_whole(tracked, _MOST) and _is_whole(k, int(tracked))
        case _:
            return False


def _is_histogram(parameters: Parameters) -> bool:
    match parameters:
        case (low, high, buckets):
            return float("-inf") < low < high < float("inf") and _is_whole(buckets, _MOST_PLACES)
        case _:
            return False


def _is_filter(parameters: Parameters) -> bool:
    match parameters:
        case (places, hashes):
            return _is_whole(places, _MOST_PLACES) and _is_whole(hashes, _MOST_HASHES)
        case _:
            return False


_NONE = _Numbers("no numbers", lambda parameters: not parameters)
_OF_LIST = _Numbers(
    f"how many values it has (1 to {_MOST:,})", lambda given: len(given) == 1 and _is_whole(given[0], _MOST)
)
_OF_FILTER = _Numbers(
    f"how many places it has (1 to {_MOST_PLACES:,}) and how many of them a value has (1 to {_MOST_HASHES})", _is_filter
)
_NUMBERS: Mapping[str, _Numbers] = {
    "max_k": _OF_LIST,
    "min_k": _OF_LIST,
    "bloom_filter": _OF_FILTER,
    "spectral_bloom_filter": _OF_FILTER,
    "histogram": _Numbers("the lowest and the highest number and how many buckets there are", _is_histogram),
    "percentile_disc": _Numbers("a share from 0 to 1", lambda given: len(given) == 1 and 0 <= given[0] <= 1),
    "approx_count_distinct": _Numbers(
        "none or a relative error from 0.004 to 0.4",
        lambda given: not given or (len(given) == 1 and 0.004 <= given[0] <= 0.4),
    ),
    "approx_percentile": _Numbers(
        f"how many values it keeps (1 to {_MOST:,}), 1 for an array or 0, and shares from 0 to 1", _are_percentiles
    ),
    "approx_top_k": _Numbers(
        f"how many values it has and how many it keeps (1 to {_MOST:,}, the second not less than the first)", _are_top
    ),
}
