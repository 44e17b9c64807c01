"""RJoin: queries that wait where their tuples will come, and move on rewritten when one has come."""
