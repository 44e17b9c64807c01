"""PIER under churn: recall and delay of a windowed join, with replicas and with renewal, and DISTINCT answers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from watersmeet.program.pier.sql.settings import PlanSettings
from watersmeet.reproduce.experiment import Experiment, Row, averaged, finding
from watersmeet.reproduce.plots import lines
from watersmeet.reproduce.systems.comparison import ComparedWorkload
from watersmeet.sim.scenario.model import PierSettings, Scenario, System
from watersmeet.sim.scenario.network import ChurnSettings, DynamicSettings
from watersmeet.sim.scenario.pier.simulate import simulate_pier
from watersmeet.sim.scenario.workload import UserLoad

RENEW_S = 10.0
REMEDIES = {
    "nothing": PierSettings(),
    "renewal": PierSettings(PlanSettings(renew_s=RENEW_S)),
    "replicas": PierSettings(replicas=2),
    "both": PierSettings(PlanSettings(renew_s=RENEW_S), replicas=2),
}
WORKLOAD = ComparedWorkload(nodes=60, rate=4.0, keys=40, window_s=20)


@dataclass(frozen=True, slots=True)
class Point:
    """A mean session, and a seed."""

    session_s: int
    seed: int
    seconds: int


def churn_scenario(seed: int, seconds: int, session_s: int, pier: PierSettings) -> Scenario:
    """A join of two streams, and the distinct keys of the same join, asked by nodes that stay."""
    given = WORKLOAD.scenario(seed, seconds)
    assert isinstance(given.load, UserLoad), "streams of its own"
    (asked,) = given.load.queries
    distinct = f"SELECT DISTINCT s0.k {asked.query.sql[asked.query.sql.index('FROM') :]}"
    also = replace(asked, query=replace(asked.query, name="distinct", sql=distinct))
    churn = ChurnSettings(mean_us=session_s * 1_000_000, stable_nodes=6)
    return replace(
        given,
        system=System.PIER,
        pier=pier,
        load=replace(given.load, queries=(asked, also)),
        network=replace(given.network, dynamic=DynamicSettings(churn=churn)),
    )


def _points(quick: bool) -> tuple[Point, ...]:
    sessions, seeds, seconds = ((60,), (1,), 20) if quick else ((600, 300, 120, 60), (1, 2), 60)
    return tuple(Point(session, seed, seconds) for session in sessions for seed in seeds)


def _run(point: Point) -> Row:
    row: Row = {"session": point.session_s, "draw": point.seed, "surplus": 0}
    for name, pier in REMEDIES.items():
        summary = simulate_pier(churn_scenario(point.seed, point.seconds, point.session_s, pier)).summary
        plain, distinct = summary.queries["q0"], summary.queries["distinct"]
        assert plain.checked is not None and distinct.checked is not None, "both are checked"
        delay_us = None if plain.delays is None else plain.delays.median_us
        row |= {
            "crashes": summary.failures,
            name: plain.checked.right / plain.checked.expected,
            f"{name} DISTINCT": distinct.checked.right / distinct.checked.expected,
            f"{name} ms": None if delay_us is None else delay_us / 1e3,
            f"{name} MB": summary.bytes / 1e6,
        }
        row["surplus"] += plain.checked.surplus + distinct.checked.surplus
    return row


def _plot(rows: Sequence[Row], path: Path) -> None:
    series = {name: name for name in REMEDIES}
    lines(rows, path, x="session", series=series, xlabel="mean session, s", ylabel="share of answers", logx=True)


def _verdict(rows: Sequence[Row]) -> list[str]:
    surplus = sum(row["surplus"] for row in rows)
    means = averaged(rows, ["session"], [*REMEDIES])
    gain = all(row["both"] >= row["nothing"] for row in means)
    shares = ", ".join(f"{row['session']} s {row['nothing']:.3f} to {row['both']:.3f}" for row in means)
    return [
        finding(surplus == 0, f"{surplus} answers came that are none, or came twice"),
        finding(gain, f"replicas and renewal together never lower recall: {shares}"),
    ]


_OF_EACH = [figure for name in REMEDIES for figure in (name, f"{name} DISTINCT", f"{name} ms", f"{name} MB")]

EXPERIMENT = Experiment(
    name="pier-churn",
    title="PIER while nodes crash and others join: recall by what is done against loss",
    paper="PIER, section 3.2 (soft state); the text has no figure of it",
    keys=("session",),
    figures=("crashes", *_OF_EACH, "surplus"),
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=("what is lost with a node is stored again when its publisher renews it",),
    notes=(
        "60 nodes, Bamboo, King-like latencies, a join of two streams with 40 keys and windows of 20 s, four tuples a "
        "second of each for 60 s (quick: 20 s). Sessions are exponential; for each node that crashes a new one joins. "
        "Six nodes, which publish and ask, stay.",
        f"Renewal: who put a tuple renews it every {RENEW_S:g} s, and puts it again where it is lost. Replicas: two.",
    ),
    unit="share of answers; ms: median delay",
)
