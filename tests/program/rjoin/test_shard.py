"""One shard, its mail carried by hand: the choice by rates of sections 6 and 7, and the guards against doubles."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.errors import InputError
from watersmeet.program.rjoin import alike
from watersmeet.program.rjoin.arrays import COUNT, MASK, NONE, QUERY, Ints
from watersmeet.program.rjoin.mail import Out, TupleMail
from watersmeet.program.rjoin.settings import NodeSettings, Strategy
from watersmeet.program.rjoin.shard import Shard
from watersmeet.program.rjoin.tables import Catalog, Known, Widths, needs_pairs, reach_us
from watersmeet.query.sql import parse_query
from watersmeet.sim.rjoin.expressions import judge

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
STREAMS = ("r", "s", "t")
NODES = 50
SECOND = 1_000_000


def query_of(where: str, streams: Sequence[str] = STREAMS, select: str = "r.id", window: str = "UNBOUNDED"):  # type: ignore[no-untyped-def]
    froms = ", ".join(f"{stream} [{window}]" for stream in streams)
    sql = f"SELECT {select} AS told FROM {froms} WHERE {where}"
    return parse_query(sql, dict.fromkeys(STREAMS, SCHEMA.names))


class Desk:
    """A shard for many nodes whose mail goes wherever the test puts it. Every key has a host of its own."""

    def __init__(self, **settings: object) -> None:
        catalog = Catalog(dict.fromkeys(STREAMS, SCHEMA), dict.fromkeys(STREAMS, "ts"))
        self.known = Known(catalog, Widths(aliases=3, slots=6, classes=3), judge)
        self.hosts: list[str] = []
        self.shard = Shard(self.known, replace(NodeSettings(), **settings), self._hosts, NODES)  # type: ignore[arg-type]

    def _hosts(self, names: Sequence[str]) -> Ints:
        first = len(self.hosts)
        self.hosts += names
        return np.arange(first, first + len(names), dtype=np.int32) + 5  # nodes up to 4 host nothing

    def publish(self, stream: str, a: int, b: int, at_us: int = 0) -> Out:
        """A tuple that arrives everywhere at once; what comes of it."""
        return self.take_tuples(self.tuples(stream, [(a, b)], at_us), at_us)

    def tuples(self, stream: str, values: Sequence[tuple[int, int]], at_us: int = 0) -> TupleMail:
        rows = [{"a": a, "b": b, "id": number} for number, (a, b) in enumerate(values)]
        table = pa.Table.from_pylist(rows, schema=SCHEMA.remove(3))
        numbers = self.known.add_tuples(stream, table, np.full(len(values), at_us, np.int64))
        mail = self.shard.publish(0, numbers).tuples
        assert mail is not None
        return mail

    def take_tuples(self, mail: TupleMail, at_us: int = 0) -> Out:
        return self.shard.take_tuples(mail, at_us)

    def submit(self, where: str, node: int = 0, at_us: int = 0, streams: Sequence[str] = STREAMS) -> Out:
        query = query_of(where, streams, f"{streams[0]}.id")
        number = self.known.add_query(query, home=node, start_us=0)
        return self.shard.submit([number], np.array([node], np.int32), at_us)

    def tell(self, out: Out, at_us: int = 0) -> Out:
        """The reply to what a node asks."""
        assert out.ask is not None
        rates, hosts = self.shard.ask_for(out.ask.keys, at_us), self.shard.host_of(out.ask.keys)
        return self.shard.take_rates([(out.ask, rates, hosts)], at_us)

    def names(self, keys: Ints) -> list[str]:
        return sorted(self.shard.names[key] for key in keys)


def test_a_query_waits_at_the_rarest_relation() -> None:
    desk = Desk()
    for number in range(9):
        desk.publish("r", number, number)
    desk.publish("s", 1, 1)
    for number in range(4):
        desk.publish("t", number, number)
    out = desk.submit("r.a = s.a AND s.b = t.b")
    assert out.queries is None  # first it asks
    assert out.ask is not None
    assert desk.names(out.ask.keys) == ["r+a", "s+a", "s+b", "t+b"]
    assert set(out.ask.hosts.tolist()) == {NONE}
    names = [desk.shard.names[key] for key in out.ask.keys]
    told = dict(zip(names, desk.shard.ask_for(out.ask.keys, 0).tolist(), strict=True))
    assert told == {"r+a": 9, "s+a": 1, "s+b": 1, "t+b": 4}
    placed = desk.tell(out)
    assert placed.ask is None
    assert placed.queries is not None
    (name,) = desk.names(placed.queries.keys)
    assert name in {"s+a", "s+b"}
    assert placed.queries.hosts[0] == desk.shard.host_of(placed.queries.keys)[0]  # one hop away from now on


def test_the_worst_choice_is_the_opposite_and_asks_nobody() -> None:
    desk = Desk(strategy=Strategy.WORST)
    for number in range(9):
        desk.publish("r", number, number)
    desk.publish("s", 1, 1)
    out = desk.submit("r.a = s.a AND s.b = t.b")
    assert out.ask is None
    assert out.queries is not None
    assert desk.names(out.queries.keys) == ["r+a"]
    assert out.queries.hosts.tolist() == [NONE]


def test_first_is_the_order_of_the_where_clause_and_random_is_anything() -> None:
    first, chance = Desk(strategy=Strategy.FIRST), Desk(strategy=Strategy.RANDOM)
    chosen: dict[str, int] = {}
    for _ in range(200):
        out = first.submit("t.b = s.b AND r.a = s.a")
        assert out.queries is not None
        assert first.names(out.queries.keys) == ["t+b"]
        out = chance.submit("t.b = s.b AND r.a = s.a")
        assert out.queries is not None
        (name,) = chance.names(out.queries.keys)
        chosen[name] = chosen.get(name, 0) + 1
    assert chosen.keys() == {"t+b", "s+b", "r+a", "s+a"}
    assert min(chosen.values()) > 25


def test_a_rate_is_that_of_the_last_window() -> None:
    desk = Desk(rate_window_us=10 * SECOND)
    for number in range(8):
        desk.publish("r", 1, number, at_us=number * SECOND)
    keys = np.array([desk.shard.names.index("r+a"), desk.shard.names.index("r+b+3")], np.int32)
    assert desk.shard.ask_for(keys, 9 * SECOND).tolist() == [8, 1]
    assert desk.shard.ask_for(keys, 15 * SECOND).tolist() == [4, 0.5]  # half of the window before is over
    desk.publish("r", 1, 0, at_us=15 * SECOND)
    assert desk.shard.ask_for(keys, 15 * SECOND).tolist() == [5, 0.5]
    assert desk.shard.ask_for(keys, 40 * SECOND).tolist() == [0, 0]


def test_who_knows_a_rate_does_not_ask_again() -> None:
    desk = Desk()
    desk.tell(desk.submit("r.a = s.a", streams=("r", "s")))
    again = desk.submit("r.a = s.a", streams=("r", "s"), at_us=5 * SECOND)
    assert again.ask is None
    assert again.queries is not None
    assert again.queries.hosts[0] != NONE
    partly = desk.submit("r.a = s.a AND s.a = t.a", at_us=5 * SECOND)
    assert partly.ask is not None
    assert desk.names(partly.ask.keys) == ["t+a"]
    elsewhere = desk.submit("r.a = s.a", streams=("r", "s"), node=1, at_us=5 * SECOND)
    assert elsewhere.ask is not None
    assert desk.names(elsewhere.ask.keys) == ["r+a", "s+a"]


def test_what_has_aged_is_asked_for_again_where_it_was() -> None:
    desk = Desk(rate_age_us=10 * SECOND)
    desk.tell(desk.submit("r.a = s.a", streams=("r", "s")), at_us=SECOND)
    assert desk.submit("r.a = s.a", streams=("r", "s"), at_us=11 * SECOND).ask is None
    late = desk.submit("r.a = s.a", streams=("r", "s"), at_us=11 * SECOND + 1)
    assert late.ask is not None
    assert late.ask.hosts.tolist() == desk.shard.host_of(late.ask.keys).tolist()
    desk.tell(late, at_us=12 * SECOND)
    assert desk.submit("r.a = s.a", streams=("r", "s"), at_us=20 * SECOND).ask is None


def test_what_ages_while_the_rest_is_asked_for_does_not_hold_a_query_back() -> None:
    desk = Desk(rate_age_us=SECOND)
    desk.tell(desk.submit("r.a = s.a", streams=("r", "s")))
    out = desk.submit("r.a = t.a", streams=("r", "t"), at_us=SECOND)
    assert out.ask is not None
    assert desk.names(out.ask.keys) == ["t+a"]
    placed = desk.tell(out, at_us=5 * SECOND)  # by then r+a has aged
    assert placed.ask is None
    assert placed.queries is not None


def test_rates_go_along_with_queries() -> None:
    desk = Desk()
    for number in range(3):
        desk.publish("s", number, number)
        desk.publish("t", number, number)
    placed = desk.tell(desk.submit("r.a = s.a AND s.b = t.b"))
    assert placed.queries is not None
    assert desk.names(placed.queries.keys) == ["r+a"]  # no tuple has come there
    desk.shard.take_queries(placed.queries, 0)
    out = desk.publish("r", 7, 7, at_us=1)
    assert out.ask is not None
    assert desk.names(out.ask.keys) == ["s+a+7"]  # s+b and t+b came with the query
    assert out.ask.nodes.tolist() == desk.shard.host_of(placed.queries.keys).tolist()
    further = desk.tell(out, at_us=1)
    assert further.queries is not None
    assert desk.names(further.queries.keys) == ["s+a+7"]


def test_hints_are_what_goes_along_between_shards() -> None:
    one, other = Desk(), Desk()
    placed = one.tell(one.submit("r.a = s.a AND s.b = t.b"), at_us=3)
    assert placed.queries is not None
    hints = one.shard.hints(placed.queries.rows, node=0)
    assert len(hints.packed) == 4
    assert set(hints.learned_us.tolist()) == {3}
    other.shard.hear(hints, node=2)
    assert other.submit("r.a = s.a AND s.b = t.b", node=2, at_us=3).ask is None
    assert other.submit("r.a = s.a AND s.b = t.b", node=1, at_us=3).ask is not None
    # Older word does not replace newer word.
    worse = replace(hints, rates=hints.rates + 100, learned_us=hints.learned_us - 1)
    other.shard.hear(worse, node=2)
    told = other.shard.hints(placed.queries.rows, node=2)
    assert told.rates.tolist() == hints.rates.tolist()


def test_guarded_mail_that_comes_twice_is_kept_once() -> None:
    stored = []
    for is_guarded in (False, True):
        desk = Desk(strategy=Strategy.FIRST, is_guarded=is_guarded)
        out = desk.submit("r.a = s.a", streams=("r", "s"))
        assert out.queries is not None
        tuples = desk.tuples("r", [(1, 1)])
        for _ in range(2):
            desk.shard.take_queries(out.queries, 0)
        answered = [desk.shard.take_tuples(tuples, 0) for _ in range(2)]
        rewritten = answered[0].queries
        assert rewritten is not None
        for _ in range(2):
            desk.shard.take_queries(rewritten, 0)
        kept = desk.shard.stored()
        stored.append((len(desk.shard.rows_at(out.queries.keys[0])), int(kept.rows.sum()), int(kept.held.sum())))
        # What comes again is rewritten again: whoever lost the first word hears the second.
        assert answered[1].queries is not None
    assert stored == [(2, 4, 6), (1, 1, 3)]


def test_alike_rows_are_one_where_members_are_not_told_apart() -> None:
    for members in (False, True):
        desk = Desk(strategy=Strategy.FIRST, members=members)
        out = desk.submit("r.a = s.a", streams=("r", "s"))
        assert out.queries is not None
        desk.shard.take_queries(out.queries, 0)
        made = desk.take_tuples(desk.tuples("r", [(4, 1), (4, 2), (5, 1)])).queries
        assert made is not None
        counts = made.rows[:, COUNT].tolist()
        assert sorted(counts) == ([1, 1, 1] if members else [1, 2])
        desk.shard.take_queries(made, 0)
        assert desk.shard.stored().queries.sum() == desk.shard.load.queries.sum() == 3
        assert desk.shard.stored().rows.sum() == len(counts)
        desk.publish("s", 4, 0)
        assert desk.shard.answers[0] == 2


def test_counting_refuses_what_it_cannot_count() -> None:
    desk = Desk(members=False)
    for query in (
        query_of("r.a = s.a", ("r", "s"), window="RANGE 3 SECONDS"),
        query_of("r.a = s.a AND r.b < s.b", ("r", "s")),
        replace(query_of("r.a = s.a", ("r", "s")), distinct=True),
    ):
        number = desk.known.add_query(query, home=0, start_us=0)
        with pytest.raises(InputError, match="can only be counted"):
            desk.shard.submit([number], np.zeros(1, np.int32), 0)


def test_a_query_wider_than_its_network_is_refused() -> None:
    catalog = Catalog(dict.fromkeys(STREAMS, SCHEMA), dict.fromkeys(STREAMS, "ts"))
    known = Known(catalog, Widths(aliases=2, slots=2, classes=1), judge)
    known.add_query(query_of("r.a = s.a", ("r", "s")), home=0, start_us=0)
    for where in ("r.a = s.a AND s.b = t.b", "r.a = s.a AND s.a = t.a"):
        with pytest.raises(InputError, match="wider than the widths"):
            known.add_query(query_of(where), home=0, start_us=0)


def test_a_stream_without_a_column_to_find_tuples_by_is_refused() -> None:
    bare = pa.schema([("many", pa.list_(pa.int64())), ("ts", pa.timestamp("us", "UTC"))])
    with pytest.raises(InputError, match="stream 's' has no column under which its tuples can be found"):
        Catalog({"r": SCHEMA, "s": bare}, {"r": "ts", "s": "ts"})


def test_alike_queries_are_not_miscounted_when_they_are_too_many() -> None:
    rows = np.zeros((2, 6), np.int32)
    rows[:, COUNT] = 1 << 30
    assert alike.merge(rows[:1].copy(), np.zeros(1, np.int32)) == 1
    with pytest.raises(OverflowError, match="rewritten queries are alike"):
        alike.merge(rows, np.zeros(2, np.int32))


def test_nothing_to_publish_or_to_ask_is_no_mail() -> None:
    desk = Desk()
    assert desk.shard.publish(0, np.zeros(0, np.int32)) == Out()
    assert desk.shard.submit([], np.zeros(0, np.int32), 0) == Out()


def test_values_are_equal_across_types_and_null_is_none_of_them() -> None:
    desk = Desk()
    values = desk.known.values
    assert values.code(3) == values.code(3.0)
    assert values.code("3") != values.code(3)
    assert values.code(None) == 0
    assert values.code(float("nan")) == values.code(float("nan"))
    table = pa.Table.from_pylist([{"a": 1, "b": None, "id": 0}], schema=SCHEMA.remove(3))
    mail = desk.shard.publish(0, desk.known.add_tuples("r", table, np.zeros(1, np.int64))).tuples
    assert mail is not None
    assert desk.names(mail.keys) == ["r+a", "r+a+1", "r+b", "r+id", "r+id+0"]


def test_how_long_tuples_matter() -> None:
    catalog = Catalog(dict.fromkeys(STREAMS, SCHEMA), dict.fromkeys(STREAMS, "ts"))
    columns = dict.fromkeys(STREAMS, SCHEMA.names)

    def told(froms: str, where: str) -> tuple[int, bool]:
        query = parse_query(f"SELECT 1 AS one FROM {froms} WHERE {where}", columns, allow_cross=True)
        return reach_us(query), needs_pairs(query, catalog.shape(query))

    assert told("r [RANGE 3 SECONDS], s [TUMBLE 5 SECONDS]", "r.a = s.a") == (5 * SECOND, False)
    assert told("r [RANGE 3 SECONDS], s [UNBOUNDED]", "r.a = s.a") == (1 << 62, False)
    assert told("r [RANGE 3 SECONDS], s [ROWS 5]", "r.a = s.a") == (1 << 62, True)
    assert told("r [RANGE 3 SECONDS], s [RANGE 3 SECONDS]", "r.a < s.a") == (3 * SECOND, True)
    chain = "r [RANGE 3 SECONDS], s [RANGE 3 SECONDS], t [RANGE 3 SECONDS]"
    assert told(chain, "s.a = t.a AND t.b = r.b") == (3 * SECOND, False)
    assert told(chain, "s.a = t.a AND t.b < r.b") == (3 * SECOND, True)


def test_rows_of_queries_keep_their_numbers() -> None:
    desk = Desk(strategy=Strategy.FIRST)
    for where in ("r.a = s.a", "r.b = s.b", "r.a = s.a"):
        out = desk.submit(where, streams=("r", "s"))
        assert out.queries is not None
        desk.shard.take_queries(out.queries, 0)
    (key,) = (number for number, name in enumerate(desk.shard.names) if name == "r+a")
    rows = desk.shard.rows_at(key)
    assert sorted(rows[:, QUERY].tolist()) == [0, 2]
    assert set(rows[:, MASK].tolist()) == {0}
    assert desk.shard.tuples_at(key).tolist() == []
    desk.take_tuples(desk.tuples("r", [(1, 2), (3, 4)]))
    assert desk.shard.tuples_at(key).tolist() == [0, 1]
