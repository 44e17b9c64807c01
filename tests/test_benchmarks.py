"""The benchmarks' own parts, small and without Spark: the workload, the oracle, the measuring of a process tree."""

import argparse
import itertools
import json
import re
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    import latency
    import links
    import oracle
    import ours
    import packing
    import planners
    import queries
    import shipping
    import steady
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
    # The reference semantics as written: every row lies in its window as seen at the latest row of the combination.
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


@pytest.mark.few(3)
@pytest.mark.parametrize("method", ["central", *links.METHODS])
def test_every_method_of_the_link_benchmark_answers_as_the_oracle_says(method: str) -> None:
    setting = links.Setting(tuple_bytes=20, rate_a=20, rate_b=30, window_s=3, seconds=8, match=0.5)
    reference = links.expected(setting)
    plan = links.plan_of(setting, method, method)
    sim = links.simulate(setting, plan)
    assert sum(reference.values()) > 20
    assert links.answers_of(sim) == reference
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


@pytest.mark.soak
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


@pytest.mark.soak
def test_planners_are_compared_over_values_of_mixed_popularity(capsys: pytest.CaptureFixture[str]) -> None:
    mixed = planners.Mixed(streams=3, values=100, rates=(100.0, 1_000.0), windows_s=(0.1, 0.3))
    assert planners.Mixed(seed=2).drawn[0][0] != planners.Mixed(seed=3).drawn[0][0]
    planners.mixed_table(mixed, 2, seconds=6, small_streams=3)
    lines = cells_of(capsys.readouterr().out)
    head, small = lines[0], next(number for number, line in enumerate(lines) if line[0] == "planner")
    assert head[-2:] == ["auto", "sub-plans of auto"] and [line[0] for line in lines[1:small]][:2] == ["1", "2"]
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


def test_steady_state_leaves_out_the_first_sixth_of_the_micro_batches() -> None:
    assert [steady.warm_up(batches) for batches in (60, 12, 3)] == [10, 2, 1]
    times = {batch: 100.0 + 5.0 * min(batch, 10) + 0.5 * max(0, batch - 10) for batch in range(1, 61)}
    assert steady.rows_per_second(times, batch_rows=300, skip=10) == pytest.approx(600)
    assert steady.rows_per_second({1: 1.0}, batch_rows=300, skip=1) is None


def test_answers_are_visible_once_complete_or_named_in_the_log_of_spark(tmp_path: Path) -> None:
    ours_out, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours_out.mkdir()
    for name in ("part-q-1f-00000001-00000.snappy.parquet", "part-q-1f-00000002-00000-3.snappy.parquet", ".staged"):
        (ours_out / name).touch()
    assert list(steady.answer_times(ours_out)) == [1, 2]
    assert all(file == witness for file, witness in steady.visible_files(ours_out).items())
    log = theirs / "_spark_metadata"
    log.mkdir(parents=True)
    entries = [json.dumps({"path": f"file://{theirs}/part-{number}.parquet"}) for number in range(3)]
    (theirs / "part-2.parquet").touch()  # written, but not yet in the log
    (log / "0").write_text("\n".join(["v1", entries[0]]))
    (log / "1.compact").write_text("\n".join(["v1", *entries[:2]]))
    (log / ".2.tmp").touch()
    assert list(steady.answer_times(theirs)) == [0, 1]
    assert steady.visible_files(theirs) == {
        theirs / "part-0.parquet": log / "0",
        theirs / "part-1.parquet": log / "1.compact",
    }


def test_the_time_of_a_micro_batch_adds_up() -> None:
    spark = {"latestOffset": 10, "getBatch": 20, "addBatch": 200, "triggerExecution": 240}
    progress = [
        {"timestamp": f"2026-01-01T00:00:0{batch}.{batch:03}Z", "durationMs": spark, "ours_s": 0.15}
        for batch in range(6)
    ]
    phases = {"ingest": 0.1, "wait for the join before": 0.03, "commit": 0.05, "take": 0.01, "join": 0.4}
    events = [
        {"event": "micro_batch_completed", "batch": batch + 1, "at": float(batch), "phases": phases}
        for batch in range(6)
    ]
    answered_at = {batch + 1: batch + 0.25 for batch in range(6)}
    lines = steady.breakdown(progress, [{"event": "run_started"}, *events], answered_at, skip=1)
    before, after = list(lines.items())[: list(lines).index(steady.INTERVAL)], lines
    assert sum(seconds for _, seconds in before) == pytest.approx(after[steady.INTERVAL]) == pytest.approx(1.001)
    assert after["Spark: addBatch beyond our code"] == pytest.approx(0.05)
    assert after["commit of what was ingested, and waiting for sinks"] == pytest.approx(0.02)
    assert after["join thread: commit"] == pytest.approx(0.03)
    assert after[steady.JOIN_THREAD] == pytest.approx(0.44)
    assert after[steady.DELIVERY] == pytest.approx(0.25)


