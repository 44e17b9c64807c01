"""The operators of table 3.3 and their implementations."""
