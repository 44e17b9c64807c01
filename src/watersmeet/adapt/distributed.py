"""Distributed update of node operator sets, DNU (adaptive paper, algorithm 3), message by message.

Each node knows the figures of its own stream, and for each sequence its neighbours, the rows that come to its position
and whether the join is placed there. `handle` is what one node does with one message. The rounds of a sequence follow
each other; sequences are independent. Nothing is lost and nothing overtakes, as the paper assumes.

Stage 1, where the cost has risen: the changed stream starts a round at its own position. Where it has fallen: it seeks
the first predecessor, from the front, that it beats, and they swap. Stage 2: a round at every position behind. A round
relays rows and the cheapest stream so far to the end, the cheapest swaps with whoever has the position, decides on the
placement and hands over to the next position. Where the paper says nothing (the head itself has changed, or figures
have moved in different directions), stage 2 starts at the first position.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias, assert_never

from watersmeet.adapt.messages import MessageKind, Modification, Sent, WindowMove, over_links
from watersmeet.adapt.sequences import (
    ExecutionPlan,
    Partial,
    Rank,
    Setting,
    StreamFigures,
    StreamPlan,
    beats,
    head_rows,
    inputs_of,
    joined_rows,
    one_way_cost,
    rank,
)


class CostDirection(Enum):
    """How the cost of every one-way join to a stream has moved; mixed where it may differ from join to join."""

    RISEN = "risen"
    FALLEN = "fallen"
    MIXED = "mixed"


def change_of(before: StreamFigures, after: StreamFigures) -> CostDirection:
    """The direction in which costs of joins to a stream go: all grow with its rate, its rows' size and its window.

    >>> old = StreamFigures(50, 0.01, 150, 25)
    >>> change_of(old, StreamFigures(200, 0.01, 150, 100)), change_of(old, StreamFigures(50, 0.02, 150, 25))
    (<CostDirection.RISEN: 'risen'>, <CostDirection.MIXED: 'mixed'>)
    """
    pairs = [(before.rate, after.rate), (before.row_bytes, after.row_bytes), (before.window_rows, after.window_rows)]
    if all(old <= new for old, new in pairs) and any(old < new for old, new in pairs):
        return CostDirection.RISEN
    if all(old >= new for old, new in pairs) and any(old > new for old, new in pairs):
        return CostDirection.FALLEN
    return CostDirection.MIXED


@dataclass(frozen=True, slots=True)
class SequencePosition:
    """What a node knows of its stream's position in a sequence."""

    previous: str
    following: str | None
    rows: Partial  # that come to it
    at_destination: bool


@dataclass(frozen=True)
class Node:
    """One stream's node: its figures, where each sequence has it, who keeps its window there, and its own sequence."""

    stream: str
    figures: StreamFigures
    first: str  # of its own sequence
    positions: Mapping[str, SequencePosition]  # by head
    holders: Mapping[str, str]  # by head: where its window is kept
    touched: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by head: streams it knows to be affected


@dataclass(frozen=True, slots=True)
class StartAgain:
    """To a head: begin anew at your first position."""


@dataclass(frozen=True, slots=True)
class Seek:
    """A stream that has become cheaper looks for the first one that it beats."""

    seeker: str
    figures: StreamFigures


@dataclass(frozen=True, slots=True)
class Relay:
    """The cheapest stream so far for the position that an owner has."""

    owner: str
    rows: Partial
    best: Rank


@dataclass(frozen=True, slots=True)
class Inform:
    """You are the cheapest for the owner's position."""

    owner: str
    rows: Partial


@dataclass(frozen=True, slots=True)
class Swap:
    """Take this position and give me yours."""

    position: SequencePosition


