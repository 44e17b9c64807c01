"""The switch by an elected coordinator on virtual time: timers, messages that take time, and nodes that crash."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from watersmeet.adapt.election import Ballot, GroupMember, Step, announce, become_ready, hear, members, wait_over
from watersmeet.adapt.messages import Sent
from watersmeet.sim.kernel import Kernel

Send = Callable[[Sent, Callable[[], None]], None]  # a message, and what happens when it comes


@dataclass(frozen=True, slots=True)
class NodeCrash:
    """A node is down for a while after the switch has begun; what comes to it then is lost."""

    node: str
    after_ms: float
    down_ms: float


@dataclass
class ElectedSwitch:
    """The nodes of some groups, each of which has all that it needs for the new plan."""

    kernel: Kernel
    send: Send
    timeout_ms: float  # without a word, before a node asks again or announces itself
    done: Callable[[], None]
    nodes: dict[str, GroupMember] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    _heard_us: dict[str, int] = field(default_factory=dict)
    _is_done: bool = False

    def start(self, groups: Iterable[frozenset[str]], crashes: Iterable[NodeCrash] = ()) -> None:
        """Let the first node of each group announce itself."""
        for group in groups:
            self.nodes |= {name: become_ready(node)[0] for name, node in members(group).items()}
        for crash in crashes:
            self.kernel.after(round(crash.after_ms * 1e3), self.down.add, crash.node)
            self.kernel.after(round((crash.after_ms + crash.down_ms) * 1e3), self.down.discard, crash.node)
        for name, node in sorted(self.nodes.items()):
            self._heard_us[name] = self.kernel.now_us
            if node.turn == 0:
                self._take(name, announce)
            self._set_timer(name)
        self._look()

    def _take(self, name: str, step: Callable[[GroupMember], Step]) -> None:
        self.nodes[name], letters = step(self.nodes[name])
        for letter in letters:
            self.send(Sent(letter.kind, letter.sender, letter.to), partial(self._deliver, letter))

    def _deliver(self, letter: Ballot) -> None:
        if letter.to not in self.down:
            self._heard_us[letter.to] = self.kernel.now_us
            self._take(letter.to, lambda member: hear(member, letter))
            self._look()

    def _set_timer(self, name: str) -> None:
        patience = self.timeout_ms * (1 + self.nodes[name].turn)  # so that they do not all announce themselves at once
        self.kernel.after(round(patience * 1e3), self._wake, name, self._heard_us[name])

    def _wake(self, name: str, heard_us: int) -> None:
        if self.nodes[name].switched:
            return
        if name not in self.down and heard_us == self._heard_us[name]:
            self._take(name, wait_over)
            self._look()
        self._set_timer(name)

    def _look(self) -> None:
        if not self._is_done and all(node.switched for node in self.nodes.values()):
            self._is_done = True
            self.done()


def counted(messages: Iterable[Sent]) -> Mapping[str, int]:
    """Messages by kind."""
    found: dict[str, int] = {}
    for message in messages:
        found[message.kind.value] = found.get(message.kind.value, 0) + 1
    return found
