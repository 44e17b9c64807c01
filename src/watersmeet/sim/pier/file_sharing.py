"""Keyword search of file sharing (PIER, section 1.2.1): posting lists in a DHT, flooding over the same nodes, and both.

Every replica of a file is a tuple (word, file, node) under each of its words. A query of two words goes to the owner of
the rarer one, which fetches the posting list of the other and joins the two. Flooding asks all neighbours up to a
number of hops: what is popular is near, what is rare may be beyond that.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from watersmeet.program.pier.tuples import Batch, Row, Schema
from watersmeet.program.pier.values import key_text
from watersmeet.sim.dht.settings import DhtSettings
from watersmeet.sim.internet.hosts import Internet
from watersmeet.sim.internet.latency import King
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.flooding import FloodingNode, random_graph
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.pier.network import PierNetwork

SECOND_US = 1_000_000
ANSWER_BY_US = 30 * SECOND_US  # an answer that takes longer is none
_LIFETIME_US = 1_000_000 * SECOND_US  # lists are there throughout
_POSTING = Schema.of("posting", {"word": "string", "file": "integer", "node": "integer"})
_QUERY_BYTES = 40

SEARCH = """%opgraph(search) {{
  duration = 30
  ns = words
  rid = "{first_key}"
  %operator(all) {{ type = scan implementation = DHT ns = words }}
  %operator(set) {{ type = flowcontrol sources[] = all probe = set }}
  %operator(first) {{
    type = selection sources[] = set
    %predicate(p) {{ type = atomic leftexpression = $word op = "=" rightexpression = "{first}"::string }}
  }}
  %operator(one) {{
    type = projection sources[] = first rename[word] = word1 rename[file] = file1 rename[node] = node1
  }}
  %operator(other) {{ type = scan implementation = DHT ns = words }}
  %operator(both) {{
    type = join implementation = Index sources[] = one sources[] = other
    left[] = "{second}"::string right[] = $word
    %predicate(file) {{ type = atomic leftexpression = $file1 op = "=" rightexpression = $file }}
    %predicate(node) {{ type = atomic leftexpression = $node1 op = "=" rightexpression = $node }}
  }}
  %operator(found) {{ type = projection sources[] = both fields[] = file fields[] = node }}
  %operator(out) {{ type = result sources[] = found once[] = file once[] = node }}
}}"""


@dataclass(frozen=True, slots=True)
class Search:
    """Two words, and whether any file has both."""

    words: tuple[str, str]
    asked_at: int
    replicas: int  # of all files that have both words


@dataclass(frozen=True)
class Library:
    """Who shares which files: popularity of files and words by Zipf's law."""

    nodes: int = 400
    files: int = 4_000
    words: int = 4_000
    words_a_file: int = 3
    replicas: int = 3  # of a file, on average
    theta: float = 1.0
    seed: int = 1

    @cached_property
    def words_of(self) -> list[tuple[str, ...]]:
        """The words of each file."""
        chance = np.random.default_rng([self.seed, 1])
        shares = _zipf(self.words, 0.7)
        drawn = chance.choice(self.words, (self.files, 4 * self.words_a_file), p=shares)
        return [tuple(f"w{word}" for word in dict.fromkeys(row.tolist()))[: self.words_a_file] for row in drawn]

    @cached_property
    def holders(self) -> list[list[int]]:
        """The nodes that have each file: at least one."""
        chance = np.random.default_rng([self.seed, 2])
        counts = 1 + chance.multinomial(self.files * (self.replicas - 1), _zipf(self.files, self.theta))
        return [chance.choice(self.nodes, min(int(count), self.nodes), replace=False).tolist() for count in counts]

    @cached_property
    def postings(self) -> list[Row]:
        """All tuples of the inverted lists."""
        return [
            (word, file, node)
            for file, (words, nodes) in enumerate(zip(self.words_of, self.holders, strict=True))
            for word in words
            for node in nodes
        ]

    @cached_property
    def postings_of(self) -> Counter[str]:
        """How long the list of each word is."""
        return Counter(word for word, _, _ in self.postings)

    def matches(self, words: tuple[str, str]) -> set[tuple[int, int]]:
        """The replicas with both words, by definition: what an answer must be."""
        wanted = set(words)
        return {
            (file, node)
            for file, (own, nodes) in enumerate(zip(self.words_of, self.holders, strict=True))
            if wanted <= set(own)
            for node in nodes
        }

    def searches(self, count: int, hopeless: float = 0.2) -> list[Search]:
        """Users ask for files by popularity, and some for what nobody has."""
        chance = np.random.default_rng([self.seed, 3])
        popularity = np.array([len(nodes) for nodes in self.holders], float)
        found = []
        for _ in range(count):
            file = int(chance.choice(self.files, p=popularity / popularity.sum()))
            first, second = self.words_of[file][:2]
            if chance.random() < hopeless:
                second = "nowhere"
            words = (first, second)
            found.append(Search(words, int(chance.integers(self.nodes)), len(self.matches(words))))
        return found


