"""The two-phase switch by an elected coordinator (adaptive paper, section 4.3), node by node, though nodes may crash.

The first node of a group announces itself. Nodes tell it that they are local-ready; when all are, it tells them, and
they answer that they are global-ready; when all are, it tells them, and they switch. Whoever hears nothing for long
announces itself with a higher number, and is told again. What a node has said stays true, so several coordinators at a
time do no harm: each says only what follows from what all have said.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from watersmeet.adapt.messages import MessageKind


@dataclass(frozen=True, slots=True)
class Ballot:
    """A message of the switch; `is_of_all` says that all nodes are so, not only the sender."""

    kind: MessageKind
    sender: str
    to: str
    term: int
    is_of_all: bool = False


@dataclass(frozen=True, slots=True)
class GroupMember:
    """What a node of a group knows; it survives a crash."""

    name: str
    group: tuple[str, ...]  # in order: the first announces itself, then the next
    term: int = -1  # the highest that was announced; its coordinator is the node at that place, round and round
    is_ready: bool = False
    local: frozenset[str] = frozenset()  # to the coordinator: who is local-ready
    ready: frozenset[str] = frozenset()  # and who is global-ready
    all_local: bool = False
    switched: bool = False

    @property
    def coordinator(self) -> str:
        return self.group[self.term % len(self.group)] if self.term >= 0 else ""

    @property
    def turn(self) -> int:
        """How many nodes announce themselves before this one, if the coordinator says nothing."""
        return (self.group.index(self.name) - self.term - 1) % len(self.group)


Step = tuple[GroupMember, list[Ballot]]


def members(group: Iterable[str]) -> dict[str, GroupMember]:
    """The nodes of a group before the switch.

    >>> members(["b", "a"])["b"].turn
    1
    """
    names = tuple(sorted(group))
    return {name: GroupMember(name, names) for name in names}


def announce(member: GroupMember) -> Step:
    """A node announces itself as the coordinator."""
    term = member.term + 1 + member.turn
    own = {member.name} if member.is_ready else set()
    member = replace(member, term=term, local=frozenset(own), ready=frozenset(own if member.all_local else ()))
    return _go_on(member, _to_others(member, MessageKind.ELECTION))


def become_ready(member: GroupMember) -> Step:
    """All that a node needs for the new plan has come."""
    return _report(replace(member, is_ready=True))


def hear(member: GroupMember, ballot: Ballot) -> Step:
    """What a node knows after a message of another one, and what it sends upon it."""
    if ballot.is_of_all and ballot.kind is MessageKind.GLOBAL_READY:
        return replace(member, all_local=True, switched=True), []
    if (
        ballot.kind is MessageKind.ELECTION or ballot.is_of_all
    ):  # from a coordinator, which wants to know how far this one is
        if member.switched:
            return member, [Ballot(MessageKind.GLOBAL_READY, member.name, ballot.sender, ballot.term, is_of_all=True)]
        all_local = member.all_local or ballot.is_of_all
        if ballot.term < member.term and all_local == member.all_local:
            return member, []
        return _report(replace(member, term=max(ballot.term, member.term), all_local=all_local))
    if member.coordinator != member.name or ballot.term != member.term:
        return member, []
    local, ready = member.local | {ballot.sender}, member.ready
    if ballot.kind is MessageKind.GLOBAL_READY:
        ready |= {ballot.sender}
    behind = member.all_local and ballot.kind is MessageKind.LOCAL_READY
    again = [_said(member, MessageKind.LOCAL_READY, ballot.sender, is_of_all=True)] if behind else []
    return _go_on(replace(member, local=local, ready=ready), again)


def wait_over(member: GroupMember) -> Step:
    """Nothing has been heard for long: a coordinator asks again, another node announces itself."""
    if member.switched:
        return member, []
    if member.coordinator != member.name:
        return announce(member)
    if member.all_local:
        missing = [name for name in member.group if name not in member.ready and name != member.name]
        return member, [_said(member, MessageKind.LOCAL_READY, name, is_of_all=True) for name in missing]
    missing = [name for name in member.group if name not in member.local and name != member.name]
    return member, [_said(member, MessageKind.ELECTION, name) for name in missing]


def _report(member: GroupMember) -> Step:
    """Tell the coordinator how far a node is."""
    if not member.is_ready or member.term < 0:
        return member, []
    if member.coordinator == member.name:
        ready = member.ready | {member.name} if member.all_local else member.ready
        return _go_on(replace(member, local=member.local | {member.name}, ready=ready))
    kind = MessageKind.GLOBAL_READY if member.all_local else MessageKind.LOCAL_READY
    return member, [_said(member, kind, member.coordinator)]


def _go_on(member: GroupMember, out: Iterable[Ballot] = ()) -> Step:
    """What follows at a coordinator from what it has been told."""
    sent, everyone = list(out), set(member.group)
    if not member.all_local and (member.local == everyone or member.ready):
        own = {member.name} if member.is_ready else set()
        member = replace(member, all_local=True, ready=member.ready | own)
        sent += [
            ballot
            for ballot in _to_others(member, MessageKind.LOCAL_READY, is_of_all=True)
            if ballot.to not in member.ready
        ]
    if not member.switched and member.ready == everyone:
        member = replace(member, switched=True)
        sent += _to_others(member, MessageKind.GLOBAL_READY, is_of_all=True)
    return member, sent


def _said(member: GroupMember, kind: MessageKind, to: str, *, is_of_all: bool = False) -> Ballot:
    return Ballot(kind, member.name, to, member.term, is_of_all)


def _to_others(member: GroupMember, kind: MessageKind, *, is_of_all: bool = False) -> list[Ballot]:
    return [_said(member, kind, name, is_of_all=is_of_all) for name in member.group if name != member.name]
