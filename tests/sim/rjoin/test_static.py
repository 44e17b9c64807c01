"""RJoin on overlays at rest: Delta, windows, one-time queries, removal, DISTINCT, expiry, counting, id movement."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from random import Random
from statistics import median

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.program.rjoin.arrays import NONE, Ints, Longs
from watersmeet.program.rjoin.settings import NodeSettings, Strategy
from watersmeet.program.rjoin.tables import Catalog, Known, Widths, table_of
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.balance import balance
from watersmeet.sim.overlays.identifiers import SPACE
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.overlays.size import estimated_nodes, longest_route_us
from watersmeet.sim.rjoin.expressions import judge, project
from watersmeet.sim.rjoin.measured import Measurement, RJoinExperiment, measure
from watersmeet.sim.rjoin.static import StaticRJoin
from watersmeet.sim.rjoin.workload import ZipfWorkload

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
STREAMS = ("r", "s", "t")
EVENT_TIMES = dict.fromkeys(STREAMS, "ts")
MS, SECOND = 1_000, 1_000_000
CHAIN = """SELECT r.id AS r_id, s.id AS s_id, t.id AS t_id
    FROM r [UNBOUNDED], s [UNBOUNDED], t [UNBOUNDED] WHERE r.b = s.a AND s.b = t.a"""
PAIR = "SELECT r.id AS r_id, s.id AS s_id FROM r [UNBOUNDED], s [UNBOUNDED] WHERE r.a = s.a"


@dataclass(frozen=True, slots=True)
class Feed:
    """A tuple and when it is published."""

    at_us: int
    stream: str
    a: int
    b: int
    id: int

    @property
    def table(self) -> pa.Table:
        row = {"a": self.a, "b": self.b, "id": self.id, "ts": self.at_us}
        return pa.Table.from_pylist([row], schema=SCHEMA)


class World:
    """A static network whose hops all take `hop_us`, which a test may change at any time."""

    def __init__(self, *sqls: str, nodes: int = 20, seed: int = 1, hop_us: int = MS, **settings: object) -> None:
        self.queries = [parse_query(sql, dict.fromkeys(STREAMS, SCHEMA.names)) for sql in sqls]
        catalog = Catalog(dict.fromkeys(STREAMS, SCHEMA), EVENT_TIMES)
        self.known = Known(catalog, Widths.of([catalog.shape(query) for query in self.queries]), judge)
        self.kernel, self.hop_us, self.nodes = Kernel(seed), hop_us, nodes
        self.given: dict[int, list[Ints]] = {}
        self.published: list[Feed] = []
        self.random = Random(seed)
        self.net = StaticRJoin(
            self.kernel,
            Ring.random(nodes, seed),
            self.known,
            replace(NodeSettings(), **settings),  # type: ignore[arg-type]
            delays=self._delays,
            answered=lambda number, rows: self.given.setdefault(number, []).append(rows),
        )

    def _delays(self, hops: Longs) -> Longs:
        return np.full(len(hops), self.hop_us) if self.hop_us > SECOND else hops * self.hop_us

    def submit(self, query: int = 0, home: int = 3, until_us: int | None = None) -> int:
        (number,) = self.net.submit([self.queries[query]], [home], until_us)
        return number

    def feed(self, feeds: Iterable[Feed]) -> None:
        """Publish tuples at their times, anywhere, and let all mail arrive."""
        for feed in feeds:
            self.kernel.run(feed.at_us)
            self.publish(feed)
        self.kernel.run()

    def publish(self, feed: Feed) -> None:
        assert self.kernel.now_us == feed.at_us
        self.net.publish(self.random.randrange(self.nodes), feed.stream, feed.table)
        self.published.append(feed)

    def sweep_at(self, at_us: int) -> None:
        self.kernel.run(at_us)
        self.net.sweep()

    def answers(self, number: int = 0) -> Bag:
        rows = self.given.get(number)
        if not rows:
            return Counter()
        return bag_of(project(self.known.queries[number], table_of(self.known, np.concatenate(rows), number)))

    def reference(self, query: int = 0, feeds: Sequence[Feed] | None = None, start_us: int | None = None) -> Bag:
        """The oracle's answers over tuples, unless told all that were published."""
        feeds = self.published if feeds is None else feeds
        tables = {
            stream: pa.concat_tables([SCHEMA.empty_table(), *(feed.table for feed in feeds if feed.stream == stream)])
            for stream in STREAMS
        }
        return bag_of(answer(self.queries[query], tables, EVENT_TIMES, start_us=start_us))


