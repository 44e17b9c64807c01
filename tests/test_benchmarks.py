"""The benchmarks' own parts, small and without Spark: the workload, the oracle, the measuring of a process tree."""

import argparse
import itertools
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    import links
    import oracle
    import ours
    import packing
    import planners
    import workload as w
    from measure import measure
finally:
    sys.path.remove(str(BENCHMARKS))

SMALL = w.Workload(rows=600, rate=100, keys=40, batches=4, window_us=1_000_000)


def rows_of(path: Path) -> list[dict]:
    return [row for file in sorted(path.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


def test_scale_keeps_rate_keys_and_batch_size() -> None:
    parser = argparse.ArgumentParser()
    w.add_arguments(parser)
    assert w.from_arguments(parser.parse_args([])) == w.Workload()
    small = w.from_arguments(parser.parse_args(["--scale", "0.05", "--streams", "4"]))
    assert small == replace(w.Workload(), rows=150_000, batches=3, streams=4)
    assert small.batch_rows == w.Workload().batch_rows == 50_000
    tiny = w.from_arguments(parser.parse_args(["--scale", "0.002", "--batches", "3"]))
    assert (tiny.rows, tiny.batches, tiny.duration_us) == (6_000, 3, 1_200_000)


def test_workload_is_deterministic(tmp_path: Path) -> None:
    first, second = (w.generate(SMALL, tmp_path / name) for name in ("first", "second"))
    files = [sorted(path.iterdir()) for path in first]
    assert [len(stream) for stream in files] == [SMALL.batches] * SMALL.streams
    for stream, twin in zip(files, second, strict=True):
        assert [file.read_bytes() for file in stream] == [file.read_bytes() for file in sorted(twin.iterdir())]
        modified = [file.stat().st_mtime_ns for file in stream]
        assert all(later - earlier >= 1_000_000_000 for earlier, later in itertools.pairwise(modified))
    other_seed = w.generate(replace(SMALL, seed=8), tmp_path / "first")
    assert rows_of(other_seed[0]) != rows_of(first[0])


def test_rows_do_not_depend_on_batches_or_streams(tmp_path: Path) -> None:
    three = w.generate(SMALL, tmp_path)
    two = w.generate(replace(SMALL, streams=2, batches=7), tmp_path)
    assert [rows_of(path) for path in two] == [rows_of(path) for path in three[:2]]
    rows = rows_of(three[0])
    assert len(rows) == SMALL.rows
    assert pq.read_schema(next(three[0].iterdir())).equals(w.ARROW_SCHEMA)
    assert all(earlier["ts"] < later["ts"] for earlier, later in itertools.pairwise(rows))
    assert {row["k"] for row in rows} <= set(range(SMALL.keys))


def test_zipf_keys_are_skewed_where_asked(tmp_path: Path) -> None:
    paths = w.generate(replace(SMALL, skew="zipf-first"), tmp_path)
    shares = [Counter(row["k"] for row in rows_of(path))[0] / SMALL.rows for path in paths]
    assert shares[0] > 0.2 > 0.1 > max(shares[1:])


@pytest.mark.parametrize(
    "wrong", [{"streams": 7}, {"rate": 3_000_001}, {"batches": 0}, {"batches": 601}, {"keys": 0}, {"skew": "zipf"}]
)
def test_impossible_workloads_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(SMALL, **wrong)


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("shape", [{}, {"streams": 2}, {"streams": 4, "rows": 200}, {"skew": "zipf-all", "rows": 100}])
def test_oracle_equals_brute_force(tmp_path: Path, shape: dict, slots: bool) -> None:
    workload = replace(SMALL, **shape)
    paths = w.generate(workload, tmp_path)
    by_key = []
    for path in paths:
        rows: dict[int, list[tuple[int, int]]] = {}
        for row in rows_of(path):
            rows.setdefault(row["k"], []).append((round(row["ts"].timestamp() * 1_000_000), row["id"]))
        by_key.append(rows)
    # The law as it is written: every row lies in its window as seen at the latest row of the combination.
    brute = Counter(
        tuple(id for _, id in combination)
        for key in by_key[0]
        for combination in itertools.product(*(rows.get(key, []) for rows in by_key))
        if max(us for us, _ in combination) - min(us for us, _ in combination) <= workload.window_us
    )
    with oracle.duckdb.connect() as db:
        answers = Counter(db.execute(oracle.oracle_sql(paths, workload.window_us, slots)).fetchall())
    assert answers == brute
    assert answers.total() > 0


def test_difference_is_of_bags(tmp_path: Path) -> None:
    def written(name: str, rows: list[tuple[int, int]]) -> Path:
        file = tmp_path / name / "part-0.parquet"
        file.parent.mkdir()
        pq.write_table(pa.table({"a_id": [a for a, _ in rows], "b_id": [b for _, b in rows]}), file)
        return file

    expected = written("expected", [(1, 1), (1, 1), (2, 2)])
    assert oracle.difference(expected, written("same", [(2, 2), (1, 1), (1, 1)]).parent) == (0, 0)
    assert oracle.difference(expected, written("once", [(1, 1), (2, 2)]).parent) == (1, 0)
    assert oracle.difference(expected, written("more", [(1, 1), (1, 1), (2, 2), (2, 2), (3, 3)]).parent) == (0, 2)
    (tmp_path / "none").mkdir()
    assert oracle.difference(expected, tmp_path / "none") == (3, 0)


def test_topology_names_every_stream(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in SMALL.names]
    topology = ours.topology(SMALL, paths, tmp_path / "out")
    assert list(topology["streams"]) == ["a", "b", "c"]
    sql = topology["queries"]["q"]["sql"]
    assert sql.startswith("SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND]")
    assert sql.endswith("WHERE a.k = b.k AND b.k = c.k")


BUSY_CHILD = (
    "import time; x = bytearray(60_000_000); end = time.process_time() + 0.6\nwhile time.process_time() < end: pass"
)


def test_measure_sees_children_and_memory() -> None:
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY_CHILD!r}]); print('done')"
    taken = measure([sys.executable, "-c", parent], interval_seconds=0.05)
    assert (taken.returncode, taken.stdout, taken.timed_out) == (0, "done\n", False)
    assert taken.wall_seconds >= 0.6
    assert 0.6 <= taken.cpu_seconds < 5
    assert taken.peak_bytes > 60_000_000


