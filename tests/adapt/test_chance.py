"""Values that are equally popular look alike to planners, however few rows were seen; popular ones stay popular."""

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.adapt.monitor import MonitorState, StreamObserved, observe, statistics
from watersmeet.stats.model import Stats
from watersmeet.stats.sketches import StreamSketch


@pytest.mark.parametrize("seed", range(8))
def test_what_chance_makes_of_a_sample_is_not_told_to_planners(seed: int) -> None:
    random = np.random.default_rng(seed)
    keys = np.concatenate([random.integers(0, 100, 600), np.full(100, 7)])
    sketch = StreamSketch()
    sketch.count(np.arange(len(keys)) * 50_000)
    sketch.add(pa.table({"k": keys}))
    state = observe(MonitorState(), StreamObserved("a", len(keys), 35.0, sketch), 0.0)
    histogram = statistics(state, Stats()).stream("a").columns["k"].histogram
    assert histogram is not None and sum(one.share for one in histogram.bins) == pytest.approx(1.0)
    shares = {one.low: one.share for one in histogram.bins}
    assert shares.pop(7) == pytest.approx(np.mean(keys == 7))
    assert np.std(list(shares.values())) < 0.2 * np.mean(list(shares.values()))
    counts = np.bincount(keys)
    assert np.std(np.delete(counts, 7)) > 0.3 * np.mean(np.delete(counts, 7)), "the sample itself differs more"
