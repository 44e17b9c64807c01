"""Boolean matrices as bit sets: a row is a run of 64-bit words, the first column the lowest bit of the first word."""

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

WORD = 64


def words_for(columns: int) -> int:
    """How many words a row of so many columns takes, at least one.

    >>> words_for(0), words_for(64), words_for(65)
    (1, 1, 2)
    """
    return max(1, -(-columns // WORD))


def pack(matrix: Bools) -> Words:
    """The rows of a Boolean matrix as words.

    >>> pack(np.array([[True, False, True]])).tolist()
    [[5]]
    """
    rows, columns = matrix.shape
    padded = np.zeros((rows, words_for(columns) * WORD), np.uint8)
    padded[:, :columns] = matrix
    packed = np.packbits(padded, axis=1, bitorder="little")
    return np.ascontiguousarray(packed).view("<u8").astype(np.uint64, copy=False)


def unpack(words: Words, columns: int) -> Bools:
    """The Boolean matrix of rows of words.

    >>> unpack(np.array([[5]], np.uint64), 3).tolist()
    [[True, False, True]]
    """
    as_bytes = np.ascontiguousarray(words.astype("<u8", copy=False)).view(np.uint8)
    found: Bools = np.unpackbits(as_bytes, axis=1, bitorder="little", count=columns).astype(np.bool_)
    return found


def distinct_rows(matrix: Bools) -> Bools:
    """The different rows of a matrix, without the empty one, in a fixed order.

    >>> distinct_rows(np.array([[True, False], [False, False], [True, False]])).tolist()
    [[True, False]]
    """
    if not matrix.size:
        return np.zeros((0, matrix.shape[1]), np.bool_)
    found = np.unique(pack(matrix), axis=0)
    return unpack(found[found.any(axis=1)], matrix.shape[1])
