"""Which site sends rows of the past to where a new version of a join needs them: the nearest that has them.

A site that gets a stream from its home has all rows of it before the watermark of that flow. With its promise to a
change every site says how far it has each stream and how near the other sites are to it; so whoever knows the promises
decides alike. The rows before that watermark come from the holder, those after it and all new ones from the home.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from watersmeet.program.storage.wire import UNKNOWN

Distance = tuple[float, float]  # see `Link.distance`; the lesser is nearer


@dataclass(frozen=True, slots=True)
class Holding:
    """What a site has of streams whose homes are elsewhere, and how near other sites are to it."""

    marks: Mapping[str, int] = field(default_factory=dict)  # by the name it has there: all rows before it have come
    distances: Mapping[str, Distance] = field(default_factory=dict)  # by site


@dataclass(frozen=True, slots=True)
class Holder:
    """A site that has all rows of a stream before an instant that a new version may need, and where it keeps them."""

    site: str
    held_as: str
    relation: str
    until_us: int


def nearest(home: str, to: str, holders: Iterable[Holder], holdings: Mapping[str, Holding]) -> Holder | None:
    """The holder that is nearest to a site; None where none is nearer than the home, or nothing is known.

    >>> holdings = {site: Holding({}, {"x": (0.0, seconds)}) for site, seconds in (("h", 3.0), ("a", 1.0), ("b", 2.0))}
    >>> nearest("h", "x", [Holder("b", "s", "s/0", 7), Holder("a", "s", "s/0", 5)], holdings).site
    'a'
    >>> nearest("a", "x", [Holder("b", "s", "s/0", 7)], holdings) is None
    True
    """
    own = _distance(holdings, home, to)
    known = ((_distance(holdings, holder.site, to), holder.site, holder.held_as, holder) for holder in holders)
    found = [(far, site, name, holder) for far, site, name, holder in known if own is not None and far is not None]
    best = min(found, default=None, key=lambda one: one[:3])
    return best[3] if best is not None and own is not None and best[0] < own else None


def with_past(awaited: Mapping[str, str], marks: Mapping[str, int]) -> dict[str, int]:
    """Watermarks, of which those of flows do not count yet whose past has not come from elsewhere.

    `awaited` says which flow brings it; what is held back counts when that has come.

    >>> with_past({"s": "s from a"}, {"s": 5})
    {'s held': 5}
    >>> with_past({"s": "s from a"}, {"s held": 5, "s from a": 9})
    {'s from a': 9, 's': 5}
    """
    found = dict(marks)
    for flow, past in awaited.items():
        held = f"{flow} held"
        name, other = (flow, held) if past in found else (held, flow)
        if other in found:
            found[name] = max(found.pop(other), found.get(name, UNKNOWN))
    return found


def _distance(holdings: Mapping[str, Holding], site: str, to: str) -> Distance | None:
    return holdings[site].distances.get(to) if site in holdings else None
