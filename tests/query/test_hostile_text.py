"""SQL and YAML that nobody means well with: one sentence within a second, whatever the text is."""

import json
import random
import re
import string
import subprocess
import sys
import time
from pathlib import Path

import hangs
import pytest
from seeds import FreshSeeds

from watersmeet.errors import InputError, WatersmeetError
from watersmeet.query.sql import canonical_sql, parse_query
from watersmeet.query.sql.tokens import MAX_DEPTH
from watersmeet.topology.load import load_topology
from watersmeet.topology.yaml_tree import MAX_FILE_BYTES

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*/topology.yaml"))
COLUMNS = {"a": ["k", "s", "ts"], "b": ["k", "s", "ts"]}
SECONDS = 5.0  # of processor time: a second on a fast machine


def query(select: str = "a.k", where: str = "true", a: str = "a [ROWS 5]") -> str:
    return f"SELECT {select} AS x FROM {a}, b [ROWS 5] WHERE a.k = b.k AND {where}"


def refusal(sql: str) -> str:
    began = time.thread_time()
    with pytest.raises(InputError) as caught:
        parse_query(sql, COLUMNS)
    assert time.thread_time() - began < SECONDS
    assert len(str(caught.value)) < 5_000
    return str(caught.value)


@pytest.mark.few(16)
@pytest.mark.parametrize("depth", [101, 1_000, 10_000, 60_000])
@pytest.mark.parametrize(
    ("opening", "inner", "closing"),
    [
        ("(", "a.k", ")"),
        ("abs(", "a.k", ")"),
        ("CASE WHEN true THEN ", "1", " END"),
        ("NOT ", "true", ""),
        ("- ", "a.k", ""),
        ("~ ", "a.k", ""),
        ("a.k[", "0", "]"),
        ("INTERVAL ", "1 DAY", ""),
    ],
)
def test_deep_nesting(depth: int, opening: str, inner: str, closing: str) -> None:
    text = opening * depth + inner + closing * depth
    for sql in (query(select=text), query(where=text)):
        assert re.search(rf"nested more than {MAX_DEPTH} deep|is the limit", refusal(sql))


@pytest.mark.parametrize(
    ("opening", "inner", "closing"),
    [("(", "a.k", ")"), ("abs(", "a.k", ")"), ("CASE WHEN true THEN ", "1", " END"), ("- ", "a.k", "")],
)
def test_nesting_up_to_the_limit(opening: str, inner: str, closing: str) -> None:
    depth = MAX_DEPTH - 2
    assert parse_query(query(select=opening * depth + inner + closing * depth), COLUMNS).select


def test_nested_types() -> None:
    assert "nested more than" in refusal(query(select=f"CAST(NULL AS {'array<' * 5_000}int{'>' * 5_000})"))


def test_long_texts() -> None:
    assert "a number has 5,000 characters" in refusal(query(select="9" * 5_000))
    assert "words and signs; 20,000 is the limit" in refusal(query(select="a.k" + "+1" * 15_000))
    assert "characters; 200,000 is the limit" in refusal(query(select="'" + "x" * 1_000_000 + "'"))
    assert "control character U+0000 is not allowed" in refusal(query(select="'a\0b'"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a [ROWS 99999999999999999999999999]", "is more than 1,000,000,000,000 rows; use UNBOUNDED or fewer"),
        (f"a [ROWS {'9' * 5_000}]", "a number has 5,000 characters"),
        ("a [RANGE 99999999999999999999999 DAYS]", "is not understood"),
        ("a [RANGE 999999999999999999 DAYS]", "is longer than 1,000 years"),
        ("a [TUMBLE 400000 DAYS]", "is longer than 1,000 years"),
        (f"a [ROWS 5] AS {'x' * 300}", "the alias has 300 characters"),
        *((f"a [ROWS 5] AS `{name}`", f"{name!r} cannot be an alias") for name in ("x/y", "", "..", "b,c", "#x", "x)")),
        (", ".join(f"a [ROWS 5] a{n}" for n in range(33)), "FROM has 34 streams; 32 is the limit"),
    ],
)
def test_sizes_in_from(source: str, message: str) -> None:
    assert message in refusal(query(a=source))


