"""What all nodes of RJoin agree on."""

from dataclasses import dataclass
from enum import Enum

from watersmeet.program.rjoin.arrays import FOREVER


class Strategy(Enum):
    """How a query's next key is chosen."""

    RJOIN = "rjoin"  # the lowest rate of tuples, as far as nodes have heard
    RANDOM = "random"
    FIRST = "first"  # in the order of the WHERE clause
    WORST = "worst"  # the highest rate there is, known by magic: what a bad choice can cost


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What all nodes agree on."""

    strategy: Strategy = Strategy.RJOIN
    pairs: bool = True  # whether a rewritten query may wait at the attribute level (candidates of kind a)
    members: bool = True  # tell the members of alike rows apart; without, answers are counted and not made
    rate_window_us: int = 60_000_000  # how far back a node looks when it is asked for a rate
    rate_age_us: int = int(FOREVER)  # how long such a figure is believed
    keep_us: int = int(FOREVER)  # how long a tuple can matter at the value level: the longest window of any query
    hold_us: int = int(FOREVER)  # and at the attribute level, where with no `pairs` only input queries may look
    delay_us: int = 60_000_000  # the paper's Delta: after it, nothing that a tuple has caused is still under way
    is_guarded: bool = False  # the same mail may come twice
    seed: int = 0
