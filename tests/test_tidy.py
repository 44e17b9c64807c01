"""The house rules that a machine can check: imports go one way, and only one module knows a library."""

import ast
import runpy
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "watersmeet"
MODULES = sorted(SOURCE.rglob("*.py"))

# Each layer may import itself and those before it; a module named here is a layer of its own, not of its package.
LAYERS = [
    "errors",
    "texts",
    "sharing",
    "query",
    "topology.yaml_tree",
    "topology.generate",
    "stats",
    "topology",
    "plan",
    "cost.records",
    "cost.comparing",
    "cost.sizes",
    "cost.workload",
    "program.storage",
    "program.join",
    "program.aggregate",
    "program.finish",
    "program.operators",
    "program.once",
    "program.compile",
    "program.site",
    "program.rjoin",
    "program.pier",
    "program",
    "stats.packed_sizes",
    "stats.sketches",
    "stats.observe",
    "cost",
    "planners",
    "plan.explain_words",
    "plan.explain",
    "plan.explain_sites",
    "plan.draw",
    "metrics",
    "dashboard",
    "adapt",
    "sim.kernel",
    "sim.internet",
    "sim.overlays",
    "sim.dht",
    "sim.sites",
    "sim.pier.indexes",
    "sim.pier.aggregation",
    "sim.pier",
    "sim.rjoin",
    "sim.scenario",
    "sim",
    "spark",
    "reproduce",
    "cli",
]
SQLGLOT_USERS = {
    ("query", name) for name in ("sql", "comparisons.py", "dialect.py", "nulls.py", "substitute.py", "tree.py")
}
# Class names that modules share: experiments have points, overlays their own messages; the last two are in files.
SHARED_NAMES = {"Point", "Peer", "Ping", "Probe", "Hop"}
OUTSIDE = {"__init__", "__main__", "testing"}  # entry points and the test kit


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def layer(dotted: str) -> str | None:
    """The layer of a module, by the longest name in the list that it starts with."""
    parts = dotted.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in names if name in LAYERS), None)


def dotted_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    if path.relative_to(SOURCE).parts[0].removesuffix(".py") in OUTSIDE:
        return
    own = layer(dotted_name(path))
    assert own is not None, f"{path} is in no layer"
    for name in imports(path):
        if name.startswith("watersmeet.") and (other := layer(name.removeprefix("watersmeet."))) is not None:
            assert LAYERS.index(other) <= LAYERS.index(own), f"{dotted_name(path)} ({own}) must not import {name}"


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("pyspark", lambda path: path.relative_to(SOURCE).parts[0] in ("spark", "__init__.py", "cli")),
        ("sqlglot", lambda path: path.relative_to(SOURCE).parts[:2] in SQLGLOT_USERS),
        ("duckdb", lambda path: path in (SOURCE / "query" / "oracle.py", SOURCE / "sim" / "sites" / "rows.py")),
        ("lark", lambda path: path == SOURCE / "program" / "pier" / "ufl" / "parse.py"),
        ("yaml", lambda path: path.name == "yaml_tree.py"),
        ("rich", lambda path: path.relative_to(SOURCE).parts[0] == "cli"),
        ("datasketches", lambda path: path == SOURCE / "stats" / "columns.py"),
        ("obstore", lambda path: path == SOURCE / "spark" / "store" / "object_store.py"),
        ("starlette", lambda path: path == SOURCE / "dashboard" / "server.py"),
        ("uvicorn", lambda path: path == SOURCE / "dashboard" / "server.py"),
        ("sqlite3", lambda path: path.parent == SOURCE / "dashboard" or "pier" in path.parts),
        (
            "confluent_kafka",
            lambda path: (
                path.relative_to(SOURCE).parts[:2] == ("spark", "links")
                or path.relative_to(SOURCE).parts == ("spark", "deliver", "kafka.py")
            ),
        ),
        ("cryptography", lambda path: path == SOURCE / "spark" / "links" / "seal.py"),
        ("prometheus_client", lambda path: path == SOURCE / "metrics" / "prometheus.py"),
    ],
)
def test_a_library_has_one_home(library: str, allowed: Callable[[Path], bool]) -> None:
    users = [path for path in MODULES if any(name.split(".")[0] == library for name in imports(path))]
    assert users, f"nothing imports {library}: is it still needed?"
    assert [path for path in users if not allowed(path)] == []


def test_programs_do_no_io_and_read_no_clock() -> None:
    banned = {"os", "time", "datetime", "socket", "random", "pathlib", "subprocess", "pyspark"}
    for path in sorted((SOURCE / "program").rglob("*.py")):
        assert not {name.split(".")[0] for name in imports(path)} & banned, path


def test_nothing_is_unpickled_from_a_link_or_a_checkpoint() -> None:
    """Only results of tasks are, within a session of Spark Connect: see spark/connect/backend.py."""
    banned = {"pickle", "cloudpickle", "_pickle", "dill", "joblib", "marshal", "shelve", "pyspark.serializers"}
    users = {path for path in MODULES if any(name in banned or name.split(".")[0] in banned for name in imports(path))}
    assert users == {SOURCE / "spark" / "connect" / "backend.py"}
    readers = [path for path in MODULES if path.relative_to(SOURCE).parts[0] in ("spark", "metrics", "dashboard")]
    readers += [path for path in MODULES if path.parent.name in ("storage", "site")]
    for path in readers:
        calls = [node.func for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
        called = {function.id for function in calls if isinstance(function, ast.Name)}
        assert not called & {"eval", "exec", "compile", "__import__"}, path
        keywords = {node.arg for node in ast.walk(tree_of(path)) if isinstance(node, ast.keyword)}
        assert "allow_pickle" not in keywords, path


def test_everything_public_has_a_docstring() -> None:
    missing = []
    for path in MODULES:
        tree = tree_of(path)
        if not ast.get_docstring(tree):
            missing.append(str(path.relative_to(SOURCE)))
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node) and "Protocol" not in ast.dump(node):
                missing.append(f"{path.relative_to(SOURCE)}: {node.name}")
    assert missing == []


def test_a_class_name_has_one_meaning() -> None:
    classes = [node.name for path in MODULES for node in tree_of(path).body if isinstance(node, ast.ClassDef)]
    twice = {name for name, count in Counter(classes).items() if count > 1 and not name.startswith("_")}
    assert twice == SHARED_NAMES


def test_make_soak_knows_where_long_tests_are() -> None:
    root = SOURCE.parents[1]
    script = runpy.run_path(str(root / "scripts" / "soak.py"))
    assert all((root / path).exists() for one in (*script["CLASSES"], script["others"]()) for path in one.paths)
