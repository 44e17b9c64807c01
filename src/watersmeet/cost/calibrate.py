"""What the steps of a turn take on this machine: the unit costs that `cost.price` reckons with.

Rows, probes, pairs and packing are slopes: the same step over more and more rows. What real turns of small programs
take beyond that is told apart by least squares over programs and batches of different size: turns, operators, and what
keeping and merging adds to a row. All of it is processor time of the very code that sites run, over the same rows on
every machine.
"""

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.cost.price import Units
from watersmeet.errors import InputError
from watersmeet.plan.nodes import HeadPlan, Hop, JoinPlan, Kept, KeyClass, Linear, Scan
from watersmeet.program.join.match import Side, interval_run, pairs
from watersmeet.program.join.probe import Relation
from watersmeet.program.operators import SiteProgram, compile_sites, rows_of
from watersmeet.program.site.engine import Arrivals, SiteEngine, SiteLedger, ingest
from watersmeet.program.site.filing import Made, arrived, file_flow, pack_flow, sort_rows
from watersmeet.program.storage.packing import unpack_rows
from watersmeet.program.storage.segments import TS, class_column, column
from watersmeet.program.storage.shelf import MemoryShelf
from watersmeet.program.storage.wire import ParcelIndex, index_parcel, unpack_schema
from watersmeet.query.model import Column, Expression
from watersmeet.query.windows import Range

Progress = Callable[[str, float], None]  # what is being measured, and the share that is done

_SEED = 7
_SIZES = (1_000, 4_000, 16_000)  # rows that slopes are taken over
_WINDOW_TURNS = 10  # turns that a row is seen for
_TURN_US = 1_000_000
_TRIALS = ((2, 10), (3, 10), (4, 10), (2, 100), (3, 100), (4, 100), (2, 2_000), (3, 1_000))  # streams, rows a turn
_FEWEST = 3  # runs of anything, whatever the time allowed
_CURE = "run `watersmeet calibrate` to write it anew"


def measure_units(seconds: float = 5.0, progress: Progress | None = None) -> Units:
    """Measure the unit costs of this machine in about so many seconds of its time."""
    tell = progress or (lambda what, share: None)
    tell("filing rows", 0.0)
    row_s = _slope([(rows, partial(_file, rows)) for rows in _SIZES], seconds * 0.1)
    tell("looking rows up", 0.1)
    probe_s = _slope([(rows, _probing(rows, hits=0)) for rows in _SIZES], seconds * 0.1)
    tell("pairing rows", 0.2)
    match_s = _slope([(4_000 * hits, _probing(4_000, hits=hits)) for hits in (1, 4, 8)], seconds * 0.1)
    tell("packing rows", 0.3)
    pack_s = _slope([(2 * rows, _packing(rows)) for rows in _SIZES], seconds * 0.1)  # there and back
    tell("taking turns", 0.4)
    rows_only = Units(0.0, 0.0, row_s, probe_s, match_s, pack_s)
    units = _with_turns(rows_only, seconds * 0.6, lambda share: tell("taking turns", 0.4 + 0.6 * share))
    tell("done", 1.0)
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


def _file(rows: int) -> None:
    program = compile_sites(_join(2))["here"]
    file_flow(program, MemoryShelf(), rows_of("a"), _rows("a", rows, rows, 0), travels=False)


def _probing(rows: int, hits: int) -> Callable[[], object]:
    """Rows that look up a window and find so many others each, and the columns of what they find."""
    left = _relation("a", np.arange(rows) * 2, rows)
    right = _relation("b", np.repeat(np.arange(rows) * 2, hits) if hits else np.arange(16_000) * 2 + 1, rows)
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


def _relation(alias: str, keys: Any, stamp: int) -> Relation:
    table = pa.table(
        {
            TS: np.full(len(keys), stamp),
            class_column(0): keys.astype(np.int64),
            f"{alias}.k": keys.astype(np.int64),
            f"{alias}.id": np.arange(len(keys)),
        }
    )
    table = sort_rows(table, (0,))
    return Relation((interval_run(table, column(table, TS), column(table, TS) + 1, narrows=True),))


def _packing(rows: int) -> Callable[[], object]:
    program = compile_sites(_join(2))["there"]
    table, flow = _rows("b", rows, rows, 0), rows_of("b")

    def run() -> None:
        shelf = MemoryShelf()
        payload = pack_flow(program, shelf, flow, table)
        schema = unpack_schema(bytes.fromhex(payload.schema))
        arrived(program, flow, unpack_rows(shelf.get_bytes(payload.path), schema))

    return run


# Turns


def _with_turns(units: Units, seconds: float, tell: Callable[[float], None]) -> Units:
    """Units with what turns take beyond the steps that are known: themselves, their operators, and keeping rows."""
    trials = [_Trial(count, rows) for count, rows in _TRIALS]
    stop = perf_counter() + seconds
    turns = 0
    while turns < _WINDOW_TURNS + 2 * _FEWEST or perf_counter() < stop:
        for trial in trials:
            trial.go_on()
        turns += 1
        tell(min(1.0, max(0.0, 1 - (stop - perf_counter()) / max(seconds, 1e-9))))
    known: list[tuple[float, float, float]] = []
    rest: list[float] = []
    for trial in trials:
        for taken in trial.taken.values():
            steady = taken[_WINDOW_TURNS:]
            whole = median(one.seconds for one in steady)  # by which errors are judged
            operators, inputs = median(one.operators for one in steady), median(one.inputs for one in steady)
            known.append((1 / whole, operators / whole, inputs / whole))
            rest.append(median(one.seconds - one.rows_s(units) for one in steady) / whole)
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
    """What one turn took, and what was done in it."""

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
    """A site of a trial between two turns."""

    program: SiteProgram
    shelf: MemoryShelf = field(default_factory=MemoryShelf)
    engine: SiteEngine = field(init=False)
    ledger: SiteLedger = field(default_factory=SiteLedger)
    inbox: list[tuple[str, str, ParcelIndex]] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)

    def __post_init__(self) -> None:
        delays = {scan.stream: 0 for scan in self.program.join.scans}
        self.engine = SiteEngine(self.program, delays, self.shelf, self._run_tasks)

    def _run_tasks(self, task: Callable[[int], list[Any]], count: int, rows: int) -> list[Any]:
        """Run tasks here, and remember what they made."""
        found = [result for number in range(count) for result in task(number)]
        self.made += [one for one in found if isinstance(one, Made)]
        return found


