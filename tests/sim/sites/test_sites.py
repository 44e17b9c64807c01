"""Sites in the simulator against the law: random trials, every method on every shape, and what links and crashes do."""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pytest

from watersmeet.plan.nodes import Hop, JoinPlan, Method, Plan, join_plan_of
from watersmeet.planners.sited import central, explicit
from watersmeet.program.operators import Form, Purpose, compile_sites
from watersmeet.program.site.engine import Arrivals, Ingested, SiteEngine, SiteLedger, flow_numbers, ingest
from watersmeet.program.site.ledger import watermark
from watersmeet.program.storage import bloom
from watersmeet.program.storage.packing import unpack_rows
from watersmeet.program.storage.segments import TS, column
from watersmeet.program.storage.shelf import MemoryShelf
from watersmeet.program.storage.wire import index_parcel, unpack_schema
from watersmeet.query.model import JoinQuery
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.internet.links import LinkModel, Network
from watersmeet.sim.sites import site as sites_module
from watersmeet.sim.sites import trial as trial_module
from watersmeet.sim.sites.rows import finish, lay_out, typed
from watersmeet.sim.sites.site import SimulatedSites, run_here
from watersmeet.sim.sites.trial import SCHEMA, Bag, Size, bag_of, describe, draw, edges_of, horizon, main, run
from watersmeet.testing import InProcess

SECOND = 1_000_000
SEMIJOINS = (Method.SM_S1, Method.SM_S2, Method.SM_D1, Method.SM_D2)
# Every way to do a one-way join; None ships all streams to the query's site.
WAYS: dict[str, Hop | None] = {
    **{method.value: Hop("", method) for method in Method},
    **{f"{method.value} Bloom": Hop("", method, bloom=True) for method in SEMIJOINS},
    "central": None,
}


def table(rows: Iterable[tuple[int | None, int | None, str | None, float]]) -> pa.Table:
    """Rows of (k, m, s, second), numbered as they come."""
    columns = list(zip(*((k, m, s, n, int(ts * SECOND)) for n, (k, m, s, ts) in enumerate(rows)), strict=True))
    return pa.table(
        {name: pa.array(columns[i] if columns else [], SCHEMA.field(name).type) for i, name in enumerate(SCHEMA.names)}
    )


def at(*seconds: float, k: int = 1) -> pa.Table:
    return table((k, 1, "x", second) for second in seconds)


def parsed(sql: str, streams: Iterable[str]) -> JoinQuery:
    return typed(parse_query(sql, dict.fromkeys(streams, SCHEMA.names)), dict.fromkeys(streams, SCHEMA))


def planned(query: JoinQuery, homes: Mapping[str, str], site: str, way: Hop | None) -> Plan:
    """All one-way joins of a query in one way, in an order in which equalities tie each to those before."""
    columns = dict.fromkeys(homes, SCHEMA.names)
    plan = central(query, columns, homes, site)
    if way is None:
        return plan
    heads = join_plan_of(plan).heads
    return explicit(
        query, columns, homes, site, {h.head: [replace(way, alias=hop.alias) for hop in h.hops] for h in heads}
    )


def simulated(plan: Plan, streams: Iterable[str], **options: object) -> SimulatedSites:
    return SimulatedSites(plan, dict.fromkeys(streams, "ts"), **options)


def answers_of(sites: SimulatedSites, plan: Plan) -> Bag:
    scans = join_plan_of(plan).scans
    return bag_of(finish(plan, sites.answers, {scan.stream: SCHEMA for scan in scans}))


def law(query: JoinQuery, tables: Mapping[str, pa.Table], heads_before_us: int | None = None) -> Bag:
    return bag_of(answer(query, tables, dict.fromkeys(tables, "ts"), heads_before_us=heads_before_us))


def feed_in_pieces(sites: SimulatedSites, tables: Mapping[str, pa.Table], rows: int, every_us: int) -> int:
    """Feed streams some rows at a time; returns when the last of them come."""
    last = 0
    for stream, whole in tables.items():
        for number, piece in enumerate(pieces(whole, rows)):
            last = max(last, number * every_us)
            sites.feed(number * every_us, {stream: piece})
    return last


_PIECES: dict[tuple[int, int], tuple[pa.Table, list[pa.Table]]] = {}


def pieces(whole: pa.Table, rows: int) -> list[pa.Table]:
    key = id(whole), rows
    if key not in _PIECES:
        _PIECES[key] = whole, [whole.slice(low, rows) for low in range(0, whole.num_rows, rows)]
    return _PIECES[key][1]


