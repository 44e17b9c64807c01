"""Labels of trie nodes: the bits that all keys below a node begin with, as text of 0 and 1; the root's is empty."""

from typing import TypeAlias

Label: TypeAlias = str


def label_of(key: int, length: int, key_bits: int) -> Label:
    """The first bits of a key.

    >>> label_of(0b1010, 3, 4)
    '101'
    """
    return f"{key:0{key_bits}b}"[:length]


def low_of(label: Label, key_bits: int) -> int:
    """The lowest key below a node.

    >>> low_of("10", 4), low_of("", 4)
    (8, 0)
    """
    return int(label or "0", 2) << (key_bits - len(label))


def high_of(label: Label, key_bits: int) -> int:
    """The highest key below a node.

    >>> high_of("10", 4), high_of("", 4)
    (11, 15)
    """
    rest = key_bits - len(label)
    return (int(label or "0", 2) << rest) | ((1 << rest) - 1)


def common_label(low: int, high: int, key_bits: int) -> Label:
    """The longest label below which both keys are.

    >>> common_label(0b1000, 0b1011, 4)
    '10'
    """
    return label_of(low, key_bits - (low ^ high).bit_length(), key_bits)


def overlaps(label: Label, low: int, high: int, key_bits: int) -> bool:
    """Whether keys from `low` to `high` can be below a node.

    >>> overlaps("10", 11, 12, 4), overlaps("10", 12, 15, 4)
    (True, False)
    """
    return low_of(label, key_bits) <= high and low <= high_of(label, key_bits)