@dataclass(frozen=True, slots=True)
class SwapReply:
    """The position that you take."""

    position: SequencePosition


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another stream has come before or behind you."""

    stream: str
    is_before: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """The one-way join to a stream is at your node: get its window from its holder."""

    stream: str
    holder: str


@dataclass(frozen=True, slots=True)
class Continue:
    """Your position is next; these rows come to it."""

    rows: Partial
    previous: str


@dataclass(frozen=True, slots=True)
class WindowRequest:
    """Send a window to a site."""

    stream: str
    to: str


Body: TypeAlias = (
    StartAgain | Seek | Relay | Inform | Swap | SwapReply | Neighbour | Placement | Continue | WindowRequest
)


@dataclass(frozen=True, slots=True)
class Letter:
    """A message between the nodes of two streams about the sequence of a head."""

    head: str
    sender: str
    to: str
    body: Body

    @property
    def kind(self) -> MessageKind:
        match self.body:
            case StartAgain() | Continue():
                return MessageKind.CONTINUE
            case Seek():
                return MessageKind.SEEK
            case Relay():
                return MessageKind.RELAY
            case Inform():
                return MessageKind.INFORM
            case Swap() | SwapReply():
                return MessageKind.SWAP
            case Neighbour():
                return MessageKind.NEIGHBOUR
            case Placement():
                return MessageKind.PLACEMENT
            case WindowRequest():
                return MessageKind.WINDOW_REQUEST
            case _:
                assert_never(self.body)


Step: TypeAlias = tuple[Node, list[Letter]]


def nodes_of(setting: Setting, figures: Mapping[str, StreamFigures], plan: ExecutionPlan) -> dict[str, Node]:
    """The nodes of a plan that was made with these figures."""
    positions: dict[str, dict[str, SequencePosition]] = {stream: {} for stream in setting.streams}
    for sequence in plan.sequences:
        chain = (sequence.head, *sequence.order)
        for place, rows in enumerate(inputs_of(setting, figures, sequence)[:-1]):
            following = chain[place + 2] if place + 2 < len(chain) else None
            positions[chain[place + 1]][sequence.head] = SequencePosition(
                chain[place], following, rows, sequence.at_destination[place]
            )
    return {
        stream: Node(
            stream,
            figures[stream],
            plan.of(stream).order[0],
            positions[stream],
            {head: _holder(setting, stream, position) for head, position in positions[stream].items()},
        )
        for stream in setting.streams
    }


def _holder(setting: Setting, stream: str, position: SequencePosition) -> str:
    return setting.homes[stream] if position.at_destination else position.rows.at


def changed(node: Node, setting: Setting, figures: StreamFigures) -> Step:
    """A node whose figures have changed: what it tells others, for every sequence."""
    change = change_of(node.figures, figures)
    node = replace(node, figures=figures)
    letters = [_continue(node.stream, node.first, node.stream, head_rows(setting, node.stream, figures))]
    for head, position in sorted(node.positions.items()):
        match change:
            case CostDirection.RISEN:
                node, more = _begin_round(node, setting, head, position.rows)
                letters += more
            case CostDirection.FALLEN:
                letters.append(Letter(head, node.stream, head, Seek(node.stream, figures)))
            case CostDirection.MIXED:
                letters.append(Letter(head, node.stream, head, StartAgain()))
            case _:
                assert_never(change)
    return node, letters


def handle(node: Node, setting: Setting, letter: Letter) -> Step:
    """What a node does with a message, and what it sends in turn."""
    head, own = letter.head, node.stream
    match letter.body:
        case StartAgain():
            return node, [_continue(head, node.first, own, head_rows(setting, own, node.figures))]
        case Seek() as seek:
            return _seek(node, setting, head, seek)
        case Relay(owner, rows, best):
            mine = rank(setting, rows, own, node.figures)
            return node, [_pass_on(node, head, owner, rows, mine if beats(setting, mine, best) else best)]
        case Inform(owner, rows):
            if owner == own:
                return _settle(node, setting, head, replace(node.positions[head], rows=rows))
            return node, [Letter(head, own, owner, Swap(node.positions[head]))]
        case Swap(theirs):
            position = node.positions[head]
            taken = replace(
                theirs,
                previous=letter.sender if theirs.previous == own else theirs.previous,
                following=letter.sender if theirs.following == own else theirs.following,
            )
            node, letters = _take(node, setting, head, taken, letter.sender)
            return node, [*letters, Letter(head, own, letter.sender, SwapReply(position))]
        case SwapReply(theirs):
            taken = replace(
                theirs,
                previous=letter.sender if theirs.previous == own else theirs.previous,
                following=letter.sender if theirs.following == own else theirs.following,
            )
            node, letters = _take(node, setting, head, taken, letter.sender)
            node, more = _settle(node, setting, head, taken)
            return node, [*letters, *more]
        case Neighbour(stream, is_before):
            if head == own:
                return replace(node, first=stream), []
            position = node.positions[head]
            position = replace(position, previous=stream) if is_before else replace(position, following=stream)
            return _at(node, head, position), []
        case Placement(stream, holder):
            request = WindowRequest(stream, setting.homes[own])
            return node, [Letter(head, own, _node_at(setting, holder), request)]
        case Continue(rows, previous):
            node = _at(node, head, replace(node.positions[head], rows=rows, previous=previous))
            return _begin_round(node, setting, head, rows)
        case WindowRequest():
            return node, []
        case _:
            assert_never(letter.body)


def _begin_round(node: Node, setting: Setting, head: str, rows: Partial) -> Step:
    """Look for the cheapest stream for a node's position among it and all behind it."""
    if node.positions[head].following is None:
        return _settle(node, setting, head, node.positions[head])
    best = rank(setting, rows, node.stream, node.figures)
    return node, [_pass_on(node, head, node.stream, rows, best)]


