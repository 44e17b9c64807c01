"""A site as one Structured Streaming query."""