@pytest.mark.parametrize(
    "words", ["JOIN b [ROWS 5] b{} ", "JOIN b [ROWS 5] b{} ON true ", "CROSS JOIN b [ROWS 5] b{} "]
)
def test_many_joins(words: str) -> None:
    """Joins without ON can be nested in exponentially many ways."""
    joins = "".join(words.format(n) for n in range(500))
    assert "the limit of one query" in refusal(f"SELECT * FROM a [ROWS 5] {joins}")


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("builtin.rand() < 0.5", "rand"),
        ("system.builtin.rand() < 0.5", "rand"),
        ("`system`.`builtin`.`RAND`() < 0.5", "rand"),
        ("abs(coalesce(builtin.randn(), 1)) > 0", "randn"),
        ("a.ts > timestamp 'now'", "timestamp 'now'"),
        ("a.ts > date 'Today'", "date 'Today'"),
        ("a.ts > timestamp_ntz ' tomorrow UTC'", "timestamp_ntz ' tomorrow UTC'"),
    ],
)
def test_what_is_not_deterministic(where: str, name: str) -> None:
    assert f"{name} is not deterministic and so cannot be in WHERE or ON" in refusal(query(where=where))
    expression = re.sub(r"a\.ts > ", "", where)
    assert parse_query(query(select=expression), COLUMNS).select  # its value is in the answer, and decides nothing
    distinct = query(select=expression).replace("SELECT", "SELECT DISTINCT")
    assert f"{name} is not deterministic and so cannot be in SELECT DISTINCT" in refusal(distinct)


@pytest.mark.parametrize("name", ["reflect", "java_method", "builtin.try_reflect", "system.builtin.reflect"])
def test_what_calls_java(name: str) -> None:
    call = f"{name}('java.util.UUID', 'randomUUID')"
    for sql in (query(select=call), query(where=f"{call} = a.s")):
        assert "calls Java methods, which may do anything" in refusal(sql)


PARSE_WITHIN = """
import json, re, resource, sys
from watersmeet.errors import InputError
from watersmeet.query.sql import parse_query
used = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)
for text in json.load(sys.stdin):
    try:
        parse_query(f"SELECT {text} AS x FROM a [ROWS 5]", {"a": ["k"]})
    except InputError as error:
        assert len(str(error)) < 5_000
"""


def test_what_is_refused_takes_little_memory() -> None:
    texts = ["9" * 5_000, "(" * 60_000 + "a.k" + ")" * 60_000, "CASE WHEN true THEN " * 7_000 + "1" + " END" * 7_000]
    texts += [
        "NOT " * 45_000 + "true",
        "- " * 60_000 + "a.k",
        "abs(" * 30_000 + "a.k" + ")" * 30_000,
        "a.k+" * 9_000 + "1",
    ]
    subprocess.run([sys.executable, "-c", PARSE_WITHIN], input=json.dumps(texts), text=True, check=True, timeout=300)


def test_a_time_that_stands_still_is_deterministic() -> None:
    assert parse_query(query(where="a.ts > timestamp 'epoch' AND a.ts > timestamp '2020-01-01'"), COLUMNS).filters


# ---- YAML


def load_error(tmp_path: Path, data: str | bytes) -> str:
    path = tmp_path / "topology.yaml"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    began = time.thread_time()
    with pytest.raises(InputError) as caught:
        load_topology(path)
    assert time.thread_time() - began < SECONDS
    assert len(str(caught.value)) < 5_000
    return str(caught.value)


def test_an_alias_bomb(tmp_path: Path) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    assert "more than 200,000 values, aliases written out" in load_error(tmp_path, "\n".join(lines))


def test_a_bomb_of_merges(tmp_path: Path) -> None:
    lines = ["a: &a {x: 1}"]
    lines += [
        f"m{n}: &m{n} {{<<: [*{'a' if n == 0 else f'm{n - 1}'}, *{'a' if n == 0 else f'm{n - 1}'}]}}" for n in range(40)
    ]
    assert "aliases written out" in load_error(tmp_path, "\n".join(lines))


@pytest.mark.parametrize("text", ["a: [" + "x," * 1_000_000 + "]", "x: 1\n" * 300_000], ids=["a list", "a mapping"])
def test_many_values_are_refused_before_they_are_made(tmp_path: Path, text: str) -> None:
    assert "more than 200,000 values" in load_error(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    ["[" * 60_000, "{a: " * 60_000, "- " * 60_000 + "x", "\n".join(f"{' ' * n}a:" for n in range(500))],
    ids=["lists", "mappings", "blocks", "indentation"],
)
def test_deep_yaml(tmp_path: Path, text: str) -> None:
    assert "nested more than 50 deep" in load_error(tmp_path, text)


