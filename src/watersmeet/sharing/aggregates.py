"""Which algebra an aggregate function has (5.1.2), and the decomposition that follows from it."""

from collections.abc import Iterable
from enum import Enum
from typing import assert_never

from watersmeet.errors import InputError, did_you_mean
from watersmeet.sharing.basic import basic_decomposition
from watersmeet.sharing.bits import Bools
from watersmeet.sharing.cover import rectangle_cover
from watersmeet.sharing.decomposition import Decomposition, identity
from watersmeet.sharing.gains import SharingFigures, total_gain
from watersmeet.sharing.linear import exact_linear


class Algebra(Enum):
    """What may be done with partial aggregates besides combining each once."""

    LINEAR = "linear"  # subtracted, and multiplied by numbers
    IDEMPOTENT = "duplicate-insensitive"  # combined more than once
    BOTH = "linear and duplicate-insensitive"
    GENERAL = "general"  # neither


ALGEBRAS = {
    "COUNT": Algebra.LINEAR,
    "SUM": Algebra.LINEAR,
    "AVG": Algebra.LINEAR,  # a sum and a count
    "VAR_POP": Algebra.LINEAR,  # a count, a sum and a sum of squares
    "VAR_SAMP": Algebra.LINEAR,
    "STDDEV_POP": Algebra.LINEAR,
    "STDDEV_SAMP": Algebra.LINEAR,
    "HISTOGRAM": Algebra.LINEAR,
    "MIN": Algebra.IDEMPOTENT,
    "MAX": Algebra.IDEMPOTENT,
    "BOOL_AND": Algebra.IDEMPOTENT,
    "BOOL_OR": Algebra.IDEMPOTENT,
    "BIT_AND": Algebra.IDEMPOTENT,
    "BIT_OR": Algebra.IDEMPOTENT,
    "BLOOM_FILTER": Algebra.IDEMPOTENT,
    "APPROX_COUNT_DISTINCT": Algebra.IDEMPOTENT,
    "SPECTRAL_BLOOM_FILTER": Algebra.BOTH,
    "K_MAX": Algebra.GENERAL,
    "K_MIN": Algebra.GENERAL,
}


def algebra_of(function: str) -> Algebra:
    """The algebra of an aggregate function."""
    found = ALGEBRAS.get(function.upper())
    if found is None:
        raise InputError(f"unknown aggregate {function!r}; {did_you_mean(function.upper(), ALGEBRAS)}")
    return found


def decompose(fragments: Bools, algebra: Algebra) -> Decomposition:
    """The best decomposition for an algebra; where both kinds are allowed, the smaller of the two."""
    match algebra:
        case Algebra.LINEAR:
            return exact_linear(fragments)
        case Algebra.IDEMPOTENT:
            return rectangle_cover(fragments)
        case Algebra.GENERAL:
            return basic_decomposition(fragments)
        case Algebra.BOTH:
            return min(exact_linear(fragments), rectangle_cover(fragments), key=lambda found: found.size)
        case _ as never:
            assert_never(never)


def decompose_all(fragments: Bools, functions: Iterable[str]) -> dict[Algebra, Decomposition]:
    """One decomposition for all aggregates of an algebra: their partial state records travel together (5.6.2)."""
    algebras = sorted({algebra_of(function) for function in functions}, key=lambda algebra: algebra.value)
    return {algebra: decompose(fragments, algebra) for algebra in algebras}


def shared_if_worthwhile(
    fragments: Bools,
    algebra: Algebra,
    deployment: SharingFigures,
    new_rows_per_epoch: float,
    overhead_bits: float = 0.0,
) -> Decomposition:
    """The decomposition where it saves more bits than keeping F the same everywhere costs, else no sharing (5.6.1)."""
    found = decompose(fragments, algebra)
    gain = total_gain(found.size, fragments.shape[1])
    return found if deployment.pays(gain, new_rows_per_epoch, overhead_bits) else identity(fragments)