def drawn(count: int, seed: int, values: int = 4, first_us: int = SECOND, gap_us: int = SECOND) -> list[Feed]:
    random = Random(seed)
    return [
        Feed(
            first_us + number * gap_us,
            random.choice(STREAMS),
            random.randrange(values),
            random.randrange(values),
            number,
        )
        for number in range(count)
    ]


# ---- Delta: example 1 of the paper


@pytest.mark.parametrize(
    ("hold_us", "delay_us", "is_lost"),
    [
        (0, 60 * SECOND, False),  # the bound holds: nothing is under way for longer
        (0, 2 * SECOND, True),  # it does not: the query needs ten seconds
        (20 * SECOND, 2 * SECOND, False),  # but who holds tuples for long enough has them still
    ],
)
def test_a_tuple_that_overtakes_its_query_is_met_as_long_as_it_is_held(
    hold_us: int, delay_us: int, is_lost: bool
) -> None:
    world = World(PAIR, strategy=Strategy.FIRST, hold_us=hold_us, delay_us=delay_us)
    world.hop_us = 10 * SECOND
    world.submit()
    world.hop_us = MS
    world.kernel.run(SECOND)
    world.publish(Feed(SECOND, "r", 1, 0, 7))
    world.sweep_at(5 * SECOND)
    world.kernel.run()
    assert world.kernel.now_us >= 10 * SECOND  # the query has come only now
    world.feed([Feed(30 * SECOND, "s", 1, 0, 8)])
    assert world.answers() == (Counter() if is_lost else Counter({(7, 8): 1}))
    assert world.reference() == Counter({(7, 8): 1})


def test_without_a_sweep_nothing_is_lost_however_small_the_bound() -> None:
    world = World(PAIR, strategy=Strategy.FIRST, hold_us=0, delay_us=0)
    world.hop_us = 10 * SECOND
    world.submit()
    world.hop_us = MS
    world.feed([Feed(SECOND, "r", 1, 0, 7), Feed(2 * SECOND, "s", 1, 0, 8)])
    assert world.answers() == world.reference() == Counter({(7, 8): 1})


@pytest.mark.parametrize("successors", [16, 64, 256])
def test_a_node_tells_the_number_of_nodes_by_its_successors(successors: int) -> None:
    # The arc of k of n successors is Gamma(k) / n, so the estimate's logarithm has a deviation of about 1 / sqrt(k).
    factor = exp(5 / successors**0.5)
    for seed in range(5):
        ring, nodes = Ring.random(1_000, seed), 1_000
        points = ring.identifiers.tolist()
        estimates = [
            estimated_nodes(points[node], [points[(node + step) % nodes] for step in range(1, successors + 1)])
            for node in range(nodes)
        ]
        assert nodes / factor < min(estimates) < max(estimates) < nodes * factor
        assert abs(log(median(estimates) / nodes)) < 0.1
        # Fewer successors tell less: the bound is not an empty one.
        if successors == 16:
            assert max(estimates) > nodes * exp(1.5 / successors**0.5)


