"""What is expected of derived streams beside what the oracle finds in rows drawn with those rates and values."""

from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.cost.derived import derived_stats
from watersmeet.query.model import EVENT_TIME
from watersmeet.query.oracle import answer_outputs
from watersmeet.query.sql import parse_script
from watersmeet.stats.model import Bin, ColumnStats, Histogram, Number, Stats, StreamStats

SECONDS, SECOND = 400, 1_000_000
RATES = {"a": 10.0, "b": 5.0, "c": 2.0}
KEYS, HEAVY = 50, 0.3  # a heavy hitter has that share of the rows
SIZES = (8.0, 5.0, 3.0, 2.0, 2.0)
COLUMNS = ("k", "m", "ts")
WARM_S = 60.0  # windows fill


@cache
def tables() -> dict[str, pa.Table]:
    random = np.random.default_rng(7)
    found = {}
    for name, rate in RATES.items():
        rows = random.poisson(rate * SECONDS)
        keys = np.where(random.random(rows) < HEAVY, 0, random.integers(1, KEYS, rows))
        times = np.sort(random.integers(0, SECONDS * SECOND, rows))
        stamps = pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC"))
        found[name] = pa.table({"k": keys, "m": random.integers(0, 4, rows), "ts": stamps})
    return found


def known() -> Stats:
    spread = Histogram((Bin(0, 0, 1.0, HEAVY), Bin(1, KEYS - 1, KEYS - 1.0, 1 - HEAVY)))
    columns = {
        "k": ColumnStats(Number(float(KEYS)), spread, SIZES),
        "m": ColumnStats(Number(4.0), None, SIZES),
        "ts": ColumnStats(Number(1e6), None, SIZES),
    }
    streams = {name: StreamStats(Number(rate), columns=columns) for name, rate in RATES.items()}
    return Stats(streams, {"`a.m` = 1": Number(0.25)})


JOIN = "SELECT a.k, b.m FROM a [RANGE 10 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"
VIEWS = {
    "a filter": ("SELECT k, m FROM a WHERE m = 1", 1.1),
    "a join": (JOIN, 1.15),
    "windows that tumble": ("SELECT a.k FROM a [TUMBLE 10 SECONDS], b [TUMBLE 10 SECONDS] WHERE a.k = b.k", 1.15),
    "a union": ("SELECT k, m FROM a UNION ALL SELECT k, 0 FROM c", 1.1),
    "groups": ("SELECT k, count(*) AS n FROM a GROUP BY k, TUMBLE(5 SECONDS)", 1.1),
    "groups of a join": (JOIN.replace("b.m", "count(*) AS n") + " GROUP BY a.k, TUMBLE(5 SECONDS)", 1.3),
    "overlapping groups": ("SELECT k, sum(m) AS s FROM a GROUP BY k, HOP(10 SECONDS, 2 SECONDS)", 1.1),
    "the first groups": (
        "SELECT k, count(*) AS n FROM a GROUP BY k, TUMBLE(5 SECONDS) ORDER BY n DESC LIMIT 3",
        1.1,
    ),
    "groups without keys": ("SELECT count(*) AS n FROM c GROUP BY TUMBLE(10 SECONDS)", 1.1),
    "a view of a view": (
        f"SELECT v.k, c.m FROM ({JOIN}) [RANGE 2 SECONDS] v, c [RANGE 2 SECONDS] WHERE v.k = c.k",
        1.3,
    ),
    "an outer join": (
        "SELECT c.k, b.m FROM c [RANGE 3 SECONDS] LEFT JOIN b [RANGE 3 SECONDS] ON c.k = b.k AND b.m = c.m",
        1.2,
    ),
    "EXISTS": (
        "SELECT c.k FROM c [RANGE 3 SECONDS] WHERE EXISTS (SELECT 1 FROM b [RANGE 3 SECONDS] WHERE c.k = b.k)",
        1.5,
    ),
    "NOT EXISTS": (
        "SELECT c.k FROM c [RANGE 3 SECONDS] WHERE NOT EXISTS (SELECT 1 FROM b [RANGE 3 SECONDS] WHERE c.k = b.k)",
        1.5,
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_the_rate_of_a_view_is_about_what_the_oracle_finds(name: str) -> None:
    sql, factor = VIEWS[name]
    outputs = parse_script("q", f"SELECT * FROM ({sql}) v", dict.fromkeys(RATES, COLUMNS))
    view = outputs[-2].target.name
    columns = {**dict.fromkeys(RATES, COLUMNS), **{one.target.name: one.columns for one in outputs}}
    found = derived_stats(outputs, known(), columns).stream(view)
    rows = answer_outputs(outputs, tables(), dict.fromkeys(RATES, "ts"))[view]
    times = rows.column(EVENT_TIME).cast(pa.int64()).to_numpy()
    rate = float(((times >= WARM_S * SECOND) & (times < SECONDS * SECOND)).sum()) / (SECONDS - WARM_S)
    assert found.rate is not None
    assert rate / factor < found.rate.value < rate * factor, (rate, found.rate.value)
    assert set(found.columns) == set(outputs[-2].columns)


def test_a_key_keeps_how_its_values_spread_through_joins_unions_and_groups() -> None:
    sql = f"SELECT k FROM ({JOIN}) v UNION ALL SELECT k FROM a"
    outputs = parse_script("q", f"SELECT * FROM ({sql}) u", dict.fromkeys(RATES, COLUMNS))
    columns = {**dict.fromkeys(RATES, COLUMNS), **{one.target.name: one.columns for one in outputs}}
    found = derived_stats(outputs, known(), columns).stream(outputs[-2].target.name).columns["k"]
    keys = answer_outputs(outputs, tables(), dict.fromkeys(RATES, "ts"))[outputs[-2].target.name].column("k").to_numpy()
    assert found.histogram is not None
    assert found.histogram.bins[0].share == pytest.approx((keys == 0).mean(), rel=0.05)
    grouped = parse_script(
        "q", "SELECT * FROM (SELECT k, count(*) AS n FROM a GROUP BY k, TUMBLE(5 SECONDS)) v", {"a": COLUMNS}
    )
    spread = derived_stats(grouped, known(), columns).stream(grouped[0].target.name).columns["k"].histogram
    assert spread is not None
    keys = answer_outputs(grouped, tables(), {"a": "ts"})[grouped[0].target.name].column("k").to_numpy()
    assert spread.bins[0].share == pytest.approx((keys == 0).mean(), rel=0.1)


def test_figures_that_are_given_for_a_view_stay_and_unknown_rates_are_not_made_up() -> None:
    outputs = parse_script("q", f"SELECT * FROM ({JOIN}) v", dict.fromkeys(RATES, COLUMNS))
    view = outputs[0].target.name
    columns = {**dict.fromkeys(RATES, COLUMNS), view: outputs[0].columns}
    given = Stats({**known().streams, view: StreamStats(Number(3.0))})
    assert derived_stats(outputs, given, columns).stream(view) == StreamStats(Number(3.0))
    without = Stats({name: one for name, one in known().streams.items() if name != "b"})
    assert derived_stats(outputs, without, columns).stream(view).rate is None
