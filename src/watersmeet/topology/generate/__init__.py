"""Made-up streams that can be replayed: row i is a pure function of the specification and i, so nothing is kept.

    draw(seed, column, purpose, i) = splitmix64(key + (i + 1) * GOLDEN),   key = blake2b(seed, column, purpose)
    event time of row i            = start + i / rows_per_second - disorder_i,   0 <= disorder_i <= disorder

Values depend on the seed and the column's name: two streams with a column of the same name and the same seed have the
same values there, row by row, so give each stream its own seed unless that is what you want.

A column's values are written as a few words, quoted as in a shell where a word holds a space:

    sequence            the row number; past the largest value of its type it starts at 0 again
    time                the event time (timestamps), or its day in UTC (dates)
    uniform LOW HIGH    integers from LOW up to but not including HIGH, or reals in the same interval
    zipf S N            integers 0..N-1; the probability of r is in proportion to 1 / (r + 1)^S
    choice A B C        one of the words, each as likely
    constant X          always X
    pattern TEXT [NUM]  TEXT with its {} filled by NUM: sequence, uniform or zipf; `uniform 0 1000` if not given
    null P [SPEC]       a share P of NULLs, the rest as SPEC says, or as the type's default
"""

from watersmeet.topology.generate.columns import ZIPF_LARGEST
from watersmeet.topology.generate.making import CHUNK_ROWS, arrivals_us, batches, rows
from watersmeet.topology.generate.model import ARROW_TYPES, Spec, Time
from watersmeet.topology.generate.options import spec

__all__ = ["ARROW_TYPES", "CHUNK_ROWS", "ZIPF_LARGEST", "Spec", "Time", "arrivals_us", "batches", "rows", "spec"]
