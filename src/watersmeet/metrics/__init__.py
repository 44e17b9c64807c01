"""What a run reports: one stream of typed events, and its readers."""
