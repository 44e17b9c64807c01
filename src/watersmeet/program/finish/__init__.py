"""What follows a join: residual predicates, projection, DISTINCT; the same on every runtime."""