def _pass_on(node: Node, head: str, owner: str, rows: Partial, best: Rank) -> Letter:
    """Along the sequence; from its end to the node that is the cheapest."""
    following = node.positions[head].following
    if following is None:
        return Letter(head, node.stream, best[2], Inform(owner, rows))
    return Letter(head, node.stream, following, Relay(owner, rows, best))


def _seek(node: Node, setting: Setting, head: str, seek: Seek) -> Step:
    """From the head to its first stream and on, as far as the first that the seeker beats."""
    if head == node.stream:
        return node, [Letter(head, node.stream, node.first, seek)]
    position = node.positions[head]
    if seek.seeker == node.stream:  # it beats nobody
        return _settle(node, setting, head, position)
    theirs = rank(setting, position.rows, seek.seeker, seek.figures)
    if beats(setting, theirs, rank(setting, position.rows, node.stream, node.figures)):
        return node, [Letter(head, node.stream, seek.seeker, Inform(node.stream, position.rows))]
    assert position.following is not None, "the seeker is behind"
    return node, [Letter(head, node.stream, position.following, seek)]


def _take(node: Node, setting: Setting, head: str, position: SequencePosition, partner: str) -> Step:
    """Take over a position with its operators, tell the neighbours, and ask for the window where it is kept now."""
    neighbours = [(position.previous, False)]
    if position.following is not None:
        neighbours.append((position.following, True))
    letters = [
        Letter(head, node.stream, stream, Neighbour(node.stream, is_before))
        for stream, is_before in neighbours
        if stream != partner
    ]
    node = _touch(node, head, partner, *(stream for stream, _ in neighbours))
    node, more = _place(_at(node, head, position), setting, head)
    return node, [*letters, *more]


def _settle(node: Node, setting: Setting, head: str, position: SequencePosition) -> Step:
    """Decide on the placement at a position that a node keeps, and hand over to the next position."""
    rows = position.rows
    at_destination = one_way_cost(setting, rows, node.stream, node.figures).at_destination
    if at_destination != node.positions[head].at_destination:
        node = _touch(node, head, position.previous, *((position.following,) if position.following else ()))
    position = replace(position, at_destination=at_destination)
    node, letters = _place(_at(node, head, position), setting, head)
    if position.following is not None:
        after = joined_rows(setting, rows, node.stream, node.figures, at_destination=at_destination)
        letters.append(_continue(head, position.following, node.stream, after))
    return node, letters


