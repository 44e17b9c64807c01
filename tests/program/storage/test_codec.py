"""Frozen values come back from JSON as they were."""

from dataclasses import dataclass
from enum import StrEnum

import pytest

from watersmeet.program.site.ledger import Traffic
from watersmeet.program.storage.codec import from_json, to_json


class Colour(StrEnum):
    """For a value below."""

    RED = "red"


@dataclass(frozen=True)
class Odd:
    """One of everything that is written."""

    pair: tuple[int, str]
    colour: Colour
    maybe: Colour | None = None
    nested: tuple[tuple[int, ...], ...] = ()


def test_tuples_of_different_types_enums_and_nested_ones_come_back() -> None:
    for odd in (Odd((1, "x"), Colour.RED), Odd((1, "x"), Colour.RED, Colour.RED, ((1, 2), ()))):
        again = from_json(Odd, to_json(odd))
        assert again == odd and isinstance(again.colour, Colour)


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes is not written to JSON"):
        to_json(Odd((1, b"x"), Colour.RED))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected"):
        from_json(Traffic, '{"bytes":1,"unexpected":2}')
