"""The Prefix Hash Tree as its users see it: insert, delete, point and range lookup, from any peer.

The leaf of a key is found by binary search over the lengths of labels, since a label that is absent has no longer ones
and one that is internal no shorter leaf; leaves met before are tried first. A range is read in parallel, from the
longest label that all its keys share down both sides of the trie at once, or in sequence along the links between
leaves. A link that is out of date costs a search, never an answer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from watersmeet.sim.dht.messages import Item
from watersmeet.sim.dht.node import Dht
from watersmeet.sim.kernel import NO_EVENT, Event, Kernel
from watersmeet.sim.pier.indexes.pht.calls import LabelCalls
from watersmeet.sim.pier.indexes.pht.labels import Label, common_label, high_of, label_of, low_of
from watersmeet.sim.pier.indexes.pht.messages import (
    Action,
    Delete,
    Insert,
    PhtEntry,
    PhtOutcome,
    PhtReply,
    PhtSettings,
    Read,
    TrieNode,
)
from watersmeet.sim.pier.indexes.pht.server import TrieServer

_LEAVES_REMEMBERED = 1_024


@dataclass(frozen=True, slots=True)
class LookupResult:
    """What a lookup has found, by key and id; `is_complete`: every key asked for was answered for by a leaf."""

    entries: tuple[PhtEntry, ...]
    is_complete: bool


FoundCallback: TypeAlias = Callable[[LookupResult], None]


class PrefixHashTree:
    """One peer's part of an index: it serves the trie nodes whose labels it owns, and asks others for theirs."""

    __slots__ = ("_calls", "_depth", "_dht", "_kernel", "_leaves", "_server", "_settings")

    def __init__(
        self,
        kernel: Kernel,
        dht: Dht,
        name: str,
        settings: PhtSettings = PhtSettings(),  # noqa: B008 - it is frozen
    ) -> None:
        self._kernel, self._dht, self._settings = kernel, dht, settings
        self._server = TrieServer(kernel, dht, name, settings, self._insert_again)
        self._calls: LabelCalls = self._server.calls
        self._leaves: dict[Label, None] = {}  # met before, the oldest first
        self._depth = 0  # of the last one

    def start(self) -> None:
        """Begin to serve, after the DHT node has started."""
        self._server.start()

    def stop(self) -> None:
        """Crash: callbacks of what is under way are not called any more."""
        self._server.stop()
        self._leaves.clear()

    def insert(
        self,
        key: int,
        entry_id: str,
        value: object,
        lifetime_us: int,
        size_bytes: int = 100,
        done: Callable[[bool], None] | None = None,
    ) -> None:
        """Index a value for a lifetime; the same key and id again renews or replaces it. `done` gets whether it is."""
        self._check(key)
        if lifetime_us < 1:
            raise ValueError(f"lifetime_us must be positive: {lifetime_us}")
        entry = PhtEntry(key, entry_id, value, size_bytes, self._kernel.now_us + lifetime_us)
        self._search(key, Insert(entry), partial(_call_done, done))

    def delete(self, key: int, entry_id: str, done: Callable[[bool], None] | None = None) -> None:
        """Remove an entry; `done` gets whether it is gone for sure."""
        self._check(key)
        self._search(key, Delete(key, entry_id), partial(_call_done, done))

    def lookup(self, key: int, found: FoundCallback) -> None:
        """The entries of one key."""
        self.range(key, key, found, parallel=False)

    def range(self, low: int, high: int, found: FoundCallback, *, parallel: bool = True) -> None:
        """The entries with keys from `low` to `high`, both included."""
        self._check(low)
        self._check(high)
        if low > high:
            raise ValueError(f"a range begins with its lowest key: {low}, {high}")
        (_ParallelRange if parallel else _SequentialRange)(self, low, high, found).start()

    def serve(self, item: Item) -> None:
        """Serve a request that arrived before this peer knew of the index."""
        self._calls.arrived(item)

    def nodes(self) -> dict[Label, TrieNode]:
        """The trie nodes that this peer owns."""
        return self._server.nodes()

    @property
    def splits_total(self) -> int:
        """How many leaves have been split here."""
        return self._server.splits_total

    @property
    def merges_total(self) -> int:
        """How many pairs of leaves have been merged here."""
        return self._server.merges_total

    # For the searches below.

    @property
    def kernel(self) -> Kernel:
        return self._kernel

    @property
    def calls(self) -> LabelCalls:
        return self._calls

    @property
    def settings(self) -> PhtSettings:
        return self._settings

    def _search(self, key: int, action: Action, ended: Callable[[PhtReply | None], None]) -> None:
        _Search(self, key, action, ended).start()

    def remembered(self, key: int) -> Label | None:
        """The leaf of a key as met before."""
        text = label_of(key, self._settings.key_bits, self._settings.key_bits)
        lengths = range(len(text), -1, -1)
        return next((text[:length] for length in lengths if text[:length] in self._leaves), None)

    @property
    def depth(self) -> int:
        """Where the search for an unknown leaf begins."""
        return self._depth

    def learn(self, reply: PhtReply) -> None:
        """Remember who is a leaf, and forget who is not."""
        self._leaves.pop(reply.label, None)
        if reply.outcome is PhtOutcome.LEAF:
            self._leaves[reply.label] = None
            self._depth = len(reply.label)
            if len(self._leaves) > _LEAVES_REMEMBERED:
                del self._leaves[next(iter(self._leaves))]

    def _insert_again(self, entry: PhtEntry) -> None:
        if entry.expires_us > self._kernel.now_us:
            self._search(entry.key, Insert(entry), lambda reply: None)

    def _check(self, key: int) -> None:
        if not 0 <= key < 1 << self._settings.key_bits:
            raise ValueError(f"a key of this index has {self._settings.key_bits} bits: {key}")


