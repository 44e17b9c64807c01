"""Plans and queries that change while sites run: every answer exactly once, and nothing moved without need."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from seeds import FreshSeeds
from sim.sites.streams import SECOND, answers_of, expected, parsed, planned, steady

from watersmeet.plan.nodes import Hop, Method, Plan
from watersmeet.program.operators import Purpose
from watersmeet.program.site import agreement
from watersmeet.program.site.agreement import DecidedBy
from watersmeet.program.site.changes import Change, QueryPlan
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.trial import Size, draw_changing, run

SQL = "SELECT a.id AS a, b.id AS b, c.id AS c FROM a [RANGE 4 SECONDS], b [RANGE 4 SECONDS], c [RANGE 4 SECONDS] "
SQL += "WHERE a.k = b.k AND b.k = c.k"
HOMES = {"a": "n1", "b": "n2", "c": "n3"}
WINDOW_US = 4 * SECOND


def check_seeds(seeds: Iterable[int], size: Size = "small") -> int:
    """Run trials; how many changes have taken effect."""
    changed = 0
    for seed in seeds:
        outcome = run(draw_changing(seed, size=size))
        assert outcome.is_right, outcome.verdict
        changed += sum(not entry.refused for entry in outcome.sites.takeovers)
        for site in outcome.sites.sites.values():
            assert site.ledger.hold_us is None, f"seed {seed}: {site.name} still waits"
    return changed


@pytest.mark.parametrize("chunk", range(8))
def test_answers_of_hundreds_of_trials_are_those_of_the_reference_whatever_changes(chunk: int) -> None:
    """With few rows: what counts is when sites crash, and what links do to notes and to the rows that move."""
    assert check_seeds(range(chunk * 25, (chunk + 1) * 25), "tiny") >= 12


@pytest.mark.few(1)
@pytest.mark.parametrize("chunk", range(3))
def test_answers_are_those_of_the_reference_whatever_changes(chunk: int) -> None:
    assert check_seeds(range(chunk * 8, (chunk + 1) * 8)) >= 8


def test_answers_of_fresh_seeds_are_those_of_the_reference_whatever_changes(fresh_seeds: FreshSeeds) -> None:
    check_seeds(fresh_seeds.take(2))


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(50))
def test_answers_of_thousands_of_tiny_trials_are_those_of_the_reference_whatever_changes(
    chunk: int, fresh_seeds: FreshSeeds
) -> None:
    check_seeds(fresh_seeds.take(200), "tiny")


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(50))
def test_answers_of_thousands_of_trials_are_those_of_the_reference_whatever_changes(
    chunk: int, fresh_seeds: FreshSeeds
) -> None:
    check_seeds(fresh_seeds.take(100))


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(10))
def test_answers_of_larger_trials_are_those_of_the_reference_whatever_changes(
    chunk: int, fresh_seeds: FreshSeeds
) -> None:
    check_seeds(fresh_seeds.take(50), "large")


def test_the_seeds_try_every_kind_of_change() -> None:
    trials = [draw_changing(seed) for seed in range(24)]
    changes = [change for trial in trials for change in trial.changes]
    seen = {
        "another plan": any(not query.is_fresh for change in changes for query in change.planned),
        "a new query": any(query.is_fresh for change in changes for query in change.planned),
        "the end of a query": any(change.removed for change in changes),
        "several changes": any(len(trial.changes) > 1 for trial in trials),
        "crashes": any(trial.crashes for trial in trials),
        "loss": any(model.loss for trial in trials for model in trial.links.values()),
        **{f"history {kept}": any(trial.history == kept for trial in trials) for kept in (True, False)},
        **{form.value: any(trial.form is form for trial in trials) for form in DecidedBy},
        **{window: any(window in query.sql for trial in trials for query in trial.queries) for window in WINDOWS},
        "DISTINCT": any("DISTINCT" in query.sql for trial in trials for query in trial.queries),
        "GROUP BY": any("GROUP BY" in query.sql for trial in trials for query in trial.queries),
        "a new query with groups": any(
            query.is_fresh and "GROUP BY" in query.sql for change in changes for query in change.planned
        ),
    }
    assert [name for name, found in seen.items() if not found] == []


WINDOWS = ("[RANGE", "[TUMBLE", "[ROWS", "[UNBOUNDED")


def changed_run(before: Hop | None, after: Hop | None, *, history: bool = True) -> tuple[SimulatedSites, int]:
    """Twelve seconds of three streams at three sites, answers at a fourth, another plan after six; and at which T."""
    query = parsed(SQL, "abc")
    tables = {name: steady(number, 240, 30, 50_000) for number, name in enumerate("abc")}

    def plan(hop: Hop | None) -> Plan:
        return planned(query, HOMES, "n0", hop)

    sites = SimulatedSites(
        plan(before),
        dict.fromkeys("abc", "ts"),
        model_of=lambda *_: LinkModel(latency_us=25_000),
        changes=True,
        history=history,
        slack_us=SECOND,
    )
    for number in range(0, 240, 4):
        sites.feed(number * 50_000, {name: rows.slice(number, 4) for name, rows in tables.items()})
    sites.change(6 * SECOND, Change((QueryPlan("q", plan(after)),)), "n2")
    sites.run()
    assert answers_of(sites) == expected(query, tables) and expected(query, tables)
    (entry,) = sites.takeovers
    assert not entry.refused
    return sites, entry.at_us


def test_what_is_remembered_of_plans_that_change_for_ever_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two plans in turn, nine times: exact all the same, and no site writes down more and more."""
    monkeypatch.setattr(agreement, "_MOST_LOGGED", 2)
    monkeypatch.setattr(agreement, "_MOST_NUMBERINGS", 2)
    query, changes = parsed(SQL, "abc"), 9
    tables = {name: steady(number, 10 * (changes + 4), 12, SECOND // 5) for number, name in enumerate("abc")}
    hops = (None, Hop("", Method.SM_S1))
    sizes = dict[int, int]()

    def sample(*_: object) -> None:
        every = [(one.ledger, one.engine.versions(one.ledger)) for one in sites.sites.values()]
        if (count := max(known.changes for _, known in every)) not in sizes:
            sizes[count] = sum(
                len(replace(ledger, relations={}, clocks={}, pending={}, links={}).to_json()) + len(known.to_json())
                for ledger, known in every
            )

    sites = SimulatedSites(
        planned(query, HOMES, "n0", None), dict.fromkeys("abc", "ts"), changes=True, completed=sample
    )
    for number in range(0, 10 * (changes + 4), 5):
        sites.feed(number * SECOND // 5, {name: rows.slice(number, 5) for name, rows in tables.items()})
    for number in range(changes):
        plan = planned(query, HOMES, "n0", hops[(number + 1) % 2])
        sites.change(2 * (number + 1) * SECOND, Change((QueryPlan("q", plan),)))
    sites.run()
    assert answers_of(sites) == expected(query, tables) and expected(query, tables)
    assert {site.engine.versions(site.ledger).changes for site in sites.sites.values()} == {changes}
    assert max(size for count, size in sizes.items() if count > 7) < 1.2 * max(
        size for count, size in sizes.items() if 3 < count <= 5
    ), sizes


def moved(sites: SimulatedSites) -> int:
    """Rows that were sent for the new version alone."""
    return sum(
        purposes[Purpose.MIGRATION].tuples for purposes in sites.traffic.values() if Purpose.MIGRATION in purposes
    )


def test_a_destination_that_has_a_stream_is_not_sent_it_again() -> None:
    sites, _ = changed_run(None, None)
    assert moved(sites) == 0
    assert {part.name for part in sites.programs["n0"].parts} == {"q~2"}, "the version before is dropped"
    assert not any("~2" in name.split("/")[1] for name in sites.sites["n0"].ledger.relations if "/" in name)


def test_only_rows_that_new_heads_can_reach_are_moved() -> None:
    sites, at_us = changed_run(Hop("", Method.SM_S1), None)
    assert 6 * SECOND <= at_us <= 8 * SECOND
    rows_in_a_window = 3 * WINDOW_US // 50_000
    assert 0 < moved(sites) <= rows_in_a_window


def test_without_kept_rows_both_versions_run_until_windows_are_full() -> None:
    sites, at_us = changed_run(Hop("", Method.SM_S1), None, history=False)
    assert moved(sites) == 0 and at_us > 6 * SECOND + WINDOW_US


@pytest.mark.parametrize(("form", "messages"), [(DecidedBy.POINT_TO_POINT, 3 + 3 * 3), (DecidedBy.COORDINATED, 3 * 3)])
def test_messages_of_an_agreement_are_counted_by_kind(form: DecidedBy, messages: int) -> None:
    query = parsed(SQL, "abc")
    plan = planned(query, HOMES, "n0", None)
    sites = SimulatedSites(plan, dict.fromkeys("abc", "ts"), changes=True, form=form)
    sites.change(0, Change((QueryPlan("q", plan),)))
    sites.run()
    versions = [site.engine.versions(site.ledger) for site in sites.sites.values()]
    assert all(one.deployment.revision == 2 for one in versions)
    sent = [count for one in versions for kind, count in one.messages.items()]
    assert sum(sent) == messages


def test_a_site_that_hears_nothing_from_the_proposer_asks_the_others() -> None:
    query = parsed(SQL, "abc")
    plan = planned(query, HOMES, "n0", None)
    sites = SimulatedSites(plan, dict.fromkeys("abc", "ts"), changes=True, form=DecidedBy.COORDINATED)
    sites.change(0, Change((QueryPlan("q", plan),)))
    sites.kernel.at(190_000, sites.sites["n0"].crash)  # after it has proposed, and for good
    sites.kernel.at(5 * SECOND, sites.sites["n1"].insist)
    sites.kernel.run(max_events=5_000)
    for name in ("n1", "n2", "n3"):
        site = sites.sites[name]
        assert site.engine.versions(site.ledger).deployment.revision == 2


def test_a_change_that_cannot_be_made_is_called_off_by_all_sites_alike() -> None:
    query = parsed(SQL, "abc")
    plan = planned(query, HOMES, "n0", None)
    sites = SimulatedSites(plan, dict.fromkeys("abc", "ts"), changes=True)
    sites.change(0, Change(removed=("nobody",)))
    sites.change(1, Change((QueryPlan("q", plan),)))
    sites.run()
    for site in sites.sites.values():
        versions = site.engine.versions(site.ledger)
        assert [bool(entry.refused) for entry in versions.log] == [True, False] and site.ledger.hold_us is None
        assert versions.deployment.revision == 3
