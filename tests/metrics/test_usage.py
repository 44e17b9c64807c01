"""What is counted for a query: all of its SELECTs, and groups and undecided rows among its state."""

from equivalence.test_outer_views import plans_of
from sim.sites.streams import SECOND, steady

from watersmeet.metrics.usage import Usage, usage_of
from watersmeet.query.model import EVENT_TIME
from watersmeet.query.sql import parse_script
from watersmeet.sim.sites.rows import typed_outputs
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.trial import SCHEMA

QUERIES = {
    "both": "SELECT k, id FROM a UNION ALL SELECT m, id FROM b WHERE id % 2 = 0",
    "groups": "SELECT k, count(*) AS n FROM a GROUP BY k, TUMBLE(1 HOUR)",
    "undecided": "SELECT a.id, b.id AS two FROM a [RANGE 1 HOUR] LEFT JOIN b [RANGE 1 HOUR] ON a.k = b.k AND b.id < 0",
    "alone": "SELECT a.id FROM a WHERE a.k = 1",
}


def test_all_selects_of_a_query_count_and_groups_and_undecided_rows_are_state() -> None:
    asked = [
        output
        for name, sql in QUERIES.items()
        for output in parse_script(name, sql, dict.fromkeys("ab", SCHEMA.names), event_times=dict.fromkeys("ab", "ts"))
    ]
    outputs, known = typed_outputs(asked, dict.fromkeys("ab", SCHEMA))
    columns = {name: [one for one in schema.names if one != EVENT_TIME] for name, schema in known.items()}
    rows = {"a": steady(1, 60, 7, SECOND // 10), "b": steady(2, 40, 7, SECOND // 10)}
    running = SimulatedSites(plans_of(outputs, columns, {"a": "n0", "b": "n1"}), dict.fromkeys("ab", "ts"))
    running.feed(SECOND, rows)
    running.run()
    sites = [(site.engine.program, site.ledger) for _, site in sorted(running.sites.items())]

    def usage(query: str | None = None) -> Usage:
        return usage_of(sites, query)

    assert usage("both").rows_in == 100 and usage("both").rows_out == 80
    assert usage("groups").rows_in == 60 and usage("groups").state_rows == 7
    assert usage("undecided").state_rows >= 60 > usage("both").state_rows
    assert usage("alone").state_rows == 0
    assert usage().rows_in == 100 and usage().state_rows >= usage("undecided").state_rows + usage("groups").state_rows
