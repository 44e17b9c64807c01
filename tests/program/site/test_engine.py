"""The engine of a site: parcels one by one, idle streams, the two commits of a micro-batch, and its answers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from program.site.engines import Engines
from sim.sites.streams import SECOND, answers_of, at, parsed, table

from watersmeet.errors import CheckpointMismatch, DamagedParcel
from watersmeet.plan.nodes import Hop, Method, Plan
from watersmeet.planners.local import local
from watersmeet.planners.sited import central, explicit
from watersmeet.program.site.deployment import overlay, shared_joins
from watersmeet.program.site.engine import Arrivals, SiteEngine
from watersmeet.program.site.ingest import Ingest
from watersmeet.program.site.ledger import SiteLedger, watermark
from watersmeet.program.site.round import Round
from watersmeet.program.storage.packing import pack_rows, unpack_rows
from watersmeet.program.storage.segments import TS
from watersmeet.program.storage.shelf import MemoryShelf
from watersmeet.program.storage.wire import Message, Parcel, index_parcel, pack_schema, unpack_schema
from watersmeet.query.bags import Bag
from watersmeet.query.model import JoinQuery
from watersmeet.sim.sites.rows import DuckEvaluator, lay_out
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.site import run_here
from watersmeet.sim.sites.trial import SCHEMA


def pair_of_sites(window: str = "[RANGE 9 SECONDS]") -> Engines:
    """Stream a at n1 is shipped to n2, which has b and the query."""
    query = parsed(f"SELECT a.id AS a, b.id AS b FROM a {window}, b {window} WHERE a.k = b.k", "ab")
    hops = {"a": [Hop("b", Method.SP_D)], "b": [Hop("a", Method.SP_S)]}
    plan = explicit(query, dict.fromkeys("ab", SCHEMA.names), {"a": "n1", "b": "n2"}, "n2", hops)
    return Engines(plan)


def three_parcels() -> tuple[Engines, list[tuple[str, bytes]]]:
    sites = pair_of_sites()
    whole = at(1, 2, 3, 4, 5, 6)
    for low in (0, 2, 4):
        sites.run("n1", {"a": whole.slice(low, 2)})
    sites.run("n2", {"b": at(3.5)})
    parcels = sites.parcels("n1", "n2")
    assert len(parcels) == 3
    return sites, parcels


WHOLE = Bag({(number, 0): 1 for number in range(6)})


def test_a_gap_is_waited_for() -> None:
    sites, parcels = three_parcels()
    before = sites.ledgers["n2"]
    assert not sites.run("n2", parcels=parcels[1:]), "nothing can be done"
    assert replace(sites.ledgers["n2"], number=before.number) == before
    assert sites.answers() == Bag()
    assert sites.run("n2", parcels=parcels[:1])
    assert sites.ledgers["n2"].received == {"n1": 1}
    assert sites.answers() == Bag({(0, 0): 1, (1, 0): 1})
    sites.run("n2", parcels=parcels[2:])
    assert sites.ledgers["n2"].received == {"n1": 1}, "the second is still missing"
    sites.run("n2", parcels=parcels[1:])
    assert sites.ledgers["n2"].received == {"n1": 3}
    assert sites.answers() == WHOLE


def test_a_second_delivery_changes_nothing() -> None:
    sites, parcels = three_parcels()
    sites.run("n2", parcels=[*parcels, *parcels, parcels[0]])
    assert sites.answers() == WHOLE
    before = sites.ledgers["n2"]
    for again in (parcels, parcels[:1], parcels[2:]):
        assert not sites.run("n2", parcels=again)
        assert replace(sites.ledgers["n2"], number=before.number) == before
    assert sites.answers() == WHOLE


def test_parcels_are_taken_in_the_order_of_their_numbers() -> None:
    straight, parcels = three_parcels()
    straight.run("n2", parcels=parcels)
    crossed, parcels = three_parcels()
    crossed.run("n2", parcels=[parcels[2], parcels[0], parcels[1]])
    assert crossed.answers() == straight.answers() == WHOLE
    assert crossed.ledgers["n2"].watermarks == straight.ledgers["n2"].watermarks
    assert crossed.ledgers["n2"].received == {"n1": 3}


def test_a_micro_batch_that_is_run_again_makes_the_same_parcels() -> None:
    _, parcels = three_parcels()
    sites = pair_of_sites()
    whole = at(1, 2, 3, 4, 5, 6)
    for low in (0, 2, 4):
        before = sites.ledgers["n1"]
        sites.run("n1", {"a": whole.slice(low, 2)})
        sites.ledgers["n1"] = before  # it crashed before the ledger was durable
        sites.run("n1", {"a": whole.slice(low, 2)})
    assert sites.parcels("n1", "n2") == parcels


def test_what_is_acknowledged_leaves_the_outbox() -> None:
    sites, _ = three_parcels()
    engine = sites.engines["n1"]
    for upto, left in ((-1, [1, 2, 3]), (0, [1, 2, 3]), (2, [3]), (1, [3]), (3, [])):
        sites.ledgers["n1"] = engine.acknowledged(sites.ledgers["n1"], "n2", upto)
        assert [parcel.number for parcel in sites.ledgers["n1"].links["n2"].outbox] == left
    sites.run("n1", {"a": at(7)})
    assert [parcel.number for parcel in sites.ledgers["n1"].links["n2"].outbox] == [4], "numbers go on"


# Forged parcels, and parcels of another history


def opened(data: bytes) -> Parcel:
    """A parcel with its messages, to be made anew otherwise."""
    index = index_parcel(data)
    messages = (
        Message(one.flow, one.watermark, one.rows, data[one.start : one.start + one.size], one.schema)
        for one in index.entries
    )
    return Parcel(index.number, tuple(messages), index.previous)


def in_message(**changes: Any) -> Callable[[Parcel], Parcel]:
    return lambda parcel: replace(parcel, messages=(replace(parcel.messages[0], **changes), *parcel.messages[1:]))


def with_columns(change: Callable[[pa.Table], pa.Table]) -> Callable[[Parcel], Parcel]:
    """The rows of the first message as other rows, with their own schema."""

    def forge(parcel: Parcel) -> Parcel:
        message = parcel.messages[0]
        table = change(unpack_rows(message.payload, unpack_schema(message.schema)))
        forged = replace(message, payload=pack_rows(table), schema=pack_schema(table.schema))
        return replace(parcel, messages=(forged, *parcel.messages[1:]))

    return forge


@pytest.mark.parametrize(
    ("forge", "cause"),
    [
        (in_message(flow=7), r"it has flow 7 of \d"),
        (in_message(schema=b""), "rows of .* come before their schema"),
        (in_message(schema=b"something else"), "a schema is damaged"),
        (in_message(rows=0), r"0 rows of .* have \d+ bytes"),
        (in_message(rows=3), "2 rows were found where 3 were declared"),
        (in_message(payload=b"\x02garbage"), "left"),
        (with_columns(lambda rows: rows.drop_columns([TS])), "has no column '#ts'"),
        (with_columns(lambda rows: rows.append_column("more", pa.nulls(2))), "has a column 'more' that nobody asked"),
        (with_columns(lambda rows: rows.append_column(TS, rows[TS])), "has a column twice"),
        (
            with_columns(lambda rows: rows.set_column(rows.column_names.index(TS), TS, pa.array([1.5, 2.5]))),
            "column '#ts' of .* is double",
        ),
        (
            with_columns(lambda rows: rows.set_column(rows.column_names.index(TS), TS, pa.array([None, 2]))),
            "column '#ts' of .* has NULLs",
        ),
    ],
)
def test_a_forged_parcel_is_refused_by_its_number(forge: Callable[[Parcel], Parcel], cause: str) -> None:
    sites, parcels = three_parcels()
    before = sites.ledgers["n2"]
    forged = forge(opened(parcels[0][1])).pack()
    with pytest.raises(DamagedParcel, match=rf"^link n1 -> n2: parcel 1 is not what n1 makes \(.*{cause}.*\); remove"):
        sites.run("n2", parcels=[("n1", forged)])
    assert sites.ledgers["n2"] == before
    sites.run("n2", parcels=parcels)
    assert sites.answers() == WHOLE


def test_a_watermark_that_goes_back_and_a_second_schema_are_refused() -> None:
    sites, parcels = three_parcels()
    sites.run("n2", parcels=parcels[:1])
    second = opened(parcels[1][1])
    for forge, cause in (
        (in_message(watermark=0), "the watermark of .* goes back"),
        (in_message(schema=opened(parcels[0][1]).messages[0].schema), "the schema of .* comes a second time"),
    ):
        with pytest.raises(DamagedParcel, match=rf"parcel 2 is not what n1 makes \({cause}\)"):
            sites.run("n2", parcels=[("n1", forge(second).pack())])


def test_a_sender_that_goes_on_from_an_older_copy_is_found_out_by_the_parcel_before() -> None:
    sites, parcels = three_parcels()
    sites.run("n2", parcels=parcels[:2])
    sites.ledgers["n1"] = SiteLedger()  # and has since made other parcels up to the same number
    for numbers in ((1,), (2, 3), (4, 5, 6)):
        sites.run("n1", {"a": at(*numbers)})
    with pytest.raises(CheckpointMismatch, match=r"^link n1 -> n2: parcel 3 does not follow the one .* older copy"):
        sites.run("n2", parcels=sites.parcels("n1", "n2"))
    sites.run("n2", parcels=parcels)
    assert sites.answers() == WHOLE


# Idle streams


def one_site(sql: str) -> Engines:
    """Both streams at one site, joined head by head: only streams whose rows are counted are waited for."""
    columns = dict.fromkeys("ab", SCHEMA.names)
    return Engines(central(parsed(sql, "ab"), columns, {"a": "n1", "b": "n1"}, "n1"))


ROWS_AND_RANGE = "SELECT a.id AS a, b.id AS b FROM a [ROWS 2], b [RANGE 60 SECONDS] WHERE a.k = b.k"


def test_a_declared_instant_lets_a_rows_query_go_on() -> None:
    sites = one_site(ROWS_AND_RANGE)
    sites.run("n1", {"a": at(1, 2, 3), "b": at(5, 8)})
    assert sites.answers() == Bag(), "rows of a may still come before those of b, and a's third is not counted"
    assert sites.run("n1", declared={"a": 6 * SECOND})
    assert sites.answers() == Bag({(1, 0): 1, (2, 0): 1}), "b at 5 has the last two rows of a; b at 8 waits"
    assert sites.ledgers["n1"].watermarks["a"] == 6 * SECOND
    assert not sites.run("n1", declared={"a": 6 * SECOND}), "said twice is said once"
    sites.run("n1", declared={"a": 4 * SECOND})
    assert sites.ledgers["n1"].watermarks["a"] == 6 * SECOND, "no way back"
    sites.run("n1", {"a": at(7, 9)})
    assert sites.answers()[0, 1] == 1, "a at 7, numbered 0 here, is seen by b at 8"
    assert sites.answers().total() == 5, "with a at 3; and a at 7 as a head sees b at 5"


def test_an_instant_can_be_declared_for_a_stream_that_never_said_anything() -> None:
    sites = one_site(ROWS_AND_RANGE)
    sites.run("n1", {"b": at(5)})
    assert "a" not in sites.ledgers["n1"].watermarks
    assert sites.run("n1", declared={"a": 9 * SECOND})
    assert sites.ledgers["n1"].watermarks["a"] == 9 * SECOND


def test_rows_before_the_declared_instant_are_late() -> None:
    columns, homes = dict.fromkeys("ab", SCHEMA.names), {"a": "n1", "b": "n1"}
    plan = central(parsed(ROWS_AND_RANGE, "ab"), columns, homes, "n1")
    sites = SimulatedSites(plan, dict.fromkeys("ab", "ts"))
    sites.feed(0, {"a": at(1, 2), "b": at(5)})
    sites.run()
    site = sites.sites["n1"]
    assert answers_of(sites) == Bag()
    site.ledger = site.engine.run(site.ledger, Arrivals(declared={"a": 6 * SECOND}))
    assert watermark(site.ledger.streams["a"], 0) == 6 * SECOND
    sites.feed(sites.kernel.now_us, {"a": at(3, 5.999999, 6, 9), "b": at(7)})
    sites.run()
    assert site.ledger.streams["a"].late == 2
    # b at 7 sees the rows of a at 2 and at 6: what came too late is not counted; a at 9 has still to wait.
    b_at_5, b_at_7, a_at_6 = Bag({(0, 0): 1, (1, 0): 1}), Bag({(1, 0): 1, (2, 0): 1}), Bag({(2, 0): 1})
    assert answers_of(sites) == b_at_5 + b_at_7 + a_at_6


def symmetric_site(*sqls: str, delay_us: int = 0, buckets: int = 1, starts_us: Sequence[int | None] = ()) -> Engines:
    """Queries q1, q2, ... over streams a and b at one site by symmetric joins."""
    columns = dict.fromkeys("ab", SCHEMA.names)
    plans = {f"q{n + 1}": local(parsed(sql, "ab"), columns, "n1") for n, sql in enumerate(sqls)}
    starts = dict(zip(plans, starts_us, strict=False))
    return Engines(plans, delay_us, starts, buckets)


def test_a_symmetric_join_that_counts_rows_waits_for_all_streams() -> None:
    sites = symmetric_site(ROWS_AND_RANGE)
    sites.run("n1", {"a": at(1, 2, 3, 9), "b": at(5)})
    assert sites.answers("q1") == Bag(), "b has come to 5 only, and its row there may have company"
    sites.run("n1", {"b": at(6)})
    assert sites.answers("q1") == Bag({(1, 0): 1, (2, 0): 1}), "b at 5 has the last two rows of a"
    sites.run("n1", declared={"b": 20 * SECOND})
    assert sites.answers("q1") == Bag({(1, 0): 2, (2, 0): 2}), "b at 6, numbered 0 here, as well; a at 9 not yet"
    sites.run("n1", declared={"a": 20 * SECOND})
    assert sites.answers("q1")[3, 0] == 2, "a at 9 sees both rows of b"


# Two commits


JOIN = "FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS] WHERE a.k = b.k"


def test_a_micro_batch_is_ingested_first_and_completed_later() -> None:
    sites = symmetric_site(f"SELECT a.id AS a, b.id AS b {JOIN}")
    sites.ingest("n1", {"a": at(1, 2), "b": at(3)})
    ledger = sites.ledgers["n1"]
    assert not ledger.is_complete and (ledger.ingested_batch, ledger.batch) == (0, -1)
    assert ledger.streams["a"].rows == 2 and ledger.relations == {}
    assert {path for one in ledger.ingested for path in one.paths} <= ledger.paths, "its files are part of the state"
    assert sites.answers("q1") == Bag()
    with pytest.raises(AssertionError, match="would be lost"):
        sites.ingest("n1", {"a": at(4)})
    sites.shelves["n1"].keep_only(ledger.paths)  # all that a restart finds
    assert sites.run("n1")
    ledger = sites.ledgers["n1"]
    assert ledger.is_complete and (ledger.ingested_batch, ledger.batch) == (0, 0) and ledger.ingested == ()
    assert sites.answers("q1") == Bag({(0, 0): 1, (1, 0): 1})
    assert not sites.run("n1"), "nothing is left to do"


def test_a_micro_batch_that_is_joined_again_gives_the_same_answers() -> None:
    sites = symmetric_site(f"SELECT DISTINCT a.m AS m, b.id AS b {JOIN}")
    sites.run("n1", {"a": at(1), "b": at(2)})
    sites.ingest("n1", {"a": at(3), "b": at(4, 5)})
    before = sites.ledgers["n1"]
    sites.run("n1")
    once = sites.answers("q1")
    sites.ledgers["n1"] = before  # it crashed before the second commit
    sites.run("n1")
    assert sites.answers("q1") == once == Bag({(1, 0): 1, (1, 1): 1})


def test_every_query_has_answers_of_its_own_until_its_sink_has_them() -> None:
    sites = symmetric_site(f"SELECT a.id AS a {JOIN}", f"SELECT b.id * 2 AS b {JOIN} AND a.id <> b.id")
    engine = sites.engines["n1"]
    assert len(engine.program.parts) == 1, "both have the same join"
    sites.run("n1", {"a": at(1, 2), "b": at(3)})
    sites.run("n1", {"b": at(4, 5)})
    assert sites.answers("q1") == Bag({(0,): 3, (1,): 3})
    assert sites.answers("q2") == Bag({(0,): 2, (2,): 1})
    assert sites.ledgers["n1"].rows_out == {"q1": 6, "q2": 3}
    ledger = engine.delivered(sites.ledgers["n1"], "q1", 0)
    assert [one.batch for one in ledger.undelivered["q1"]] == [1]
    assert [one.batch for one in ledger.undelivered["q2"]] == [0, 1], "a slow sink keeps what it has not taken"
    assert engine.delivered(ledger, "q1", 0) is ledger, "said twice is said once"
    files = {path for waiting in ledger.undelivered.values() for one in waiting for path in one.paths}
    assert files <= ledger.paths


def test_a_query_with_a_start_has_no_earlier_rows() -> None:
    sql = f"SELECT a.id AS a, b.id AS b {JOIN}"
    sites = symmetric_site(sql, sql, starts_us=[None, 2 * SECOND])
    sites.run("n1", {"a": at(1, 2, 3), "b": at(1.5, 2.5)})
    assert sites.answers("q1").total() == 6
    assert sites.answers("q2") == Bag({(1, 1): 1, (2, 1): 1})


@pytest.mark.parametrize("buckets", [1, 3])
def test_distinct_answers_are_given_once_over_all_micro_batches(buckets: int) -> None:
    sites = symmetric_site(f"SELECT DISTINCT a.s AS s, b.k + 1 AS k {JOIN}", buckets=buckets)
    texts = ["x", "y", None, "x", None, "z", "y", "w"]
    for number, text in enumerate(texts):
        rows = table([(key, 1, text, number) for key in range(3)])
        sites.run("n1", {"a": rows, "b": rows})
    assert sites.answers("q1") == Bag({(text, key + 1): 1 for text in set(texts) for key in range(3)})
    seen = sites.ledgers["n1"].seen["q1"]
    assert sum(segment.rows for segment in seen) == 3 * len(set(texts))
    assert len(seen) < 5, "merged as it grows"


# Rows without a key


def test_rows_without_a_key_are_counted_for_the_queries_that_need_it() -> None:
    sites = symmetric_site(f"SELECT a.id AS a {JOIN}", "SELECT a.id AS a FROM a [ROWS 3], b [ROWS 3] WHERE a.s = b.s")
    rows = table([(None, 1, "x", 1), (1, 1, None, 2), (None, 1, None, 3), (1, 1, "x", 4)])
    sites.run("n1", {"a": rows, "b": at(5)})
    assert sites.ledgers["n1"].null_keys == {"q1": 2, "q2": 2}
    assert sites.answers("q1") == Bag({(1,): 1, (3,): 1})


# Rounds


def rounds(sql: str, plan_of: Callable[[JoinQuery], Plan]) -> list[int]:
    """How many operators run in each round of a micro-batch."""
    seen: list[int] = []

    def counting(task: Callable[[int], list[Any]], count: int, rows: int) -> list[Any]:
        if isinstance(task, Round):
            seen.append(len(task.operators) + len(task.groups))
        return run_here(task, count, rows)

    program = overlay(shared_joins({"q": plan_of(parsed(sql, "abc"))}, {}))["n1"]
    shelf = MemoryShelf()
    engine = SiteEngine(program, dict.fromkeys("abc", 0), shelf, counting, DuckEvaluator(shelf))
    found = [Ingest(program, shelf, scan)(lay_out(scan, at(1), "ts"), None) for scan in program.streams]
    engine.run(engine.ingest(SiteLedger(), 0, found), Arrivals())
    return seen


@pytest.mark.parametrize(
    ("where", "linear", "symmetric"),
    [("a.k = b.k AND b.k = c.k", [6], [3]), ("a.k = b.k AND b.m = c.m", [3, 3], [3, 3])],
)
def test_rounds_are_cut_where_rows_move_to_another_key(where: str, linear: list[int], symmetric: list[int]) -> None:
    sql = f"SELECT a.id FROM a [UNBOUNDED], b [UNBOUNDED], c [UNBOUNDED] WHERE {where}"
    columns, homes = dict.fromkeys("abc", SCHEMA.names), dict.fromkeys("abc", "n1")
    assert rounds(sql, lambda query: central(query, columns, homes, "n1")) == linear
    assert rounds(sql, lambda query: local(query, columns, "n1")) == symmetric
