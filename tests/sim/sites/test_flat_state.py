"""At a steady rate the state of every clause stays as it is once windows are full: rows, files and bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from equivalence.test_outer_views import plans_of
from seeds import scaled
from sim.sites.streams import SECOND, steady

from watersmeet.query.model import EVENT_TIME
from watersmeet.query.sql import parse_script
from watersmeet.query.windows import AsOf
from watersmeet.sim.sites.rows import typed_outputs
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.site import SimulatedSite, TableSource
from watersmeet.sim.sites.trial import SCHEMA

R = "[RANGE 4 SECONDS]"
STATEMENTS = {
    "join": f"SELECT a.id, b.id AS two FROM a {R}, b {R} WHERE a.k = b.k",
    "rows": "SELECT a.id, b.id AS two FROM a [ROWS 20], b [ROWS 10] WHERE a.k = b.k",
    "tumble": "SELECT a.id, b.id AS two FROM a [TUMBLE 3 SECONDS], b [TUMBLE 3 SECONDS] WHERE a.k = b.k",
    "distinct": f"SELECT DISTINCT a.k, b.m FROM a {R}, b {R} WHERE a.k = b.k",
    "groups": f"SELECT a.k, count(*) AS n, avg(b.id) AS v FROM a {R}, b {R} WHERE a.k = b.k "
    "GROUP BY a.k, TUMBLE(3 SECONDS)",
    "hops": "SELECT k, approx_percentile(id, 0.5) AS p, max(id) AS most FROM a GROUP BY k, HOP(4 SECONDS, 1 SECOND)",
    "ranked": "SELECT k, count(*) AS n FROM a GROUP BY k, TUMBLE(2 SECONDS) ORDER BY n DESC LIMIT 3",
    "changes": f"SELECT a.k, sum(a.id) AS s, max(b.id) AS v FROM a {R}, b {R} WHERE a.k = b.k GROUP BY a.k "
    "EMIT CHANGES",
    "negatable changes": f"SELECT k, count(*) AS n, sum(id) AS s FROM a {R} GROUP BY k EMIT CHANGES",
    "left": f"SELECT a.id, b.id AS two FROM a {R} LEFT JOIN b {R} ON a.k = b.k AND a.id % 3 = 0",
    "full": f"SELECT a.id, b.id AS two FROM a {R} FULL JOIN b {R} ON a.k = b.k AND b.id % 3 = 0",
    "exists": f"SELECT a.id FROM a {R} WHERE EXISTS (SELECT 1 FROM b {R} WHERE b.k = a.k)",
    "not exists": f"SELECT a.id FROM a {R} WHERE NOT EXISTS (SELECT 1 FROM b {R} WHERE b.k = a.k AND b.id % 2 = 0)",
    "table": "SELECT a.id, t.id AS two FROM a, t WHERE a.k = t.k",
    "refreshed": "SELECT a.id, r.id AS two FROM a LEFT JOIN r ON a.k = r.k",
    "view": f"""WITH v AS (SELECT a.k, a.id FROM a {R}, b {R} WHERE a.k = b.k), w AS (SELECT k, count(*) AS n FROM v
        GROUP BY k, TUMBLE(2 SECONDS)) SELECT w.n, b.id FROM w {R}, b {R} WHERE w.k = b.k""",
    "union": "SELECT k, count(*) AS n FROM (SELECT k FROM a UNION ALL SELECT k FROM b) GROUP BY k, TUMBLE(2 SECONDS)",
}
RATE = 20  # rows a second


@dataclass
class Samples:
    """The state of sites after each of their micro-batches."""

    seen: list[tuple[int, str, int, int]] = field(default_factory=list)  # when, where, rows, files

    def __call__(self, site: SimulatedSite, before: object) -> None:
        ledger = site.ledger
        rows = sum(segment.rows for segment in ledger.segments)
        self.seen.append((site.kernel.now_us, site.name, rows, len(ledger.paths)))

    def most(self, first_us: int, last_us: int) -> tuple[int, int]:
        """The most rows and files that any site has had for a time."""
        found = [one for one in self.seen if first_us <= one[0] < last_us]
        return max(rows for *_, rows, _ in found), max(files for *_, files in found)


def run(names: Sequence[str], sites: int, seconds: int) -> Samples:
    """The state of some statements together, over so many seconds of event time."""
    schemas = {**dict.fromkeys("ab", SCHEMA), **dict.fromkeys("tr", SCHEMA)}
    asked = [
        output
        for number, name in enumerate(names)
        for output in parse_script(
            *(f"q{number}", STATEMENTS[name], dict.fromkeys("abtr", SCHEMA.names)),
            event_times=dict.fromkeys("ab", "ts"),
            tables={"t": AsOf(), "r": AsOf(is_refreshed=True)},
        )
    ]
    outputs, known = typed_outputs(asked, schemas)
    columns = {name: [one for one in schema.names if one != EVENT_TIME] for name, schema in known.items()}
    homes = {name: f"n{number % sites}" for number, name in enumerate("abtr")}
    streams = {name: steady(number, RATE * seconds, 40, SECOND // RATE) for number, name in enumerate("ab")}
    samples = Samples()
    running = SimulatedSites(
        plans_of(outputs, columns, dict(homes)),
        dict.fromkeys("ab", "ts"),
        homes=homes,
        tables={
            "t": TableSource(lambda now: streams["a"].slice(0, 30)),
            "r": TableSource(lambda now: streams["a"].slice(now // SECOND % 50, 30), 2 * SECOND, seconds * SECOND),
        },
        completed=samples,
        interval_us=500_000,
    )
    for name, table in streams.items():
        for second in range(seconds):
            running.feed((second + 1) * SECOND, {name: table.slice(second * RATE, RATE)})
    running.run()
    silent = [name for number, name in enumerate(names) if not any(t.num_rows for t in running.answers(f"q{number}"))]
    assert silent == [], "statements without answers"
    return samples


def check(names: Sequence[str], sites: int, seconds: int) -> None:
    samples = run(names, sites, seconds)
    third = seconds * SECOND // 3
    rows, files = samples.most(third, 2 * third)
    later_rows, later_files = samples.most(2 * third, 3 * third)
    assert rows > 0, "state that is measured"
    assert later_rows <= 1.1 * rows + 20, (rows, later_rows)
    assert later_files <= 1.2 * files + 10, (files, later_files)


def test_state_of_all_clauses_together_is_flat() -> None:
    check([name for name in STATEMENTS if name != "table"], 3, 18)


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in STATEMENTS if name != "table"])
@pytest.mark.parametrize("sites", [1, 3])
def test_state_of_a_clause_is_flat_for_long(name: str, sites: int) -> None:
    check([name], sites, max(60, scaled(600)))


def test_a_stream_beside_a_table_has_no_state_of_its_own() -> None:
    samples = run(["table"], 1, 20)
    assert {rows for *_, rows, _ in samples.seen[5:]} == {30}
