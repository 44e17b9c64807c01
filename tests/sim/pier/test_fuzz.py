"""Mutated UFL and tuples that nobody expects: one sentence or a counter, never a stack trace."""

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from op_graphs import hand_written
from peers import network, tuples

from watersmeet.errors import UflError, WatersmeetError
from watersmeet.program.pier.dataflow import OPERATORS
from watersmeet.program.pier.runtime import Receiver
from watersmeet.program.pier.sql.plan import plan_sql
from watersmeet.program.pier.sql.settings import JoinMethod, PlanSettings, StreamTypes
from watersmeet.program.pier.sql.sharing import shared_queries
from watersmeet.program.pier.tuples import Batch, Schema
from watersmeet.program.pier.ufl.format import format_ufl
from watersmeet.program.pier.ufl.parse import parse_ufl
from watersmeet.query.sql import parse_query
from watersmeet.sim.pier.network import PierNetwork

R, S = {"ts": "timestamp", "k": "integer", "v": "double"}, {"ts": "timestamp", "k": "integer", "w": "string"}
TYPES = {"r": StreamTypes(R, "ts"), "s": StreamTypes(S, "ts")}
COLUMNS = {"r": list(R), "s": list(S)}
SQL = (
    "SELECT r.v, s.w FROM r [RANGE 2 SECONDS], s [TUMBLE 2 SECONDS] WHERE r.k = s.k AND r.v + s.k > 1",
    "SELECT r.k, count(*) AS n, avg(r.v) AS a FROM r [UNBOUNDED] GROUP BY r.k, HOP(2 SECONDS, 1 SECOND) "
    "HAVING count(*) > 0 ORDER BY n DESC LIMIT 2",
)
WORDS = (
    *(
        "{",
        "}",
        "=",
        "[]",
        "[*]",
        "%opgraph(x)",
        "%operator(s)",
        "%predicate(p)",
        '"',
        "\\",
        "$",
        "::integer",
        "::blob",
    ),
    *("0", "-1", "1e400", "99999999999999999999", "null::null", "add($k, $k)", "divide($k, 0::integer)", "nosuch()"),
    *(
        "sources[] = s",
        "type = join",
        "type = eddy",
        "implementation = Index",
        "key[] = $nothing",
        "duration = 0",
        "\x00",
    ),
)


SAME = "SELECT r.k, count(*) AS n, {} FROM r [UNBOUNDED] WHERE {} GROUP BY r.k, TUMBLE(2 SECONDS)"
NESTED = ("r.k < 3", "r.k >= 3", "r.k < 7", "r.k >= 7", "r.k >= 3 AND r.k < 7", "r.k >= 0")
CROSSED = ("r.k < 5", "(r.k >= 5 OR r.k IS NULL)", "r.v < 2.5", "(r.v >= 2.5 OR r.v IS NULL)")


def texts(directory: Path) -> list[str]:
    """Op-graphs with every operator and implementation: those that SQL becomes, and others."""
    plain = PlanSettings(duration_s=4)
    tree = replace(plain, aggregation="Tree-Hi-S-Topology")
    joined, grouped = (parse_query(sql, COLUMNS) for sql in SQL)
    made = [plan_sql(joined, TYPES, replace(plain, method=method)) for method in JoinMethod]
    made += [plan_sql(grouped, TYPES, settings) for settings in (plain, tree)]
    lists = "max_k(r.ts, 2) AS x, approx_top_k(r.k, 2) AS y"
    for aggregate, filters in (("max(r.ts) AS x", NESTED), ("sum(r.k) AS x", CROSSED), (lists, NESTED)):
        queries = {where: (parse_query(SAME.format(aggregate, where), COLUMNS), None) for where in filters}
        (group,) = shared_queries(queries, TYPES, plain)
        made.append(group.graphs(TYPES, plain, [Receiver(0, f"q0.{number}") for number in range(len(filters))]))
    return [*map(format_ufl, made), *hand_written(directory)]


