"""Statistics of streams without Spark, for the simulator: from the first rows of sources, as queries read them."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.cost.sampling import Compared, compared_by
from watersmeet.errors import InputError
from watersmeet.plan.shape import shape_of
from watersmeet.query.model import Expression
from watersmeet.query.outer import branches_of
from watersmeet.query.sql import to_duckdb
from watersmeet.sim.scenario.sources import Arrivals, check_source, first_part, read_arrivals, schema_of
from watersmeet.sim.sites.rows import query_rows, typed
from watersmeet.stats.columns import key_numbers
from watersmeet.stats.model import Number, Origin, Stats, StreamStats
from watersmeet.stats.samples import FILTER, KEY, TIME, VALUE, sample_of
from watersmeet.stats.sketches import StreamSketch
from watersmeet.stats.yaml import filled
from watersmeet.topology.model import Stream, Topology
from watersmeet.topology.views import outputs_of

SAMPLED_ROWS = 100_000
_MEASURED_ROWS = 10_000
_JOINED_ROWS = 20_000  # of the sample by which joins are counted


def with_sampled_statistics(topology: Topology, most_rows: int = SAMPLED_ROWS, share: float | None = None) -> Topology:
    """The topology with statistics of streams for which none are given, from their first rows.

    With a share they are of the first part of the time alone, as is the input that plans are compared on: of a
    recording with busy and quiet hours, the rest says little about it.
    """
    found: dict[str, StreamStats] = {}
    selectivities: dict[str, Number] = {}
    unknown = [stream for stream in topology.streams if topology.stats.stream(stream.name).rate is None]
    for stream in unknown:
        check_source(stream)
    parts: Mapping[str, Arrivals] = {}
    if unknown and share is not None:
        parts = first_part({stream.name: read_arrivals(stream) for stream in topology.streams}, share)
    compared = _compared(topology) if unknown else {}
    for stream in unknown:
        rows, arrivals_us = parts[stream.name] if parts else read_arrivals(stream, most_rows + 1)
        seen = 1.0 if rows.num_rows <= most_rows else 0.0
        rows, sketch = rows.slice(0, most_rows), StreamSketch()
        if not rows.num_rows:
            continue
        sketch.count(arrivals_us[: rows.num_rows])
        sketch.add(rows)
        sketch.measure(rows.slice(0, _MEASURED_ROWS))
        wanted = compared.get(stream.name, Compared())
        passed = {
            sql: held for sql, predicate in wanted.filters.items() if (held := _held(predicate, rows)) is not None
        }
        for sql, held in passed.items():
            sketch.passed(sql, pc.sum(held).as_py() or 0, len(held))
        found[stream.name] = sketch.stats(Origin.ESTIMATED, None, seen)
        selectivities |= sketch.selectivities(Origin.ESTIMATED, None, seen)
        sample = _columns(stream, rows, wanted, passed)
        first = {name: values.slice(0, _JOINED_ROWS) for name, values in sample.items()}
        is_whole = bool(seen) and rows.num_rows <= _JOINED_ROWS
        found[stream.name] = replace(found[stream.name], sample=sample_of(first, is_whole=is_whole))
    return replace(topology, stats=filled(topology.stats, Stats(found, selectivities)))


def _columns(
    stream: Stream, rows: pa.Table, read: Compared, passed: Mapping[str, pa.Array]
) -> dict[str, pa.Array | pa.ChunkedArray]:
    """What a sample has of a stream's rows."""
    times = rows.column(stream.event_time_column).cast(pa.int64())
    columns: dict[str, pa.Array | pa.ChunkedArray] = {TIME: times}
    columns |= {KEY + name: key_numbers(rows.column(name)) for name in read.keys}
    columns |= {FILTER + sql: held for sql, held in passed.items()}
    return columns | {VALUE + name: rows.column(name) for name in read.values}


def _held(filtered: Expression, rows: pa.Table) -> pa.Array | None:
    """Which rows pass a filter; None where it fails for any, which is for a run to tell."""
    (alias,) = filtered.aliases
    flat = rows.rename_columns([f"{alias}.{name}" for name in rows.column_names])
    sql = f"coalesce(TRY({to_duckdb(filtered)}), false) AS held"
    try:
        held = query_rows(f"SELECT {sql} FROM flat", flat=flat).column("held").combine_chunks()
    except Exception:  # DuckDB's own, which is known to a few modules only
        return None
    return pa.array(np.asarray(held.to_numpy(zero_copy_only=False), bool))


def _compared(topology: Topology) -> dict[str, Compared]:
    """What the queries of a topology compare of each stream, where they read streams alone."""
    schemas = {stream.name: schema_of(stream) for stream in topology.streams}
    shapes = []
    for asked in outputs_of(topology, topology.queries):
        for _, parsed in asked.output.branches:
            if all(source.stream in schemas for source in parsed.sources):
                query = typed(parsed, schemas, topology.event_times)
                joins = [query] if query.outer is None else [branch.query for branch in branches_of(query).branches]
                with suppress(InputError):  # which planning will tell
                    shapes += [shape_of(join, topology.columns) for join in joins]
    return compared_by(shapes)