@pytest.fixture
def laid_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expressions over the very same rows are computed once: they are not what is tried here, and take the longest."""
    known: dict[object, tuple[object, pa.Table]] = _LAID_OUT

    def remembering(scan: object, classes: object, rows: pa.Table, *more: str) -> pa.Table:
        key = scan, classes, id(rows), more
        if key not in known:
            known[key] = rows, lay_out(scan, classes, rows, *more)
        return known[key][1]

    monkeypatch.setattr(sites_module, "lay_out", remembering)


_LAID_OUT: dict[object, tuple[object, pa.Table]] = {}


# Random trials


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
        fruitful += bool(outcome.expected)
        for site, program in compile_sites(join_plan_of(outcome.plan)).items():
            twice = [name for name, count in Counter(one.out.name for one in program.operators).items() if count > 1]
            if twice:
                wrong.append(f"seed {seed}: {site} has two operators for {twice}; replay: {trial.command}")
        if not outcome.is_right:
            wrong.append(outcome.verdict)
    return wrong, fruitful


def check_seeds(seeds: range, size: Size = "small") -> None:
    wrong, fruitful = failures(seeds, size)
    assert not wrong, "\n".join(wrong)
    assert fruitful > len(seeds) // 3, "too many trials ask for nothing"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_trials_give_the_bag_of_the_law(chunk: int) -> None:
    check_seeds(range(chunk * SEEDS, (chunk + 1) * SEEDS))


@pytest.mark.soak
@pytest.mark.skipif(not os.environ.get("WATERSMEET_SOAK"), reason="long; run by `make soak`")
@pytest.mark.parametrize("chunk", range(20))
def test_thousands_of_random_trials_give_the_bag_of_the_law(chunk: int) -> None:
    check_seeds(range(10_000 + chunk * 200, 10_000 + (chunk + 1) * 200))


@pytest.mark.soak
@pytest.mark.skipif(not os.environ.get("WATERSMEET_SOAK"), reason="long; run by `make soak`")
@pytest.mark.parametrize("chunk", range(10))
def test_hundreds_of_larger_trials_give_the_bag_of_the_law(chunk: int) -> None:
    check_seeds(range(chunk * 100, (chunk + 1) * 100), "large")


def test_a_head_and_a_tree_ask_for_the_same_keys() -> None:
    """By the same name, but for other times: of a row as it comes, or for as long as it is in its window."""
    check_seeds(range(11_389, 11_390))


def test_the_seeds_of_the_normal_run_try_everything() -> None:
    trials = [draw(seed) for seed in range(CHUNKS * SEEDS)]
    hops = [hop for trial in trials for hops in (trial.plan or {}).values() for hop in hops]
    assert {(hop.method, hop.bloom) for hop in hops} == {
        *((method, False) for method in Method),
        *((method, True) for method in SEMIJOINS),
    }
    links = [model for trial in trials for model in trial.links.values()]
    crashes = [crash for trial in trials for crash in trial.crashes]
    joins = [join_plan_of(planned(parsed_trial(trial), trial.homes, trial.site, None)) for trial in trials]
    kinds = [frozenset(type(scan.window).__name__ for scan in join.scans) for join in joins]
    keys = [key_class for join in joins for key_class in join.classes]
    tables = [whole for trial in trials for whole in trial.tables.values()]
    seen = {
        "central": [trial.plan is None for trial in trials],
        "a join at a third site": [hop.at is not None for hop in hops],
        "a query's site with streams": [trial.site in trial.homes.values() for trial in trials],
        "a query's site without": [trial.site not in trial.homes.values() for trial in trials],
        "a self-join": [len(trial.tables) < len(join.scans) for trial, join in zip(trials, joins, strict=True)],
        "crashes": [bool(trial.crashes) for trial in trials],
        "a long pause": [crash.down_us >= 60 * SECOND for crash in crashes],
        "loss": [model.loss > 0 for model in links],
        "duplication": [model.duplicate > 0 for model in links],
        "jitter": [model.jitter_us > 0 for model in links],
        "bandwidth": [model.bandwidth_bps is not None for model in links],
        "links that differ": [len(set(trial.links.values())) > 1 for trial in trials],
        "turns that differ": [len(set(trial.turns_us.values())) > 1 for trial in trials],
        "disorder": [any(delay_us for delay_us in trial.delays_us.values()) for trial in trials],
        "NULL keys": [whole.column("k").null_count > 0 for whole in tables],
        "NULL times": [whole.column("ts").null_count > 0 for whole in tables],
        "ties": [whole.num_rows > len(whole.column("ts").unique()) for whole in tables],
        "a start": [trial.start_us is not None for trial in trials],
        "filters": [any(scan.filters for scan in join.scans) for join in joins],
        "hashed keys": [not key_class.exact for key_class in keys],
        "composite keys": [len(join.classes) > 1 for join in joins],
        **{f"{n} aliases": [len(join.scans) == n for join in joins] for n in range(2, 6)},
        **{f"{n} buckets": [trial.buckets == n for trial in trials] for n in range(1, 4)},
        **{f"only {kind}": [own == {kind} for own in kinds] for kind in ("Range", "Tumble", "Rows", "Unbounded")},
        "mixed windows": [len(own) > 1 for own in kinds],
    }
    assert [name for name, found in seen.items() if sum(found) < 3] == []


def parsed_trial(trial: trial_module.Trial) -> JoinQuery:
    columns = dict.fromkeys(trial.tables, SCHEMA.names)
    return typed(parse_query(trial.sql, columns, allow_cross=True), dict.fromkeys(trial.tables, SCHEMA))


def test_a_seed_is_always_the_same_trial_and_the_same_run() -> None:
    one, other = draw(5), draw(5)
    assert list(describe(one)) == list(describe(other)) != list(describe(draw(6)))
    assert one.tables == other.tables
    first, second = run(one), run(other)
    assert first.sites.traffic == second.sites.traffic
    assert first.sites.kernel.now_us == second.sites.kernel.now_us


def test_a_replay_tells_the_trial_and_that_it_is_right() -> None:
    told: list[str] = []
    assert main(["4"], told.append) == 0
    text = "\n".join(told)
    assert draw(4).sql in text and "link " in text and "plan" in text
    assert f"{run(draw(4)).expected.total()} answers, as they should be" in text


def test_a_replay_tells_what_is_missing_and_what_is_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(seed for seed in range(100) if run(draw(seed)).expected.total() > 5)
    real = answer

    def lying(*arguments: object, **options: object) -> pa.Table:
        whole = real(*arguments, **options)
        wrong = whole.slice(0, 1).to_pylist()[0] | {whole.column_names[0]: 999}
        return pa.concat_tables([whole.slice(1), pa.Table.from_pylist([wrong], schema=whole.schema)])

    monkeypatch.setattr(trial_module, "answer", lying)
    told: list[str] = []
    assert main([str(seed)], told.append) == 1
    text = "\n".join(told)
    assert "1 missing and 1 too many" in text and f"replay: python -m watersmeet.sim.sites.trial {seed}" in text
    assert sum(line.startswith("  missing: (999") for line in told) == 1
    assert sum(line.startswith("  too many: (") for line in told) == 1
    told.clear()
    assert main([str(seed), str(seed + 1)], told.append) == 1
    assert told[-1] == f"1 seeds, 1 failed: {seed}"
    (message,), _ = failures([seed])
    assert message.endswith(f"replay: python -m watersmeet.sim.sites.trial {seed}")


def test_an_error_in_a_trial_is_told_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(trial_module, "SimulatedSites", broken)
    told: list[str] = []
    assert main(["3", "5", "--size", "large"], told.append) == 1
    assert "out of order" in told[0] and told[0].endswith("replay: python -m watersmeet.sim.sites.trial 3 --size large")
    assert told[-1] == "2 seeds, 2 failed: 3, 4"


# Every method on every shape


SHAPES = [
    ("chain", 2),
    ("chain", 3),
    ("chain", 4),
    ("chain", 5),
    ("star", 4),
    ("star", 5),
    ("cycle", 3),
    ("cycle", 4),
    ("cycle", 5),
    ("clique", 4),
    ("clique", 5),
]
WINDOWS = ("[RANGE 6 SECONDS]", "[TUMBLE 8 SECONDS]", "[ROWS 5]", "[UNBOUNDED]")
ATTRIBUTES = {"chain": "kmkm", "star": "kmsk", "cycle": "kmksk", "clique": "k" * 10}
STEPS = (0, 1, 1, 0, 2, 1, 0, 1, 2, 0, 1, 1)


@cache
def fixed_stream(number: int, rows: int) -> pa.Table:
    """Ties inside and between streams, a NULL, and few values."""
    clock, made = number % 2, []
    for row in range(rows):
        clock += STEPS[(row + 5 * number) % len(STEPS)]
        k = None if row == 4 and number == 0 else (row * (number + 1) + number) % 2
        made.append((k, (row + number) // 2 % 2, "xy"[(row * 3 + number) // 3 % 2], clock))
    return table(made)


@cache
def shape(topology: str, ways: int, window: str) -> tuple[JoinQuery, dict[str, pa.Table]]:
    aliases = "abcde"[:ways]
    edges = zip(edges_of(topology, aliases), ATTRIBUTES[topology], strict=False)
    where = " AND ".join(f"{one}.{name} = {other}.{name}" for (one, other), name in edges)
    select = ", ".join(f"{alias}.id AS {alias}_id" for alias in aliases)
    sql = f"SELECT {select} FROM {', '.join(f'{alias} {window}' for alias in aliases)} WHERE {where}"
    rows = {2: 14, 3: 12, 4: 9, 5: 8}[ways]
    return parsed(sql, aliases), {alias: fixed_stream(number, rows) for number, alias in enumerate(aliases)}


@cache
def shape_law(topology: str, ways: int, window: str, heads_before_us: int | None) -> Bag:
    return law(*shape(topology, ways, window), heads_before_us)


EVERYTHING = [(*one, window, way) for one in SHAPES for window in WINDOWS for way in WAYS]


def is_in_the_normal_run(topology: str, ways: int, window: str, way: str) -> bool:
    """Two-way joins in full; of three- and four-way joins each method on each shape, the windows taking turns."""
    turn = SHAPES.index((topology, ways)) + list(WAYS).index(way) - WINDOWS.index(window)
    return ways == 2 or (ways < 5 and turn % len(WINDOWS) == 0)


def check_shape(topology: str, ways: int, window: str, way_of: Mapping[str, Hop | None]) -> None:
    """Run a shape, each head in a way of its own, and compare with the law."""
    query, tables = shape(topology, ways, window)
    homes = {alias: f"n{number + 1}" for number, alias in enumerate(tables)}
    heads = {
        head: join_plan_of(planned(query, homes, "n0", way)).heads[query.aliases.index(head)].hops
        for head, way in way_of.items()
    }
    plan = explicit(query, dict.fromkeys(homes, SCHEMA.names), homes, "n0", heads)
    sites = simulated(plan, tables, turn_us=200_000, buckets=2 if ways == 3 else 1)
    feed_in_pieces(sites, tables, rows=7, every_us=300_000)
    sites.run()
    before_us, is_begun = horizon(sites, plan)
    expected = shape_law(topology, ways, window, before_us)
    assert is_begun and expected.total() > 3, "a dataset that asks for something"
    assert answers_of(sites, plan) == expected


@pytest.mark.usefixtures("laid_out_once")
@pytest.mark.parametrize(
    ("topology", "ways", "window", "way"), [one for one in EVERYTHING if is_in_the_normal_run(*one)]
)
def test_every_method_gives_the_law_on_every_shape(topology: str, ways: int, window: str, way: str) -> None:
    check_shape(topology, ways, window, dict.fromkeys("abcde"[:ways], WAYS[way]))


@pytest.mark.usefixtures("laid_out_once")
@pytest.mark.parametrize("number", range(4))
def test_heads_of_a_five_way_join_may_go_different_ways(number: int) -> None:
    topology, ways = [one for one in SHAPES if one[1] == 5][number]
    own = [list(WAYS.values())[(3 * number + 2 * head) % len(WAYS)] for head in range(ways)]
    check_shape(topology, ways, WINDOWS[number], dict(zip("abcde", own, strict=True)))


@pytest.mark.soak
@pytest.mark.skipif(not os.environ.get("WATERSMEET_SOAK"), reason="long; run by `make soak`")
@pytest.mark.usefixtures("laid_out_once")
@pytest.mark.parametrize(
    ("topology", "ways", "window", "way"), [one for one in EVERYTHING if not is_in_the_normal_run(*one)]
)
def test_the_other_methods_on_the_other_shapes(topology: str, ways: int, window: str, way: str) -> None:
    check_shape(topology, ways, window, dict.fromkeys("abcde"[:ways], WAYS[way]))


# Long runs of one key: more than are looked at one by one


@cache
def crowded(seed: int) -> pa.Table:
    """Few keys and many ties in one batch, in whose sorting the order of ties is easily lost."""
    steps, keys = steady(seed, 100, 4, 1), steady(seed + 7, 100, 5, 1)
    clock = accumulate(int(step == 0) for step in steps.column("k").to_pylist())
    return table((max(key, 2), 1, "x", ts) for key, ts in zip(keys.column("k").to_pylist(), clock, strict=True))


CROWDED = "SELECT a.id AS a, b.id AS b FROM a [ROWS 6], b [RANGE 3 SECONDS] WHERE a.k = b.k"


@pytest.mark.usefixtures("laid_out_once")
@pytest.mark.parametrize("way", WAYS)
def test_ties_of_a_hot_key_keep_their_order(way: str) -> None:
    streams = {"a": crowded(1), "b": crowded(2)}
    query = parsed(CROWDED, streams)
    plan = planned(query, {"a": "n1", "b": "n2"}, "n0", WAYS[way])
    sites = simulated(plan, streams)
    feed_in_pieces(sites, streams, rows=50, every_us=SECOND)
    sites.run()
    assert answers_of(sites, plan) == law(query, streams, horizon(sites, plan)[0])


def test_ties_of_a_hot_key_keep_their_order_at_one_site(tmp_path: Path) -> None:
    streams = {"a": crowded(1), "b": crowded(2)}
    query, event_times = parsed(CROWDED, streams), dict.fromkeys(streams, "ts")
    process = InProcess(query, dict.fromkeys(streams, SCHEMA), event_times, tmp_path)
    found = bag_of(process.batch(streams))
    assert found == law(query, streams, process.ledger.released_to)
    assert found.total() > 100


# Nothing is shipped twice


class Tapped:
    """Everything that sites have sent, each parcel once, and the full tuples in it."""

    def __init__(self) -> None:
        self.parcels: dict[tuple[str, str, int], bytes] = {}

    def tap(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = Network.send

        def send(network: Network, sender: str, receiver: str, number: int, message: bytes, size_bytes: int) -> None:
            known = self.parcels.setdefault((sender, receiver, number), message)
            assert known == message, "a parcel that is sent again is the same"
            real(network, sender, receiver, number, message, size_bytes)

        monkeypatch.setattr(Network, "send", send)

    def rows(self, sites: SimulatedSites, purpose: Purpose) -> Iterator[tuple[tuple[str, str, str], pa.Table]]:
        """Link, flow and rows of every message with this purpose."""
        schemas: dict[tuple[str, str, str], pa.Schema] = {}
        for (sender, receiver, _), data in sorted(self.parcels.items(), key=lambda one: one[0]):
            flows = flow_numbers(sites.sites[sender].engine.program, to=receiver)
            for entry in index_parcel(data).entries:
                flow = flows[entry.flow]
                where = sender, receiver, flow.name
                if entry.schema:
                    assert where not in schemas, "a schema travels once"
                    schemas[where] = unpack_schema(entry.schema)
                if entry.rows and flow.purpose is purpose:
                    yield where, unpack_rows(data[entry.start : entry.start + entry.size], schemas[where])

    def check_nothing_twice(self, sites: SimulatedSites) -> int:
        """How many full tuples went over links; fails if one went twice in a flow."""
        shipped: dict[tuple[str, str, str], list[tuple[int, ...]]] = defaultdict(list)
        for where, rows in self.rows(sites, Purpose.TUPLES):
            ids = [name for name in rows.column_names if name.endswith(".id")]
            assert ids, "rows can be told apart"
            shipped[where] += zip(*(rows.column(name).to_pylist() for name in ids), strict=True)
        for where, found in shipped.items():
            assert [row for row, count in Counter(found).items() if count > 1] == [], where
        return sum(map(len, shipped.values()))


@pytest.mark.usefixtures("laid_out_once")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("window", ["[RANGE 6 SECONDS]", "[ROWS 5]"])
def test_no_method_ships_a_tuple_twice(way: str, window: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tapped = Tapped()
    tapped.tap(monkeypatch)
    streams = {alias: fixed_stream(number, 24) for number, alias in enumerate("abc")}
    select = "SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id"
    query = parsed(f"{select} FROM a {window}, b {window}, c {window} WHERE a.k = b.k AND b.m = c.m", streams)
    plan = planned(query, {"a": "n1", "b": "n2", "c": "n3"}, "n0", WAYS[way])
    sites = simulated(plan, streams, turn_us=200_000, model_of=lambda *_: LinkModel(latency_us=100_000, loss=0.2))
    feed_in_pieces(sites, streams, rows=4, every_us=300_000)
    sites.crash("n2", 700_000, 400_000)
    sites.run()
    assert answers_of(sites, plan) == law(query, streams, horizon(sites, plan)[0])
    assert tapped.check_nothing_twice(sites) > 30
    told = sum(t.tuples for link in sites.traffic.values() for p, t in link.items() if p == Purpose.TUPLES.value)
    assert told == tapped.check_nothing_twice(sites), "and that is what is accounted for"


def test_no_random_plan_ships_a_tuple_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = 0
    for seed in range(500, 507):
        trial = draw(seed)
        items = ", ".join(f"{alias}.id AS {alias}_id" for alias in parsed_trial(trial).aliases)
        trial = replace(trial, sql=f"SELECT {items} FROM {trial.sql.split(' FROM ')[1]}")
        with monkeypatch.context() as patch:
            tapped = Tapped()
            tapped.tap(patch)
            outcome = run(trial)
        assert outcome.is_right, outcome.verdict
        shipped += tapped.check_nothing_twice(outcome.sites)
    assert shipped > 100


# State is given back


def steady(seed: int, rows: int, keys: int, step_us: int) -> pa.Table:
    state, made = seed, []
    for number in range(rows):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        made.append(((state >> 33) % keys, 1, "x", number * step_us / SECOND))
    return table(made)


BATCHES, BATCH_ROWS, WINDOW_ROWS = 36, 40, 200
# The methods of the two heads, so that each is tried at half the price.
PAIRS = [
    ("SP-S", "SM-S1"),
    ("SP-D", "SM-S2"),
    ("SM-D1", "SM-D2"),
    ("SM-S1 Bloom", "SM-D1 Bloom"),
    ("SM-S2 Bloom", "SM-D2 Bloom"),
]


@cache
def steady_streams() -> dict[str, pa.Table]:
    rows = BATCHES * BATCH_ROWS
    return {alias: steady(seed, rows, 400, SECOND // 2) for seed, alias in enumerate("ab")}


def kept_rows(sites: SimulatedSites) -> dict[str, int]:
    return {name: sum(segment.rows for segment in site.ledger.segments) for name, site in sites.sites.items()}


@pytest.mark.usefixtures("laid_out_once")
@pytest.mark.parametrize("window", ["[RANGE 100 SECONDS]", "[TUMBLE 100 SECONDS]", f"[ROWS {WINDOW_ROWS}]"])
@pytest.mark.parametrize("ways", PAIRS, ids=" and ".join)
def test_a_steady_stream_needs_no_more_and_no_more_room(ways: tuple[str, str], window: str) -> None:
    streams, homes = steady_streams(), {"a": "n1", "b": "n2"}
    query = parsed(f"SELECT a.id AS a_id, b.id AS b_id FROM a {window}, b {window} WHERE a.k = b.k", streams)
    hops = {"a": [replace(WAYS[ways[0]], alias="b")], "b": [replace(WAYS[ways[1]], alias="a")]}
    plan = explicit(query, dict.fromkeys(homes, SCHEMA.names), homes, "n0", hops)
    sites = simulated(plan, streams, turn_us=100_000, model_of=lambda *_: LinkModel(latency_us=50_000))
    end_us = feed_in_pieces(sites, streams, BATCH_ROWS, every_us=300_000)
    sites.kernel.run(until_us=end_us // 2)
    half = {name: (site.peak_rows, len(site.shelf)) for name, site in sites.sites.items()}
    sites.run()
    assert answers_of(sites, plan) == law(query, streams, horizon(sites, plan)[0])
    assert sum(site.turns for site in sites.sites.values()) > 150
    for name, site in sites.sites.items():
        assert site.peak_rows <= half[name][0] * 1.25, f"{name} keeps more and more"
        assert site.peak_rows <= 13 * WINDOW_ROWS, f"{name} keeps a lot"
        assert len(site.shelf) <= 1.5 * half[name][1] + 10, f"{name} has more and more on its shelf"
    assert max(kept_rows(sites).values()) <= 12 * WINDOW_ROWS
    for _ in range(2):  # what is acknowledged is given back by the next turn
        for site in sites.sites.values():
            site.start()
        sites.run()
    assert [site.ledger.outbox_bytes for site in sites.sites.values()] == [0, 0, 0]


# Bloom filters


@pytest.mark.usefixtures("laid_out_once")
@pytest.mark.parametrize("method", SEMIJOINS)
def test_false_positives_cost_bytes_but_no_answers(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {
        "a": table((3 * number, 1, "x", number / 20) for number in range(240)),
        "b": table((2 * number, 1, "x", number / 20) for number in range(240)),
    }
    query = parsed("SELECT a.id AS a, b.id AS b FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS] WHERE a.k = b.k", streams)
    plan = planned(query, {"a": "n1", "b": "n2"}, "n0", Hop("", method, bloom=True))

    def shipped(bits: int) -> tuple[Bag, int, int]:
        monkeypatch.setattr(bloom, "BITS_PER_KEY", bits)
        sites = simulated(plan, streams)
        feed_in_pieces(sites, streams, rows=60, every_us=SECOND)
        sites.run()
        purposes = (Purpose.TUPLES, Purpose.KEYS)  # the filters themselves are smaller, of course
        spent = [link[purpose] for link in sites.traffic.values() for purpose in purposes if purpose in link]
        return answers_of(sites, plan), sum(one.tuples for one in spent), sum(one.bytes for one in spent)

    expected = law(query, streams)
    assert expected.total() > 10
    few, many = shipped(16), shipped(1)
    assert few[0] == many[0] == expected
    assert many[1] > 1.2 * few[1] and many[2] > few[2]


@pytest.mark.usefixtures("laid_out_once")
@pytest.mark.parametrize("window", ["[RANGE 10 SECONDS]", "[ROWS 20]"])
@pytest.mark.parametrize("method", SEMIJOINS)
def test_a_filter_that_reaches_back_finds_nobody_twice(method: Method, window: str) -> None:
    """A filter stands for the whole time of all its keys, so it reaches back to rows that are done with."""
    streams, homes = {alias: slow_stream(seed) for seed, alias in enumerate("ab")}, {"a": "n1", "b": "n2"}
    query = parsed(f"SELECT a.id AS a, b.id AS b FROM a {window}, b {window} WHERE a.k = b.k", streams)
    hops = {"a": [Hop("b", Method.SP_D)], "b": [Hop("a", method, bloom=True)]}
    plan = explicit(query, dict.fromkeys(homes, SCHEMA.names), homes, "n0", hops)
    sites = simulated(plan, streams, model_of=lambda *_: LinkModel(latency_us=50_000))
    feed_in_pieces(sites, streams, rows=4, every_us=300_000)
    sites.run()
    assert answers_of(sites, plan) == law(query, streams, horizon(sites, plan)[0])


@cache
def slow_stream(seed: int) -> pa.Table:
    return steady(seed, 160, 12, SECOND // 2)


# Parcels, one by one


class Peers:
    """The engines of a plan without a network: who gets which parcel when is up to the test."""

    def __init__(self, plan: Plan, delays_us: int = 0) -> None:
        self.join: JoinPlan = join_plan_of(plan)
        delays = {scan.stream: delays_us for scan in self.join.scans}
        self.engines = {
            name: SiteEngine(program, delays, MemoryShelf(), run_here)
            for name, program in compile_sites(self.join).items()
        }
        self.ledgers = dict.fromkeys(self.engines, SiteLedger())
        self.answers: list[pa.Table] = []

    def turn(
        self,
        site: str,
        rows: Mapping[str, pa.Table] | None = None,
        parcels: Sequence[tuple[str, bytes]] = (),
        declared: Mapping[str, int] | None = None,
    ) -> bool:
        """A turn of a site; whether it had anything to do."""
        engine, ledger = self.engines[site], self.ledgers[site]
        came = [(sender, engine.shelf.put_bytes("parcel", data), index_parcel(data)) for sender, data in parcels]
        ingested = [self._ingested(site, alias, table) for alias, table in (rows or {}).items()]
        batch = ledger.batch + 1 if ingested else None
        turn = engine.turn(ledger, Arrivals(ingested, came, declared or {}, batch))
        self.ledgers[site] = turn.ledger
        self.answers += [engine.shelf.get(path) for path in turn.answers]
        return replace(turn.ledger, turn=ledger.turn) != ledger

    def _ingested(self, site: str, alias: str, rows: pa.Table) -> Ingested:
        laid_out = lay_out(self.join.scan(alias), self.join.classes, rows, "ts")
        made = ingest(self.engines[site].program, self.engines[site].shelf, alias, laid_out)
        return replace(made, max_ts=int(column(laid_out, TS).max()))

    def parcels(self, sender: str, to: str) -> list[tuple[str, bytes]]:
        """All that lies in an outbox."""
        outbox = self.ledgers[sender].links[to].outbox
        return [(sender, self.engines[sender].shelf.get_bytes(parcel.path)) for parcel in outbox]


def pair_of_peers(window: str = "[RANGE 9 SECONDS]") -> tuple[Peers, Plan]:
    """Stream a at n1 is shipped to n2, which has b and the query."""
    query = parsed(f"SELECT a.id AS a, b.id AS b FROM a {window}, b {window} WHERE a.k = b.k", "ab")
    hops = {"a": [Hop("b", Method.SP_D)], "b": [Hop("a", Method.SP_S)]}
    plan = explicit(query, dict.fromkeys("ab", SCHEMA.names), {"a": "n1", "b": "n2"}, "n2", hops)
    return Peers(plan), plan


def three_parcels() -> tuple[Peers, Plan, list[tuple[str, bytes]]]:
    peers, plan = pair_of_peers()
    whole = at(1, 2, 3, 4, 5, 6)
    for low in (0, 2, 4):
        peers.turn("n1", {"a": whole.slice(low, 2)})
    peers.turn("n2", {"b": at(3.5)})
    parcels = peers.parcels("n1", "n2")
    assert len(parcels) == 3
    return peers, plan, parcels


def found(peers: Peers, plan: Plan) -> Bag:
    return bag_of(finish(plan, peers.answers, dict.fromkeys("ab", SCHEMA)))


WHOLE = Counter({(number, 0): 1 for number in range(6)})


def test_a_gap_is_waited_for() -> None:
    peers, plan, parcels = three_parcels()
    before = peers.ledgers["n2"]
    assert not peers.turn("n2", parcels=parcels[1:]), "nothing can be done"
    assert replace(peers.ledgers["n2"], turn=before.turn) == before
    assert found(peers, plan) == Counter()
    assert peers.turn("n2", parcels=parcels[:1])
    assert peers.ledgers["n2"].received == {"n1": 1}
    assert found(peers, plan) == Counter({(0, 0): 1, (1, 0): 1})
    peers.turn("n2", parcels=parcels[2:])
    assert peers.ledgers["n2"].received == {"n1": 1}, "the second is still missing"
    peers.turn("n2", parcels=parcels[1:])
    assert peers.ledgers["n2"].received == {"n1": 3}
    assert found(peers, plan) == WHOLE


def test_a_second_delivery_changes_nothing() -> None:
    peers, plan, parcels = three_parcels()
    peers.turn("n2", parcels=[*parcels, *parcels, parcels[0]])
    assert found(peers, plan) == WHOLE
    before = peers.ledgers["n2"]
    for again in (parcels, parcels[:1], parcels[2:]):
        assert not peers.turn("n2", parcels=again)
        assert replace(peers.ledgers["n2"], turn=before.turn) == before
    assert found(peers, plan) == WHOLE


def test_parcels_are_taken_in_the_order_of_their_numbers() -> None:
    straight, plan, parcels = three_parcels()
    straight.turn("n2", parcels=parcels)
    crossed, _, parcels = three_parcels()
    crossed.turn("n2", parcels=[parcels[2], parcels[0], parcels[1]])
    assert found(crossed, plan) == found(straight, plan) == WHOLE
    assert crossed.ledgers["n2"].progress == straight.ledgers["n2"].progress
    assert crossed.ledgers["n2"].received == {"n1": 3}


def test_a_turn_that_is_done_again_gives_the_same_parcels() -> None:
    _, _, parcels = three_parcels()
    peers, _ = pair_of_peers()
    whole = at(1, 2, 3, 4, 5, 6)
    for low in (0, 2, 4):
        before = peers.ledgers["n1"]
        peers.turn("n1", {"a": whole.slice(low, 2)})
        peers.ledgers["n1"] = before  # it crashed before the ledger was durable
        peers.turn("n1", {"a": whole.slice(low, 2)})
    assert peers.parcels("n1", "n2") == parcels


def test_what_is_acknowledged_leaves_the_outbox() -> None:
    peers, _, _ = three_parcels()
    engine = peers.engines["n1"]
    for upto, left in ((-1, [1, 2, 3]), (0, [1, 2, 3]), (2, [3]), (1, [3]), (3, [])):
        peers.ledgers["n1"] = engine.acknowledged(peers.ledgers["n1"], "n2", upto)
        assert [parcel.number for parcel in peers.ledgers["n1"].links["n2"].outbox] == left
    peers.turn("n1", {"a": at(7)})
    assert [parcel.number for parcel in peers.ledgers["n1"].links["n2"].outbox] == [4], "numbers go on"


# A slow link


@pytest.mark.usefixtures("laid_out_once")
@pytest.mark.parametrize("way", WAYS)
def test_a_slow_link_delays_answers_and_changes_none(way: str) -> None:
    query, streams = shape("chain", 2, "[RANGE 6 SECONDS]")
    plan = planned(query, {"a": "n1", "b": "n2"}, "n0", WAYS[way])

    def last_answer_us(slow: LinkModel) -> int:
        sites = simulated(plan, streams, model_of=lambda *ends: slow if "n2" in ends else FAST)
        feed_in_pieces(sites, streams, rows=5, every_us=130_000)
        last, given = 0, 0
        while sites.kernel.run(max_events=1):
            if len(sites.answers) > given:
                last, given = sites.kernel.now_us, len(sites.answers)
        assert answers_of(sites, plan) == shape_law("chain", 2, "[RANGE 6 SECONDS]", None)
        return last

    fast_us = last_answer_us(FAST)
    assert last_answer_us(LinkModel(latency_us=20 * SECOND)) >= fast_us + 19 * SECOND
    assert last_answer_us(LinkModel(latency_us=1_000, bandwidth_bps=800)) >= fast_us + SECOND


FAST = LinkModel(latency_us=1_000)


# Idle streams


def one_site(sql: str) -> tuple[Plan, Peers]:
    columns = dict.fromkeys("ab", SCHEMA.names)
    plan = central(parsed(sql, "ab"), columns, {"a": "n1", "b": "n1"}, "n1")
    return plan, Peers(plan)


ROWS_AND_RANGE = "SELECT a.id AS a, b.id AS b FROM a [ROWS 2], b [RANGE 60 SECONDS] WHERE a.k = b.k"


def test_a_declared_instant_lets_a_rows_query_go_on() -> None:
    plan, peers = one_site(ROWS_AND_RANGE)
    peers.turn("n1", {"a": at(1, 2, 3), "b": at(5, 8)})
    assert found(peers, plan) == Counter(), "rows of a may still come before those of b, and a's third is not counted"
    assert peers.turn("n1", declared={"a": 6 * SECOND})
    assert found(peers, plan) == Counter({(1, 0): 1, (2, 0): 1}), "b at 5 has the last two rows of a; b at 8 waits"
    assert peers.ledgers["n1"].progress["a"] == 6 * SECOND
    assert not peers.turn("n1", declared={"a": 6 * SECOND}), "said twice is said once"
    peers.turn("n1", declared={"a": 4 * SECOND})
    assert peers.ledgers["n1"].progress["a"] == 6 * SECOND, "no way back"
    peers.turn("n1", {"a": at(7, 9)})
    assert found(peers, plan)[0, 1] == 1, "a at 7, numbered 0 here, is seen by b at 8"
    assert found(peers, plan).total() == 5, "with a at 3; and a at 7 as a head sees b at 5"


def test_an_instant_can_be_declared_for_a_stream_that_never_said_anything() -> None:
    _, peers = one_site(ROWS_AND_RANGE)
    peers.turn("n1", {"b": at(5)})
    assert "a" not in peers.ledgers["n1"].progress
    assert peers.turn("n1", declared={"a": 9 * SECOND})
    assert peers.ledgers["n1"].progress["a"] == 9 * SECOND


def test_rows_before_the_declared_instant_are_late() -> None:
    columns, homes = dict.fromkeys("ab", SCHEMA.names), {"a": "n1", "b": "n1"}
    plan = central(parsed(ROWS_AND_RANGE, "ab"), columns, homes, "n1")
    sites = simulated(plan, "ab")
    sites.feed(0, {"a": at(1, 2), "b": at(5)})
    sites.run()
    site = sites.sites["n1"]
    assert answers_of(sites, plan) == Counter()
    site.ledger = site.engine.turn(site.ledger, Arrivals(declared={"a": 6 * SECOND})).ledger
    assert watermark(site.ledger.streams["a"], 0) == 6 * SECOND
    sites.feed(sites.kernel.now_us, {"a": at(3, 5.999999, 6, 9), "b": at(7)})
    sites.run()
    assert site.ledger.streams["a"].late == 2
    # b at 7 sees the rows of a at 2 and at 6: what came too late is not counted.
    assert answers_of(sites, plan)[1, 0] == 1 and answers_of(sites, plan)[2, 0] >= 1
    assert {a for a, _ in answers_of(sites, plan)} == {1, 2}


def test_a_flow_has_one_form_of_its_own() -> None:
    """Full tuples are rows or partial combinations: what the count of shipped tuples rests on."""
    for method in Method:
        query, streams = shape("chain", 3, "[ROWS 5]")
        plan = planned(query, {alias: f"n{n}" for n, alias in enumerate(streams)}, "n0", Hop("", method))
        for program in compile_sites(join_plan_of(plan)).values():
            full = [ship.flow for ship in program.ships if ship.flow.purpose is Purpose.TUPLES]
            assert {flow.form for flow in full} <= {Form.ROW, Form.POINT}