def mutated(chance: Random, text: str) -> str:
    """The text with fields exchanged, or with some lines or pieces lost, doubled, exchanged or replaced."""
    if chance.random() < 0.4:
        fields = re.findall(r"\$[\w.]+", text)
        old, new = (
            chance.choice(fields),
            chance.choice((*fields, "$nothing", "1::integer", '"x"::string', "null::null")),
        )
        return text.replace(old, new, chance.choice((1, -1)))
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        lines = text.split("\n")
        i, j = chance.randrange(len(lines)), chance.randrange(len(lines))
        match chance.randrange(6):
            case 0:
                del lines[i]
            case 1:
                lines[i], lines[j] = lines[j], lines[i]
            case 2:
                lines.insert(i, lines[j])
            case 3:
                words = lines[i].split(" ")
                words[chance.randrange(len(words))] = chance.choice(WORDS)
                lines[i] = " ".join(words)
            case 4:
                words, others = lines[i].split(" "), lines[j].split(" ")
                words[-1] = others[-1]
                lines[i] = " ".join(words)
            case _:
                place = chance.randrange(len(text))
                lines = [text[:place] + chance.choice(WORDS) + text[place + chance.randrange(4) :]]
        text = "\n".join(lines)
    return text


def odd_value(chance: Random, kind: str) -> object:
    return chance.choice((None, 0, -1, 1 << 63, 2.5, float("nan"), float("inf"), "", "x", b"\xff", True, kind))


def odd_batch(chance: Random) -> Batch:
    """Tuples of r or s with columns that are missing, of other types, or with values that are not of their type."""
    table = chance.choice("rs")
    columns = dict(R if table == "r" else S)
    if chance.random() < 0.3:
        columns.pop(chance.choice(list(columns)))
    if columns and chance.random() < 0.3:
        columns[chance.choice(list(columns))] = chance.choice(
            ("integer", "string", "double", "decimal", "binary", "null")
        )
    rows = [tuple(odd_value(chance, kind) for kind in columns.values()) for _ in range(chance.randrange(1, 4))]
    return Batch(Schema.of(table, columns), rows)


def run(pier: PierNetwork, chance: Random, text: str) -> bool:
    """Ask for a text; says whether it was an op-graph at all."""
    refusal = None
    try:
        pier.nodes[chance.randrange(4)].ask(text)
    except UflError as error:
        refusal = str(error)
    if refusal is not None:
        assert refusal
        assert "\n" not in refusal
        return False
    if chance.random() < 0.5:
        pier.nodes[chance.randrange(4)].publish(tuples("r", "ts k v", [(1, 2, 0.5), (2, 2, 1.5)]))
    pier.nodes[chance.randrange(4)].publish(odd_batch(chance))
    pier.kernel.run(pier.kernel.now_us + 2_000_000)
    return True


def fuzz(seed: int, inputs: int, directory: Path) -> tuple[int, int]:
    """How many mutated texts were op-graphs, and how many were not."""
    chance, known, accepted = Random(seed), texts(directory), 0
    pier: PierNetwork | None = None
    for number in range(inputs):
        if pier is None or number % 50 == 0:
            pier = network(4, seed=seed)
        accepted += run(pier, chance, mutated(chance, chance.choice(known)))
    return accepted, inputs - accepted


def test_what_is_mutated_has_every_operator_and_implementation(tmp_path: Path) -> None:
    found = set()
    for text in texts(tmp_path):
        for graph in parse_ufl(text).graphs:
            for operator in graph.operators:
                kind = str(operator.settings.get("type")).casefold()
                first = next(iter(OPERATORS[kind]))
                found.add((kind, str(operator.settings.get("implementation") or first).casefold()))
    assert found == {(kind, name) for kind, names in OPERATORS.items() for name in names}


def test_mutated_op_graphs_and_odd_tuples(tmp_path: Path) -> None:
    accepted, refused = fuzz(1, 150, tmp_path)
    assert accepted > 20
    assert refused > 20


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 16))
def test_many_mutated_op_graphs_and_odd_tuples(seed: int, tmp_path: Path) -> None:
    accepted, refused = fuzz(seed, 4_000, tmp_path)
    assert accepted > 500
    assert refused > 500


def test_every_error_of_ufl_is_one_of_ours() -> None:
    assert issubclass(UflError, WatersmeetError)
