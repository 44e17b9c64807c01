"""Watersmeet beside Spark's chained stream-stream joins, on the same files, every answer checked against DuckDB.

python benchmarks/w2.py                       # the comparison, full size
python benchmarks/w2.py --table growth        # Watersmeet alone: window, streams, micro-batch, skew
python benchmarks/w2.py --table steady        # 60 and 12 micro-batches without start-up, and where their time goes
python benchmarks/w2.py --table steady --reference DIR     # the same beside another checkout of Watersmeet
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import native
import oracle
import ours
import steady
from measure import measure
from report import HERE, console, machine, show
from workload import DRIVER_MEMORY, Workload, add_arguments, duration, from_arguments, generate

MICRO_BATCHES = (60, 12)  # the settings of the steady table
NATIVE, OURS, REFERENCE, PROFILED = "Spark's chained joins", "Watersmeet", "Watersmeet before", "Watersmeet, profiled"


@dataclass(frozen=True, slots=True)
class Result:
    """One side on one workload: what it took and whether its answers are the oracle's."""

    side: str
    workload: Workload
    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    memory_kind: str
    answers: int = 0
    missing: int = 0
    extra: int = 0
    failure: str = ""  # the last lines of stderr, if it did not run to its end
    reported: Mapping[str, float] | None = None  # the side's own figures, if it prints some
    began_at: float = 0.0  # seconds since 1970
    answered_at: Mapping[int, float] = field(default_factory=dict)  # by micro-batch: when its answers became visible
    breakdown: Mapping[str, float] | None = None  # seconds of a steady micro-batch by what they are spent on

    @property
    def correct(self) -> bool:
        return not (self.failure or self.missing or self.extra)

    @property
    def rows_per_second(self) -> float:
        return self.workload.rows_in / self.wall_seconds

    @property
    def cpu_us_per_row(self) -> float:
        return self.cpu_seconds * 1e6 / self.workload.rows_in

    @property
    def first_answers_seconds(self) -> float | None:
        """From the command to the first answers that a reader can see."""
        return min(self.answered_at.values()) - self.began_at if self.answered_at else None

    @property
    def steady_rows_per_second(self) -> float | None:
        """Without the first sixth of the micro-batches: the first ten of 60, the first two of 12."""
        rows = self.workload.rows_in / self.workload.batches
        return steady.rows_per_second(self.answered_at, rows, steady.warm_up(self.workload.batches))

    def verdict(self) -> str:
        """`yes`, or what is wrong."""
        if self.failure:
            return "failed"
        if self.side == "DuckDB":
            return "the oracle"
        return "yes" if self.correct else f"NO: {self.missing:,} missing, {self.extra:,} too many"


@dataclass(frozen=True, slots=True)
class Command:
    """How a side is run."""

    argv: Sequence[str]
    output: Path
    env: Mapping[str, str]
    breakdown: Callable[[Mapping[int, float]], Mapping[str, float]] | None = None  # read after the run