def test_another_checkout_is_run_by_its_own_code(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in SMALL.names]
    command, output, env = ours.prepare_reference(BENCHMARKS.parent, SMALL, paths, tmp_path / "run", "2g")
    assert (command, output) == ours.prepare(SMALL, paths, tmp_path / "run", "2g")
    assert env["PYTHONPATH"].split(":")[0] == str(BENCHMARKS.parent / "src")
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "ours.py").write_text("raise ImportError('gone')")
    with pytest.raises(SystemExit, match="does not say how to run it"):
        ours.prepare_reference(tmp_path, SMALL, paths, tmp_path / "run")


QUICK = latency.Arrivals(rate=600, tick_seconds=0.05, warm_up_seconds=0.2, seconds=0.4, window_seconds=0.5)


def test_rows_arrive_at_a_steady_pace_and_delays_are_from_the_last_row(tmp_path: Path) -> None:
    for name in QUICK.names:
        (tmp_path / name).mkdir()
    for stream, name in enumerate(QUICK.names):
        latency.publish(QUICK.priming_table(stream, 0), tmp_path / name, "000000.parquet")()
    output = tmp_path / "answers"
    output.mkdir()
    watcher = latency._role("watch", str(output), str(tmp_path / "seen.jsonl"), str(tmp_path / "stop"))
    latency.feed(QUICK, tmp_path)
    rows = [row for name in QUICK.names for row in rows_of(tmp_path / name)]
    assert len(rows) == 3 * (latency.PRIMING_ROWS + round(QUICK.ticks * 0.05 * 200))
    assert len({row["id"] for row in rows}) == len(rows)
    lines = [json.loads(line) for line in (tmp_path / "arrivals.jsonl").read_text().splitlines()]
    assert len(lines) == 3 * QUICK.ticks
    # An answer of the last tick of c, an answer of priming rows, and nothing else.
    last = latency.PRIMING_ROWS + QUICK.rows_before(QUICK.ticks - 1)
    ids = [[0, 0], [w.ID_STRIDE + 1, w.ID_STRIDE], [2 * w.ID_STRIDE + last, 2 * w.ID_STRIDE]]
    table = pa.table(dict(zip(("a_id", "b_id", "c_id"), ids, strict=True)))
    latency.publish(table, output, "part-q-1f-00000001-00000.snappy.parquet")()
    published_ns = time.monotonic_ns()
    while not (tmp_path / "seen.jsonl").exists() or not (tmp_path / "seen.jsonl").read_text():
        time.sleep(0.01)
    (tmp_path / "stop").touch()
    assert watcher.wait(300) == 0
    delays, micro_batches, late = latency.delays_of(QUICK, tmp_path, output)
    arrived_ns = max(line["ns"] for line in lines if line["stream"] == 2)
    assert micro_batches == 1 and late >= 0
    assert len(delays) == 1 and delays[0] >= (published_ns - arrived_ns) / 1e9 - 0.1


def test_the_queries_of_a_seed_are_always_the_same() -> None:
    for kind in queries.KINDS:
        drawn = queries.draw(kind, 10, 7)
        assert queries.draw(kind, 3, 7) == drawn[:3] != queries.draw(kind, 3, 8)
        assert len({query.sql for query in drawn}) == 10
    shapes = {re.split(r" AND [abc]\.v", query.sql)[0] for query in queries.draw("same graph", 10, 7)}
    assert len(shapes) == 1


def test_queries_together_ship_no_more_than_separately(capsys: pytest.CaptureFixture[str]) -> None:
    streams = queries.Streams(rows=300, rate=20, batches=3)
    queries.links_table(streams, [1, 3], 3)
    _, *lines = cells_of(capsys.readouterr().out)
    assert [line[:3] for line in lines] == [
        [plan, kind, count] for plan in queries.PLANS for kind in queries.KINDS for count in ("1", "3")
    ]
    for line in lines:
        assert float(line[5]) == 1 if line[2] == "1" else float(line[5]) <= 1


def test_a_site_that_ships_is_compared_within_a_round() -> None:
    found = {name: [100.0, 200.0, 50.0] for name in shipping.CASES}
    found[shipping.SHIPS_ALL] = [90.0, 200.0, 60.0]
    _, lines = shipping.rows_of(found)
    assert lines[1] == [shipping.SHIPS_ALL, "90", "1.00", "0.90 to 1.20"]
