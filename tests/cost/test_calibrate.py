"""Unit costs: what is measured, that it predicts what sites really take, and the file it is kept in."""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from math import isfinite
from pathlib import Path
from time import process_time

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.cost.calibrate import measure_units
from watersmeet.cost.costs import Units
from watersmeet.cost.from_statistics import workload_of
from watersmeet.cost.price import price
from watersmeet.cost.units import default_units_path, load_units, save_units
from watersmeet.errors import InputError
from watersmeet.plan.nodes import Hop, Method, join_plan_of
from watersmeet.planners.sited import explicit
from watersmeet.query.sql import parse_query
from watersmeet.sim.sites import simulated as sites_module
from watersmeet.sim.sites.rows import lay_out, typed
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.stats.model import ColumnStats, Number, Stats, StreamStats
from watersmeet.topology.model import Site, Topology

SECOND = 1_000_000
SCHEMA = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
SQL = "SELECT a.id AS a, b.id AS b FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k"
HOMES = {"a": "ams", "b": "nyc"}


@pytest.fixture(scope="module")
def units() -> Units:
    return measure_units(2.0)


def test_every_unit_is_measured(units: Units) -> None:
    for item in fields(Units):
        value = getattr(units, item.name)
        assert isfinite(value) and value > 0, item.name
    assert units.row_s < units.micro_batch_s and units.match_s < units.operator_s


def test_progress_is_reported_and_ends() -> None:
    reported: list[tuple[str, float]] = []
    measure_units(0.0, lambda what, share: reported.append((what, share)))
    shares = [share for _, share in reported]
    assert shares == sorted(shares) and shares[0] == 0.0 and reported[-1] == ("done", 1.0)
    assert {"filing rows", "running micro-batches"} <= {what for what, _ in reported}


def predicted_and_taken(
    units: Units, method: Method, rate: int, keys: int, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[float, float]:
    """The share of a core that a join should take, and the one that its simulated sites do take."""
    columns, schemas = dict.fromkeys(HOMES, SCHEMA.names), dict.fromkeys(HOMES, SCHEMA)
    query = typed(parse_query(SQL, columns), schemas)
    asked = {"a": [Hop("b", method)], "b": [Hop("a", method)]}
    plan = explicit(query, columns, HOMES, "nyc", asked)
    join = join_plan_of(plan)
    column = ColumnStats(distinct=Number(float(keys)))
    known = StreamStats(rate=Number(float(rate)), row_bytes=Number(16.0), columns={"k": column})
    workload = workload_of(
        join.scans, join.classes, join.output, join.homes, join.site, Stats(dict.fromkeys(HOMES, known))
    )
    topology = Topology((), sites=(Site("ams"), Site("nyc")))
    feeds = [batch(rate, keys, second) for second in range(seconds)]
    sites = SimulatedSites(plan, dict.fromkeys(HOMES, "ts"), interval_us=SECOND)
    laid_out = {
        (scan.stream, id(feed[scan.stream])): lay_out(scan, feed[scan.stream], "ts")
        for feed in feeds
        for program in sites.programs.values()
        for scan in program.streams
    }
    # What DuckDB does for the simulator, Spark does before a micro-batch: it is not part of it.
    monkeypatch.setattr(sites_module, "lay_out", lambda scan, rows, *more: laid_out[scan.stream, id(rows)])
    for second, feed in enumerate(feeds):
        sites.feed(second * SECOND, feed)
    start = process_time()
    sites.run()
    taken = (process_time() - start) / seconds
    assert sites.answers()
    return sum(price(join, workload, topology, units, batch_interval_s=1.0).cpu.values()), taken


def batch(rate: int, keys: int, second: int) -> Mapping[str, pa.Table]:
    """A second of both streams."""
    random = np.random.default_rng(second)
    return {
        stream: pa.table(
            {
                "k": random.integers(0, keys, rate),
                "id": np.arange(rate),
                "ts": pa.array(second * SECOND + np.sort(random.integers(0, SECOND, rate)), SCHEMA.field("ts").type),
            }
        )
        for stream in HOMES
    }


@pytest.mark.parametrize(
    ("method", "rate", "keys"), [(Method.SP_D, 20, 100), (Method.SP_D, 5_000, 20_000), (Method.SP_S, 200, 1_000)]
)
def test_units_predict_what_a_join_takes(
    units: Units, method: Method, rate: int, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, taken = predicted_and_taken(units, method, rate, keys, 25, monkeypatch)
    print(f"{method} at {rate} rows a second: predicted {expected:.4f}, took {taken:.4f}, {expected / taken:.2f}")
    assert 1 / 3 < expected / taken < 3


def test_units_are_kept_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "some" / "units.json"
    units = replace(Units(), micro_batch_s=0.00123456789, match_s=0.0)
    save_units(path, units)
    assert load_units(path) == units
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert set(kept) == {"units", "machine", "date"}
    assert set(kept["machine"]) == {"processors", "python", "pyarrow"}
    save_units(path, Units())
    assert load_units(path) == Units()
    assert [one.name for one in path.parent.iterdir()] == ["units.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"units": []}',
        '{"units": {"micro_batch_s": 1}}',
        '{"units": {"micro_batch_s": "1", "operator_s": 1, "row_s": 1, "probe_s": 1, "match_s": 1, "pack_s": 1}}',
        '{"units": {"micro_batch_s": -1, "operator_s": 1, "row_s": 1, "probe_s": 1, "match_s": 1, "pack_s": 1}}',
        '{"units": {"micro_batch_s": NaN, "operator_s": 1, "row_s": 1, "probe_s": 1, "match_s": 1, "pack_s": 1}}',
        '{"units": {"micro_batch_s": Infinity, "operator_s": 1, "row_s": 1, "probe_s": 1, "match_s": 1, "pack_s": 1}}',
    ],
)
def test_a_damaged_file_is_told_with_the_cure(tmp_path: Path, text: str) -> None:
    path = tmp_path / "units.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"units\.json is damaged .*run `watersmeet calibrate`") as caught:
        load_units(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_text_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "units.json"
    with pytest.raises(InputError, match=r"cannot be read .*watersmeet calibrate"):
        load_units(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="damaged"):
        load_units(path)


def test_where_units_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_units_path() == tmp_path / "watersmeet" / "units.json"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for empty in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", empty)
        assert default_units_path() == tmp_path / "home" / ".cache" / "watersmeet" / "units.json"
