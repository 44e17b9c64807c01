"""The two-phase switch of the distributed track strategy (adaptive paper, section 4.3), as messages.

All nodes of a group tell each other that they are local-ready, then that they are global-ready. By a coordinator, the
alternative that the paper names, the group's first node announces itself, gathers either state and passes it on.
"""

from collections import deque
from collections.abc import Iterable

from watersmeet.adapt.election import announce, become_ready, hear, members
from watersmeet.adapt.messages import MessageKind, Sent


def point_to_point(groups: Iterable[frozenset[str]]) -> tuple[Sent, ...]:
    """Every node of a group to every other one, in both phases: 2 n (n - 1) messages.

    >>> len(point_to_point([frozenset("abcd")]))
    24
    """
    return tuple(
        Sent(kind, sender, to)
        for group in groups
        for kind in (MessageKind.LOCAL_READY, MessageKind.GLOBAL_READY)
        for sender in sorted(group)
        for to in sorted(group)
        if sender != to
    )


def by_coordinator(groups: Iterable[frozenset[str]]) -> tuple[Sent, ...]:
    """An election, then either phase to the coordinator and back, where nobody crashes: 5 (n - 1) messages.

    >>> len(by_coordinator([frozenset("abcd")]))
    15
    """
    return tuple(sent for group in groups for sent in _switch(group))


def _switch(group: frozenset[str]) -> Iterable[Sent]:
    """What the nodes of a group send until all have switched."""
    nodes = {name: become_ready(node)[0] for name, node in members(group).items()}
    first = min(group)
    nodes[first], letters = announce(nodes[first])
    waiting = deque(letters)
    while waiting:
        letter = waiting.popleft()
        yield Sent(letter.kind, letter.sender, letter.to)
        nodes[letter.to], more = hear(nodes[letter.to], letter)
        waiting += more
    assert all(node.switched for node in nodes.values()), "nobody has crashed"
