"""Random trials of sites against the oracle, what they try, and how they are replayed."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import hangs
import pyarrow as pa
import pytest
from seeds import FreshSeeds
from sim.sites.streams import SECOND, SEMIJOINS

from watersmeet.plan.nodes import JoinNode, Method, Symmetric, join_plan_of
from watersmeet.program.site.deployment import overlay, shared_joins
from watersmeet.program.site.probe_groups import probe_groups
from watersmeet.query.oracle import answer
from watersmeet.sim.sites.trial import Size, Trial, TrialQuery, describe, draw, main, run
from watersmeet.sim.sites.trials import run as run_module

CHUNKS, SEEDS = 12, 10


def failures(seeds: Iterable[int], size: Size = "small") -> tuple[list[str], int]:
    """What went wrong with some seeds, each with the command that replays it, and how many had answers at all."""
    wrong, fruitful = [], 0
    for seed in seeds:
        trial = draw(seed, size=size)
        try:
            outcome = run(trial)
        except Exception as error:
            wrong.append(f"seed {seed}: {error!r}; replay: {trial.command}")
            continue
        fruitful += any(outcome.expected.values())
        for site, program in outcome.sites.programs.items():
            outs = Counter(part.flow(operator.out) for part, operator in program.operators)
            if twice := [name for name, count in outs.items() if count > 1]:
                wrong.append(f"seed {seed}: {site} has two operators for {twice}; replay: {trial.command}")
        if not outcome.is_right:
            wrong.append(outcome.verdict)
        else:
            hangs.count("simulated trials")
    return wrong, fruitful


def check_seeds(seeds: Iterable[int], size: Size = "small") -> None:
    drawn = all_fruitful = 0
    for seed in seeds:  # one by one: fresh seeds note which of them has failed
        wrong, fruitful = failures((seed,), size)
        assert not wrong, "\n".join(wrong)
        drawn, all_fruitful = drawn + 1, all_fruitful + fruitful
    assert all_fruitful > drawn // 3, "too many trials ask for nothing"


@pytest.mark.few(8)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_answers_of_random_trials_are_those_of_the_reference(chunk: int) -> None:
    check_seeds(range(chunk * SEEDS, (chunk + 1) * SEEDS))


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(50))
def test_answers_of_thousands_of_random_trials_are_those_of_the_reference(chunk: int, fresh_seeds: FreshSeeds) -> None:
    check_seeds(fresh_seeds.take(200))


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(10))
def test_answers_of_hundreds_of_larger_trials_are_those_of_the_reference(chunk: int, fresh_seeds: FreshSeeds) -> None:
    check_seeds(fresh_seeds.take(100), "large")


def test_a_head_and_a_tree_ask_for_the_same_keys() -> None:
    """By the same name, but for other times: of a row as it comes, or for as long as it is in its window."""
    check_seeds(range(11_389, 11_390))


def test_two_sites_report_how_far_they_have_got_with_the_same_window() -> None:
    """In different sub-plans: one must not be taken for the other, whose report seemed to go back."""
    check_seeds(range(10_737, 10_738))


def test_how_far_a_tree_over_unbounded_windows_has_got_is_an_instant() -> None:
    """Its combinations never leave their windows, and sites refuse watermarks beyond the end of time."""
    check_seeds((1_409_927_305,))


def test_flows_that_sub_plans_make_differently_have_different_names() -> None:
    """Also where the second way to reduce c by (a b), and c by the second (a b), would both be `c|(a b)'2`."""
    check_seeds((1_056_226_002,))


def test_answers_of_trials_of_fresh_seeds_are_those_of_the_reference(fresh_seeds: FreshSeeds) -> None:
    for seed in fresh_seeds.take(10):
        wrong, _ = failures([seed])
        assert not wrong, "\n".join(wrong)


def test_the_seeds_of_the_normal_run_try_everything() -> None:
    trials = [draw(seed) for seed in range(CHUNKS * SEEDS)]
    queries = [(trial, query) for trial in trials for query in trial.queries]
    hops = [hop for _, query in queries for hops in (query.hops or {}).values() for hop in hops]
    assert {(hop.method, hop.bloom) for hop in hops} == {
        *((method, False) for method in Method),
        *((method, True) for method in SEMIJOINS),
    }
    links = [model for trial in trials for model in trial.links.values()]
    crashes = [crash for trial in trials for crash in trial.crashes]
    joins = [join_plan_of(trial.plan(query)) for trial, query in queries]
    sub_plans = [sub_plan for join in joins for sub_plan in join.sub_plans]
    windows = [frozenset(type(scan.window).__name__ for scan in join.scans) for join in joins]
    keys = [key_class for join in joins for key_class in join.classes]
    tables = [whole for trial in trials for whole in trial.tables.values()]
    seen = {
        "central": [not query.hops and query.mix is None for _, query in queries],
        "a join at a third site": [hop.at is not None for hop in hops],
        "a query's site with streams": [query.site in trial.homes.values() for trial, query in queries],
        "a query's site without": [query.site not in trial.homes.values() for trial, query in queries],
        "everything at one site": [{*join.homes} == {join.site} for join in joins],
        "a self-join": [len({scan.stream for scan in join.scans}) < len(join.scans) for join in joins],
        "several sub-plans": [len(join.sub_plans) > 1 for join in joins],
        "a symmetric join for some keys": [
            len(join.sub_plans) > 1 and any(isinstance(one, Symmetric) for one in join.sub_plans) for join in joins
        ],
        "a symmetric join elsewhere": [
            isinstance(join.sub_plans[0], Symmetric) and {join.sub_plans[0].at} != {join.site, *join.homes}
            for join in joins
        ],
        "a symmetric join that counts rows": [
            isinstance(join.sub_plans[0], Symmetric) and "Rows" in own for join, own in zip(joins, windows, strict=True)
        ],
        "a tree": [isinstance(sub_plan, JoinNode) for sub_plan in sub_plans],
        "a tree with a Bloom filter": [isinstance(one, JoinNode) and "bloom=True" in repr(one) for one in sub_plans],
        "DISTINCT": ["SELECT DISTINCT" in query.sql for _, query in queries],
        "DISTINCT with duplicates": [removes_duplicates(trial, query) for trial, query in queries],
        "queries that share a join": [shares_a_join(trial) for trial in trials],
        "probes done together": [probes_together(trial) for trial in trials],
        "queries that differ": [len(trial.queries) > 1 and not shares_a_join(trial) for trial in trials],
        **{f"{n} queries": [len(trial.queries) == n for trial in trials] for n in range(1, 4)},
        "crashes": [bool(trial.crashes) for trial in trials],
        "a long pause": [crash.down_us >= 60 * SECOND for crash in crashes],
        "loss": [model.loss > 0 for model in links],
        "duplication": [model.duplicate > 0 for model in links],
        "jitter": [model.jitter_us > 0 for model in links],
        "bandwidth": [model.bandwidth_bps is not None for model in links],
        "links that differ": [len(set(trial.links.values())) > 1 for trial in trials],
        "intervals that differ": [len(set(trial.intervals_us.values())) > 1 for trial in trials],
        "disorder": [any(delay_us for delay_us in trial.delays_us.values()) for trial in trials],
        "NULL keys": [whole.column("k").null_count > 0 for whole in tables],
        "NULL times": [whole.column("ts").null_count > 0 for whole in tables],
        "ties": [whole.num_rows > len(whole.column("ts").unique()) for whole in tables],
        "a start": [query.start_us is not None for _, query in queries],
        "starts that differ": [len({query.start_us for query in trial.queries}) > 1 for trial in trials],
        "filters": [any(scan.filters for scan in join.scans) for join in joins],
        "hashed keys": [not key_class.exact for key_class in keys],
        "composite keys": [len(join.classes) > 1 for join in joins],
        **{f"{n} aliases": [len(join.scans) == n for join in joins] for n in range(2, 6)},
        **{f"{n} buckets": [trial.buckets == n for trial in trials] for n in range(1, 4)},
        **{f"only {kind}": [own == {kind} for own in windows] for kind in ("Range", "Tumble", "Rows", "Unbounded")},
        "mixed windows": [len(own) > 1 for own in windows],
    }
    assert {name: sum(found) for name, found in seen.items() if sum(found) < 3} == {}


def removes_duplicates(trial: Trial, query: TrialQuery) -> bool:
    """Whether DISTINCT makes a difference over whole streams."""
    asked = trial.parsed(query)
    if not asked.distinct:
        return False
    times = dict.fromkeys(trial.tables, "ts")
    one, other = (answer(each, trial.tables, times).num_rows for each in (asked, replace(asked, distinct=False)))
    return bool(one < other)


def shares_a_join(trial: Trial) -> bool:
    """Whether some queries of a trial have the same join."""
    plans = {query.name: trial.plan(query) for query in trial.queries}
    joins = shared_joins(plans, {query.name: query.start_us for query in trial.queries})
    return len(joins) < len(plans)


def probes_together(trial: Trial) -> bool:
    """Whether some site does probes of several queries at once."""
    plans = {query.name: trial.plan(query) for query in trial.queries}
    programs = overlay(shared_joins(plans, {query.name: query.start_us for query in trial.queries}))
    return any(
        probe_groups(program, [(part.name, operator) for part, operator in program.operators])[0]
        for program in programs.values()
    )


def test_a_seed_is_always_the_same_trial_and_the_same_run() -> None:
    one, other = draw(5), draw(5)
    assert list(describe(one)) == list(describe(other)) != list(describe(draw(6)))
    assert one.tables == other.tables
    first, second = run(one), run(other)
    assert first.sites.traffic == second.sites.traffic
    assert first.sites.kernel.now_us == second.sites.kernel.now_us


def test_a_replay_shows_the_trial_and_that_it_is_right() -> None:
    lines: list[str] = []
    assert main(["4"], lines.append) == 0
    text = "\n".join(lines)
    assert all(query.sql in text for query in draw(4).queries) and "link " in text and "plan" in text
    totals = " + ".join(str(bag.total()) for bag in run(draw(4)).expected.values())
    assert f"{totals} answers, as they should be" in text


def test_a_replay_shows_what_is_missing_and_what_is_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(seed for seed in range(100) if is_plain(draw(seed)) and run(draw(seed)).expected["q1"].total() > 5)
    real: Callable[..., pa.Table] = answer

    def wrong_answer(*arguments: object, **options: object) -> pa.Table:
        whole = real(*arguments, **options)
        wrong = whole.slice(0, 1).to_pylist()[0] | {whole.column_names[0]: 999}
        return pa.concat_tables([whole.slice(1), pa.Table.from_pylist([wrong], schema=whole.schema)])

    monkeypatch.setattr(run_module, "answer", wrong_answer)
    lines: list[str] = []
    assert main([str(seed)], lines.append) == 1
    text = "\n".join(lines)
    assert "1 missing and 1 too many" in text and f"replay: python -m watersmeet.sim.sites.trial {seed}" in text
    assert sum(line.startswith("  q1 missing: (999") for line in lines) == 1
    assert sum(line.startswith("  q1 too many: (") for line in lines) == 1
    lines.clear()
    assert main([str(seed), str(seed + 1)], lines.append) == 1
    assert lines[-1] == f"1 seeds, 1 failed: {seed}"
    (message,), _ = failures([seed])
    assert message.endswith(f"replay: python -m watersmeet.sim.sites.trial {seed}")


def is_plain(trial: Trial) -> bool:
    """One query whose first output column is a number."""
    (first, *others) = trial.queries
    return not others and first.sql.startswith("SELECT a.id")


def test_an_error_in_a_trial_is_reported_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(run_module, "SimulatedSites", broken)
    lines: list[str] = []
    assert main(["3", "5", "--size", "large"], lines.append) == 1
    assert "out of order" in lines[0] and lines[0].endswith(
        "replay: python -m watersmeet.sim.sites.trial 3 --size large"
    )
    assert lines[-1] == "2 seeds, 2 failed: 3, 4"