def test_measure_tells_failure_and_timeout() -> None:
    failed = measure([sys.executable, "-c", "raise SystemExit('no such stream')"])
    assert (failed.returncode, failed.last_lines()) == (1, "no such stream")
    endless = measure([sys.executable, "-c", "import time; time.sleep(60)"], timeout_seconds=0.3, interval_seconds=0.05)
    assert endless.timed_out
    assert endless.wall_seconds < 10


@pytest.mark.parametrize("method", ["central", *links.METHODS])
def test_every_method_of_the_link_benchmark_answers_as_the_law_says(method: str) -> None:
    setting = links.Setting(tuple_bytes=20, rate_a=20, rate_b=30, window_s=3, seconds=8, match=0.5)
    law = links.expected(setting)
    plan = links.plan_of(setting, method, method)
    sim = links.simulate(setting, plan)
    assert sum(law.values()) > 20
    assert links.answers_of(sim, plan) == law
    assert sim.bytes_shipped > 0


def test_keys_first_ships_a_tenth_of_central_where_few_keys_match() -> None:
    setting = links.Setting(seconds=12)
    shipped = {
        heads: links.simulate(setting, links.plan_of(setting, *heads)).bytes_shipped
        for heads in (("central", "central"), ("SM-S1 bloom", "SM-D1 bloom"))
    }
    central, best = shipped.values()
    assert best <= central / 10


