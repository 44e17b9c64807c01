"""Drawings of plans: what is on them, that nothing hides anything else, and that the same plan is the same bytes."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest

from watersmeet.cost.costs import Cost
from watersmeet.cost.from_statistics import workload_of
from watersmeet.cost.price import price
from watersmeet.errors import InputError, RunError
from watersmeet.plan.draw import COLOURS, Box, Curve, Rect, Sheet, Words, draw, sheet_of
from watersmeet.plan.nodes import (
    HashParts,
    Hop,
    Input,
    JoinNode,
    JoinPlan,
    Leaf,
    Method,
    Partition,
    RangeParts,
    Reduction,
    Tree,
    ValueParts,
    join_plan_of,
)
from watersmeet.plan.partition import part_text
from watersmeet.planners.sited import central, explicit
from watersmeet.program.operators import Purpose
from watersmeet.query.model import Equality
from watersmeet.query.sql import parse_query
from watersmeet.stats.model import ColumnStats, Number, Stats, StreamStats
from watersmeet.topology.model import Site, Topology

SITES = ("ams", "fra", "nyc", "sfo", "syd", "tok", "lhr", "cdg", "mad", "osl", "hel", "waw")
SVG = "{http://www.w3.org/2000/svg}"


def planned(
    streams: int, method: Method | None = None, sites: Sequence[str] = SITES, *, bloom: bool = False
) -> JoinPlan:
    """A chain of streams, each at a site of its own as far as there are any."""
    aliases = "abcdefghijkl"[:streams]
    froms = ", ".join(f"packets_{alias} [RANGE 10 SECONDS] AS {alias}" for alias in aliases)
    where = " AND ".join(f"{left}.k = {right}.k" for left, right in pairwise(aliases))
    columns = {f"packets_{alias}": ["k", "id", "ts"] for alias in aliases}
    query = parse_query(
        f"SELECT {', '.join(f'{alias}.id AS {alias}' for alias in aliases)} FROM {froms} WHERE {where}", columns
    )
    whole = [Equality(*(replace(side, type="bigint") for side in (e.left, e.right))) for e in query.equalities]
    query = replace(query, equalities=tuple(whole))
    homes = {f"packets_{alias}": sites[number % len(sites)] for number, alias in enumerate(aliases)}
    plan = central(query, columns, homes, sites[0])
    if method is not None:
        asked = {h.head: [Hop(hop.alias, method, bloom=bloom) for hop in h.hops] for h in join_plan_of(plan).heads}
        plan = explicit(query, columns, homes, sites[0], asked)
    return join_plan_of(plan)


def priced(join: JoinPlan) -> Cost:
    stats = Stats(
        {
            scan.stream: StreamStats(
                Number(50.0 * (1 + number)), Number(20.0), {"k": ColumnStats(distinct=Number(3_000.0))}
            )
            for number, scan in enumerate(join.scans)
        }
    )
    workload = workload_of(join.scans, join.classes, join.output, join.homes, join.site, stats)
    return price(join, workload, Topology((), sites=tuple(Site(name) for name in SITES)))


def join_node(at: str, *nodes: Input | Tree | str) -> JoinNode:
    leaves = [Leaf(node) if isinstance(node, str) else node for node in nodes]
    return JoinNode(at, tuple(node if isinstance(node, Input) else Input(node) for node in leaves))


def tree() -> JoinPlan:
    left = join_node("fra", "a", Input(Leaf("b"), Reduction.ONE_STEP))
    right = join_node("nyc", "c", Input(Leaf("d"), Reduction.TWO_STEP, bloom=True))
    return replace(planned(4), sub_plans=(join_node("ams", left, Input(right, Reduction.ONE_STEP)),))


def partitioned(sub_plans: int) -> JoinPlan:
    linear = planned(3, Method.SM_D1).sub_plans
    trees = [join_node(at, a, join_node(at, b, c)) for at in SITES[:3] for a, b, c in permutations("abc")]
    return replace(
        planned(3),
        sub_plans=(*linear, *trees)[:sub_plans],
        partition=Partition(0, HashParts((*range(sub_plans), 0))),
    )


def text_of(path: Path) -> list[str]:
    """All lines of text in an SVG file."""
    return ["".join(text.itertext()).strip() for text in ElementTree.parse(path).iter(f"{SVG}text")]


def test_a_drawing_names_sites_streams_and_links(tmp_path: Path) -> None:
    join = planned(3, Method.SM_D1)
    cost = priced(join)
    draw(
        join, cost, tmp_path / "plan.svg", measured=dict.fromkeys(cost.link_bytes, 1_234.0), title="Three & <more> $5$"
    )
    lines = text_of(tmp_path / "plan.svg")
    assert "Three & <more> $5$" in lines
    for site, alias in zip(SITES[:3], "abc", strict=True):
        assert site in lines
        assert f"▸ {alias}: packets_{alias} [range 10 seconds]" in lines
        assert f"{alias}:" in lines
    assert "b by SM-D1 at fra, c by SM-D1 at nyc" in lines
    assert lines.count("answers") == 1, "the query's site is marked"
    assert len([line for line in lines if "B/s (measured 1" in line]) == len(cost.link_bytes)


def test_a_tree_and_its_reductions(tmp_path: Path) -> None:
    join = tree()
    draw(join, priced(join), tmp_path / "tree.svg")
    lines = text_of(tmp_path / "tree.svg")
    assert {"join at ams", "join at fra", "join at nyc", "a at ams", "b at fra", "c at nyc", "d at sfo"} <= set(lines)
    assert lines.count("1-step semijoin") == 2 and lines.count("2-step Bloom semijoin") == 1


def test_labels_of_reduced_inputs_do_not_overlap() -> None:
    reduced = [Input(Leaf(alias), Reduction.TWO_STEP, bloom=True) for alias in "bcd"]
    join = replace(planned(4), sub_plans=(join_node("ams", "a", *reduced),))
    marks = sheet_of(join, None, {}, "", None).marks
    labels = [
        box.rect
        for box, words in pairwise(marks)
        if isinstance(box, Box) and isinstance(words, Words) and words.text == "2-step Bloom semijoin"
    ]
    assert len(labels) == 3
    assert all(label.common(other) == 0 for label, other in combinations(labels, 2))


@pytest.mark.parametrize(
    ("sub_plans", "more"), [(2, None), (4, None), (6, None), (7, "and 1 more sub-plan"), (9, "and 3 more sub-plans")]
)
def test_a_partitioned_plan_has_a_panel_for_each_sub_plan(tmp_path: Path, sub_plans: int, more: str | None) -> None:
    join = partitioned(sub_plans)
    draw(join, priced(join), tmp_path / "sub_plans.svg", shares=[1 / sub_plans] * sub_plans)
    lines = text_of(tmp_path / "sub_plans.svg")
    assert f"{sub_plans} sub-plans, chosen by the hash of key K1" in lines
    headings = [line for line in lines if line.startswith("sub-plan ")]
    assert len(headings) == min(sub_plans, 6)
    assert headings[0].startswith(f"sub-plan 1: 2 of {sub_plans + 1} buckets")
    assert [line for line in lines if line.startswith("and ")] == ([more] if more else [])


@pytest.mark.parametrize("suffix", [".svg", ".png", ".SVG"])
def test_the_same_plan_is_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    before = dict(matplotlib.rcParams)
    for number in (1, 2):
        join = partitioned(3)
        draw(join, priced(join), tmp_path / f"{number}{suffix}", title="again")
    first, second = ((tmp_path / f"{number}{suffix}").read_bytes() for number in (1, 2))
    assert first == second
    assert dict(matplotlib.rcParams) == before, "no trace is left"
    assert first.startswith(b"\x89PNG\r\n\x1a\n" if suffix == ".png" else b"<?xml")


@pytest.mark.parametrize("name", ["plan.pdf", "plan", "plan.svg.gz"])
def test_another_suffix_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=rf"'{name}' end in \.svg or \.png$") as caught:
        draw(planned(2), None, tmp_path / name)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / name).exists()


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot be written .*No such file"):
        draw(planned(2), None, tmp_path / "nowhere" / "plan.svg")


def test_without_costs_links_are_there_all_the_same(tmp_path: Path) -> None:
    join = planned(3, Method.SM_S1, bloom=True)
    bare = sheet_of(join, None, {}, "", None)
    full = sheet_of(join, priced(join), {}, "", None)
    assert len(arrows(bare)) == len(arrows(full)) > 0
    assert not [text for text in texts_of(bare) if "B/s" in text]
    measured = sheet_of(join, None, {("ams", "fra"): 2_000.0, ("ams", "waw"): 1.0}, "", None)
    assert "2.0 kB/s measured" in texts_of(measured)
    assert "waw" in texts_of(measured), "measured, if not planned"


def test_arrows_show_what_dominates_and_how_much() -> None:
    join = planned(3)
    cost = priced(join)
    found = arrows(sheet_of(join, cost, {}, "", None))
    assert {arrow.colour for arrow in found} == {COLOURS[Purpose.TUPLES]}
    by_size = [
        width for _, width in sorted(zip(cost.link_bytes.values(), (arrow.width for arrow in found), strict=True))
    ]
    assert by_size == sorted(by_size) and by_size[0] < by_size[-1]


@pytest.mark.parametrize("streams", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("method", [None, Method.SP_D, Method.SM_D2])
def test_nothing_overlaps_for_up_to_six_sites(streams: int, method: Method | None) -> None:
    join = planned(streams, method)
    cost = priced(join)
    check_free(sheet_of(join, cost, cost.link_bytes, "", None))


def test_a_full_mesh_of_six_and_twelve_sites() -> None:
    for count in (6, 12):
        join = planned(count)
        mesh = {pair: 10.0 ** (number % 7) for number, pair in enumerate(permutations(SITES[:count], 2))}
        sheet = sheet_of(join, None, mesh, "", None)
        assert len(arrows(sheet)) == count * (count - 1)
        if count == 6:
            check_free(sheet)


def arrows(sheet: Sheet) -> list[Curve]:
    return [mark for mark in sheet.marks if isinstance(mark, Curve) and mark.head]


def texts_of(sheet: Sheet) -> list[str]:
    return [mark.text for mark in sheet.marks if isinstance(mark, Words)]


def check_free(sheet: Sheet) -> None:
    """No two boxes of sites or labels lie on each other, and all of them on the sheet."""
    marks = sheet.marks
    labels = [
        box.rect
        for box, words in pairwise(marks)
        if isinstance(box, Box) and isinstance(words, Words) and "B/s" in words.text
    ]
    sites = [mark.rect for mark in marks if isinstance(mark, Box) and mark.level == 3]
    assert labels and sites
    for rect, other in combinations([*labels, *sites], 2):
        assert rect.common(other) == 0, (rect, other)
    whole = Rect(0, 0, sheet.width, sheet.height)
    for rect in (*labels, *sites):
        assert whole.common(rect) == pytest.approx(rect.width * rect.height)


@pytest.mark.parametrize(
    ("parts", "texts"),
    [
        (HashParts((0, 1, 1, 1)), ["1 of 4 buckets (25.0 %)", "3 of 4 buckets (75.0 %)"]),
        (RangeParts((10, 20), (0, 1, 2)), ["below 10", "10 to 19", "20 and above"]),
        (RangeParts((10, 20), (0, 1, 0)), ["2 of 3 ranges", "10 to 19"]),
        (RangeParts((10, 11), (0, 1, 0)), ["2 of 3 ranges", "10"]),
        (ValueParts((3, 5), (0, 0), 1), ["values 3, 5", "all other values"]),
        (ValueParts((3,), (0,), 0), ["3 and all other values"]),
        (ValueParts((1, 2, 3, 4), (0, 0, 0, 0), 1), ["4 values", "all other values"]),
    ],
)
def test_which_values_take_a_sub_plan(parts: HashParts | RangeParts | ValueParts, texts: list[str]) -> None:
    assert [part_text(Partition(0, parts), sub_plan) for sub_plan in range(len(texts))] == texts


def test_importing_it_is_cheap() -> None:
    code = "import sys, watersmeet.plan.draw; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
