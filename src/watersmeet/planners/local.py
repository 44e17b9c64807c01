"""The plan for streams at one place: every head probes the rest greedily, staying at its key as long as it can."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watersmeet.plan.nodes import Key, KeyClass, Plan, Probe, Stage, Symmetric
from watersmeet.plan.nodes import Sequence as HeadSequence
from watersmeet.plan.shape import above, shape_of
from watersmeet.query.model import JoinQuery


def local(query: JoinQuery, columns: Mapping[str, Sequence[str]], site: str, answers_at: str | None = None) -> Plan:
    """Plan a query whose streams all arrive at one site; `columns` gives each stream's columns in schema order.

    Answers are wanted there too, or at another site.
    """
    shape = shape_of(query, columns)
    homes = (site,) * len(shape.scans)
    join = symmetric(query.aliases, shape.classes, site)
    wanted_at = answers_at or site
    return above(query, shape.join(homes, (join,), wanted_at))


def symmetric(aliases: tuple[str, ...], classes: Sequence[KeyClass], site: str) -> Symmetric:
    """The symmetric multi-way join of windows that are all at one site."""
    return Symmetric(site, tuple(_sequence(aliases, head, classes) for head in aliases))


@dataclass(frozen=True, slots=True)
class _Move:
    """A possible next probe."""

    alias: str
    shared: Key
    key: Key
    stays: bool

    def rank(self, order: Sequence[str]) -> tuple[bool, int, int]:
        return (not self.stays, -len(self.shared), order.index(self.alias))


def _sequence(aliases: tuple[str, ...], head: str, classes: Sequence[KeyClass]) -> HeadSequence:
    bound = {head}
    stages: list[Stage] = [Stage((), ())] if len(aliases) == 1 else []  # rows of one stream pass as they are
    while len(bound) < len(aliases):
        current = stages[-1].key if stages else None
        moves = []
        for alias in aliases:
            if alias in bound:
                continue
            shared = tuple(c.number for c in classes if c.member(alias) and any(c.member(other) for other in bound))
            stays = bool(current) and set(current or ()) <= set(shared)
            moves.append(_Move(alias, shared, current if stays and current else shared, stays))
        move = min(moves, key=lambda move: move.rank(aliases))
        # A key of one class is compared by the probe itself; a key of several is a hash of them.
        checks = tuple(c for c in move.shared if len(move.key) > 1 or c not in move.key)
        probe = Probe(move.alias, checks)
        if move.stays or (stages and current == move.key):
            stages[-1] = Stage(move.key, (*stages[-1].probes, probe))
        else:
            stages.append(Stage(move.key, (probe,)))
        bound.add(move.alias)
    return HeadSequence(head, tuple(stages))