class _Search:
    """Tries an action at labels of a key until a leaf has done it; `ended` gets its reply, or else None.

    A trie that is changing, or broken, can make the search end between an internal node and an absent child: then it
    begins again a little later. A write that finds that again begins a leaf there; a read says that nothing is there.
    """

    __slots__ = ("_action", "_ended", "_high", "_key", "_low", "_rounds_left", "_saw_internal", "_tree")

    def __init__(
        self,
        tree: PrefixHashTree,
        key: int,
        action: Action,
        ended: Callable[[PhtReply | None], None],
        shortest: int = 0,
    ) -> None:
        self._tree, self._key, self._action, self._ended = tree, key, action, ended
        self._rounds_left = 4
        self._low, self._high, self._saw_internal = shortest, tree.settings.key_bits, False

    def start(self) -> None:
        known = self._tree.remembered(self._key)
        self._ask(len(known) if known is not None else min(self._tree.depth, self._high))

    def _ask(self, length: int) -> None:
        label = label_of(self._key, length, self._tree.settings.key_bits)
        self._tree.calls.call(label, self._action, self._replied)

    def _replied(self, reply: PhtReply | None) -> None:
        if reply is None or reply.outcome is PhtOutcome.BUSY:
            self._ended(None)
            return
        self._tree.learn(reply)
        if reply.outcome is PhtOutcome.LEAF:
            self._ended(reply)
            return
        if isinstance(self._action, Insert) and self._action.create:  # somebody else was faster
            self._action = Insert(self._action.entry)
        if reply.outcome is PhtOutcome.INTERNAL:
            self._low, self._saw_internal = max(self._low, len(reply.label) + 1), True
        else:
            self._high = min(self._high, len(reply.label) - 1)
        if self._low <= self._high:
            self._ask((self._low + self._high) // 2)
        else:
            self._no_leaf()

    def _no_leaf(self) -> None:
        is_write, is_empty = isinstance(self._action, Insert), not self._saw_internal
        if is_empty and not is_write:
            self._ended(PhtReply("", 0, "", PhtOutcome.ABSENT))
            return
        self._rounds_left -= 1
        if self._rounds_left and not (is_empty and is_write):
            self._tree.kernel.after(self._tree.settings.busy_us, self._again)
        elif isinstance(self._action, Insert) and not self._action.create:
            self._action = Insert(self._action.entry, create=True)
            self._ask(self._low)
        else:
            self._ended(None)

    def _again(self) -> None:
        self._low, self._high, self._saw_internal = 0, self._tree.settings.key_bits, False
        self._ask(self._tree.settings.key_bits // 2)


class _SequentialRange:
    """Leaf after leaf along their links."""

    __slots__ = ("_entries", "_found", "_high", "_is_complete", "_low", "_tree")

    def __init__(self, tree: PrefixHashTree, low: int, high: int, found: FoundCallback) -> None:
        self._tree, self._low, self._high, self._found = tree, low, high, found
        self._entries: dict[tuple[int, str], PhtEntry] = {}
        self._is_complete = True

    def start(self) -> None:
        _Search(self._tree, self._low, Read(self._low, self._high), self._replied).start()

    def _replied(self, reply: PhtReply | None) -> None:
        bits = self._tree.settings.key_bits
        if reply is None or reply.outcome is not PhtOutcome.LEAF:
            # An empty trie has no leaf, and that is an answer.
            self._end(is_complete=reply is not None and not self._entries)
            return
        self._entries |= {(entry.key, entry.id): entry for entry in reply.entries}
        end = high_of(reply.label, bits)
        if end >= self._high:
            self._end(is_complete=True)
            return
        self._low = end + 1
        after = reply.after
        if after is not None and low_of(after, bits) == self._low:
            self._tree.calls.call(after, Read(self._low, self._high), self._followed)
        else:
            self.start()

    def _followed(self, reply: PhtReply | None) -> None:
        if reply is not None and reply.outcome is PhtOutcome.LEAF:
            self._tree.learn(reply)
            self._replied(reply)
        else:
            self.start()

    def _end(self, is_complete: bool) -> None:
        self._found(_found(self._entries, is_complete))


class _ParallelRange:
    """Down both sides of the trie at once; the owners of internal nodes pass the question on."""

    __slots__ = (
        "_answered",
        "_entries",
        "_found",
        "_high",
        "_is_complete",
        "_is_searching",
        "_low",
        "_number",
        "_pending",
        "_timer",
        "_top",
        "_tree",
        "_tries",
    )

    def __init__(self, tree: PrefixHashTree, low: int, high: int, found: FoundCallback) -> None:
        self._tree, self._low, self._high, self._found = tree, low, high, found
        self._top = common_label(low, high, tree.settings.key_bits)
        self._entries: dict[tuple[int, str], PhtEntry] = {}
        self._answered: set[Label] = set()
        self._pending: set[Label] = {self._top}
        self._tries: dict[Label, int] = {}
        self._is_complete = True
        self._is_searching = False
        self._timer: Event = NO_EVENT
        self._number = 0

    def start(self) -> None:
        self._number = self._tree.calls.listen(self._replied)
        self._ask(self._top)
        self._timer = self._tree.kernel.after(self._tree.settings.timeout_us, self._timed_out)

    def _ask(self, label: Label) -> None:
        if label in self._pending:
            self._tree.calls.ask(self._number, label, Read(self._low, self._high, spread=True))

    def _replied(self, reply: PhtReply) -> None:
        label = reply.label
        if label in self._answered:
            return
        match reply.outcome:
            case PhtOutcome.LEAF:
                self._tree.learn(reply)
                self._entries |= {(entry.key, entry.id): entry for entry in reply.entries}
                self._resolve(label)
            case PhtOutcome.INTERNAL:
                self._pending.update(child for child in reply.passed_on if child not in self._answered)
                self._resolve(label)
            case PhtOutcome.ABSENT if label == self._top:
                # The whole range is below one leaf nearer to the root, or nowhere.
                self._pending.discard(label)
                self._answered.add(label)
                self._is_searching = True
                _Search(self._tree, self._low, Read(self._low, self._high), self._above).start()
            case PhtOutcome.ABSENT | PhtOutcome.BUSY:
                self._again(label, reply.outcome)

    def _above(self, reply: PhtReply | None) -> None:
        self._is_searching = False
        if reply is None:
            self._is_complete = False
        elif reply.outcome is PhtOutcome.LEAF:
            self._entries |= {(entry.key, entry.id): entry for entry in reply.entries}
            if high_of(reply.label, self._tree.settings.key_bits) < self._high:  # it has been split meanwhile
                self._answered.discard(self._top)
                self._pending.add(self._top)
                self._ask(self._top)
                return
        self._end_if_all()

    def _again(self, label: Label, outcome: PhtOutcome) -> None:
        """Ask again later; if it is still absent, its parent may have become a leaf."""
        if label not in self._pending and label not in self._answered:
            self._pending.add(label)  # its reply was faster than that of its parent
        tries = self._tries[label] = self._tries.get(label, 0) + 1
        limit = self._tree.settings.busy_tries if outcome is PhtOutcome.BUSY else 4
        if tries > limit:
            self._is_complete = False
            self._resolve(label)
            return
        if outcome is PhtOutcome.ABSENT and tries > 1 and label != self._top:
            parent = label[:-1]
            self._pending.discard(label)
            self._answered.discard(parent)
            self._tries[parent] = max(self._tries.get(parent, 0), tries)
            if parent not in self._pending:
                self._pending.add(parent)
                self._tree.kernel.after(self._tree.settings.busy_us, self._ask, parent)
            return
        self._tree.kernel.after(self._tree.settings.busy_us, self._ask, label)

    def _timed_out(self) -> None:
        if not self._tree.calls.is_open(self._number):
            return
        self._timer = self._tree.kernel.after(self._tree.settings.timeout_us, self._timed_out)
        for label in sorted(self._pending):
            tries = self._tries[label] = self._tries.get(label, 0) + 1
            if tries > self._tree.settings.tries:
                self._is_complete = False
                self._pending.discard(label)
                self._answered.add(label)
            else:
                self._ask(label)
        self._end_if_all()

    def _resolve(self, label: Label) -> None:
        self._pending.discard(label)
        self._answered.add(label)
        self._end_if_all()

    def _end_if_all(self) -> None:
        if not self._pending and not self._is_searching and self._number:
            self._tree.calls.close(self._number)
            self._tree.kernel.cancel(self._timer)
            self._number = 0
            self._found(_found(self._entries, self._is_complete))


def _found(entries: dict[tuple[int, str], PhtEntry], is_complete: bool) -> LookupResult:
    return LookupResult(tuple(entries[name] for name in sorted(entries)), is_complete)


def _call_done(done: Callable[[bool], None] | None, reply: PhtReply | None) -> None:
    if done is not None:
        done(reply is not None)
