"""Which seeds are tried: fresh ones in every run, or the one that an environment variable asks for again."""

import os
from random import SystemRandom

from seeds import scaled

VARIABLE = "WATERSMEET_SEED"


def fresh_seeds(count: int) -> list[int]:
    """Seeds that nobody has chosen; only the given one where a failure is to be repeated."""
    if given := os.environ.get(VARIABLE):
        return [int(given)]
    return [SystemRandom().randrange(10**9) for _ in range(scaled(count))]


def repeat_command(file: str, test: str, seed: int) -> str:
    """What to type to see a failure again."""
    return f"{VARIABLE}={seed} python -m pytest tests/equivalence/{os.path.basename(file)} -k {test}"
