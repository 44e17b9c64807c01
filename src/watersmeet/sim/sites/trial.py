"""Random trials: queries over the same streams, their plans and a bad network from one seed, run against the oracle.

`python -m watersmeet.sim.sites.trial SEED` replays a seed, tells what was tried, and ends with 1 if the answers differ.
"""

import argparse
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence

from watersmeet.plan.nodes import (
    Hop,
)
from watersmeet.sim.sites.trials.draw import ROWS, draw, draw_changing
from watersmeet.sim.sites.trials.model import EVENT_TIME, SCHEMA, Size, Trial, TrialQuery
from watersmeet.sim.sites.trials.run import TrialResult, answered_before, run
from watersmeet.sim.sites.trials.sql import SECOND_US, TOPOLOGIES, edges_of

__all__ = [
    "EVENT_TIME",
    "SCHEMA",
    "TOPOLOGIES",
    "TrialResult",
    "Size",
    "Trial",
    "TrialQuery",
    "describe",
    "draw",
    "draw_changing",
    "edges_of",
    "answered_before",
    "main",
    "run",
]


def describe(trial: Trial) -> Iterator[str]:
    """A trial in words, line by line."""
    yield f"seed {trial.seed}: {trial.buckets} bucket(s)"
    yield "homes: " + ", ".join(f"{stream} at {home}" for stream, home in sorted(trial.homes.items()))
    for query in trial.queries:
        start = "" if query.start_us is None else f", from {_seconds(query.start_us)} on"
        yield f"{query.name} at {query.site}{start}: {query.sql}"
        if query.symmetric_at is not None:
            yield f"  plan: symmetric join at {query.symmetric_at}"
        elif query.meet is not None:
            yield f"  plan: rows that are reduced meet at one site, drawn from {query.meet}"
        elif query.mix is not None:
            yield f"  plan: sub-plans of parts of a key, drawn from {query.mix}"
        elif not query.hops:
            yield "  plan: central"
        else:
            for head, hops in query.hops.items():
                yield f"  plan of head {head}: " + ", ".join(map(_shown_hop, hops))
    intervals = (f"{site} every {_seconds(interval_us)}" for site, interval_us in trial.intervals_us.items())
    yield "micro-batches: " + ", ".join(intervals)
    yield "delays: " + ", ".join(f"{stream} {_seconds(delay_us)}" for stream, delay_us in trial.delays_us.items())
    models = dict.fromkeys(trial.links.values())
    for model in models:
        pairs = [f"{one}->{other}" for (one, other), own in trial.links.items() if own == model]
        yield f"link {'everywhere' if len(models) == 1 else ' '.join(pairs)}: {model}"
    for feed in trial.feeds:
        yield f"at {_seconds(feed.time_us)}: {feed.rows.num_rows} rows of {feed.stream}"
    for change in trial.changes:
        plans = ", ".join(f"{'new ' if query.is_fresh else ''}{query}" for query in change.planned)
        yield f"at {_seconds(change.time_us)} at {change.site}: {plans} ends {', '.join(change.removed) or 'nothing'}"
    if trial.changes:
        yield f"agreement {trial.form}, slack {_seconds(trial.slack_us)}, {'with' if trial.history else 'no'} history"
    for crash in trial.crashes:
        yield f"at {_seconds(crash.time_us)}: {crash.site} crashes for {_seconds(crash.down_us)}"
    if trial.commit_crashes:
        yield f"up to {trial.commit_crashes} crashes as ledgers are committed"


def _shown_hop(hop: Hop) -> str:
    at = "" if hop.at is None else f" at {hop.at}"
    return f"{hop.method}{' by Bloom filter' if hop.bloom else ''} to {hop.alias}{at}"


def _seconds(time_us: int) -> str:
    return f"{time_us / SECOND_US:g} s"


def main(arguments: Sequence[str] | None = None, tell: Callable[[str], object] = print) -> int:
    """Replay one seed in full, or a range of seeds with all but the failures left out; 1 if any of them fails."""
    parser = argparse.ArgumentParser("python -m watersmeet.sim.sites.trial", description=main.__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("stop", type=int, nargs="?", help="try all seeds from SEED up to this one, not included")
    parser.add_argument("--size", choices=tuple(ROWS), default="small")
    parser.add_argument("--changes", action="store_true", help="let plans and queries change while it runs")
    asked = parser.parse_args(arguments)
    seeds = range(asked.seed, asked.seed + 1 if asked.stop is None else asked.stop)
    drawn = draw_changing if asked.changes else draw
    failed = [seed for seed in seeds if not _replay(drawn(seed, size=asked.size), tell, in_full=asked.stop is None)]
    if asked.stop is not None:
        tell(f"{len(seeds)} seeds, {len(failed)} failed{': ' if failed else ''}{', '.join(map(str, failed))}")
    return 1 if failed else 0


def _replay(trial: Trial, tell: Callable[[str], object], *, in_full: bool) -> bool:
    seed = trial.seed
    if in_full:
        tell("\n".join(describe(trial)))
    try:
        outcome = run(trial)
    except Exception:
        tell(f"seed {seed}: {traceback.format_exc()}replay: {trial.command}")
        return False
    if in_full or not outcome.is_right:
        tell(outcome.verdict)
        for name in outcome.wrong:
            for word, rows in (("missing", outcome.missing(name)), ("too many", outcome.surplus(name))):
                for row, count in sorted(rows.items(), key=repr):
                    tell(f"  {name} {word}: {row}{f' x {count}' if count > 1 else ''}")
    return outcome.is_right


if __name__ == "__main__":
    sys.exit(main())
