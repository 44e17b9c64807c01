"""What a scene tries, in words: tests of coverage ask whether a table of scenes tries everything."""

from collections import Counter
from collections.abc import Iterator

from equivalence.model import Scene, SceneQuery
from equivalence.reference import bag, event_times_us, expected_table, rows_on_time

from watersmeet.query.windows import Changes, Hop

WINDOWS = ("Range", "Tumble", "Rows", "Unbounded")


def kinds_of_query(scene: Scene, query: SceneQuery) -> Iterator[str]:
    """What a query tries."""
    parsed = scene.parsed(query)
    windows = {type(source.window).__name__ for source in parsed.sources}
    yield from (f"window {kind}" for kind in windows)
    yield f"only {windows.pop()}" if len(windows) == 1 else "mixed windows"
    yield f"{len(parsed.sources)} aliases"
    for equality in parsed.equalities:
        (stream,) = (scene.stream(parsed.source(alias).stream) for alias in equality.left.aliases)
        is_plain = equality.left.is_plain and equality.right.is_plain
        yield f"key {stream.schema.field(equality.left.columns[0].name).type}" if is_plain else "expression key"
    pairs = Counter(frozenset((*one.left.aliases, *one.right.aliases)) for one in parsed.equalities)
    for head in query.plan or ():
        yield from (f"step {step.method}{' Bloom' if step.bloom else ''}" for step in head.steps)
        yield from ("a step elsewhere" for step in head.steps if step.at is not None)
    streams = [source.stream for source in parsed.sources]
    window = parsed.grouping.window if parsed.grouping else None
    seen = {
        "DISTINCT": parsed.distinct,
        "self-join": len(set(streams)) < len(streams),
        "residual": parsed.residuals,
        "GROUP BY": parsed.grouping,
        "EMIT CHANGES": isinstance(window, Changes),
        "overlapping windows": isinstance(window, Hop) and window.slide_us < window.length_us,
        "HAVING": parsed.grouping and parsed.grouping.having,
        "LIMIT": parsed.grouping and parsed.grouping.limit,
        "filter": parsed.filters,
        "expression in SELECT": not all(item.expression.is_plain for item in parsed.select),
        "composite key": max(pairs.values(), default=0) > 1,
        "cycle": len(pairs) >= len(parsed.sources) > 2,
        "cross product": query.allow_cross,
        "start": query.start,
        "one site": scene.is_at_one_site(query),
        "several sites": not scene.is_at_one_site(query),
        "a site without streams": query.site not in {stream.home for stream in scene.streams},
        "repeated answers": max(bag(expected_table(scene, query)).values()) > 1,
    }
    yield from (kind for kind, is_seen in seen.items() if is_seen)


def kinds_of_scene(scene: Scene) -> Iterator[str]:
    """What the streams of a scene have, and its queries in common."""
    yield f"{len(scene.queries)} queries"
    equalities = Counter(scene.parsed(query).equalities for query in scene.queries)
    seen = {"without statistics": not scene.has_stats, "equal joins": max(equalities.values()) > 1}
    instants = []
    for stream in scene.streams:
        batches = [event_times_us(stream, batch) for batch in stream.batches]
        times = [ts for batch in batches for ts in batch if ts is not None]
        rows = [row for batch in stream.batches for row in batch.to_pylist()]
        instants.append({*times})
        for kind, is_seen in {
            "late rows": rows_on_time(stream).num_rows < len(times),
            "no event time": len(times) < len(rows),
            "ties": len(set(times)) < len(times),
            "disorder": times != sorted(times),
            "an empty batch": any(not batch for batch in batches),
            "NULL key": any(row["k"] is None for row in rows),
            "odd keys": any(row["k"] == 2**63 - 1 for row in rows),
            "empty text": any(row["s"] == "" for row in rows),
            "Unicode text": any(row["s"] == "東京" for row in rows),
            "NaN": any(row["v"] != row["v"] for row in rows),
            "closed": rows[-1]["id"] == -1,
            "open": rows[-1]["id"] != -1,
            "before 1970": min(times) < 0,
        }.items():
            seen[kind] = seen.get(kind, False) or is_seen
    seen["ties across streams"] = any(one & other for one in instants for other in instants if one is not other)
    yield from (kind for kind, is_seen in seen.items() if is_seen)
