"""Entries and nodes of the trie, and the messages to and from the owners of nodes."""

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from watersmeet.sim.overlays.router import Address
from watersmeet.sim.pier.indexes.pht.labels import Label

_KEY_BYTES = 8
_REQUEST_BYTES = 1 + 4 + 4 + 6  # kind, index, number, address and port of who asks
_LIFETIME_BYTES = 8


@dataclass(frozen=True, slots=True)
class PhtEntry:
    """What is indexed: a key of whole bits, an id that tells entries of one key apart, and a value."""

    key: int
    id: str
    value: object
    size_bytes: int
    expires_us: int
    stored_us: int = 0  # when its leaf took it

    @property
    def wire_bytes(self) -> int:
        return _KEY_BYTES + 1 + len(self.id.encode()) + _LIFETIME_BYTES + self.size_bytes


class NodeKind(Enum):
    """What a trie node is."""

    LEAF = "leaf"
    INTERNAL = "internal"
    GONE = "gone"  # merged into its parent: newer than any copy of it that is still about


@dataclass(frozen=True, slots=True)
class TrieNode:
    """The state of a trie node: one object of the DHT, so that it moves and is copied as a whole."""

    kind: NodeKind
    epoch_us: int = 0  # when a split or a merge made it what it is; 0: begun without knowledge of others
    entries: tuple[PhtEntry, ...] = ()  # of a leaf, by key and id
    before: Label | None = None  # of a leaf: the leaf before it, as far as it knows
    after: Label | None = None

    @property
    def size_bytes(self) -> int:
        links = sum(1 + len(link) // 8 + 1 for link in (self.before, self.after) if link is not None)
        return 1 + 8 + links + sum(entry.wire_bytes for entry in self.entries)


# What the owner of a trie node is asked for.


@dataclass(frozen=True, slots=True)
class Insert:
    """Take an entry; if the node is absent and `create`, as a new leaf."""

    entry: PhtEntry
    create: bool = False

    @property
    def size_bytes(self) -> int:
        return 1 + self.entry.wire_bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Drop an entry."""

    key: int
    id: str

    @property
    def size_bytes(self) -> int:
        return _KEY_BYTES + 1 + len(self.id.encode())


@dataclass(frozen=True, slots=True)
class Read:
    """The entries with keys from `low` to `high`; an internal node passes it on to its children if `spread`."""

    low: int
    high: int
    spread: bool = False

    @property
    def size_bytes(self) -> int:
        return 2 * _KEY_BYTES + 1


@dataclass(frozen=True, slots=True)
class Adopt:
    """Become a leaf with these entries; `is_pending`: count as one only when the parent says so."""

    node: TrieNode
    is_pending: bool

    @property
    def size_bytes(self) -> int:
        return 1 + self.node.size_bytes


@dataclass(frozen=True, slots=True)
class Activate:
    """The split of the parent is done."""

    size_bytes: int = field(default=0, init=False)


@dataclass(frozen=True, slots=True)
class Freeze:
    """Take no more writes and say what there is: the parent wants to merge."""

    size_bytes: int = field(default=0, init=False)


@dataclass(frozen=True, slots=True)
class Thaw:
    """The parent does not merge."""

    size_bytes: int = field(default=0, init=False)


@dataclass(frozen=True, slots=True)
class Vanish:
    """The parent has become a leaf at that time, or has stayed one; what has been written since is for it."""

    epoch_us: int
    if_pending: bool = False  # only a leaf that no Activate has reached
    size_bytes: int = field(default=8 + 1, init=False)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """From a child: it exists. Internal nodes live on these."""

    child: Label
    kind: NodeKind
    entries: int
    epoch_us: int
    size_bytes: int = field(default=1 + 1 + 4 + 8, init=False)


@dataclass(frozen=True, slots=True)
class Relink:
    """A neighbour of this leaf is another now."""

    neighbour: Label
    is_after: bool
    hops_left: int = 6  # from a node that is no leaf any more to one nearby that is
    size_bytes: int = field(default=10, init=False)


@dataclass(frozen=True, slots=True)
class PhtProbe:
    """Asks what a trie node is: a leaf, an inner node, or none."""

    size_bytes: int = field(default=0, init=False)


Action: TypeAlias = (
    Insert | Delete | Read | Adopt | Activate | Freeze | Thaw | Vanish | Heartbeat | Relink | PhtProbe
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PhtRequest:
    """Routed to the owner of a trie node."""

    index: str
    number: int  # 0: no reply is wanted
    asker: Address
    label: Label
    action: Action

    @property
    def size_bytes(self) -> int:
        return _REQUEST_BYTES + self.action.size_bytes


class PhtOutcome(Enum):
    """How a trie node has replied."""

    LEAF = "leaf"  # done
    INTERNAL = "internal"
    ABSENT = "absent"
    BUSY = "busy"  # it is being split or merged, or its owner may not have got it yet: ask again soon


@dataclass(frozen=True, slots=True)
class PhtReply:
    """Direct to who asked."""

    index: str
    number: int
    label: Label
    outcome: PhtOutcome
    entries: tuple[PhtEntry, ...] = ()
    before: Label | None = None
    after: Label | None = None
    passed_on: tuple[Label, ...] = ()  # the children that reply as well

    @property
    def size_bytes(self) -> int:
        labels = (self.label, self.before or "", self.after or "", *self.passed_on)
        return _REQUEST_BYTES + sum(len(label) // 8 + 2 for label in labels) + sum(e.wire_bytes for e in self.entries)


@dataclass(frozen=True, slots=True)
class PhtSettings:
    """What all nodes that use an index agree on."""

    key_bits: int = 64
    leaf_entries: int = 32  # a leaf with more is split
    merge_entries: int = 16  # two leaves with no more together are merged
    upkeep_us: int = 10_000_000  # how often a trie node says to its parent that it exists
    node_lifetime_us: int = 45_000_000  # of a trie node of which nothing is heard
    timeout_us: int = 5_000_000  # of one request
    tries: int = 4
    busy_us: int = 300_000  # until a busy node is asked again
    busy_tries: int = 60
    lock_us: int = 15_000_000  # how long a child waits for the end of a split or a merge before it asks
    grace_us: int = 6_000_000  # after its arc has changed a node does not take what it lacks for absent

    def __post_init__(self) -> None:
        if not 1 <= self.key_bits <= 64:
            raise ValueError(f"key_bits must be from 1 to 64: {self.key_bits}")
        if self.leaf_entries < 1:
            raise ValueError(f"leaf_entries must be at least 1: {self.leaf_entries}")
        if not 0 <= self.merge_entries < self.leaf_entries:
            raise ValueError(
                f"merge_entries must be below leaf_entries, or what is merged would be split again: "
                f"{self.merge_entries}, {self.leaf_entries}"
            )
        if self.node_lifetime_us <= 2 * self.upkeep_us:
            raise ValueError(f"node_lifetime_us must be above two upkeep_us: {self.node_lifetime_us}, {self.upkeep_us}")
