"""Work shared between aggregate queries over one stream that differ in their predicates (pier.txt, chapter 5).

Rows are classified once into fragments, by the set of queries they satisfy; the matrix F says which fragment belongs to
which query. F is decomposed so that k partial aggregates answer all q queries, k being as small as the algebra of the
aggregate allows. Nothing here does I/O.
"""
