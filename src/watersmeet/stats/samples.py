"""Samples of streams as statistics have them: all rows of a while, with what joins compare of them, packed as bytes.

Rows of several streams over the same while tell what statistics of single columns cannot: which values come in runs,
and which values of two streams come together.
"""

from collections.abc import Mapping
from functools import lru_cache

import pyarrow as pa

from watersmeet.stats.model import Sample

TIME = "ts"  # event times in microseconds, ascending
KEY = "key "  # then the name of a column: its values as 64-bit numbers, the same for equal values of any stream
FILTER = "filter "  # then a predicate: whether a row passes it
VALUE = "value "  # then the name of a column that comparisons of streams read


def sample_of(columns: Mapping[str, pa.Array | pa.ChunkedArray], *, is_whole: bool = False) -> Sample:
    """A sample of these columns, by the names above; rows are put in the order of their event times."""
    table = pa.table(dict(columns)).sort_by(TIME)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return Sample(sink.getvalue().to_pybytes(), is_whole)


@lru_cache(maxsize=64)
def table_of(sample: Sample) -> pa.Table:
    """The rows of a sample.

    >>> table_of(sample_of({TIME: pa.array([2, 1]), KEY + "k": pa.array([7, None])})).column(KEY + "k").to_pylist()
    [None, 7]
    """
    return pa.ipc.open_stream(sample.rows).read_all().combine_chunks()