class _Trial:
    """Two sites that join some streams, as many rows of each every turn."""

    def __init__(self, count: int, rows: int) -> None:
        self._join, self._rows, self._turn = _join(count), rows, 0
        self._sites = {site: _Site(program) for site, program in compile_sites(self._join).items()}
        self.taken: dict[str, list[_Taken]] = {site: [] for site in self._sites}

    def go_on(self) -> None:
        """One turn of each site."""
        fresh = {
            scan.alias: _rows(scan.alias, self._rows, self._rows * _WINDOW_TURNS, self._turn)
            for scan in self._join.scans
        }
        self._turn += 1
        for name, site in self._sites.items():
            site.made = []
            start = process_time()
            self._take_turn(site, fresh)
            seconds = process_time() - start
            self.taken[name].append(self._counted(site, seconds))
            site.inbox = []
        for name, site in self._sites.items():
            self._deliver(name, site)

    def _take_turn(self, site: _Site, fresh: Mapping[str, pa.Table]) -> None:
        found = []
        for alias in site.program.local:
            table = fresh[alias]
            one = ingest(site.program, site.shelf, alias, table)
            found.append(replace(one, max_ts=int(column(table, TS).max())))
            if one.made is not None:
                site.made.append(one.made)
        turn = site.engine.turn(site.ledger, Arrivals(found, site.inbox, batch=self._turn))
        site.ledger = SiteLedger.from_json(turn.ledger.to_json())  # it is made durable every time

    def _counted(self, site: _Site, seconds: float) -> _Taken:
        rows: dict[str, int] = {}
        for one in site.made:
            rows[one.flow] = rows.get(one.flow, 0) + one.rows
        operators = site.program.operators
        inputs = [sum(rows.get(flow.name, 0) for flow in operator.inputs) for operator in operators]
        sent = sum(payload.rows for one in site.made for payload in one.payloads.values())
        received = sum(entry.rows for _, _, parcel in site.inbox for entry in parcel.entries)
        made = sum(rows.get(operator.out.name, 0) for operator in operators)
        return _Taken(seconds, sum(count > 0 for count in inputs), sum(inputs), made, sent + received)

    def _deliver(self, name: str, site: _Site) -> None:
        links = {}
        for to, link in site.ledger.links.items():
            for parcel in link.outbox:
                data, peer = site.shelf.get_bytes(parcel.path), self._sites[to]
                index = index_parcel(data)
                peer.inbox.append((name, peer.shelf.put_bytes(f"from-{name}", data), index))
            links[to] = replace(link, outbox=())
        site.ledger = replace(site.ledger, links=links)
        site.shelf.keep_only(site.ledger.paths | {path for _, path, _ in site.inbox})


# Rows and plans to measure with


def _join(count: int) -> JoinPlan:
    """Some streams with one key, by turns at two sites, each joined where it is."""
    aliases = "abcdefgh"[:count]
    keys = {alias: _column(alias, "k", "bigint") for alias in aliases}
    scans = tuple(
        Scan(
            alias,
            alias,
            Range(_WINDOW_TURNS * _TURN_US),
            (),
            tuple(Kept(f"{alias}.{name}", _column(alias, name)) for name in ("k", "id")),
            (0,),
            (),
            (),
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


def _rows(alias: str, rows: int, values: int, turn: int) -> pa.Table:
    """New rows of a stream as they are filed; always the same ones for the same turn."""
    random = np.random.default_rng((_SEED, ord(alias), rows, turn))
    keys = random.integers(0, max(values, 1), rows)
    return pa.table(
        {
            TS: turn * _TURN_US + np.sort(random.integers(0, _TURN_US, rows)),
            class_column(0): keys,
            f"{alias}.k": keys,
            f"{alias}.id": np.arange(turn * rows, (turn + 1) * rows),
        }
    )


# The file


def default_units_path() -> Path:
    """Where the unit costs of this machine are kept."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache") / "watersmeet" / "units.json"


def save_units(path: Path, units: Units) -> None:
    """Write unit costs, with what they were measured on and when."""
    machine = {"processors": os.cpu_count(), "python": platform.python_version(), "pyarrow": pa.__version__}
    data = {"units": asdict(units), "machine": machine, "date": datetime.now(UTC).date().isoformat()}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)


def load_units(path: Path) -> Units:
    """Unit costs that were written before."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["units"]
        return Units(**{item.name: _number(found[item.name]) for item in fields(Units)})
    except OSError as error:
        raise InputError(f"the unit costs in {path} cannot be read ({error.strerror}); {_CURE}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is damaged or is no file of unit costs; {_CURE}") from error


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("not a number")
    return float(value)