def _place(node: Node, setting: Setting, head: str) -> Step:
    """Have the window kept where the position says."""
    old, new = node.holders[head], _holder(setting, node.stream, node.positions[head])
    if old == new:
        return node, []
    node = replace(node, holders={**node.holders, head: new})
    if new == setting.homes[node.stream]:
        request = WindowRequest(node.stream, new)
        return node, [Letter(head, node.stream, _node_at(setting, old), request)]
    other = _node_at(setting, new)
    return _touch(node, head, other), [Letter(head, node.stream, other, Placement(node.stream, old))]


def _continue(head: str, to: str, sender: str, rows: Partial) -> Letter:
    return Letter(head, sender, to, Continue(rows, sender))


def _at(node: Node, head: str, position: SequencePosition) -> Node:
    return replace(node, positions={**node.positions, head: position})


def _touch(node: Node, head: str, *others: str) -> Node:
    known = node.touched.get(head, frozenset())
    return replace(node, touched={**node.touched, head: known | {node.stream, *others}})


def _node_at(setting: Setting, site: str) -> str:
    """The node that speaks for a site."""
    return next(stream for stream in setting.streams if setting.homes[stream] == site)


def plan_of(nodes: Mapping[str, Node]) -> ExecutionPlan:
    """The plan that nodes have agreed on, put together from what each knows."""
    sequences = []
    for head in sorted(nodes):
        order: list[str] = []
        stream: str | None = nodes[head].first
        while stream is not None:
            order.append(stream)
            stream = nodes[stream].positions[head].following
        sequences.append(
            StreamPlan(head, tuple(order), tuple(nodes[name].positions[head].at_destination for name in order))
        )
    return ExecutionPlan(tuple(sequences))


def update_distributed(
    setting: Setting,
    before: Mapping[str, StreamFigures],
    figures: Mapping[str, StreamFigures],
    current: ExecutionPlan,
    *,
    anew: bool = False,
) -> Modification:
    """The plan that nodes agree on for new figures, from a greedy one for those before; one stream after the other.

    A plan that is not greedy, for links have changed too, is made `anew`: stage 2 of every sequence, from its start.
    """
    nodes = nodes_of(setting, before, current)
    sent: list[Letter] = []
    if anew:
        nodes = {stream: replace(node, figures=figures[stream]) for stream, node in nodes.items()}
        for head in setting.streams:
            sent += exchange(nodes, setting, [Letter(head, head, head, StartAgain())])
    for stream in setting.streams if not anew else ():
        if figures[stream] != before[stream]:
            nodes[stream], letters = changed(nodes[stream], setting, figures[stream])
            sent += exchange(nodes, setting, letters)
    messages = over_links(Sent(letter.kind, setting.homes[letter.sender], setting.homes[letter.to]) for letter in sent)
    moves = tuple(
        WindowMove(letter.body.stream, setting.homes[letter.to], letter.body.to)
        for letter in sent
        if isinstance(letter.body, WindowRequest) and setting.homes[letter.to] != letter.body.to
    )
    return Modification(plan_of(nodes), messages, moves, affected_groups(setting, nodes))


def exchange(nodes: dict[str, Node], setting: Setting, letters: Iterable[Letter]) -> list[Letter]:
    """Deliver messages in the order in which they are sent until there are none; all of them, those to oneself too."""
    waiting, sent = deque(letters), []
    while waiting:
        letter = waiting.popleft()
        sent.append(letter)
        nodes[letter.to], more = handle(nodes[letter.to], setting, letter)
        waiting.extend(more)
    return sent


def affected_groups(setting: Setting, nodes: Mapping[str, Node]) -> tuple[frozenset[str], ...]:
    """The sites that have to switch together: the lists of affected nodes, those with a site in common made one."""
    groups: list[frozenset[str]] = []
    for touched in (one for node in nodes.values() for _, one in sorted(node.touched.items())):
        whole = frozenset(setting.homes[stream] for stream in touched)
        apart = [group for group in groups if not group & whole]
        groups = [*apart, whole.union(*(group for group in groups if group & whole))]
    return tuple(group for group in groups if len(group) > 1)
