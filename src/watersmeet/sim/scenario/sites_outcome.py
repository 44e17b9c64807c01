"""What a simulation of sites comes to: answers with their delays, traffic of links, and the work of each site."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from watersmeet.errors import RunError
from watersmeet.metrics.traffic import LinkTraffic
from watersmeet.plan.nodes import JoinPlan
from watersmeet.program.rjoin.arrays import Longs


@dataclass(frozen=True, slots=True)
class AnswersChecked:
    """The answers of a query beside those of the oracle, each as often as it should be there."""

    expected: int
    right: int
    surplus: int

    @property
    def missing(self) -> int:
        return self.expected - self.right

    @property
    def is_right(self) -> bool:
        return self.right == self.expected and not self.surplus


@dataclass(frozen=True, slots=True)
class AnswerDelays:
    """From the arrival of the last row of an answer to the micro-batch that delivers it."""

    median_us: int
    p99_us: int

    @staticmethod
    def of(delays_us: Longs) -> "AnswerDelays | None":
        """The delays of some answers, if there are any; each figure is the delay of one of them."""
        if not len(delays_us):
            return None
        median, p99 = np.quantile(delays_us, [0.5, 0.99], method="inverted_cdf").tolist()
        return AnswerDelays(int(median), int(p99))


@dataclass(frozen=True, slots=True)
class QueryFigures:
    """What a query asked for and got."""

    site: str
    planner: str
    answers: int
    delays: AnswerDelays | None  # None without answers
    checked: AnswersChecked

    @property
    def data(self) -> dict[str, Any]:
        """All figures as plain values."""
        delays = None if self.delays is None else asdict(self.delays)
        checked = {**asdict(self.checked), "missing": self.checked.missing, "is_right": self.checked.is_right}
        plain = {"site": self.site, "planner": self.planner, "answers": self.answers}
        return {**plain, "delay": delays, "check": checked}


@dataclass(frozen=True, slots=True)
class SiteFigures:
    """What a site had to do."""

    rows_in: int
    late: int
    micro_batches: int
    peak_state_rows: int


@dataclass(frozen=True, slots=True)
class SitesSummary:
    """The figures of a simulation of sites; a function of the scenario alone."""

    seed: int
    trigger_us: int
    tuples: int
    queries: Mapping[str, QueryFigures]
    sites: Mapping[str, SiteFigures]
    traffic: LinkTraffic
    virtual_us: int

    @property
    def answers(self) -> int:
        """The answers of all queries."""
        return sum(query.answers for query in self.queries.values())

    @property
    def is_right(self) -> bool:
        """Whether every query has the answers of the oracle."""
        return all(query.checked.is_right for query in self.queries.values())

    @property
    def data(self) -> dict[str, Any]:
        """All figures as plain values."""
        links = [
            {
                "from": row.origin,
                "to": row.to,
                "purpose": row.purpose,
                "bytes": row.traffic.bytes,
                "messages": row.traffic.batches,
                "tuples": row.traffic.tuples,
                "price": row.price,
                "estimated_bytes": row.estimated_bytes,
            }
            for row in self.traffic.rows
        ]
        return {
            "system": "sites",
            "seed": self.seed,
            "trigger_us": self.trigger_us,
            "tuples": self.tuples,
            "queries": {name: query.data for name, query in self.queries.items()},
            "links": links,
            "bytes": self.traffic.bytes,
            "price": self.traffic.price,
            "central_bytes": self.traffic.central_bytes,
            "central_price": self.traffic.central_price,
            "sites": {name: asdict(site) for name, site in self.sites.items()},
            "virtual_us": self.virtual_us,
        }


@dataclass(frozen=True, slots=True)
class SitesOutcome:
    """What a simulation of sites leaves: its summary, and the answers of each query."""

    summary: SitesSummary
    answers: Mapping[str, pa.Table]  # by query, in the order of delivery
    delays_us: Mapping[str, Longs]  # of right answers
    first_joins: Mapping[str, JoinPlan] = field(default_factory=dict)  # by query
    last_joins: Mapping[str, JoinPlan] = field(default_factory=dict)

    def write(self, name: str, path: Path) -> None:
        """Write the answers of a query to a Parquet file."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(self.answers[name], path)
        except OSError as error:
            raise RunError(f"answers of query {name!r} cannot be written to {path}: {error.strerror}") from None
