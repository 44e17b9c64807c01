"""What the steps of a site's micro-batch take on this machine: the unit costs that `cost.price` reckons with.

Rows, probes, pairs and packing are slopes: the same step over more and more rows. What real micro-batches of small
programs take beyond that is attributed by least squares over programs and batches of different size: micro-batches,
operators, and what keeping and merging adds to a row. All of it is processor time of the very code that sites run, over
the same rows on every machine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.cost.costs import Units
from watersmeet.plan.nodes import HeadPlan, Hop, JoinPlan, Kept, KeyClass, Linear, Scan
from watersmeet.program.finish.model import Evaluated, Finish
from watersmeet.program.join.axis import Axis
from watersmeet.program.join.match import Side, pairs
from watersmeet.program.join.probe import Relation, Run, Visibility
from watersmeet.program.site.deployment import Joined, overlay
from watersmeet.program.site.engine import Arrivals, SiteEngine
from watersmeet.program.site.filing import Made, arrived, file_flow, pack_for_others, sort_rows
from watersmeet.program.site.ingest import Ingest
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.storage.packing import unpack_rows
from watersmeet.program.storage.segments import I64, KEY, TS, class_column, column
from watersmeet.program.storage.shelf import MemoryShelf
from watersmeet.program.storage.wire import ParcelIndex, index_parcel, unpack_schema
from watersmeet.query.model import Column, Expression, SelectItem
from watersmeet.query.windows import Range

Progress = Callable[[str, float], None]  # what is being measured, and the share that is done

_SEED = 7
_SIZES = (1_000, 4_000, 16_000)  # rows that slopes are taken over
_WINDOW_BATCHES = 10  # micro-batches that a row is visible for
_BATCH_US = 1_000_000
_TRIALS = ((2, 10), (3, 10), (4, 10), (2, 100), (3, 100), (4, 100), (2, 2_000), (3, 1_000))  # streams, rows
_FEWEST = 3  # runs of anything, whatever the time allowed


def measure_units(seconds: float = 5.0, progress: Progress | None = None) -> Units:
    """Measure the unit costs of this machine in about so many seconds of its time."""
    report = progress or (lambda what, share: None)
    report("filing rows", 0.0)
    row_s = _slope([(rows, _filing(rows)) for rows in _SIZES], seconds * 0.1)
    report("looking rows up", 0.1)
    probe_s = _slope([(rows, _probing(rows, hits=0)) for rows in _SIZES], seconds * 0.1)
    report("pairing rows", 0.2)
    match_s = _slope([(4_000 * hits, _probing(4_000, hits=hits)) for hits in (1, 4, 8)], seconds * 0.1)
    report("packing rows", 0.3)
    pack_s = _slope([(2 * rows, _packing(rows)) for rows in _SIZES], seconds * 0.1)  # there and back
    rows_only = Units(0.0, 0.0, row_s, probe_s, match_s, pack_s)
    units = _with_batches(rows_only, seconds * 0.6, lambda share: report("running micro-batches", 0.4 + 0.6 * share))
    report("done", 1.0)
    return units


# Slopes


def _slope(runs: Sequence[tuple[int, Callable[[], object]]], seconds: float) -> float:
    """Seconds for one more of what is counted, by a straight line through the medians of repeated runs."""
    for _, run in runs:
        run()  # the first time is not like the others
    taken: list[list[float]] = [[] for _ in runs]
    stop = perf_counter() + seconds
    while len(taken[0]) < _FEWEST or perf_counter() < stop:
        for times, (_, run) in zip(taken, runs, strict=True):
            times.append(_processor_s(run))
    counts = np.array([count for count, _ in runs], float)
    middle = np.array([median(times) for times in taken])
    slope, _ = np.polyfit(counts, middle, 1)
    return max(float(slope), float(middle[-1] / counts[-1]) / 10)  # noise cannot make it nothing


def _processor_s(run: Callable[[], object]) -> float:
    start = process_time()
    run()
    return process_time() - start


def _filing(rows: int) -> Callable[[], object]:
    program, table = _programs(_join(2))["here"], _rows("a", rows, rows, 0)
    return lambda: file_flow(program, MemoryShelf(), "a", table, travels=False)


def _probing(rows: int, hits: int) -> Callable[[], object]:
    """Rows that look up a window and find so many others each, and the columns of what they find."""
    axis = Axis(Range(_WINDOW_BATCHES * _BATCH_US), 1, 2)  # of b; a comes before it in the query
    asked = np.arange(rows) * 2
    stored = np.repeat(asked, hits) if hits else np.arange(16_000) * 2 + 1
    left = _relation("a", asked, rows, lambda ts: axis.points(ts, 0))
    right = _relation("b", stored, rows - 1, lambda ts: axis.rows(ts, None))
    nothing = Relation(())
    names = ["a.k", "a.id"], ["b.k", "b.id"]

    def run() -> None:
        for found in pairs(Side(left, nothing), Side(nothing, right), ()):
            pa.table(
                {
                    **dict(zip(names[0], found.left.gather(found.left_rows, names[0]), strict=True)),
                    **dict(zip(names[1], found.right.gather(found.right_rows, names[1]), strict=True)),
                }
            )

    return run


def _relation(alias: str, keys: I64, stamp: int, visibility: Callable[[I64], Visibility]) -> Relation:
    table = pa.table(
        {
            TS: np.full(len(keys), stamp),
            class_column(0): keys.astype(np.int64),
            f"{alias}.k": keys.astype(np.int64),
            f"{alias}.id": np.arange(len(keys)),
        }
    )
    table = sort_rows(table, (0,))
    visible = visibility(column(table, TS))
    span = int(visible.begins().min()), int(visible.ends().max())
    return Relation((Run(column(table, KEY), visible, table, span),))


def _packing(rows: int) -> Callable[[], object]:
    programs = _programs(_join(2))
    (shipment,) = programs["there"].shipments_of["b"]
    table = _rows("b", rows, rows, 0)

    def run() -> None:
        shelf = MemoryShelf()
        (payload,) = pack_for_others(programs["there"], shelf, "b", table).values()
        schema = unpack_schema(bytes.fromhex(payload.schema))
        arrived(programs["here"], shipment, unpack_rows(shelf.get_bytes(payload.path), schema))

    return run


# Micro-batches


def _with_batches(units: Units, seconds: float, report: Callable[[float], None]) -> Units:
    """Units with what micro-batches take beyond known steps: themselves, their operators, and keeping rows."""
    report(0.0)
    trials = [_Trial(count, rows) for count, rows in _TRIALS]
    stop = perf_counter() + seconds
    batches = 0
    while batches < _WINDOW_BATCHES + 2 * _FEWEST or perf_counter() < stop:
        for trial in trials:
            trial.run_micro_batch()
        batches += 1
        report(min(1.0, max(0.0, 1 - (stop - perf_counter()) / max(seconds, 1e-9))))
    known: list[tuple[float, float, float]] = []
    rest: list[float] = []
    for trial in trials:
        for taken in trial.taken.values():
            steady = taken[_WINDOW_BATCHES:]
            whole = median(taken.seconds for taken in steady)  # by which errors are judged
            operators, inputs = median(taken.operators for taken in steady), median(taken.inputs for taken in steady)
            known.append((1 / whole, operators / whole, inputs / whole))
            rest.append(median(taken.seconds - taken.rows_s(units) for taken in steady) / whole)
    micro_batch_s, operator_s, kept_s = _never_negative(np.array(known), np.array(rest))
    shortest = min(one.seconds for trial in trials for taken in trial.taken.values() for one in taken)
    least = shortest / 100  # noise cannot make either of them nothing
    return replace(
        units, micro_batch_s=max(micro_batch_s, least), operator_s=max(operator_s, least), row_s=units.row_s + kept_s
    )


def _never_negative(known: Any, rest: Any) -> list[float]:
    """Least squares in which whatever would be negative is left out."""
    used = list(range(known.shape[1]))
    while used:
        found, *_ = np.linalg.lstsq(known[:, used], rest, rcond=None)
        if found.min() >= 0:
            break
        del used[int(found.argmin())]
    return [float(found[used.index(number)]) if number in used else 0.0 for number in range(known.shape[1])]


@dataclass(frozen=True, slots=True)
class _Taken:
    """What one micro-batch took, and what was done in it."""

    seconds: float
    operators: int
    inputs: int
    made: int
    packed: int

    def rows_s(self, units: Units) -> float:
        """What its rows take."""
        return self.inputs * (units.row_s + units.probe_s) + self.made * units.match_s + self.packed * units.pack_s


@dataclass
class _Site:
    """A site of a trial between two micro-batches."""

    program: SiteProgram
    shelf: MemoryShelf = field(default_factory=MemoryShelf)
    engine: SiteEngine = field(init=False)
    ledger: SiteLedger = field(default_factory=SiteLedger)
    inbox: list[tuple[str, str, ParcelIndex]] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)

    def __post_init__(self) -> None:
        delays = {scan.stream: 0 for scan in self.program.streams}
        self.engine = SiteEngine(self.program, delays, self.shelf, self._run_tasks, _no_expressions)

    def _run_tasks(self, task: Callable[[int], list[Any]], count: int, rows: int) -> list[Any]:
        """Run tasks here, and remember what they made."""
        found = [result for number in range(count) for result in task(number)]
        self.made += [value for value in found if isinstance(value, Made)]
        return found


def _no_expressions(finish: Finish, paths: Sequence[str], rows: int) -> Evaluated:
    raise AssertionError("answers are columns as they are")


class _Trial:
    """Two sites that join some streams, as many rows of each in every micro-batch."""

    def __init__(self, count: int, rows: int) -> None:
        self._join, self._rows, self._batch = _join(count), rows, 0
        self._sites = {site: _Site(program) for site, program in _programs(self._join).items()}
        self.taken: dict[str, list[_Taken]] = {site: [] for site in self._sites}

    def run_micro_batch(self) -> None:
        """One micro-batch of each site."""
        fresh = {
            scan.stream: _rows(scan.stream, self._rows, self._rows * _WINDOW_BATCHES, self._batch)
            for scan in self._join.scans
        }
        for name, site in self._sites.items():
            site.made = []
            start = process_time()
            self._run_site(site, fresh)
            seconds = process_time() - start
            self.taken[name].append(self._counted(site, seconds))
            site.inbox = []
        for name, site in self._sites.items():
            self._deliver(name, site)
        self._batch += 1

    def _run_site(self, site: _Site, fresh: Mapping[str, pa.Table]) -> None:
        marks = site.engine.watermarks(site.ledger)
        found = [
            Ingest(site.program, site.shelf, scan)(fresh[scan.stream], marks[scan.stream])
            for scan in site.program.streams
        ]
        site.made += [ingested.made for ingested in found if ingested.made is not None]
        # The ledger is made durable when rows have been filed, and again when they have been joined.
        site.ledger = _stored(site.engine.ingest(site.ledger, self._batch, found))
        site.ledger = _stored(site.engine.run(site.ledger, Arrivals(site.inbox)))

    def _counted(self, site: _Site, seconds: float) -> _Taken:
        rows: dict[str, int] = {}
        for filed in site.made:
            rows[filed.flow] = rows.get(filed.flow, 0) + filed.rows
        operators = site.program.operators
        inputs = [sum(rows.get(part.flow(flow), 0) for flow in operator.inputs) for part, operator in operators]
        sent = sum(payload.rows for filed in site.made for payload in filed.payloads.values())
        received = sum(entry.rows for _, _, parcel in site.inbox for entry in parcel.entries)
        made = sum(rows.get(part.flow(operator.out), 0) for part, operator in operators)
        return _Taken(seconds, sum(count > 0 for count in inputs), sum(inputs), made, sent + received)

    def _deliver(self, name: str, site: _Site) -> None:
        for to, link in site.ledger.links.items():
            for parcel in link.outbox:
                data, peer = site.shelf.get_bytes(parcel.path), self._sites[to]
                index = index_parcel(data)
                peer.inbox.append((name, peer.shelf.put_bytes(f"from-{name}", data), index))
            site.ledger = site.engine.acknowledged(site.ledger, to, link.number)
        site.ledger = replace(site.ledger, undelivered={})
        site.shelf.keep_only(site.ledger.paths | {path for _, path, _ in site.inbox})


def _stored(ledger: SiteLedger) -> SiteLedger:
    return SiteLedger.from_json(ledger.to_json())


# Rows and plans to measure with


def _programs(join: JoinPlan) -> dict[str, SiteProgram]:
    """What each site does to answer with all columns of a join."""
    kept = {kept.name: kept.expression for scan in join.scans for kept in scan.kept}
    select = tuple(SelectItem(name, kept[name]) for name in join.output)
    return overlay([Joined("q", join, None, (Finish("q", join.output, (), select, distinct=False),))])


def _join(count: int) -> JoinPlan:
    """Some streams with one key, alternately at two sites, each joined where it is."""
    aliases = "abcdefgh"[:count]
    keys = {alias: _column(alias, "k", "bigint") for alias in aliases}
    scans = tuple(
        Scan(
            alias,
            alias,
            Range(_WINDOW_BATCHES * _BATCH_US),
            (),
            tuple(Kept(f"{alias}.{name}", _column(alias, name)) for name in ("k", "id")),
            (0,),
        )
        for alias in aliases
    )
    heads = tuple(HeadPlan(head, tuple(Hop(alias) for alias in aliases if alias != head)) for head in aliases)
    return JoinPlan(
        (KeyClass(0, tuple(keys.values())),),
        scans,
        tuple("here" if number % 2 == 0 else "there" for number in range(count)),
        (Linear(heads),),
        "here",
        (),
        tuple(name for scan in scans for name in scan.columns),
    )


def _column(alias: str, name: str, kind: str = "") -> Expression:
    one = Column(alias, name)
    return Expression(one.sql, (one,), kind)


def _rows(stream: str, rows: int, values: int, batch: int) -> pa.Table:
    """New rows of a stream as they are ingested; always the same ones for the same micro-batch."""
    random = np.random.default_rng((_SEED, ord(stream), rows, batch))
    keys = random.integers(0, max(values, 1), rows)
    return pa.table(
        {
            TS: batch * _BATCH_US + np.sort(random.integers(0, _BATCH_US, rows)),
            class_column(0): keys,
            f"{stream}.k": keys,
            f"{stream}.id": np.arange(batch * rows, (batch + 1) * rows),
        }
    )
