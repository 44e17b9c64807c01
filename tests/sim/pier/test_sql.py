"""SQL as op-graphs on simulated peers: every join method gives the oracle's answers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import duckdb
import pyarrow as pa
import pytest
from pier_scenarios import is_exact, scenario

from watersmeet.errors import InputError
from watersmeet.program.pier.expressions import compiled, evaluated
from watersmeet.program.pier.sql.expressions import ufl_expression
from watersmeet.program.pier.sql.settings import JoinMethod, Transport
from watersmeet.program.pier.tuples import Schema
from watersmeet.program.pier.ufl.format import format_ufl
from watersmeet.query.bags import bag_of
from watersmeet.query.dialect import to_duckdb
from watersmeet.query.model import Column, Expression
from watersmeet.sim.scenario.load import load_scenario
from watersmeet.sim.scenario.pier.simulate import simulate_pier, ufl_of
from watersmeet.sim.scenario.workload import UserLoad

THREE = (
    "SELECT h.room, h.degrees, d.badge, b.team, h.ts FROM heat [RANGE 2 SECONDS] AS h, "
    "doors [TUMBLE 2 SECONDS] AS d, badges [RANGE 3 SECONDS] AS b WHERE h.room = d.room AND d.badge = b.badge "
    "AND d.state = 'opened' AND h.degrees > 18 AND h.degrees + d.room < 45"
)


@pytest.mark.parametrize(
    ("method", "transport", "mode"),
    [
        (JoinMethod.SYMMETRIC_HASH, Transport.DHT, "continuous"),
        (JoinMethod.SYMMETRIC_HASH, Transport.IP, "continuous"),
        (JoinMethod.HIERARCHICAL, Transport.DHT, "continuous"),
        (JoinMethod.SEMIJOIN, Transport.DHT, "continuous"),
        (JoinMethod.FETCH_MATCHES, Transport.DHT, "snapshot"),
        (JoinMethod.BLOOM, Transport.DHT, "snapshot"),
        (JoinMethod.BLOOM, Transport.IP, "snapshot"),
    ],
)
def test_every_method_gives_the_answers_of_the_oracle(
    tmp_path: Path, method: JoinMethod, transport: Transport, mode: str
) -> None:
    given = scenario(tmp_path, THREE, f", join: {method.value}, transport: {transport.value}, mode: {mode}")
    outcome = simulate_pier(given)
    assert is_exact(outcome)
    assert outcome.summary.malformed == 0
    assert outcome.summary.queries["q"].repeated == 0  # nobody had to drop an answer that came twice


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DISTINCT d.room, b.team FROM doors [UNBOUNDED] AS d, badges [UNBOUNDED] AS b WHERE d.badge = b.badge",
        "SELECT a.degrees, b.degrees AS other FROM heat [RANGE 1 SECOND] AS a, heat [RANGE 1 SECOND] AS b "
        "WHERE a.room = b.room AND a.degrees < b.degrees",
        "SELECT h.room, d.state FROM heat [RANGE 500 MILLISECONDS] AS h, doors [RANGE 1 SECOND] AS d "
        "WHERE h.room + 1 = d.room AND h.room = d.badge",
        "SELECT upper(d.state) AS state, h.room FROM doors [UNBOUNDED] AS d, heat [RANGE 1 SECOND] AS h "
        "WHERE d.room = h.room AND (d.badge IN (1, 2) OR d.state LIKE 'op%') AND h.ts > d.ts + INTERVAL 2 SECONDS",
    ],
)
def test_distinct_self_joins_composite_keys_and_mixed_windows(tmp_path: Path, sql: str) -> None:
    assert is_exact(simulate_pier(scenario(tmp_path, sql, "", seed=2)))


def test_congestion_delays_answers_and_loses_none(tmp_path: Path) -> None:
    slow = simulate_pier(scenario(tmp_path, THREE, "", ", congestion: fifo, access: 60 kbps"))
    fast = simulate_pier(scenario(tmp_path, THREE, ""))
    assert is_exact(slow)
    slow_delays, fast_delays = slow.summary.queries["q"].delays, fast.summary.queries["q"].delays
    assert slow_delays is not None
    assert fast_delays is not None
    assert slow_delays.median_us > fast_delays.median_us
    assert bag_of(slow.answers["q"]) == bag_of(fast.answers["q"])


def test_measured_timeouts_send_again_what_waits_in_a_queue_and_double_no_answer(tmp_path: Path) -> None:
    """Sections 4.2.1 and 4.2.3: the DHT believes messages to a congested node lost and repeats them."""
    sql = "SELECT h.room, b.team FROM heat [RANGE 2 SECONDS] AS h, badges [RANGE 2 SECONDS] AS b WHERE h.room = b.badge"
    slow = ", congestion: fifo, access: 40 kbps"
    ideal = simulate_pier(scenario(tmp_path, sql, "", slow, rows=25))
    measured = simulate_pier(scenario(tmp_path, sql, "", f"{slow}, timeouts: measured", rows=25))
    assert is_exact(ideal)
    assert is_exact(measured)
    assert ideal.summary.retransmitted == 0
    assert measured.summary.retransmitted > 10
    assert measured.summary.bytes > ideal.summary.bytes
    assert load_scenario(tmp_path / "scenario.yaml").parameters["network"]["timeouts"] == "measured"
    rjoin = (tmp_path / "scenario.yaml").read_text().replace("system: pier", "system: rjoin").replace("pier: {", "#")
    (tmp_path / "scenario.yaml").write_text(rjoin)
    with pytest.raises(InputError, match="timeouts that are measured are simulated for PIER only"):
        load_scenario(tmp_path / "scenario.yaml")


def test_a_query_with_a_start_sees_nothing_older(tmp_path: Path) -> None:
    given = scenario(tmp_path, THREE, "")
    load = given.load
    assert isinstance(load, UserLoad)
    (asked,) = load.queries
    all_of_them = simulate_pier(given)
    started = replace(asked, query=replace(asked.query, start="2025-01-01 00:00:03"))
    later = simulate_pier(replace(given, load=replace(load, queries=(started,))))
    assert is_exact(later)
    assert 0 < later.summary.answers < all_of_them.summary.answers


def test_distinct_answers_under_churn_are_never_wrong_or_doubled(tmp_path: Path) -> None:
    sql = "SELECT DISTINCT d.room, b.team FROM doors [UNBOUNDED] AS d, badges [UNBOUNDED] AS b WHERE d.badge = b.badge"
    churn = ", churn: {mean: 1 minute, stable_nodes: 6}"
    outcome = simulate_pier(scenario(tmp_path, sql, ", replicas: 2", churn, seed=4))
    (query,) = outcome.summary.queries.values()
    assert query.checked is not None
    assert outcome.summary.failures > 5
    assert query.checked.surplus == 0
    assert query.checked.right > 0.5 * query.checked.expected


DOORS, HEAT = "doors [UNBOUNDED] AS d", "heat [UNBOUNDED] AS h"


def test_the_ufl_of_a_query_asks_the_same(tmp_path: Path) -> None:
    given = scenario(tmp_path, THREE, "")
    by_sql = simulate_pier(given)
    text = format_ufl(ufl_of(given)["q"])
    (tmp_path / "q.ufl").write_text(text)
    file = tmp_path / "scenario.yaml"
    lines = file.read_text().split("    sql: >")[0]
    file.write_text(f"{lines}    ufl: q.ufl\n")
    by_ufl = simulate_pier(load_scenario(file))
    names = by_sql.answers["q"].column_names
    assert bag_of(by_ufl.answers["q"].select(names)) == bag_of(by_sql.answers["q"])
    assert by_ufl.summary.queries["q"].checked is None


@pytest.mark.parametrize(
    ("sql", "pier", "message"),
    [
        (
            "SELECT d.room FROM doors [ROWS 5] AS d, heat [UNBOUNDED] AS h WHERE d.room = h.room",
            "",
            "d has a ROWS window, which PIER cannot count: no node sees the whole stream; use RANGE or TUMBLE, "
            "or system rjoin",
        ),
        (
            f"SELECT d.room FROM {DOORS}, {HEAT} WHERE d.room = h.room AND d.state > h.degrees",
            "",
            "Cannot compare values of type VARCHAR and type DOUBLE",
        ),
        (
            "SELECT md5(d.state) AS m FROM doors [UNBOUNDED] AS d, heat [UNBOUNDED] AS h WHERE d.room = h.room",
            "",
            "nothing for MD5",
        ),
        (THREE, ", join: fetch_matches", "add mode: snapshot"),
        (THREE, ", join: hash", "unknown join 'hash'"),
        (THREE, ", replicas: 99", "replicas must be from 0 to 8"),
        (THREE, ", bloom_bits: 0", "bloom_bits must be from 8 to 16,777,216, not 0"),
        (THREE, ", bloom_hashes: 33", "bloom_hashes must be from 1 to 32, not 33"),
        (THREE, ", bloom_wait: 0 s", "bloom_wait must be positive, not 0 seconds"),
        (THREE, ", slack: 0 s", "slack must be positive, not 0 seconds"),
        (THREE, ", renew: 10 ms", "renew must be a second or longer, not 10 milliseconds"),
    ],
)
def test_what_cannot_run_is_refused_in_one_sentence(tmp_path: Path, sql: str, pier: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        simulate_pier(scenario(tmp_path, sql, pier))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


EXPRESSIONS = [
    "`t.a` + `t.b`",
    "`t.a` - `t.b` * 2",
    "`t.a` / `t.b`",
    "`t.a` % `t.b`",
    "-`t.a`",
    "abs(`t.a`)",
    "`t.a` > `t.x`",
    "`t.x` >= 1.5",
    "`t.x` <> `t.x`",
    "`t.a` = 1 AND `t.x` < 2 OR `t.s` IS NULL",
    "NOT (`t.a` < 2)",
    "`t.a` BETWEEN -1 AND `t.b`",
    "`t.s` IN ('ab', 'c')",
    "`t.s` LIKE 'a_%'",
    "upper(`t.s`)",
    "length(`t.s`)",
    "substring(`t.s`, 2, 1)",
    "substring(`t.s`, -2, 2)",
    "trim(`t.s`)",
    "coalesce(`t.a`, `t.b`, 7)",
    "greatest(`t.a`, `t.b`, 0)",
    "least(`t.x`, 0.0D)",
    "CASE WHEN `t.a` > 1 THEN 'big' WHEN `t.a` IS NULL THEN 'none' ELSE `t.s` END",
    "CASE `t.a` WHEN 1 THEN 'one' END",
    "`t.a` <=> `t.b`",
    "floor(`t.x`)",
    "ceil(`t.x`)",
    "cast(`t.x` AS double)",
]


@pytest.mark.parametrize("sql", EXPRESSIONS)
def test_expressions_mean_what_duckdb_says(sql: str) -> None:
    chance = Random(7)
    values: dict[str, Sequence[object]] = {
        "a": [None, -3, -1, 0, 1, 2, 5],
        "b": [None, -2, 0, 1, 3],
        "x": [None, -1.5, 0.0, 1.5, 2.25, float("nan"), float("inf")],
        "s": [None, "", "a", "ab", " ab ", "abc", "c"],
    }
    rows = [tuple(chance.choice(given) for given in values.values()) for _ in range(60)]
    if "floor" in sql or "ceil" in sql:  # of what is no number they are none here, and fail there
        rows = [row for row in rows if row[2] not in (float("inf"),) and row[2] == row[2]]
    if "%" in sql and "LIKE" not in sql:  # a remainder by zero fails in both
        rows = [row for row in rows if row[1] != 0]
    columns = tuple(Column("t", name) for name in values if f"`t.{name}`" in sql)
    expression = Expression(sql, columns)
    kinds = ("integer", "integer", "double", "string")
    schema = Schema.of("t", {f"t.{name}": kind for name, kind in zip(values, kinds, strict=True)})
    found, failed = evaluated(compiled(ufl_expression(expression), schema)[0], rows)
    assert failed == []
    types = (pa.int64(), pa.int64(), pa.float64(), pa.string())
    table = pa.table(
        {f"t.{name}": pa.array([row[place] for row in rows], types[place]) for place, name in enumerate(values)}
    )
    connection = duckdb.connect()
    connection.register("given", table)
    wanted = [row[0] for row in connection.sql(f"SELECT {to_duckdb(expression)} FROM given").fetchall()]
    assert list(map(_plain, found)) == list(map(_plain, wanted))


def _plain(value: object) -> object:
    return "nan" if value != value else value
