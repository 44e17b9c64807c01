"""Aggregates that many queries share, among peers (pier.txt, chapter 5)."""
