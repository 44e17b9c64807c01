"""Events that the tests of metrics share."""

from collections.abc import Callable

import pytest

from watersmeet.metrics.events import LinkCounts, MicroBatchCompleted


def _micro_batch(site: str = "ams", batch: int = 0) -> MicroBatchCompleted:
    return MicroBatchCompleted(
        site,
        batch,
        seconds=0.75,
        phases={"ingest": 0.5, "probe": 0.25},
        rows_in={"a": 100, "b": 50},
        late={"a": 2},
        malformed={"b": 1},
        null_keys=3,
        failed={"q": 4},
        answers={"q": 7, "uncounted": None},
        watermarks={"a": 1_500_000, "b": None},
        state_rows=40,
        state_bytes=4_000,
        segments=5,
    )


def _link(site: str = "ams", to: str = "fra", purpose: str = "keys", size: int = 10) -> LinkCounts:
    return LinkCounts(site, to, purpose, bytes=size, batches=2, tuples=3)


@pytest.fixture
def micro_batch() -> Callable[..., MicroBatchCompleted]:
    """A completed micro-batch of a site, with something in every field."""
    return _micro_batch


@pytest.fixture
def link() -> Callable[..., LinkCounts]:
    """Traffic of a link."""
    return _link
