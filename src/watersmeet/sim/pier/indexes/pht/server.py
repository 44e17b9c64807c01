"""The trie nodes that one peer owns: reads and writes, splits and merges, and the upkeep of the tree.

A split gives the children their entries first and makes the node internal when both have them; a merge takes copies of
both leaves first and lets them vanish when the parent is a leaf. Meanwhile writes are told to come again, and reads are
answered where they find a complete copy: an entry can always be read somewhere on the path to its key.

Nodes are objects of the DHT, copied and handed over as any. Each tells its parent from time to time that it exists; so
a lost internal node comes back, a lost leaf is begun anew beside its sibling, and where a stale copy has come back to
life parent and child find out that both are leaves. Then the one made last by a split or a merge is right, and hands
over or gets what has been written to the other since.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import assert_never

from watersmeet.sim.dht.node import Dht
from watersmeet.sim.kernel import NO_EVENT, Event, Kernel
from watersmeet.sim.overlays.router import Arc
from watersmeet.sim.pier.indexes.pht.calls import NODES, LabelCalls, name_of
from watersmeet.sim.pier.indexes.pht.labels import Label, overlaps
from watersmeet.sim.pier.indexes.pht.messages import (
    Activate,
    Adopt,
    Delete,
    Freeze,
    Heartbeat,
    Insert,
    NodeKind,
    PhtEntry,
    PhtOutcome,
    PhtProbe,
    PhtReply,
    PhtRequest,
    PhtSettings,
    Read,
    Relink,
    Thaw,
    TrieNode,
    Vanish,
)


class _Lock(Enum):
    SPLITTING = "splitting"
    MERGING = "merging"
    FROZEN = "frozen"  # the parent merges
    PENDING = "pending"  # the parent splits


class TrieServer:
    """Serves requests for trie nodes; `reinsert` puts an entry in again from the top."""

    __slots__ = (
        "_calls",
        "_dht",
        "_heard",
        "_kernel",
        "_locks",
        "_name",
        "_reinsert",
        "_settings",
        "_timer",
        "_unsure_until_us",
        "merges_total",
        "splits_total",
    )

    def __init__(
        self, kernel: Kernel, dht: Dht, name: str, settings: PhtSettings, reinsert: Callable[[PhtEntry], None]
    ) -> None:
        self._kernel, self._dht, self._name, self._settings = kernel, dht, name, settings
        self._reinsert = reinsert
        self._calls = LabelCalls(kernel, dht, name, settings, self._serve)
        self._timer: Event = NO_EVENT
        self._unsure_until_us = 0
        self.splits_total = self.merges_total = 0
        self._forget()
        dht.node.router.watch(self._arc_changed)

    @property
    def calls(self) -> LabelCalls:
        """The requests of this peer, also those of its users."""
        return self._calls

    def _forget(self) -> None:
        self._locks: dict[Label, tuple[_Lock, Event]] = {}
        self._heard: dict[Label, tuple[Heartbeat, int]] = {}  # of children, with the time

    def start(self) -> None:
        """Begin to look after the trie nodes that are here."""
        self.stop()
        self._timer = self._kernel.after(self._kernel.random.randrange(self._settings.upkeep_us), self._upkeep)

    def stop(self) -> None:
        """Forget what is under way; the trie nodes are the DHT's."""
        self._kernel.cancel(self._timer)
        for _, timer in self._locks.values():
            self._kernel.cancel(timer)
        self._forget()
        self._calls.clear()

    def nodes(self) -> dict[Label, TrieNode]:
        """The trie nodes that this peer owns."""
        begins = name_of(self._name)
        found = {item.key.removeprefix(begins): item.value for item in self._dht.local_scan(NODES, begins)}
        return {
            label: node
            for label, node in found.items()
            if isinstance(node, TrieNode) and node.kind is not NodeKind.GONE
        }

    # Requests.

    def _serve(self, request: PhtRequest) -> PhtReply | None:
        label, action = request.label, request.action
        match action:
            case Insert(entry, create):
                return self._written(request, self._insert(label, entry, create))
            case Delete(key, entry_id):
                return self._written(request, self._delete(label, key, entry_id))
            case Read():
                return self._read(request, action)
            case Adopt(node, is_pending):
                self._adopt(label, node, is_pending)
                return self._written(request, PhtOutcome.LEAF)
            case Freeze():
                return self._freeze(request)
            case PhtProbe():
                return self._written(request, self._kind(label))
            case Activate():
                self._unlock(label, _Lock.PENDING)
                self._split_if_full(label)
            case Thaw():
                self._unlock(label, _Lock.FROZEN)
            case Vanish(epoch_us, if_pending):
                if not if_pending or self._is_locked(label, _Lock.PENDING):
                    self._vanish(label, epoch_us)
            case Heartbeat():
                self._beat(label, action)
            case Relink():
                self._relink(label, action)
            case _ as never:
                assert_never(never)
        return None

    def _written(self, request: PhtRequest, outcome: PhtOutcome) -> PhtReply:
        return PhtReply(self._name, request.number, request.label, outcome)

    def _insert(self, label: Label, entry: PhtEntry, create: bool) -> PhtOutcome:
        outcome = self._kind(label)
        if outcome is PhtOutcome.LEAF:
            if label in self._locks:
                return PhtOutcome.BUSY
            node = self._node(label) or TrieNode(NodeKind.LEAF)
        elif outcome is PhtOutcome.ABSENT and create:
            node, outcome = TrieNode(NodeKind.LEAF), PhtOutcome.LEAF
        else:
            return outcome
        self._store(label, _with(node, [replace(entry, stored_us=self._kernel.now_us)]))
        self._split_if_full(label)
        return outcome

    def _delete(self, label: Label, key: int, entry_id: str) -> PhtOutcome:
        outcome = self._kind(label)
        if outcome is not PhtOutcome.LEAF:
            return outcome
        if label in self._locks:
            return PhtOutcome.BUSY
        node = self._node(label)
        assert node is not None
        kept = tuple(entry for entry in node.entries if (entry.key, entry.id) != (key, entry_id))
        if len(kept) < len(node.entries):
            self._store(label, replace(node, entries=kept))
        return outcome

    def _read(self, request: PhtRequest, read: Read) -> PhtReply:
        label = request.label
        outcome = self._kind(label)
        if outcome is PhtOutcome.INTERNAL and read.spread:
            bits = self._settings.key_bits
            children = tuple(each for each in (label + "0", label + "1") if overlaps(each, read.low, read.high, bits))
            for child in children:
                self._calls.pass_on(request, child)
            return PhtReply(self._name, request.number, label, outcome, passed_on=children)
        node = self._node(label)
        if outcome is not PhtOutcome.LEAF or node is None:
            return self._written(request, outcome)
        start = bisect_left(node.entries, read.low, key=_key_of)
        end = bisect_left(node.entries, read.high + 1, key=_key_of)
        return PhtReply(self._name, request.number, label, outcome, node.entries[start:end], node.before, node.after)

    # Split.

    def _split_if_full(self, label: Label) -> None:
        node = self._node(label)
        if (
            node is None
            or node.kind is not NodeKind.LEAF
            or label in self._locks
            or len(node.entries) <= self._settings.leaf_entries
            or len(label) == self._settings.key_bits
        ):
            return
        self._lock(label, _Lock.SPLITTING)
        zero, one, now_us = label + "0", label + "1", self._kernel.now_us
        bit = 1 << (self._settings.key_bits - len(label) - 1)
        cut = next((place for place, entry in enumerate(node.entries) if entry.key & bit), len(node.entries))
        halves = {
            zero: TrieNode(NodeKind.LEAF, now_us, node.entries[:cut], node.before, one),
            one: TrieNode(NodeKind.LEAF, now_us, node.entries[cut:], zero, node.after),
        }
        replies: list[PhtReply | None] = []
        for child, half in halves.items():
            self._calls.call(child, Adopt(half, is_pending=True), partial(self._adopted, label, replies))

    def _adopted(self, label: Label, replies: list[PhtReply | None], reply: PhtReply | None) -> None:
        replies.append(reply)
        if len(replies) < 2:
            return
        node, children = self._node(label), (label + "0", label + "1")
        is_split = (
            all(each is not None and each.outcome is PhtOutcome.LEAF for each in replies)
            and node is not None
            and node.kind is NodeKind.LEAF
            and self._is_locked(label, _Lock.SPLITTING)
            and self._store(label, TrieNode(NodeKind.INTERNAL, self._kernel.now_us))
        )
        self._unlock(label, _Lock.SPLITTING)
        if not is_split:
            for child in children:
                self._calls.tell(child, Vanish(self._kernel.now_us, if_pending=True))
            return
        assert node is not None
        self.splits_total += 1
        for child in children:
            self._calls.tell(child, Activate())
        self._tell_neighbours(node.before, *children, node.after)

    def _adopt(self, label: Label, node: TrieNode, is_pending: bool) -> None:
        present = self._node(label)
        if present is None or present.kind is NodeKind.GONE or self._is_locked(label, _Lock.PENDING):
            self._store(label, node)
            self._unlock(label)
            if is_pending:
                self._lock(label, _Lock.PENDING)
        elif present.kind is NodeKind.LEAF:
            epoch_us = max(present.epoch_us, node.epoch_us)
            self._store(label, replace(_with(present, node.entries), epoch_us=epoch_us))
        else:
            for entry in node.entries:
                self._reinsert(entry)

    # Merge.

    def _merge_if_small(self, label: Label) -> None:
        beats = [self._heard.get(label + bit) for bit in "01"]
        fresh_us = self._kernel.now_us - 2 * self._settings.upkeep_us
        known = [beat for beat, heard_us in filter(None, beats) if heard_us >= fresh_us and beat.kind is NodeKind.LEAF]
        if len(known) < 2 or label in self._locks:
            return
        if sum(beat.entries for beat in known) > self._settings.merge_entries:
            return
        self._lock(label, _Lock.MERGING)
        replies: list[PhtReply | None] = []
        for bit in "01":
            self._calls.call(label + bit, Freeze(), partial(self._frozen, label, replies))

    def _freeze(self, request: PhtRequest) -> PhtReply:
        """A leaf that is being split or merged already says that it is internal: the parent gives up at once."""
        node = self._node(request.label)
        if node is None or node.kind is not NodeKind.LEAF or request.label in self._locks:
            return self._written(request, PhtOutcome.INTERNAL)
        self._lock(request.label, _Lock.FROZEN)
        return PhtReply(
            self._name, request.number, request.label, PhtOutcome.LEAF, node.entries, node.before, node.after
        )  # fmt: skip

    def _frozen(self, label: Label, replies: list[PhtReply | None], reply: PhtReply | None) -> None:
        replies.append(reply)
        if len(replies) < 2:
            return
        node, now_us = self._node(label), self._kernel.now_us
        leaves = sorted((each for each in replies if each and each.outcome is PhtOutcome.LEAF), key=lambda e: e.label)
        is_merged = (
            len(leaves) == 2
            and node is not None
            and node.kind is NodeKind.INTERNAL
            and self._is_locked(label, _Lock.MERGING)
            and self._store(
                label,
                TrieNode(
                    NodeKind.LEAF, now_us, leaves[0].entries + leaves[1].entries, leaves[0].before, leaves[1].after
                ),
            )
        )
        self._unlock(label, _Lock.MERGING)
        for bit in "01":
            self._heard.pop(label + bit, None)
            self._calls.tell(label + bit, Vanish(now_us) if is_merged else Thaw())
        if is_merged:
            self.merges_total += 1
            self._tell_neighbours(leaves[0].before, label, label, leaves[1].after)
            self._split_if_full(label)

    def _vanish(self, label: Label, epoch_us: int) -> None:
        node = self._node(label)
        if node is None or node.kind is not NodeKind.LEAF or node.epoch_us > epoch_us:
            return
        self._unlock(label)
        self._store(label, TrieNode(NodeKind.GONE, epoch_us))
        for entry in node.entries:
            if entry.stored_us > epoch_us:
                self._reinsert(entry)

    # Upkeep.

    def _upkeep(self) -> None:
        if not self._dht.node.is_up:
            self.stop()
            return
        self._timer = self._kernel.after(self._settings.upkeep_us, self._upkeep)
        forgotten_us = self._kernel.now_us - 2 * self._settings.node_lifetime_us
        for child in [child for child, (_, heard_us) in self._heard.items() if heard_us < forgotten_us]:
            del self._heard[child]
        for label, node in self.nodes().items():
            if label in self._locks:
                self._extend(label)
                continue
            if node.kind is NodeKind.INTERNAL:
                self._replace_silent_child(label, node)
            else:
                node = self._without_expired(label, node)
                if label or node.entries:  # of an empty trie nothing is left after a while
                    self._extend(label)
            if label:
                self._calls.tell(label[:-1], Heartbeat(label, node.kind, len(node.entries), node.epoch_us))

    def _without_expired(self, label: Label, node: TrieNode) -> TrieNode:
        kept = tuple(entry for entry in node.entries if entry.expires_us > self._kernel.now_us)
        if len(kept) < len(node.entries):
            node = replace(node, entries=kept)
            self._store(label, node)
        return node

    def _replace_silent_child(self, label: Label, node: TrieNode) -> None:
        """A lost leaf is begun anew, empty: its sibling shows that this part of the trie is in use."""
        silent_us = self._kernel.now_us - self._settings.node_lifetime_us
        heard = [self._heard.get(label + bit) for bit in "01"]
        is_silent = [beat is None or beat[1] < silent_us for beat in heard]
        if node.epoch_us < silent_us and is_silent.count(True) == 1:
            self._calls.tell(label + "01"[is_silent.index(True)], Adopt(TrieNode(NodeKind.LEAF), is_pending=False))

    def _beat(self, label: Label, beat: Heartbeat) -> None:
        self._heard[beat.child] = (beat, self._kernel.now_us)
        node, outcome = self._node(label), self._kind(label)
        if outcome is PhtOutcome.BUSY:
            return
        if outcome is PhtOutcome.ABSENT or node is None:
            if node is None or node.epoch_us <= beat.epoch_us or beat.kind is NodeKind.INTERNAL:
                self._store(label, TrieNode(NodeKind.INTERNAL, beat.epoch_us))
            return
        if outcome is PhtOutcome.INTERNAL:
            self._extend(label)
            self._merge_if_small(label)
        elif label not in self._locks:
            self._settle_with_child(label, node, beat)

    def _settle_with_child(self, label: Label, node: TrieNode, beat: Heartbeat) -> None:
        """Both are leaves, or the child is internal."""
        if beat.kind is NodeKind.LEAF and node.epoch_us > beat.epoch_us:
            self._calls.tell(beat.child, Vanish(node.epoch_us))
            return
        self._store(label, TrieNode(NodeKind.INTERNAL, max(node.epoch_us, beat.epoch_us)))
        for entry in node.entries:
            if not node.epoch_us or entry.stored_us >= beat.epoch_us:
                self._reinsert(entry)

    def _relink(self, label: Label, relink: Relink) -> None:
        node, outcome = self._node(label), self._kind(label)
        if outcome is PhtOutcome.LEAF and node is not None:
            link, is_after = relink.neighbour, relink.is_after
            self._store(label, replace(node, after=link) if is_after else replace(node, before=link))
        elif relink.hops_left and (label or outcome is PhtOutcome.INTERNAL):
            # It has been split, and the child on that side is meant; or merged, and its parent is.
            nearby = label + ("1" if relink.is_after else "0") if outcome is PhtOutcome.INTERNAL else label[:-1]
            self._calls.tell(nearby, replace(relink, hops_left=relink.hops_left - 1))

    def _tell_neighbours(self, before: Label | None, first: Label, last: Label, after: Label | None) -> None:
        if before is not None:
            self._calls.tell(before, Relink(first, is_after=True))
        if after is not None:
            self._calls.tell(after, Relink(last, is_after=False))

    # Locks: if what they wait for does not come, a child asks what its parent is.

    def _lock(self, label: Label, lock: _Lock) -> None:
        timer = self._kernel.after(self._settings.lock_us, self._lock_expired, label, lock)
        self._locks[label] = (lock, timer)

    def _is_locked(self, label: Label, lock: _Lock) -> bool:
        return label in self._locks and self._locks[label][0] is lock

    def _unlock(self, label: Label, lock: _Lock | None = None) -> None:
        if label in self._locks and (lock is None or self._locks[label][0] is lock):
            self._kernel.cancel(self._locks.pop(label)[1])

    def _lock_expired(self, label: Label, lock: _Lock) -> None:
        if not self._is_locked(label, lock):
            return
        if lock in (_Lock.PENDING, _Lock.FROZEN):
            self._lock(label, lock)
            self._calls.call(label[:-1], PhtProbe(), partial(self._parent_is, label, lock))
        else:  # its own calls end before this unless all of them failed
            self._unlock(label)

    def _parent_is(self, label: Label, lock: _Lock, reply: PhtReply | None) -> None:
        if not self._is_locked(label, lock):
            return
        if reply is not None and reply.outcome is PhtOutcome.LEAF:
            self._vanish(label, self._kernel.now_us)
        else:
            self._unlock(label)

    # Storage.

    def _node(self, label: Label) -> TrieNode | None:
        items = self._dht.local_get(NODES, name_of(self._name, label))
        if not items:
            return None
        node = items[0].value
        assert isinstance(node, TrieNode)
        now_us = self._kernel.now_us
        if any(entry.expires_us <= now_us for entry in node.entries):
            return replace(node, entries=tuple(entry for entry in node.entries if entry.expires_us > now_us))
        return node

    def _kind(self, label: Label) -> PhtOutcome:
        node = self._node(label)
        if node is None:
            return PhtOutcome.BUSY if self._kernel.now_us < self._unsure_until_us else PhtOutcome.ABSENT
        if node.kind is NodeKind.GONE:
            return PhtOutcome.ABSENT
        return PhtOutcome.LEAF if node.kind is NodeKind.LEAF else PhtOutcome.INTERNAL

    def _store(self, label: Label, node: TrieNode) -> bool:
        return self._dht.keep(
            NODES, name_of(self._name, label), "", node, self._settings.node_lifetime_us, node.size_bytes
        )  # fmt: skip

    def _extend(self, label: Label) -> None:
        self._dht.extend(NODES, name_of(self._name, label), "", self._settings.node_lifetime_us)

    def _arc_changed(self, arc: Arc) -> None:
        self._unsure_until_us = self._kernel.now_us + self._settings.grace_us


def _key_of(entry: PhtEntry) -> int:
    return entry.key


def _with(node: TrieNode, entries: list[PhtEntry] | tuple[PhtEntry, ...]) -> TrieNode:
    """A leaf with these entries too; of two with the same key and id the later one stays."""
    merged = {(entry.key, entry.id): entry for entry in node.entries}
    for entry in entries:
        present = merged.get((entry.key, entry.id))
        if present is None or present.stored_us <= entry.stored_us:
            merged[entry.key, entry.id] = entry
    return replace(node, entries=tuple(merged[name] for name in sorted(merged)))