class Bench:
    """Runs sides on workloads, one after the other, in a scratch directory of their own."""

    def __init__(
        self,
        data_dir: Path,
        driver_memory: str,
        timeout_seconds: float,
        keep: bool,
        reference: Path | None = None,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.timeout_seconds = timeout_seconds
        self.keep = keep
        self.driver_memory = driver_memory
        self.reference = reference
        # The peer's spark-submit takes the heap limit from here; Watersmeet is given it as a setting.
        self.env = {**ours.environment(), "SPARK_DRIVER_MEMORY": driver_memory}
        self.scratch = self.data_dir / "runs" / str(os.getpid())

    def run(self, workload: Workload, sides: Sequence[str]) -> list[Result]:
        """Each side on the same files, then its answers against DuckDB's, which come first."""
        console.log(f"generating {workload.rows_in:,} rows in {workload.streams} streams")
        paths = generate(workload, self.data_dir)
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        try:
            expected = self.scratch / "expected.parquet"
            floor = self._side("DuckDB", workload, self._duckdb(workload, paths, expected), expected)
            if floor.failure:
                raise SystemExit("no oracle, no benchmark: DuckDB failed")
            if not floor.answers:
                console.print("the right answer is empty, nothing is checked: give fewer --keys", style="yellow")
            return [
                floor,
                *(self._side(side, workload, SIDES[side](self, workload, paths), expected) for side in sides),
            ]
        finally:
            if not self.keep:
                shutil.rmtree(self.scratch, ignore_errors=True)

    def _side(self, side: str, workload: Workload, command: Command, expected: Path) -> Result:
        console.log(f"{side} ...")
        taken = measure(command.argv, env=command.env, timeout_seconds=self.timeout_seconds)
        figures = (side, workload, taken.wall_seconds, taken.cpu_seconds, taken.peak_bytes, taken.memory_kind)
        if taken.returncode or taken.timed_out:
            cause = f"no end after {self.timeout_seconds:.0f} s" if taken.timed_out else f"exit code {taken.returncode}"
            console.print(f"{side} failed ({cause}); the last lines it wrote:", style="bold red")
            console.print(taken.last_lines(), markup=False, highlight=False)
            return Result(*figures, failure=f"{cause}\n{taken.last_lines()}")
        answered_at = steady.answer_times(command.output)
        missing, extra = oracle.difference(expected, command.output)
        result = Result(
            *figures,
            answers=oracle.rows_in(command.output),
            missing=missing,
            extra=extra,
            reported=_last_json(taken.stdout),
            began_at=taken.began_at,
            answered_at=answered_at,
            breakdown=command.breakdown(answered_at) if command.breakdown else None,
        )
        console.log(f"{side}: {result.wall_seconds:.1f} s, {result.answers:,} answers, correct? {result.verdict()}")
        return result

    def _duckdb(self, workload: Workload, paths: Sequence[Path], expected: Path) -> Command:
        slots = ["--slots"] * (workload.skew == "zipf-all")
        window = ["--window-us", str(workload.window_us)]
        argv = [sys.executable, str(HERE / "oracle.py"), *window, *slots, "--output", str(expected), *map(str, paths)]
        return Command(argv, expected, self.env)

    def _native(self, workload: Workload, paths: Sequence[Path]) -> Command:
        output = self.scratch / "native" / "answers"
        places = ["--output", str(output), "--checkpoint", str(self.scratch / "native" / "checkpoint")]
        window = ["--window-us", str(workload.window_us)]
        return Command([sys.executable, native.__file__, *window, *places, *map(str, paths)], output, self.env)

    def _ours(self, workload: Workload, paths: Sequence[Path]) -> Command:
        directory = self.scratch / "ours"
        argv, output = ours.prepare(workload, paths, directory, self.driver_memory)
        phases = partial(steady.phases_of, directory / ours.EVENTS, steady.warm_up(workload.batches))
        return Command(argv, output, self.env, phases)

    def _reference(self, workload: Workload, paths: Sequence[Path]) -> Command:
        assert self.reference is not None, "no other checkout was given"
        prepared = ours.prepare_reference(
            self.reference, workload, paths, self.scratch / "reference", self.driver_memory
        )
        return Command(*prepared)

    def _profiled(self, workload: Workload, paths: Sequence[Path]) -> Command:
        directory = self.scratch / "profiled"
        argv, output = ours.prepare_profiled(workload, paths, directory, self.driver_memory)
        phases = partial(steady.breakdown_of, directory, steady.warm_up(workload.batches))
        return Command(argv, output, self.env, phases)


SIDES: Mapping[str, Callable[[Bench, Workload, Sequence[Path]], Command]] = {
    NATIVE: Bench._native,
    REFERENCE: Bench._reference,
    OURS: Bench._ours,
    PROFILED: Bench._profiled,
}


@dataclass(frozen=True, slots=True)
class Case:
    """A line of the growth table."""

    dimension: str
    label: str
    workload: Workload


def growth_cases(base: Workload) -> Iterator[Case]:
    """One dimension at a time away from the base; at full scale the base is `w2` itself.

    The window is a tenth of the event time at every scale, and there are 5 keys for 3 rows of a window as in `w2`, so
    that rows do expire and the matches a row finds stay the same whatever the window.
    """

    def windowed(share: float) -> Workload:
        window_us = round(base.duration_us * share)
        return replace(base, window_us=window_us, keys=max(1, base.rate * window_us * 5 // 3_000_000))

    base = windowed(1 / 10)
    for factor in (1, 4, 16):
        workload = windowed(factor / 40)
        yield Case("window", f"x{factor}: {duration(workload.window_us).lower()}, {workload.keys:,} keys", workload)
    for streams in range(2, 7):
        yield Case("streams", str(streams), replace(base, streams=streams))
    for factor in (0.2, 1, 5):
        workload = replace(base, batches=min(base.rows, max(1, round(base.batches / factor))))
        yield Case("micro-batch", f"x{factor:g}: {workload.batch_rows:,} rows a stream", workload)
    yield Case("key skew", "none", base)
    yield Case("key skew", "Zipf 1.2 in one stream", replace(base, skew="zipf-first"))
    # Zipf in every stream multiplies: one key has a fifth of all rows. 20 rows a window keep it at 10 answers a row.
    skewed = replace(base, skew="zipf-all", rows=max(1, base.rows // 10), rate=10, window_us=2_000_000)
    yield Case(
        "key skew",
        "Zipf 1.2 in all, a tenth of the rows, 20 rows a window",
        replace(skewed, batches=min(base.batches, skewed.rows)),
    )


def growth(bench: Bench, base: Workload) -> list[tuple[Case, Result]]:
    """Watersmeet on every case; a workload that several lines share is run once."""
    done: dict[Workload, Result] = {}
    lines = []
    for case in growth_cases(base):
        if case.workload not in done:
            console.rule(f"{case.dimension} {case.label}")
            done[case.workload] = bench.run(case.workload, [OURS])[-1]
        lines.append((case, done[case.workload]))
    return lines


def comparison_rows(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the comparison: figures of every side and, last, Watersmeet against Spark's own joins."""
    memory = f"peak memory MB ({'/'.join(sorted({result.memory_kind.upper() for result in results}))})"
    header = ["", "rows/s", "wall s", "CPU s", memory, "answers", "correct?"]
    lines = [
        [result.side, "failed", *[""] * 4, result.verdict()]
        if result.failure
        else [
            result.side if result.side != "DuckDB" else "DuckDB, all data at once (the floor)",
            f"{result.rows_per_second:,.0f}",
            f"{result.wall_seconds:,.1f}",
            f"{result.cpu_seconds:,.1f}",
            f"{result.peak_bytes / 2**20:,.0f}",
            f"{result.answers:,}",
            result.verdict(),
        ]
        for result in results
    ]
    by_side = {result.side: result for result in results if not result.failure}
    if {NATIVE, OURS} <= by_side.keys():
        theirs, mine = by_side[NATIVE], by_side[OURS]
        ratios = [
            f"x{mine.rows_per_second / theirs.rows_per_second:.2f}",
            *(
                f"x{getattr(mine, figure) / getattr(theirs, figure):.2f}"
                for figure in ("wall_seconds", "cpu_seconds", "peak_bytes")
            ),
        ]
        lines.append(["Watersmeet / Spark's", *ratios, "", ""])
    return header, lines


def growth_rows(lines: Sequence[tuple[Case, Result]]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the growth table."""
    header = ["", "case", "input rows", "rows/s", "CPU µs/row", "answers", "correct?"]
    return header, [
        [
            case.dimension,
            case.label,
            f"{case.workload.rows_in:,}",
            f"{result.rows_per_second:,.0f}" if not result.failure else "failed",
            f"{result.cpu_us_per_row:,.2f}" if not result.failure else "",
            f"{result.answers:,}" if not result.failure else "",
            result.verdict(),
        ]
        for case, result in lines
    ]


def steady_results(
    bench: Bench, base: Workload, batches: Sequence[int], sides: Sequence[str], repeat: int
) -> list[Result]:
    """Every side with each number of micro-batches, one after the other, and that `repeat` times."""
    results = []
    for count in batches:
        workload = replace(base, batches=min(count, base.rows))
        for number in range(repeat):
            console.rule(f"{workload.batches} micro-batches{f', run {number + 1}' if repeat > 1 else ''}")
            results += bench.run(workload, sides)
    return results


def steady_rows(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the steady table: the median of each figure over the runs of a side."""
    memory = f"peak memory MB ({'/'.join(sorted({result.memory_kind.upper() for result in results}))})"
    header = ["", "micro-batches", "steady rows/s", "rows/s", "wall s", "first answers s", "CPU s", memory, "correct?"]
    lines = []
    for side, batches in dict.fromkeys((result.side, result.workload.batches) for result in results):
        runs = [result for result in results if (result.side, result.workload.batches) == (side, batches)]
        wrong = [run.verdict() for run in runs if not run.correct]
        good = [run for run in runs if not run.failure]
        if side in ("DuckDB", PROFILED) or not good:
            if side != "DuckDB" and wrong:
                lines.append([side, str(batches), *[""] * 6, wrong[0]])
            continue
        lines.append(
            [
                side,
                str(batches),
                steady.median([run.steady_rows_per_second for run in good], ",.0f"),
                steady.median([run.rows_per_second for run in good], ",.0f"),
                steady.median([run.wall_seconds for run in good], ",.1f"),
                steady.median([run.first_answers_seconds for run in good], ",.1f"),
                steady.median([run.cpu_seconds for run in good], ",.1f"),
                steady.median([run.peak_bytes / 2**20 for run in good], ",.0f"),
                wrong[0] if wrong else "yes",
            ]
        )
    return header, lines


def figures(result: Result) -> dict[str, object]:
    """Raw and derived figures of one run, for JSON."""
    derived = {
        name: getattr(result, name)
        for name in (
            "rows_per_second",
            "steady_rows_per_second",
            "first_answers_seconds",
            "cpu_us_per_row",
            "correct",
        )
    }
    return asdict(result) | derived


def _last_json(stdout: str) -> dict[str, float] | None:
    try:
        value = json.loads(stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--table", choices=("comparison", "growth", "steady"), default="comparison")
    parser.add_argument(
        "--reference", type=Path, metavar="DIR", help="steady: another checkout to run beside this one, by its own code"
    )
    parser.add_argument("--repeat", type=int, default=1, help="steady: runs of each side (default %(default)s)")
    parser.add_argument("--skip-native", action="store_true", help="leave out Spark's own joins")
    parser.add_argument("--skip-ours", action="store_true", help="leave out Watersmeet")
    parser.add_argument(
        "--driver-memory", default=DRIVER_MEMORY, help="limit of the JVM heap of both sides (default %(default)s)"
    )
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds a side may take (default %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep answers and checkpoints")
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the raw figures")
    args = parser.parse_args()
    try:
        workload = from_arguments(args)
    except ValueError as error:
        parser.error(str(error))
    if args.reference and not (args.reference / "benchmarks" / "ours.py").is_file():
        parser.error(f"--reference {args.reference}: there is no benchmarks/ours.py; name the root of a checkout")
    bench = Bench(args.data, args.driver_memory, args.timeout, args.keep, args.reference)
    facts = machine(args.reference)
    skipped = {NATIVE: args.skip_native, OURS: args.skip_ours, REFERENCE: args.reference is None}
    if args.table == "growth":
        cases = growth(bench, workload)
        results = [result for _, result in cases]
        raw = [{"dimension": case.dimension, "case": case.label} | figures(result) for case, result in cases]
        title = f"Watersmeet as the workload grows (scale {args.scale:g}, seed {args.seed})"
        show(title, *growth_rows(cases), facts)
    elif args.table == "steady":
        sides = [side for side in (NATIVE, REFERENCE, OURS, PROFILED) if not skipped.get(side, args.skip_ours)]
        settings = (args.batches,) if args.batches else MICRO_BATCHES
        results = steady_results(bench, workload, settings, sides, args.repeat)
        raw = [figures(result) for result in results]
        show(f"w2 in steady state (scale {args.scale:g}, seed {args.seed})", *steady_rows(results), facts)
        for side, title in (
            (PROFILED, "Where the time of a steady micro-batch goes, in ms (a run through wm.start)"),
            (OURS, "Our own phases by the events of the command line's run, in ms"),
        ):
            runs = {result.workload.batches: result for result in results if result.side == side and result.breakdown}
            if runs:
                show(title, *steady.breakdown_rows({batches: run.breakdown or {} for batches, run in runs.items()}))
            for batches, run in runs.items():
                rate = steady.median([run.steady_rows_per_second], ",.0f")
                print(f"Steady rows/s of this run with {batches} micro-batches: {rate}.\n")
    else:
        if workload.window_us >= workload.duration_us:
            console.print(
                "the window is longer than the event time: nothing expires; give a smaller --window", style="yellow"
            )
        results = bench.run(workload, [side for side in (NATIVE, OURS) if not skipped[side]])
        raw = [figures(result) for result in results]
        title = (
            f"{workload.streams} streams x {workload.rows:,} rows, RANGE {duration(workload.window_us)}, "
            f"{workload.keys:,} keys, {workload.batches} micro-batches, {workload.skew}, seed {workload.seed}"
        )
        show(title, *comparison_rows(results), facts)
    if args.json:
        args.json.write_text(json.dumps({"machine": facts, "table": args.table, "results": raw}, indent=2) + "\n")
    if not all(result.correct for result in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
