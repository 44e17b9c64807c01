"""Aggregates as partial state records: add, combine, result (pier paper, table 4.1); no I/O, no engine."""
