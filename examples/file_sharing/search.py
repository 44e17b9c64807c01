"""Keyword search among 60 peers: PIER's inverted lists in a DHT beside flooding, and a hybrid of both.

    python examples/file_sharing/search.py

`watersmeet reproduce pier-fig1.1` runs the same with 500 peers and draws the distribution of answer times.
"""

from statistics import median

from watersmeet.sim.pier.file_sharing import Library, hybrid, search_by_flooding, search_by_pier

library = Library(nodes=60, files=600, words=600)
searches = library.searches(60)
pier, flooding = search_by_pier(library, searches), search_by_flooding(library, searches, hops=3)
both = hybrid(library, searches, pier, flooding, rare_postings=40)

print(f"{len(library.postings):,} postings of {library.files:,} files on {library.nodes} peers")
print(f"{'':10}{'no answer':>12}{'first answer, median':>24}")
for name, searched in (("PIER", pier.searched), ("flooding", flooding.searched), ("hybrid", both)):
    times = [found.first_us / 1e3 for found in searched if found.first_us is not None]
    print(f"{name:10}{len(searched) - len(times):>12}{median(times):>21,.0f} ms")
possible = sum(search.replicas > 0 for search in searches)
print(f"{len(searches) - possible} of {len(searches)} searches are for what nobody has")