def cells_of(text: str) -> list[list[str]]:
    """The lines of Markdown tables, without those below their heads."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [line for line in lines if not line[0].startswith("---")]


def test_planning_time_is_measured_for_every_planner_and_join_graph(capsys: pytest.CaptureFixture[str]) -> None:
    planners.time_table(1, 2, greedy_at=(3, 8), optimal_at=(4,), auto_at=(3,), most_in_clique=3, values=20)
    _, *lines = cells_of(capsys.readouterr().out)
    assert Counter(line[0] for line in lines) == {"greedy": 7, "exhaustive": 4, "optimal": 1, "auto": 1}
    for line in lines:
        assert line[3] == "2" and 0 <= float(line[4]) <= float(line[5])


def test_greedy_is_compared_with_the_best_by_their_own_prices(capsys: pytest.CaptureFixture[str]) -> None:
    planners.ratio_table(1, 1)
    _, *lines = cells_of(capsys.readouterr().out)
    assert [line[0] for line in lines] == list(planners.TOPOLOGIES)
    assert all(1 <= float(line[3]) <= float(line[6]) for line in lines)


def test_planners_are_compared_over_values_of_mixed_popularity(capsys: pytest.CaptureFixture[str]) -> None:
    mixed = planners.Mixed(streams=3, values=100, rates=(100.0, 1_000.0), windows_s=(0.1, 0.3))
    assert planners.Mixed(seed=2).drawn[0][0] != planners.Mixed(seed=3).drawn[0][0]
    planners.mixed_table(mixed, 2, seconds=6, small_streams=3)
    lines = cells_of(capsys.readouterr().out)
    head, small = lines[0], next(number for number, line in enumerate(lines) if line[0] == "planner")
    assert head[-2:] == ["auto", "ways of auto"] and [line[0] for line in lines[1:small]][:2] == ["1", "2"]
    for line in lines[1 : small - 1]:
        assert float(line[head.index("auto")]) == min(float(cell) for cell in line[1:-1])
    shipped = {
        line[0]: (float(line[1].replace(",", "")), float(line[2].replace(",", ""))) for line in lines[small + 1 :]
    }
    assert list(shipped) == head[1:-1]
    assert shipped["central"][0] == pytest.approx(shipped["central"][1], rel=0.1)
    assert all(found > 0 for _, found in shipped.values())


def test_what_plans_really_ship_is_beside_what_was_foreseen(capsys: pytest.CaptureFixture[str]) -> None:
    mixed = planners.Mixed(streams=3, values=100, rates=(100.0, 1_000.0), windows_s=(0.1, 0.3))
    planners.shipped_table(mixed, 1, seconds=6)
    head, best, auto, mean = cells_of(capsys.readouterr().out)
    shipped = [float(line[head.index("kB/s shipped")].replace(",", "")) for line in (best, auto)]
    assert auto[2] == "auto" and best[2] != "auto" and int(auto[1].replace(",", "")) > 0
    assert float(mean[-1]) == float(auto[-1]) == pytest.approx(shipped[0] / shipped[1], rel=0.02)


def test_no_plan_ships_less_than_the_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    mixed = planners.Mixed(streams=3, values=100, rates=(100.0, 1_000.0), windows_s=(0.1, 0.3))
    planners.bound_table(mixed, 2, seconds=20)
    lines = cells_of(capsys.readouterr().out)
    contents = next(number for number, line in enumerate(lines) if line[1] == "planner")
    for _, best, auto, alone, rows, *ratios in lines[1 : contents - 1]:
        best, auto, alone, rows = (float(one.replace(",", "")) for one in (best, auto, alone, rows))
        assert 0 < rows < auto <= best and 0 < alone < best
        assert [float(one) for one in ratios] == pytest.approx([best / auto, best / alone, best / rows], rel=0.05)
    for _, _, sub_plans, *sizes in lines[contents + 1 :]:
        assert int(sub_plans) >= 1 and all(float(one.replace(",", "")) >= 0 for one in sizes)


def test_packing_is_compared_with_arrow(capsys: pytest.CaptureFixture[str]) -> None:
    packing.table(1, 100)
    _, *lines = cells_of(capsys.readouterr().out)
    assert Counter(line[0] for line in lines) == dict.fromkeys(("rows", "combinations", "keys", "texts"), 3)
    assert all(float(line[4]) < 1 for line in lines), "ours takes fewer bytes"
