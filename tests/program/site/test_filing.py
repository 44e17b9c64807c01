"""Rows are filed and shipped for those who select them: bits, routes, and what is left out on the way."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim.sites.streams import parsed, table

from watersmeet.plan.nodes import HashParts, Partition, RangeParts, ValueParts
from watersmeet.plan.partition import sub_plans_of
from watersmeet.planners.sited import central
from watersmeet.program.site.deployment import overlay, shared_joins
from watersmeet.program.site.filing import (
    Mask,
    arrived,
    fulfils,
    pack_for_others,
    routed,
    shipped_rows,
    where,
    with_selected,
)
from watersmeet.program.site.ingest import Ingest
from watersmeet.program.site.part import Route
from watersmeet.program.site.program import SiteProgram, Stored
from watersmeet.program.site.streams import StreamScan
from watersmeet.program.storage.segments import KEY, TS, class_column, column, selected_column, sort_key
from watersmeet.program.storage.shelf import MemoryShelf
from watersmeet.sim.sites.rows import lay_out
from watersmeet.sim.sites.trial import SCHEMA

many = settings(max_examples=60, deadline=None)


@many
@given(st.lists(st.none() | st.lists(st.booleans(), min_size=5, max_size=5), min_size=2, max_size=140), st.data())
def test_a_row_has_the_bits_of_its_selections(held: list[list[bool] | None], data: st.DataObject) -> None:
    masks: list[Mask | None] = [None if one is None else np.array(one) for one in held]
    whole = [np.ones(5, bool) if one is None else one for one in masks]
    rows = with_selected(pa.table({"row": range(5)}), masks)
    rows = where(rows, np.logical_or.reduce(whole))  # others are not stored
    assert rows.num_columns == 1 + -(-len(masks) // 64)
    stored = Stored(StreamScan("a"), (), (), tuple(range(len(masks))))
    asked = tuple(data.draw(st.sets(st.integers(0, len(masks) - 1), min_size=1, max_size=4)))
    found = where(rows, fulfils(rows, stored, asked)).column("row").to_pylist()
    assert found == np.flatnonzero(np.logical_or.reduce([whole[one] for one in asked])).tolist()


@pytest.mark.parametrize(("bit", "name", "value"), [(0, "0", 1), (63, "0", 2**63), (64, "1", 1), (100, "1", 2**36)])
def test_a_column_has_the_bits_of_64_selections(bit: int, name: str, value: int) -> None:
    found_name, found = selected_column(bit)
    assert (found_name, int(found)) == (f"#selected{name}", value)


@pytest.mark.parametrize(
    "parts",
    [HashParts((0, 1, 2, 1)), RangeParts((-1, 3), (0, 2, 1)), ValueParts((1, 5), (0, 1), 2)],
    ids=lambda parts: type(parts).__name__,
)
def test_every_row_goes_to_the_sub_plan_of_its_key(parts: HashParts | RangeParts | ValueParts) -> None:
    partition = Partition(0, parts)
    values = np.array([-(2**63), -2, -1, 0, 1, 2, 3, 5, 8, 2**63 - 1])
    rows = pa.table({class_column(4): values})
    masks = [routed(rows, Route(partition, 4, (number,))) for number in range(3)]
    numbers = sub_plans_of(partition, values)
    for number, mask in enumerate(masks):
        assert mask is not None and mask.tolist() == (numbers == number).tolist()
    both = routed(rows, Route(partition, 4, (0, 2)))
    assert both is not None and both.tolist() == (numbers != 1).tolist()
    keys = pa.table({KEY: sort_key([values], len(values))})
    by_key = routed(keys, Route(partition, 4, (1,)), (4,))
    assert by_key is not None and by_key.tolist() == (numbers == 1).tolist(), "a key of one class is the value itself"
    assert routed(keys, Route(partition, 4, (1,)), (3, 4)) is None, "of several it is a hash"
    assert routed(rows, None) is None


def away(*wheres: str) -> dict[str, SiteProgram]:
    """Streams a and b at n1 and n2, and queries at n0."""
    columns = dict.fromkeys("ab", SCHEMA.names)
    plans = {
        f"q{n}": central(
            parsed(f"SELECT a.k AS k, a.s AS s FROM a [UNBOUNDED], b [UNBOUNDED] WHERE {where}", "ab"),
            columns,
            {"a": "n1", "b": "n2"},
            "n0",
        )
        for n, where in enumerate(wheres)
    }
    return overlay(shared_joins(plans, {}))


def test_a_key_that_is_a_column_of_the_rows_does_not_travel() -> None:
    programs = away("a.k = b.k AND lower(a.s) = lower(b.s)")
    home, there, shelf = programs["n1"], programs["n0"], MemoryShelf()
    (scan,), (shipment,) = home.streams, home.shipments
    rows = table([(5, 1, "X", 3), (None, 1, "y", 1), (7, 1, "z", 2)])
    found = Ingest(home, shelf, scan)(lay_out(scan, rows, "ts"), None)
    assert found.made is not None and [payload.rows for payload in found.made.payloads.values()] == [2]
    laid_out = lay_out(scan, rows, "ts").slice(0, 1)
    travels = shipped_rows(home, laid_out, shipment, None)
    assert class_column(0) not in travels.column_names, "k is there anyway"
    assert class_column(1) in travels.column_names, "a hash cannot be computed there"
    back = arrived(there, shipment, travels)
    assert column(back, class_column(0)).tolist() == [5]


def test_rows_travel_in_the_order_of_time_with_the_bits_that_they_have_there() -> None:
    programs = away("a.k = b.k AND a.id <> 0", "a.k = b.k AND a.id <> 1", "a.m = b.m AND a.id <> 2")
    home = programs["n1"]
    (scan,), (shipment,) = home.streams, home.shipments
    rows = lay_out(scan, table([(5, 1, "x", 3), (6, 1, "y", 1), (7, 1, "z", 2)]), "ts")
    rows = with_selected(rows, [np.array([n != row for row in range(3)]) for n in range(3)])
    travels = arrived(programs["n0"], shipment, shipped_rows(home, rows, shipment, None))
    assert column(travels, TS).tolist() == sorted(column(travels, TS).tolist())
    assert column(travels, class_column(0)).tolist() == [6, 7, 5]
    assert column(travels, "#selected0").tolist() == [0b101, 0b011, 0b110]


def test_sites_that_get_the_same_share_one_copy() -> None:
    columns = dict.fromkeys("ab", SCHEMA.names)
    query = parsed("SELECT a.id AS a FROM a [UNBOUNDED], b [UNBOUNDED] WHERE a.k = b.k", "ab")
    plans = {site: central(query, columns, {"a": "n1", "b": "n1"}, site) for site in ("n2", "n3")}
    home, shelf = overlay(shared_joins(plans, {}))["n1"], MemoryShelf()
    scan = next(scan for scan in home.streams if scan.stream == "a")
    payloads = pack_for_others(home, shelf, "a", lay_out(scan, table([(1, 1, "x", 1)]), "ts"))
    assert sorted(payloads) == ["n2 a", "n3 a"] and len({payload.path for payload in payloads.values()}) == 1
