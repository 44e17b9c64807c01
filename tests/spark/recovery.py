"""A scene for runs that die and go on: three streams, and a query for each way that answers come about."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scenes import SECOND_US, Bag, Scene, make_batches

WINDOW = "RANGE 20 SECONDS"
QUERIES = {
    # Plain columns: they are written without Spark SQL.
    "plain": f"""SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id, a.ts AS a_ts, b.s
        FROM a [{WINDOW}], b [{WINDOW}], c [{WINDOW}] WHERE a.k = b.k AND b.k = c.k""",
    # Expressions and a residual: Spark SQL evaluates them.
    "residual": f"""SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id, a.v + b.v AS sum, upper(c.s) AS name
        FROM a [{WINDOW}], b [{WINDOW}], c [{WINDOW}] WHERE a.k = b.k AND b.k = c.k AND a.v < b.v""",
    # Two keys, so two rounds.
    "chain": f"""SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id
        FROM a [RANGE 10 SECONDS], b [TUMBLE 15 SECONDS], c [{WINDOW}] WHERE a.k = b.k AND b.m = c.m""",
    # Rows taken in order, behind the watermark.
    "counted": """SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id
        FROM a [ROWS 300], b [ROWS 80], c [RANGE 10 SECONDS] WHERE a.k = b.k AND b.k = c.k""",
    # Answers remembered for ever.
    "different": f"""SELECT DISTINCT a.k, b.m, c.s
        FROM a [{WINDOW}], b [{WINDOW}], c [{WINDOW}] WHERE a.k = b.k AND b.k = c.k""",
}
# Keys travel one way and tuples the other.
PLAN = {
    "a": [{"join": "b", "method": "SM-S1"}, {"join": "c", "method": "SP-D"}],
    "b": [{"join": "a", "method": "SM-D1"}, {"join": "c", "method": "SP-D"}],
    "c": [{"join": "b", "method": "SM-S2"}, {"join": "a", "method": "SP-S"}],
}
APART = {"a": "ams", "b": "nyc", "c": "nyc"}


def make_scene(directory: Path, queries: Sequence[str], *, batches: int, rows: int, seed: int, **where: Any) -> Scene:
    """Rows that are late are so by a little: by the watermark of a micro-batch before they would not be."""
    data = {
        name: make_batches(seed * 10 + number, batches, rows, keys=150, kinds=60, texts=5, late_by_s=5, trouble=0.03)
        for number, name in enumerate("abc")
    }
    asked = {name: QUERIES[name] for name in queries}
    return Scene(directory, data, asked, late=["a"], delay_us=2 * SECOND_US, **where).write()


def all_answers(scene: Scene) -> dict[str, Bag]:
    """All that is ever an answer, whatever has been processed yet."""
    return {query: scene.expected(query) for query in scene.queries}
