"""The reference semantics: DuckDB's answers over the rows that are not late, and how answers differ from them.

A row is late if its event time lies before the watermark of its stream as it stood before the row's micro-batch: the
greatest event time of all earlier micro-batches minus the delay. A row without an event time takes no part.
"""

from collections.abc import Mapping
from functools import lru_cache

import pyarrow as pa
from equivalence.model import Bag, Scene, SceneQuery, SceneStream

from watersmeet.query.model import JoinQuery
from watersmeet.query.oracle import answer
from watersmeet.query.windows import Rows

_MOST_SHOWN = 5


def bag(table: pa.Table) -> Bag:
    """The rows of a table with their counts; NaN equals NaN."""
    columns = [[_comparable(value) for value in table.column(name).to_pylist()] for name in table.column_names]
    return Bag(zip(*columns, strict=True))


def _comparable(value: object) -> object:
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    if isinstance(value, dict):
        return tuple((name, _comparable(member)) for name, member in value.items())
    return "NaN" if isinstance(value, float) and value != value else value


def event_times_us(stream: SceneStream, batch: pa.Table) -> list[int | None]:
    times: list[int | None] = batch.column(stream.event_time).cast(pa.int64()).to_pylist()
    return times


@lru_cache(maxsize=2_048)
def rows_on_time(stream: SceneStream) -> pa.Table:
    """The rows that take part, in order of arrival."""
    kept: list[pa.Table] = []
    latest: int | None = None
    for batch in stream.batches:
        times = event_times_us(stream, batch)
        late_before = None if latest is None else latest - stream.delay_us
        takes_part = [ts is not None and (late_before is None or ts >= late_before) for ts in times]
        kept.append(batch.filter(pa.array(takes_part, pa.bool_())))
        latest = max((ts for ts in (*times, latest) if ts is not None), default=None)
    return pa.concat_tables(kept)


@lru_cache(maxsize=2_048)
def watermark_us(stream: SceneStream) -> int:
    """The watermark of a stream after its last micro-batch."""
    times = [ts for batch in stream.batches for ts in event_times_us(stream, batch) if ts is not None]
    return max(times) - stream.delay_us


def expected_table(scene: Scene, query: SceneQuery, *, waits_for_all: bool = False) -> pa.Table:
    """Every answer that is due once all micro-batches have been processed.

    A ROWS window is known only up to the watermark of its stream: combinations with a later tuple are still to come.
    With `waits_for_all` they also wait for the watermarks of the other streams. An output window is answered once the
    watermarks of all streams have passed its end.
    """
    parsed = scene.parsed(query)
    is_counting = any(isinstance(source.window, Rows) for source in parsed.sources)
    marks = [
        watermark_us(scene.stream(source.stream))
        for source in parsed.sources
        if is_counting and (waits_for_all or isinstance(source.window, Rows))
    ]
    ended = None
    if parsed.grouping is not None:
        ended = min(watermark_us(scene.stream(source.stream)) for source in parsed.sources)
    used = tuple({source.stream: scene.stream(source.stream) for source in parsed.sources}.values())
    return _answers(parsed, used, query.start_us, min(marks, default=None), ended)


@lru_cache(maxsize=2_048)
def _answers(
    parsed: JoinQuery,
    streams: tuple[SceneStream, ...],
    start_us: int | None,
    heads_before_us: int | None,
    watermark: int | None,
) -> pa.Table:
    return answer(
        parsed,
        {stream.name: rows_on_time(stream) for stream in streams},
        {stream.name: stream.event_time for stream in streams},
        start_us=start_us,
        heads_before_us=heads_before_us,
        watermark_us=watermark,
    )


def differences(expected: Mapping[str, Bag], found: Mapping[str, Bag]) -> list[str]:
    """What is wrong with the answers of each query, with the first rows that are missing and that are surplus."""
    wrong = []
    for name, wanted in expected.items():
        got = found.get(name, Bag())
        if got == wanted:
            continue
        missing, surplus = wanted - got, got - wanted
        wrong.append(
            f"{name}: {missing.total()} missing and {surplus.total()} surplus of {wanted.total()} answers"
            + "".join(_first(word, rows) for word, rows in (("missing", missing), ("surplus", surplus)))
        )
    return wrong


def _first(word: str, rows: Bag) -> str:
    shown = sorted(rows.items(), key=repr)[:_MOST_SHOWN]
    return "".join(f"\n  {word}: {row}{f' x {count}' if count > 1 else ''}" for row, count in shown)
