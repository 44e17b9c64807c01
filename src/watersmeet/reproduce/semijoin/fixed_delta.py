"""What the semijoin paper's fixed bound of delays loses where messages take longer, beside watermarks, which lose none.

The paper waits a fixed delta for what is on its way (constraint 1), keeps expired tuples so much longer (constraint 2)
and matches by time stamps (constraint 3), so that nothing wrong is ever made, but what is later than delta is missed.
That is computed here for every pair of rows, from when each message arrives. The same rows are then joined by site
programs over links with the same delays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from watersmeet.plan.nodes import Method
from watersmeet.reproduce import plots
from watersmeet.reproduce.experiment import Experiment, Row, averaged, finding
from watersmeet.reproduce.semijoin.fig7 import one_way_join
from watersmeet.reproduce.semijoin.runs import RunSetting, StreamSpec, draw_tables, problem_for
from watersmeet.reproduce.workloads import EVENT_TIME, between
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.simulated import SimulatedSites

DELTA_MS = (80, 320)  # the paper's, and four times that
JITTERS_MS = (0, 50, 100, 200, 400, 800)
QUICK_JITTERS_MS = (0, 200, 800)
DRAWS, SECONDS = 10, 4.0
SETTING = RunSetting((StreamSpec(50, 10, 100.0, 3.0), StreamSpec(50, 10, 100.0, 3.0)))
WATERMARKS, WAIT = "watermarks", "watermark wait (ms)"
KEPT_TWICE = "SM-D1, kept 2 delta"
METHODS = tuple(method.value for method in Method)
_SECOND = 1_000_000
_TAIL_S = 3.0  # rows that come after those that are counted, so that watermarks pass these


@dataclass(frozen=True, slots=True)
class Point:
    """How much longer than the latency a message may take, for how long it is counted, and the number of the draw."""

    jitter_ms: int
    seconds: float
    draw: int


@dataclass(frozen=True)
class AnswerPairs:
    """Rows that make answers, one of S1 as the latest with one of S2: their numbers, time stamps and intervals."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    first_us: NDArray[np.int64]
    second_us: NDArray[np.int64]
    keys: NDArray[np.int64]


def pairs_of(tables: Mapping[str, pa.Table], window_us: int, from_us: int, until_us: int) -> AnswerPairs:
    """All answers whose latest row is one of S1, from an instant to just before another."""
    (ts1, key1), (ts2, key2) = (
        (table.column(EVENT_TIME).cast(pa.int64()).to_numpy(), table.column("k0").to_numpy())
        for table in (tables["s1"], tables["s2"])
    )
    heads = np.flatnonzero((ts1 >= from_us) & (ts1 < until_us))
    low, high = np.searchsorted(ts2, ts1[heads] - window_us), np.searchsorted(ts2, ts1[heads])
    first = np.repeat(heads, high - low)
    second = np.concatenate([np.arange(*bounds) for bounds in zip(low, high, strict=True)])
    same = key1[first] == key2[second]
    first, second = first[same], second[same]
    return AnswerPairs(first, second, ts1[first], ts2[second], key1[first])