def _zipf(count: int, theta: float) -> NDArray[np.float64]:
    weights = np.arange(1, count + 1, dtype=np.float64) ** -theta
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search came to: when its first answer came, and how many there were."""

    first_us: int | None  # None: no answer in time
    answers: int


@dataclass(frozen=True, slots=True)
class SearchCosts:
    """What a number of searches sent."""

    searched: list[Searched]
    messages: int
    bytes: int


def search_by_pier(library: Library, searches: Sequence[Search]) -> SearchCosts:
    """Ask PIER, one search after the other."""
    latency = King(library.nodes, seed=library.seed)
    overlay = Prefixes.random(library.nodes, library.seed, latency)
    pier = PierNetwork(Kernel(library.seed), latency, overlay, dht=DhtSettings(lifetime_max_us=_LIFETIME_US))
    for word, file, node in library.postings:
        pier.place("words", f"'{word}'", f"{file}.{node}", Batch(_POSTING, ((word, file, node),)), _LIFETIME_US)
    pier.settle()
    start = pier.traffic
    pier.kernel.run(pier.kernel.now_us + ANSWER_BY_US)
    before = pier.traffic
    found = []
    for search in searches:
        first, second = sorted(search.words, key=lambda word: (library.postings_of[word], word))
        text = SEARCH.format(first=first, second=second, first_key=key_text((first,)))
        client = pier.nodes[search.asked_at].ask(text)
        pier.kernel.run(client.asked_us + ANSWER_BY_US)
        found.append(Searched(client.latency_us(1), client.count))
        assert {(row[0], row[1]) for row in client.rows} <= library.matches(search.words), "only what has both words"
    after, waits = pier.traffic, len(searches)  # as often as nodes have waited, their trees have sent what they do
    return SearchCosts(
        found,
        after.messages - before.messages - waits * (before.messages - start.messages),
        after.bytes - before.bytes - waits * (before.bytes - start.bytes),
    )


def search_by_flooding(library: Library, searches: Sequence[Search], *, degree: int = 4, hops: int = 4) -> SearchCosts:
    """Flood each search over random neighbours, one after the other."""
    kernel = Kernel(library.seed)
    internet = Internet(kernel, King(library.nodes, seed=library.seed))
    files_of: list[dict[int, set[str]]] = [{} for _ in range(library.nodes)]
    for file, nodes in enumerate(library.holders):
        for node in nodes:
            files_of[node][file] = set(library.words_of[file])

    def matching(node: int, words: object) -> list[object]:
        assert isinstance(words, tuple)
        wanted = set(words)
        return [file for file, own in files_of[node].items() if wanted <= own]

    graph = random_graph(library.nodes, degree, library.seed)
    peers = [
        FloodingNode(kernel, internet, node, graph[node], lambda words, node=node: matching(node, words))  # type: ignore[misc]
        for node in range(library.nodes)
    ]
    found = []
    for search in searches:
        asked_us, times = kernel.now_us, list[int]()

        def answered(node: int, hits: Sequence[object], hops: int, times: list[int] = times) -> None:
            times += [kernel.now_us] * len(hits)

        number = peers[search.asked_at].query(search.words, _QUERY_BYTES, hops, answered)
        kernel.run(asked_us + ANSWER_BY_US)
        peers[search.asked_at].close(number)
        found.append(Searched(times[0] - asked_us if times else None, len(times)))
    return SearchCosts(found, sum(internet.messages_sent), sum(internet.bytes_sent))


def is_rare(library: Library, search: Search, rare_postings: int) -> bool:
    """Whether the list of one of its words is that short."""
    return min(library.postings_of[word] for word in search.words) <= rare_postings


def hybrid(
    library: Library, searches: Sequence[Search], pier: SearchCosts, flooding: SearchCosts, rare_postings: int
) -> list[Searched]:
    """Words with short lists are looked up by PIER, the others are flooded."""
    return [
        by_pier if is_rare(library, search, rare_postings) else flooded
        for search, by_pier, flooded in zip(searches, pier.searched, flooding.searched, strict=True)
    ]