def test_depth_by_aliases(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 500))]
    assert "nested more than 50 deep" in load_error(tmp_path, "\n".join(lines))


def test_files_that_are_no_topology(tmp_path: Path) -> None:
    assert "longer than 4 MB" in load_error(tmp_path, b"#" * (MAX_FILE_BYTES + 1))
    assert "the file is empty" in load_error(tmp_path, b"")
    assert "not text in UTF-8" in load_error(tmp_path, b"\x80\x81\xfe" * 100)
    assert "U+0000 is not allowed" in load_error(tmp_path, b"a: \0")
    with pytest.raises(InputError, match="Is a directory"):
        load_topology(tmp_path)


EXAMPLE = (Path(__file__).resolve().parents[2] / "examples" / "routers" / "topology.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("number", ["nan", ".nan", "inf", "-inf", "1e999", "9" * 5_000, "1.5", "0x10", "[1]"])
def test_numbers(tmp_path: Path, number: str) -> None:
    text = re.sub(r"(\n +)(sql: )", rf"\1parts: {number}\1\2", EXAMPLE, count=1)
    assert "parts must be a" in load_error(tmp_path, text)


def test_a_long_name_and_one_with_a_control_character(tmp_path: Path) -> None:
    name = re.search(r"\nstreams:\n(?: *#.*\n)* +(\w+):", EXAMPLE)
    assert name is not None
    assert "has 300 characters; 64 is the limit" in load_error(
        tmp_path, EXAMPLE.replace(f" {name[1]}:", f" {'x' * 300}:")
    )
    assert "control character U+0000" in load_error(
        tmp_path, re.sub(r"path: [^}\n]*", 'path: "a\\\\0b"', EXAMPLE, count=1)
    )


# ---- mutations of what people write


def mutated(chance: random.Random, text: str) -> str:
    """A text with a few things lost, doubled, swapped, nested or strewn in."""
    for _ in range(chance.randint(1, 4)):
        at, end = sorted((chance.randint(0, len(text)), chance.randint(0, len(text))))
        end = min(end, at + chance.choice([1, 5, 40]))
        match chance.randrange(7):
            case 0:
                text = text[:at] + text[end:]
            case 1:
                text = text[:end] + text[at:end] * chance.choice([1, 3, 200]) + text[end:]
            case 2:
                text = (
                    text[:at]
                    + "".join(chance.choice(string.printable + "\0\x1béŁ漢\u2028") for _ in range(5))
                    + text[at:]
                )
            case 3:
                text = text[:at] + chance.choice("([{'\"`&*|>-!%@#?:,\\") * chance.choice([1, 2, 500]) + text[at:]
            case 4:
                words = chance.choice(
                    [
                        "NOT ",
                        "CASE WHEN ",
                        " AND ",
                        "- ",
                        "abs(",
                        " OVER ",
                        "nan",
                        "9" * 400,
                        "<<: *a",
                        "&a ",
                        "~",
                        " IN (",
                        "::",
                        "INTERVAL ",
                    ]
                )
                text = text[:at] + words * chance.choice([1, 30]) + text[at:]
            case 5:
                text = text[:at] + text[at:end][::-1] + text[end:]
            case _:
                other = chance.randint(0, len(text))
                text = text[:at] + text[other : other + 20] + text[end:]
    return text


def survives(chance: random.Random, directory: Path) -> None:
    path = directory / "topology.yaml"
    text = chance.choice(EXAMPLES).read_text(encoding="utf-8")
    whole = load_topology(chance.choice(EXAMPLES))
    began = time.thread_time()
    try:
        path.write_text(mutated(chance, text), encoding="utf-8", newline="")
        load_topology(path)
    except WatersmeetError:
        pass
    try:
        asked = chance.choice(whole.queries)
        canonical_sql(parse_query(mutated(chance, asked.sql), whole.columns))
    except WatersmeetError:
        pass
    assert time.thread_time() - began < 2 * SECONDS


def test_mutated_files_and_queries(fresh_seeds: FreshSeeds, tmp_path: Path) -> None:
    for seed in fresh_seeds.take(300):
        survives(random.Random(seed), tmp_path)


@pytest.mark.soak
def test_many_mutated_files_and_queries(fresh_seeds: FreshSeeds, tmp_path: Path) -> None:
    for seed in fresh_seeds.take(200_000):
        survives(random.Random(seed), tmp_path)
        hangs.count("mutated files and queries")
