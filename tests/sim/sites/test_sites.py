"""Simulated sites against the oracle: every method on every shape of join graph, links and crashes, what is kept."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pytest
from sim.sites.streams import (
    HOPS,
    KINDS,
    SECOND,
    SEMIJOINS,
    answers_of,
    expected,
    parsed,
    planned,
    steady,
    table,
)

from watersmeet.plan.nodes import Hop, Method, Plan, join_plan_of
from watersmeet.planners.local import local
from watersmeet.planners.sited import explicit
from watersmeet.program.operators import Purpose
from watersmeet.program.site.streams import StreamScan
from watersmeet.program.storage import bloom
from watersmeet.program.storage.packing import unpack_rows
from watersmeet.program.storage.wire import index_parcel, unpack_schema
from watersmeet.query.bags import Bag
from watersmeet.query.model import JoinQuery
from watersmeet.sim.internet.links import LinkModel, Network
from watersmeet.sim.sites import simulated as sites_module
from watersmeet.sim.sites.rows import lay_out
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.trial import SCHEMA, Trial, TrialQuery, answered_before, draw, edges_of, run


def simulated(plan: Plan, streams: Iterable[str], **options: Any) -> SimulatedSites:
    return SimulatedSites(plan, dict.fromkeys(streams, "ts"), **options)


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
    known = _LAID_OUT

    def remembering(scan: StreamScan, rows: pa.Table, *more: str) -> pa.Table:
        key = repr(scan), id(rows), more
        if key not in known:
            known[key] = rows, lay_out(scan, rows, *more)
        return known[key][1]

    monkeypatch.setattr(sites_module, "lay_out", remembering)


_LAID_OUT: dict[object, tuple[object, pa.Table]] = {}


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
def shape(topology: str, count: int, window: str) -> tuple[JoinQuery, dict[str, pa.Table]]:
    aliases = "abcde"[:count]
    edges = zip(edges_of(topology, aliases), ATTRIBUTES[topology], strict=False)
    where = " AND ".join(f"{one}.{name} = {other}.{name}" for (one, other), name in edges)
    select = ", ".join(f"{alias}.id AS {alias}_id" for alias in aliases)
    sql = f"SELECT {select} FROM {', '.join(f'{alias} {window}' for alias in aliases)} WHERE {where}"
    rows = {2: 14, 3: 12, 4: 9, 5: 8}[count]
    return parsed(sql, aliases), {alias: fixed_stream(number, rows) for number, alias in enumerate(aliases)}


@cache
def shape_answers(topology: str, count: int, window: str, heads_before_us: int | None) -> Bag:
    return expected(*shape(topology, count, window), heads_before_us)


EVERYTHING = [(*one, window, kind) for one in SHAPES for window in WINDOWS for kind in KINDS]


def is_in_the_normal_run(topology: str, count: int, window: str, kind: str) -> bool:
    """Two-kind joins in full; of three- and four-kind joins each method on each shape, the windows alternating."""
    number = SHAPES.index((topology, count)) + list(KINDS).index(kind) - WINDOWS.index(window)
    return count == 2 or (count < 5 and number % len(WINDOWS) == 0)


def check_shape(topology: str, count: int, window: str, kind_of: Mapping[str, Hop | None]) -> None:
    """Run a shape, each head with one-kind joins of its own kind, and compare with the oracle."""
    query, tables = shape(topology, count, window)
    homes = {alias: f"n{number + 1}" for number, alias in enumerate(tables)}
    heads = {
        head: join_plan_of(planned(query, homes, "n0", kind)).heads[query.aliases.index(head)].hops
        for head, kind in kind_of.items()
    }
    plan = explicit(query, dict.fromkeys(homes, SCHEMA.names), homes, "n0", heads)
    sites = simulated(plan, tables, interval_us=200_000, buckets=2 if count == 3 else 1)
    feed_in_pieces(sites, tables, rows=7, every_us=300_000)
    sites.run()
    before_us, is_begun = answered_before(sites, plan)
    wanted = shape_answers(topology, count, window, before_us)
    assert is_begun and wanted.total() > 3, "a dataset that asks for something"
    assert answers_of(sites) == wanted


@pytest.mark.few(25)
@pytest.mark.usefixtures("laid_out_once")
@pytest.mark.parametrize(
    ("topology", "count", "window", "kind"), [one for one in EVERYTHING if is_in_the_normal_run(*one)]
)
def test_every_method_is_exact_on_every_shape(topology: str, count: int, window: str, kind: str) -> None:
    check_shape(topology, count, window, dict.fromkeys("abcde"[:count], KINDS[kind]))


@pytest.mark.usefixtures("laid_out_once")
@pytest.mark.parametrize("number", range(4))
def test_heads_of_a_five_way_join_may_go_different_ways(number: int) -> None:
    topology, count = [one for one in SHAPES if one[1] == 5][number]
    own = [list(KINDS.values())[(3 * number + 2 * head) % len(KINDS)] for head in range(count)]
    check_shape(topology, count, WINDOWS[number], dict(zip("abcde", own, strict=True)))


@pytest.mark.soak
@pytest.mark.usefixtures("laid_out_once")
@pytest.mark.parametrize(
    ("topology", "count", "window", "kind"), [one for one in EVERYTHING if not is_in_the_normal_run(*one)]
)
def test_the_other_methods_on_the_other_shapes(topology: str, count: int, window: str, kind: str) -> None:
    check_shape(topology, count, window, dict.fromkeys("abcde"[:count], KINDS[kind]))


# Long runs of one key: more than are looked at one by one


@cache
def crowded(seed: int) -> pa.Table:
    """Few keys and many ties in one batch, in whose sorting the order of ties is easily lost."""
    steps, keys = steady(seed, 100, 4, 1), steady(seed + 7, 100, 5, 1)
    clock = accumulate(int(step == 0) for step in steps.column("k").to_pylist())
    return table((max(key, 2), 1, "x", ts) for key, ts in zip(keys.column("k").to_pylist(), clock, strict=True))


CROWDED = "SELECT a.id AS a, b.id AS b FROM a [ROWS 6], b [RANGE 3 SECONDS] WHERE a.k = b.k"


@pytest.mark.usefixtures("laid_out_once")
@pytest.mark.parametrize("kind", KINDS)
def test_ties_of_a_hot_key_keep_their_order(kind: str) -> None:
    streams = {"a": crowded(1), "b": crowded(2)}
    query = parsed(CROWDED, streams)
    plan = planned(query, {"a": "n1", "b": "n2"}, "n0", KINDS[kind])
    sites = simulated(plan, streams)
    feed_in_pieces(sites, streams, rows=50, every_us=SECOND)
    sites.run()
    assert answers_of(sites) == expected(query, streams, answered_before(sites, plan)[0])


def test_ties_of_a_hot_key_keep_their_order_at_one_site() -> None:
    streams = {"a": crowded(1), "b": crowded(2)}
    query = parsed(CROWDED, streams)
    plan = local(query, dict.fromkeys(streams, SCHEMA.names), "n1")
    sites = simulated(plan, streams)
    sites.feed(0, streams)
    sites.run()
    assert answers_of(sites) == expected(query, streams, answered_before(sites, plan)[0])
    assert answers_of(sites).total() > 100


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
            shipments = sites.programs[sender].flows_to(receiver)
            for entry in index_parcel(data).entries:
                shipment = shipments[entry.flow]
                where = sender, receiver, shipment.arrives_as
                if entry.schema:
                    assert where not in schemas, "a schema travels once"
                    schemas[where] = unpack_schema(entry.schema)
                if entry.rows and shipment.purpose is purpose:
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


@pytest.mark.few(8)
@pytest.mark.usefixtures("laid_out_once")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", ["[RANGE 6 SECONDS]", "[ROWS 5]"])
def test_no_method_ships_a_tuple_twice(kind: str, window: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tapped = Tapped()
    tapped.tap(monkeypatch)
    streams = {alias: fixed_stream(number, 24) for number, alias in enumerate("abc")}
    select = "SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id"
    query = parsed(f"{select} FROM a {window}, b {window}, c {window} WHERE a.k = b.k AND b.m = c.m", streams)
    plan = planned(query, {"a": "n1", "b": "n2", "c": "n3"}, "n0", KINDS[kind])
    sites = simulated(plan, streams, interval_us=200_000, model_of=lambda *_: LinkModel(latency_us=100_000, loss=0.2))
    feed_in_pieces(sites, streams, rows=4, every_us=300_000)
    sites.crash("n2", 700_000, 400_000)
    sites.run()
    assert answers_of(sites) == expected(query, streams, answered_before(sites, plan)[0])
    assert tapped.check_nothing_twice(sites) > 30
    reported = sum(t.tuples for link in sites.traffic.values() for p, t in link.items() if p == Purpose.TUPLES.value)
    assert reported == tapped.check_nothing_twice(sites), "and that is what is accounted for"


def test_no_random_plan_ships_a_tuple_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = 0
    for seed in range(500, 515):
        trial = draw(seed)
        trial = replace(trial, queries=tuple(with_all_ids(trial, query) for query in trial.queries))
        with monkeypatch.context() as patch:
            tapped = Tapped()
            tapped.tap(patch)
            outcome = run(trial)
        assert outcome.is_right, outcome.verdict
        shipped += tapped.check_nothing_twice(outcome.sites)
    assert shipped > 100


def with_all_ids(trial: Trial, query: TrialQuery) -> TrialQuery:
    items = ", ".join(f"{alias}.id AS {alias}_id" for alias in trial.parsed(query).aliases)
    return replace(query, sql=f"SELECT {items} FROM {query.sql.split(' FROM ')[1]}")


# State is evicted


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


@pytest.mark.few(5)
@pytest.mark.usefixtures("laid_out_once")
@pytest.mark.parametrize("window", ["[RANGE 100 SECONDS]", "[TUMBLE 100 SECONDS]", f"[ROWS {WINDOW_ROWS}]"])
@pytest.mark.parametrize("kinds", PAIRS, ids=" and ".join)
def test_a_steady_stream_needs_no_more_and_no_more_room(kinds: tuple[str, str], window: str) -> None:
    streams, homes = steady_streams(), {"a": "n1", "b": "n2"}
    query = parsed(f"SELECT a.id AS a_id, b.id AS b_id FROM a {window}, b {window} WHERE a.k = b.k", streams)
    hops = {"a": [replace(HOPS[kinds[0]], alias="b")], "b": [replace(HOPS[kinds[1]], alias="a")]}
    plan = explicit(query, dict.fromkeys(homes, SCHEMA.names), homes, "n0", hops)
    sites = simulated(plan, streams, interval_us=100_000, model_of=lambda *_: LinkModel(latency_us=50_000))
    end_us = feed_in_pieces(sites, streams, BATCH_ROWS, every_us=300_000)
    sites.kernel.run(until_us=end_us // 2)
    half = {name: (site.peak_rows, len(site.shelf)) for name, site in sites.sites.items()}
    sites.run()
    assert answers_of(sites) == expected(query, streams, answered_before(sites, plan)[0])
    assert sum(site.micro_batches for site in sites.sites.values()) > 150
    for name, site in sites.sites.items():
        assert site.peak_rows <= half[name][0] * 1.25, f"{name} keeps more and more"
        assert site.peak_rows <= 13 * WINDOW_ROWS, f"{name} keeps a lot"
        assert len(site.shelf) <= 1.5 * half[name][1] + 10, f"{name} has more and more on its shelf"
    assert max(kept_rows(sites).values()) <= 12 * WINDOW_ROWS
    for _ in range(2):  # what is acknowledged leaves the outbox with the next micro-batch
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
        return answers_of(sites), sum(one.tuples for one in spent), sum(one.bytes for one in spent)

    wanted = expected(query, streams)
    assert wanted.total() > 10
    few, many = shipped(16), shipped(1)
    assert few[0] == many[0] == wanted
    assert many[1] > 1.2 * few[1] and many[2] > few[2]


@pytest.mark.few(3)
@pytest.mark.usefixtures("laid_out_once")
@pytest.mark.parametrize("window", ["[RANGE 10 SECONDS]", "[ROWS 20]"])
@pytest.mark.parametrize("method", SEMIJOINS)
def test_a_filter_that_reaches_back_finds_nobody_twice(method: Method, window: str) -> None:
    """A filter stands for the whole time of all its keys, so it reaches back to rows that have met all they can."""
    streams, homes = {alias: slow_stream(seed) for seed, alias in enumerate("ab")}, {"a": "n1", "b": "n2"}
    query = parsed(f"SELECT a.id AS a, b.id AS b FROM a {window}, b {window} WHERE a.k = b.k", streams)
    hops = {"a": [Hop("b", Method.SP_D)], "b": [Hop("a", method, bloom=True)]}
    plan = explicit(query, dict.fromkeys(homes, SCHEMA.names), homes, "n0", hops)
    sites = simulated(plan, streams, model_of=lambda *_: LinkModel(latency_us=50_000))
    feed_in_pieces(sites, streams, rows=4, every_us=300_000)
    sites.run()
    assert answers_of(sites) == expected(query, streams, answered_before(sites, plan)[0])


@cache
def slow_stream(seed: int) -> pa.Table:
    return steady(seed, 160, 12, SECOND // 2)


# A slow link


@pytest.mark.usefixtures("laid_out_once")
@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_link_delays_answers_and_changes_none(kind: str) -> None:
    query, streams = shape("chain", 2, "[RANGE 6 SECONDS]")
    plan = planned(query, {"a": "n1", "b": "n2"}, "n0", KINDS[kind])

    def last_answer_us(slow: LinkModel) -> int:
        sites = simulated(plan, streams, model_of=lambda *ends: slow if "n2" in ends else FAST)
        feed_in_pieces(sites, streams, rows=5, every_us=130_000)
        last, given = 0, 0
        while sites.kernel.run(max_events=1):
            if len(sites.answers()) > given:
                last, given = sites.kernel.now_us, len(sites.answers())
        assert answers_of(sites) == shape_answers("chain", 2, "[RANGE 6 SECONDS]", None)
        return last

    fast_us = last_answer_us(FAST)
    assert last_answer_us(LinkModel(latency_us=20 * SECOND)) >= fast_us + 19 * SECOND
    assert last_answer_us(LinkModel(latency_us=1_000, bandwidth_bps=800)) >= fast_us + SECOND


FAST = LinkModel(latency_us=1_000)
