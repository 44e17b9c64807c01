"""Aggregation in the network (PIER, section 4.2): partial state records on their way to a root."""
