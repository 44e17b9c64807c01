"""`tables:` of a topology file, tables in SQL, and what planners make of them."""

from pathlib import Path

import pytest

from watersmeet.errors import InputError, SqlError, TopologyError
from watersmeet.plan.explain import explain_text
from watersmeet.plan.nodes import join_plan_of
from watersmeet.planners.choose import choose
from watersmeet.program.compile import compile_sites
from watersmeet.query.sql import canonical_sql, parse_query
from watersmeet.query.windows import AsOf, Range, Unbounded
from watersmeet.topology.load import load_topology
from watersmeet.topology.model import Topology

FILE = """\
sites: [ams, nyc]
default_link: {latency: 10 ms}
streams:
  orders:
    site: ams
    schema: "customer long, amount double, ts timestamp"
    event_time: ts
    source: {format: parquet, path: orders}
    stats: {rate: RATE, row_bytes: 40, columns: {customer: {distinct: 1000}}}
tables:
  customers:
    site: nyc
    schema: "id long, name string"
    source: {format: csv, path: customers.csv, options: {header: true}}
    stats: {rows: ROWS, row_bytes: 30, columns: {id: {distinct: ROWS}}}
queries:
  q:
    site: ams
    sql: SELECT o.amount, c.name FROM orders o JOIN customers c ON o.customer = c.id
"""
COLUMNS = {"s": ["k", "v"], "r": ["k", "w"], "t": ["k", "name"]}
TABLES = {"t": AsOf()}


def loaded(tmp_path: Path, text: str = FILE, *, rate: float = 10, rows: int = 1_000) -> Topology:
    path = tmp_path / "topology.yaml"
    path.write_text(text.replace("RATE", str(rate)).replace("ROWS", str(rows)), encoding="utf-8")
    return load_topology(path)


def test_a_table_of_a_file(tmp_path: Path) -> None:
    topology = loaded(
        tmp_path,
        FILE.replace("csv, path", "csv, path").replace("    stats: {rows", "    refresh: 10 minutes\n    stats: {rows"),
    )
    (table,) = topology.tables
    assert topology.stream("CUSTOMERS") is table and table.columns == ("id", "name")
    assert table.refresh_us == 600_000_000 and table.window == AsOf(is_refreshed=True)
    assert table.source is not None and table.source.path == str(tmp_path.resolve() / "customers.csv")
    assert topology.homes == {"orders": "ams", "customers": "nyc"} and "customers" not in topology.event_times
    assert topology.stats.stream("customers").rows is not None
    bare = loaded(
        tmp_path,
        FILE.replace('    schema: "id long, name string"\n', "").replace(", columns: {id: {distinct: ROWS}}", ""),
    )
    assert not bare.has_schemas, "Spark infers it"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  customers:\n", "  Orders:\n", "'Orders' is both a stream and a table (case does not count); rename one"),
        ("    source: {format: csv", "    event_time: ts\n    source: {format: csv", "unknown key 'event_time'"),
        (
            "    source: {format: csv",
            "    refresh: 0 seconds\n    source: {format: csv",
            "'0 seconds' must be positive",
        ),
        ("    source: {format: csv", "    refresh: soon\n    source: {format: csv", "refresh: duration 'soon' is not"),
        ("stats: {rows: ROWS", "stats: {rate: ROWS", "unknown key 'rate'"),
        ("site: nyc\n", "site: fra\n", "table 'customers': unknown site 'fra'"),
        ("id long, name", "id long, ID", "table 'customers': duplicate column names in its schema"),
    ],
)
def test_one_sentence_for_every_slip(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(TopologyError) as caught:
        loaded(tmp_path, FILE.replace(old, new, 1))
    assert said in str(caught.value) and "line " in str(caught.value)


def test_a_table_has_no_window_and_a_stream_beside_tables_needs_none() -> None:
    query = parse_query("SELECT s.v, t.name FROM s, t WHERE s.k = t.k", COLUMNS, tables=TABLES)
    assert [source.window for source in query.sources] == [Unbounded(), AsOf()]
    assert "`s` [UNBOUNDED] AS `s`,\n  `t` AS `t`\n" in canonical_sql(query)
    both = "SELECT s.v FROM s [RANGE 1 MINUTE], r [RANGE 1 MINUTE], T x, t WHERE s.k = r.k AND x.k = r.k AND t.k = s.k"
    assert [source.window for source in parse_query(both, COLUMNS, tables=TABLES).sources][1:3] == [
        Range(60_000_000),
        AsOf(),
    ]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT s.v FROM s [ROWS 1], t [RANGE 1 MINUTE] x WHERE s.k = x.k",
         "'t' is a table, which has no window; leave out [RANGE 1 MINUTE]: write t x"),
        ("SELECT s.v FROM s, r [ROWS 1], t WHERE s.k = r.k AND s.k = t.k", "stream 's' has no window; add one"),
        ("SELECT t.k FROM t, t x WHERE t.k = x.k", "FROM has no stream, so nothing would ever be answered; add"),
    ],
)  # fmt: skip
def test_windows_of_tables_and_streams_are_refused_with_the_cure(sql: str, said: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse_query(sql, COLUMNS, tables=TABLES)
    assert said in str(caught.value)


def shipped(topology: Topology) -> dict[str, set[str]]:
    """What goes from each site to the other, by the plan that is chosen."""
    query = topology.query()
    parsed = parse_query(query.sql, topology.columns, tables=topology.table_windows)
    chosen = choose(topology, query, parsed)
    text = explain_text(chosen.plan)
    assert "table c: customers" in text and "new rows of o: " in text and "new rows of c" not in text
    programs = compile_sites(join_plan_of(chosen.plan))
    return {site: {ship.flow.name for ship in one.ships} for site, one in programs.items()}


def test_a_small_table_comes_to_the_stream_and_keys_are_looked_up_in_a_large_one(tmp_path: Path) -> None:
    assert shipped(loaded(tmp_path, rate=1_000, rows=1_000)) == {"ams": set(), "nyc": {"c"}}
    large = shipped(loaded(tmp_path, rate=0.01, rows=50_000_000))
    assert large == {"ams": {"asks(o,c)"}, "nyc": {"fetched(c,o)"}}, "Fetch Matches: keys go, rows come back"


@pytest.mark.parametrize("planner", ["auto", "greedy"])
def test_the_rows_of_a_table_must_be_known_to_a_planner(tmp_path: Path, planner: str) -> None:
    text = FILE.replace("rows: ROWS, ", "").replace(
        "    site: ams\n    sql", f"    site: ams\n    planner: {planner}\n    sql"
    )
    topology = loaded(tmp_path, text)
    parsed = parse_query(topology.query().sql, topology.columns, tables=topology.table_windows)
    if planner == "auto":
        assert "customers" in choose(topology, topology.query(), parsed).note, "it says what it has assumed"
        return
    with pytest.raises(InputError, match="no number of rows is known of table 'customers'; run `watersmeet stats`"):
        choose(topology, topology.query(), parsed)
