"""How a site is to be run, and what ends its micro-batches other than a failure."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from watersmeet.errors import WatersmeetError
from watersmeet.metrics.bus import EventBus
from watersmeet.program.site.nearest import Distance
from watersmeet.spark.adapting import Observations
from watersmeet.spark.catalogue import Catalogue
from watersmeet.spark.checkpoint import Checkpoint
from watersmeet.spark.links.protocol import Links
from watersmeet.topology.model import Topology


@dataclass(frozen=True)
class SiteSettings:
    """How a site is to be run."""

    spark: SparkSession
    catalogue: Catalogue
    checkpoint: Checkpoint
    links: Links
    programs_digest: str  # of all sites' programs: sites that run different ones must not exchange rows
    events: EventBus
    interval_s: float = 0.0  # between micro-batches, at least
    once: bool = False
    alone: bool = False  # whether other sites run elsewhere
    slack_us: int = 0  # event time that may go by while sites agree on a change, before any has to wait
    distances: Mapping[str, Distance] = field(default_factory=dict)  # how near other sites are
    observations: Observations | None = None  # for whoever decides on other plans
    apply: Callable[[str, str], None] | None = None  # takes requests for another topology: the request, its text

    @property
    def topology(self) -> Topology:
        return self.catalogue.topology

    @property
    def waits_for_room(self) -> bool:
        """Whether new rows wait for readers of links; not where nobody may be there and the run is to end."""
        return not (self.alone and self.once)


class InputEnded(WatersmeetError):
    """There is no micro-batch any more: all files are read that were there, or the run is being stopped."""


class FrameChanged(WatersmeetError):
    """Spark reads streams of the site, and other columns of them are needed now: its query is started again."""


class PhaseTimer:
    """Seconds of the phases of a micro-batch."""

    def __init__(self) -> None:
        self.began = self._last = time.perf_counter()
        self.phases: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """What was done since the last lap was this."""
        now = time.perf_counter()
        self.phases[name] = self.phases.get(name, 0.0) + now - self._last
        self._last = now

    @property
    def seconds(self) -> float:
        return self._last - self.began
