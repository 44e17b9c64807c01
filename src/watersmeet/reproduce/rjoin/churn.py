"""RJoin under churn, which its paper leaves to the DHT: the share of answers delivered, by remedy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from watersmeet.reproduce.experiment import Experiment, Row, averaged, finding
from watersmeet.reproduce.plots import lines
from watersmeet.sim.rjoin.fault_tolerance import FaultTolerance
from watersmeet.sim.rjoin.recall import SECOND_US, RecallExperiment, exponential, run

RENEW_US = 15 * SECOND_US
REMEDIES = {
    "nothing": FaultTolerance(),
    "renewal": FaultTolerance(renew_us=RENEW_US),
    "replication": FaultTolerance(replicas=2),
    "both": FaultTolerance(renew_us=RENEW_US, replicas=2),
}


@dataclass(frozen=True, slots=True)
class Point:
    """A mean session, and a seed."""

    overlay: str
    session_s: int
    seed: int
    scene: RecallExperiment


def _points(quick: bool) -> tuple[Point, ...]:
    sessions, seeds, tuples = ((60,), (1,), 60) if quick else ((300, 120, 60, 30), (1, 2), 300)
    return tuple(
        Point(
            overlay,
            session,
            seed,
            RecallExperiment(overlay=overlay, session=exponential(session), tuples=tuples, seed=seed),
        )
        for overlay in ("chord", "bamboo")
        for session in sessions
        for seed in seeds
    )


def _run(point: Point) -> Row:
    found = {name: run(replace(point.scene, fault_tolerance=remedy)) for name, remedy in REMEDIES.items()}
    return {
        "overlay": point.overlay,
        "session": point.session_s,
        "draw": point.seed,
        "crashes": found["nothing"].failures,
        **{name: outcome.recall for name, outcome in found.items()},
        **{f"{name} MB": outcome.bytes / 1e6 for name, outcome in found.items()},
        "surplus": sum(outcome.surplus for outcome in found.values()),
    }


def _plot(rows: Sequence[Row], path: Path) -> None:
    lines(
        rows,
        path,
        x="session",
        series={name: name for name in REMEDIES},
        xlabel="mean session, s",
        ylabel="share of answers that came",
        panel="overlay",
        logx=True,
    )


def _verdict(rows: Sequence[Row]) -> list[str]:
    means = averaged(rows, ["overlay", "session"], list(REMEDIES))
    sentences = [
        finding(
            all(row[name] > row["nothing"] or row[name] == 1 for row in means),
            f"{name} raises recall wherever answers are lost: "
            + ", ".join(
                f"{row['overlay']} {row['session']} s {row['nothing']:.3f} to {row[name]:.3f}" for row in means
            ),
        )
        for name in ("renewal", "replication")
    ]
    surplus = sum(row["surplus"] for row in rows)
    return [*sentences, finding(surplus == 0, f"{surplus} answers came that are none, or came twice")]


EXPERIMENT = Experiment(
    name="rjoin-churn",
    title="RJoin while nodes crash and others join: recall by what is done against loss",
    paper="RJoin, section 4 (completeness needs a network that does not lose what it keeps)",
    keys=("overlay", "session"),
    figures=("crashes", *REMEDIES, *(f"{name} MB" for name in REMEDIES), "surplus"),
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=("under the assumption that nodes can always compute Successor(), every answer comes exactly once",),
    notes=(
        "60 dynamic nodes, King-like latencies, a 3-way join with windows of 60 s, four tuples a second for 75 s "
        "(quick: 15 s). Sessions are exponential; for each node that crashes a new one joins. Six nodes, for users, "
        "stay.",
        "Renewal: every 15 s users say again what they said. Replication: two successors have copies. MB are all bytes "
        "sent, the overlay's own messages among them.",
    ),
    unit="share of answers",
)
