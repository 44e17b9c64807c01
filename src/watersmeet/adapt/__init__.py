"""Deciding when and how the plan of a running query changes (adaptive paper, sections 2 to 4)."""
