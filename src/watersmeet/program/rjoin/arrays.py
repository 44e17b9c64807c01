"""What RJoin's inner loops read and write: queries, tuples, keys, waiting rows and candidates as arrays of numbers.

A rewritten query is a row of whole numbers: which query, how many members it stands for, which aliases are bound, which
one it waits for at its key, the value of each class of equal attributes, and, where members are told apart, the tuple
bound to each alias. Rows of one key form a list through `Store.after`, so that storing is constant work and nothing
moves.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int32]
Longs: TypeAlias = NDArray[np.int64]

QUERY, COUNT, MASK, WAITS, CLASSES = 0, 1, 2, 3, 4  # columns of a row; values of classes follow, then references
UNBOUND, DONE = -1, -2  # instead of a value: no tuple has told it yet; every alias that has it is bound
NONE = -1
NO_VALUE = 0  # a key's value part at the attribute level; codes of values begin with 1
RANGE, TUMBLE, FREE = 0, 1, 2  # windows as far as one tuple tells their end; ROWS is seen to when a row is complete
FOREVER = np.int64(1 << 62)


class Queries(NamedTuple):
    """All queries, one a line; lines are as wide as the widest query needs."""

    stream: Ints  # of each alias
    aliases: Ints  # how many
    slots: Ints  # how many key attributes, in the order of the WHERE clause
    slot_alias: Ints
    slot_column: Ints
    slot_attribute: Ints
    slot_class: Ints  # NONE: an attribute to wait at, equal to nothing
    class_mask: Ints  # the aliases of each class
    window: Ints
    window_us: Longs
    start_us: Longs
    until_us: Longs
    filter: Ints  # of each alias, NONE where it has none
    home: Ints  # the node that wants the answers
    shown: Longs  # of each alias, the columns that a DISTINCT answer shows, as bits; NONE where all rows count


class Tuples(NamedTuple):
    """All tuples: messages carry their values, and every reader finds them here."""

    stream: Ints
    ts_us: Longs
    value: Ints  # codes of values, 0 for NULL
    passes: NDArray[np.bool_]  # each filter


class KnownKeys(NamedTuple):
    """What is known of each key: an attribute, or an attribute with a value."""

    slots: Longs  # hash table: packed attribute and value, NONE where empty
    number: Ints  # and the key's number
    packed: Longs  # by number
    host: Ints  # the node that has the key
    first_row: Ints
    first_tuple: Ints
    seen: Longs  # tuples that came in the current epoch
    seen_before: Longs  # and in the one before
    epoch: Longs


class WaitingStore(NamedTuple):
    """Waiting rows and kept tuples, in lists by key."""

    row: Ints
    after: Ints
    alike: Ints  # hash table of rows with the same key, query, mask and values
    tuple_of: Ints
    tuple_after: Ints


class Candidates(NamedTuple):
    """What nodes know of keys elsewhere: node and key packed, rate, owner, and when it was learned."""

    slots: Longs
    rate: NDArray[np.float32]
    host: Ints
    learned_us: Longs