class FixedDelta:
    """When messages of every interval arrive, and what of a window is there at an instant, by the paper's rules.

    At the end of an interval a site has its tuples in its window, and sends what it sends; a link keeps the order.
    """

    def __init__(
        self,
        delta_us: int,
        tau_us: int,
        window_us: int,
        there: Sequence[int],
        back: Sequence[int],
        kept_us: int | None = None,
    ) -> None:
        self.delta_us, self.tau_us, self.window_us = delta_us, tau_us, window_us
        self.kept_us = delta_us if kept_us is None else kept_us  # how long expired rows stay (constraint 2)
        self._there, self._back = (
            np.asarray(there),
            np.asarray(back),
        )  # delays by interval, from S1 to S2, from S2 to S1

    def found(self, method: Method, pairs: AnswerPairs) -> NDArray[np.bool_]:
        """Which of the answers a method makes.

        Of SM-S2's values all tuples are taken to be at S1 already, as they are once a value has been fetched.
        """
        batch = pairs.first_us // self.tau_us
        probed_us = (batch + 1) * self.tau_us + self.delta_us  # constraint 1
        arrived = self._arrivals_us(self._back, 0)[pairs.second_us // self.tau_us] <= probed_us
        match method:
            case Method.SP_S | Method.SM_S2:
                return arrived
            case Method.SP_D | Method.SM_S1 | Method.SM_D2:
                return self._is_kept(pairs.second_us, self._arrivals_us(self._there, 0)[batch])
            case Method.SM_D1:
                known = np.unique(pairs.first[arrived])  # rows of S1 for whose value any tuple has been announced
                late_us = self._arrivals_us(self._there, self.delta_us)[batch]
                return np.isin(pairs.first, known) & self._is_kept(pairs.second_us, late_us)

    def _arrivals_us(self, delays_us: NDArray[np.int64], waited_us: int) -> NDArray[np.int64]:
        """When the message of each interval arrives that is sent so long after its end."""
        sent = (np.arange(len(delays_us)) + 1) * self.tau_us + waited_us
        return np.maximum.accumulate(sent + delays_us)

    def _is_kept(self, row_us: NDArray[np.int64], now_us: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether rows are in the window still: what expires at the end of an interval goes some time later."""
        ends = -(-(now_us - self.kept_us) // self.tau_us) - 1  # the last interval whose expired rows are gone
        return row_us >= ends * self.tau_us - self.window_us


def answered(
    setting: RunSetting, method: Method, tables: Mapping[str, pa.Table], jitter_us: int, seed: int
) -> pa.Table:
    """The answers of site programs, a micro-batch an interval, over links whose delays vary."""
    join = problem_for(setting).join((one_way_join(method),))
    link = LinkModel(latency_us=round(setting.latency_s * _SECOND), jitter_us=jitter_us)
    tau_us = round(setting.tau_s * _SECOND)
    sites = SimulatedSites(
        problem_for(setting).plan(join),
        dict.fromkeys(tables, EVENT_TIME),
        model_of=lambda origin, to: link,
        interval_us=tau_us,
        retry_us=3_600 * _SECOND,
        seed=seed,
    )
    end_us = max(table.column(EVENT_TIME).cast(pa.int64()).to_numpy()[-1] for table in tables.values())
    for low in range(0, int(end_us) + 1, tau_us):
        slices = {name: between(table, low, low + tau_us) for name, table in tables.items()}
        sites.feed(low + tau_us, {name: table for name, table in slices.items() if table.num_rows})
    sites.run()
    return pa.concat_tables(sites.answers())


def lost(pairs: AnswerPairs, answers: pa.Table, tables: Mapping[str, pa.Table]) -> int:
    """How many of the answers that there should be are not there; a row is known by its bytes."""
    first, second = (
        pc.index_in(answers.column(f"load_{name}"), tables[name].column("load").combine_chunks()).to_numpy()
        for name in ("s1", "s2")
    )
    many = tables["s2"].num_rows
    return len(np.setdiff1d(pairs.first * many + pairs.second, first.astype(np.int64) * many + second))


def _points(quick: bool) -> tuple[Point, ...]:
    jitters, seconds, draws = (QUICK_JITTERS_MS, 1.0, 1) if quick else (JITTERS_MS, SECONDS, DRAWS)
    return tuple(Point(jitter_ms, seconds, draw) for jitter_ms in jitters for draw in range(draws))


def _run(point: Point) -> list[Row]:
    setting, jitter_us = SETTING, 1_000 * point.jitter_ms
    window_us, tau_us = round(setting.window_s * _SECOND), round(setting.tau_s * _SECOND)
    tables = draw_tables(setting, setting.window_s + point.seconds + _TAIL_S, point.draw)
    pairs = pairs_of(tables, window_us, window_us, window_us + round(point.seconds * _SECOND))
    rng = np.random.default_rng((point.draw, point.jitter_ms))
    intervals = round((setting.window_s + point.seconds + _TAIL_S) / setting.tau_s)
    there, back = round(setting.latency_s * _SECOND) + rng.integers(0, jitter_us + 1, (2, intervals))
    missed = sum(
        lost(pairs, answered(setting, method, tables, jitter_us, point.draw), tables)
        for method in (Method.SP_S, Method.SM_D1)
    )
    ends_us = (np.arange(intervals) + 1) * tau_us
    wait_us = float((np.maximum.accumulate(ends_us + back) - ends_us).mean())
    rows = []
    for delta_ms in DELTA_MS:
        rules = FixedDelta(1_000 * delta_ms, tau_us, window_us, there, back)
        patient = FixedDelta(1_000 * delta_ms, tau_us, window_us, there, back, kept_us=2_000 * delta_ms)
        found = {method.value: rules.found(method, pairs) for method in Method}
        found[KEPT_TWICE] = patient.found(Method.SM_D1, pairs)
        shares = {name: 100 * (1 - float(made.mean())) for name, made in found.items()}
        rows.append(
            {"delta (ms)": f"delta {delta_ms} ms", "jitter (ms)": point.jitter_ms, "draw": point.draw, **shares}
            | {WATERMARKS: 100 * missed / (2 * len(pairs.first)), WAIT: wait_us / 1e3}
        )
    return rows


def _plot(rows: Sequence[Row], path: Path) -> None:
    series = {"SP-S": "SP-S, SM-S2", "SP-D": "SP-D, SM-S1, SM-D2"}  # which lose the same
    series |= {name: name for name in ("SM-D1", KEPT_TWICE, WATERMARKS)}
    plots.lines(
        rows, path, panel="delta (ms)", x="jitter (ms)", series=series, xlabel="jitter (ms)", ylabel="answers lost (%)"
    )


def _verdict(rows: Sequence[Row]) -> list[str]:
    found = []
    for row in averaged(rows, ["delta (ms)", "jitter (ms)"], [*METHODS, WAIT]):
        most = max(METHODS, key=lambda name: row[name])
        found.append(
            f"{row['delta (ms)']}, messages up to {row['jitter (ms)']} ms late: {most} loses most, {row[most]:.2f} % "
            f"of the answers; with watermarks a batch waits {row[WAIT]:.0f} ms for the other stream on average"
        )
    most_missed = max(row[WATERMARKS] for row in rows)
    return [finding(most_missed == 0, f"with watermarks {most_missed:g} % of the answers are lost"), *found]


EXPERIMENT = Experiment(
    name="semijoin-delta",
    title="Answers lost by a fixed delta and by watermarks",
    paper="Semijoin paper, section 2.2 (no figure)",
    keys=("delta (ms)", "jitter (ms)"),
    figures=(*METHODS, KEPT_TWICE, WATERMARKS, WAIT),
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=("delta is 80 ms; latency above delta is said to threaten correctness, and is not measured",),
    notes=(
        "Defaults of figure 7 with 100 tuples/s of 50 bytes: latency 25 ms, interval 100 ms, windows 3 s; a message "
        "takes up to the jitter longer, evenly distributed, and links keep the order.",
        "The six methods are computed from when messages arrive, by constraints 1 to 3; 'watermarks' are site programs "
        "that run SP-S and SM-D1 over links with such delays, whose answers are looked for pair by pair.",
        "Constraint 3 lets no method invent answers. In SM-D1 tuples wait delta at S1 and then travel, so that what "
        f"expires delta later is gone before they are at S2, whatever delta is; '{KEPT_TWICE}' keeps it twice as long.",
    ),
    unit="%",
)