def test_a_node_alone_and_a_few_nodes() -> None:
    assert estimated_nodes(5, []) == 1
    assert estimated_nodes(SPACE - SPACE // 8, [SPACE // 8]) == 4  # over the zero of the circle


@pytest.mark.parametrize("nodes", [1, 2, 3, 100, 1_000])
def test_no_route_is_longer_than_the_bound(nodes: int) -> None:
    chance = np.random.default_rng(nodes)
    for seed in range(3):
        ring = Ring.random(nodes, seed)
        sources = chance.integers(0, nodes, 20_000)
        hops = ring.hops(sources, chance.integers(0, SPACE, 20_000, dtype=np.uint64))
        assert hops.max() * 50_000 <= longest_route_us(nodes, 50_000)
        if nodes == 1_000:  # nor is the bound far off
            assert hops.max() * 50_000 >= 0.4 * longest_route_us(nodes, 50_000)


# ---- what is asked, and for how long


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_query_asked_once_is_about_what_was_published(strategy: Strategy) -> None:
    sql = CHAIN.replace("s [UNBOUNDED]", "s [RANGE 9 SECONDS]")
    world = World(sql, strategy=strategy)
    world.feed(drawn(40, seed=3))
    before = list(world.published)
    number = world.net.ask_once(world.queries[0], 5)
    world.feed(drawn(20, seed=4, first_us=world.kernel.now_us + 1))
    assert world.answers(number) == world.reference(feeds=before)
    assert world.answers(number).total() > 20
    assert world.reference() != world.reference(feeds=before)


def test_a_query_asked_once_knows_no_tuple_that_comes_while_it_is_under_way() -> None:
    world = World(PAIR, strategy=Strategy.FIRST)
    world.feed([Feed(SECOND, "r", 1, 0, 1)])
    world.kernel.run(2 * SECOND)
    world.hop_us = 10 * SECOND
    number = world.net.ask_once(world.queries[0], 5)
    world.hop_us = MS
    world.feed([Feed(3 * SECOND, "s", 1, 0, 2)])
    assert world.answers(number) == Counter()


def test_a_continuous_query_is_about_tuples_from_its_time_on() -> None:
    world = World(CHAIN)
    world.feed(drawn(20, seed=5))
    start_us = world.kernel.now_us
    number = world.submit()
    world.feed(drawn(25, seed=6, first_us=start_us))  # one at the very time
    assert world.answers(number) == world.reference(start_us=start_us)
    assert 0 < world.answers(number).total() < world.reference().total()


@pytest.mark.parametrize("strategy", list(Strategy))
def test_removal_ends_answers_with_later_tuples_and_only_those(strategy: Strategy) -> None:
    world = World(CHAIN, CHAIN, strategy=strategy)
    gone, stays = world.submit(0), world.submit(1)
    feeds = drawn(50, seed=7)
    for feed in feeds[:30]:
        world.kernel.run(feed.at_us)
        world.publish(feed)
    world.kernel.run(world.kernel.now_us + 1)  # the last tuple is under way
    sent = world.net.traffic.queries.sum()
    world.net.remove(gone)
    assert world.net.traffic.queries.sum() - sent == world.nodes - 1
    world.feed(feeds[30:])
    assert world.answers(gone) == world.reference(feeds=feeds[:30])
    assert world.answers(stays) == world.reference()
    assert 0 < world.answers(gone).total() < world.answers(stays).total()
    world.sweep_at(world.kernel.now_us + 300 * SECOND)
    assert world.net.shard.stored().queries.sum() > 0  # of the one that stays
    world.net.remove(stays)
    world.sweep_at(world.kernel.now_us + 300 * SECOND)
    assert world.net.shard.stored().queries.sum() == 0


def test_removal_of_a_query_that_has_ended_does_not_let_it_begin_again() -> None:
    world = World(PAIR, strategy=Strategy.FIRST)
    world.feed([Feed(SECOND, "r", 1, 0, 1)])
    world.kernel.run(2 * SECOND)
    world.hop_us = 10 * SECOND
    number = world.net.ask_once(world.queries[0], 5)
    world.hop_us = MS
    world.kernel.run(3 * SECOND)
    world.publish(Feed(3 * SECOND, "s", 1, 0, 2))
    world.kernel.run(4 * SECOND)
    world.net.remove(number)
    world.kernel.run()
    assert world.answers(number) == Counter()


def test_a_query_ends_by_itself_at_its_time() -> None:
    world = World(CHAIN)
    feeds = drawn(40, seed=8)
    until_us = feeds[24].at_us
    number = world.submit(until_us=until_us)
    world.feed(feeds)
    assert world.answers(number) == world.reference(feeds=feeds[:25])
    assert world.answers(number).total() > 5
    assert world.reference() != world.reference(feeds=feeds[:25])


# ---- DISTINCT


def distinct(sql: str) -> str:
    return sql.replace("SELECT", "SELECT DISTINCT")


@pytest.mark.parametrize("strategy", [Strategy.RJOIN, Strategy.FIRST])
def test_distinct_answers_are_a_set_and_take_fewer_rewritten_queries(strategy: Strategy) -> None:
    sql = CHAIN.replace("r.id AS r_id, s.id AS s_id, t.id AS t_id", "r.a AS r_a, t.b AS t_b")
    stored, made = [], []
    for text in (sql, distinct(sql)):
        world = World(text, strategy=strategy)
        world.submit()
        world.feed(drawn(60, seed=9, values=3))
        assert world.answers() == world.reference()
        stored.append(int(world.net.shard.stored().queries.sum()))
        made.append(sum(len(rows) for rows in world.given[0]))
        if text != sql:
            assert set(world.answers().values()) == {1}
    assert stored[1] < 0.6 * stored[0]
    assert made[1] < 0.6 * made[0]


@pytest.mark.parametrize(
    "where", ["r.a = s.b + 1", "r.b + 1 = s.a", "r.a = s.a AND r.b < s.b", "r.ts = s.ts AND r.a = s.a"]
)
def test_distinct_keeps_apart_what_a_later_predicate_tells_apart(where: str) -> None:
    world = World(f"SELECT DISTINCT s.id AS s_id FROM r [UNBOUNDED], s [UNBOUNDED] WHERE {where}")
    world.submit()
    # Tuples of r that show the same, namely nothing: only some of them satisfy the predicate.
    feeds = [
        Feed((number // 2 + 1) * SECOND, "rs"[number % 2], number // 2 % 3, (number * 7 + 1) % 5, number)
        for number in range(40)
    ]
    world.feed(feeds)
    assert world.answers() == world.reference()
    assert world.answers().total() > 3


# ---- windows


@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("pairs", [False, True])
def test_windows_of_three_kinds_in_one_query(strategy: Strategy, pairs: bool) -> None:
    sql = """SELECT r.id AS r_id, s.id AS s_id, t.id AS t_id
        FROM r [ROWS 2], s [RANGE 3 SECONDS], t [TUMBLE 10 SECONDS] WHERE r.a = s.a AND s.a = t.a"""
    world = World(sql, strategy=strategy, pairs=pairs, delay_us=2 * SECOND)
    world.submit()
    came = [("r", 1), ("r", 2), ("r", 3), ("s", 4), ("t", 5), ("s", 9), ("r", 10), ("t", 11)]
    world.feed([Feed(second * SECOND, stream, 1, 0, second) for stream, second in came])
    expected = [
        *((2, 4, 5), (3, 4, 5)),  # at 5 the last two of r are 2 and 3
        *((2, 9, 5), (3, 9, 5)),  # at 9 the tumbling window still has 5, and 4 is older than three seconds
        *((3, 9, 11), (10, 9, 11)),  # at 11 the last two of r are 3 and 10, and 5 is in the interval before
    ]
    assert world.answers() == Counter(expected)
    assert world.reference() == Counter(expected)


@pytest.mark.parametrize("delay_us", [60 * SECOND, 0])
def test_a_rows_window_waits_for_tuples_that_are_under_way(delay_us: int) -> None:
    sql = "SELECT r.id AS r_id, s.id AS s_id FROM r [ROWS 1], s [UNBOUNDED] WHERE r.a = s.a"
    world = World(sql, strategy=Strategy.FIRST, delay_us=delay_us)
    world.submit()
    world.kernel.run(SECOND)
    world.publish(Feed(SECOND, "r", 1, 0, 1))
    world.kernel.run(2 * SECOND)
    world.hop_us = 10 * SECOND
    world.publish(Feed(2 * SECOND, "r", 2, 0, 2))  # at 3 it is the last of r, though it comes at 12
    world.hop_us = MS
    world.feed([Feed(3 * SECOND, "s", 1, 0, 3)])
    assert world.reference() == Counter()
    assert world.answers() == (Counter() if delay_us else Counter({(1, 3): 1}))  # the bound matters


def test_two_tuples_are_never_further_apart_than_the_window() -> None:
    # By the paper's rule, with one start that moves on, 0 and 6 would meet through 3.
    sql = """SELECT r.id AS r_id, s.id AS s_id, t.id AS t_id
        FROM r [RANGE 4 SECONDS], s [RANGE 4 SECONDS], t [RANGE 4 SECONDS] WHERE r.a = s.a AND s.a = t.a"""
    world = World(sql, strategy=Strategy.FIRST)
    world.submit()
    world.feed([Feed(at * SECOND, stream, 1, 0, at) for stream, at in (("r", 1), ("s", 4), ("t", 5), ("t", 7))])
    assert world.answers() == world.reference() == Counter({(1, 4, 5): 1})


@pytest.mark.parametrize("windows", ["RANGE 5 SECONDS", "TUMBLE 5 SECONDS"])
def test_long_after_the_windows_nothing_is_stored(windows: str) -> None:
    keep_us, delay_us = 5 * SECOND, 3 * SECOND
    world = World(CHAIN.replace("UNBOUNDED", windows), keep_us=keep_us, hold_us=keep_us, delay_us=delay_us)
    world.submit()
    world.feed(drawn(60, seed=10, values=2, gap_us=SECOND // 4))
    assert world.answers() == world.reference()
    assert world.answers().total() > 100
    last_us = world.published[-1].at_us
    full = world.net.shard.stored()
    assert min(full.queries.sum(), full.tuples.sum(), full.held.sum()) > 10
    world.sweep_at(last_us + keep_us + delay_us)
    assert world.net.shard.stored().tuples.sum() > 0  # the last tuple can still matter
    world.sweep_at(last_us + keep_us + delay_us + 1)
    left = world.net.shard.stored()
    assert [left.queries.sum(), left.rows.sum(), left.tuples.sum(), left.held.sum()] == [0, 0, 0, 0]
    # The query itself waits on.
    world.feed(drawn(40, seed=11, values=2, first_us=world.kernel.now_us, gap_us=SECOND // 4))
    assert world.answers() == world.reference()


def test_sweeps_in_between_change_no_answer() -> None:
    sql = CHAIN.replace("UNBOUNDED", "RANGE 5 SECONDS")
    stored = []
    for sweeps in (False, True):
        world = World(sql, keep_us=5 * SECOND, hold_us=5 * SECOND, delay_us=SECOND)
        world.submit()
        for feed in drawn(80, seed=12, values=2, gap_us=SECOND // 2):
            world.kernel.run(feed.at_us)
            world.publish(feed)
            if sweeps:
                world.net.sweep()
        world.kernel.run()
        assert world.answers() == world.reference()
        stored.append(int(world.net.shard.stored().queries.sum()))
    assert stored[1] < 0.4 * stored[0]


# ---- messages for rates


def owners_of(world: World, *names: str) -> list[int]:
    return [int(world.net.shard.host_of(np.array([world.net.shard.names.index(name)]))[0]) for name in names]


def test_rates_that_have_aged_are_asked_for_in_one_hop() -> None:
    world = World(PAIR, nodes=200, hop_us=MS, rate_age_us=10 * SECOND)
    world.submit(home=3)
    world.kernel.run()
    owners = owners_of(world, "r+a", "s+a")
    assert len({3, *owners}) == 3
    first = int(world.net.traffic.rates.sum())
    assert first > 3  # through the overlay to both, and the reply
    assert world.net.traffic.queries.sum() == 1  # then the owner's address is known
    world.submit(home=3)
    world.kernel.run()
    assert world.net.traffic.rates.sum() == first  # known, so not asked for
    world.kernel.run(30 * SECOND)
    world.submit(home=3)
    world.kernel.run()
    assert world.net.traffic.rates.sum() == first + 3  # to one owner, on to the other, and the reply: a hop each
    assert world.net.traffic.queries.sum() == 3
    asked = world.net.traffic.rates[[3, *owners]]
    assert (asked > 0).all()


def test_strategies_without_rates_send_no_messages_for_them() -> None:
    for strategy in Strategy:
        world = World(CHAIN, strategy=strategy)
        world.submit()
        world.feed(drawn(10, seed=1))
        assert (world.net.traffic.rates.sum() > 0) == (strategy is Strategy.RJOIN)


def test_rates_that_age_faster_than_a_reply_comes_do_not_hold_queries_back() -> None:
    world = World(PAIR, CHAIN, hop_us=50 * MS, rate_age_us=60 * MS)
    world.submit(0)
    world.kernel.run()  # it has gone to its key in one hop, so the rate of s.a is still good
    number = world.submit(1)  # and that of r.b is not known; when it comes, the other has aged
    for feed in drawn(20, seed=2, gap_us=SECOND // 10):
        world.kernel.run(feed.at_us, max_events=5_000)
        world.publish(feed)
    world.kernel.run(max_events=20_000)
    assert world.kernel.pending == 0
    assert world.answers(number) == world.reference(1)
    assert world.answers(number).total() > 0


# ---- counting


SMALL = RJoinExperiment(
    workload=ZipfWorkload(relations=5, attributes=3, values=8, ways=3, seed=3),
    nodes=60,
    queries=200,
    tuples=(30, 60),
    warm_up=20,
    seed=5,
)


@pytest.fixture(scope="module")
def seen() -> dict[tuple[Strategy, bool], list[Measurement]]:
    return {
        (strategy, members): measure(replace(SMALL, strategy=strategy, members=members))
        for strategy in Strategy
        for members in (False, True)
    }


def test_answers_are_the_same_for_all_strategies(seen: dict[tuple[Strategy, bool], list[Measurement]]) -> None:
    assert len({tuple(look.answers for look in looks) for looks in seen.values()}) == 1
    assert seen[Strategy.RJOIN, False][1].answers > 1_000


@pytest.mark.parametrize("strategy", list(Strategy))
def test_counting_counts_what_is_made(strategy: Strategy, seen: dict[tuple[Strategy, bool], list[Measurement]]) -> None:
    for counted, made in zip(seen[strategy, False], seen[strategy, True], strict=True):
        assert (counted.load == made.load).all()
        assert (counted.storage == made.storage).all()
        assert counted.held == made.held
        assert counted.answers == made.answers
        assert counted.messages_rates == made.messages_rates
        assert counted.rows < made.rows


def test_rates_pay(seen: dict[tuple[Strategy, bool], list[Measurement]]) -> None:
    apart = {strategy: seen[strategy, False][1].messages_apart for strategy in Strategy}
    assert apart[Strategy.RJOIN] < 0.6 * apart[Strategy.RANDOM]
    assert apart[Strategy.RANDOM] < 0.8 * apart[Strategy.WORST]
    assert 0 < seen[Strategy.RJOIN, False][1].messages_rates < apart[Strategy.RJOIN]


def test_looking_changes_nothing() -> None:
    often = measure(replace(SMALL, tuples=tuple(range(1, 61))))
    for name in ("load", "storage", "levels"):
        for seldom in measure(SMALL):
            assert (getattr(seldom, name) == getattr(often[seldom.tuples - 1], name)).all()
    (end,) = measure(replace(SMALL, tuples=(45,)))  # a run that ends earlier has the same tuples too
    last = often[44]
    assert (end.messages, end.messages_apart, end.messages_rates, end.answers, end.searching, end.held) == (
        *(last.messages, last.messages_apart, last.messages_rates, last.answers, last.searching, last.held),
    )


def test_queries_that_ask_for_themselves_send_more(seen: dict[tuple[Strategy, bool], list[Measurement]]) -> None:
    for look in seen[Strategy.RJOIN, False]:
        assert look.messages_rates < look.messages_rates_apart < look.messages_apart
        assert look.levels.sum() + look.tuples * 2 * SMALL.workload.attributes == look.load.sum()
    asked_again = measure(replace(SMALL, rate_window=10, rate_age=10))[-1]
    assert asked_again.messages_rates > seen[Strategy.RJOIN, False][-1].messages_rates
    assert asked_again.answers == seen[Strategy.RJOIN, False][-1].answers


# ---- id movement


def test_id_movement_evens_loads_and_changes_no_answer() -> None:
    skewed = replace(
        SMALL, strategy=Strategy.FIRST, tuples=(100,), workload=replace(SMALL.workload, values=30, theta=1.2)
    )
    (still,), (moved,) = measure(skewed), measure(replace(skewed, move_every=10))
    assert moved.answers == still.answers > 1_000
    assert moved.load.sum() == still.load.sum()
    assert moved.storage.sum() == still.storage.sum()
    assert moved.load.max() < still.load.max()
    assert moved.storage.max() < still.storage.max()
    assert moved.taking_part > still.taking_part


def test_a_move_loses_nothing_that_is_stored_or_under_way() -> None:
    world = World(CHAIN, nodes=30)
    world.submit()
    feeds = drawn(60, seed=13)
    known_hosts = 0
    for number, feed in enumerate(feeds):
        world.kernel.run(feed.at_us)
        world.publish(feed)
        if number % 10 == 9:
            world.kernel.run(world.kernel.now_us + 1)  # mail is under way
            net, before = world.net, world.net.shard.stored()
            weights = net.shard.weights()
            balanced = balance(net.places(), net.points, weights, rounds=1, seed=number)
            order = np.argsort(balanced.identifiers)
            keys_moved = net.move(Ring(balanced.identifiers[order]), order)
            after = net.shard.stored()
            assert (keys_moved > 0) == (balanced.moves > 0)
            assert (net.places() == balanced.identifiers).all()
            for name in ("queries", "rows", "tuples", "held"):
                assert getattr(before, name).sum() == getattr(after, name).sum()
            assert weights.sum() == (before.queries + before.tuples).sum()
            known_hosts += _right_hosts(net)
    assert known_hosts > 0
    world.kernel.run()
    assert world.answers() == world.reference()
    assert world.answers().total() > 50


def _right_hosts(net: StaticRJoin) -> int:
    """How many hosts of keys nodes believe to know; all of them must be right."""
    shard, known = net.shard, 0
    rows = np.concatenate([shard.rows_at(key) for key in range(len(shard.names))])
    for node in range(30):
        hints = shard.hints(rows, node)
        is_known = hints.hosts != NONE
        assert (hints.hosts == shard.host_of(shard.numbers(hints.packed)))[is_known].all()
        known += int(is_known.sum())
    return known
