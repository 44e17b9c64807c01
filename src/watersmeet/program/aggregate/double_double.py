"""Arithmetic of doubles that also says what rounding has lost (Dekker)."""

from typing import Any

import numpy as np

_SPLITTER = float((1 << 27) + 1)


def _split(x: Any) -> tuple[Any, Any]:
    """A double as the sum of two of half its digits (Dekker)."""
    c = _SPLITTER * x
    high = c - (c - x)
    return high, x - high


def _times(a: Any, b: Any) -> tuple[Any, Any]:
    """A product of doubles and what it has lost."""
    product = a * b
    (ah, al), (bh, bl) = _split(a), _split(b)
    lost = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    return product, np.where(np.isfinite(lost), lost, 0.0)


def squared(x: Any) -> tuple[Any, Any]:
    """A square and what it has lost."""
    with np.errstate(invalid="ignore", over="ignore"):
        return _times(x, x)


def divided(high: Any, low: Any, n: Any) -> tuple[Any, Any]:
    """A double-double divided by a whole number."""
    quotient = high / n
    product, lost = _times(quotient, n.astype(np.float64))
    return quotient, ((high - product) - lost + low) / n


def product(ah: Any, al: Any, bh: Any, bl: Any) -> tuple[Any, Any]:
    """A product of double-doubles."""
    high, lost = _times(ah, bh)
    return high, lost + ah * bl + al * bh
