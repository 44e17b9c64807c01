"""Reports of sites: rates always, values only where whoever decides knows others."""

import numpy as np
import pyarrow as pa

from watersmeet.adapt.monitor import MonitorState, StreamObserved, observe, statistics
from watersmeet.adapt.reports import STALE_HALF_LIVES, Report, gathered
from watersmeet.stats.model import Origin, Stats
from watersmeet.stats.sketches import StreamSketch
from watersmeet.topology.model import Site, Source, Stream, Topology

HALF_LIFE_S = 10.0
STREAM = Stream("a", "ts", "ts timestamp, k long", Source("parquet", "a"), site="fra")
TOPOLOGY = Topology((STREAM,), sites=(Site("ams"), Site("fra")))


def sketched(keys: np.ndarray) -> StreamSketch:
    found = StreamSketch()
    found.count(np.arange(len(keys)))
    found.add(pa.table({"k": keys}))
    return found


class ReportingSite:
    """One site that observes one stream and reports."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(7)
        self.monitor = MonitorState(HALF_LIFE_S)
        self.reports: dict[str, Report] = {}
        self.now_s = 0.0

    def see(self, *, first: int = 0, rows: int = 300) -> None:
        keys = first + self.random.integers(0, 50, rows)
        self.now_s += 1.0
        self.monitor = observe(self.monitor, StreamObserved("a", rows, 1.0, sketched(keys)), self.now_s)

    def report(self) -> int:
        self.reports, sizes = gathered(self.monitor, self.reports, TOPOLOGY, self.now_s)
        assert set(sizes) == {"fra"}
        return sizes["fra"]


def test_values_are_reported_once_and_after_a_drift() -> None:
    site = ReportingSite()
    site.see()
    first = site.report()
    known = site.reports["a"]
    site.see()
    later = site.report()
    assert first > 2 * later and later < 50, "a histogram of fifty values, then a rate"
    assert site.reports["a"] is known
    site.see(first=1_000)
    assert site.report() > 2 * later
    histogram = site.reports["a"].values.columns["k"].histogram
    assert histogram is not None and histogram.bins[0].low >= 1_000


def test_values_of_few_rows_are_reported_again_when_there_are_many() -> None:
    site = ReportingSite()
    sizes = []
    for _ in range(40):
        site.see(rows=40)
        sizes.append(site.report())
    large = [number for number, size in enumerate(sizes) if size > 2 * min(sizes)]
    assert large == [0, 3, 15], "40, 160 and 640 rows: from a thousand on they are known well enough"


def test_old_values_are_reported_again() -> None:
    site = ReportingSite()
    site.see(rows=5_000)
    site.report()
    known = site.reports["a"]
    site.now_s += (STALE_HALF_LIVES - 2) * HALF_LIFE_S
    site.see(rows=5_000)
    site.report()
    assert site.reports["a"] is known
    site.now_s += 2 * HALF_LIFE_S
    site.see(rows=5_000)
    site.report()
    assert site.reports["a"] is not known


def test_values_are_judged_by_the_rows_that_they_come_from() -> None:
    """More rows since then say nothing of how far chance explains the values of before."""
    site = ReportingSite()
    site.see()
    site.report()
    known = site.reports["a"].values
    histogram = known.columns["k"].histogram
    assert histogram is not None and len({one.share for one in histogram.bins}) == 1, "all of it was chance"
    for _ in range(3):
        site.see()
    found = statistics(site.monitor, Stats(), reported={"a": known}).stream("a")
    assert found.columns == known.columns


def test_sizes_are_known_from_when_rows_were_measured_last() -> None:
    site = ReportingSite()
    measured = sketched(np.arange(300) % 50)
    measured.measure(pa.table({"k": np.arange(300) % 50}))
    site.monitor = observe(site.monitor, StreamObserved("a", 300, 1.0, measured), site.now_s)
    sizes = measured.stats(Origin.OBSERVED).columns["k"].sizes
    for first in (0, 1_000, 1_000):  # other values, then a generation after the other
        for _ in range(25):
            site.see(first=first)
        site.report()
        assert site.reports["a"].values.columns["k"].sizes == sizes is not None
    wide = sketched(1_000 + np.arange(300) % 50)
    wide.measure(pa.table({"k": np.arange(300) * 10**15}))
    site.monitor = observe(site.monitor, StreamObserved("a", 300, 1.0, wide), site.now_s)
    assert site.monitor.sketches["a"].whole.stats(Origin.OBSERVED).columns["k"].sizes != sizes
